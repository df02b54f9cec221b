//! Stored responses: their bytes, and their decoded form.

pub mod metadata;
pub mod response;
