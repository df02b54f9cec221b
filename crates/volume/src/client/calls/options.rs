//! What a client is told when its session begins.

use nectary_host::tls::ClientTls;

use crate::format::VolumeIdentity;
use crate::net::ServerAddress;

/// The server of a session, and the identity of this client.
#[derive(Clone)]
pub struct ClientOptions {
    /// The addresses of the servers, one of which leads.
    pub servers: Vec<ServerAddress>,
    /// The client's TLS settings, if the server requires TLS.
    pub tls: Option<ClientTls>,
    /// The identity of the volume on this host's disk.
    pub volume: VolumeIdentity,
    /// The name of this host, for messages.
    pub host: String,
    /// The kind of client: 1 a FUSE mount, 2 a library.
    pub kind: u8,
    /// Whether changes of names are durable when a call returns.
    pub are_names_synced: bool,
    /// Whether the session makes and removes names itself, in directories that it alone uses.
    pub are_names_local: bool,
}
