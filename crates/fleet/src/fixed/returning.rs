//! A node that returns: what it has to ask before it serves.
//!
//! Owns: invariant 3.

use std::time::Duration;

use super::known_logs::LogExtents;
use super::machine::{FixedMachine, OtherMember};

/// After so many leases a node that returns waits no longer for the others.
const RETURN_LEASES: u32 = 6;

/// What is known of how a member stands to what this node may have missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReturnAnswer {
    /// It has not answered since this node came.
    None,
    /// It is known to be down.
    Down,
    /// This node has all that it has.
    Asked { serves: bool },
}

/// How far a node is that returns.
#[derive(Debug)]
pub(super) struct ReturnPart {
    /// Whether this node has what it missed.
    pub is_open: bool,
    /// Whether it has never been a member.
    is_new: bool,
    /// Whether it has asked since its process began, so that it knows the numbers of its own purges.
    pub has_asked: bool,
    /// Whether it can say what others have missed: it was told by one that can, or by all.
    pub knows: bool,
    /// When it last learnt something as it returned.
    pub learnt: Duration,
    /// Since when it has been returning.
    pub came: Duration,
    /// The place that must be taken before it serves.
    pub must_reach: Option<u64>,
}

impl ReturnPart {
    /// Begins to return.
    pub fn new(now: Duration, is_new: bool) -> ReturnPart {
        let (is_open, has_asked, knows, must_reach) = (false, false, false, None);
        ReturnPart { is_open, is_new, has_asked, knows, learnt: now, came: now, must_reach }
    }
}

impl FixedMachine {
    /// This node has to ask the others before it serves.
    pub(super) fn begin_return(&mut self, now: Duration) {
        if self.returning.is_open {
            self.counts.cuts += 1;
            self.note("fleet: this node stood still: it asks the others for purges before it serves");
        }
        let ReturnPart { is_new, has_asked, .. } = self.returning;
        self.returning = ReturnPart { has_asked, ..ReturnPart::new(now, is_new) };
        self.others.iter_mut().for_each(|other| other.returned = ReturnAnswer::None);
        self.ask_all(now);
    }

    /// Decides whether this node has what it missed.
    pub(super) fn turn_return(&mut self, now: Duration) {
        if self.is_leaving {
            return;
        }
        let has_all = self.others.iter().all(|other| matches!(other.returned, ReturnAnswer::Asked { .. }));
        let has_one = self.others.iter().any(|other| other.returned == ReturnAnswer::Asked { serves: true });
        self.returning.knows |= self.returning.is_open && has_all;
        if self.returning.is_open {
            return;
        }
        if self.returning.must_reach.is_none() {
            let is_known = |other: &OtherMember| match other.returned {
                ReturnAnswer::Asked { .. } | ReturnAnswer::Down => true,
                // It may have answered in part.
                ReturnAnswer::None => {
                    now >= other.answered.max(Some(self.returning.came)).unwrap_or(now) + self.rules.lease
                }
            };
            let are_known = self.others.iter().all(is_known);
            // A store without a fleet has missed none of its purges that these others do not know.
            if has_all || ((has_one || self.returning.is_new) && are_known) {
                self.returning.must_reach = Some(self.last_place);
                self.returning.knows = has_all || has_one;
            } else if now >= self.returning.learnt + self.rules.lease * RETURN_LEASES {
                self.purge_everything(LogExtents::new(), "no node could say what purges it missed");
                self.returning.must_reach = Some(self.last_place);
            }
        }
        self.returning.has_asked |= self.returning.must_reach.is_some();
        let place = if self.mark.fleet == self.identity() { self.mark.revision } else { 0 };
        if self.returning.must_reach.is_some_and(|must| must <= place) && self.mark.rules.fits(self.own.rules) {
            (self.returning.is_open, self.returning.is_new) = (true, false);
            self.ask_all(now);
        }
    }
}
