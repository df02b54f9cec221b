//! The metadata server of a volume.
//!
//! Owns: leadership, sockets, sessions and their leases. Promises: one server at a time, whatever else runs; answers
//! are sent only when they are durable; a server that lost its disk or its lease ends without further answers. Leaves
//! to others: what operations do (`metadata`), how they are stored (`journal`).
//!
//! | file | what is in it |
//! |---|---|
//! | `alone` | the lock that keeps a second server off this host |
//! | `leading` | the start: leadership, and the first append |
//! | `request`, `owner` | what is asked of the metadata; the task that does it, and answers when it is durable |
//! | `owner/storing` | appends, and answers that wait for them |
//! | `room` | segments of the journal, and checkpoints |
//! | `grants` | tokens: requests that wait, sessions that others wait for too long |
//! | `locking` | file locks: requests that wait |
//! | `pushes` | ends of files that kernels of other hosts are told |
//! | `presence`, `newest` | when a session was heard of; which connection of it counts |
//! | `batch`, `waits` | what is not stored yet; what the owner waits for |
//! | `connection` | one connection: greeting, requests, answers |

mod alone;
mod batch;
mod connection;
mod grants;
mod leading;
mod locking;
mod newest;
mod owner;
mod presence;
mod pushes;
mod request;
mod room;
mod waits;

use std::sync::Arc;

use nectary_block::SharedDevice;
use nectary_host::log::{Level, write as log};
use nectary_host::tls::ServerTls;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::net::{Address, Listener};
use crate::protocol::Failure;
pub use alone::alone;
pub use request::Overview;
use request::Request;

/// How a volume is served.
#[derive(Clone)]
pub struct ServerOptions {
    /// Where.
    pub listen: Vec<Address>,
    /// Certificates, if connections are encrypted.
    pub tls: Option<ServerTls>,
    /// The number of this server, below 32: no other one has it.
    pub number: u32,
    /// The name of this host, for messages.
    pub host: String,
    /// Whether no earlier process of this server is left on this host; [`alone`] tells.
    pub previous_gone: bool,
    /// Hosts of earlier servers that write nothing any more, as an operator says: by their names, or by incarnations in
    /// hexadecimal.
    pub said_gone: Vec<String>,
}

/// Why a server does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The disk, or what is on it.
    #[error(transparent)]
    Journal(#[from] crate::journal::Error),
    /// The records.
    #[error(transparent)]
    Records(#[from] Failure),
    /// This machine.
    #[error(transparent)]
    Machine(#[from] crate::client::Error),
    /// It cannot listen.
    #[error("{address}: {source}")]
    Listen {
        /// Where.
        address: Address,
        /// Why not.
        source: std::io::Error,
    },
    /// The journal is full, and there is no free segment.
    #[error("there is no room for the journal: start the server again, then {0}")]
    NoRoom(
        /// What to do.
        String,
    ),
    /// It ended by itself.
    #[error("the server ended: {0}")]
    Ended(String),
}

/// A running server.
pub struct Server {
    addresses: Vec<Address>,
    handle: Handle,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<Option<String>>,
    tasks: JoinSet<()>,
    owner: JoinHandle<Result<(), ServerError>>,
}

/// For the status of a server, and commands to it.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    seen: watch::Receiver<Overview>,
}

impl Handle {
    /// A recent state of the server.
    pub fn overview(&self) -> Overview {
        self.seen.borrow().clone()
    }

    /// An operator says that the host of a session writes nothing any more.
    ///
    /// *Errors*: there is no such session, or it is active.
    pub async fn release(&self, session: u64) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.send(Request::Release { session, reply }).await;
        answer.await.unwrap_or_else(|_| Err(gone())).map(drop)
    }
}

fn gone() -> Failure {
    Failure { code: crate::protocol::Code::NotLeader, errno: 0, words: "the server is ending".to_owned() }
}

impl Server {
    /// Becomes the server of the volume on `device`, and listens. If the previous server ended without resigning, this
    /// waits for its lease.
    ///
    /// *Errors*: another server leads; the disk; an address that cannot be listened on.
    pub async fn start(device: SharedDevice, options: ServerOptions) -> Result<Server, ServerError> {
        // First, so that a mistake shows at once.
        let mut listeners = Vec::new();
        for address in &options.listen {
            let listener = Listener::bind(address).await;
            listeners.push(listener.map_err(|source| ServerError::Listen { address: address.clone(), source })?);
        }
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let (owner, shared) = owner::Owner::start(device, &options).await?;
        let (requests, received) = mpsc::channel(request::REQUESTS_MAX);
        let (seen_by, seen) = watch::channel(owner.overview());
        let (stop, stopped) = watch::channel(false);
        let (ended_by, ended) = watch::channel(None);
        let owner = tokio::spawn(async move {
            let result = owner.run(received, seen_by, stopped).await;
            if let Err(error) = &result {
                let _ = ended_by.send_replace(Some(error.to_string()));
            }
            result
        });
        let handle = Handle { requests: requests.clone(), seen };
        let context = Arc::new(connection::Context { requests, shared, tls: options.tls.clone() });
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn(accept(listener, context.clone()));
        }
        Ok(Server { addresses, handle, stop, ended, tasks, owner })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// For its status.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the server ends by itself, and returns the reason.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            // The owner has ended on request.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends it: connections are closed, everything is durable, and the next server need not wait for the lease.
    ///
    /// *Errors*: what could not be stored.
    pub async fn stop(mut self) -> Result<(), ServerError> {
        self.tasks.shutdown().await;
        let _ = self.stop.send_replace(true);
        self.owner.await.unwrap_or_else(|error| Err(ServerError::Ended(error.to_string())))
    }
}

/// Accepts connections until it is dropped, and with it all of them.
async fn accept(listener: Listener, context: Arc<connection::Context>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) if connections.len() < connection::CONNECTIONS_MAX => {
                    let context = context.clone();
                    connections.spawn(async move { connection::serve(&context, stream, &peer).await });
                }
                Ok((_, peer)) => {
                    log(Level::Warning, "volume", format_args!("{peer}: turned away, there are too many connections"));
                }
                Err(error) => {
                    log(Level::Warning, "volume", format_args!("{}: {error}", listener.address()));
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
