//! Requests for tokens of data, and their grants.
//!
//! Owns: when a token is requested, also one that is used already, and what becomes of a grant. Leaves to others: who waits
//! for a token, and giving it back (`hold`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::VolumeClient;
use super::calls::FileGrant;
use super::file::ActiveFile;
use super::lock;
use crate::protocol::{Token, TokenAspect};
use crate::tokens::{RecallOutcome, TokenHolding, level};

/// The pause after a refused request for a token.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

impl VolumeClient {
    /// Requests the token of a file that this session has made and that nobody else knows, and uses it already. Returns
    /// `false` if it is no such file.
    pub(super) fn hold_ahead(&self, file: &Arc<ActiveFile>, state: &mut TokenHolding) -> bool {
        let Some(answer) = self.shared.session.acquire_ahead(file.id) else { return false };
        state.hold_ahead();
        let (client, file) = (self.clone(), file.clone());
        tokio::spawn(async move {
            let granted = client.shared.session.granted_ahead(answer).await;
            client.end_request(&file, granted).await;
            if !file.is_used() {
                client.settle(&file).await;
            }
        });
        true
    }

    /// Requests a token, and wakes the waiting calls.
    pub(super) fn request(&self, file: Arc<ActiveFile>, level: u8) {
        let client = self.clone();
        tokio::spawn(async move {
            let token = Token { object: file.id, what: TokenAspect::Data };
            let granted = client.shared.session.acquire(token, level).await;
            if granted.is_err() {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            client.end_request(&file, granted.ok()).await;
            if !file.is_used() {
                client.settle(&file).await;
            }
        });
    }

    /// Handles the answer to a request for a token.
    pub(super) async fn end_request(&self, file: &Arc<ActiveFile>, granted: Option<FileGrant>) {
        let early = {
            // This must not wait for the lock, because a server that restarts in the meantime must be told of the
            // token. If the lock is not free, the attributes and extents are dropped, and requested when they are
            // needed.
            let content = file.content.try_write().ok();
            let mut state = file.hold.state();
            // A newer server that was told what is held does not know of a grant that comes after that.
            match granted.filter(|grant| grant.epoch == self.shared.session.epoch()) {
                Some(FileGrant { held, is_watched, shape, .. }) => {
                    file.is_watched.store(is_watched, Ordering::Release);
                    let early = state.granted(held.level, held.sequence);
                    let is_held = state.level() != level::NONE && state.sequence() == held.sequence;
                    if let (Some(mut content), Some(shape), true) = (content, shape, is_held) {
                        content.learn_shape(shape);
                    }
                    early
                }
                None => state.failed(),
            }
        };
        file.hold.changed.notify_waiters();
        for recalled in early {
            if let RecallOutcome::Begin = self.hear(file, recalled) {
                let (client, file) = (self.clone(), file.clone());
                tokio::spawn(async move { client.work(file.id.inode, client.give_back(&file, recalled)).await });
            }
        }
    }

    /// Returns a grant that came without a request.
    pub(super) fn return_unwanted(&self, file: &ActiveFile, sequence: u64) {
        let is_returned = lock(&self.shared.files).refuse(file, sequence);
        if is_returned {
            self.say_returned(file.id, level::NONE, sequence, false);
        }
    }
}
