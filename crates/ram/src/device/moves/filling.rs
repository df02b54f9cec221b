//! When a donor that took the place of a left one, and is to be filled, is given up.
//!
//! | the donor | is given up after |
//! |---|---|
//! | does not answer, or is not taken in although all others are well | `LOST_AFTER` |
//! | begins to be filled, and fails | [`FILLINGS_MAX`] times, if the first was `LOST_AFTER` ago |
//! | is being filled, and gets nothing more although all others are well | [`STANDSTILL_TIMES`] `LOST_AFTER` |

use crate::group::{DonorStanding, Moment};

/// A donor is given up after so many fillings that it did not take, if they have failed for a while.
const FILLINGS_MAX: u32 = 3;
/// A donor is given up whose filling makes no progress for so many times as long as a lost donor is waited for.
const STANDSTILL_TIMES: u64 = 4;

/// How the other donor is doing that is filled.
#[derive(Debug, Default)]
pub struct FillingWatch {
    /// Since when it cannot be filled, although nothing else hinders that.
    idle: Option<Moment>,
    /// What it had at its last progress, and when that was.
    progress: Option<(u64, Moment)>,
    /// How many fillings have failed, and when the first one did.
    failed: u32,
    first_failed: Option<Moment>,
}

/// What is seen of it now.
#[derive(Debug, Clone, Copy)]
pub struct FillingObservation {
    /// Its standing.
    pub standing: DonorStanding,
    /// Whether it has no connection.
    pub is_away: bool,
    /// Whether all other donors are trusted and serve.
    pub are_well: bool,
    /// What it has got since its filling began, in any unit.
    pub filled: u64,
}

impl FillingWatch {
    /// Returns why the donor has to be given up. `lost_after_us`: how long a lost donor is waited for.
    pub fn hopeless(&mut self, now_us: Moment, lost_after_us: Moment, seen: FillingObservation) -> Option<String> {
        let FillingObservation { standing, is_away, are_well, filled } = seen;
        let is_over = |since: Option<Moment>, times: u64| {
            since.is_some_and(|since_us| now_us >= since_us + times * lost_after_us)
        };
        if standing == DonorStanding::Rebuilding {
            self.idle = None;
            let is_as_before = |progress: &(u64, Moment)| are_well && progress.0 == filled;
            let progress = self.progress.filter(is_as_before).unwrap_or((filled, now_us));
            self.progress = Some(progress);
            let has_stopped = is_over(Some(progress.1), STANDSTILL_TIMES);
            return has_stopped.then(|| "its filling makes no progress".to_owned());
        }
        if self.progress.take().is_some() && standing == DonorStanding::Out {
            self.failed += 1;
            self.first_failed.get_or_insert(now_us);
        }
        // One that answers and is not filled yet may wait for other donors.
        let is_idle = standing == DonorStanding::Out && (is_away || are_well);
        self.idle = self.idle.filter(|_| is_idle).or(is_idle.then_some(now_us));
        if self.failed >= FILLINGS_MAX && standing == DonorStanding::Out && is_over(self.first_failed, 1) {
            return Some(format!("filling it has failed {} times", self.failed));
        }
        is_over(self.idle, 1).then(|| "it was lost before it was filled".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST_AFTER_US: Moment = 30_000_000;

    /// Runs a donor through standings, one each second, with what it has; returns when and why it is given up.
    fn given_up(seconds: u64, step: impl Fn(u64) -> (DonorStanding, bool, bool, u64)) -> Option<(u64, String)> {
        let mut filling = FillingWatch::default();
        (0..seconds).find_map(|second| {
            let (standing, is_away, are_well, filled) = step(second);
            let now_us = second * 1_000_000;
            let why =
                filling.hopeless(now_us, LOST_AFTER_US, FillingObservation { standing, is_away, are_well, filled })?;
            Some((second, why))
        })
    }

    /// A donor that cannot be filled is given up; one that is filled slowly is not.
    #[test]
    fn unfillable_donor_is_given_up() {
        use DonorStanding::{Out, Rebuilding, Trusted};
        let lost = "it was lost before it was filled".to_owned();
        assert_eq!(given_up(100, |_| (Out, true, false, 0)), Some((30, lost.clone())));
        assert_eq!(given_up(100, |_| (Out, false, true, 0)), Some((30, lost)));
        // It waits for the others, or is back each time.
        assert_eq!(given_up(1000, |_| (Out, false, false, 0)), None);
        assert_eq!(given_up(1000, |second| (Out, second % 20 < 15, false, 0)), None);
        let failing = |second: u64| if second % 10 < 5 { (Rebuilding, false, true, 3) } else { (Out, false, true, 0) };
        assert_eq!(given_up(100, failing), Some((35, "filling it has failed 4 times".to_owned())));
        // Two failures are few, and all in a moment are too soon.
        assert_eq!(
            given_up(1000, |second| if second < 20 { failing(second) } else { (Trusted, false, true, 0) }),
            None
        );
        let stopped = Some((120, "its filling makes no progress".to_owned()));
        assert_eq!(given_up(1000, |_| (Rebuilding, false, true, 7)), stopped);
        assert_eq!(given_up(1000, |_| (Rebuilding, false, false, 7)), None);
        assert_eq!(given_up(1000, |second| (Rebuilding, false, true, second / 100)), None);
    }
}
