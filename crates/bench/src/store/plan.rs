//! The plan of a run: the scaled contenders, disks and memory of a preset.
//!
//! Owns: scaling, and the refusal of wrong options. Leaves to others: the contenders of each preset (`lanes`).

use std::sync::Arc;

use super::lanes::{MEMORY_MB, StoreLane, is_named, lanes};
use super::{BenchStoreOptions, SCALE, StorePreset, TRACE_SHARE};
use crate::contender::ContenderKind;
use crate::disk::{DiskOptions, DiskTimekeeping};
use crate::workload::{LogWorkload, SEED_UNIQUE_BYTES, WorkloadLaws, WorkloadPreset, WorkloadSource};
use crate::{Error, ExperimentErrorKind};

/// The memory that a store in real time uses outside its budget for each thread beyond the first: rings, stacks, and
/// free memory of its allocator. *Units*: bytes. The store's budget is reduced by this, so that the store uses no more
/// memory than its peers.
const STORE_THREAD_BYTES: u64 = 4 << 20;
/// The allowance of every memory group beyond the scaled memory: a share of that memory (a quarter) for tables and
/// allocators, and a fixed number of bytes. The paper counts neither. A peer can use the unneeded part of its allowance
/// as buffer cache.
const GROUP_SHARE: u64 = 4;
const GROUP_BYTES: u64 = 6 << 20;
/// The memory by which a contender may exceed its allowance between two checks before the kernel kills it, in bytes.
const HARD_BYTES: u64 = 512 << 20;
/// The default number of seeds of the workload on a virtual clock, and the smallest number with which figures are
/// judged.
const SEEDS: usize = 5;
pub(super) const SEEDS_MIN: usize = 5;
/// The default number of pairs, and the number in a quick run.
pub(super) const PAIRS: usize = 10;
const PAIRS_QUICK: usize = 4;
/// The largest number of requests of a quick run.
const REQUESTS_QUICK: u64 = 12_000;
/// The largest speed-up of a disk. The operations of a faster disk would take less time than the layers above it.
const SPEED_MAX: f64 = 100.0;
/// The model of the paper's disk.
const MODEL: &str = "hdd-1999";
/// The mean numbers of embedded objects per page on a bare disk. A quick run uses only `EMBEDDED_AIM`, the one that has
/// a target.
const EMBEDDED: [u64; 4] = [1, 3, 5, 10];
pub(super) const EMBEDDED_AIM: u64 = 5;
/// The number of bytes of a GB in the sense of disk makers.
const GB: f64 = 1e9;

/// All contenders on one disk size.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskSizeGroup {
    /// Its name in figures.
    pub label: String,
    /// The size of the disk in the paper, in GB.
    pub seed_gb: u64,
    /// The workload.
    pub source: WorkloadSource,
    /// The scaled size of all disks together, in bytes.
    pub disk_bytes: u64,
    /// The contenders; the first two are Nectary.
    pub lanes: Vec<StoreLane>,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct StorePlan {
    /// The options.
    pub options: BenchStoreOptions,
    /// The factor by which the paper's sizes are scaled.
    pub scale: f64,
    /// The number of requests of the whole scaled trace.
    pub trace_requests: u64,
    /// The number of requests of the trace that are replayed.
    pub requests: u64,
    /// The number of pieces of the workload.
    pub pairs: usize,
    /// The seeds of the workload: each disk size runs once with each seed.
    pub seeds: Vec<u64>,
    /// The number of threads of the workload.
    pub threads: usize,
    /// The properties of the disks.
    pub disk: DiskOptions,
    /// The memory of each contender, in bytes.
    pub memory_bytes: u64,
    /// The disk sizes.
    pub groups: Vec<DiskSizeGroup>,
    /// The peers that this machine cannot run, with the reason.
    pub skipped: Vec<String>,
}

