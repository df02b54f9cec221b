//! Stored responses: their bytes, and what a request finds.

pub mod metadata;
pub mod response;
