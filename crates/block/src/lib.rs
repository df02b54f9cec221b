//! Block devices: files and raw disks, memory, filters, and the SPEC that names any stack of them.
//!
//! Owns: the [`BlockDevice`] contract, the devices of floor 0, the filters and the registry of SPEC constructors.
//! Leaves to others: caching (`nectary-cache`), redundancy (`nectary-ram`), formats (`nectary-store`).

mod buffer;
mod device;
mod error;

pub use buffer::{BUFFER_ALIGNMENT, Buffer};
pub use device::{
    BlockDevice, Context, Extent, Geometry, IoFuture, SharedDevice, Stream, Survives, WriteFlags, read, write,
};
pub use error::{Error, ErrorKind, Operation};
