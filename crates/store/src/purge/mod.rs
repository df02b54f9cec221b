//! What has been purged: the rules in memory, and their log on disk.

pub mod log;
pub mod rules;
