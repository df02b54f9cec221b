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
#[cfg(test)]
mod mounted;
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
    AccessStream, BlockDevice, CLEAR_LATCH, DEVICE_BYTES_MAX, DeviceExtent, DeviceGeometry, IoContext, IoFuture,
    SharedDevice, SurvivalLevel, WriteFlags, read, write,
};
pub use error::{DeviceErrorKind, DeviceOperation, Error};
pub use figures::DeviceCounters;
pub use file::{FileDevice, is_block_device};
pub use filter::Filter;
pub use filter::corrupt::{CorruptFilter, CorruptOptions};
pub use filter::delay::{DelayFilter, DelayOptions};
pub use filter::error::{ErrorFilter, ErrorOptions, FailingOperations};
pub use filter::log::LogFilter;
pub use filter::model::{DiskKind, ModelClock, ModelFilter, ModelOptions, ModelStats};
pub use filter::record::{RECORDING_BYTES_MAX, RecordFilter, RecordedEvent, Recorder, Recording};
pub use filter::stats::{OperationCount, OperationStats, StatsFilter};
pub use filter::throttle::{ThrottleFilter, ThrottleOptions};
pub use memory::MemoryDevice;
pub use registry::{DeviceRegistry, FileEngine, OpenFuture, OpenOptions, SpecArguments, open};
pub use request::{BUFFERS_MAX, DeviceRequest, OPERATION_BYTES_MAX};
pub use size::{exact_size, format_size, parse_duration, parse_share, parse_size};
pub use snapshot::DeviceSnapshot;
pub use spec::{DeviceSpec, SPEC_BYTES_MAX, SPEC_DEPTH_MAX, SpecArgument, SpecError, SpecForm};
pub use stripe::{STRIPE_DEVICES_MAX, STRIPE_UNIT_BYTES, StripeDevice};
