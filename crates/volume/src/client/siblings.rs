//! Sessions of this host whose processes have ended: the server is told, so that what they held is free at once.
//!
//! Owns: the search for such sessions, and the end of this session's own lock. Promises: a session is told to be gone
//! only if its lock is not held on this kernel. Leaves to others: the proof (`origin`), and the server's own search,
//! which finds the same sessions if the server runs on this host.

use std::time::Duration;

use nectary_host::log::{LogLevel, LogThrottle};

use super::VolumeClient;
use super::error::Error;
use crate::origin;
use crate::protocol::{MetadataQuestion, ServerAnswer, SiblingSession};

/// The time between two searches while siblings are found whose locks are held.
const AGAIN_MIN: Duration = Duration::from_millis(100);
/// The longest time between two searches.
const AGAIN_MAX: Duration = Duration::from_secs(5);

impl VolumeClient {
    /// Looks for siblings that have ended, until the session ends or the disk fails a write.
    pub(super) async fn watch_siblings(&self) {
        static FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));
        let mut pause = AGAIN_MIN;
        loop {
            pause = match self.tell_gone().await {
                Ok(true) => (pause * 2).min(AGAIN_MAX),
                Ok(false) => AGAIN_MAX,
                Err(error) => {
                    FAILED.write(LogLevel::Warning, "volume", format_args!("no word of other sessions: {error}"));
                    AGAIN_MAX
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shared.siblings.notified() => {
                    // A write that waits for space asks often.
                    tokio::time::sleep(AGAIN_MIN).await;
                    pause = AGAIN_MIN;
                }
                () = self.shared.counted.failed() => {
                    // The server forgets what could prove the end of this session; siblings prove nothing to it either.
                    let _ = self.ask(MetadataQuestion::Unproven).await;
                    return;
                }
            }
        }
    }

    /// Tells the server which siblings have ended. Returns whether some have not.
    async fn tell_gone(&self) -> Result<bool, Error> {
        let ServerAnswer::Siblings(siblings) = self.ask(MetadataQuestion::Siblings).await? else {
            return Err(Error::posix(libc::EIO));
        };
        let mut gone: Vec<SiblingSession> = Vec::new();
        for sibling in &siblings {
            if origin::is_gone(&self.shared.device, sibling.incarnation).await {
                gone.push(*sibling);
            }
        }
        let has_more = gone.len() < siblings.len();
        if !gone.is_empty() {
            self.ask(MetadataQuestion::Gone { siblings: gone }).await?;
        }
        Ok(has_more)
    }

    /// Releases the lock that proves that the session lives, when its last write has ended: then whoever is asked can
    /// tell that the session, which is over, writes nothing any more. If a write failed or was given up, the lock is
    /// held until the process ends.
    pub async fn let_go(&self) {
        if self.shared.counted.drained().await {
            origin::let_go(&self.shared.device, self.shared.incarnation).await;
        }
    }
}
