//! The device of a span: the ring of segments, and reading it.

pub mod pace;
pub mod segment;
pub mod span;
