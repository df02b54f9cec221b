//! Storing: puts, fills and purges are committed in one common order.

pub mod commit;
pub mod fill;
pub mod purge;
