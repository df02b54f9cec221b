//! The server's state, and the effect of operations and questions on the records of a volume.
//!
//! Owns: the tables after the last operation, free space, open files. Promises: an operation is done completely or not
//! at all; each one results in one transaction, with its mutations and its reply. Nothing here does I/O or reads a
//! clock.
//! Leaves to others: storing the transactions, and holding answers back until they are stored.
//!
//! | file | what is in it |
//! |---|---|
//! | `image` | the state, sessions, exactly-once |
//! | `records` | the first records, and how records are found |
//! | `change` | one change of the tables, which can be undone |
//! | `names`, `files` | operations on names; on attributes and data |
//! | `effects` | what operations do to single inodes, also on clients |
//! | `access` | access control lists, and how they go along with modes |
//! | `segments` | metadata segments and epochs |
//! | `replies` | stored answers, and how many |
//! | `open` | which files are open, and inodes without a name |
//! | `space` | used and free blocks |
//! | `reserve` | what stays free for metadata |
//! | `ask` | questions |
//! | `touched` | which names and attributes an operation changes |
//! | `offline` | files of a volume that is read without a server |
//! | `check` | what must agree |

mod access;
mod ask;
mod change;
mod check;
pub mod effects;
mod files;
mod image;
#[cfg(test)]
mod inode_tests;
mod names;
mod offline;
mod open;
mod records;
mod replies;
mod reserve;
mod segments;
mod space;
#[cfg(test)]
mod tests;
mod touched;

pub use check::check;
pub use image::{AppendStamp, MetadataImage, QuestionAnswer};
pub use offline::{FileMap, file_map};
pub use records::first;
pub use reserve::{FreeSpace, LOCAL_TARGET_BYTES_MAX, free_space};
pub use segments::SET_ASIDE;
