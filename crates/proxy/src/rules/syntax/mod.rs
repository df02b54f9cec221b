//! The syntax of header values: lists, structured fields, cookies, dates, hosts.
//!
//! Owns: parsing. Leaves to others: the meaning of the values (the rules).

pub mod cookie_pairs;
pub mod date;
pub mod host;
pub mod list;
pub mod structured;
