//! The contenders of each preset, as data.
//!
//! Owns: the contenders on each disk size, their memory, and their names. Leaves to others: scaling (`plan`).

use super::{BenchStoreOptions, StorePreset};
use crate::contender::{
    ContenderFileSystem, ContenderKind, DIRTY_PERCENT, FoyerEngine, FoyerSettings, FoyerWrites, NectarySettings,
};

/// The memory of a contender in the paper, in MB.
pub(super) const MEMORY_MB: u64 = 256;
/// How the paper divides this memory between the proxy's cache and the buffer cache, in MB.
const SPLITS_MB: [(u64, u64); 2] = [(50, 206), (128, 128)];
/// The smallest disk, for which more file systems are compared, in GB.
const SMALLEST_GB: u64 = 4;
/// The largest disk that the paper's EFS supports, in GB.
const EFS_GB_MAX: u64 = 8;

/// One contender on one disk size.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreLane {
    /// The name of the contender within figure names; unique in its group.
    pub name: String,
    /// The contender of the paper's table that this one replaces.
    pub seed_name: &'static str,
    /// Its kind and settings.
    pub kind: ContenderKind,
    /// The number of its disks.
    pub disks: usize,
    /// The memory in the paper and how it is divided, in MB.
    pub memory: String,
}

/// Whether a contender runs. All run if `only` is empty. With ablations, only Nectary and the contenders that `only`
/// names run.
pub(super) fn is_named(options: &BenchStoreOptions, lane: &StoreLane) -> bool {
    let is_named = options.only.iter().any(|name| lane.name.contains(name.as_str()));
    let is_nectary = matches!(lane.kind, ContenderKind::Nectary { .. });
    let is_ablation = options.ablations && is_nectary && lane.disks == options.preset.disks();
    let is_any = options.only.is_empty() && !options.ablations;
    // The bare disk has a target for Nectary without hints, so this contender always runs there.
    let is_aim = options.preset == StorePreset::Bare && lane.name == "nectary-hints-off";
    is_any || is_named || is_ablation || is_aim || lane.name == "nectary" || lane.name == "nectary-again"
}

/// The contenders that are compared on one disk size; the first two are Nectary. Nectary's memory budget is
/// `store_bytes`.
pub(super) fn lanes(options: &BenchStoreOptions, memory_bytes: u64, store_bytes: u64, seed_gb: u64) -> Vec<StoreLane> {
    let store = |name: &str, disks, settings| StoreLane {
        name: name.to_owned(),
        seed_name: "Hummingbird",
        kind: ContenderKind::Nectary { memory_bytes: store_bytes, settings },
        disks,
        memory: MEMORY_MB.to_string(),
    };
    let nectary = |name: &str, disks| store(name, disks, NectarySettings::default());
    let files = |system: ContenderFileSystem, seed_name, split: (u64, u64), disks| StoreLane {
        name: format!("{}.{}", system.name(), split.0),
        seed_name,
        kind: ContenderKind::Files {
            system,
            proxy_bytes: memory_bytes * split.0 / MEMORY_MB,
            buffer_bytes: memory_bytes * split.1 / MEMORY_MB,
            dirty_percent: DIRTY_PERCENT,
        },
        disks,
        memory: format!("{}+{}", split.0, split.1),
    };
    let [guideline, even] = SPLITS_MB;
    let disks = options.preset.disks();
    let mut lanes = vec![nectary("nectary", disks), nectary("nectary-again", disks)];
    if options.ablations {
        let all = NectarySettings::ablations().into_iter();
        lanes.extend(all.map(|(name, settings)| store(&format!("nectary-{name}"), disks, settings)));
    }
    match options.preset {
        StorePreset::Table4 => {
            for split in [guideline, even] {
                if seed_gb <= EFS_GB_MAX {
                    lanes.push(files(ContenderFileSystem::Ext4Dirsync, "EFS", split, 1));
                }
                lanes.push(files(ContenderFileSystem::Xfs, "XFS", split, 1));
            }
            if seed_gb == SMALLEST_GB {
                lanes.push(files(ContenderFileSystem::Ext4, "", guideline, 1));
                lanes.push(files(ContenderFileSystem::Btrfs, "", guideline, 1));
            }
        }
        StorePreset::Table5 => {
            lanes.push(files(ContenderFileSystem::Ext4Async, "UFS-async", guideline, 2));
            lanes.push(files(ContenderFileSystem::Ext4, "UFS-soft", guideline, 2));
            lanes.push(files(ContenderFileSystem::Ext4Dirsync, "UFS", guideline, 2));
            lanes.push(nectary("nectary-one-disk", 1));
            let mut one = files(ContenderFileSystem::Ext4Async, "UFS-async", guideline, 1);
            one.name.push_str("-one-disk");
            lanes.push(one);
        }
        StorePreset::Bare => {
            if !options.ablations {
                lanes.push(store(
                    "nectary-hints-off",
                    1,
                    NectarySettings { hints: false, ..NectarySettings::default() },
                ));
            }
            lanes.push(files(ContenderFileSystem::Xfs, "", guideline, 1));
            lanes.push(files(ContenderFileSystem::Xfs, "", even, 1));
            lanes.push(files(ContenderFileSystem::Ext4, "", guideline, 1));
            lanes.push(files(ContenderFileSystem::Btrfs, "", guideline, 1));
            let usual = FoyerSettings::default;
            for (name, settings) in [
                ("foyer", usual()),
                ("foyer-uring", FoyerSettings { engine: FoyerEngine::Uring, ..usual() }),
                ("foyer-insertion", FoyerSettings { writes: FoyerWrites::Insertion, ..usual() }),
            ] {
                let kind = ContenderKind::Foyer { memory_bytes, settings };
                lanes.push(StoreLane {
                    name: name.to_owned(),
                    seed_name: "",
                    kind,
                    disks: 1,
                    memory: MEMORY_MB.to_string(),
                });
            }
            for lane in &mut lanes {
                lane.seed_name = "";
            }
        }
    }
    lanes
}
