//! The way from a URL to an export: connecting, TLS, and haggling (the negotiation of options).
//!
//! Owns: the order of these steps, and the deadline for all of them. Leaves to others: the messages (`handshake`).

use std::io;
use std::path::Path;
use std::time::Duration;

use nectary_host::tls::{ClientTls, explain};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::handshake::{ClientAgreement, ClientHandshake, ClientHandshakeAction, ConnectGoal, ListedExport};
use crate::error::{Error, NbdErrorKind};
use crate::limits::HANDSHAKE_TIME_MAX;
use crate::transport::{Transport, prepare, read_all};
use crate::url::{ExportAddress, ExportUrl};
use crate::wire::request::{self, WireRequestHeader};

/// The way in which a client connects. Callers start from the default and change single fields.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The certificates for TLS. By default, the client uses the certificates that the URL names, or those of the
    /// system.
    pub tls: Option<ClientTls>,
    /// Whether the device never connects again: after one of its connections has ended, all requests fail. This is for
    /// callers that must check the server before they connect again.
    pub is_single_session: bool,
    /// The unit of offsets and lengths, in bytes; a power of two. By default it is the server's smallest block, at least
    /// 512 bytes. A unit below 512 is for callers that need no real block device, and the server must accept it.
    pub unit_bytes: Option<u32>,
    /// Whether an export whose size is no multiple of the device's block is used to its last byte, see
    /// [`OpenOptions::pads_tail`](nectary_block::OpenOptions::pads_tail).
    pub pads_tail: bool,
    /// The limit of connecting and haggling together; by default [`HANDSHAKE_TIME_MAX`].
    pub handshake_time: Option<Duration>,
}

/// The result of connecting to a server.
pub(super) enum ConnectResult {
    /// An export and the stream of the connection. The stream can be used only if the goal was to read and write.
    Export(Transport, Box<ClientAgreement>),
    List(Vec<ListedExport>),
}

/// The certificates for a URL; `None` if its scheme has no TLS.
pub(super) fn load_tls(url: &ExportUrl, options: &ConnectOptions) -> Result<Option<ClientTls>, Error> {
    match (&options.tls, &url.tls_certificates) {
        _ if !url.tls => Ok(None),
        (Some(tls), _) => Ok(Some(tls.clone())),
        (None, None) => ClientTls::load(None, None).map(Some).map_err(|error| tls_error(url, &error)),
        (None, Some(folder)) => from_folder(folder).map(Some).map_err(|error| tls_error(url, &error)),
    }
}

/// Loads the certificates from a directory. The files have the same names as for other NBD clients.
fn from_folder(folder: &Path) -> Result<ClientTls, nectary_host::Error> {
    let (certificate, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
    let identity = certificate.exists().then_some((certificate.as_path(), key.as_path()));
    ClientTls::load(Some(&folder.join("ca-cert.pem")), identity)
}

fn tls_error(url: &ExportUrl, error: &nectary_host::Error) -> Error {
    Error::new(NbdErrorKind::Tls, url.to_string(), error.to_string())
}

/// Connects and negotiates the options, within the time that the options allow.
pub(super) async fn open(url: &ExportUrl, options: &ConnectOptions, goal: ConnectGoal) -> Result<ConnectResult, Error> {
    let tls = load_tls(url, options)?;
    let limit = options.handshake_time.unwrap_or(HANDSHAKE_TIME_MAX);
    match tokio::time::timeout(limit, haggle(url, tls, goal)).await {
        Ok(reached) => reached,
        Err(_) => {
            let message = format!("the server does not answer within {limit:?}");
            Err(Error::new(NbdErrorKind::TimedOut, url.to_string(), message))
        }
    }
}

async fn haggle(url: &ExportUrl, tls: Option<ClientTls>, goal: ConnectGoal) -> Result<ConnectResult, Error> {
    let mut stream =
        connect(&url.address).await.map_err(|error| Error::from_io(&error, &url.to_string(), "cannot connect"))?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            Error::new(NbdErrorKind::Protocol, url.to_string(), "the server ended the connection in the handshake")
        }
        // With TLS 1.3, a server refuses a certificate only after the client's part of the TLS handshake.
        _ => match explain(&error) {
            Some(text) => Error::new(NbdErrorKind::Tls, url.to_string(), format!("TLS: {text}")),
            None => Error::from_io(&error, &url.to_string(), "the handshake failed"),
        },
    };
    let mut machine = ClientHandshake::new(goal, &url.export, url.tls);
    loop {
        let mut bytes = vec![0; machine.wants()];
        // Reading is not buffered, because the bytes after STARTTLS must be read by TLS.
        read_all(&mut stream, &mut bytes).await.map_err(failed)?;
        let mut actions = std::collections::VecDeque::from(machine.take(&bytes));
        while let Some(action) = actions.pop_front() {
            match action {
                ClientHandshakeAction::Send(bytes) => stream.write_all(&bytes).await.map_err(failed)?,
                ClientHandshakeAction::StartTls => {
                    let Some(tls) = &tls else {
                        return Err(Error::new(NbdErrorKind::Tls, url.to_string(), "no certificates"));
                    };
                    let encrypted = tls.connect(&url.server_name(), stream).await;
                    let message = |error: io::Error| {
                        let text = explain(&error).unwrap_or_else(|| error.to_string());
                        format!("TLS with \"{}\": {text}", url.server_name())
                    };
                    stream = Box::new(
                        encrypted.map_err(|error| Error::new(NbdErrorKind::Tls, url.to_string(), message(error)))?,
                    );
                    actions.extend(machine.encrypted());
                }
                ClientHandshakeAction::Agreed { agreed, in_transmission } => {
                    if goal == ConnectGoal::Info && in_transmission {
                        let goodbye =
                            WireRequestHeader { flags: 0, command: request::DISC, cookie: 0, offset: 0, length: 0 };
                        stream.write_all(&goodbye.encode(agreed.headers)).await.map_err(failed)?;
                    }
                    stream.flush().await.map_err(failed)?;
                    if goal == ConnectGoal::Info {
                        let _ = stream.shutdown().await;
                    }
                    return Ok(ConnectResult::Export(stream, agreed));
                }
                ClientHandshakeAction::Listed(list) => {
                    let _ = stream.shutdown().await;
                    return Ok(ConnectResult::List(list));
                }
                ClientHandshakeAction::Fail(kind, message) => return Err(Error::new(kind, url.to_string(), message)),
            }
        }
        stream.flush().await.map_err(failed)?;
    }
}

async fn connect(address: &ExportAddress) -> io::Result<Transport> {
    match address {
        ExportAddress::Tcp(host, port) => {
            let stream = nectary_host::connect::connect(host, *port).await?;
            prepare(&stream);
            Ok(Box::new(stream))
        }
        ExportAddress::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}
