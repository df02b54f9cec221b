//! Calls for users of a running cache: change it, pin blocks, inspect it, and compare it with other caches.
//!
//! | file | contents |
//! |---|---|
//! | `caches` | the caches that SPECs have opened |
//! | `change` | changes of memory, mode and policy |
//! | `pins` | pinned blocks, and dropping blocks |
//! | `look` | the parts of a file that are in memory |
//! | `history`, `advise` | the last references, and the misses that other sizes and policies would have had |

pub mod advise;
pub mod caches;
mod change;
pub mod history;
pub mod look;
pub mod pins;
