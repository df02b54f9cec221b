//! What a client caches of files that other hosts may change, and when it forgets.
//!
//! Owns: forgetting. Promises: a map is used for about a fifth of a lease at most; before this client says that what an
//! append freed is in no map of it, it has forgotten every map that is older. So it never reads blocks that belong to
//! another file by now. Opening a file forgets what is known of it, so that it shows what was committed before.
//!
//! Not here yet: tokens, with which another host's write is seen at once in a file that stays open.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::error::Error;
use super::file::File;
use super::session::Event;
use super::{Client, Level, lock};
use crate::protocol::{FileId, Question};

/// The kernel of this host, which may have pages of files in memory.
pub trait Kernel: Send + Sync + 'static {
    /// Makes the kernel forget the pages and attributes of an inode; the receiver hears when it has. It may first write
    /// pages back, so nothing that serves such writes may wait for it.
    fn invalidate(&self, inode: u64) -> oneshot::Receiver<()>;
}

/// What the session holds.
pub(super) struct Holds {
    kernel: Arc<dyn Kernel>,
}

impl Holds {
    pub fn new(kernel: Arc<dyn Kernel>) -> Holds {
        Holds { kernel }
    }
}

impl Client {
    /// Whether the session may do this with a file's data now: always, as there are no tokens yet.
    pub(super) fn holds(&self, _file: FileId, _level: Level) -> bool {
        true
    }

    /// Waits until it may.
    pub(super) async fn acquire(&self, _file: FileId, _level: Level) -> Result<(), Error> {
        Ok(())
    }

    /// Forgets what others may have changed; what was written here stays.
    pub(super) async fn forget(&self, file: &File) {
        let mut content = file.content.write().await;
        content.map.clear();
        if !content.is_dirty() {
            content.forget();
        }
    }

    /// Serves what the session reports.
    pub(super) async fn serve_events(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            let files: Vec<Arc<File>> = lock(&self.shared.files).values().cloned().collect();
            match event {
                Event::Durable(sequence) => {
                    for file in &files {
                        let version = file.content.read().await.inode.version;
                        self.forget(file).await;
                        self.forget_pages(file, version).await;
                    }
                    self.shared.session.set_drained(sequence);
                }
                Event::Restarted => {
                    let epoch = self.shared.session.epoch();
                    for file in files {
                        if *file.at_server.lock().await {
                            // An error means that it is gone; so every call on it will say.
                            let _ = self.ask(Question::Open { file: file.id }).await;
                        }
                    }
                    self.shared.session.reclaimed(epoch).await;
                }
            }
        }
    }

    /// Makes the kernel forget its pages of a file that another host changed since `version`.
    async fn forget_pages(&self, file: &File, version: u64) {
        if !file.is_used() || file.shown().is_dirty {
            return;
        }
        if let Ok(content) = self.readable(file).await
            && content.inode.version != version
        {
            drop(content);
            // Another thread does it, because the kernel may write pages back first.
            drop(self.shared.holds.kernel.invalidate(file.id.inode));
        }
    }
}
