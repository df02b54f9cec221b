//! The requests in flight. They are registered so that an interrupt can be matched with its request, and a status can
//! name those that do not end.
//!
//! Owns: the state of each request between its arrival and its answer. Promises: a request is answered once, even if an
//! interrupt and its answer happen at the same time; an interrupt that arrives on another descriptor before its request
//! is registered is not lost.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_host::progress::{CallProgress, WaitState};

use crate::channel::FuseChannel;
use crate::protocol::opcode;

/// The maximum number of remembered interrupts whose requests are unknown. An interrupt that arrives after its
/// request's answer may stay among these interrupts. It does no harm, because request numbers are never reused.
const EARLY_MAX: usize = 256;

/// A request in flight.
struct InFlightRequest {
    channel: Arc<FuseChannel>,
    subject: RequestSubject,
    progress: Arc<CallProgress>,
    can_be_cut_short: bool,
    is_interrupted: bool,
    is_answered: bool,
}

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RequestSubject {
    /// The number of the operation.
    pub operation: u32,
    /// The node.
    pub node: u64,
    /// The thread that waits for the answer, or 0.
    pub thread: u32,
}

/// A request that has been in progress for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongCall {
    /// The name of the operation.
    pub operation: &'static str,
    /// The node that the request is about; for a request with a name, this is the directory.
    pub node: u64,
    /// The name that the request is about, if it has one.
    pub name: Option<Vec<u8>>,
    /// The thread that waits for the answer, in this process's pid namespace, or 0.
    pub thread: u32,
    /// The time since the request arrived, or last went on.
    pub age: Duration,
    /// What the request waits for.
    pub wait: WaitState,
}

/// The requests that have been in progress for long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LongCalls {
    /// Those in progress for the longest time; the longest first.
    pub longest: Vec<LongCall>,
    /// The number of all of them, by the kind of their wait.
    pub counts: HashMap<u8, usize>,
}

/// The outcome of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptOutcome {
    /// The request was answered with `EINTR`.
    Answered,
    /// The request is only marked as interrupted.
    Marked,
    /// The request is not registered yet, or has ended.
    Unknown,
}

/// All requests in flight.
#[derive(Default)]
pub(crate) struct FlightTable {
    state: Mutex<FlightState>,
}

#[derive(Default)]
struct FlightState {
    flights: HashMap<u64, InFlightRequest>,
    early: VecDeque<u64>,
}

impl FlightTable {
    fn state(&self) -> MutexGuard<'_, FlightState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request.
    pub fn begin(&self, unique: u64, channel: Arc<FuseChannel>, subject: RequestSubject, progress: Arc<CallProgress>) {
        let mut state = self.state();
        let early = state.early.iter().position(|&early| early == unique);
        let is_interrupted = early.is_some_and(|index| state.early.remove(index).is_some());
        let (can_be_cut_short, is_answered) = (false, false);
        let flight = InFlightRequest { channel, subject, progress, can_be_cut_short, is_interrupted, is_answered };
        state.flights.insert(unique, flight);
    }

    /// From now on, an interrupt answers this request with `EINTR`. If the request was interrupted before, answers it
    /// now and returns true.
    pub fn can_be_cut_short(&self, unique: u64) -> bool {
        let mut state = self.state();
        let Some(flight) = state.flights.get_mut(&unique) else { return false };
        flight.can_be_cut_short = true;
        let is_due = flight.is_interrupted && !flight.is_answered;
        if is_due {
            flight.is_answered = true;
            let channel = flight.channel.clone();
            drop(state);
            channel.send(unique, -libc::EINTR, &[]);
        }
        is_due
    }

    /// Whether the process that waits for a request was interrupted.
    pub fn is_interrupted(&self, unique: u64) -> bool {
        self.state().flights.get(&unique).is_some_and(|flight| flight.is_interrupted)
    }

    /// Handles the interrupt of a request.
    pub fn interrupt(&self, unique: u64) -> InterruptOutcome {
        let mut state = self.state();
        let Some(flight) = state.flights.get_mut(&unique) else {
            if state.early.len() == EARLY_MAX {
                state.early.pop_front();
            }
            state.early.push_back(unique);
            return InterruptOutcome::Unknown;
        };
        flight.is_interrupted = true;
        if !flight.can_be_cut_short || flight.is_answered {
            return InterruptOutcome::Marked;
        }
        flight.is_answered = true;
        // The answer must be written to the descriptor that received the request. On another descriptor the kernel
        // would not find the request.
        let channel = flight.channel.clone();
        drop(state);
        channel.send(unique, -libc::EINTR, &[]);
        InterruptOutcome::Answered
    }

