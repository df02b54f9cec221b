//! What is in memory: entries, the tier that keeps them, and what comes back into it after a restart.

mod entries;
pub mod entry;
pub mod hot;
mod kept;
pub mod tier;
pub mod warm_list;
