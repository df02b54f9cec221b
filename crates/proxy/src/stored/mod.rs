//! Stored responses: their bytes, and their decoded form.

pub mod by_hand;
pub mod metadata;
pub mod response;
