//! The caches of a process of this program: of a mounted directory or of opened SPECs.
//!
//! Owns: the names of these caches. Leaves to others: methods and reports of the caches (`methods`, `report`).

use std::sync::Arc;

use nectary_attach::Tree;
use nectary_buffer::{BufferCache, Caches};

/// The caches of a process.
#[derive(Clone)]
pub enum Cached {
    /// A directory that is mounted.
    Tree(Arc<Tree>),
    /// The caches that SPECs have opened, with the name of the device.
    Devices(Caches, String),
}

impl Cached {
    /// Returns all caches with their names.
    pub fn all(&self) -> Vec<(String, BufferCache)> {
        match self {
            Cached::Tree(tree) => vec![(tree.options().directory.display().to_string(), tree.cache().clone())],
            Cached::Devices(caches, name) => {
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
