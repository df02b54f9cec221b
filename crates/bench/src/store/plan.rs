//! Which contenders run, on what disks, with how much memory: the presets as data, scaled.

use super::{Options, Preset, SCALE, TRACE_SHARE};
use crate::contender::{FileSystem, Kind, Settings};
use crate::disk::{DiskOptions, Timekeeping};
use crate::workload::Laws;
use crate::{Error, ErrorKind};

/// The seeds' memory, in MB.
const MEMORY_MB: u64 = 256;
/// How it is divided between the proxy's cache and the buffer cache, in MB.
const SPLITS_MB: [(u64, u64); 2] = [(50, 206), (128, 128)];
/// What the store uses beyond the budget that it is given for each further thread in real time, in bytes: rings, stacks, what its
/// allocator keeps. It is given that much less, so that it stays in the memory that everybody has.
const STORE_THREAD_BYTES: u64 = 4 << 20;
/// What every memory group allows beyond the scaled memory: a quarter of it for tables and for what allocators lose, and bytes
/// for what does not scale. The seeds count neither. What a peer does not need of it is more buffer cache.
const GROUP_SHARE: u64 = 4;
const GROUP_BYTES: u64 = 6 << 20;
/// How far beyond its allowance a contender can come between two looks without being killed.
const HARD_BYTES: u64 = 512 << 20;
/// Pairs where nothing is said, and in a quick run.
const PAIRS: usize = 10;
const PAIRS_QUICK: usize = 4;
/// Requests of a quick run.
const REQUESTS_QUICK: u64 = 12_000;
/// The most that real time may be shortened: beyond it the path to the disk costs more than the disk.
const SPEED_MAX: f64 = 100.0;
/// The seeds' disk.
const MODEL: &str = "hdd-1999";
/// Bytes of a GB, as disks have them.
const GB: f64 = 1e9;

/// One contender on one disk size.
#[derive(Debug, Clone, PartialEq)]
pub struct Lane {
    /// Its name in figures; unique in its group.
    pub name: String,
    /// Whom it stands for in the seeds' table.
    pub seed_name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// How many disks it has.
    pub disks: usize,
    /// The seeds' memory and its split, in MB.
    pub memory: String,
}

/// All contenders on one disk size.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The seeds' disk size in GB.
    pub seed_gb: u64,
    /// Scaled, in bytes, all disks together.
    pub disk_bytes: u64,
    /// The contenders; the first two are Nectary.
    pub lanes: Vec<Lane>,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What was asked for.
    pub options: Options,
    /// The share of the seeds' sizes.
    pub scale: f64,
    /// The requests' laws.
    pub laws: Laws,
    /// How many of them are replayed.
    pub requests: u64,
    /// Pieces of the workload, each of which gives one pair.
    pub pairs: usize,
    /// Threads of the workload.
    pub threads: usize,
    /// What the disks are like.
    pub disk: DiskOptions,
    /// Memory of each contender, in bytes.
    pub memory_bytes: u64,
    /// The disk sizes.
    pub groups: Vec<Group>,
    /// Peers that are not there, with what is missing.
    pub skipped: Vec<String>,
}

