//! Fuzz targets for each on-disk structure and for each decoder of input from outside. The crate is for tests only.
//!
//! Owns: the [`registry`](targets::TARGETS) of targets, their committed inputs (`corpus/`), the mutator, the guard
//! around a run, and the soak. Promises: a run can be reproduced from its seed or its input; a finding is a panic in
//! any thread, a broken property, more memory than the target's bound, or too much time. Leaves to others: the
//! decoders.
//!
//! | file | what is in it |
//! |---|---|
//! | `targets` | the registry; the decoders and the checked properties, one file per crate |
//! | `units`, `pieces` | corrected checksums in mutated images; an image as a few pieces |
//! | `mutate` | the seeded mutator |
//! | `corpus` | committed inputs: read, written, chosen |
//! | `guard`, `memory` | one run: panics, memory, time |
//! | `coverage` | the code that a run reached, in the soak's build |
//! | `campaign` | many runs: the short ones of the tests, the long ones of the soak, the planted bugs |
//! | `arguments` | the options of `fuzz soak` |

pub mod arguments;
pub mod campaign;
pub mod corpus;
pub mod coverage;
pub mod guard;
pub mod memory;
pub mod mutate;
pub mod pieces;
pub mod targets;
pub mod units;

pub use targets::{FuzzTarget, TARGETS};
