//! Objects for web caches on a raw disk or file, with a tier in memory.
//!
//! A [`Store`] keeps objects (metadata and a body) under keys, on one device. The store finds an object in memory or
//! with one read, overwrites the oldest objects with new ones, and survives crashes and power cuts. [`SpanSet`] makes one
//! store of several devices. The doc comments of their methods state the promises; `docs/semantics.md` lists each
//! promise with its test.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use nectary_store::{CreateOptions, FillRole, KeyRef, OpenOptions, Store};
//! let device: nectary_block::SharedDevice = std::sync::Arc::new(nectary_block::MemoryDevice::new(64 << 20));
//! Store::create(device.clone(), &CreateOptions::default()).await?;
//! let store = Store::open(device, OpenOptions::default()).await?;
//!
//! // An object is put whole (here with a tag), or filled by one fetch while other callers already read it.
//! let page = KeyRef::new(b"http://example.com/", b"");
//! store.put_tagged(page, &[b"news"], "metadata".into(), "body".into()).await?;
//! let image = KeyRef::new(b"http://example.com/image", b"");
//! if let FillRole::Leader(mut fill) = store.begin_fill(image, None) {
//!     fill.start(image.variant, "metadata".into(), None);
//!     fill.write("body, ".into()).await?;
//!     fill.write("chunk by chunk".into()).await?;
//!     fill.finish().await?;
//! }
//!
//! // A returned object keeps its bytes in memory, even if the store purges or overwrites it later.
//! let object = store.get(image).await.expect("it was just put");
//! assert_eq!(object.whole().expect("it is short"), "body, chunk by chunk");
//!
//! // BlockingPoint this call returns, the purge is durable: a power cut does not undo it.
//! store.purge_tag(b"news").await?;
//! assert!(store.get(page).await.is_none());
//! store.close().await?;
//! # Ok::<(), nectary_store::Error>(())
//! # }).unwrap();
//! ```
//!
//! | type | what it is for |
//! |---|---|
//! | [`Store`], [`SpanSet`] | a store on one device, and one on several |
//! | [`CreateOptions`], [`OpenOptions`], [`AdmissionOptions`] | creating and opening it, and which objects are written to the disk |
//! | [`KeyRef`], [`ObjectKey`] | the name of an object: its primary part, by which it is purged, and its variant |
//! | [`StoredObject`], [`BodyReader`] | a hit, and reading its body |
//! | [`Fill`], [`FillReader`] | one fetch, and the readers of its object while it runs |
//! | [`Error`], [`StoreErrorKind`] | what can go wrong; each kind has a remedy |
//! | [`StoreStat`], [`Counts`], [`CheckReport`] | the state of the store, and the result of checking all its records |
//!
//! Owns: objects on a device, the index, the memory tier, fills, purges and recovery. Leaves to others: the meaning of
//! an object (its metadata is opaque here), HTTP, and the device (`nectary-block`).
#![forbid(unsafe_code)]

// The modules, from the lowest level up. Each imports only from modules before it; `cargo xtask check` verifies this.

// The errors of a store.
mod error;

// Deliberate defects: tests use them to show that their checks find bugs.
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(feature = "planted")]
pub mod planted;

// Random numbers, for identities and seeds.
mod random;

// The runtime of background work.
mod background;

// The counters, and the sequence numbers of puts.
mod counters;

// The names of objects: keys, tags, and their hashes.
mod names;

// The bytes on disk: frames, the layout of a span, locations.
mod format;

// The device of a span: the ring of segments, and reading it.
mod disk;

// The locations of objects on disk, and the names that the disk may hold.
mod index;

// Objects in memory: entries, and the tier that keeps them.
mod memory;

// Purges: their rules in memory, and their log on disk.
mod purge;

// The placement of related objects: hints, packing order, groups, cluster reads.
mod locality;

// The tables of a span's objects, and reading the records to which the tables point.
mod state;

// The intake of objects to be written: admission, and the queue.
mod intake;

// Rewriting objects: before they would be overwritten, or next to related objects.
mod rewrite;

// Reading: lookup, shared reads, neighbours, bodies.
mod get;

// Storing: commits of puts, fills and purges.
mod put;

// Index checkpoints, hot lists, and warming up from them.
mod checkpoint;

// Opening a span: recovery.
mod recover;

// The writer: packing, appends, segments, and all other background work.
mod write;

// The public interface of a store of one span.
mod api;

// Several devices that serve as one store.
mod spans;

// Functions for fuzz targets; not part of the public interface.
#[doc(hidden)]
pub mod fuzzing;

pub use api::check::CheckReport;
pub use api::options::{CLUSTER_BYTES_MAX, CLUSTER_BYTES_MIN, CreateOptions, MEMORY_BYTES_MIN, OpenOptions};
pub use api::stat::{SpanStat, StoreStat};
pub use api::store::Store;
pub use background::BackgroundRuntime;
pub use counters::{Counts, PutSequence, PutSequences};
pub use error::{Error, StoreErrorKind};
pub use format::METADATA_BYTES_MAX;
pub use format::layout::{SPAN_BYTES_MAX, SPAN_BYTES_MIN, SPANS_MAX};
pub use get::object::{BodyReader, StoredObject};
pub use intake::admission::{
    AdmissionOptions, AdmissionStat, AdmitRule, WRITE_BUDGET_BYTES_A_DAY_MIN, WriteBudget, WriteBudgetStat,
};
pub use locality::clusters::ClusterRead;
pub use names::key::{KeyRef, ObjectKey, PRIMARY_BYTES_MAX, VARIANT_BYTES_MAX};
pub use names::tag::{TAG_BYTES_MAX, TAGS_MAX};
pub use purge::records::PurgeEffect;
pub use put::fill::{Fill, FillHead, FillReader, FillRole};
pub use recover::{IndexLoading, PendingRepair, RecoveryReport};
pub use rewrite::keep::REWRITE_PERCENT_MAX;
pub use rewrite::reinsert::REINSERT_PERCENT_MAX;
pub use spans::{SpanDevice, SpanSet};
