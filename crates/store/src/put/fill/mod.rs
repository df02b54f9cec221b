//! Fills: one fetch of a key, whose body all followers read while it arrives.
//!
//! Owns: which caller leads a fill, what followers see, and the state that leader and followers share. `leader` keeps
//! the window of bytes and makes an entry (or fragments and a head) from a body; `reader` is the followers' side.
//! Leaves to others: the source of the bytes, and the decision whether they may be stored.
//!
//! *Circle*: the types in this file refer to `leader` and `reader`, and both of these use the types in this file.
//!
//! # States
//! | state | entered by | followers see |
//! |---|---|---|
//! | waiting | `begin_fill` | nothing yet |
//! | streaming | `start` | the head, then bytes when they arrive |
//! | done | `finish` | the rest, then the end |
//! | object | `refresh` | a whole object |
//! | declined | `decline`, or `start` over budget | that they must fetch by themselves |
//! | failed | the `Fill` is dropped | an error, before or in the body |
//!
//! # The window
//! Chunks are kept until they are stored as fragments; a follower that is further behind reads the fragments. If the
//! store cannot keep up, the fill is no longer stored: chunks then stay until the slowest follower has read them, and
//! `write` waits for that follower. The same is true for objects that are not admitted to the disk and too long for one
//! record. In all cases, a fill has at most [`WINDOW_BYTES_MAX`] plus one fragment in memory.

use std::sync::Arc;

use bytes::Bytes;

use crate::get::object::StoredObject;
use crate::names::key::KeyRef;
use crate::put::commit::PutCommitter;

mod leader;
mod reader;
pub mod table;

pub use leader::Fill;
pub use reader::FillReader;

/// The role of the caller of `begin_fill`.
pub enum FillRole {
    /// The caller must fetch the key.
    Leader(Fill),
    /// Another caller fetches the key; this caller reads that fill.
    Follower(FillReader),
    /// Another caller has just stored the object; this caller uses it.
    Resident(StoredObject),
}

/// The first thing that a follower sees.
#[derive(Debug)]
pub enum FillHead {
    /// The response is arriving: read its body.
    Streaming {
        /// The variant part of the key under which the object will be found.
        variant: Bytes,
        /// The metadata of the object.
        metadata: Bytes,
        /// Length of the body, if it is known.
        body_bytes: Option<u64>,
    },
    /// The stale object was confirmed; this is the confirmed object.
    Object(StoredObject),
    /// The response cannot be stored: the follower must fetch the key by itself.
    Declined,
    /// The fetch failed: the follower must fetch the key by itself, or fail too.
    Failed,
}

/// Joins or begins the fill of a key.
pub(crate) fn begin(puts: &Arc<PutCommitter>, key: KeyRef<'_>, stale: Option<&StoredObject>) -> FillRole {
    let (primary_hash, hash) = puts.span.hash(key);
    let mut fills = puts.fills.lock();
    if let Some(fill) = fills.get(&hash)
        && !fill.is_purged(&puts.state, primary_hash, key.primary)
        && let Some(reader) = FillReader::join(&puts.lookup, fill)
    {
        return FillRole::Follower(reader);
    }
    if let Some(entry) = puts
        .lookup
        .find_resident(key)
        .live()
        .filter(|entry| stale.is_none_or(|stale| stale.entry.generation != entry.generation))
    {
        return FillRole::Resident(StoredObject::new(entry, &puts.lookup));
    }
    let fill = Fill::new(puts, key, false);
    fills.insert(hash, Arc::clone(&fill.fill));
    FillRole::Leader(fill)
}

/// Begins a fill without followers: a put of a long body.
pub(crate) fn begin_alone(puts: &Arc<PutCommitter>, key: KeyRef<'_>) -> Fill {
    Fill::new(puts, key, true)
}
