//! The origin: an HTTP/1.1 server whose answers can be predicted, counted and deliberately broken.
//!
//! A target is `/anything/<id>?size=N&cc=TEXT&chunked&…` (see [`TargetAnswer`]); its bytes are `content(target, version)`.
//! At run time a version can be bumped ([`DeterministicOrigin::bump`]), which replaces the object, and a [`OriginBehaviour`] can be
//! planted, which breaks its answers. Requests are counted by target, so that a test can show that an object was
//! fetched only once.
//!
//! The origin runs on one thread with its own runtime, which ends when the [`DeterministicOrigin`] is dropped. It is meant only for
//! a proxy under test: it checks only the parts of a request that it needs for the answer.

mod connection;
mod resource;

pub use resource::TargetAnswer;

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The misbehaviours of an origin. Byte positions count body bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginBehaviour {
    /// Announces the whole body, but closes after this many bytes.
    DieAfter(u64),
    /// Announces the whole body, but resets the connection after this many bytes.
    ResetAfter(u64),
    /// Uses chunks; closes after this many bytes, without the last chunk.
    ChunkedDieAfter(u64),
    /// Uses chunks; after this many bytes sends a chunk size that is not a number.
    ChunkedNonsenseAfter(u64),
    /// Announces this many bytes fewer than it sends.
    LieShorter(u64),
    /// Announces this many bytes more than it sends, then closes.
    LieLonger(u64),
    /// Sends pieces of a body with a pause between them.
    Slow {
        /// The number of bytes sent at once.
        piece_bytes: u64,
        /// The pause after each piece.
        pause: Duration,
    },
    /// Reads the request and never answers.
    Silent,
    /// Sends the head and this many bytes, then nothing more while the connection lasts.
    StallAfter(u64),
    /// Answers with bytes that are not HTTP.
    Nonsense,
    /// Sends both `Content-Length` and `Transfer-Encoding`.
    BothFramings,
    /// Sends two `Content-Length` fields that differ.
    TwoLengths,
    /// Sends about this many bytes of header fields, and never the end of the head.
    EndlessHead(u64),
    /// Sends a chunked body of this many bytes, however long that is.
    EndlessBody(u64),
    /// Closes at once, without an answer.
    CloseAtOnce,
    /// Answers with this status and a short body.
    Status(u16),
}

/// The counts of the requests for a target, and of the answers by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests with a validator (`If-None-Match`).
    pub conditional: u64,
    /// The number of answers with status 304.
    pub not_modified: u64,
    /// The number of answers that were sent completely.
    pub whole: u64,
}

/// State that the connections and the owner share.
#[derive(Debug, Default)]
pub(crate) struct OriginSharedState {
    targets: Mutex<HashMap<String, TargetState>>,
    requests: AtomicU64,
    body_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct TargetState {
    bumps: u64,
    behaviour: Option<OriginBehaviour>,
    count: TargetCounts,
    asked_at: Option<Instant>,
}

impl OriginSharedState {
    fn targets(&self) -> MutexGuard<'_, HashMap<String, TargetState>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, target: &str, change: impl FnOnce(&mut TargetState) -> T) -> T {
        let mut targets = self.targets();
        if let Some(found) = targets.get_mut(target) {
            return change(found);
        }
        change(targets.entry(target.to_owned()).or_default())
    }
}

/// A running origin.
#[derive(Debug)]
pub struct DeterministicOrigin {
    address: SocketAddr,
    shared: Arc<OriginSharedState>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl DeterministicOrigin {
    /// Starts an origin on a free port of 127.0.0.1.
    pub fn start() -> Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Starts an origin on this address; port 0 takes a free one.
    pub fn start_at(address: SocketAddr) -> Result<Self> {
        let listener = std::net::TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(OriginSharedState::default());
        let (stop, stopped) = watch::channel(false);
        let connections = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("origin".to_owned()).spawn(move || {
            runtime.block_on(connection::serve(listener, connections, stopped));
            // Dropping the runtime drops every connection that is still open.
        })?;
        Ok(Self { address, shared, stop, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the origin, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the object: the next answer has a new version. Returns that version.
    pub fn bump(&self, target: &str) -> u64 {
        self.shared.with(target, |found| {
            found.bumps += 1;
            found.bumps + 1
        })
    }

    /// The version that the origin serves now; the first is 1.
    pub fn version(&self, target: &str) -> u64 {
        self.shared.targets().get(target).map_or(1, |found| found.bumps + 1)
    }

    /// Makes a target misbehave from the next request on, or behave again.
    pub fn set_behaviour(&self, target: &str, behaviour: Option<OriginBehaviour>) {
        self.shared.with(target, |found| found.behaviour = behaviour);
    }

    /// The counts of the requests for this target and of their answers.
    pub fn count(&self, target: &str) -> TargetCounts {
        self.shared.targets().get(target).map_or_else(TargetCounts::default, |found| found.count)
    }

    /// The time of the latest request for this target.
    pub fn asked_at(&self, target: &str) -> Option<Instant> {
        self.shared.targets().get(target)?.asked_at
    }

    /// Requests for all targets.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Body bytes sent for all targets.
    pub fn body_bytes(&self) -> u64 {
        self.shared.body_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for DeterministicOrigin {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
