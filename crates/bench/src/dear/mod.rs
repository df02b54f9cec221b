//! `bench cache --seed dear`: real programs on the live cache, under each policy, on a modelled disk of 1999, as in the
//! paper on DEAR.
//!
//! Owns: the options and the lanes. How a run works: the inputs of all programs are made once and put into the image of
//! a file system. Each execution gets a copy of the image on a modelled disk, mounts it, and starts a new process with
//! a cache in front of the mount. Single programs run on a virtual clock, mixes in real time. Everything that was fixed
//! before the first run is in `docs/decisions/0040-dear-programs.md`.
//!
//! | file | what is in it |
//! |---|---|
//! | `programs`, `inputs` | the programs and their inputs |
//! | `image`, `execute`, `mounted` | the file system, one execution, and the process with the cache |
//! | `page_memory` | the memory of the kernel's page cache |
//! | `replay` | the recorded references: sensitivity, the limit, the time of a policy |
//! | `cost`, `through_fuse` | the cost of a hit and of detection in the library, and of a hit through FUSE |
//! | `run`, `results` | the order of a run, and its results |
//! | `report`, `text`, `parts`, `plot` | figures, tables, what the time consists of, pictures |

mod cost;
mod execute;
mod image;
mod inputs;
mod mounted;
mod page_memory;
mod parts;
mod plot;
mod programs;
mod replay;
mod report;
mod results;
mod run;
#[cfg(test)]
mod tests;
mod text;
mod through_fuse;

use crate::{Error, ExperimentErrorKind};

pub use cost::CacheCosts;
pub use mounted::serve;
pub use plot::pictures;
pub use programs::{DearProgram, LARGE_PROGRAMS, MIXES, PROGRAMS};
pub use run::run;
pub use through_fuse::ThroughFuse;

/// The number of blocks that a policy may hold: the paper's 6 MB.
pub const BLOCKS: u64 = 768;
/// The number of blocks of a cache of today: 512 MiB.
pub const LARGE_BLOCKS: u64 = 65_536;
/// The size of a block. *Units*: bytes.
const BLOCK_BYTES: u64 = 8192;
/// The range of sizes of caches. *Units*: blocks.
const BLOCKS_RANGE: (u64, u64) = (512, 1 << 18);
/// The default number of executions of each program under each policy; the paper uses the same number.
const EXECUTIONS: usize = 3;
/// The default speed-up of the disk while a mix runs, as a multiple of the real disk's speed. Mixes run in real time.
const SPEED: f64 = 20.0;
/// The largest speed-up of a disk. The operations of a faster disk would take less time than the layers above it.
const SPEED_MAX: f64 = 100.0;

/// The experiments, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 2] = [
    ("bench cache --seed dear --quick", "a look: each program once under LRU, dear and adaptive", "2 minutes"),
    (
        "bench cache --seed dear",
        "nine real programs on the live cache under eight policies, alone and together, at two sizes",
        "40 minutes",
    ),
];

/// The options of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BenchCacheOptions {
    /// A quick run: three policies, one execution, the paper's size only, no mixes, no verdicts.
    pub quick: bool,
    /// The names of the programs and mixes that run; all run if the list is empty.
    pub only: Vec<String>,
    /// The sizes of the cache; [`BLOCKS`] and [`LARGE_BLOCKS`] if the list is empty. *Units*: blocks.
    pub blocks: Vec<u64>,
    /// The number of executions of each program under each policy.
    pub executions: Option<usize>,
    /// The speed-up of the disk while a mix runs, as a multiple of the real disk's speed; `None` for the default, 20.
    pub speed: Option<f64>,
    /// What is wrong with the conditions of the run, which goes on anyway; the report has each of these sentences.
    pub excused: Vec<String>,
}

/// A cache with which programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLane {
    /// Its name.
    pub name: &'static str,
    /// The cache's policy; `None` for the kernel's page cache.
    pub policy: Option<&'static str>,
    /// Whether a program with all its processes is one stream; otherwise each pair of a process and a file is one.
    pub by_session: bool,
    /// Whether the kernel reads ahead for its page cache. The caches under policies read nothing ahead.
    pub reads_ahead: bool,
    /// Whether it also runs at sizes above [`BLOCKS`].
    pub is_at_large_sizes: bool,
}

impl CacheLane {
    const fn of(name: &'static str, policy: &'static str, is_at_large_sizes: bool) -> CacheLane {
        CacheLane { name, policy: Some(policy), by_session: false, reads_ahead: true, is_at_large_sizes }
    }

    const fn pages(name: &'static str, reads_ahead: bool) -> CacheLane {
        CacheLane { name, policy: None, by_session: false, reads_ahead, is_at_large_sizes: true }
    }