impl Plan {
    /// Makes the plan of a run.
    ///
    /// *Errors*: [`ErrorKind::Usage`] for a scale or a number of pairs out of bounds, or where nothing is left to compare.
    pub fn new(options: Options) -> Result<Plan, Error> {
        let usage = |message: String| Error::new(ErrorKind::Usage, message);
        let scale = options.scale.unwrap_or(SCALE);
        let memory_bytes = ((MEMORY_MB << 20) as f64 * scale) as u64 >> 12 << 12;
        let beyond_bytes = store_beyond_bytes(&options);
        let memory_bytes_min = nectary_store::MEMORY_BYTES_MIN + beyond_bytes;
        if !(memory_bytes >= memory_bytes_min && scale <= 1.0) {
            let least = memory_bytes_min as f64 / (MEMORY_MB << 20) as f64;
            return Err(usage(format!(
                "a scale is at least {least}, where memory is what a store needs, and at most 1"
            )));
        }
        let pairs = options.pairs.unwrap_or(if options.quick { PAIRS_QUICK } else { PAIRS });
        if pairs < 2 || (pairs < PAIRS && !options.quick) {
            return Err(usage(format!("{pairs} pairs are too few: {PAIRS} at least, or 2 with --quick")));
        }
        let laws = Laws::seed_trace(options.seed, scale);
        let threads = options.preset.threads();
        let time = match options.speed {
            None => Timekeeping::Virtual,
            Some(speed) if (1.0..=SPEED_MAX).contains(&speed) => Timekeeping::Real { speed },
            Some(_) => return Err(usage(format!("a speed is at least 1 and at most {SPEED_MAX}"))),
        };
        let share = options.trace.unwrap_or(TRACE_SHARE);
        if !(share > 0.0 && share <= 1.0) {
            return Err(usage("a share of the trace is more than 0 and at most 1".to_owned()));
        }
        let requests = ((laws.requests as f64 * share) as u64).max(pairs as u64);
        let requests = if options.quick { requests.min(REQUESTS_QUICK) } else { requests };
        let mut skipped = Vec::new();
        let mut groups = Vec::new();
        for (seed_gb, lanes) in lanes(&options, memory_bytes) {
            let is_wanted = options.sizes.is_empty() || options.sizes.contains(&seed_gb);
            let is_small = options.quick || options.ablations;
            if !is_wanted || (is_small && options.sizes.is_empty() && !groups.is_empty()) {
                continue;
            }
            let disk_bytes = ((seed_gb as f64 * GB * scale) as u64).next_multiple_of(1 << 20);
            let is_there = |lane: &Lane| match lane.kind {
                Kind::Files { system, .. } => match system.missing() {
                    None => true,
                    Some(reason) => {
                        skipped.push(format!("{}: {reason}", lane.name));
                        false
                    }
                },
                _ => true,
            };
            let lanes: Vec<Lane> = lanes.into_iter().filter(|lane| is_named(&options, lane)).filter(is_there).collect();
            groups.push(Group { seed_gb, disk_bytes, lanes });
        }
        skipped.sort();
        skipped.dedup();
        if groups.is_empty() {
            return Err(usage(format!("{} has no disk of {:?} GB", options.preset.name(), options.sizes)));
        }
        let disk = DiskOptions { model: Some(MODEL.to_owned()), time, folder: None };
        Ok(Plan { options, scale, laws, requests, pairs, threads, disk, memory_bytes, groups, skipped })
    }

    /// Where the kernel would kill a contender that could not be held at its allowance, in bytes.
    pub fn hard_bytes(&self) -> u64 {
        self.group_bytes() + HARD_BYTES
    }

    /// What the memory group of each contender allows, in bytes.
    pub fn group_bytes(&self) -> u64 {
        self.memory_bytes + self.memory_bytes / GROUP_SHARE + GROUP_BYTES
    }

    /// The first request of a piece, and how many there are in it.
    pub fn piece(&self, index: usize) -> (u64, u64) {
        let at = |index: usize| self.requests * index as u64 / self.pairs as u64;
        (at(index), at(index + 1) - at(index))
    }
}

fn store_beyond_bytes(options: &Options) -> u64 {
    match options.speed {
        // Threads are modelled: one asks for all of them.
        None => 0,
        Some(_) => STORE_THREAD_BYTES * (options.preset.threads() as u64 - 1),
    }
}

fn is_named(options: &Options, lane: &Lane) -> bool {
    let is_named = options.only.iter().any(|name| lane.name.contains(name.as_str()));
    let is_nectary = matches!(lane.kind, Kind::Nectary { .. });
    let is_ablation = options.ablations && is_nectary && lane.disks == options.preset.disks();
    let is_any = options.only.is_empty() && !options.ablations;
    is_any || is_named || is_ablation || lane.name == "nectary" || lane.name == "nectary-again"
}

