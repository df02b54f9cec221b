//! What users do with a cache that runs: change it, hold and look at what it has, and ask what another would have done.
//!
//! | file | what is in it |
//! |---|---|
//! | `caches` | the caches that SPECs have opened |
//! | `change` | memory, mode and policy |
//! | `pins` | what is held, and what is dropped |
//! | `look` | what memory holds of a file |
//! | `history`, `advise` | the last references, and what other sizes and policies would have done with them |

pub mod advise;
pub mod caches;
mod change;
pub mod history;
pub mod look;
pub mod pins;
