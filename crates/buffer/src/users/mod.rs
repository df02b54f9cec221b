//! What users do with a running cache: change it, pin blocks, inspect it, and compare it with other caches.
//!
//! | file | what is in it |
//! |---|---|
//! | `caches` | the caches that SPECs have opened |
//! | `change` | memory, mode and policy |
//! | `pins` | pinned blocks, and dropping blocks |
//! | `look` | which parts of a file are in memory |
//! | `history`, `advise` | the last references, and the misses that other sizes and policies would have had |

pub mod advise;
pub mod caches;
mod change;
pub mod history;
pub mod look;
pub mod pins;