    /// Returns the requests that have been in progress for longer than `longer_than`, and the details of at most `most`.
    pub fn long_calls(&self, now: Duration, longer_than: Duration, most: usize) -> LongCalls {
        let mut long = Vec::new();
        for flight in self.state().flights.values().filter(|flight| !flight.is_answered) {
            let age = flight.progress.age(now);
            if age > longer_than {
                long.push((Reverse(age), flight.subject, flight.progress.clone()));
            }
        }
        long.sort_unstable_by_key(|(age, subject, _)| (*age, subject.node));
        let mut counts = HashMap::new();
        long.iter().for_each(|(_, _, progress)| *counts.entry(progress.wait().kind).or_insert(0) += 1);
        let longest = long.into_iter().take(most).map(|(Reverse(age), subject, progress)| LongCall {
            operation: opcode::name(subject.operation),
            node: subject.node,
            name: progress.name().map(<[u8]>::to_vec),
            thread: subject.thread,
            age,
            wait: progress.wait(),
        });
        LongCalls { longest: longest.collect(), counts }
    }

    /// Removes a request. If the request has not been answered yet, returns the descriptor that received it.
    pub fn end(&self, unique: u64) -> Option<Arc<FuseChannel>> {
        let flight = self.state().flights.remove(&unique)?;
        (!flight.is_answered).then_some(flight.channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::pair;

    fn begin(flights: &FlightTable, unique: u64, channel: &Arc<FuseChannel>) {
        flights.begin(unique, channel.clone(), RequestSubject::default(), Arc::default());
    }

    #[test]
    fn longest_requests_are_named_first() {
        let (_kernel, channel) = pair();
        let (flights, channel, seconds) = (FlightTable::default(), Arc::new(channel), Duration::from_secs);
        for second in 0..60 {
            let subject = RequestSubject { operation: opcode::UNLINK, node: 100 + second, thread: 7 };
            let progress = CallProgress::begin(seconds(second));
            progress.set_name(b"file");
            flights.begin(second, channel.clone(), subject, progress);
        }
        drop(flights.end(1));
        let long = flights.long_calls(seconds(60), seconds(30), 16);
        assert_eq!((long.longest.len(), &long.counts), (16, &HashMap::from([(0, 29)])), "0 to 29, without 1");
        let first = LongCall {
            operation: "unlink",
            node: 100,
            name: Some(b"file".to_vec()),
            thread: 7,
            age: seconds(60),
            wait: WaitState::default(),
        };
        assert_eq!(long.longest[0], first);
        assert_eq!(long.longest[1].age, seconds(58));
        assert_eq!(flights.long_calls(seconds(30), seconds(30), 16), LongCalls::default());
        assert_eq!(flights.long_calls(seconds(31), seconds(30), 16).longest.len(), 1);
    }

    /// A request is answered once, by its end or by an interrupt.
    #[test]
    fn request_is_answered_exactly_once() {
        let (kernel, channel) = pair();
        let (flights, channel) = (FlightTable::default(), Arc::new(channel));
        begin(&flights, 2, &channel);
        assert_eq!(flights.interrupt(2), InterruptOutcome::Marked);
        assert!(flights.is_interrupted(2) && flights.can_be_cut_short(2) && !flights.can_be_cut_short(2));
        assert_eq!(kernel.answer().unwrap().error, -libc::EINTR);
        assert!(flights.end(2).is_none());
        begin(&flights, 4, &channel);
        assert!(!flights.can_be_cut_short(4));
        assert_eq!(flights.interrupt(4), InterruptOutcome::Answered);
        assert_eq!(kernel.answer().unwrap().unique, 4);
        assert_eq!(flights.interrupt(4), InterruptOutcome::Marked);
        assert!(flights.end(4).is_none());
        begin(&flights, 6, &channel);
        assert!(flights.end(6).is_some() && flights.end(6).is_none());
    }

    /// An interrupt that overtakes its request is not lost, and such interrupts are bounded.
    #[test]
    fn early_interrupt_is_not_lost() {
        let (kernel, channel) = pair();
        let (flights, channel) = (FlightTable::default(), Arc::new(channel));
        for unique in 0..=EARLY_MAX as u64 {
            assert_eq!(flights.interrupt(unique), InterruptOutcome::Unknown);
        }
        assert_eq!(flights.state().early.len(), EARLY_MAX);
        begin(&flights, 0, &channel);
        assert!(!flights.can_be_cut_short(0), "the oldest is forgotten");
        begin(&flights, 1, &channel);
        assert!(flights.can_be_cut_short(1));
        assert_eq!(kernel.answer().unwrap().unique, 1);
        assert_eq!(flights.state().early.len(), EARLY_MAX - 1);
    }
}
