//! The experiments: is it faster, for what I do, on this machine, and why.
//!
//! Owns: workloads, contenders, the disks and memory groups that they are given, alternating runs, and reports.
//! Promises: every byte that is read back is compared, and a run with a wrong one is void; each contender has the same
//! disk, the same memory and the same requests; nothing is left of a run, however it ends. Leaves to others: the store,
//! the devices, and the command line (`crates/cli`).
//!
//! | module | what is in it |
//! |---|---|
//! | `workload` | requests by stated laws, and the bytes of an object |
//! | `contender` | the one small trait, and its implementations |
//! | `disk`, `group`, `guardian` | modelled disks in the kernel, memory groups, and the end of both |
//! | `worker` | the process of one contender: its storage, its clock, its requests |
//! | `statistics` | medians of paired ratios, intervals |
//! | `store` | the experiment `bench store`: presets, rounds, tables |
//! | `dear` | the experiment `bench cache --seed dear`: programs on the live cache |
//! | `io` | the experiment `bench io`: request sizes on files and devices, and the figures of the NCAR report |
//! | `files` | the experiment `bench files`: small files created and deleted |
//! | `ram` | the experiment `bench ram`: a donor beside other NBD servers of memory |
//! | `process` | processes of a run, in groups and networks |
//! | `limits` | the experiment `bench limits`: the store beside fio |

pub mod contender;
pub mod dear;
pub mod disk;
mod error;
pub mod files;
pub mod group;
pub mod guardian;
pub mod io;
pub mod limits;
pub mod machine;
pub mod process;
pub mod ram;
pub mod random;
pub mod statistics;
pub mod store;
mod sys;
pub mod worker;
pub mod workload;

pub use error::{Error, ErrorKind};
