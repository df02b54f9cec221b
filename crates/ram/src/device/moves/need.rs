//! Which donor needs a spare, and when.
//!
//! Owns: since when a donor is left, and the time of the next attempt. Promises: one attempt at a time; a donor that is
//! only cut off for a while is not replaced.
//!
//! | a donor | then |
//! |---|---|
//! | is left for as long as a lost one is waited for | a spare takes its place, and is filled from the others |
//! | is left, and another one says that it is leaving | the same at once: what both have will be gone soon |
//! | says that it is leaving, after a SIGTERM, and all are well | what it has is moved to a spare |

use crate::group::{Donor, DonorStanding, Moment};

/// The pause after an attempt.
const RETRY_AFTER_US: Moment = 10_000_000;

/// What is known about the need of spares.
#[derive(Debug, Default)]
pub struct SpareNeed {
    /// The donor that is left, and since when.
    left: Option<(Donor, Moment)>,
    tried_us: Option<Moment>,
    /// Counts attempts with spares; the spares take turns.
    attempts: usize,
    /// Whether each donor is leaving, by position; empty until donors were asked.
    pub leaving: Vec<bool>,
}

impl SpareNeed {
    /// Notes which donor is left; while a spare has its place, that donor stays the one.
    pub fn track(&mut self, now_us: Moment, standing: &[DonorStanding]) {
        let left = standing.iter().position(|standing| *standing == DonorStanding::Out);
        if self.left.map(|(donor, _)| donor) != left {
            self.left = left.map(|donor| (donor, now_us));
        }
    }

    /// Notes that an attempt begins.
    fn tried(&mut self, now_us: Moment) {
        self.tried_us = Some(now_us);
        self.leaving.clear();
    }

    /// Lets the next attempt begin at once.
    pub fn try_again(&mut self) {
        self.tried_us = None;
    }

    /// Notes that a place has another donor.
    pub fn filled(&mut self) {
        (self.tried_us, self.left) = (None, None);
    }

    /// Whether a donor has been left for so long that it counts as lost.
    fn is_lost(&self, donor: Donor, now_us: Moment, lost_after_us: Moment) -> bool {
        self.left.is_some_and(|(left, since_us)| left == donor && now_us >= since_us + lost_after_us)
    }

    /// Begins an attempt if a donor needs a spare now. *Returns* the donor, and which of `spares` spares to try.
    pub fn begin(&mut self, now_us: Moment, lost_after_us: Moment, spares: usize) -> Option<(Donor, usize)> {
        let donor = self.donor(now_us, lost_after_us).filter(|_| spares > 0)?;
        let spare = self.attempts % spares;
        self.attempts += 1;
        self.tried(now_us);
        Some((donor, spare))
    }

    /// Notes that a spare was given up before it was filled: another one is tried at once, until all were tried.
    pub fn gave_up(&mut self, now_us: Moment, spares: usize) {
        self.tried(now_us);
        if !self.attempts.is_multiple_of(spares.max(1)) {
            self.try_again();
        }
    }

    /// Returns the donor whose place a spare has to take now.
    fn donor(&self, now_us: Moment, lost_after_us: Moment) -> Option<Donor> {
        if self.tried_us.is_some_and(|tried_us| now_us < tried_us + RETRY_AFTER_US) {
            return None;
        }
        let leaving = |except: Option<Donor>| {
            self.leaving.iter().enumerate().position(|(donor, is_leaving)| *is_leaving && Some(donor) != except)
        };
        match self.left {
            Some((donor, _)) => {
                let is_urgent = leaving(Some(donor)).is_some();
                (is_urgent || self.is_lost(donor, now_us, lost_after_us)).then_some(donor)
            }
            None => leaving(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_donor_precedes_leaving_donor() {
        let mut need = SpareNeed::default();
        need.track(0, &[DonorStanding::Trusted; 3]);
        assert_eq!(need.donor(0, 100), None);
        need.leaving = vec![false, true, false];
        assert_eq!(need.donor(0, 100), Some(1));
        need.track(10, &[DonorStanding::Trusted, DonorStanding::Trusted, DonorStanding::Out]);
        assert_eq!(need.donor(10, 100), Some(2), "at once: the second one ends soon");
        need.leaving = vec![false, false, true];
        assert_eq!((need.donor(109, 100), need.donor(110, 100)), (None, Some(2)));
        need.tried(110);
        assert_eq!((need.donor(120, 100), need.donor(110 + RETRY_AFTER_US, 100)), (None, Some(2)));
        need.try_again();
        assert_eq!(need.donor(120, 100), Some(2));
    }
}
