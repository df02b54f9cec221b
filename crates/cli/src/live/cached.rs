//! The caches that a process of this program has, however it came to them.
//!
//! Owns: their names. Leaves to others: what is done with them (`methods`, `report`).

use std::sync::Arc;

use nectary_attach::Tree;
use nectary_buffer::{BufferCache, Caches};

/// The caches of a process.
#[derive(Clone)]
pub enum Cached {
    /// A directory that is shown.
    Tree(Arc<Tree>),
    /// What SPECs have opened, and the name under which the device is known.
    Devices(Caches, String),
}

impl Cached {
    /// All caches, with a name each.
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
