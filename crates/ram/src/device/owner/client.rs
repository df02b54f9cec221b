//! The machine of a device as its owner drives it: one that is changed in place, or a log of slots.
//!
//! Owns: the common interface of both, and making each. Leaves to others: every decision (`group`, `in_place`, `logged`).

use super::report::{DeviceCounts, LogCounts};
use crate::donor::BLOCK_BYTES;
use crate::format::FormatError;
use crate::format::RecordGeometry;
use crate::format::slots::DonorAreas;
use crate::group::{
    AttachRefusal, Donor, GroupMachine, MachineAction, MachineEvent, MachineIntent, MachineTimes, Moment,
};
use crate::in_place::{InPlaceConfiguration, InPlaceMachine, InPlacePhase, RowLayout};
use crate::logged::{ParityLogConfiguration, ParityLogMachine, ParityLogPhase};
use crate::scrub::ScrubProgress;

/// The interface of a machine for its owner.
pub trait DeviceMachine: Send {
    /// Handles an event that happened at `now_us`.
    fn step(&mut self, now_us: Moment, event: MachineEvent);
    /// Takes the actions that the driver has to do.
    fn take_actions(&mut self) -> Vec<MachineAction>;
    /// Returns the time at which [`MachineEvent::Time`] has to come at the latest; `None` after the end.
    fn wake_at(&self) -> Option<Moment>;
    /// Returns the donors of the device.
    fn group(&self) -> &GroupMachine;
    /// Whether the device is in use.
    fn is_open(&self) -> bool;
    /// Whether the machine has ended.
    fn has_ended(&self) -> bool;
    /// Whether every donor is trusted and has stored the view, and nothing is in progress.
    fn is_quiet(&self) -> bool;
    /// Returns the donor that is filled, how much of its part it has, and how much that is.
    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)>;
    /// Returns the progress of the scrub and its findings.
    fn scrub_progress(&self) -> ScrubProgress;
    /// Returns the counters since the start.
    fn counts(&self) -> DeviceCounts;
    /// Describes how far the machine is.
    fn describe(&self) -> String;
}

macro_rules! device_machine {
    ($machine:ty, $phase:ty, $counts:expr) => {
        impl DeviceMachine for $machine {
            fn step(&mut self, now_us: Moment, event: MachineEvent) {
                <$machine>::step(self, now_us, event);
            }

            fn take_actions(&mut self) -> Vec<MachineAction> {
                self.actions().collect()
            }

            fn wake_at(&self) -> Option<Moment> {
                <$machine>::wake_at(self)
            }

            fn group(&self) -> &GroupMachine {
                <$machine>::group(self)
            }

            fn is_open(&self) -> bool {
                self.phase() == <$phase>::Open
            }

            fn has_ended(&self) -> bool {
                self.phase() == <$phase>::Ended
            }

            fn is_quiet(&self) -> bool {
                <$machine>::is_quiet(self)
            }

            fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
                <$machine>::rebuild_progress(self)
            }

            fn scrub_progress(&self) -> ScrubProgress {
                <$machine>::scrub_progress(self)
            }

            fn counts(&self) -> DeviceCounts {
                $counts(self)
            }

            fn describe(&self) -> String {
                let group = <$machine>::group(self);
                let (phase, view) = (group.phase(), group.view().number());
                format!("{:?}, {phase:?}, {:?}, view {view:?}", self.phase(), group.standing())
            }
        }
    };
}

device_machine!(InPlaceMachine, InPlacePhase, |machine: &InPlaceMachine| DeviceCounts {
    group: machine.group().figures(),
    in_place: machine.figures(),
    dirty_stripes: machine.dirty_stripes(),
    is_parity: machine.is_parity(),
    is_plain: machine.group().geometry().zones().is_some(),
    log: None,
});
device_machine!(ParityLogMachine, ParityLogPhase, |machine: &ParityLogMachine| {
    let shape = machine.shape();
    let counts = LogCounts {
        policy: shape.policy,
        groups: u64::from(shape.groups),
        free_groups: u64::from(machine.free_groups()),
        steps: machine.under_way().0 as u64,
        is_recovering: machine.phase() == ParityLogPhase::Recovering,
        figures: machine.figures(),
    };
    DeviceCounts { group: machine.group().figures(), log: Some(counts), ..DeviceCounts::default() }
});

/// Makes the machine of a device.
///
/// *Errors*: a geometry that is not possible, or blocks that another version placed differently.
pub fn machine(
    geometry: RecordGeometry,
    labels: Vec<String>,
    client: u64,
    intent: MachineIntent,
    times: MachineTimes,
    now_us: Moment,
) -> Result<Box<dyn DeviceMachine>, AttachRefusal> {
    let Some(shape) = geometry.log() else {
        let configuration = InPlaceConfiguration { geometry, labels, client, intent, times };
        return Ok(Box::new(InPlaceMachine::new(configuration, now_us)?));
    };
    let range = FormatError::Range { what: "groups", found: u64::from(shape.groups) };
    let layout = ParityLogConfiguration::layout_of(&geometry).ok_or(AttachRefusal::Geometry(range.clone()))?;
    let (device, block_bytes) = (geometry.device, geometry.block_bytes);
    let formers = shape.formers;
    let configuration = ParityLogConfiguration { device, block_bytes, layout, formers, labels, client, intent, times };
    if configuration.geometry() != geometry {
        return Err(AttachRefusal::Geometry(range));
    }
    Ok(Box::new(ParityLogMachine::new(configuration, now_us)?))
}

/// Returns the size of a device's part on a donor. *Units*: bytes.
pub fn donor_bytes(geometry: &RecordGeometry, donor: Donor) -> u64 {
    match ParityLogConfiguration::shape_of(geometry) {
        Some(shape) => DonorAreas::new(&shape).donor_bytes.next_multiple_of(u64::from(BLOCK_BYTES)),
        None => RowLayout::new(geometry).donor_bytes(donor),
    }
}
