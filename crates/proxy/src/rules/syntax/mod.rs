//! How header values are written: lists, structured fields, dates, hosts.
//!
//! Owns: reading them. What they mean is for the rules, which know these rooms by their own names.

pub mod date;
pub mod host;
pub mod list;
pub mod structured;
