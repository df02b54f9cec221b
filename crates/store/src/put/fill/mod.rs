//! Fills: one fetch of a key, read by all its waiters while it arrives.
//!
//! Owns: which fill leads, what followers see, and the state both share. `leader` keeps the window of bytes and makes
//! an entry (or fragments and a head) of a body; `reader` reads along. Leaves to others: where the bytes come from, and
//! whether they may be stored.
//!
//! *Circle*: a role is one of the two sides, and each side returns what the other sees first.
//!
//! # States
//! | state | entered by | followers see |
//! |---|---|---|
//! | waiting | `begin_fill` | nothing yet |
//! | streaming | `start` | head, then bytes as they arrive |
//! | done | `finish` | the rest, then the end |
//! | object | `refresh` | a whole object |
//! | declined | `decline`, or `start` over budget | they go on their own |
//! | failed | the `Fill` dropped | an error, before or in the body |
//!
//! # The window
//! Chunks are kept until they are in stored fragments and every follower behind them reads those. If the store cannot
//! keep up, the fill is no longer stored: chunks then stay until the slowest follower has them, and `write` waits for
//! it. The same goes for objects that are not admitted to the disk and too long for one record. Either way a fill holds
//! at most [`WINDOW_BYTES_MAX`] and a fragment.

use std::sync::Arc;

use bytes::Bytes;

use crate::get::object::Object;
use crate::names::key::KeyRef;
use crate::put::commit::Puts;

mod leader;
mod reader;
pub mod table;

pub use leader::Fill;
pub use reader::FillReader;

/// The task of the caller of `begin_fill`.
pub enum FillRole {
    /// Fetch it.
    Leader(Fill),
    /// Somebody does: read along.
    Follower(FillReader),
    /// Somebody just did.
    Resident(Object),
}

/// The first thing that a follower sees.
#[derive(Debug)]
pub enum FillHead {
    /// The response is being stored: read its body along.
    Streaming {
        /// The variant part of the key under which it will be found.
        variant: Bytes,
        /// Its metadata.
        metadata: Bytes,
        /// Length of the body, if it is known.
        body_bytes: Option<u64>,
    },
    /// A stale response has been confirmed.
    Object(Object),
    /// It is not storable: go on your own.
    Declined,
    /// The fetch failed: go on your own, or fail too.
    Failed,
}

/// Joins or begins the fill of a key.
pub(crate) fn begin(puts: &Arc<Puts>, key: KeyRef<'_>, stale: Option<&Object>) -> FillRole {
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
        return FillRole::Resident(Object::new(entry, &puts.lookup));
    }
    let fill = Fill::new(puts, key, primary_hash, hash);
    fills.insert(hash, Arc::clone(&fill.fill));
    FillRole::Leader(fill)
}

/// Begins a fill without followers: a put of a long body.
pub(crate) fn begin_alone(puts: &Arc<Puts>, key: KeyRef<'_>) -> Fill {
    let (primary_hash, hash) = puts.span.hash(key);
    Fill::new(puts, key, primary_hash, hash)
}
