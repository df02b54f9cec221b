//! Tests of the network RAM disk, with real donors and file systems.

mod check;
mod donors;
mod drain;
mod foreign_donors;
mod grow;
mod mirror;
mod parity;
mod replace;
mod scrub;
mod second_failure;
