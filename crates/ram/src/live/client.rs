//! The machine of a device as its owner drives it: one that is changed in place, or a log of slots.
//!
//! Owns: the common interface of both, and making each. Leaves to others: every decision (`mirror`, `log`).

use super::report::{Counts, LogCounts};
use crate::format::slots::Areas;
use crate::format::{Geometry, View};
use crate::mirror::{self, Action, Donor, Event, Intent, Layout as _, Moment, Refusal, Ring, Rows, Times};
use crate::moving::Members;
use crate::scrub::Progress;
use crate::{format::FormatError, log};

/// The interface of a machine for its owner, besides what a move sees of it; each method calls the machine's method of
/// the same name.
pub trait Client: Members + Send {
    fn step(&mut self, now_us: Moment, event: Event);
    fn take_actions(&mut self) -> Vec<Action>;
    fn wake_at(&self) -> Option<Moment>;
    fn members(&self) -> &dyn Members;
    fn view(&self) -> &View;
    fn is_given_up(&self) -> bool;
    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)>;
    fn scrub_progress(&self) -> Progress;
    fn counts(&self) -> Counts;
}

impl Client for mirror::Machine {
    fn step(&mut self, now_us: Moment, event: Event) {
        mirror::Machine::step(self, now_us, event);
    }

    fn take_actions(&mut self) -> Vec<Action> {
        self.actions().collect()
    }

    fn wake_at(&self) -> Option<Moment> {
        mirror::Machine::wake_at(self)
    }

    fn members(&self) -> &dyn Members {
        self
    }

    fn view(&self) -> &View {
        mirror::Machine::view(self)
    }

    fn is_given_up(&self) -> bool {
        mirror::Machine::is_given_up(self)
    }

    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
        mirror::Machine::rebuild_progress(self)
    }

    fn scrub_progress(&self) -> Progress {
        mirror::Machine::scrub_progress(self)
    }

    fn counts(&self) -> Counts {
        Counts { base: self.figures(), dirty_stripes: self.dirty_stripes(), is_parity: self.is_parity(), log: None }
    }
}

impl Client for log::Machine {
    fn step(&mut self, now_us: Moment, event: Event) {
        log::Machine::step(self, now_us, event);
    }

    fn take_actions(&mut self) -> Vec<Action> {
        self.actions().collect()
    }

    fn wake_at(&self) -> Option<Moment> {
        log::Machine::wake_at(self)
    }

    fn members(&self) -> &dyn Members {
        self
    }

    fn view(&self) -> &View {
        log::Machine::view(self)
    }

    fn is_given_up(&self) -> bool {
        log::Machine::is_given_up(self)
    }

    fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
        log::Machine::rebuild_progress(self)
    }

    fn scrub_progress(&self) -> Progress {
        log::Machine::scrub_progress(self)
    }

    fn counts(&self) -> Counts {
        let shape = self.shape();
        let counts = LogCounts {
            policy: shape.policy,
            groups: u64::from(shape.groups),
            free_groups: u64::from(self.free_groups()),
            steps: self.under_way().0 as u64,
            is_recovering: self.phase() == log::Phase::Recovering,
            figures: self.figures(),
        };
        Counts { base: self.base_figures(), dirty_stripes: 0, is_parity: false, log: Some(counts) }
    }
}

/// Makes the machine of a device.
///
/// *Errors*: a geometry that is not possible, or blocks that another version placed differently.
pub fn machine(
    geometry: Geometry,
    labels: Vec<String>,
    client: u64,
    intent: Intent,
    times: Times,
) -> Result<Box<dyn Client>, Refusal> {
    let Some(shape) = geometry.log() else {
        let configuration = mirror::Configuration { geometry, labels, client, intent, times };
        return Ok(Box::new(mirror::Machine::new(configuration, 0)?));
    };
    let range = FormatError::Range { what: "groups", found: u64::from(shape.groups) };
    let layout = log::Configuration::layout_of(&geometry).ok_or(Refusal::Geometry(range.clone()))?;
    let (device, block_bytes) = (geometry.device, geometry.block_bytes);
    let formers = shape.formers;
    let configuration = log::Configuration { device, block_bytes, layout, formers, labels, client, intent, times };
    if configuration.geometry() != geometry {
        return Err(Refusal::Geometry(range));
    }
    Ok(Box::new(log::Machine::new(configuration, 0)?))
}

/// Returns the size of a device's part on each donor. *Units*: bytes.
pub fn donor_bytes(geometry: &Geometry) -> u64 {
    match log::Configuration::shape_of(geometry) {
        Some(shape) => Areas::new(&shape).donor_bytes.next_multiple_of(u64::from(crate::donor::BLOCK_BYTES)),
        None if geometry.is_parity() => Rows::new(geometry).donor_bytes(),
        None => Ring::new(geometry).donor_bytes(),
    }
}
