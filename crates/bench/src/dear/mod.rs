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
//! | `replay` | the recorded references: sensitivity, the limit, the time of a policy |
//! | `cost`, `through_fuse` | the cost of a hit and of detection in the library, and of a hit through FUSE |
//! | `run`, `results` | the order of a run, and its results |
//! | `report`, `text`, `plot` | figures, tables, pictures |

mod cost;
mod execute;
mod image;
mod inputs;
mod mounted;
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

use crate::{Error, ErrorKind};

pub use cost::Cost;
pub use mounted::serve;
pub use programs::{MIXES, PROGRAMS, Program};
pub use run::run;
pub use through_fuse::ThroughFuse;

/// The number of blocks that a policy may hold: the paper's 6 MB.
pub const BLOCKS: u64 = 768;
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
        "seven real programs on the live cache under eight policies, alone and together",
        "45 minutes",
    ),
];

/// The options of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// A quick run: three policies, one execution, no mixes, no verdicts.
    pub quick: bool,
    /// The names of the programs and mixes that run; all run if the list is empty.
    pub only: Vec<String>,
    /// The number of executions of each program under each policy.
    pub executions: Option<usize>,
    /// The speed-up of the disk while a mix runs, as a multiple of the real disk's speed; `None` for the default, 20.
    pub speed: Option<f64>,
}

/// A cache with which programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// Its name.
    pub name: &'static str,
    /// The cache's policy; `None` for the kernel's page cache.
    pub policy: Option<&'static str>,
    /// Whether a program with all its processes is one stream; otherwise each pair of a process and a file is one.
    pub by_session: bool,
}

/// The lane with which all others are compared.
const BASE: &str = "lru";
/// The base lane, run a second time: differences smaller than the one between these two lanes are noise.
const AGAIN: &str = "lru-again";
/// The kernel's page cache.
const PAGES: &str = "page cache";

const LANES: [Lane; 10] = [
    Lane { name: BASE, policy: Some("lru"), by_session: false },
    Lane { name: AGAIN, policy: Some("lru"), by_session: false },
    Lane { name: "lfu", policy: Some("lfu"), by_session: false },
    Lane { name: "mru", policy: Some("mru"), by_session: false },
    Lane { name: "dear", policy: Some("dear"), by_session: true },
    Lane { name: "dear-files", policy: Some("dear"), by_session: false },
    Lane { name: "adaptive", policy: Some("adaptive"), by_session: false },
    Lane { name: "lirs", policy: Some("lirs"), by_session: false },
    Lane { name: "s3fifo", policy: Some("s3fifo"), by_session: false },
    Lane { name: PAGES, policy: None, by_session: false },
];
const LANES_QUICK: [&str; 4] = [BASE, AGAIN, "dear", "adaptive"];

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The options.
    pub options: Options,
    /// The number of executions of each program and mix.
    pub executions: usize,
    /// The speed-up of the disk while a mix runs, as a multiple of the real disk's speed.
    pub speed: f64,
    /// The lanes, the base first.
    pub lanes: Vec<Lane>,
    /// The single programs, then the mixes; each is a list of programs.
    pub workloads: Vec<Vec<&'static Program>>,
    /// The programs and mixes that cannot run, with the reason.
    pub not_run: Vec<String>,
    /// Whether all programs and all mixes run often enough for a verdict.
    pub is_judged: bool,
}

impl Plan {
    /// Makes the plan of a run.
    ///
    /// *Errors*: [`ErrorKind::Usage`] for numbers out of bounds and unknown names; [`ErrorKind::Missing`] if no program
    /// is installed.
    pub fn new(options: Options) -> Result<Plan, Error> {
        let usage = |message: String| Error::new(ErrorKind::Usage, message);
        let executions = options.executions.unwrap_or(if options.quick { 1 } else { EXECUTIONS });
        if !(1..=100).contains(&executions) {
            return Err(usage(format!("{executions} executions: 1 at least, and 100 at most")));
        }
        let speed = options.speed.unwrap_or(SPEED);
        if !(1.0..=SPEED_MAX).contains(&speed) {
            return Err(usage(format!("a speed is at least 1 and at most {SPEED_MAX}")));
        }
        let alone = PROGRAMS.iter().map(|program| vec![program]);
        let mixes = MIXES.iter().map(|names| names.iter().filter_map(|name| Program::named(name)).collect::<Vec<_>>());
        let all: Vec<Vec<&'static Program>> = alone.chain(mixes).collect();
        if let Some(name) = options.only.iter().find(|name| !all.iter().any(|one| name_of(one) == **name)) {
            let known: Vec<String> = all.iter().map(|one| name_of(one)).collect();
            return Err(usage(format!("there is no program \"{name}\"; there are {}", known.join(", "))));
        }
        let is_named = |one: &[&Program]| match options.only.is_empty() {
            true => !options.quick || one.len() == 1,
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
            return Err(Error::new(ErrorKind::Missing, not_run.join("; ")));
        }
        let is_quick = |lane: &Lane| !options.quick || LANES_QUICK.contains(&lane.name);
        let lanes = LANES.into_iter().filter(is_quick).collect();
        let is_judged = workloads.len() == all.len() && executions >= EXECUTIONS;
        Ok(Plan { options, executions, speed, lanes, workloads, not_run, is_judged })
    }
}

/// The name of a program or a mix.
pub fn name_of(programs: &[&Program]) -> String {
    programs.iter().map(|program| program.name).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod plan_tests {
    use super::*;

    #[test]
    fn plans_have_what_was_named_and_refuse_what_there_is_not() {
        let options = Options { quick: false, only: vec!["sort".to_owned()], executions: None, speed: None };
        let plan = Plan::new(options.clone()).unwrap();
        assert_eq!((plan.workloads.len(), plan.executions, plan.is_judged), (1, 3, false));
        assert_eq!((plan.lanes.len(), plan.lanes[0].name), (10, BASE));
        let wrong = Options { only: vec!["emacs".to_owned()], ..options.clone() };
        let error = Plan::new(wrong).unwrap_err();
        assert!(error.kind == ErrorKind::Usage && error.message.contains("cscope+sort"), "{error}");
        assert!(Plan::new(Options { speed: Some(0.5), ..options.clone() }).is_err());
        assert!(Plan::new(Options { executions: Some(0), ..options.clone() }).is_err());
        let quick = Plan::new(Options { quick: true, ..options }).unwrap();
        assert!(!quick.is_judged && quick.lanes.len() == 4 && quick.executions == 1);
    }
}
