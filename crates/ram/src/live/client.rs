//! The machine of a device as its owner drives it: one that is changed in place, or a log of slots.
//!
//! Owns: the common interface of both, and making each. Leaves to others: every decision (`mirror`, `log`).

use super::report::{DeviceCounts, LogCounts};
use crate::format::slots::DonorAreas;
use crate::format::{MembershipView, RecordGeometry};
use crate::mirror::{
    self, AttachRefusal, Donor, MachineIntent, MachineTimes, MirrorAction, MirrorEvent, MirrorRing, Moment,
    ParityLayout, StripeLayout as _,
};
use crate::moving::MoveMachine;
use crate::scrub::ScrubProgress;
use crate::{format::FormatError, log};

/// The interface of a machine for its owner, besides what a move sees of it; each method calls the machine's method of
/// the same name.
pub trait DeviceMachine: MoveMachine + Send {
    fn step(&mut self, now_us: Moment, event: MirrorEvent);
    fn take_actions(&mut self) -> Vec<MirrorAction>;
    fn wake_at(&self) -> Option<Moment>;
    fn members(&self) -> &dyn MoveMachine;
    fn view(&self) -> &MembershipView;
    fn is_given_up(&self) -> bool;
    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)>;
    fn scrub_progress(&self) -> ScrubProgress;
    fn counts(&self) -> DeviceCounts;
}

impl DeviceMachine for mirror::MirrorMachine {
    fn step(&mut self, now_us: Moment, event: MirrorEvent) {
        mirror::MirrorMachine::step(self, now_us, event);
    }

    fn take_actions(&mut self) -> Vec<MirrorAction> {
        self.actions().collect()
    }

    fn wake_at(&self) -> Option<Moment> {
        mirror::MirrorMachine::wake_at(self)
    }

    fn members(&self) -> &dyn MoveMachine {
        self
    }

    fn view(&self) -> &MembershipView {
        mirror::MirrorMachine::view(self)
    }

    fn is_given_up(&self) -> bool {
        mirror::MirrorMachine::is_given_up(self)
    }

    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
        mirror::MirrorMachine::rebuild_progress(self)
    }

    fn scrub_progress(&self) -> ScrubProgress {
        mirror::MirrorMachine::scrub_progress(self)
    }

    fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            base: self.figures(),
            dirty_stripes: self.dirty_stripes(),
            is_parity: self.is_parity(),
            log: None,
        }
    }
}

impl DeviceMachine for log::ParityLogMachine {
    fn step(&mut self, now_us: Moment, event: MirrorEvent) {
        log::ParityLogMachine::step(self, now_us, event);
    }

    fn take_actions(&mut self) -> Vec<MirrorAction> {
        self.actions().collect()
    }

    fn wake_at(&self) -> Option<Moment> {
        log::ParityLogMachine::wake_at(self)
    }

    fn members(&self) -> &dyn MoveMachine {
        self
    }

    fn view(&self) -> &MembershipView {
        log::ParityLogMachine::view(self)
    }

    fn is_given_up(&self) -> bool {
        log::ParityLogMachine::is_given_up(self)
    }

    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
        log::ParityLogMachine::rebuild_progress(self)
    }

    fn scrub_progress(&self) -> ScrubProgress {
        log::ParityLogMachine::scrub_progress(self)
    }

    fn counts(&self) -> DeviceCounts {
        let shape = self.shape();
        let counts = LogCounts {
            policy: shape.policy,
            groups: u64::from(shape.groups),
            free_groups: u64::from(self.free_groups()),
            steps: self.under_way().0 as u64,
            is_recovering: self.phase() == log::ParityLogPhase::Recovering,
            figures: self.figures(),
        };
        DeviceCounts { base: self.base_figures(), dirty_stripes: 0, is_parity: false, log: Some(counts) }
    }
}

/// Makes the machine of a device.
///
/// *Errors*: a geometry that is not possible, or blocks that another version placed differently.
pub fn machine(
    geometry: RecordGeometry,
    labels: Vec<String>,
    client: u64,
    intent: MachineIntent,
    times: MachineTimes,
) -> Result<Box<dyn DeviceMachine>, AttachRefusal> {
    let Some(shape) = geometry.log() else {
        let configuration = mirror::MirrorConfiguration { geometry, labels, client, intent, times };
        return Ok(Box::new(mirror::MirrorMachine::new(configuration, 0)?));
    };
    let range = FormatError::Range { what: "groups", found: u64::from(shape.groups) };
    let layout = log::ParityLogConfiguration::layout_of(&geometry).ok_or(AttachRefusal::Geometry(range.clone()))?;
    let (device, block_bytes) = (geometry.device, geometry.block_bytes);
    let formers = shape.formers;
    let configuration =
        log::ParityLogConfiguration { device, block_bytes, layout, formers, labels, client, intent, times };
    if configuration.geometry() != geometry {
        return Err(AttachRefusal::Geometry(range));
    }
    Ok(Box::new(log::ParityLogMachine::new(configuration, 0)?))
}

/// Returns the size of a device's part on each donor. *Units*: bytes.
pub fn donor_bytes(geometry: &RecordGeometry) -> u64 {
    match log::ParityLogConfiguration::shape_of(geometry) {
        Some(shape) => DonorAreas::new(&shape).donor_bytes.next_multiple_of(u64::from(crate::donor::BLOCK_BYTES)),
        None if geometry.is_parity() => ParityLayout::new(geometry).donor_bytes(),
        None => MirrorRing::new(geometry).donor_bytes(),
    }
}
