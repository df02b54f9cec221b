//! The reports on a watched policy (periods, changes of leader, windows), each as data and as one line of text.
//!
//! Owns: the events and their text. Leaves to others: deciding when an event happens.

use std::fmt;

use super::ledger::StreamLedger;
use super::window::WindowReport;
use crate::detect::PeriodEvent;
use crate::policy::LeaderChange;

/// An observation of the policy.
#[derive(Debug, Clone, Copy)]
pub enum PolicyEvent<'a> {
    /// A stream's period ended.
    Period(StreamPeriod<'a>),
    /// The policy changed its leader.
    Leader(LeaderChange),
    /// A window ended.
    Window(WindowReport),
}

/// One period of one stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamPeriod<'a> {
    /// The verdict with its evidence, and the policy that replaces the stream's blocks.
    pub period: PeriodEvent<'a>,
    /// The stream's ledger so far.
    pub ledger: StreamLedger,
}

/// A listener that is called with each event when it happens, from within the access.
pub type EventSink = Box<dyn FnMut(PolicyEvent<'_>) + Send>;

impl fmt::Display for PolicyEvent<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyEvent::Period(StreamPeriod { period, ledger }) => write!(formatter, "{period}; {ledger}"),
            PolicyEvent::Leader(change) => change.fmt(formatter),
            PolicyEvent::Window(WindowReport { number, references, misses, misses_min }) => {
                write!(formatter, "window {number}: {misses} of {references} missed, ")?;
                match misses_min {
                    Some(least) => write!(formatter, "the least possible {least}"),
                    None => formatter.write_str("the least possible unknown: weights differ or the capacity changed"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::{PatternVerdict, PeriodReport};
    use crate::{LeaderReason, StreamId};

    #[test]
    fn every_event_prints_as_one_line() {
        let report = PeriodReport { number: 2, end: 1000, verdict: PatternVerdict::Looping, ..Default::default() };
        let period = PeriodEvent { stream: StreamId(9), report: &report, replacement: "lirs" };
        let ledger = StreamLedger { references: 1000, misses: 700, saved: 20, lost: 3 };
        let event = PolicyEvent::Period(StreamPeriod { period, ledger });
        assert!(
            event.to_string().ends_with("replacement lirs; 700 of 1000 missed, 20 saved and 3 lost against LRU"),
            "{event}"
        );
        let reason = LeaderReason { from: "lirs", misses_before: 90, misses_now: 50 };
        assert_eq!(
            PolicyEvent::Leader(LeaderChange { reference: 5, leader: "lru", reason }).to_string(),
            "at 5 lru leads (lirs missed 90 that it did not, it 50 that lirs did not)"
        );
        let window = WindowReport { number: 1, references: 9, misses: 4, misses_min: Some(3) };
        assert_eq!(PolicyEvent::Window(window).to_string(), "window 1: 4 of 9 missed, the least possible 3");
    }
}
