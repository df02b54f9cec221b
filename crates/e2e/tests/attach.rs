//! Devices in the kernel: file systems on them keep what was synced, whatever happens to the process that serves them.

use nectary_e2e::attach::{FileSystem, Outcome, missing, run};
use nectary_e2e::report::{not_run, seed_or_new};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One file system at a time: mkfs.btrfs takes loop devices for one another whose files have the same name, as those of all
/// attached devices have, and refuses one while another is mounted.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A small sample; `attach-filesystems` runs for longer.
fn sample(system: FileSystem, spec: &str) {
    if let Some(reason) = missing(system) {
        return not_run(format!("attach {}: {reason}", system.name()));
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("{} on {spec}, seed {seed}", system.name());
    let outcome = run(system, spec, seed, 1, Duration::from_millis(1500)).expect("the run ends");
    let Outcome { synced, kills, released, caught, problems } = outcome;
    println!("{synced} files synced, {kills} kills, {released} things released");
    assert_eq!(problems, Vec::<String>::new(), "seed {seed}");
    assert!(caught, "planted losses were not found");
    assert!(synced > 40 && released >= 2, "{synced} synced, {released} released: it proves nothing");
}

#[test]
fn ext4_on_an_attached_file_keeps_what_was_synced_over_sigkill_under_pressure() {
    sample(FileSystem::Ext4, "{file}");
}

#[test]
fn xfs_on_an_attached_model_keeps_what_was_synced_over_sigkill_under_pressure() {
    sample(FileSystem::Xfs, "model({file},disk=ssd-sata)");
}

#[test]
fn btrfs_on_an_attached_file_keeps_what_was_synced_over_sigkill_under_pressure() {
    sample(FileSystem::Btrfs, "{file}");
}
