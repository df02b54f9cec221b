//! The server processes of a run, and what they store on the disk.
//!
//! Owns: nothing itself; one file for each part.
//!
//! | file | what is in it |
//! |---|---|
//! | `process` | a process: started, stopped, hung, killed |
//! | `leader`, `journal` | leadership by lease sectors; the journal of the sealed epochs |
//! | `server`, `locking` | the metadata server, and its file locks |
//! | `append`, `image` | appends in flight; the metadata |
//! | `gate` | messages leave only under the leader's lease |

pub mod append;
pub mod gate;
pub mod image;
pub mod journal;
pub mod leader;
pub mod locking;
pub mod process;
pub mod server;
