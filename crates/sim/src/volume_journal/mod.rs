//! The journal of the volume: crash states of seeded workloads, and servers that contend for leadership.
//!
//! Owns: what is done to a volume, what must be true afterwards, and the counts. Promises: a seed repeats its run, in
//! virtual time on one thread. Leaves to others: which states a crash can leave (`crash`).
//!
//! | file | what is in it |
//! |---|---|
//! | `server` | a small server: a journal with its tables and segments |
//! | `workload`, `check` | what is recorded; what a crash state must have |
//! | `contend` | several servers on one disk, with pauses |
//! | `run` | many of them, with and without planted bugs |

pub mod check;
pub mod contend;
pub mod run;
pub mod server;
pub mod workload;
