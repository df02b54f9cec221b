//! Holds a trace in memory.
//!
//! Owns: the form of a trace in memory. Each reference takes 8 bytes, and 4 more for each of these that the trace has:
//! several streams, sizes of objects, times, times to live. A delete takes 16 bytes. While a trace is read, each distinct
//! block takes up to 20 bytes more. Leaves to others: reading traces (`load`), mixing them (`mix`).

use std::path::Path;
use std::sync::OnceLock;

use hashbrown::HashSet;
use nectary_cache::{NextReferences, StreamId};

use super::load::empty;
use crate::formats;

/// The references of one run.
#[derive(Debug, Clone)]
pub struct TraceWorkload {
    pub(super) name: String,
    pub(super) blocks: Vec<u64>,
    /// The stream of each reference; empty if there is only one stream.
    pub(super) streams: Vec<StreamId>,
    /// The size of each reference; empty if the trace has no objects with sizes. *Units*: bytes.
    pub(super) bytes: Vec<u32>,
    /// The time of each reference since the first one; empty if the trace has no times. *Units*: seconds.
    pub(super) times: Vec<u32>,
    /// The life that each reference gives its object; empty if all objects live for ever.
    pub(super) lives: Vec<ObjectLifetime>,
    /// The deletes: a block, and the number of references before its delete.
    pub(super) deletes: Vec<(usize, u64)>,
    pub(super) distinct: u64,
    pub(super) distinct_bytes: u64,
    /// The names of streams, sorted by stream; only the first [`NAMES_MAX`] streams that have a name are listed.
    pub(super) names: Vec<(StreamId, String)>,
    pub(super) warning: Option<String>,
    pub(super) block_bytes: Option<u64>,
    pub(super) future: OnceLock<Option<NextReferences>>,
}

/// The maximum number of streams whose names are kept.
pub const NAMES_MAX: usize = 1024;

/// The time for which an object is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectLifetime(u32);

impl ObjectLifetime {
    /// The bit of a write.
    const RENEWS: u32 = 1 << 31;

    /// A life of `ttl_s` seconds, or for ever if that is 0. `renews` says whether the reference gives a new life to an
    /// object that is resident.
    pub(super) fn new(ttl_s: u32, renews: bool) -> ObjectLifetime {
        ObjectLifetime(ttl_s.min(ObjectLifetime::RENEWS - 1) | if renews { ObjectLifetime::RENEWS } else { 0 })
    }

    /// Whether the reference gives a new life to an object that is resident.
    pub fn renews(self) -> bool {
        self.0 & ObjectLifetime::RENEWS != 0
    }

    /// The length of the life; `None` if it has no end. *Units*: seconds.
    pub fn ttl_s(self) -> Option<u32> {
        Some(self.0 & !ObjectLifetime::RENEWS).filter(|&ttl_s| ttl_s > 0)
    }
}

impl TraceWorkload {
    /// A workload from references in memory.
    pub fn new(name: impl Into<String>, references: impl IntoIterator<Item = (u64, StreamId)>) -> TraceWorkload {
        let (blocks, streams): (Vec<u64>, Vec<StreamId>) = references.into_iter().unzip();
        let has_streams = streams.iter().any(|stream| stream.0 > 0);
        let distinct = blocks.iter().collect::<HashSet<_>>().len() as u64;
        let streams = if has_streams { streams } else { Vec::new() };
        TraceWorkload { name: name.into(), blocks, streams, distinct, ..empty() }
    }

    /// A workload of objects with sizes, in bytes, from references in memory.
    pub fn of_objects(name: impl Into<String>, references: impl IntoIterator<Item = (u64, u32)>) -> TraceWorkload {
        let (blocks, bytes): (Vec<u64>, Vec<u32>) = references.into_iter().unzip();
        let mut seen = HashSet::new();
        let first = blocks.iter().zip(&bytes).filter(|(block, _)| seen.insert(**block));
        let distinct_bytes = first.map(|(_, bytes)| u64::from(*bytes).max(1)).sum();
        let distinct = seen.len() as u64;
        match bytes.iter().all(|&bytes| bytes == 0) {
            true => TraceWorkload { name: name.into(), blocks, distinct, ..empty() },
            false => TraceWorkload { name: name.into(), blocks, bytes, distinct, distinct_bytes, ..empty() },
        }
    }

