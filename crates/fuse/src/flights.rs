//! The requests in flight. They are registered so that an interrupt can be matched with its request.
//!
//! Owns: the state of each request between its arrival and its answer. Promises: a request is answered once, even if an
//! interrupt and its answer happen at the same time; an interrupt that arrives on another descriptor before its request
//! is registered is not lost.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::Channel;

/// The maximum number of remembered interrupts whose requests are unknown. An interrupt that arrives after its
/// request's answer may stay among these interrupts. It does no harm, because request numbers are never reused.
const EARLY_MAX: usize = 256;

/// A request in flight.
struct Flight {
    channel: Arc<Channel>,
    can_be_cut_short: bool,
    is_interrupted: bool,
    is_answered: bool,
}

/// The outcome of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The request was answered with `EINTR`.
    Answered,
    /// The request is only marked as interrupted.
    Marked,
    /// The request is not registered yet, or has ended.
    Unknown,
}

/// All requests in flight.
#[derive(Default)]
pub(crate) struct Flights {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flights: HashMap<u64, Flight>,
    early: VecDeque<u64>,
}

impl Flights {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request.
    pub fn begin(&self, unique: u64, channel: Arc<Channel>) {
        let mut state = self.state();
        let early = state.early.iter().position(|&early| early == unique);
        let is_interrupted = early.is_some_and(|index| state.early.remove(index).is_some());
        state.flights.insert(unique, Flight { channel, can_be_cut_short: false, is_interrupted, is_answered: false });
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
    pub fn interrupt(&self, unique: u64) -> Interrupted {
        let mut state = self.state();
        let Some(flight) = state.flights.get_mut(&unique) else {
            if state.early.len() == EARLY_MAX {
                state.early.pop_front();
            }
            state.early.push_back(unique);
            return Interrupted::Unknown;
        };
        flight.is_interrupted = true;
        if !flight.can_be_cut_short || flight.is_answered {
            return Interrupted::Marked;
        }
        flight.is_answered = true;
        // The answer must be written to the descriptor that received the request. On another descriptor the kernel
        // would not find the request.
        let channel = flight.channel.clone();
        drop(state);
        channel.send(unique, -libc::EINTR, &[]);
        Interrupted::Answered
    }

    /// Removes a request. If the request has not been answered yet, returns the descriptor that received it.
    pub fn end(&self, unique: u64) -> Option<Arc<Channel>> {
        let flight = self.state().flights.remove(&unique)?;
        (!flight.is_answered).then_some(flight.channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::pair;

    #[test]
    fn a_request_is_answered_once_by_its_end_or_by_an_interrupt() {
        let (kernel, channel) = pair();
        let (flights, channel) = (Flights::default(), Arc::new(channel));
        flights.begin(2, channel.clone());
        assert_eq!(flights.interrupt(2), Interrupted::Marked);
        assert!(flights.is_interrupted(2) && flights.can_be_cut_short(2) && !flights.can_be_cut_short(2));
        assert_eq!(kernel.answer().unwrap().error, -libc::EINTR);
        assert!(flights.end(2).is_none());
        flights.begin(4, channel.clone());
        assert!(!flights.can_be_cut_short(4));
        assert_eq!(flights.interrupt(4), Interrupted::Answered);
        assert_eq!(kernel.answer().unwrap().unique, 4);
        assert_eq!(flights.interrupt(4), Interrupted::Marked);
        assert!(flights.end(4).is_none());
        flights.begin(6, channel);
        assert!(flights.end(6).is_some() && flights.end(6).is_none());
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_not_lost_and_the_memory_of_them_is_bounded() {
        let (kernel, channel) = pair();
        let (flights, channel) = (Flights::default(), Arc::new(channel));
        for unique in 0..=EARLY_MAX as u64 {
            assert_eq!(flights.interrupt(unique), Interrupted::Unknown);
        }
        assert_eq!(flights.state().early.len(), EARLY_MAX);
        flights.begin(0, channel.clone());
        assert!(!flights.can_be_cut_short(0), "the oldest is forgotten");
        flights.begin(1, channel);
        assert!(flights.can_be_cut_short(1));
        assert_eq!(kernel.answer().unwrap().unique, 1);
        assert_eq!(flights.state().early.len(), EARLY_MAX - 1);
    }
}
