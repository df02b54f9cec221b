//! `bench files`: the time to create and delete small files, measured as `lat_fs` of HBench-OS and lmbench does.
//!
//! Owns: the options and the plan. A run is in any directory (`folder`), or under the conditions of the paper on the
//! Network RamDisk (`nrd`): a client with 64 MB, donors with 128 MB in separate network namespaces, links of 10 Mb/s,
//! of 155 Mb/s and of unlimited rate. Network RAM disks are compared with a local disk and a model of a disk of the
//! paper's time. These conditions were fixed before the first run (`docs/decisions/0047-files.md`). A run on a shared
//! volume (`shared`) counts creates, stats and unlinks a second.
//!
//! | file | what is in it |
//! |---|---|
//! | `loops`, `together`, `prefixed` | the loops themselves; the loops of several threads; files that stay |
//! | `worker` | the process that runs the loops |
//! | `network`, `contender` | namespaces and links; contenders, their set-up and removal |
//! | `folder`, `nrd` | a run on a directory, and one under the paper's conditions |
//! | `samples`, `results`, `text`, `plot` | times with their medians and ratios; figures; tables; pictures |
//! | `shared` | a run on a shared volume on two hosts, beside peers |

mod contender;
mod folder;
mod loops;
pub(crate) mod network;
mod nrd;
mod plot;
mod prefixed;
mod results;
mod samples;
pub mod shared;
mod text;
mod together;
mod worker;

use std::path::PathBuf;

use crate::contender::ContenderFileSystem;
use crate::{Error, ExperimentErrorKind};

use contender::AGAIN;
pub use contender::{BlockLocation, CONTENDERS, DiskContender};
pub use folder::{FolderOptions, run as run_folder};
pub use loops::{DeletionOrder, FileLoops, LoopTimes};
pub use network::LinkRate;
pub use nrd::run as run_nrd;
pub use plot::pictures as nrd_pictures;
pub use worker::serve;

/// The size of the paper's files, in bytes.
pub const FILE_BYTES: u32 = 2048;
/// The paper's numbers of files.
const FILES: [u32; 5] = [1024, 2048, 4096, 8192, 16_384];
/// With this number of files, the other orders of deletion are measured too.
const ORDERS_FILES: u32 = 4096;
/// The number of files on a file system that writes everything at once.
const SYNCHRONOUS_FILES: u32 = 256;
/// The number of rounds; each gives one pair.
const ROUNDS: usize = 5;
/// The numbers of files, of synchronous files, and of rounds in a quick run.
const FILES_QUICK: [u32; 1] = [1024];
const SYNCHRONOUS_FILES_QUICK: u32 = 16;
const ROUNDS_QUICK: usize = 2;
/// The links: as fast as the machine, and the paper's ATM and Ethernet in Mb/s.
const LINKS: [LinkRate; 3] = [LinkRate::Unshaped, LinkRate::Shaped(155), LinkRate::Shaped(10)];
/// The largest number of files.
const FILES_MAX: u32 = 1_000_000;

/// The experiments, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 5] = [
    ("bench files --folder DIR", "creating and deleting small files in any directory, as lat_fs", "1 minute"),
    (
        "bench files --seed nrd --quick",
        "a look: 1,024 files on a network RAM disk and on disks, no verdicts",
        "3 minutes",
    ),
    (
        "bench files --seed nrd",
        "1,024 to 16,384 files on network RAM disks over three kinds of links, beside disks of then and today",
        "2 hours",
    ),
    (
        "bench files --seed ncar --quick",
        "a look: creates, stats and unlinks a second on a shared volume and on XFS",
        "1 minute",
    ),
    (
        "bench files --seed ncar",
        "the same with 4,096 files, by 1 and 4 threads, on both hosts of a shared volume, beside JuiceFS and XFS",
        "10 minutes",
    ),
];

/// The settings of a run under the paper's conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchFilesOptions {
    /// A quick run: only 1,024 files (16 if the file system writes everything at once), two rounds, no verdicts.
    pub quick: bool,
    /// Only contenders whose name contains one of these; all if the list is empty.
    pub only: Vec<String>,
    /// The rates of the links to use, in Mb/s (0 for unlimited); all links if the list is empty.
    pub links: Vec<u32>,
    /// The number of rounds.
    pub rounds: Option<usize>,
    /// The file system.
    pub system: ContenderFileSystem,
    /// The directory of the local disk's file.
    pub folder: PathBuf,
    /// The seed of the random order of deletion.
    pub seed: u64,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct FilesPlan {
    /// The options.
    pub options: BenchFilesOptions,
    /// The contenders, in the order of the list.
    pub contenders: Vec<DiskContender>,
    /// The contenders that cannot run, with the reason.
    pub not_run: Vec<String>,
    /// The links.
    pub links: Vec<LinkRate>,
    /// The number of rounds.
    pub rounds: usize,
    /// The number of files and the order of deletion of each loop on a file system with delayed writes.
    pub loops: Vec<(u32, DeletionOrder)>,
    /// The number of files that are created and deleted on a synchronously mounted file system.
    pub synchronous_files: u32,
}

