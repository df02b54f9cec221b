//! What the owner does for a user who wants a pass of the scrub.
//!
//! Owns: who waits for which pass. Leaves to others: the scrub (`in_place`, `logged`).

use tokio::sync::oneshot;

use super::device_owner::DeviceOwner;
use crate::group::MachineEvent;
use crate::scrub::ScrubFindings;

impl DeviceOwner {
    /// Begins a pass now, or after the present one if a user waits for that already.
    pub(super) fn scrub(&mut self, reply: oneshot::Sender<ScrubFindings>) {
        let progress = self.machine.scrub_progress();
        // Only a pass that began after the request has compared everything.
        self.scrubbing.push((progress.passes + u64::from(progress.is_requested), reply));
        self.step(MachineEvent::Scrub);
    }

    /// Tells those who wait for a pass that it has ended.
    pub(super) fn answer_scrubs(&mut self) {
        if self.scrubbing.is_empty() {
            return;
        }
        let progress = self.machine.scrub_progress();
        if self.scrubbing.iter().any(|(before, _)| progress.passes > *before) {
            // The report comes first: a caller who is told of the end sees it there.
            self.publish(true, false);
        }
        for (before, reply) in std::mem::take(&mut self.scrubbing) {
            match progress.passes > before {
                true => _ = reply.send(progress.last),
                false => self.scrubbing.push((before, reply)),
            }
        }
    }
}
