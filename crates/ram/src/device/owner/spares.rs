//! The spares of a device.
//!
//! Owns: the list of spares. Leaves to others: which donor needs one, when, and which spare is next
//! (`crate::device::moves::SpareNeed`).
//!
//! A spare that is lost, or that cannot be filled, is given up (`moving`), and the next one is tried.

use std::time::Instant;

use crate::device::address::DonorAddress;

/// The spares of a device.
#[derive(Default)]
pub struct SpareDonors {
    pub list: Vec<DonorAddress>,
    /// The addresses of spares of the SPEC that have a place already.
    pub used: Vec<String>,
    /// The addresses that answered when they were last asked.
    pub answering: Vec<String>,
    pub looked: Option<Instant>,
    pub is_looking: bool,
}

impl SpareDonors {
    pub fn new(list: Vec<DonorAddress>, used: Vec<String>, answering: Vec<String>) -> SpareDonors {
        SpareDonors { list, used, answering, ..SpareDonors::default() }
    }

    /// Notes which spares answer.
    pub fn looked(&mut self, answering: Vec<String>) {
        (self.answering, self.is_looking) = (answering, false);
    }

    /// The number of spares that can be expected to take a place.
    pub fn answering(&self) -> usize {
        self.list.iter().filter(|spare| self.answering.contains(&spare.text)).count()
    }

    /// Notes that a spare has taken a place.
    pub fn used(&mut self, address: &DonorAddress) {
        let before = self.list.len();
        self.list.retain(|spare| spare.text != address.text);
        if self.list.len() < before {
            self.used.push(address.text.clone());
        }
    }
}
