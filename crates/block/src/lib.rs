//! Block devices: files and raw disks, memory, filters, and the SPEC that names any stack of them.
//!
//! Owns: the [`BlockDevice`] contract, the basic devices, the filters and the registry of SPEC constructors. Leaves to
//! others: caching (`nectary-cache`), redundancy (`nectary-ram`), formats (`nectary-store`).

mod allocation;
mod buffer;
mod builtin;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod device;
mod error;
mod figures;
mod file;
mod filter;
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod planted;
mod registry;
mod request;
mod size;
mod snapshot;
mod spec;
mod stripe;

pub use allocation::EXTENTS_MAX;
pub use buffer::{BUFFER_ALIGNMENT, Buffer, advise_huge_pages, lock_pages, release_pages};
pub use device::{
    BlockDevice, CLEAR_LATCH, Context, DEVICE_BYTES_MAX, Extent, Geometry, IoFuture, SharedDevice, Stream, Survives,
    WriteFlags, read, write,
};
pub use error::{Error, ErrorKind, Operation};
pub use figures::Figures;
pub use file::{FileDevice, is_block_device};
pub use filter::Filter;
pub use filter::corrupt::{CorruptFilter, CorruptOptions};
pub use filter::delay::{DelayFilter, DelayOptions};
pub use filter::error::{ErrorFilter, ErrorOptions, On};
pub use filter::log::LogFilter;
pub use filter::model::{Clock, Disk, ModelFilter, ModelOptions, ModelStats};
pub use filter::record::{Event, RECORDING_BYTES_MAX, RecordFilter, Recorder, Recording};
pub use filter::stats::{Count, Stats, StatsFilter};
pub use filter::throttle::{ThrottleFilter, ThrottleOptions};
pub use memory::MemoryDevice;
pub use registry::{Arguments, Engine, OpenFuture, OpenOptions, Registry, open};
pub use request::{BUFFERS_MAX, OPERATION_BYTES_MAX, Request};
pub use size::{exact_size, format_size, parse_duration, parse_share, parse_size};
pub use snapshot::Snapshot;
pub use spec::{Argument, Form, SPEC_BYTES_MAX, SPEC_DEPTH_MAX, Spec, SpecError};
pub use stripe::{STRIPE_DEVICES_MAX, STRIPE_UNIT_BYTES, StripeDevice};