    /// The name of the workload: the name of its file without endings; for a mix, the names of its traces joined by
    /// `+`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the workload another name.
    pub fn rename(&mut self, name: &str) {
        self.name = name.to_owned();
    }

    /// The blocks in the order of their references.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// The stream of each reference; empty if all are of stream 0.
    pub fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// A stream's name.
    pub fn stream_name(&self, stream: StreamId) -> Option<&str> {
        let index = self.names.binary_search_by_key(&stream.0, |(known, _)| known.0).ok()?;
        Some(&self.names[index].1)
    }

    /// The warning of the reader about the trace, if there is one.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The size of a block, in bytes, if the trace has it; that of a mix if all its traces have the same.
    pub fn block_bytes(&self) -> Option<u64> {
        self.block_bytes
    }

    /// Whether the trace has objects with sizes.
    pub fn has_sizes(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Adds sizes to a chunk in which all are 0, if the trace has objects with sizes.
    pub(super) fn complete(&mut self, has_objects: bool) {
        if has_objects && self.bytes.is_empty() {
            self.bytes.resize(self.blocks.len(), 0);
        }
    }

    /// The size of the object of a reference, at least 1; 1 if the trace has no sizes. *Units*: bytes.
    pub fn bytes(&self, index: usize) -> u32 {
        self.bytes.get(index).map_or(1, |&bytes| bytes.max(1))
    }

    /// The sum of the sizes of all distinct objects, each at its first reference; 0 if the trace has no sizes. *Units*:
    /// bytes.
    pub fn distinct_bytes(&self) -> u64 {
        self.distinct_bytes
    }

    /// The time of each reference since the first one, in seconds; empty if the trace has no times.
    pub fn times(&self) -> &[u32] {
        &self.times
    }

    /// The life that each reference gives its object; empty if all objects live for ever.
    pub fn lives(&self) -> &[ObjectLifetime] {
        &self.lives
    }

    /// The deletes, in order: the number of references before the delete, and the block.
    pub fn deletes(&self) -> &[(usize, u64)] {
        &self.deletes
    }

    pub(super) fn last_stream(&self) -> StreamId {
        StreamId(self.streams.iter().map(|stream| stream.0).max().unwrap_or(0))
    }

    /// The number of references.
    pub fn references(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The number of distinct blocks.
    pub fn distinct(&self) -> u64 {
        self.distinct
    }

    /// The next reference to each block, for MIN; it is computed at the first call. *Returns* `None` if there are 2^32
    /// references or more.
    pub fn future(&self) -> Option<&NextReferences> {
        self.future.get_or_init(|| NextReferences::of(&self.blocks)).as_ref()
    }
}

/// The name of a trace: its file's name without the endings of formats and compression.
pub(super) fn name_of(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "-".into(), |name| name.to_string_lossy());
    let lower = name.to_ascii_lowercase();
    let mut end = formats::COMPRESSED.iter().find_map(|end| lower.strip_suffix(end)).map_or(name.len(), str::len);
    let endings = formats::FORMATS.iter().flat_map(|entry| entry.endings);
    let format_end = endings.filter(|ending| lower[..end].ends_with(*ending)).map(|ending| ending.len()).max();
    end -= format_end.unwrap_or(0);
    if end == 0 { name.into_owned() } else { name[..end].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_name_drops_extensions() {
        for (path, name) in [("/x/cs.trace.gz", "cs"), ("w.oracleGeneral.bin.zst", "w"), ("a.csv", "a"), (".gz", ".gz")]
        {
            assert_eq!(name_of(Path::new(path)), name);
        }
    }
}
