//! What `adaptive` says of itself: periods, changes of leader, windows; as data and as one line each.
//!
//! Owns: the events, their text, and the books that are kept only where somebody listens. Leaves to others: when they
//! happen.

use std::fmt;

use super::choice::Reason;
use super::streams::Ledger;
use super::verdict::Detection;
use super::window::{Window, WindowReport};
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
    /// The verdict with what it rests on, and the policy of the stream.
    pub period: PeriodEvent<'a>,
    /// Why that policy, or the division, leads.
    pub reason: Reason,
    /// The stream's share of the cache, where the cache is divided. *Units*: units of weight.
    pub share: Option<u64>,
    /// The stream's ledger so far.
    pub ledger: Ledger,
}

/// A change of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderChange {
    /// Accesses of all streams until then.
    pub reference: u64,
    /// The policy from here on.
    pub leader: &'static str,
    /// Why.
    pub reason: Reason,
}

/// The listener: called with each event as it happens, from within the access.
pub type EventSink = Box<dyn FnMut(Event<'_>) + Send>;

/// What is kept for a listener.
pub(super) struct Explanation {
    pub(super) sink: EventSink,
    pub(super) window: Window,
    /// By slot of the stream.
    detections: Vec<Detection>,
}

impl Explanation {
    /// Of accesses from here on.
    pub(super) fn to(sink: EventSink) -> Explanation {
        Explanation { sink, window: Window::default(), detections: Vec::new() }
    }

    /// The detection of a slot's stream; a new one where the slot has another stream than before.
    pub(super) fn detection(&mut self, slot: usize, is_new: bool) -> &mut Detection {
        while self.detections.len() <= slot {
            self.detections.push(Detection::new());
        }
        if is_new {
            self.detections[slot] = Detection::new();
        }
        &mut self.detections[slot]
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Start => formatter.write_str("begun with"),
            Reason::Evidence { from, misses, misses_best } => {
                write!(formatter, "{from} missed {misses} that this did not, this {misses_best} that it did not")
            }
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Period(StreamPeriod { period, reason, share, ledger }) => {
                write!(formatter, "{period} ({reason})")?;
                share.map_or(Ok(()), |share| write!(formatter, "; share {share}"))?;
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
