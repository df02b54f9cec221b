//! Crash states of a shared volume under real clients and a real server: seeded programs on two or three hosts, hosts
//! and servers that are lost, and what must be there after a loss of everything at any moment.
//!
//! Owns: the programs, the promises at each moment as marks of the recording, and the counts. Promises: the clock is
//! virtual and there is one thread, but connections are those of the system and identities are drawn by it. So a seed
//! fixes what programs do and nearly always the order of everything, not the bytes of the disk. Leaves to others:
//! which states a crash can leave (`crash`), tokens under faults of networks and clocks (`volume`).
//!
//! | file | what is in it |
//! |---|---|
//! | `model` | what programs did and saw, event by event: the promises at each moment |
//! | `world` | the disk, the processes and their connections |
//! | `program` | what a program on a host does |
//! | `workload` | programs, and the loss of hosts and servers |
//! | `check` | what a crash state must have |
//! | `run` | many of them, with and without planted bugs |

pub mod check;
mod model;
mod program;
pub mod run;
pub mod workload;
mod world;
