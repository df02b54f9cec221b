//! Threads that serve connections. Each thread has its own single-threaded runtime.
//!
//! Owns: the choice of the thread for a connection (the one with the fewest connections), and the end of the threads. A
//! connection stays on its thread, so that the task that reads requests and the task that writes replies wake each
//! other on the same processor. Promises: when [`ConnectionThreads::end`] returns, all connections and all threads have ended.
//! Leaves to others: accepting clients, and serving a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use nectary_host::Newcomer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::listen::DetachedClient;
use super::{NbdServerState, serve_and_count};
use crate::error::Error;
use crate::limits::CONNECTIONS_MAX;

/// A client that is moved to a thread, with its name.
type Client = (DetachedClient, String, Newcomer);

/// The threads of one address.
pub(super) struct ConnectionThreads {
    list: Vec<ServingThread>,
    /// The channel that is closed when every thread has dropped its sender.
    ended: mpsc::Receiver<()>,
}

struct ServingThread {
    connections: mpsc::Sender<Client>,
    /// The number of connections on the thread.
    count: Arc<AtomicUsize>,
    handle: JoinHandle<()>,
}

impl ConnectionThreads {
    /// Starts `count` threads. *Errors*: the system's error if it refuses a thread.
    pub fn start(count: usize, shared: &Arc<NbdServerState>) -> Result<ConnectionThreads, Error> {
        let failed = |error: std::io::Error| Error::from_io(&error, "the server", "cannot start a thread");
        let (running, ended) = mpsc::channel(1);
        let mut list = Vec::with_capacity(count);
        for index in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
            let (connections, queue) = mpsc::channel(CONNECTIONS_MAX);
            let count = Arc::new(AtomicUsize::new(0));
            let (shared, counted, running) = (shared.clone(), count.clone(), running.clone());
            let thread = std::thread::Builder::new().name(format!("nbd-{index}"));
            let handle = thread.spawn(move || {
                runtime.block_on(serve_all(queue, &counted, &shared));
                drop((runtime, running));
            });
            list.push(ServingThread { connections, count, handle: handle.map_err(failed)? });
        }
        Ok(ConnectionThreads { list, ended })
    }

    /// Gives a connection to the thread with the fewest connections. Waits if the queue of that thread is full.
    pub async fn serve(&self, stream: DetachedClient, peer: String, newcomer: Newcomer) {
        let Some(thread) = self.list.iter().min_by_key(|thread| thread.count.load(Ordering::Relaxed)) else { return };
        thread.count.fetch_add(1, Ordering::Relaxed);
        // Sending fails only if the thread has panicked. The connection then ends, too.
        let _ = thread.connections.send((stream, peer, newcomer)).await;
    }

    /// Waits for all connections, and then for the threads.
    pub async fn end(mut self) {
        let handles: Vec<_> = self.list.drain(..).map(|thread| thread.handle).collect();
        while self.ended.recv().await.is_some() {}
        // All connections have ended, so the threads end soon.
        for handle in handles {
            let _ = handle.join();
        }
    }
}

async fn serve_all(mut queue: mpsc::Receiver<Client>, count: &Arc<AtomicUsize>, shared: &Arc<NbdServerState>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer, newcomer) = tokio::select! {
            Some(_) = connections.join_next() => continue,
            next = queue.recv() => match next {
                Some(next) => next,
                None => break,
            },
        };
        let (shared, count) = (shared.clone(), count.clone());
        connections.spawn(async move {
            serve_and_count(stream.arrive(), peer, newcomer, &shared).await;
            count.fetch_sub(1, Ordering::Relaxed);
        });
    }
    while connections.join_next().await.is_some() {}
}
