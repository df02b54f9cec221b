//! The objects in memory: entries, the tier that keeps them, and reading them into memory again after a restart.

mod entries;
pub mod entry;
pub mod hot;
mod kept;
pub mod tier;
pub mod warm_list;
