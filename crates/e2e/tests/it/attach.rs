//! Devices in the kernel: file systems on them keep synced data, whatever happens to the process that serves them.

use nectary_e2e::attach::{FileSystem, Outcome, missing, run, run_beside_mounted, run_copied_tree, turns};
use nectary_e2e::report::{not_run, seed_or_new};
use std::time::Duration;

/// The number of files that are synced before the kill.
const FILES: u64 = 16;

/// Runs a small sample of the rounds that `attach-filesystems` runs for longer.
fn sample(system: FileSystem, spec: &str) {
    if let Some(reason) = missing(system) {
        return not_run(format!("attach {}: {reason}", system.name()));
    }
    let _turn = turns::alone();
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("{} on {spec}, seed {seed}", system.name());
    let outcome = run(system, spec, seed, FILES, 1, Duration::from_millis(1500)).expect("the run ends");
    let Outcome { synced, kills, released, short_of_memory, caught, problems } = outcome;
    println!(
        "{synced} files synced, {kills} kills, {released} things released, short of memory {short_of_memory:?} times"
    );
    assert_eq!(problems, Vec::<String>::new(), "seed {seed}");
    assert!(caught, "planted losses were not found");
    assert!(synced as u64 > FILES && released >= 2, "{synced} synced, {released} released: it proves nothing");
    assert_ne!(short_of_memory, Some(0), "it was never under pressure");
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

#[test]
fn btrfs_is_made_on_an_attached_device_while_another_is_mounted() {
    if let Some(reason) = missing(FileSystem::Btrfs) {
        return not_run(format!("attach beside mounted: {reason}"));
    }
    let _turn = turns::alone();
    run_beside_mounted(FileSystem::Btrfs).expect("mkfs.btrfs does not take one for the other");
}

#[test]
fn ext4_on_a_cached_file_keeps_what_was_synced_over_sigkill_under_pressure() {
    sample(FileSystem::Ext4, "cache({file},memory=8M,policy=lru,mode=writeback)");
}

#[test]
fn tree_that_was_copied_to_ext4_on_an_attached_cache_is_on_the_file_below_it() {
    if let Some(reason) = missing(FileSystem::Ext4) {
        return not_run(format!("attach a cache: {reason}"));
    }
    let _turn = turns::alone();
    let tree = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("store");
    for mode in ["writethrough", "writeback"] {
        let spec = format!("cache({{file}},memory=8M,policy=dear,block=4K,mode={mode})");
        run_copied_tree(FileSystem::Ext4, &spec, "{file}", &tree).unwrap_or_else(|error| panic!("{mode}: {error:#}"));
    }
}
