//! Attaches a device of any SPEC as a block device of the kernel: a FUSE file with a loop device on it. Also mounts a
//! directory through a cache (`tree`), and a shared volume (`volume`).
//!
//! Owns: the hidden mount, the event loop that serves its requests, the loop device, and the cleanup after a crash.
//! Promises: when a flush is answered, the device has flushed the data; no request is answered from a cache in this
//! crate; no request waits for memory that only this device could free. Leaves to others: file systems, the device
//! itself, the command line.
//!
//! The layers: `/dev/loopN` → loop device, direct I/O → one FUSE file in a mount without a mount point → this process →
//! [`BlockDevice`](nectary_block::BlockDevice). The FUSE file makes the device of the SPEC a file in the kernel; the
//! loop device makes that file a disk, with a queue, flushes and discards.

mod attachment;
mod counters;
mod error;
mod fuse;
mod long_calls;
mod loop_device;
mod mount_list;
mod process;
mod stale;
mod tree;
mod volume;

pub use attachment::{AttachOptions, Attachment};
pub use counters::{AttachmentCounters, AttachmentFigures};
pub use error::Error;
pub use long_calls::{LongWaits, WAIT_SHOWN, WaitReason, WaitingCall};
pub use loop_device::{LoopDevice, holders, is_loop_path};
pub use mount_list::OtherNamespace;
pub use process::{leave_terminal, redirect_output};
pub use stale::release_stale;
pub use tree::{HeldFile, MountedTree, PathError, StreamName, TreeFigures, TreeOptions, is_tree, unmount_tree};
pub use volume::{
    AttachedVolume, VolumeFigures, VolumeMountOptions, VolumeOptions, WaitingWork, is_volume, remount_volume,
    unmount_volume,
};
