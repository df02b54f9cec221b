//! The scrub: a slow read of a whole device that finds damage while its redundancy can still repair it.
//!
//! Owns: when a pass begins, when its next step is due, and what passes have found. Promises: one step at a time, and no
//! step earlier than the rate allows, except in a pass that a user has requested. Leaves to others: reading, comparing and
//! repairing (`in_place`, `logged`).
//!
//! A pass goes over the *units* of a device in their order: the blocks of a mirror, or the groups and trims of
//! logged parity. A step that could not be done is tried again, so a pass ends only when every unit was compared.

use crate::group::{MachineTimes, Moment};

/// A step that could not be done is tried again after this time. *Units*: microseconds.
const RETRY_US: Moment = 50_000;

/// What a pass, or all passes together, have found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubFindings {
    /// Copies (slots and parities, if the device logs parity) that were wrong and have the right bytes now.
    pub repaired: u64,
    /// Blocks (or slots) that are wrong, while no donor has the right bytes.
    pub lost: u64,
    /// Blocks whose two copies differ, while this client does not know which one is right.
    pub doubtful: u64,
}

/// The progress of the scrub and its findings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// The bytes of the device that the present pass has compared; `None` between passes.
    pub done_bytes: Option<u64>,
    /// The bytes that a pass compares.
    pub all_bytes: u64,
    /// The time since the pass began. *Units*: microseconds.
    pub elapsed_us: Moment,
    /// Passes that were completed.
    pub passes: u64,
    /// Whether the present pass was requested by a user.
    pub is_requested: bool,
    /// The findings of the pass that was completed last.
    pub last: ScrubFindings,
    /// The findings of the present pass.
    pub present: ScrubFindings,
    /// Everything that was repaired since the start.
    pub repaired: u64,
}

/// The pace and the results of the scrub of one device.
#[derive(Debug)]
pub(crate) struct Scrub {
    /// See [`MachineTimes`].
    mib_us: Moment,
    rest_us: Moment,
    /// The bytes of the device that one unit stands for.
    unit_bytes: u64,
    units: u64,
    /// The unit at which the next step begins; `None` between passes.
    next: Option<u64>,
    /// Whether a step is in progress.
    is_busy: bool,
    /// Whether a user has requested this pass, which therefore does not wait between steps.
    is_urgent: bool,
    /// Whether a user has requested a pass during such a pass. It follows, so that every pass ends.
    is_repeated: bool,
    /// Whether a user has requested a pass during the present step.
    is_restarted: bool,
    /// The next step or pass begins at this time.
    due_us: Moment,
    began_us: Moment,
    passes: u64,
    last: ScrubFindings,
    present: ScrubFindings,
    repaired: u64,
}

impl Scrub {
    /// Makes the scrub of a device of `units` units.
    pub fn new(times: &MachineTimes, unit_bytes: u64, units: u64, now_us: Moment) -> Scrub {
        Scrub {
            mib_us: times.scrub_us,
            rest_us: times.scrub_rest_us,
            unit_bytes,
            units,
            next: None,
            is_busy: false,
            is_urgent: false,
            is_repeated: false,
            is_restarted: false,
            due_us: now_us + times.scrub_rest_us,
            began_us: now_us,
            passes: 0,
            last: ScrubFindings::default(),
            present: ScrubFindings::default(),
            repaired: 0,
        }
    }

    /// Begins a pass from the first unit, which does not wait between steps: now, or after the present pass if that was
    /// requested, too.
    pub fn request(&mut self, now_us: Moment) {
        if self.is_urgent {
            self.is_repeated = true;
            return;
        }
        self.is_restarted = self.is_busy;
        self.begin_pass(now_us);
        self.is_urgent = true;
    }

    fn begin_pass(&mut self, now_us: Moment) {
        (self.next, self.began_us, self.due_us) = (Some(0), now_us, now_us);
        self.present = ScrubFindings::default();
    }

    /// Returns the unit at which a step has to begin now, if one is due. Begins a pass if one is due.
    pub fn due(&mut self, now_us: Moment) -> Option<u64> {
        if self.is_busy || now_us < self.due_us || self.mib_us == 0 && !self.is_urgent {
            return None;
        }
        if self.next.is_none() {
            self.begin_pass(now_us);
        }
        self.next
    }

    /// Notes that a step has begun.
    pub fn begin(&mut self) {
        self.is_busy = true;
    }

    /// Notes that the step could not be done.
    pub fn dropped(&mut self, now_us: Moment) {
        self.is_busy = false;
        self.due_us = now_us + RETRY_US;
        self.restart(now_us);
    }

