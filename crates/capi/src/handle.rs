//! The table of open stores by handle, and the bodies into which a C program holds pointers.
//!
//! Owns: the table of handles and, for each store, the table of the pointers that C programs hold. A handle is a number
//! that is used only once and never as a pointer, so a stale or invented handle is refused. Promises: a body stays in
//! memory until the program has given back its pointer as often as it has read the body, and the store is not closed
//! before that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use nectary_store::{KeyRef, Store};

use crate::error::{CallFailure, NECTARY_BUSY};
use crate::worker::{StoreCall, StoreOpenOptions, StoreWorker};

/// The maximum number of pointers of one store that a program may hold at the same time.
const READS_MAX: usize = 1 << 16;
/// The maximum number of open stores.
const STORES_MAX: usize = 1024;

/// The byte to which the pointer of an empty body points, because a body's pointer is never null.
static EMPTY: [u8; 1] = [0];

static STORES: RwLock<Option<HashMap<usize, Arc<StoreHandle>>>> = RwLock::new(None);

/// An open store.
pub struct StoreHandle {
    /// The store must be dropped before the worker, whose drop waits until the worker's thread has ended.
    store: Store,
    span_bytes: u64,
    reads: Mutex<BorrowedBodies>,
    worker: StoreWorker,
}

/// The bodies into which a program holds pointers, by the address of their first byte.
#[derive(Default)]
struct BorrowedBodies {
    held: HashMap<usize, BorrowedBody>,
    count: usize,
    is_closed: bool,
}

struct BorrowedBody {
    /// The owner of the bytes, which keeps them at their address.
    _body: Bytes,
    count: usize,
}

/// Opens a store and returns its handle, which is never 0.
pub fn open(opening: StoreOpenOptions) -> Result<usize, CallFailure> {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let (worker, store) = StoreWorker::start(opening)?;
    let span_bytes = store.stat().span_bytes;
    let open = Arc::new(StoreHandle { store, span_bytes, reads: Mutex::default(), worker });
    let mut stores = STORES.write().unwrap_or_else(PoisonError::into_inner);
    let stores = stores.get_or_insert_default();
    if stores.len() >= STORES_MAX {
        return Err(CallFailure::new(NECTARY_BUSY, format!("{STORES_MAX} stores are open already")));
    }
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    stores.insert(handle, open);
    Ok(handle)
}

/// The store of a handle.
pub fn find(handle: usize) -> Result<Arc<StoreHandle>, CallFailure> {
    let stores = STORES.read().unwrap_or_else(PoisonError::into_inner);
    let open = stores.as_ref().and_then(|stores| stores.get(&handle)).cloned();
    open.ok_or_else(|| CallFailure::invalid("the handle is null, was never given, or its store is closed"))
}

/// Closes a store.
pub fn close(handle: usize) -> Result<(), CallFailure> {
    let open = find(handle)?;
    {
        let mut reads = open.reads();
        if reads.is_closed {
            return Err(CallFailure::closed());
        }
        if reads.count > 0 {
            let message = format!("{} pointers have not been given back by nectary_done_read_file", reads.count);
            return Err(CallFailure::new(NECTARY_BUSY, message));
        }
        reads.is_closed = true;
    }
    let closed = open.worker.ask(StoreCall::Close);
    // If another call is under way, the last reference to the store, and with it the device, is dropped when that call
    // ends.
    STORES.write().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(|stores| stores.remove(&handle));
    closed.map(drop)
}

impl StoreHandle {
    /// Stores a body.
    pub fn write(&self, name: &[u8], data: &[u8]) -> Result<(), CallFailure> {
        // A body that cannot fit is refused before it is copied.
        if data.len() as u64 > self.span_bytes {
            let message = format!("{} bytes do not fit into a store of {}", data.len(), self.span_bytes);
            return Err(CallFailure::invalid(message));
        }
        let mut body = Vec::new();
        let no_memory = |_| CallFailure::new(NECTARY_BUSY, format!("no memory for a file of {} bytes", data.len()));
        body.try_reserve_exact(data.len()).map_err(no_memory)?;
        body.extend_from_slice(data);
        self.worker.ask(StoreCall::Write(name.to_vec(), body.into())).map(drop)
    }

    /// Reads a body and returns its address and length. They are valid until [`give_back`](Self::give_back).
    pub fn read(&self, name: &[u8]) -> Result<(*const u8, usize), CallFailure> {
        let resident = self.store.get_resident(KeyRef::new(name, b"")).and_then(|object| object.whole().cloned());
        let body = match resident {
            Some(body) => body,
            None => self.worker.ask(StoreCall::Read(name.to_vec()))?,
        };
        let (address, length) = (if body.is_empty() { EMPTY.as_ptr() } else { body.as_ptr() }, body.len());
        let mut reads = self.reads();
        if reads.is_closed {
            return Err(CallFailure::closed());
        }
        if reads.count >= READS_MAX {
            return Err(CallFailure::new(NECTARY_BUSY, format!("{READS_MAX} pointers are held; give some back first")));
        }
        reads.count += 1;
        reads.held.entry(address.addr()).or_insert(BorrowedBody { _body: body, count: 0 }).count += 1;
        Ok((address, length))
    }

    /// Takes a pointer back.
    pub fn give_back(&self, address: usize) -> Result<(), CallFailure> {
        let mut reads = self.reads();
        let unknown =
            || CallFailure::invalid("the pointer is not one of nectary_read_file, or has been given back before");
        let held = reads.held.get_mut(&address).ok_or_else(unknown)?;
        held.count -= 1;
        let last = if held.count == 0 { reads.held.remove(&address) } else { None };
        reads.count -= 1;
        drop(reads);
        // The body is freed outside the lock, because freeing takes time.
        drop(last);
        Ok(())
    }

    /// Tells the store that programs will read `other` together with `name`.
    pub fn collocate(&self, name: &[u8], other: &[u8]) {
        self.store.collocate(other, name);
    }

    /// Deletes a name.
    pub fn delete(&self, name: &[u8]) -> Result<(), CallFailure> {
        self.worker.ask(StoreCall::Delete(name.to_vec())).map(drop)
    }

    fn reads(&self) -> MutexGuard<'_, BorrowedBodies> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
