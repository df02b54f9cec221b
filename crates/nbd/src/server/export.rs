//! The exports of a server: devices with names, and their descriptions for clients.
//!
//! Owns: the table of exports, their transmission flags and size constraints, and their counters. An export has one set
//! of range locks for all of its connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nectary_block::{DEVICE_BYTES_MAX, SharedDevice};
use nectary_host::Shutdown;
use serde::Serialize;

use super::ranges::RangeLocks;
use crate::error::{Error, NbdErrorKind};
use crate::limits::{EXPORTS_MAX, PAYLOAD_BYTES_MAX};
use crate::wire::bytes::text;
use crate::wire::flag;
use crate::wire::request;

/// The minimum of the preferred block size that an export announces, in bytes.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// The sector that clients assume if the smallest block of an export is smaller, in bytes.
const SECTOR_BYTES: u32 = 512;

/// A device that clients can use under a name.
pub struct Export {
    name: String,
    description: String,
    device: SharedDevice,
    read_only: bool,
    ended: Shutdown,
    /// The other end of each connection.
    peers: Mutex<Vec<Arc<str>>>,
    pub(super) ranges: RangeLocks,
    pub(super) counters: ExportCounters,
}

impl Export {
    /// Makes an export of a device.
    ///
    /// *Errors*: [`NbdErrorKind::Invalid`] if the name or description is longer than 4096 bytes or contains a NUL, or if the
    /// device has 2^63 bytes or more.
    pub fn new(name: &str, description: &str, device: SharedDevice, read_only: bool) -> Result<Export, Error> {
        for part in [name, description] {
            if text(part.as_bytes()).is_err() {
                let message = "a name or description has at most 4096 bytes, and no NUL";
                return Err(Error::new(NbdErrorKind::Invalid, name.chars().take(200).collect::<String>(), message));
            }
        }
        if device.geometry().size_bytes > DEVICE_BYTES_MAX {
            let message = format!("{} has {} bytes; a device has less than 8E", device.spec(), device.exact_bytes());
            return Err(Error::new(NbdErrorKind::Invalid, name, message));
        }
        let (name, description) = (name.to_owned(), description.to_owned());
        let (ranges, counters) = (RangeLocks::default(), ExportCounters::default());
        let (ended, peers) = (Shutdown::new(), Mutex::default());
        Ok(Export { name, description, device, read_only, ended, peers, ranges, counters })
    }

    /// Makes the export's connections end when `ended` is requested. Requests that have begun are finished. All other
    /// requests are dropped, and so are replies that the client has not received.
    pub fn ending(self, ended: Shutdown) -> Export {
        Export { ended, ..self }
    }

    /// The [`Shutdown`] that ends the export's connections when it is requested.
    pub(super) fn ended(&self) -> &Shutdown {
        &self.ended
    }

    /// Where the connections that use the export come from: an address, or a process of this machine.
    pub fn peers(&self) -> Vec<String> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).iter().map(ToString::to_string).collect()
    }

    /// Adds a connection to [`peers`](Self::peers) for as long as the result lives.
    pub(super) fn joined(&self, peer: &str) -> ExportConnection<'_> {
        let peer = Arc::<str>::from(peer);
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer.clone());
        ExportConnection { export: self, peer }
    }

    /// The name by which clients request the export.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description of the export, for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The device.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The counters of the export's traffic so far.
    pub fn figures(&self) -> ExportFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [reads, writes, flushes, trims, zeroes, others] = &self.counters.requests;
        ExportFigures {
            reads: load(reads),
            writes: load(writes),
            flushes: load(flushes),
            trims: load(trims),
            zeroes: load(zeroes),
            others: load(others),
            read_bytes: load(&self.counters.read_bytes),
            written_bytes: load(&self.counters.written_bytes),
            refused: load(&self.counters.refused),
            failed: load(&self.counters.failed),
        }
    }

    /// The transmission flags that a client gets for the export.
    pub(crate) fn flags(&self, is_structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if is_structured {
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// The smallest block, the preferred block and the largest payload, in bytes.
    pub(crate) fn block_sizes(&self) -> (u32, u32, u32) {
        let sector_bytes = self.device.sector_bytes();
        // A client takes the smallest block as its sector, and 512 bytes if it is smaller. The server itself reads and
        // writes any bytes.
        let minimum = if sector_bytes > SECTOR_BYTES { sector_bytes } else { 1 };
        (minimum, self.device.geometry().block_bytes.max(minimum).max(PREFERRED_BYTES_MIN), PAYLOAD_BYTES_MAX)
    }
}

/// A connection that uses an export.
pub(super) struct ExportConnection<'a> {
    export: &'a Export,
    peer: Arc<str>,
}

