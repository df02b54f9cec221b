//! The public interface of a store of one span.

pub mod check;
#[cfg(feature = "planted")]
mod held;
mod open;
pub mod options;
mod probe;
pub mod purging;
pub mod stat;
pub mod store;
