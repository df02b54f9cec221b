//! Crash states of a shared volume with real clients and a real server: seeded programs on two or three hosts, losses
//! of hosts and servers, and the promised contents after the loss of everything at any moment.
//!
//! Owns: the programs, the promises at each moment as marks of the recording, and the counts. Promises: the clock is
//! virtual and there is only one thread, but connections and random identities come from the system. So a seed fixes
//! what programs do, and nearly always the order of all events, but not the bytes on the disk. Leaves to others: which
//! states a crash can leave (`crash`), and tokens under faults of networks and clocks (`volume`).
//!
//! | file | what is in it |
//! |---|---|
//! | `model` | what programs did and saw, event by event: the promises at each moment |
//! | `world` | the disk, the processes and their connections |
//! | `shape` | calls that change a file, and their effect |
//! | `program` | the calls of a program on a host |
//! | `workload` | programs, and the loss of hosts and servers |
//! | `check` | the promised contents of a crash state |
//! | `run` | many workloads, with and without planted bugs |

pub mod check;
mod model;
mod program;
pub mod run;
mod shape;
pub mod workload;
pub(crate) mod world;
