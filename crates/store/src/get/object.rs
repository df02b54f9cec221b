//! An object that was found, and reading its body.
//!
//! Owns: the caller's view of a hit. A hit keeps its bytes in memory; later changes to the store do not affect them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::counters::{Counters, PutSequence};
use crate::error::{Error, StoreErrorKind};
use crate::get::lookup::ObjectLookup;
use crate::get::read_ahead::{BodyFragments, ReadAhead};
use crate::memory::entry::{EntryKind, MemoryEntry};

/// An object of the store. *Cost*: a clone copies no bytes.
#[derive(Clone)]
pub struct StoredObject {
    pub(crate) entry: Arc<MemoryEntry>,
    /// Finds the fragments of the body; `None` if the object is one record.
    lookup: Option<Arc<ObjectLookup>>,
}

impl StoredObject {
    pub(crate) fn new(entry: Arc<MemoryEntry>, lookup: &Arc<ObjectLookup>) -> StoredObject {
        let fragmented = !matches!(entry.kind, EntryKind::Whole);
        StoredObject { entry, lookup: fragmented.then(|| Arc::clone(lookup)) }
    }

    /// The metadata that was put.
    pub fn metadata(&self) -> &Bytes {
        &self.entry.metadata
    }

    /// Length of the body in bytes.
    pub fn body_bytes(&self) -> u64 {
        self.entry.object_bytes
    }

    /// The sequence of the object's put, or a later sequence if the object was read from a rewritten record.
    pub fn sequence(&self) -> PutSequence {
        PutSequence(self.entry.sequence)
    }

    /// The generation that was drawn when the object's put or fill began. A purge affects objects with a lower
    /// generation.
    pub fn generation(&self) -> u64 {
        self.entry.generation
    }

    /// The time that the earliest soft purge of the object named, in seconds since 1970; `None` if the object was not
    /// softly purged. The object stays so until another one replaces it, or its metadata are replaced.
    pub fn stale_since_s(&self) -> Option<u32> {
        self.entry.stale_since_s()
    }

    /// Whether the object is on the disk or waits to be written. Otherwise it is only in memory.
    pub fn is_admitted(&self) -> bool {
        !self.entry.is_in_memory_alone()
    }

    /// The body, if the object is one record; `None` if it is fragmented. An object is always one record if its body
    /// has at most [`StoreStat::whole_bytes_max`](crate::StoreStat::whole_bytes_max) bytes.
    pub fn whole(&self) -> Option<&Bytes> {
        matches!(self.entry.kind, EntryKind::Whole).then_some(&self.entry.body)
    }

    /// Reads a range of the body, chunk by chunk. A range that ends after the end of the body is shortened.
    pub fn reader(&self, range: Range<u64>) -> BodyReader {
        let end = range.end.min(self.body_bytes());
        BodyReader { object: self.clone(), position: range.start.min(end), end, ahead: ReadAhead::new() }
    }

    /// The caller's decoded form of the metadata, made at the first call and kept while the object is in memory.
    ///
    /// # Panics
    /// If it is called with two different types for the same object; this is a bug of the caller.
    pub fn decoded<T: Send + Sync + 'static>(&self, decode: impl FnOnce(&Bytes) -> T) -> &T {
        self.entry.decoded(decode).expect("a store's metadata is decoded into one type")
    }
}

impl std::fmt::Debug for StoredObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Object({} bytes, sequence {})", self.body_bytes(), self.entry.sequence)
    }
}

/// Reads a body, or a range of it. In a tokio runtime, it reads up to four fragments ahead.
pub struct BodyReader {
    object: StoredObject,
    position: u64,
    end: u64,
    ahead: ReadAhead,
}

impl BodyReader {
    /// The number of bytes that were not returned yet.
    pub fn remaining(&self) -> u64 {
        self.end - self.position
    }

    /// The next chunk, at most a fragment long; `None` at the end.
    ///
    /// *Errors*: a fragment has been reclaimed or is damaged, or the device could not read it. The bytes returned so
    /// far are correct, and the rest is not available: a caller that forwards the body must abort. *Cancel safety*: a
    /// cancelled call loses no chunk.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        if self.position >= self.end {
            return None;
        }
        let EntryKind::Head { generation, .. } = self.object.entry.kind else {
            let chunk = self.object.entry.body.slice(self.position as usize..self.end as usize);
            self.position = self.end;
            return Some(Ok(chunk));
        };
        let Some(lookup) = &self.object.lookup else { return Some(Err(gone(self.position))) };
        let fragment_bytes = lookup.span.layout.fragment_bytes;
        let number = (self.position / fragment_bytes) as u32;
        let skip = self.position % fragment_bytes;
        let last = ((self.end - 1) / fragment_bytes) as u32;
        let fragments = BodyFragments { key: self.object.entry.hash, generation, last };
        match self.ahead.next(lookup, fragments, number).await {
            Ok(Some(entry)) if (entry.body.len() as u64) > skip => {
                let stop = (skip + self.end - self.position).min(entry.body.len() as u64);
                self.position += stop - skip;
                Some(Ok(entry.body.slice(skip as usize..stop as usize)))
            }
            Err(failed) => Some(Err(failed)),
            Ok(_) => {
                Counters::add(&lookup.span.counters.bodies_overtaken, 1);
                Some(Err(gone(self.position)))
            }
        }
    }
}

fn gone(position: u64) -> Error {
    Error::new(
        StoreErrorKind::Absent,
        format!("the fragment at byte {position} of the body is gone; ask for the object again"),
    )
}
