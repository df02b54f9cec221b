//! The encoding of what donors store for a device: `docs/formats/ram.md`.
//!
//! Owns: encoding and bounded decoding, without I/O. Promises: no bytes make a decoder panic, or allocate more than the
//! length of its input. Leaves to others: the meaning of the fields (`group`).

mod bytes;
mod code;
mod damaged;
mod error;
mod log_shape;
pub mod record;
pub mod slots;
pub mod stripes;
pub mod window;
mod zones;

pub use code::RedundancyCode;
pub use damaged::{damaged_bytes, is_damaged};
pub use error::FormatError;
pub use log_shape::{FormerSize, Formers, GROWTHS_MAX, LOG_SHAPE_BYTES, LogShape};
pub use record::{DonorRecord, MemberState, MembershipView, RecordGeometry, RecordStamp, ViewMember};
pub use stripes::StripeSet;
pub use window::{RecordSwap, WINDOW_BYTES, WindowState};
pub use zones::{RowZone, RowZones, ZONES_MAX};
