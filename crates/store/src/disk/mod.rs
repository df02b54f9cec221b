//! The device of a span: the ring of segments, and reading it.

pub mod ahead;
mod alone;
pub mod health;
pub mod overlay;
pub mod pace;
pub mod segment;
pub mod span;
pub mod watched;
mod window;
