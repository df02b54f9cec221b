//! One file in FUSE: the kernel asks, a [`BlockDevice`](nectary_block::BlockDevice) answers.
//!
//! Owns: the protocol, the mount and the loop of requests. Leaves to others: what stands on the file.

mod mount;
mod protocol;
mod serve;

#[cfg(test)]
mod tests;

pub use mount::{Mount, open_channel};
pub use serve::Server;
