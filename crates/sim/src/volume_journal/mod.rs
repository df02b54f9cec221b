//! The journal of the volume: crash states of seeded workloads, and servers that contend for leadership.
//!
//! Owns: the operations on a volume, the checks afterwards, and the counts. Promises: a seed repeats its run, in
//! virtual time on one thread. Leaves to others: the states that a crash can leave (`crash`).
//!
//! | file | contents |
//! |---|---|
//! | `server` | a small server: a journal with its tables and segments |
//! | `workload`, `check` | the recorded operations; the checks of a crash state |
//! | `contend` | several servers on one disk, with pauses |
//! | `run` | many workloads and contentions, with and without planted bugs |

pub mod check;
pub mod contend;
pub mod run;
pub mod server;
pub mod workload;
