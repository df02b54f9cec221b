//! The policies, one file or folder each.
//!
//! Owns: the choice of victims. Leaves to others: names ([`crate::registry`]), and tables and orders
//! ([`crate::structures`]). Only `adaptive` uses other policies.

pub(crate) mod adaptive;
pub(crate) mod arc;
pub(crate) mod clock;
pub mod dear;
pub(crate) mod fifo;
pub(crate) mod gdsf;
pub(crate) mod lfu;
pub(crate) mod lhd;
pub(crate) mod lirs;
pub(crate) mod lru;
pub(crate) mod min;
pub(crate) mod mru;
pub(crate) mod ordered;
pub(crate) mod ranked;
pub(crate) mod s3fifo;
pub(crate) mod sieve;
pub(crate) mod swept;
pub(crate) mod two_q;
pub(crate) mod w_tinylfu;