/// The lanes of each disk size of a preset.
fn lanes(options: &Options, memory_bytes: u64) -> Vec<(u64, Vec<Lane>)> {
    let nectary = |name: &str, disks| Lane {
        name: name.to_owned(),
        seed_name: "Hummingbird",
        kind: Kind::Nectary { memory_bytes: memory_bytes - store_beyond_bytes(options), settings: Settings::default() },
        disks,
        memory: MEMORY_MB.to_string(),
    };
    let ablations = |disks| {
        let all = if options.ablations { Settings::ablations() } else { Vec::new() };
        let lane = move |(name, settings)| {
            let mut lane = nectary(&format!("nectary-{name}"), disks);
            lane.kind = Kind::Nectary { memory_bytes: memory_bytes - store_beyond_bytes(options), settings };
            lane
        };
        all.into_iter().map(lane)
    };
    let files = |system: FileSystem, seed_name, split: (u64, u64), disks| Lane {
        name: format!("{}.{}", system.name(), split.0),
        seed_name,
        kind: Kind::Files {
            system,
            proxy_bytes: memory_bytes * split.0 / MEMORY_MB,
            buffer_bytes: memory_bytes * split.1 / MEMORY_MB,
        },
        disks,
        memory: format!("{}+{}", split.0, split.1),
    };
    let [guideline, even] = SPLITS_MB;
    let sizes: &[u64] = match options.preset {
        Preset::Table4 => &[4, 9, 18],
        Preset::Table5 => &[4, 8],
    };
    let of_size = |size: u64| match options.preset {
        Preset::Table4 => {
            let mut lanes = vec![nectary("nectary", 1), nectary("nectary-again", 1)];
            lanes.extend(ablations(1));
            for split in [guideline, even] {
                // The seeds' EFS supports no more than 8 GB.
                if size <= 8 {
                    lanes.push(files(FileSystem::Ext4Dirsync, "EFS", split, 1));
                }
                lanes.push(files(FileSystem::Xfs, "XFS", split, 1));
            }
            if size == sizes[0] {
                lanes.push(files(FileSystem::Ext4, "", guideline, 1));
                lanes.push(files(FileSystem::Btrfs, "", guideline, 1));
            }
            lanes
        }
        Preset::Table5 => {
            let mut lanes = vec![nectary("nectary", 2), nectary("nectary-again", 2)];
            lanes.extend(ablations(2));
            lanes.push(files(FileSystem::Ext4Async, "UFS-async", guideline, 2));
            lanes.push(files(FileSystem::Ext4, "UFS-soft", guideline, 2));
            lanes.push(files(FileSystem::Ext4Dirsync, "UFS", guideline, 2));
            lanes.push(nectary("nectary-one-disk", 1));
            let mut one = files(FileSystem::Ext4Async, "UFS-async", guideline, 1);
            one.name.push_str("-one-disk");
            lanes.push(one);
            lanes
        }
    };
    sizes.iter().map(|&size| (size, of_size(size))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(preset: Preset) -> Options {
        Options {
            preset,
            scale: None,
            quick: false,
            ablations: false,
            seed: 1,
            pairs: None,
            only: Vec::new(),
            sizes: Vec::new(),
            speed: None,
            trace: None,
        }
    }

    #[test]
    fn presets_are_the_seeds_tables() {
        let plan = Plan::new(Options { scale: Some(1.0), trace: Some(1.0), ..options(Preset::Table4) }).unwrap();
        let sizes: Vec<u64> = plan.groups.iter().map(|group| group.seed_gb).collect();
        assert_eq!((sizes.as_slice(), plan.threads, plan.requests), (&[4, 9, 18][..], 1, 4_800_000));
        let has = |group: usize, name: &str| plan.groups[group].lanes.iter().any(|lane| lane.name == name);
        if FileSystem::Xfs.missing().is_none() && FileSystem::Ext4.missing().is_none() {
            assert!(has(0, "ext4-dirsync.50") && !has(1, "ext4-dirsync.50") && has(2, "xfs.128"));
        }
        let plan = Plan::new(options(Preset::Table5)).unwrap();
        assert_eq!(plan.threads, 4);
        assert!(plan.groups.iter().all(|group| group.lanes[0].disks == 2));
    }

    #[test]
    fn pieces_are_the_whole_workload_and_pairs_are_ten_unless_quick() {
        let plan = Plan::new(options(Preset::Table4)).unwrap();
        assert!(plan.pairs >= 10);
        let sum: u64 = (0..plan.pairs).map(|index| plan.piece(index).1).sum();
        assert_eq!(sum, plan.requests);
        let few = Options { pairs: Some(9), ..options(Preset::Table4) };
        assert_eq!(Plan::new(few.clone()).unwrap_err().kind, ErrorKind::Usage);
        assert_eq!(Plan::new(Options { quick: true, ..few }).unwrap().groups.len(), 1);
    }

    #[test]
    fn ablations_change_one_thing_and_are_beside_nectary_alone() {
        for (preset, disks) in [(Preset::Table4, 1), (Preset::Table5, 2)] {
            let plan = Plan::new(Options { ablations: true, ..options(preset) }).unwrap();
            let [group] = plan.groups.as_slice() else { panic!("{:?}", plan.groups) };
            assert_eq!(group.lanes.len(), 2 + Settings::ablations().len());
            for lane in &group.lanes[2..] {
                assert_eq!(lane.disks, disks);
                let Kind::Nectary { settings, .. } = &lane.kind else { panic!("{lane:?}") };
                assert_ne!(*settings, Settings::default(), "{}", lane.name);
            }
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for scale in [0.0, -1.0, 1.5, 0.01, f64::NAN] {
            let wrong = Options { scale: Some(scale), ..options(Preset::Table4) };
            assert_eq!(Plan::new(wrong).unwrap_err().kind, ErrorKind::Usage, "{scale}");
        }
        for wrong in [0.0, 1.1, f64::NAN] {
            assert!(Plan::new(Options { trace: Some(wrong), ..options(Preset::Table4) }).is_err());
            assert!(Plan::new(Options { speed: Some(wrong / 2.0), ..options(Preset::Table5) }).is_err());
        }
        assert!(Plan::new(Options { sizes: vec![5], ..options(Preset::Table4) }).is_err());
    }
}
