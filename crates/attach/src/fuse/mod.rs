//! One file in FUSE: the kernel asks, a [`BlockDevice`](nectary_block::BlockDevice) answers.
//!
//! Owns: the nature of the file, and the event loop that steps its requests. Leaves to others: the protocol
//! (`nectary-fuse`), and the layers above the file.

mod file;
mod serve;

#[cfg(test)]
mod tests;

pub use serve::{Server, mount, open};
