//! Purges: their rules in memory, and their log on disk.

pub mod log;
pub mod rules;
