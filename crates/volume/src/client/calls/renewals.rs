//! What a session has told its server with renewals.
//!
//! Owns: the acknowledgements of operations that renewals contain, and which of them the server has heard.

use std::collections::VecDeque;

/// After this many answered operations, the server is told that it may delete their replies.
const ACKNOWLEDGE_AFTER: u64 = 128;
/// The maximum number of unanswered renewals that are remembered.
const TOLD_MAX: usize = 64;

/// The renewals of a session.
#[derive(Default)]
pub(super) struct ToldRenewals {
    acknowledged: u64,
    /// Unanswered renewals: the time at which each was sent, and the acknowledgement that it contained.
    unanswered: VecDeque<(u64, u64)>,
    heard: u64,
}

impl ToldRenewals {
    /// The last acknowledgement that the server has heard.
    pub fn heard_acknowledged(&self) -> u64 {
        self.heard
    }

    /// Whether the server is told now that it may delete replies up to `acknowledged`.
    pub fn is_due(&self, acknowledged: u64) -> bool {
        acknowledged >= self.acknowledged + ACKNOWLEDGE_AFTER
    }

    /// Notes a renewal.
    pub fn tell(&mut self, sent_ns: u64, acknowledged: u64) {
        self.acknowledged = acknowledged;
        if self.unanswered.len() >= TOLD_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((sent_ns, acknowledged));
    }

    /// Notes that the server received the renewal that was sent at this time.
    pub fn hear(&mut self, sent_ns: u64) {
        while self.unanswered.front().is_some_and(|(sent, _)| *sent <= sent_ns)
            && let Some((_, acknowledged)) = self.unanswered.pop_front()
        {
            self.heard = self.heard.max(acknowledged);
        }
    }

    /// When the oldest unanswered renewal was sent.
    pub fn oldest_sent_ns(&self) -> Option<u64> {
        self.unanswered.front().map(|(sent_ns, _)| *sent_ns)
    }

    /// Forgets renewals that were sent on a connection that is lost.
    pub fn forget_unanswered(&mut self) {
        self.unanswered.clear();
    }
}