impl Drop for ExportConnection<'_> {
    fn drop(&mut self) {
        let mut peers = self.export.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

/// The reason why a client gets no export for a name. The text in each variant is for the client's user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportRefusal {
    /// No export has this name.
    Unknown(String),
    /// The export exists or could be made, but the client may not have it now.
    Refused(String),
}

/// Exports that appear and disappear while the server runs.
pub trait ExportSource: Send + Sync + 'static {
    /// Finds the export of a name that a client requests. The call may create the export.
    ///
    /// The server calls this for each option that names an export, so it may call it more than once for a connection.
    /// As long as a connection holds an export, its name must lead to the same export. A connection holds its export
    /// until its last request has ended.
    fn find(&self, name: &str) -> Result<Arc<Export>, ExportRefusal>;

    /// The names and descriptions of the exports, for a client that requests a list.
    fn list(&self) -> Vec<(String, String)>;
}

/// The exports of a server.
#[derive(Default)]
pub struct ExportTable {
    list: Vec<Arc<Export>>,
    source: Option<Arc<dyn ExportSource>>,
}

impl ExportTable {
    /// Makes the table.
    ///
    /// *Errors*: [`NbdErrorKind::Invalid`] if two exports have the same name, or if there are more than [`EXPORTS_MAX`]
    /// exports.
    pub fn new(exports: Vec<Export>) -> Result<ExportTable, Error> {
        if exports.len() > EXPORTS_MAX {
            let message = format!("{} exports, at most {EXPORTS_MAX} are served", exports.len());
            return Err(Error::new(NbdErrorKind::Invalid, "exports", message));
        }
        let mut list: Vec<Arc<Export>> = Vec::new();
        for export in exports {
            if list.iter().any(|other| other.name == export.name) {
                let message = "two exports have this name; give each one as NAME=SPEC";
                return Err(Error::new(NbdErrorKind::Invalid, format!("\"{}\"", export.name), message));
            }
            list.push(Arc::new(export));
        }
        Ok(ExportTable { list, source: None })
    }

    /// Makes a table whose exports come from `source`. The server does not flush their devices when it stops.
    pub fn of(source: Arc<dyn ExportSource>) -> ExportTable {
        ExportTable { list: Vec::new(), source: Some(source) }
    }

    /// The exports that do not come from a source, in the order in which [`ExportTable::new`] got them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.list.iter()
    }

    /// The export with this name. If there is only one export, the empty name means this export.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Export>, ExportRefusal> {
        if let Some(source) = &self.source {
            return source.find(name);
        }
        let named = self.list.iter().find(|export| export.name == name);
        let found = match self.list.as_slice() {
            [only] if name.is_empty() => Some(only),
            _ => named,
        };
        found.cloned().ok_or_else(|| ExportRefusal::Unknown("there is no export of this name".to_owned()))
    }

    /// The names and descriptions of the exports, for a client that requests a list.
    pub(crate) fn listed(&self) -> Vec<(String, String)> {
        match &self.source {
            Some(source) => source.list(),
            None => self.list.iter().map(|export| (export.name.clone(), export.description.clone())).collect(),
        }
    }
}

/// The traffic of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExportFigures {
    /// The number of reads.
    pub reads: u64,
    /// The number of writes.
    pub writes: u64,
    /// The number of flushes.
    pub flushes: u64,
    /// The number of trims.
    pub trims: u64,
    /// The number of writes of zeroes.
    pub zeroes: u64,
    /// The number of queries of allocated ranges and of `NBD_CMD_CACHE` requests.
    pub others: u64,
    /// The number of bytes that were read.
    pub read_bytes: u64,
    /// The number of bytes that were written as data. Writes of zeroes do not count.
    pub written_bytes: u64,
    /// The number of requests that were refused as invalid.
    pub refused: u64,
    /// The number of requests that failed because the device failed.
    pub failed: u64,
}

/// The counters behind [`ExportFigures`].
#[derive(Debug, Default)]
pub(super) struct ExportCounters {
    requests: [AtomicU64; 6],
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
}

impl ExportCounters {
    pub fn begun(&self, command: u16) {
        let index = match command {
            request::READ => 0,
            request::WRITE => 1,
            request::FLUSH => 2,
            request::TRIM => 3,
            request::WRITE_ZEROES => 4,
            _ => 5,
        };
        self.requests[index].fetch_add(1, Ordering::Relaxed);
    }
}
