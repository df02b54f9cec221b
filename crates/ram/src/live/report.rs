//! What a running mirror says of itself.
//!
//! Owns: the report that the owner publishes, and its numbers for `nectary status`. Leaves to others: what is wrong and
//! what to do, in words (the command).

use std::sync::Arc;

use nectary_block::{Figures, Survives};

use crate::mirror::{self, Phase, Standing};

/// One donor.
#[derive(Debug, Clone)]
pub struct DonorReport {
    /// What it is to the device.
    pub standing: Standing,
    /// Whether there is a connection on which it serves this client.
    pub is_up: bool,
    /// How often a connection to it was made.
    pub sessions: u64,
    /// Requests to it.
    pub requests: u64,
    /// Bytes that were read from it.
    pub read_bytes: u64,
    /// Bytes that were written to it.
    pub written_bytes: u64,
}

/// A rebuild.
#[derive(Debug, Clone, Copy)]
pub struct RebuildReport {
    /// The donor that is filled.
    pub donor: usize,
    /// Stripes that it has.
    pub copied: u64,
    /// Stripes that it is to have.
    pub all: u64,
    /// How long it has taken. *Units*: milliseconds.
    pub elapsed_ms: u64,
}

/// The device.
#[derive(Debug, Clone)]
pub struct Report {
    /// How far it is.
    pub phase: Phase,
    /// The generation and epoch of the view.
    pub view: (u64, u64),
    /// By position.
    pub donors: Vec<DonorReport>,
    /// Where each position is in the SPEC.
    pub places: Vec<usize>,
    /// Whether every donor that has every block was told of the view.
    pub is_view_stored: bool,
    /// Stripes whose copies may differ.
    pub dirty_stripes: u64,
    /// The rebuild under way.
    pub rebuild: Option<RebuildReport>,
    /// Counts.
    pub figures: mirror::Figures,
    /// Why it has ended, if it has.
    pub ended: Option<Arc<str>>,
}

impl Report {
    /// Whether every block has two copies, and every donor knows it: any one of them can be lost now.
    pub fn is_whole(&self) -> bool {
        self.is_view_stored && self.donors.iter().all(|donor| donor.standing == Standing::Trusted)
    }

    /// What writes and flushes survive now. A write is in the memory of other machines as soon as it has returned.
    pub fn survives(&self) -> Survives {
        if self.is_whole() { Survives::HostAndDonor } else { Survives::Host }
    }

    /// As numbers; the donors are in the order of the SPEC.
    pub fn numbers(&self) -> Vec<Figures> {
        let count = |is: fn(&DonorReport) -> bool| self.donors.iter().filter(|donor| is(donor)).count() as u64;
        let mirror::Figures { left, taken_back, rejoined, rebuilt, resynchronised, lies, repaired, hedged, .. } =
            self.figures;
        let mut values = vec![
            ("mirror", 1),
            ("donors", self.donors.len() as u64),
            ("donors_up", count(|donor| donor.is_up)),
            ("donors_trusted", count(|donor| donor.standing == Standing::Trusted)),
            ("donors_lost", count(|donor| donor.standing == Standing::Lost)),
            ("attached", u64::from(self.ended.is_none())),
            ("degraded", u64::from(!self.is_whole())),
            ("view_generation", self.view.0),
            ("view_epoch", self.view.1),
            ("view_stored", u64::from(self.is_view_stored)),
            ("dirty_stripes", self.dirty_stripes),
            ("left", left),
            ("taken_back", taken_back),
            ("rejoined", rejoined),
            ("rebuilt", rebuilt),
            ("resynchronised_stripes", resynchronised),
            ("wrong_answers", lies),
            ("repaired", repaired),
            ("hedged_reads", hedged),
            ("replayed_writes", self.figures.replayed),
            ("failed", self.figures.failed),
        ];
        if let Some(RebuildReport { donor, copied, all, elapsed_ms }) = self.rebuild {
            let number = self.places.get(donor).map_or(0, |place| *place as u64 + 1);
            values.extend([("rebuild_donor", number), ("rebuild_copied_stripes", copied), ("rebuild_stripes", all)]);
            values.push(("rebuild_elapsed_ms", elapsed_ms));
            if let Some(left_ms) = (elapsed_ms * all.saturating_sub(copied)).checked_div(copied) {
                values.push(("rebuild_left_ms", left_ms));
            }
        }
        let mut list = vec![Figures { device: "ram", values }];
        let mut order: Vec<(usize, &DonorReport)> = self.places.iter().copied().zip(&self.donors).collect();
        order.sort_by_key(|(place, _)| *place);
        list.extend(order.into_iter().map(|(place, donor)| donor.numbers(place)));
        list
    }
}

impl DonorReport {
    fn numbers(&self, place: usize) -> Figures {
        let is = |standing: &[Standing]| u64::from(standing.contains(&self.standing));
        let values = vec![
            ("number", place as u64 + 1),
            ("up", u64::from(self.is_up)),
            ("trusted", is(&[Standing::Trusted])),
            ("left", is(&[Standing::Leaving, Standing::Out])),
            ("rebuilding", is(&[Standing::Rebuilding])),
            ("lost", is(&[Standing::Lost])),
            ("sessions", self.sessions),
            ("requests", self.requests),
            ("read_bytes", self.read_bytes),
            ("written_bytes", self.written_bytes),
        ];
        Figures { device: "donor", values }
    }
}
