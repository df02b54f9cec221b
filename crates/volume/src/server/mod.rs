//! The metadata server of a volume.
//!
//! Owns: leadership, sockets, sessions and their leases. Promises: a volume has one server at a time, whatever else
//! runs; an answer is sent only when everything that it shows is durable, and only under the leader's lease; a server
//! that lost its disk or its lease ends without further answers. Leaves to others: the effect of operations (`metadata`), and storing them (`journal`).
//!
//! | file | what is in it |
//! |---|---|
//! | `alone` | the lock that keeps a second server off this host |
//! | `leading` | the start: leadership, and the first append |
//! | `request`, `owner` | what is asked of the metadata; the task that does it, and answers when it is durable |
//! | `owner/storing` | appends, and answers that wait for them |
//! | `room` | segments of the journal, and checkpoints |
//! | `grants` | tokens: requests that wait, sessions that others wait for too long |
//! | `changing` | operations that wait until no other session keeps what they change |
//! | `locking` | file locks: requests that wait |
//! | `pushes` | ends of files that kernels of other hosts are told |
//! | `presence`, `newest` | when a session last renewed its lease; which of its connections is the newest |
//! | `proofs` | sessions whose processes have ended, as a kernel proves |
//! | `silence` | a disk that does not answer |
//! | `long_waits` | what waits for long, for the status |
//! | `batch`, `waits` | transactions that are not stored yet; what the owner waits for |
//! | `connection` | one connection: greeting, requests, answers |

mod alone;
mod batch;
mod changing;
mod connection;
mod grants;
mod leading;
mod locking;
mod long_waits;
mod newest;
mod owner;
mod places;
mod presence;
mod proofs;
mod pushes;
mod request;
mod room;
mod silence;
mod waits;

use std::sync::Arc;

use nectary_block::SharedDevice;
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_host::tls::ServerTls;
use nectary_host::{Newcomers, descriptors};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::net::{ServerAddress, StreamListener};
use crate::protocol::ServerRefusal;
pub use alone::alone;
pub use long_waits::{LongWait, ServerWaits, WAIT_SHOWN, WaitSubject};
use places::ServerSeats;
use request::OwnerRequest;
pub use request::ServerOverview;

/// The options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The addresses to listen on.
    pub listen: Vec<ServerAddress>,
    /// Certificates, if connections are encrypted.
    pub tls: Option<ServerTls>,
    /// The number of this server, below 32; no other server of the volume may have it.
    pub number: u32,
    /// The name of this host, for messages.
    pub host: String,
    /// Whether no earlier process with this server's number is left on this host; [`alone`] checks this.
    pub previous_gone: bool,
    /// Hosts of earlier servers that the operator confirms gone: they write nothing any more. Each is a host name, or
    /// an incarnation in hexadecimal.
    pub said_gone: Vec<String>,
}