    /// Whether a replay of the recorded references has the counts of this lane: the record has one stream for each
    /// program, and some policies decide by streams.
    fn is_replayed(&self) -> bool {
        self.by_session || self.policy.is_some_and(|policy| !["dear", "adaptive"].contains(&policy))
    }
}

/// The lane with which all others are compared.
const BASE: &str = "lru";
/// The base lane, run a second time: differences smaller than the one between these two lanes are noise.
const AGAIN: &str = "lru-again";
/// The kernel's page cache without readahead, in as many bytes as the policies' blocks have.
const PAGES: &str = "pages";
/// The same with readahead.
const PAGES_AHEAD: &str = "pages+ra";

const LANES: [CacheLane; 11] = [
    CacheLane::of(BASE, "lru", true),
    CacheLane::of(AGAIN, "lru", true),
    CacheLane::of("lfu", "lfu", false),
    CacheLane::of("mru", "mru", false),
    CacheLane { by_session: true, ..CacheLane::of("dear", "dear", true) },
    CacheLane::of("dear-files", "dear", false),
    CacheLane::of("adaptive", "adaptive", true),
    CacheLane::of("lirs", "lirs", false),
    CacheLane::of("s3fifo", "s3fifo", true),
    CacheLane::pages(PAGES, false),
    CacheLane::pages(PAGES_AHEAD, true),
];
const LANES_QUICK: [&str; 4] = [BASE, AGAIN, "dear", "adaptive"];

/// A whole run.
#[derive(Debug, Clone)]
pub struct DearPlan {
    /// The options.
    pub options: BenchCacheOptions,
    /// The sizes of the cache, in ascending order. *Units*: blocks.
    pub sizes: Vec<u64>,
    /// The number of executions of each program and mix.
    pub executions: usize,
    /// The speed-up of the disk while a mix runs, as a multiple of the real disk's speed.
    pub speed: f64,
    /// The lanes, the base first.
    pub lanes: Vec<CacheLane>,
    /// The single programs, then the mixes; each is a list of programs.
    pub workloads: Vec<Vec<&'static DearProgram>>,
    /// The programs and mixes that cannot run, with the reason.
    pub not_run: Vec<String>,
    /// Whether all programs and all mixes run often enough for a verdict.
    pub is_judged: bool,
}

