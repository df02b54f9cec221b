//! The thread of a store. It has a runtime that serves the calls of all threads.
//!
//! Owns: the thread, the queue of requests, opening and closing the store. Leaves to others: the interface for C.
//! Promises: requests are served concurrently, at most [`REQUESTS_MAX`] at a time; every caller gets an answer, even if
//! the thread ends.

use std::sync::mpsc as answers;
use std::thread::JoinHandle;

use bytes::Bytes;
use nectary_block as block;
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::{CallFailure, NECTARY_ABSENT, NECTARY_BUSY, NECTARY_INTERNAL};

/// The largest number of requests that are served at the same time, and also of those that wait in the queue. Further
/// callers block.
const REQUESTS_MAX: usize = 1024;

/// The answer to a request: the body if the request was a read, else no bytes.
type Answer = Result<Bytes, CallFailure>;

/// A request to a store.
pub enum StoreCall {
    /// Store a body under a name.
    Write(Vec<u8>, Bytes),
    /// Read a body.
    Read(Vec<u8>),
    /// Delete a name.
    Delete(Vec<u8>),
    /// Write all pending data, close the store, and end the thread.
    Close,
}

struct WorkerRequest {
    ask: StoreCall,
    reply: answers::SyncSender<Answer>,
}

/// The arguments of opening a store.
pub struct StoreOpenOptions {
    /// The device's SPEC.
    pub spec: String,
    /// The size of the store that is created if there is none. With 0, no store is created. *Units*: bytes.
    pub create_bytes: u64,
    /// The bound on everything that the store keeps in memory. *Units*: bytes.
    pub memory_bytes: u64,
}

/// An open store and its thread.
pub struct StoreWorker {
    requests: mpsc::Sender<WorkerRequest>,
    thread: Option<JoinHandle<()>>,
}

impl StoreWorker {
    /// Starts a thread and opens a store in it. Also returns the store, for calls that need no runtime.
    pub fn start(opening: StoreOpenOptions) -> Result<(StoreWorker, Store), CallFailure> {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let (ready, is_ready) = answers::sync_channel(1);
        let thread = std::thread::Builder::new().name("libnectary".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = ready.send(Err(CallFailure::new(NECTARY_BUSY, format!("cannot start a runtime: {error}"))));
                    return;
                }
            };
            runtime.block_on(async {
                match open(opening).await {
                    Ok(store) => {
                        let _ = ready.send(Ok(store.clone()));
                        // `start` receives only one message, so this sender is no longer needed.
                        drop(ready);
                        serve(store, received).await;
                    }
                    Err(failure) => {
                        let _ = ready.send(Err(failure));
                    }
                }
            });
        });
        let thread = thread
            .map_err(|error| CallFailure::new(NECTARY_BUSY, format!("cannot start the store's thread: {error}")))?;
        match is_ready.recv() {
            Ok(Ok(store)) => Ok((StoreWorker { requests, thread: Some(thread) }, store)),
            Ok(Err(failure)) => {
                let _ = thread.join();
                Err(failure)
            }
            Err(_) => Err(ended()),
        }
    }

    /// Sends a request to the thread and waits for its answer.
    pub fn ask(&self, ask: StoreCall) -> Answer {
        let (reply, answer) = answers::sync_channel(1);
        self.requests.blocking_send(WorkerRequest { ask, reply }).map_err(|_| CallFailure::closed())?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for StoreWorker {
    fn drop(&mut self) {
        // The thread ends when all senders are dropped.
        self.requests = mpsc::channel(1).0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> CallFailure {
    CallFailure::new(NECTARY_INTERNAL, "a bug in libnectary: the request ended without an answer")
}

async fn open(opening: StoreOpenOptions) -> Result<Store, CallFailure> {
    let StoreOpenOptions { spec, create_bytes, memory_bytes } = opening;
    let options = OpenOptions { memory_bytes, ..OpenOptions::default() };
    options.check()?;
    let device_options =
        block::OpenOptions { create_bytes: (create_bytes > 0).then_some(create_bytes), ..Default::default() };
    let device = block::open(&spec, &device_options).await?;
    if !Store::probe(&device).await? {
        if create_bytes == 0 {
            return Err(CallFailure::new(NECTARY_ABSENT, format!("{spec}: there is no store on it, it is blank")));
        }
        let options = CreateOptions { size_bytes: create_bytes, ..CreateOptions::default() };
        Store::create(device.clone(), &options).await?;
    }
    Ok(Store::open(device, options).await?)
}

async fn serve(store: Store, mut requests: mpsc::Receiver<WorkerRequest>) {
    let mut under_way = JoinSet::new();
    while let Some(WorkerRequest { ask, reply }) = requests.recv().await {
        if let StoreCall::Close = ask {
            // Earlier requests are answered first.
            while under_way.join_next().await.is_some() {}
            let closed = store.close().await;
            drop((store, requests));
            let _ = reply.send(closed.map(|()| Bytes::new()).map_err(CallFailure::from));
            return;
        }
        while under_way.try_join_next().is_some() {}
        if under_way.len() >= REQUESTS_MAX {
            under_way.join_next().await;
        }
        let store = store.clone();
        under_way.spawn(async move {
            let _ = reply.send(answer(&store, ask).await);
        });
    }
}

async fn answer(store: &Store, ask: StoreCall) -> Answer {
    match ask {
        StoreCall::Write(name, body) => {
            store.put(KeyRef::new(&name, b""), Bytes::new(), body).await?;
            Ok(Bytes::new())
        }
        StoreCall::Read(name) => read(store, KeyRef::new(&name, b"")).await,
        StoreCall::Delete(name) => {
            store.purge_key(&name).await?;
            Ok(Bytes::new())
        }
        StoreCall::Close => Ok(Bytes::new()),
    }
}

/// Reads a body. If the store has the body in one piece, the body is not copied; otherwise it is assembled from its
/// pieces.
async fn read(store: &Store, key: KeyRef<'_>) -> Answer {
    let absent =
        || CallFailure::new(NECTARY_ABSENT, format!("there is no file {:?}", String::from_utf8_lossy(key.primary)));
    let object = store.get(key).await.ok_or_else(absent)?;
    if let Some(body) = object.whole() {
        return Ok(body.clone());
    }
    let mut body = Vec::new();
    let length = usize::try_from(object.body_bytes()).ok();
    if length.is_none_or(|length| body.try_reserve_exact(length).is_err()) {
        let message = format!("no memory for a file of {} bytes", object.body_bytes());
        return Err(CallFailure::new(NECTARY_BUSY, message));
    }
    let mut reader = object.reader(0..object.body_bytes());
    while let Some(piece) = reader.next().await {
        // If a piece has been overwritten meanwhile, the file is absent. A read a moment later would not find it
        // either.
        body.extend_from_slice(&piece?);
    }
    Ok(body.into())
}
