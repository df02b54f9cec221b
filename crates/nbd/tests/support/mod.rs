//! The parts that the tests of this crate share: a server on its own socket, and a client that can send any bytes.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nectary_block::SharedDevice;
use nectary_nbd::{
    ConnectOptions, Export, ExportTable, ExportUrl, ListenEndpoint, NbdDevice, NetworkBlockServer, ServerOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The longest time for which a test waits.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server with one export called "disk".
pub struct DiskServer {
    pub server: NetworkBlockServer,
    pub socket: PathBuf,
}

/// Serves a device.
pub fn serve(device: SharedDevice, read_only: bool) -> DiskServer {
    serve_with(device, read_only, ServerOptions::default())
}

/// Serves a device with `threads` threads of the server.
pub fn serve_from_threads(device: SharedDevice, threads: usize) -> DiskServer {
    let mut options = ServerOptions::default();
    options.threads = threads;
    serve_with(device, false, options)
}

/// Serves a device to at most `connections_max` clients.
pub fn serve_few(device: SharedDevice, threads: usize, connections_max: usize) -> DiskServer {
    let mut options = ServerOptions::default();
    (options.threads, options.connections_max) = (threads, connections_max);
    serve_with(device, false, options)
}

fn serve_with(device: SharedDevice, read_only: bool, options: ServerOptions) -> DiskServer {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("nectary-nbd-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let socket = std::env::temp_dir().join(name);
    let export = Export::new("disk", "a disk for tests", device, read_only).unwrap();
    let exports = ExportTable::new(vec![export]).unwrap();
    let server = NetworkBlockServer::start(&[ListenEndpoint::Unix(socket.clone())], exports, options).unwrap();
    DiskServer { server, socket }
}

impl DiskServer {
    /// The URL of the export.
    pub fn url(&self, connections: u32) -> ExportUrl {
        ExportUrl::parse(&format!("{}&x-connections={connections}", self.server.urls()[0])).unwrap()
    }

    /// Connects to the export; returns it as a device.
    pub async fn device(&self, connections: u32) -> Arc<NbdDevice> {
        Arc::new(NbdDevice::connect(&self.url(connections), ConnectOptions::default()).await.unwrap())
    }

    /// Connects a client that has sent its flags and can negotiate options.
    pub async fn raw(&self) -> RawClient {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes()).await.unwrap();
        RawClient { stream, is_structured: false, is_extended: false }
    }

    /// Connects a client that has chosen the export and can send requests. The server answers with simple replies.
    pub async fn transmitting(&self) -> RawClient {
        let mut raw = self.raw().await;
        raw.go().await;
        raw
    }
}

/// A client that can send any bytes.
pub struct RawClient {
    pub stream: UnixStream,
    is_structured: bool,
    is_extended: bool,
}

/// A reply in transmission.
#[derive(Debug, PartialEq, Eq)]
pub struct RawReply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

impl RawClient {
    async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let read = tokio::time::timeout(PATIENCE, self.stream.read_exact(&mut bytes)).await;
        read.expect("the server answers in time").expect("the connection lives");
        bytes
    }

    async fn number(&mut self, bytes: usize) -> u64 {
        self.bytes(bytes).await.iter().fold(0, |number, &byte| (number << 8) | u64::from(byte))
    }

    /// Waits until the server ends the connection; false if the server does not end it. Bytes before the end are
    /// ignored.
    pub async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.is_ok()
    }

    /// Sends an option.
    pub async fn option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Reads one reply to an option; returns its type and data.
    pub async fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.number(8).await, 0x3_e889_0455_65a9);
        assert_eq!(self.number(4).await, u64::from(option));
        let reply = self.number(4).await as u32;
        let length = self.number(4).await as usize;
        (reply, self.bytes(length).await)
    }

    /// Negotiates structured replies.
    pub async fn structured(&mut self) {
        self.option(8, &[]).await;
        assert_eq!(self.option_reply(8).await.0, 1);
        self.is_structured = true;
    }

    /// Negotiates extended headers.
    pub async fn extended(&mut self) {
        self.option(11, &[]).await;
        assert_eq!(self.option_reply(11).await.0, 1);
        self.is_extended = true;
    }

    /// Selects the export; returns its size and flags.
    pub async fn go(&mut self) -> (u64, u16) {
        self.option(7, &named("disk", &0u16.to_be_bytes())).await;
        let (reply, data) = self.option_reply(7).await;
        assert_eq!((reply, &data[..2]), (3, &[0, 0][..]));
        assert_eq!(self.option_reply(7).await.0, 1);
        (u64::from_be_bytes(data[2..10].try_into().unwrap()), u16::from_be_bytes([data[10], data[11]]))
    }

    /// Sends a request.
    pub async fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        // With extended headers, a flag says that data follow.
        let payload = if self.is_extended && command == 1 { 1 << 5 } else { 0 };
        self.send(command, flags | payload, cookie, offset, u64::from(length), data).await;
    }

    /// Sends a request with exactly these flags.
    async fn send(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u64, data: &[u8]) {
        let magic = if self.is_extended { 0x21e4_1c71u32 } else { 0x2560_9513 };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        match self.is_extended {
            true => bytes.extend(length.to_be_bytes()),
            false => bytes.extend((length as u32).to_be_bytes()),
        }
        bytes.extend(data);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Reads one reply. `length` is the number of bytes of data in a simple reply to a successful read.
    pub async fn reply(&mut self, length: usize) -> RawReply {
        let magic = self.number(4).await;
        if magic == 0x6744_6698 {
            let (error, cookie) = (self.number(4).await as u32, self.number(8).await);
            let data = if error == 0 { self.bytes(length).await } else { Vec::new() };
            return RawReply { cookie, error, data };
        }
        assert_eq!(magic, if self.is_extended { 0x6e8a_278c } else { 0x668e_33ef });
        let (flags, kind, cookie) = (self.number(2).await, self.number(2).await, self.number(8).await);
        assert_eq!(flags & 1, 1, "this client wants one chunk");
        if self.is_extended {
            self.number(8).await;
        }
        let length = self.number(if self.is_extended { 8 } else { 4 }).await as usize;
        let payload = self.bytes(length).await;
        match kind {
            0 => RawReply { cookie, error: 0, data: Vec::new() },
            1 => RawReply { cookie, error: 0, data: payload[8..].to_vec() },
            5 => RawReply { cookie, error: 0, data: payload[4..].to_vec() },
            6 => RawReply { cookie, error: 0, data: payload[8..].to_vec() },
            _ => RawReply { cookie, error: u32::from_be_bytes(payload[..4].try_into().unwrap()), data: Vec::new() },
        }
    }

    /// Sends a request of any length, with exactly these flags, and reads its reply.
    pub async fn ask_long(&mut self, command: u16, flags: u16, offset: u64, length: u64, data: &[u8]) -> RawReply {
        self.send(command, flags, 78, offset, length, data).await;
        let reply = self.reply(0).await;
        assert_eq!(reply.cookie, 78);
        reply
    }

    /// Sends a request and reads its reply.
    pub async fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> RawReply {
        self.request(command, flags, 77, offset, length, data).await;
        let reply = self.reply(if command == 0 { length as usize } else { 0 }).await;
        assert_eq!(reply.cookie, 77);
        reply
    }
}

/// Encodes the name of an export in the form that options use, and appends `rest`.
pub fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}
