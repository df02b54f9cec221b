//! How long programs on a mount waited.
//!
//! Owns: the longest time without a completed call, and without a completed change, for each mount, and what happened
//! before and during it.

use super::history::{CallAction, RecordedCall, milliseconds};

/// What happened to servers and mounts, with the time of each. *Units*: nanoseconds.
pub type Timeline = Vec<(u64, String)>;

/// The longest time in which no call of some kind completed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallGap {
    /// Its length. *Units*: nanoseconds.
    pub ns: u64,
    /// The last event before it, and the events during it.
    pub cause: String,
}

/// Whether a call changes names, which a server must do.
pub fn is_change(call: &RecordedCall) -> bool {
    let is_name = |register: u32| register / super::history::SLOTS == super::history::NAMES;
    match call.act {
        CallAction::Write(register, _) => is_name(register),
        CallAction::Claim(_) => true,
        _ => false,
    }
}

/// Finds the longest gap of a mount between two times, among the calls that `counts` selects.
pub fn longest(
    calls: &[RecordedCall],
    (mount, from, to): (usize, u64, u64),
    timeline: &Timeline,
    counts: impl Fn(&RecordedCall) -> bool,
) -> CallGap {
    let mine = calls.iter().filter(|call| call.mount == mount && call.is_done() && counts(call));
    let mut ends: Vec<u64> =
        mine.map(|call| call.end).filter(|end| (from..to).contains(end)).chain([from, to]).collect();
    ends.sort_unstable();
    let longest = ends.windows(2).max_by_key(|pair| pair[1] - pair[0]);
    let Some((start, end)) = longest.map(|pair| (pair[0], pair[1])) else { return CallGap::default() };
    let before = timeline.iter().rev().find(|(at, _)| *at <= start);
    let during = timeline.iter().filter(|(at, _)| (start + 1..end).contains(at));
    let words: Vec<&str> = before.into_iter().chain(during).map(|(_, what)| what.as_str()).collect();
    let cause = format!("{} to {} ms: {}", milliseconds(start), milliseconds(end), words.join("; "));
    CallGap { ns: end - start, cause }
}

#[cfg(test)]
mod tests {
    use super::super::history::planted::{done, failed};
    use super::*;

    /// The gap is the longest time between two completed calls.
    #[test]
    fn longest_gap_has_a_cause() {
        let timeline: Timeline = [(1, "server A leads"), (5, "server A is killed"), (8, "server B leads"), (40, "end")]
            .map(|(ms, what)| (ms * 1_000_000, what.to_owned()))
            .into();
        let calls = [
            done(0, CallAction::Probe, 2, 6, 0),
            failed(0, CallAction::Probe, 6, 15),
            done(0, CallAction::Probe, 15, 30, 0),
            done(1, CallAction::Probe, 6, 20, 0),
            done(0, CallAction::Claim(1), 31, 32, 1),
        ];
        let gap = longest(&calls, (0, 0, 40_000_000), &timeline, |_| true);
        assert_eq!(gap.ns, 24_000_000);
        assert_eq!(gap.cause, "6.000 to 30.000 ms: server A is killed; server B leads");
        assert_eq!(longest(&calls, (0, 0, 40_000_000), &timeline, is_change).ns, 32_000_000);
    }
}