impl StorePlan {
    /// Makes the plan of a run; reads the log, if there is one.
    ///
    /// *Errors*: [`ExperimentErrorKind::Usage`] for a scale or a number of pairs out of bounds, or if nothing is left to
    /// compare.
    pub fn new(options: BenchStoreOptions) -> Result<StorePlan, Error> {
        let usage = |message: String| Error::new(ExperimentErrorKind::Usage, message);
        let log = options.log.as_deref().map(LogWorkload::read).transpose()?.map(Arc::new);
        let scale = options.scale.unwrap_or_else(|| log.as_deref().map_or(SCALE, scale_of));
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
        let is_one =
            options.quick || options.ablations || options.speed.is_some() || options.preset == StorePreset::Bare;
        let is_one = is_one || log.is_some();
        let seeds = options.seeds.unwrap_or(if is_one { 1 } else { SEEDS }) as u64;
        if seeds == 0 {
            return Err(usage("a run has 1 seed at least".to_owned()));
        }
        if log.is_some() && (options.seeds.is_some_and(|seeds| seeds > 1) || !options.embedded.is_empty()) {
            return Err(usage("a log is one workload: leave --seeds and --embedded away".to_owned()));
        }
        let seeds: Vec<u64> = (0..seeds).map(|index| options.seed + index).collect();
        let threads = options.preset.threads();
        let is_bare = options.preset == StorePreset::Bare;
        let time = match options.speed {
            Some(_) if is_bare => return Err(usage("a bare disk is as fast as it is: leave --speed away".to_owned())),
            None if is_bare => DiskTimekeeping::Real { speed: 1.0 },
            None => DiskTimekeeping::Virtual,
            Some(speed) if (1.0..=SPEED_MAX).contains(&speed) => DiskTimekeeping::Real { speed },
            Some(_) => return Err(usage(format!("a speed is at least 1 and at most {SPEED_MAX}"))),
        };
        if is_bare != options.folder.is_some() {
            return Err(usage("a bare disk, and it alone, needs a directory on the device".to_owned()));
        }
        let share = options.trace.unwrap_or(TRACE_SHARE);
        if !(share > 0.0 && share <= 1.0) {
            return Err(usage("a share of the trace is more than 0 and at most 1".to_owned()));
        }
        let trace = match log {
            Some(log) => WorkloadSource::Log(log),
            None => WorkloadSource::Laws(options.workload.laws(options.seed, scale)),
        };
        let trace_requests = trace.count();
        if trace_requests < pairs as u64 {
            return Err(usage(format!("{trace_requests} requests are fewer than the {pairs} pieces")));
        }
        let requests = ((trace_requests as f64 * share) as u64).max(pairs as u64);
        let requests = if options.quick { requests.min(REQUESTS_QUICK) } else { requests };
        let (mut skipped, mut groups, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for (label, seed_gb, source) in conditions(&options, &trace) {
            let disk_bytes = ((seed_gb as f64 * GB * scale) as u64).next_multiple_of(1 << 20);
            let lanes = lanes(&options, memory_bytes, memory_bytes - beyond_bytes, seed_gb);
            known.extend(lanes.iter().map(|lane| lane.name.clone()));
            let is_there = |lane: &StoreLane| match missing(&options, lane) {
                None => true,
                Some(reason) => {
                    skipped.push(format!("{}: {reason}", lane.name));
                    false
                }
            };
            let lanes: Vec<StoreLane> =
                lanes.into_iter().filter(|lane| is_named(&options, lane)).filter(is_there).collect();
            groups.push(DiskSizeGroup { label, seed_gb, source, disk_bytes, lanes });
        }
        if let Some(name) = options.only.iter().find(|name| !known.iter().any(|known| known.contains(name.as_str()))) {
            known.sort();
            known.dedup();
            return Err(usage(format!("no contender has \"{name}\" in its name; there are {}", known.join(", "))));
        }
        skipped.sort();
        skipped.dedup();
        if groups.is_empty() {
            let BenchStoreOptions { sizes, embedded, .. } = &options;
            let name = options.preset.name();
            return Err(usage(format!("{name} has no disk of {sizes:?} GB with pages of {embedded:?} objects")));
        }
        let model = (!is_bare).then(|| MODEL.to_owned());
        let queue_depth = options.queue_depth;
        if queue_depth == 0 {
            return Err(usage("a queue is 1 request deep at least".to_owned()));
        }
        let disk = DiskOptions { model, time, queue_depth, folder: options.folder.clone(), is_bare };
        Ok(StorePlan {
            options,
            scale,
            trace_requests,
            requests,
            pairs,
            seeds,
            threads,
            disk,
            memory_bytes,
            groups,
            skipped,
        })
    }

    /// The hard limit of a contender's memory group, at which the kernel kills the contender, in bytes.
    pub fn hard_bytes(&self) -> u64 {
        self.group_bytes() + HARD_BYTES
    }

    /// The allowance of each contender's memory group, in bytes.
    pub fn group_bytes(&self) -> u64 {
        self.memory_bytes + self.memory_bytes / GROUP_SHARE + GROUP_BYTES
    }

    /// The first request of a piece, and the number of its requests.
    pub fn piece(&self, index: usize) -> (u64, u64) {
        let at = |index: usize| self.requests * index as u64 / self.pairs as u64;
        (at(index), at(index + 1) - at(index))
    }
}

/// The scale at which disks have the same shares of a log's distinct bytes as the paper's have of those of its trace, as
/// far as a store has enough memory.
fn scale_of(log: &LogWorkload) -> f64 {
    (log.totals.unique_bytes as f64 / SEED_UNIQUE_BYTES as f64).clamp(SCALE, 1.0)
}

/// The name, the disk size in GB and the workload of each group of contenders.
fn conditions(options: &BenchStoreOptions, trace: &WorkloadSource) -> Vec<(String, u64, WorkloadSource)> {
    let is_small = options.quick || options.ablations;
    let name = |of_seed: String| match options.workload_name() {
        None => of_seed,
        Some(workload) => format!("{workload}-{of_seed}"),
    };
    let of_size = |size: u64| (name(format!("{size}gb")), size, trace.clone());
    let sizes: &[u64] = match options.preset {
        StorePreset::Table4 => &[4, 9, 18],
        StorePreset::Table5 => &[4, 8],
        StorePreset::Bare => {
            let size = options.sizes.first().copied().unwrap_or(4);
            let usual = match trace {
                WorkloadSource::Laws(laws) if options.workload == WorkloadPreset::Seed => laws,
                _ => return vec![of_size(size)],
            };
            let of_embedded = |count: u64| {
                let laws = WorkloadLaws { embedded_mean: count as f64, ..usual.clone() };
                (format!("embedded-{count}"), size, WorkloadSource::Laws(laws))
            };
            let is_wanted = |count: &u64| match options.embedded.is_empty() {
                true => !is_small || *count == EMBEDDED_AIM,
                false => options.embedded.contains(count),
            };
            return EMBEDDED.into_iter().filter(is_wanted).map(of_embedded).collect();
        }
    };
    let wanted = sizes.iter().filter(|size| options.sizes.is_empty() || options.sizes.contains(size));
    let all: Vec<_> = wanted.map(|&size| of_size(size)).collect();
    let count = if is_small && options.sizes.is_empty() { 1 } else { all.len() };
    all.into_iter().take(count).collect()
}

/// The reason why this machine cannot run a contender; `None` if it can.
fn missing(options: &BenchStoreOptions, lane: &StoreLane) -> Option<String> {
    match lane.kind {
        ContenderKind::Files { system, .. } => system.missing(),
        ContenderKind::Foyer { .. } if options.foyer.is_none() => Some(
            "its program, nectary-foyer, is not beside this one: cargo build --release -p nectary-foyer".to_owned(),
        ),
        _ => None,
    }
}

fn store_beyond_bytes(options: &BenchStoreOptions) -> u64 {
    match options.speed {
        // On a virtual clock, threads are modelled: one real thread sends all their requests.
        None => 0,
        Some(_) => STORE_THREAD_BYTES * (options.preset.threads() as u64 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{ContenderFileSystem, NectarySettings};

    fn options(preset: StorePreset) -> BenchStoreOptions {
        BenchStoreOptions::new(preset)
    }

    #[test]
    fn presets_are_the_seeds_tables() {
        let plan =
            StorePlan::new(BenchStoreOptions { scale: Some(1.0), trace: Some(1.0), ..options(StorePreset::Table4) })
                .unwrap();
        let sizes: Vec<u64> = plan.groups.iter().map(|group| group.seed_gb).collect();
        assert_eq!((sizes.as_slice(), plan.threads, plan.requests), (&[4, 9, 18][..], 1, 4_800_000));
        let has = |group: usize, name: &str| plan.groups[group].lanes.iter().any(|lane| lane.name == name);
        if ContenderFileSystem::Xfs.missing().is_none() && ContenderFileSystem::Ext4.missing().is_none() {
            assert!(has(0, "ext4-dirsync.50") && !has(1, "ext4-dirsync.50") && has(2, "xfs.128"));
        }
        let plan = StorePlan::new(options(StorePreset::Table5)).unwrap();
        assert_eq!(plan.threads, 4);
        assert!(
            plan.groups
                .iter()
                .all(|group| group.lanes.iter().all(|lane| !matches!(lane.kind, ContenderKind::Foyer { .. })))
        );
        assert!(plan.groups.iter().all(|group| group.lanes[0].disks == 2));
    }

    /// A quick run has one seed.
    #[test]
    fn full_run_has_five_seeds() {
        assert_eq!(StorePlan::new(options(StorePreset::Table5)).unwrap().seeds, [1, 2, 3, 4, 5]);
        assert_eq!(
            StorePlan::new(BenchStoreOptions { seed: 7, seeds: Some(2), ..options(StorePreset::Table4) })
                .unwrap()
                .seeds,
            [7, 8]
        );
        assert_eq!(
            StorePlan::new(BenchStoreOptions { quick: true, ..options(StorePreset::Table4) }).unwrap().seeds,
            [1]
        );
        assert!(StorePlan::new(BenchStoreOptions { seeds: Some(0), ..options(StorePreset::Table4) }).is_err());
    }

    /// The pieces are the whole workload; at least ten pairs are required unless the run is quick.
    #[test]
    fn pieces_cover_workload() {
        let plan = StorePlan::new(options(StorePreset::Table4)).unwrap();
        assert!(plan.pairs >= 10);
        let sum: u64 = (0..plan.pairs).map(|index| plan.piece(index).1).sum();
        assert_eq!(sum, plan.requests);
        let few = BenchStoreOptions { pairs: Some(9), ..options(StorePreset::Table4) };
        assert_eq!(StorePlan::new(few.clone()).unwrap_err().kind, ExperimentErrorKind::Usage);
        assert_eq!(StorePlan::new(BenchStoreOptions { quick: true, ..few }).unwrap().groups.len(), 1);
    }

    /// Each ablation runs next to the full store only.
    #[test]
    fn ablations_change_one_setting() {
        for (preset, disks) in [(StorePreset::Table4, 1), (StorePreset::Table5, 2)] {
            let plan = StorePlan::new(BenchStoreOptions { ablations: true, ..options(preset) }).unwrap();
            let [group] = plan.groups.as_slice() else { panic!("{:?}", plan.groups) };
            assert_eq!(group.lanes.len(), 2 + NectarySettings::ablations().len());
            for lane in &group.lanes[2..] {
                assert_eq!(lane.disks, disks);
                let ContenderKind::Nectary { settings, .. } = &lane.kind else { panic!("{lane:?}") };
                assert_ne!(*settings, NectarySettings::default(), "{}", lane.name);
            }
        }
    }

    /// A bare disk has a group for each number of embedded objects, and runs in real time.
    #[test]
    fn bare_disk_groups_by_embedding() {
        let bare = BenchStoreOptions {
            folder: Some("/tmp".into()),
            foyer: Some("/bin/true".into()),
            ..options(StorePreset::Bare)
        };
        let plan = StorePlan::new(bare.clone()).unwrap();
        let labels: Vec<&str> = plan.groups.iter().map(|group| group.label.as_str()).collect();
        assert_eq!(labels, ["embedded-1", "embedded-3", "embedded-5", "embedded-10"]);
        assert_eq!((plan.disk.time, &plan.disk.model), (DiskTimekeeping::Real { speed: 1.0 }, &None));
        for group in &plan.groups {
            for name in ["nectary-again", "nectary-hints-off", "foyer"] {
                assert!(group.lanes.iter().any(|lane| lane.name == name), "{name}");
            }
        }
        let without = StorePlan::new(BenchStoreOptions { foyer: None, ..bare.clone() }).unwrap();
        assert!(without.skipped.iter().any(|reason| reason.contains("nectary-foyer")), "{:?}", without.skipped);
        assert_eq!(
            StorePlan::new(BenchStoreOptions { quick: true, ..bare.clone() }).unwrap().groups[0].label,
            "embedded-5"
        );
        assert!(StorePlan::new(BenchStoreOptions { embedded: vec![4], ..bare.clone() }).is_err());
        assert!(StorePlan::new(BenchStoreOptions { folder: None, ..bare.clone() }).is_err());
        assert!(StorePlan::new(BenchStoreOptions { speed: Some(2.0), ..bare }).is_err());
    }

    #[test]
    fn store_plan_refuses_bad_numbers() {
        for scale in [0.0, -1.0, 1.5, 0.01, f64::NAN] {
            let wrong = BenchStoreOptions { scale: Some(scale), ..options(StorePreset::Table4) };
            assert_eq!(StorePlan::new(wrong).unwrap_err().kind, ExperimentErrorKind::Usage, "{scale}");
        }
        for wrong in [0.0, 1.1, f64::NAN] {
            assert!(StorePlan::new(BenchStoreOptions { trace: Some(wrong), ..options(StorePreset::Table4) }).is_err());
            assert!(
                StorePlan::new(BenchStoreOptions { speed: Some(wrong / 2.0), ..options(StorePreset::Table5) }).is_err()
            );
        }
        assert!(StorePlan::new(BenchStoreOptions { sizes: vec![5], ..options(StorePreset::Table4) }).is_err());
        assert!(StorePlan::new(BenchStoreOptions { queue_depth: 0, ..options(StorePreset::Table4) }).is_err());
        let unknown =
            StorePlan::new(BenchStoreOptions { only: vec!["zfs".to_owned()], ..options(StorePreset::Table4) })
                .unwrap_err();
        assert!(unknown.message.contains("\"zfs\"") && unknown.message.contains("xfs.50"), "{unknown}");
    }
}
