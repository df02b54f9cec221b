//! Devices in the kernel: file systems on them keep synced data, whatever happens to the process that serves them.

use nectary_e2e::attach::{AttachOutcome, TestFileSystem, missing, run, run_beside_mounted, run_copied_tree, turns};
use nectary_e2e::report::{not_run, seed_or_new};
use std::time::Duration;

/// The number of files that are synced before the kill.
const FILES: u64 = 16;

/// Runs a small sample of the rounds that `attach-filesystems` runs for longer.
fn sample(system: TestFileSystem, spec: &str) {
    if let Some(reason) = missing(system) {
        return not_run(format!("attach {}: {reason}", system.name()));
    }
    let _turn = turns::alone();
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("{} on {spec}, seed {seed}", system.name());
    let outcome = run(system, spec, seed, FILES, 1, Duration::from_millis(1500)).expect("the run ends");
    let AttachOutcome { synced, kills, released, short_of_memory, caught, problems } = outcome;
    println!(
        "{synced} files synced, {kills} kills, {released} things released, short of memory {short_of_memory:?} times"
    );
    assert_eq!(problems, Vec::<String>::new(), "seed {seed}");
    assert!(caught, "planted losses were not found");
    assert!(synced as u64 > FILES && released >= 2, "{synced} synced, {released} released: it proves nothing");
    assert_ne!(short_of_memory, Some(0), "it was never under pressure");
}

/// The serving process is killed under memory pressure; the device is a file.
#[test]
fn ext4_synced_files_survive_sigkill() {
    sample(TestFileSystem::Ext4, "{file}");
}

/// The serving process is killed under memory pressure; the device is a disk model.
#[test]
fn xfs_synced_files_survive_sigkill() {
    sample(TestFileSystem::Xfs, "model({file},disk=ssd-sata)");
}

/// The serving process is killed under memory pressure; the device is a file.
#[test]
fn btrfs_synced_files_survive_sigkill() {
    sample(TestFileSystem::Btrfs, "{file}");
}

/// `mkfs.btrfs` works on an attached device while another one is mounted.
#[test]
fn btrfs_made_beside_mounted_device() {
    if let Some(reason) = missing(TestFileSystem::Btrfs) {
        return not_run(format!("attach beside mounted: {reason}"));
    }
    let _turn = turns::alone();
    run_beside_mounted(TestFileSystem::Btrfs).expect("mkfs.btrfs does not take one for the other");
}

/// The serving process is killed under memory pressure; the device is a write-back cache.
#[test]
fn cached_ext4_synced_files_survive_sigkill() {
    sample(TestFileSystem::Ext4, "cache({file},memory=8M,policy=lru,mode=writeback)");
}

/// A tree that was copied to ext4 on an attached cache is complete on the file below it.
#[test]
fn tree_through_cache_reaches_file() {
    if let Some(reason) = missing(TestFileSystem::Ext4) {
        return not_run(format!("attach a cache: {reason}"));
    }
    let _turn = turns::alone();
    let tree = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("store");
    for mode in ["writethrough", "writeback"] {
        let spec = format!("cache({{file}},memory=8M,policy=dear,block=4K,mode={mode})");
        run_copied_tree(TestFileSystem::Ext4, &spec, "{file}", &tree)
            .unwrap_or_else(|error| panic!("{mode}: {error:#}"));
    }
}
