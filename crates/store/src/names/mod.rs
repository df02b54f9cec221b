//! What objects are called: keys and tags, and their hashes.

pub mod key;
pub mod tag;
