//! Purges: their rules in memory, and their log on disk.

pub mod log;
mod log_blocks;
pub mod rules;
