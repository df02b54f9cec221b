//! The spares of a device.
//!
//! Owns: the list of spares, and which of them is next. Leaves to others: which donor needs one, and when
//! (`crate::moving::Need`).
//!
//! A spare that is lost, or that cannot be filled, is given up (`moving`), and the next one is tried.

use std::time::Instant;

use crate::device::address::Address;
use crate::mirror::Moment;
use crate::moving::Need;

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
    pub need: Need,
    pub looked: Option<Instant>,
    pub is_looking: bool,
}

impl Spares {
    pub fn new(list: Vec<Address>, used: Vec<String>, answering: Vec<String>) -> Spares {
        Spares { list, used, answering, ..Spares::default() }
    }

    /// Notes which donors are leaving, and which spares answer.
    pub fn looked(&mut self, leaving: Vec<bool>, answering: Vec<String>) {
        (self.need.leaving, self.answering, self.is_looking) = (leaving, answering, false);
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
        self.need.filled();
    }

    /// Notes that a spare was given up before it was filled: another one is tried at once, until all were tried.
    pub fn try_another(&mut self, now_us: Moment) {
        self.need.tried(now_us);
        if !self.next.is_multiple_of(self.list.len().max(1)) {
            self.need.try_again();
        }
    }
}
