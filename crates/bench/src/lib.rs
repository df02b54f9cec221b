//! Experiments that measure whether Nectary is faster for a workload on this machine, and why.
//!
//! Owns: workloads, contenders, their disks and memory groups, alternating runs, and reports. Promises: every byte that
//! is read back is compared, and a wrong byte makes the run void; all contenders have the same disk, the same memory
//! and the same requests; a run leaves nothing behind, however it ends. Leaves to others: the store, the devices, and
//! the command line (`crates/cli`).
//!
//! | module | what is in it |
//! |---|---|
//! | `workload` | the requests of a proxy, and the bytes of objects |
//! | `contender` | the trait of contenders, and its implementations |
//! | `disk`, `group`, `guardian` | modelled disks in the kernel, memory groups, and the cleanup of both |
//! | `worker` | the process of one contender, which replays requests against its storage |
//! | `report` | what every experiment returns: figures, rows, verdict, text |
//! | `drawing` | pictures: small charts in a grid |
//! | `evaluation` | all experiments in one report; claims of the seeds, figures of the design pages |
//! | `statistics` | medians of paired ratios, intervals |
//! | `store` | the experiment `bench store`: presets, rounds, tables |
//! | `dear` | the experiment `bench cache --seed dear`: programs on the live cache |
//! | `io` | the experiment `bench io`: request sizes on files and devices, and the figures of the NCAR report |
//! | `files` | the experiment `bench files`: small files created and deleted |
//! | `proxy` | the experiment `bench proxy`: proxies over HTTP, with equal memory and disks |
//! | `ram` | the experiment `bench ram`: a donor compared with other NBD servers of memory |
//! | `process` | the processes of a run, in memory groups and network namespaces |
//! | `hosts` | two hosts on this machine that share a disk |
//! | `limits` | the experiment `bench limits`: the store compared with fio |

pub mod contender;
pub mod dear;
pub mod disk;
pub mod drawing;
mod error;
pub mod evaluation;
pub mod files;
pub mod group;
pub mod guardian;
pub mod hosts;
pub mod io;
pub mod limits;
pub mod machine;
pub mod process;
pub mod proxy;
pub mod ram;
pub mod random;
mod report;
pub mod statistics;
pub mod store;
mod sys;
pub mod worker;
pub mod workload;

pub use error::{Error, ExperimentErrorKind};
pub use report::{ExperimentReport, ReportFigure};
