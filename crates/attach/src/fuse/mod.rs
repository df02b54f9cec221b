//! One file in FUSE: a [`BlockDevice`](nectary_block::BlockDevice) answers the kernel's requests.
//!
//! Owns: the behaviour of the file, and the event loop that handles its requests. Leaves to others: the protocol
//! (`nectary-fuse`), and the layers above the file.

mod file;
mod serve;

#[cfg(test)]
mod tests;

pub use serve::{KernelDeviceServer, mount, open};
