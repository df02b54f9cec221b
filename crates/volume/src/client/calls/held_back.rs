//! Requests for locks that are held back until a restarted server has been told which locks are held.
//!
//! Owns: which calls these are, and giving them up. Promises: the server gets no such request while it takes one for the
//! claim of a lock; one that is given up ends at once, as the server does not know of it. Leaves to others: calls without
//! an answer (`calls`), claims (`locks`).

use super::{CallShare, PendingCall, SessionCalls, SharedSession};
use crate::protocol::{RefusalCode, ServerRefusal, VolumeMessage};

/// Whether the message requests a lock without waiting for it.
pub(super) fn is_try_lock(message: &VolumeMessage) -> bool {
    matches!(message, VolumeMessage::Lock { waits: false, .. })
}

fn interrupted() -> ServerRefusal {
    let words = "the request for the lock was given up".to_owned();
    ServerRefusal { code: RefusalCode::Posix, errno: libc::EINTR, words }
}

impl SessionCalls {
    /// Whether a call is sent only when the server has been told which locks are held.
    pub fn is_held_back(&self, waiting: &PendingCall) -> bool {
        self.is_reclaiming && waiting.share != CallShare::Restart && is_try_lock(&waiting.message)
    }

    /// Sends the calls that were held back until the server was told which locks are held.
    pub fn send_held_back(&mut self) {
        self.is_reclaiming = false;
        let Some(bulk) = self.bulk.as_ref().filter(|_| !self.refusals.is_careful()) else { return };
        let held_back = self.waiting.iter().filter(|(_, waiting)| is_try_lock(&waiting.message));
        held_back.for_each(|(request, waiting)| drop(bulk.send(waiting.message.encode(*request, self.epoch))));
    }

    /// Ends the calls that an earlier server was told to cancel, and that the new one would get after the cancellation. An
    /// earlier server may have granted the lock: the new one is told of none that its program does not have.
    pub(super) fn end_given_up(&mut self) {
        let is_ended = |waiting: &PendingCall| waiting.is_given_up && self.is_held_back(waiting);
        let ended: Vec<u64> =
            self.waiting.iter().filter(|(_, waiting)| is_ended(waiting)).map(|(request, _)| *request).collect();
        for request in ended {
            if let Some(waiting) = self.waiting.remove(&request) {
                waiting.answer(Err(interrupted()));
            }
        }
    }
}

impl SharedSession {
    /// Gives up a request for a lock. Returns whether it has ended: the server did not know of it.
    pub fn give_up(&self, request: u64) -> bool {
        let mut state = self.state();
        let is_held_back = state.waiting.get(&request).is_some_and(|waiting| state.is_held_back(waiting));
        if !is_held_back {
            if let Some(waiting) = state.waiting.get_mut(&request) {
                waiting.is_given_up = true;
            }
            return false;
        }
        let Some(waiting) = state.waiting.remove(&request) else { return false };
        drop(state);
        waiting.answer(Err(interrupted()));
        true
    }
}