impl DearPlan {
    /// Makes the plan of a run.
    ///
    /// *Errors*: [`ExperimentErrorKind::ResourceUsage`] for numbers out of bounds and unknown names; [`ExperimentErrorKind::Missing`] if no program
    /// is installed.
    pub fn new(options: BenchCacheOptions) -> Result<DearPlan, Error> {
        let usage = |message: String| Error::new(ExperimentErrorKind::Usage, message);
        let executions = options.executions.unwrap_or(if options.quick { 1 } else { EXECUTIONS });
        if !(1..=100).contains(&executions) {
            return Err(usage(format!("{executions} executions: 1 at least, and 100 at most")));
        }
        let speed = options.speed.unwrap_or(SPEED);
        if !(1.0..=SPEED_MAX).contains(&speed) {
            return Err(usage(format!("a speed is at least 1 and at most {SPEED_MAX}")));
        }
        let sizes = sizes(&options)?;
        let alone = PROGRAMS.iter().map(|program| vec![program]);
        let mixes =
            MIXES.iter().map(|names| names.iter().filter_map(|name| DearProgram::named(name)).collect::<Vec<_>>());
        let large = LARGE_PROGRAMS.iter().map(|program| vec![program]);
        let all: Vec<Vec<&'static DearProgram>> = alone.chain(mixes).chain(large).collect();
        if let Some(name) = options.only.iter().find(|name| !all.iter().any(|one| name_of(one) == **name)) {
            let known: Vec<String> = all.iter().map(|one| name_of(one)).collect();
            return Err(usage(format!("there is no program \"{name}\"; there are {}", known.join(", "))));
        }
        let largest = sizes.last().copied().unwrap_or(BLOCKS);
        let is_large_enough = |one: &[&DearProgram]| one.iter().all(|program| program.blocks <= largest);
        if let Some(one) = all.iter().find(|one| options.only.contains(&name_of(one)) && !is_large_enough(one)) {
            let message = format!("{} is for caches of {LARGE_BLOCKS} blocks; give --blocks", name_of(one));
            return Err(usage(message));
        }
        let is_named = |one: &[&DearProgram]| match options.only.is_empty() {
            true => is_large_enough(one) && (!options.quick || one.len() == 1),
            false => options.only.contains(&name_of(one)),
        };
        let (mut workloads, mut not_run) = (Vec::new(), Vec::new());
        for one in all.iter().filter(|one| is_named(one)) {
            let missing = one.iter().find_map(|program| program.missing().map(|need| (program, need)));
            match missing {
                None => workloads.push(one.clone()),
                Some((program, need)) => not_run.push(format!(
                    "{}: NOT RUN: there is no {need}: apt-get install {} (ci/setup cache installs all)",
                    name_of(one),
                    program.package
                )),
            }
        }
        if workloads.is_empty() {
            return Err(Error::new(ExperimentErrorKind::Missing, not_run.join("; ")));
        }
        let is_quick = |lane: &CacheLane| !options.quick || LANES_QUICK.contains(&lane.name);
        let lanes = LANES.into_iter().filter(is_quick).collect();
        // The verdicts are those of the paper's size.
        let is_at_paper = |one: &&Vec<&DearProgram>| one.iter().all(|program| program.blocks <= BLOCKS);
        let judged = |some: &[Vec<&'static DearProgram>]| some.iter().filter(is_at_paper).count();
        let is_judged = judged(&workloads) == judged(&all) && executions >= EXECUTIONS && sizes.contains(&BLOCKS);
        Ok(DearPlan { options, sizes, executions, speed, lanes, workloads, not_run, is_judged })
    }

    /// The lanes that run at a size.
    pub fn lanes_at(&self, blocks: u64) -> Vec<CacheLane> {
        self.lanes.iter().filter(|lane| blocks <= BLOCKS || lane.is_at_large_sizes).copied().collect()
    }
}

/// The sizes of the cache, in ascending order. *Errors*: [`ExperimentErrorKind::ResourceUsage`].
fn sizes(options: &BenchCacheOptions) -> Result<Vec<u64>, Error> {
    let mut sizes = match (options.blocks.is_empty(), options.quick) {
        (false, _) => options.blocks.clone(),
        (true, true) => vec![BLOCKS],
        (true, false) => vec![BLOCKS, LARGE_BLOCKS],
    };
    sizes.sort_unstable();
    sizes.dedup();
    let (least, most) = BLOCKS_RANGE;
    match sizes.iter().find(|blocks| !(least..=most).contains(*blocks)) {
        Some(blocks) => {
            let message = format!("a cache of {blocks} blocks: {least} at least, and {most} at most");
            Err(Error::new(ExperimentErrorKind::Usage, message))
        }
        None => Ok(sizes),
    }
}

/// The name of a program or a mix.
pub fn name_of(programs: &[&DearProgram]) -> String {
    programs.iter().map(|program| program.name).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod plan_tests {
    use super::*;

    fn sort() -> BenchCacheOptions {
        BenchCacheOptions { only: vec!["sort".to_owned()], ..BenchCacheOptions::default() }
    }

    /// A plan has exactly what the options name.
    #[test]
    fn dear_plan_refuses_unknown_names() {
        let plan = DearPlan::new(sort()).unwrap();
        assert_eq!((plan.workloads.len(), plan.executions, plan.is_judged), (1, 3, false));
        assert_eq!((plan.lanes.len(), plan.lanes[0].name, plan.sizes.len()), (11, BASE, 2));
        let wrong = BenchCacheOptions { only: vec!["emacs".to_owned()], ..sort() };
        let error = DearPlan::new(wrong).unwrap_err();
        assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains("cscope+sort"), "{error}");
        assert!(DearPlan::new(BenchCacheOptions { speed: Some(0.5), ..sort() }).is_err());
        assert!(DearPlan::new(BenchCacheOptions { executions: Some(0), ..sort() }).is_err());
        let quick = DearPlan::new(BenchCacheOptions { quick: true, ..sort() }).unwrap();
        assert!(!quick.is_judged && quick.lanes.len() == 4 && quick.executions == 1 && quick.sizes == [BLOCKS]);
    }

    /// The sizes are bounded, and they decide which lanes and programs run.
    #[test]
    fn dear_plan_bounds_block_counts() {
        for blocks in [511, (1 << 18) + 1] {
            let error = DearPlan::new(BenchCacheOptions { blocks: vec![768, blocks], ..sort() }).unwrap_err();
            assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains("512 at least"), "{error}");
        }
        let plan = DearPlan::new(BenchCacheOptions { blocks: vec![LARGE_BLOCKS, BLOCKS, BLOCKS], ..sort() }).unwrap();
        assert_eq!(plan.sizes, [BLOCKS, LARGE_BLOCKS]);
        let names: Vec<&str> = plan.lanes_at(LARGE_BLOCKS).iter().map(|lane| lane.name).collect();
        assert_eq!(names, ["lru", "lru-again", "dear", "adaptive", "s3fifo", "pages", "pages+ra"]);
        assert_eq!(plan.lanes_at(BLOCKS).len(), 11);
        let scan = BenchCacheOptions { only: vec!["scan".to_owned()], ..BenchCacheOptions::default() };
        assert_eq!(DearPlan::new(scan.clone()).unwrap().workloads.len(), 1);
        let error = DearPlan::new(BenchCacheOptions { blocks: vec![BLOCKS], ..scan }).unwrap_err();
        assert!(error.message.contains("--blocks"), "{error}");
    }
}
