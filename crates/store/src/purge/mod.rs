//! Purges: their rules in memory, and their log on disk.

pub mod log;
mod log_blocks;
pub mod purge_table;
pub mod records;
pub mod rules;
