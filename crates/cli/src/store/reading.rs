//! Opening a store only for reading, for the commands that look at it.
//!
//! Owns: the words about what an open for writing would repair. Promises: the devices are not changed.

use nectary_store::PendingRepair;

use super::in_use::{BusyAlternative, explained};
use crate::arguments::{DeviceArguments, SpanArguments};
use crate::device::{OpenStore, StoreAccess, open_store};
use crate::exit::CommandFailure;

/// Opens a store; `instead` says what to do if another process has it open.
pub async fn open(
    device: &DeviceArguments,
    spans: &SpanArguments,
    instead: &BusyAlternative,
) -> Result<OpenStore, CommandFailure> {
    open_store(device, spans, StoreAccess::Read).await.map_err(|failure| explained(failure, instead))
}

/// Prints what an open for writing would repair.
pub fn say_repairs(spec: &str, repairs: &[PendingRepair]) {
    if repairs.is_empty() {
        return;
    }
    eprintln!("nectary: {spec}: nothing was written; this is repaired when it is next opened for writing:");
    repairs.iter().for_each(|repair| eprintln!("  {}", repair.what));
}

/// As [`say_repairs`], of damage alone.
pub fn say_damage(spec: &str, repairs: &[PendingRepair]) {
    let damage: Vec<PendingRepair> = repairs.iter().filter(|repair| repair.is_damage).cloned().collect();
    say_repairs(spec, &damage);
}
