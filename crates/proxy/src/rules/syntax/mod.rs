//! How header values are written: lists, structured fields, dates, hosts.
//!
//! Owns: reading them. Their meaning belongs to the rules, which use these files by their own names.

pub mod date;
pub mod host;
pub mod list;
pub mod structured;
