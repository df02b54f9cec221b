//! Counts the steps of a placement.

use serde::Serialize;

use crate::placement::{DonorSlot, ParityCause, PlacementStep, SendCause};

/// Counts of transferred blocks, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TransferCounts {
    /// Blocks that were written to the device.
    pub written: u64,
    /// The number of flushes.
    pub flushes: u64,
    /// Written blocks that were sent to donors. They are fewer than `written`, because some blocks are overwritten
    /// before they are sent.
    pub data: u64,
    /// Second copies of blocks, of a mirror.
    pub copies: u64,
    /// Parity blocks of full groups, and parity blocks that were changed in place.
    pub parity: u64,
    /// Parity blocks of open groups that a flush stored.
    pub parity_flush: u64,
    /// Parity blocks of open groups that were stored to make room.
    pub parity_room: u64,
    /// Old data and parity that were read to change parity in place.
    pub reads: u64,
    /// Blocks that cleaning read.
    pub cleaning_reads: u64,
    /// Blocks that cleaning sent.
    pub cleaning_writes: u64,
    /// The number of trims that were recorded.
    pub records: u64,
    /// The number of groups that became free.
    pub freed: u64,
    /// The number of messages: adjacent slots of one donor that one operation sends are one message.
    pub messages: u64,
}

impl TransferCounts {
    /// Returns the number of all transfers, except parity that flushes stored.
    pub fn transfers(&self) -> u64 {
        let cleaning = self.cleaning_reads + self.cleaning_writes;
        self.data + self.copies + self.parity + self.parity_room + self.reads + cleaning
    }

    /// Adds the steps of one operation.
    pub fn add(&mut self, written: u64, is_flush: bool, steps: &[PlacementStep]) {
        self.written += written;
        self.flushes += u64::from(is_flush);
        let mut sent: Vec<DonorSlot> = Vec::with_capacity(steps.len());
        for step in steps {
            match *step {
                PlacementStep::Fetch { .. } => self.cleaning_reads += 1,
                PlacementStep::ReadOld { .. } => self.reads += 1,
                PlacementStep::Send { place, cause, .. } => {
                    sent.push(place);
                    match cause {
                        SendCause::Write => self.data += 1,
                        SendCause::Copy => self.copies += 1,
                        SendCause::Cleaning => self.cleaning_writes += 1,
                    }
                }
                PlacementStep::StoreParity { place, covering, .. } => {
                    sent.push(place);
                    match covering {
                        ParityCause::Sealed => self.parity += 1,
                        ParityCause::Flush => self.parity_flush += 1,
                        ParityCause::Room => self.parity_room += 1,
                    }
                }
                PlacementStep::Forget { .. } => self.records += 1,
                PlacementStep::Free { .. } => self.freed += 1,
            }
        }
        sent.sort_unstable();
        let follows = |pair: &&[DonorSlot]| pair[0].donor == pair[1].donor && pair[0].slot + 1 == pair[1].slot;
        self.messages += (sent.len() - sent.windows(2).filter(follows).count()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{PlacementSettings, RedundancyPolicy};

    #[test]
    fn policy_costs_match_theory() {
        for policy in RedundancyPolicy::ALL {
            let mut placement = PlacementSettings::new(policy, 4096, 4).open().expect("a layout");
            let mut counts = TransferCounts::default();
            let mut steps = Vec::new();
            placement.write(0..4096, &mut steps).expect("blocks of the device");
            counts.add(4096, false, &steps);
            assert_eq!(counts.transfers() as f64, 4096.0 * policy.transfers(4), "{policy}: {counts:?}");
        }
    }

    #[test]
    fn consecutive_slots_share_message() {
        let places = [(1, 4), (0, 7), (1, 3), (1, 6), (0, 9), (0, 8)];
        let send = |(donor, slot)| {
            let place = DonorSlot { donor, slot };
            PlacementStep::Send { block: 0, group: 0, member: 0, place, sequence: 0, cause: SendCause::Write }
        };
        let mut counts = TransferCounts::default();
        counts.add(6, false, &places.map(send));
        assert_eq!((counts.data, counts.messages), (6, 3));
    }
}