/// Why a server does not start, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The disk failed, or its contents are damaged or unsuitable.
    #[error(transparent)]
    Journal(#[from] crate::journal::Error),
    /// The records contradict each other.
    #[error(transparent)]
    Records(#[from] ServerRefusal),
    /// The server cannot listen on an address.
    #[error("{address}: {source}")]
    Listen {
        /// The address.
        address: ServerAddress,
        /// The cause.
        source: std::io::Error,
    },
    /// Too few files may be open at a time.
    #[error("{0}")]
    TooFewDescriptors(
        /// How many are needed.
        String,
    ),
    /// The journal is full, and the disk has no free segment.
    #[error("there is no room for the journal: start the server again, then {0}")]
    NoRoom(
        /// The text that says what the operator can do.
        String,
    ),
    /// The server ended without a request to stop.
    #[error("the server ended: {0}")]
    Ended(String),
}

/// A running metadata server.
pub struct MetadataServer {
    addresses: Vec<ServerAddress>,
    handle: ServerHandle,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<Option<String>>,
    tasks: JoinSet<()>,
    owner: JoinHandle<Result<(), ServerError>>,
}

/// Gives the status of a server, and sends commands to it.
#[derive(Clone)]
pub struct ServerHandle {
    requests: mpsc::Sender<OwnerRequest>,
    seen: watch::Receiver<ServerOverview>,
}

impl ServerHandle {
    /// Returns a recent state of the server.
    pub fn overview(&self) -> ServerOverview {
        self.seen.borrow().clone()
    }

    /// Releases the space of an ended session, because an operator confirms that its host writes nothing any more.
    ///
    /// *Errors*: `Ended` if the session does not exist, `Conflict` if its mount runs.
    pub async fn release(&self, session: u64) -> Result<(), ServerRefusal> {
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.send(OwnerRequest::Release { session, reply }).await;
        answer.await.unwrap_or_else(|_| Err(gone())).map(drop)
    }
}

fn gone() -> ServerRefusal {
    ServerRefusal { code: crate::protocol::RefusalCode::NotLeader, errno: 0, words: "the server is ending".to_owned() }
}

impl MetadataServer {
    /// Becomes the server of the volume on `device`, and listens. If the previous server ended without resigning, the
    /// start waits for that server's lease.
    ///
    /// *Errors*: another server leads; the disk fails; an address cannot be listened on; too few files may be open.
    pub async fn start(device: SharedDevice, options: ServerOptions) -> Result<MetadataServer, ServerError> {
        MetadataServer::start_for(device, options, connection::CONNECTIONS_MAX).await
    }

    /// Like [`start`](MetadataServer::start), for fewer connections than usual.
    pub async fn start_for(
        device: SharedDevice,
        options: ServerOptions,
        connections_max: usize,
    ) -> Result<MetadataServer, ServerError> {
        // Listening comes first, so that a wrong address is reported at once.
        let mut listeners = Vec::new();
        for address in &options.listen {
            let listener = StreamListener::bind(address).await;
            listeners.push(listener.map_err(|source| ServerError::Listen { address: address.clone(), source })?);
        }
        let places = ServerSeats::new(connections_max).map_err(ServerError::TooFewDescriptors)?;
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let (owner, shared, pulse) = owner::MetadataOwner::start(device, &options).await?;
        let (requests, received) = mpsc::channel(request::REQUESTS_MAX);
        let (seen_by, seen) = watch::channel(owner.overview());
        let (stop, stopped) = watch::channel(false);
        let (ended_by, ended) = watch::channel(None);
        let (epoch, lease) = (shared.epoch, shared.lease.clone());
        let owner = tokio::spawn(async move {
            let result = tokio::select! {
                result = owner.run(received, seen_by, stopped) => result,
                error = silence::silent(pulse, epoch, lease.length()) => Err(error),
            };
            // What still waits to be sent is never sent.
            lease.end();
            if let Err(error) = &result {
                let _ = ended_by.send_replace(Some(error.to_string()));
            }
            result
        });
        let handle = ServerHandle { requests: requests.clone(), seen };
        let context = Arc::new(connection::ConnectionContext {
            requests,
            shared,
            tls: options.tls.clone(),
            places,
            newcomers: Newcomers::default(),
        });
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn(accept(listener, context.clone()));
        }
        Ok(MetadataServer { addresses, handle, stop, ended, tasks, owner })
    }

    /// Returns the addresses that the server listens on.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Returns a handle for status and commands.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Waits until the server ends by itself, and returns the reason.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            // The owner has ended because it was told to stop.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the server: connections are closed, everything is made durable, and the next server need not wait for the
    /// lease.
    ///
    /// *Errors*: the journal cannot be written or is full, or the server has already ended with the returned error.
    pub async fn stop(mut self) -> Result<(), ServerError> {
        self.tasks.shutdown().await;
        let _ = self.stop.send_replace(true);
        self.owner.await.unwrap_or_else(|error| Err(ServerError::Ended(error.to_string())))
    }
}

/// Accepts connections. When this future is dropped, all its connections end.
async fn accept(listener: StreamListener, context: Arc<connection::ConnectionContext>) {
    static LOGGED: LogThrottle = LogThrottle::every(std::time::Duration::from_secs(60));
    let mut connections = JoinSet::new();
    // Connections that have not greeted give their place up if there is no room for another client.
    let (places, newcomers) = (&context.places, &context.newcomers);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let opened = places.open().or_else(|| newcomers.displace().then(|| places.open_anyway()));
                    let Some(opened) = opened else {
                        descriptors::note_refused(places.refusal());
                        LOGGED.write(LogLevel::Warning, "volume", format_args!("{peer}: {}", places.refusal()));
                        continue;
                    };
                    let (context, newcomer) = (context.clone(), newcomers.add());
                    connections.spawn(async move {
                        connection::serve(&context, stream, &peer, newcomer).await;
                        drop(opened);
                    });
                }
                Err(error) => {
                    descriptors::note_failed_accept(&error);
                    LOGGED.write(LogLevel::Warning, "volume", format_args!("{}: {error}", listener.address()));
                    // Perhaps no descriptor is free.
                    newcomers.displace();
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
