//! Which donor needs a spare, and when.
//!
//! Owns: the list of spares, and the time of the next attempt. Promises: one attempt at a time; a donor that is only cut
//! off for a while is not replaced.
//!
//! | a donor | then |
//! |---|---|
//! | is left for `LOST_AFTER` | a spare takes its place, and is filled from the others |
//! | says that it is leaving, after a SIGTERM | what it has is moved to a spare |
//!
//! A spare that is lost, or that cannot be filled, is given up (`moving`), and the next one is tried.

use std::time::{Duration, Instant};

use super::planted::lost_after;
use crate::device::address::Address;
use crate::mirror::{Donor, Standing};

/// The pause after an attempt.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The spares of a device.
#[derive(Default)]
pub struct Spares {
    pub list: Vec<Address>,
    /// The addresses of spares of the SPEC that have a place already.
    pub used: Vec<String>,
    /// The addresses that answered when they were last asked.
    pub answering: Vec<String>,
    /// The spare to try next.
    pub next: usize,
    /// The donor that is left, and since when.
    pub left: Option<(Donor, Instant)>,
    pub tried: Option<Instant>,
    pub looked: Option<Instant>,
    pub is_looking: bool,
    /// By position; empty until donors were asked.
    pub leaving: Vec<bool>,
}

impl Spares {
    pub fn new(list: Vec<Address>, used: Vec<String>, answering: Vec<String>) -> Spares {
        Spares { list, used, answering, ..Spares::default() }
    }

    /// Notes which donors are leaving, and which spares answer.
    pub fn looked(&mut self, leaving: Vec<bool>, answering: Vec<String>) {
        (self.leaving, self.answering, self.is_looking) = (leaving, answering, false);
    }

    /// The number of spares that can be expected to take a place.
    pub fn answering(&self) -> usize {
        self.list.iter().filter(|spare| self.answering.contains(&spare.text)).count()
    }

    /// Notes that a spare has taken a place.
    pub fn used(&mut self, address: &Address) {
        let before = self.list.len();
        self.list.retain(|spare| spare.text != address.text);
        if self.list.len() < before {
            self.used.push(address.text.clone());
        }
        (self.tried, self.left) = (None, None);
    }

    /// Notes that a spare was given up before it was filled: another one is tried at once, until all were tried.
    pub fn try_another(&mut self) {
        let has_another = !self.next.is_multiple_of(self.list.len().max(1));
        self.tried = if has_another { None } else { Some(Instant::now()) };
    }

    /// Notes which donor is left; while a spare has its place, that donor stays the one.
    pub fn track(&mut self, standing: &[Standing]) {
        let left = standing.iter().position(|standing| *standing == Standing::Out);
        if self.left.map(|(donor, _)| donor) != left {
            self.left = left.map(|donor| (donor, Instant::now()));
        }
    }

    /// Whether a donor has been left for so long that it counts as lost.
    pub fn is_lost(&self, donor: Donor) -> bool {
        self.left.is_some_and(|(left, since)| left == donor && since.elapsed() >= lost_after())
    }

    /// Returns the donor whose place a spare has to take now.
    pub fn needed(&self) -> Option<Donor> {
        if self.list.is_empty() || self.tried.is_some_and(|tried| tried.elapsed() < RETRY_AFTER) {
            return None;
        }
        match self.left {
            Some((donor, _)) => self.is_lost(donor).then_some(donor),
            None => self.leaving.iter().position(|is_leaving| *is_leaving),
        }
    }
}
