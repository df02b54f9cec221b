//! The errors of a proxy as a whole. An error in one request is answered over HTTP.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::listening::unix_socket::SocketFault;
use crate::rules::key_headers::KEY_HEADERS_MAX;

/// The reason why a proxy did not start, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no address to listen on.
    #[error("no address to listen on: give at least one")]
    NoAddress,
    /// The proxy cannot listen on an address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The proxy cannot listen on a Unix socket.
    #[error("cannot listen on unix:{path}: {fault}")]
    UnixSocket {
        /// The path of the socket.
        path: PathBuf,
        /// What is wrong.
        fault: SocketFault,
    },
    /// An address is given twice, for clients or for administration.
    #[error("the address {address} is given twice")]
    AddressTwice {
        /// The address.
        address: SocketAddr,
    },
    /// A listening socket that the process inherited has an address that is not named.
    #[error("no address to listen on is that of the inherited socket {}", .address.map_or("?".to_owned(), |it| it.to_string()))]
    Inherited {
        /// The address of the socket, if it is known.
        address: Option<SocketAddr>,
    },
    /// A Unix socket that the process inherited has a path that is not named.
    #[error("no address to listen on is that of the inherited socket unix:{}", .path.as_ref().map_or("?".to_owned(), |it| it.display().to_string()))]
    InheritedUnix {
        /// The path of the socket, if it has one.
        path: Option<PathBuf>,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {path}: {what}")]
    AccessLog {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file of certificates that are trusted for origins cannot be used.
    #[error("cannot trust the certificates in {path}: {what}")]
    OriginCa {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A certificate for clients cannot be used.
    #[error("cannot show the certificate in {path}: {what}")]
    Certificate {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file of certificates that must have signed those of clients cannot be used.
    #[error("cannot verify clients by the certificates in {path}: {what}")]
    ClientCa {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file of a certificate or key for clients cannot be read.
    #[error(transparent)]
    Tls(nectary_host::Error),
    /// Clients are to be sent to an address with TLS, and there is none.
    #[error("{address} sends clients to TLS, and there is no certificate: give --tls-cert and --tls-key")]
    RedirectWithoutTls {
        /// The address.
        address: SocketAddr,
    },
    /// Other machines can reach an address for administration, and there is no token.
    #[error(
        "the address for administration {address} can be reached from other machines: give a token \
         (--admin-token-file FILE), or listen on 127.0.0.1"
    )]
    AdminWithoutToken {
        /// The address.
        address: SocketAddr,
    },
    /// The file of the token for administration cannot be read, or does not hold a token.
    #[error("no token for administration in {path}: {what}")]
    AdminToken {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Too many headers are part of every key.
    #[error("{count} headers cannot be part of the key: at most {KEY_HEADERS_MAX} can")]
    KeyHeaders {
        /// The number of different headers.
        count: usize,
    },
    /// A configuration asks for what the proxy does not do, or names files that cannot be used.
    #[error(transparent)]
    Config(crate::configured::refused::ConfigProblems),
    /// The thread that orders certificates cannot start.
    #[error("cannot order certificates: {what}")]
    Acme {
        /// What is wrong.
        what: String,
    },
    /// A worker cannot start, or ended by a panic.
    #[error("worker {worker} {what}")]
    Worker {
        /// The index of the worker.
        worker: usize,
        /// What happened.
        what: String,
    },
}
