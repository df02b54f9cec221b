//! What sessions may keep of their changes, in runs with crashes: it is shown like the answer, so a crash takes nothing
//! of it back.

use super::run::{EarlyTestRun, Outcome, shown};
use crate::metadata::MetadataImage;
use crate::protocol::ServerAnswer;

impl EarlyTestRun {
    /// Checks what a session may keep of a request that is answered; `image` is what a crash leaves then.
    pub fn check_kept(&mut self, host: usize, request: u64, image: &MetadataImage) -> Outcome {
        let may_keep = self.hosts[host].may_keep.remove(&request).unwrap_or_default();
        for found in may_keep.attributes {
            let left = shown(&image.attributes(found.id()).map(ServerAnswer::Attributes));
            let kept = shown(&Ok(ServerAnswer::Attributes(found)));
            self.kept += 1;
            if kept != left {
                let session = self.hosts[host].session;
                return Err(format!("session {session} may keep {kept:?}, and a crash leaves {left:?}"));
            }
        }
        Ok(())
    }
}
