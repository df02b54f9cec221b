//! Open stores by handle, and the bodies that a C program holds pointers into.
//!
//! Owns: the table of handles and, for each store, the table of the pointers that C programs hold. A handle is a number
//! that is used only once and never as a pointer, so a stale or invented handle is refused. Promises: a body stays
//! until its pointer has been given back as often as it was read; the store is not closed before that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use nectary_store::{KeyRef, Store};

use crate::error::{Failure, NECTARY_BUSY};
use crate::worker::{Ask, Opening, Worker};

/// How many pointers of one store a program may hold at the same time.
const READS_MAX: usize = 1 << 16;
/// How many stores may be open.
const STORES_MAX: usize = 1024;

/// The body of an empty file in C: a fixed pointer that is not null.
static EMPTY: [u8; 1] = [0];

static STORES: RwLock<Option<HashMap<usize, Arc<Open>>>> = RwLock::new(None);

/// An open store.
pub struct Open {
    /// Dropped before the worker, whose drop waits for its thread.
    store: Store,
    span_bytes: u64,
    reads: Mutex<Reads>,
    worker: Worker,
}

/// The bodies that are held, by the address of their first byte.
#[derive(Default)]
struct Reads {
    held: HashMap<usize, Held>,
    count: usize,
    is_closed: bool,
}

struct Held {
    /// It keeps the bytes where they are.
    _body: Bytes,
    count: usize,
}

/// Opens a store; returns its handle, never 0.
pub fn open(opening: Opening) -> Result<usize, Failure> {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let (worker, store) = Worker::start(opening)?;
    let span_bytes = store.stat().span_bytes;
    let open = Arc::new(Open { store, span_bytes, reads: Mutex::default(), worker });
    let mut stores = STORES.write().unwrap_or_else(PoisonError::into_inner);
    let stores = stores.get_or_insert_default();
    if stores.len() >= STORES_MAX {
        return Err(Failure::new(NECTARY_BUSY, format!("{STORES_MAX} stores are open already")));
    }
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    stores.insert(handle, open);
    Ok(handle)
}

/// The store of a handle.
pub fn find(handle: usize) -> Result<Arc<Open>, Failure> {
    let stores = STORES.read().unwrap_or_else(PoisonError::into_inner);
    let open = stores.as_ref().and_then(|stores| stores.get(&handle)).cloned();
    open.ok_or_else(|| Failure::invalid("the handle is null, was never given, or its store is closed"))
}

/// Closes a store.
pub fn close(handle: usize) -> Result<(), Failure> {
    let open = find(handle)?;
    {
        let mut reads = open.reads();
        if reads.is_closed {
            return Err(Failure::closed());
        }
        if reads.count > 0 {
            let message = format!("{} pointers have not been given back by nectary_done_read_file", reads.count);
            return Err(Failure::new(NECTARY_BUSY, message));
        }
        reads.is_closed = true;
    }
    let closed = open.worker.ask(Ask::Close);
    // If another call is under way, that call drops the store and its device, not this one.
    STORES.write().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(|stores| stores.remove(&handle));
    closed.map(drop)
}

impl Open {
    /// Stores a body.
    pub fn write(&self, name: &[u8], data: &[u8]) -> Result<(), Failure> {
        // The body will be copied, so an object that cannot fit is refused first.
        if data.len() as u64 > self.span_bytes {
            let message = format!("{} bytes do not fit into a store of {}", data.len(), self.span_bytes);
            return Err(Failure::invalid(message));
        }
        let mut body = Vec::new();
        let no_memory = |_| Failure::new(NECTARY_BUSY, format!("no memory for a file of {} bytes", data.len()));
        body.try_reserve_exact(data.len()).map_err(no_memory)?;
        body.extend_from_slice(data);
        self.worker.ask(Ask::Write(name.to_vec(), body.into())).map(drop)
    }

    /// Reads a body; returns its address and length, valid until [`give_back`](Self::give_back).
    pub fn read(&self, name: &[u8]) -> Result<(*const u8, usize), Failure> {
        let resident = self.store.get_resident(KeyRef::new(name, b"")).and_then(|object| object.whole().cloned());
        let body = match resident {
            Some(body) => body,
            None => self.worker.ask(Ask::Read(name.to_vec()))?,
        };
        let (address, length) = (if body.is_empty() { EMPTY.as_ptr() } else { body.as_ptr() }, body.len());
        let mut reads = self.reads();
        if reads.is_closed {
            return Err(Failure::closed());
        }
        if reads.count >= READS_MAX {
            return Err(Failure::new(NECTARY_BUSY, format!("{READS_MAX} pointers are held; give some back first")));
        }
        reads.count += 1;
        reads.held.entry(address.addr()).or_insert(Held { _body: body, count: 0 }).count += 1;
        Ok((address, length))
    }

    /// Takes a pointer back.
    pub fn give_back(&self, address: usize) -> Result<(), Failure> {
        let mut reads = self.reads();
        let unknown = || Failure::invalid("the pointer is not one of nectary_read_file, or has been given back before");
        let held = reads.held.get_mut(&address).ok_or_else(unknown)?;
        held.count -= 1;
        let last = if held.count == 0 { reads.held.remove(&address) } else { None };
        reads.count -= 1;
        drop(reads);
        // Freed outside the lock, because freeing takes time.
        drop(last);
        Ok(())
    }

    /// Says that `other` will be wanted together with `name`.
    pub fn collocate(&self, name: &[u8], other: &[u8]) {
        self.store.collocate(other, name);
    }

    /// Deletes a name.
    pub fn delete(&self, name: &[u8]) -> Result<(), Failure> {
        self.worker.ask(Ask::Delete(name.to_vec())).map(drop)
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
