//! Pauses of the host that the clock of leases does not count.
//!
//! Owns: [`PauseWatch`]. A virtual machine that was paused, moved or restored may find that its clock since the start
//! stood still; the clock of the day is put right by the hypervisor, or by a program that keeps the time. So what that
//! one is ahead by all at once counts as a pause. If it is only somebody who sets the clock, that costs one request to
//! etcd.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_host::clock::since_boot;

/// A smaller step may be the time between two looks at the clocks.
const STEP_MIN: Duration = Duration::from_millis(100);

/// The difference of the two clocks when it was last looked at.
pub struct PauseWatch(Duration);

impl PauseWatch {
    /// Begins to watch.
    pub fn new() -> PauseWatch {
        PauseWatch(difference())
    }

    /// How long the host stood still since the last look, as far as can be seen. *Cost*: two clocks.
    pub fn look(&mut self) -> Option<Duration> {
        self.step_to(difference())
    }

    fn step_to(&mut self, difference: Duration) -> Option<Duration> {
        let step = difference.saturating_sub(std::mem::replace(&mut self.0, difference));
        (step >= STEP_MIN).then_some(step)
    }
}

/// By how much the clock of the day is ahead of the clock since the start.
fn difference() -> Duration {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.saturating_sub(since_boot())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_day_are_pauses() {
        let at = Duration::from_millis;
        let mut watch = PauseWatch(at(5000));
        assert_eq!(
            [5000, 5099, 5150].map(|ms| watch.step_to(at(ms))),
            [None, None, None],
            "two clocks differ a little"
        );
        assert_eq!(watch.step_to(at(35_150)), Some(at(30_000)));
        assert_eq!([watch.step_to(at(20_000)), watch.step_to(at(20_050))], [None, None], "it was set back");
        assert_eq!(PauseWatch::new().look(), None);
    }
}
