//! Storing: commits of puts, fills and purges, in one order.

pub mod commit;
pub mod fill;
pub mod purge;
