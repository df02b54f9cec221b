//! The names of objects: keys and tags, and their hashes.

pub mod key;
pub mod tag;
