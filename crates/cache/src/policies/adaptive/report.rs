//! What `adaptive` says of itself: periods, changes of leader, windows; as data and as one line each.
//!
//! Owns: the events and their text. Leaves to others: when they happen.

use std::fmt;

use super::guard::Reason;
use super::ledger::Ledger;
use super::window::WindowReport;
use crate::detect::PeriodEvent;

/// Something that the policy says, on its way out of it.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A stream's period ended.
    Period(StreamPeriod<'a>),
    /// Another policy leads from here on.
    Leader(LeaderChange),
    /// A window ended.
    Window(WindowReport),
}

/// One period of one stream, and what was made of it.
#[derive(Debug, Clone, Copy)]
pub struct StreamPeriod<'a> {
    /// The verdict with what it rests on, and the policy in force for the stream.
    pub period: PeriodEvent<'a>,
    /// Why that policy is in force.
    pub reason: Reason,
    /// The stream's share of the cache, where the cache is divided. *Units*: units of weight.
    pub share: Option<u64>,
    /// The stream's ledger so far.
    pub ledger: Ledger,
}

/// A change of the policy in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderChange {
    /// References of all streams until then.
    pub reference: u64,
    /// The policy in force from here on.
    pub leader: &'static str,
    /// Why.
    pub reason: Reason,
}

/// Who wants to hear all that: called with each event as it happens, from within the reference.
pub type EventSink = Box<dyn FnMut(Event<'_>) + Send>;

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Start => formatter.write_str("begun with"),
            Reason::Verdict => formatter.write_str("chosen by the verdict"),
            Reason::Smaller { from } => write!(formatter, "better than {from} at smaller sizes"),
            Reason::Guard { from, misses, misses_best } => {
                write!(formatter, "guard: {from} missed {misses} in the window, this {misses_best}")
            }
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Period(StreamPeriod { period, reason, share, ledger }) => {
                write!(formatter, "{period} ({reason})")?;
                if let Some(share) = share {
                    write!(formatter, "; share {share}")?;
                }
                write!(formatter, "; {ledger}")
            }
            Event::Leader(LeaderChange { reference, leader, reason }) => {
                write!(formatter, "at {reference} {leader} leads ({reason})")
            }
            Event::Window(WindowReport { number, references, misses, misses_min }) => {
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
    use crate::Stream;
    use crate::detect::{PeriodReport, Verdict};

    #[test]
    fn every_event_prints_as_one_line() {
        let report = PeriodReport { number: 2, end: 1000, verdict: Verdict::Looping, ..Default::default() };
        let period = PeriodEvent { stream: Stream(9), report: &report, replacement: "lirs" };
        let ledger = Ledger { references: 1000, misses: 700, saved: 20, lost: 3 };
        let event = Event::Period(StreamPeriod { period, reason: Reason::Verdict, share: Some(64), ledger });
        assert!(event.to_string().ends_with(
            "replacement lirs (chosen by the verdict); share 64; 700 of 1000 missed, 20 saved and 3 lost against LRU"
        ));
        let reason = Reason::Smaller { from: "lirs" };
        assert_eq!(reason.to_string(), "better than lirs at smaller sizes");
        let reason = Reason::Guard { from: "lirs", misses: 90, misses_best: 50 };
        assert_eq!(
            Event::Leader(LeaderChange { reference: 5, leader: "lru", reason }).to_string(),
            "at 5 lru leads (guard: lirs missed 90 in the window, this 50)"
        );
        let window = WindowReport { number: 1, references: 9, misses: 4, misses_min: Some(3) };
        assert_eq!(Event::Window(window).to_string(), "window 1: 4 of 9 missed, the least possible 3");
    }
}
