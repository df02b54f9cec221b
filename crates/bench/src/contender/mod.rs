//! The contenders, behind one small trait. A contender is anything that stores objects.
//!
//! Owns: the trait, the kinds of contenders, and their names. A contender gets, puts and deletes whole objects. Only
//! the worker verifies bytes.

mod files;
mod foyer;
mod memory;
mod nectary;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::workload::ProxyRequest;
use crate::{Error, ExperimentErrorKind};

pub use files::{ContenderFileSystem, DIRTY_PERCENT, FilesOptions, SquidContender};
pub use foyer::{FoyerEngine, FoyerSettings, FoyerWrites};
pub use memory::MemoryContender;
pub use nectary::{NectaryContender, NectarySettings};

/// An object that a contender found.
#[derive(Debug, Clone)]
pub struct ObjectHit {
    /// Its bytes, in pieces.
    pub pieces: Vec<Bytes>,
    /// Whether the bytes were in the contender's memory.
    pub in_memory: bool,
}

/// Stores objects in memory and on disk.
///
/// Each call gets the whole request. A contender may use the request's client ([`ProxyRequest::client`]) and its hint, the
/// page of the object ([`ProxyRequest::page_key`]).
pub trait ContenderStorage: Send + Sync {
    /// Finds an object; `None` for a miss.
    fn get(&self, request: &ProxyRequest) -> Result<Option<ObjectHit>, Error>;

    /// Stores an object. `body` is the whole body; the request's hint names the page of the object.
    fn put(&self, request: &ProxyRequest, body: Bytes) -> Result<(), Error>;

    /// Deletes an object.
    fn delete(&self, request: &ProxyRequest) -> Result<(), Error>;

    /// Does the work of daemons that is due on the disk's clock. The worker calls it between requests.
    fn tick(&self, _now: Duration) -> Result<(), Error> {
        Ok(())
    }

    /// Writes the objects that wait in memory to the disk.
    fn settle(&self) -> Result<(), Error>;

    /// Counters for the report.
    fn counters(&self) -> serde_json::Value;
}

/// The description of a contender, which the parent sends to its worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContenderKind {
    /// The Nectary store, on the block device itself.
    Nectary {
        /// Its memory, in bytes.
        memory_bytes: u64,
        /// Its settings.
        settings: NectarySettings,
    },
    /// One file per object on a file system, behind a proxy's own cache: wg-Squid.
    Files {
        /// Which file system.
        system: ContenderFileSystem,
        /// The memory of the proxy's own cache, in bytes.
        proxy_bytes: u64,
        /// The memory that is left to the kernel's buffer cache, in bytes.
        buffer_bytes: u64,
        /// The share of the buffer cache that may be dirty before it is written, in percent.
        dirty_percent: u64,
    },
    /// foyer, a cache in memory and on disk from crates.io. It is in a separate program, so that other programs need
    /// not link it.
    Foyer {
        /// Its memory, in bytes, for its contents and its buffers.
        memory_bytes: u64,
        /// Its settings.
        settings: FoyerSettings,
    },
    /// A table in memory, for tests; it returns a wrong byte for one object.
    Memory {
        /// The object with the wrong bytes.
        wrong: Option<u32>,
    },
}

/// Opens a contender that only another program implements.
pub type Opener = fn(&ContenderKind, &ContenderResources) -> Result<Box<dyn ContenderStorage>, Error>;

/// The devices and directories that a contender uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContenderResources {
    /// Its block devices, one or more.
    pub devices: Vec<PathBuf>,
    /// A separate directory, for mounts.
    pub folder: PathBuf,
    /// The bytes that its objects may occupy on all its devices together.
    pub disk_bytes: u64,
    /// The seconds that pass on the disk's clock per real second: above 1 if the disk runs faster than real time.
    pub speed: f64,
    /// Whether the disk's clock is virtual. Then daemons do not wait for real time: their work is called between
    /// requests.
    pub is_virtual: bool,
}

/// Prepares a contender: makes its file systems or its store, which is not measured. [`PreparedContender::start`] starts the
/// contender.
pub fn prepare(kind: &ContenderKind, place: &ContenderResources) -> Result<PreparedContender, Error> {
    Ok(match kind {
        ContenderKind::Nectary { memory_bytes, settings } => {
            nectary::create(place)?;
            PreparedContender::Nectary { memory_bytes: *memory_bytes, settings: settings.clone(), place: place.clone() }
        }
        &ContenderKind::Files { system, proxy_bytes, buffer_bytes, dirty_percent } => {
            let options = FilesOptions { system, proxy_bytes, buffer_bytes, dirty_percent, place: place.clone() };
            files::prepare(&options)?;
            PreparedContender::Files(options)
        }
        ContenderKind::Foyer { .. } => PreparedContender::Foreign { kind: kind.clone(), place: place.clone() },
        ContenderKind::Memory { wrong } => PreparedContender::Memory(*wrong),
    })
}

/// A contender that is prepared but not started.
pub enum PreparedContender {
    /// A store was made.
    Nectary {
        /// Its memory, in bytes.
        memory_bytes: u64,
        /// Its settings.
        settings: NectarySettings,
        /// Its devices and directories.
        place: ContenderResources,
    },
    /// File systems were made.
    Files(FilesOptions),
    /// A kind that only another program implements; nothing was made.
    Foreign {
        /// Its kind and settings.
        kind: ContenderKind,
        /// Its devices and directories.
        place: ContenderResources,
    },
    /// Nothing was made.
    Memory(Option<u32>),
}

impl PreparedContender {
    /// Starts the contender with cold caches; `opener` opens the kinds that this crate does not implement.
    ///
    /// *Errors*: [`ExperimentErrorKind::Missing`] if the kind needs an `opener` and there is none.
    pub fn start(self, opener: Option<Opener>) -> Result<Box<dyn ContenderStorage>, Error> {
        Ok(match self {
            PreparedContender::Nectary { memory_bytes, settings, place } => {
                Box::new(NectaryContender::open(&place, memory_bytes, &settings)?)
            }
            PreparedContender::Files(options) => Box::new(SquidContender::start(options)?),
            PreparedContender::Foreign { kind, place } => match opener {
                Some(open) => open(&kind, &place)?,
                None => {
                    return Err(Error::new(
                        ExperimentErrorKind::Missing,
                        format!("this program cannot contend with {kind:?}"),
                    ));
                }
            },
            PreparedContender::Memory(wrong) => Box::new(MemoryContender::new(wrong)),
        })
    }
}