impl FilesPlan {
    /// Makes the plan of a run; call it inside a runtime.
    ///
    /// *Errors*: [`ExperimentErrorKind::ResourceUsage`] for numbers out of bounds and unknown names; [`ExperimentErrorKind::Missing`] if a program
    /// or the file system is not installed.
    pub fn new(options: BenchFilesOptions) -> Result<FilesPlan, Error> {
        let usage = |message: String| Error::new(ExperimentErrorKind::Usage, message);
        let rounds = options.rounds.unwrap_or(if options.quick { ROUNDS_QUICK } else { ROUNDS });
        if !(1..=100).contains(&rounds) {
            return Err(usage(format!("{rounds} rounds: 1 at least, and 100 at most")));
        }
        if let Some(rate) = options.links.iter().find(|&&rate| rate > 100_000) {
            return Err(usage(format!("a link of {rate} Mb/s: 100000 at most, 0 for the unshaped one")));
        }
        if !matches!(options.system, ContenderFileSystem::Ext4 | ContenderFileSystem::Xfs) {
            return Err(usage(format!("{}: ext4 and xfs are there", options.system.name())));
        }
        if let Some(missing) = options.system.missing() {
            return Err(Error::new(ExperimentErrorKind::Missing, missing));
        }
        let is_named = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(&**part));
        if let Some(part) = options.only.iter().find(|part| !CONTENDERS.iter().any(|one| one.name.contains(&***part))) {
            let known: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
            return Err(usage(format!("no contender has \"{part}\" in its name; there are {}", known.join(", "))));
        }
        let (mut contenders, mut not_run) = (Vec::new(), Vec::new());
        for contender in CONTENDERS.into_iter().filter(|contender| is_named(contender.name)) {
            match contender.missing() {
                None => contenders.push(contender),
                Some(why) => not_run.push(format!("{}: NOT RUN: {why}", contender.name)),
            }
        }
        if contenders.is_empty() {
            return Err(Error::new(ExperimentErrorKind::Missing, not_run.join("; ")));
        }
        let links = match options.links.as_slice() {
            [] => LINKS.to_vec(),
            rates => {
                rates.iter().map(|&rate| if rate == 0 { LinkRate::Unshaped } else { LinkRate::Shaped(rate) }).collect()
            }
        };
        let files: &[u32] = if options.quick { &FILES_QUICK } else { &FILES };
        let mut loops: Vec<(u32, DeletionOrder)> = files.iter().map(|&files| (files, DeletionOrder::Random)).collect();
        if !options.quick {
            loops.extend([(ORDERS_FILES, DeletionOrder::Forward), (ORDERS_FILES, DeletionOrder::Reverse)]);
        }
        let synchronous_files = if options.quick { SYNCHRONOUS_FILES_QUICK } else { SYNCHRONOUS_FILES };
        Ok(FilesPlan { options, contenders, not_run, links, rounds, loops, synchronous_files })
    }

    /// Whether a contender runs over a link. A quick run measures the noise only on the unshaped link, if it has one.
    fn has(&self, contender: &DiskContender, link: Option<LinkRate>) -> bool {
        let is_shaped = link.is_some_and(|link| link != LinkRate::Unshaped);
        !(self.options.quick && is_shaped && contender.name == AGAIN && self.links.contains(&LinkRate::Unshaped))
    }

    /// The largest number of files, which the main figure uses.
    pub fn files_max(&self) -> u32 {
        self.loops.iter().map(|one| one.0).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> BenchFilesOptions {
        BenchFilesOptions {
            quick: false,
            only: Vec::new(),
            links: Vec::new(),
            rounds: None,
            system: ContenderFileSystem::Ext4,
            folder: PathBuf::from("."),
            seed: 1,
        }
    }

    /// A plan has exactly what the options name.
    #[tokio::test]
    async fn files_plan_refuses_unknown_names() {
        let plan = FilesPlan::new(options()).unwrap();
        assert_eq!((plan.rounds, plan.links.len(), plan.files_max()), (ROUNDS, 3, 16_384));
        assert_eq!(plan.contenders.len() + plan.not_run.len(), CONTENDERS.len());
        assert!(plan.not_run.iter().all(|line| line.contains("NOT RUN: ")), "{:?}", plan.not_run);
        let only = FilesPlan::new(BenchFilesOptions { only: vec!["hdd".to_owned()], links: vec![0, 10], ..options() })
            .unwrap();
        assert_eq!(
            (only.contenders.len(), only.links.as_slice()),
            (1, &[LinkRate::Unshaped, LinkRate::Shaped(10)][..])
        );
        let wrong = FilesPlan::new(BenchFilesOptions { only: vec!["tape".to_owned()], ..options() }).unwrap_err();
        assert!(wrong.kind == ExperimentErrorKind::Usage && wrong.message.contains("none-2"), "{wrong}");
        assert!(FilesPlan::new(BenchFilesOptions { rounds: Some(0), ..options() }).is_err());
        assert!(FilesPlan::new(BenchFilesOptions { links: vec![200_000], ..options() }).is_err());
        assert!(FilesPlan::new(BenchFilesOptions { system: ContenderFileSystem::Btrfs, ..options() }).is_err());
        let quick = FilesPlan::new(BenchFilesOptions { quick: true, ..options() }).unwrap();
        assert!(quick.rounds == ROUNDS_QUICK && quick.files_max() == 1024);
    }
}