    /// Notes that the step is done, and which unit follows. After the last unit the pass has ended.
    pub fn done(&mut self, now_us: Moment, next: u64, found: ScrubFindings) {
        self.is_busy = false;
        self.repaired += found.repaired;
        if self.restart(now_us) {
            return;
        }
        let ScrubFindings { repaired, lost, doubtful } = &mut self.present;
        (*repaired, *lost, *doubtful) = (*repaired + found.repaired, *lost + found.lost, *doubtful + found.doubtful);
        let units = next.saturating_sub(self.next.unwrap_or(next));
        self.next = Some(next);
        if !self.is_urgent {
            // The time that a late step took is not made up for.
            let step_us = (units * self.unit_bytes).saturating_mul(self.mib_us) >> 20;
            self.due_us = (self.due_us + step_us).max(now_us.saturating_sub(RETRY_US));
        }
        if next >= self.units {
            (self.next, self.is_urgent, self.due_us) = (None, false, now_us + self.rest_us);
            self.passes += 1;
            self.last = std::mem::take(&mut self.present);
            if std::mem::take(&mut self.is_repeated) {
                self.request(now_us);
            }
        }
    }

    fn restart(&mut self, now_us: Moment) -> bool {
        let is_restarted = std::mem::take(&mut self.is_restarted);
        if is_restarted {
            self.begin_pass(now_us);
        }
        is_restarted
    }

    /// Returns the progress and the findings.
    pub fn progress(&self, now_us: Moment) -> ScrubProgress {
        ScrubProgress {
            done_bytes: self.next.map(|next| next * self.unit_bytes),
            all_bytes: self.units * self.unit_bytes,
            elapsed_us: now_us.saturating_sub(self.began_us),
            passes: self.passes,
            is_requested: self.is_urgent,
            last: self.last,
            present: self.present,
            repaired: self.repaired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPAIRED: ScrubFindings = ScrubFindings { repaired: 1, lost: 0, doubtful: 0 };

    fn scrub(scrub_us: Moment) -> Scrub {
        let times = MachineTimes { scrub_us, scrub_rest_us: 1_000_000, ..MachineTimes::default() };
        Scrub::new(&times, 1 << 20, 3, 0)
    }

    /// A pass begins after the rest period, and its steps come at the rate.
    #[test]
    fn scrub_follows_rate_and_rest() {
        let mut scrub = scrub(100_000);
        assert_eq!((scrub.due(999_999), scrub.due(1_000_000)), (None, Some(0)));
        scrub.begin();
        assert_eq!(scrub.due(2_000_000), None, "one step at a time");
        scrub.done(1_010_000, 1, REPAIRED);
        assert_eq!((scrub.due(1_099_999), scrub.due(1_100_000)), (None, Some(1)));
        scrub.begin();
        scrub.dropped(1_120_000);
        assert_eq!((scrub.due(1_169_999), scrub.due(1_170_000)), (None, Some(1)));
        scrub.begin();
        scrub.done(1_170_000, 3, ScrubFindings::default());
        let ScrubProgress { done_bytes, passes, last, repaired, .. } = scrub.progress(1_180_000);
        assert_eq!((done_bytes, passes, last, repaired), (None, 1, REPAIRED, 1));
        assert_eq!((scrub.due(2_169_999), scrub.due(2_170_000)), (None, Some(0)));
    }

    /// A requested pass does not wait between its steps, and a second request does not disturb it.
    #[test]
    fn requested_scrub_runs_at_once() {
        let mut scrub = scrub(0);
        assert_eq!(scrub.due(9_000_000), None, "it does not run by itself");
        scrub.request(9_000_000);
        for unit in 0..2 {
            assert_eq!(scrub.due(9_000_000), Some(unit));
            scrub.begin();
            scrub.done(9_000_000, unit + 1, REPAIRED);
        }
        // A second request does not disturb this pass, which ends, and is followed by another one.
        assert_eq!(scrub.due(9_000_000), Some(2));
        scrub.begin();
        scrub.request(9_000_001);
        scrub.request(9_000_001);
        scrub.done(9_000_002, 3, REPAIRED);
        let ScrubProgress { passes, last, is_requested, .. } = scrub.progress(9_000_002);
        assert_eq!((scrub.due(9_000_002), passes, last.repaired, is_requested), (Some(0), 1, 3, true));
        scrub.begin();
        scrub.done(9_000_003, 3, ScrubFindings::default());
        let ScrubProgress { passes, is_requested, .. } = scrub.progress(9_000_003);
        assert_eq!((scrub.due(99_000_000), passes, is_requested), (None, 2, false));
    }

    /// A pass that began without a request starts from its first unit, even if a step is in progress.
    #[test]
    fn request_restarts_periodic_scrub() {
        let mut scrub = scrub(1);
        assert_eq!(scrub.due(1_000_000), Some(0));
        scrub.begin();
        scrub.request(1_000_001);
        // What the step found does not belong to the new pass.
        scrub.done(1_000_002, 2, REPAIRED);
        let ScrubProgress { passes, present, repaired, .. } = scrub.progress(1_000_002);
        assert_eq!((scrub.due(1_000_002), passes, present, repaired), (Some(0), 0, ScrubFindings::default(), 1));
    }
}
