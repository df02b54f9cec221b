//! The caches of a process of this program: of a mounted directory or of opened SPECs.
//!
//! Owns: the names of these caches, and the problem in a status that a write-back has failed. Leaves to others: methods
//! and reports of the caches (`methods`, `report`).

use std::sync::Arc;

use nectary_attach::MountedTree;
use nectary_block::{DeviceCounters, format_size};
use nectary_buffer::{BufferCache, CacheList};
use nectary_host::{PartHealth, PartStatus};

/// The caches of a process.
#[derive(Clone)]
pub enum ProcessCaches {
    /// A directory that is mounted.
    Tree(Arc<MountedTree>),
    /// The caches that SPECs have opened, with the name of the device.
    Devices(CacheList, String),
}

/// Adds to a status that caches of this SPEC have dirty blocks that could not be written back.
pub fn with_unwritten(status: PartStatus, figures: &[DeviceCounters], spec: &str) -> PartStatus {
    let caches = figures.iter().filter(|figures| figures.device == "cache");
    let unwritten: u64 = caches.filter_map(|figures| figures.get("unwritten_bytes")).sum();
    if unwritten == 0 {
        return status;
    }
    let what = format!("{spec}: {} could not be written back, and are only in memory", format_size(unwritten));
    let remedy =
        "mend the device below, then `nectary cache flush`, which names the failure; until then keep the process";
    status.with_problem(PartHealth::Degraded, what, remedy)
}

impl ProcessCaches {
    /// Returns all caches with their names.
    pub fn all(&self) -> Vec<(String, BufferCache)> {
        match self {
            ProcessCaches::Tree(tree) => vec![(tree.options().directory.display().to_string(), tree.cache().clone())],
            ProcessCaches::Devices(caches, name) => {
                let opened = caches.opened();
                let names = opened.iter().enumerate().map(|(index, opened)| {
                    let name = if index == 0 { name.clone() } else { format!("{name} {}", opened.spec()) };
                    (name, opened.cache().clone())
                });
                names.collect()
            }
        }
    }
}
