//! Servers that speak the protocol as far as a script says.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::PATIENCE;
use nectary_nbd::{ConnectOptions, Error, ExportUrl, NbdDevice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The greeting of a server that knows the fixed newstyle and leaves the zeroes out.
pub const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// The place of a socket that exists as long as this value.
pub struct TemporarySocketPath(PathBuf);

impl TemporarySocketPath {
    pub fn new() -> TemporarySocketPath {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nectary-nbd-script-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        TemporarySocketPath(std::env::temp_dir().join(name))
    }

    pub fn url(&self) -> ExportUrl {
        ExportUrl::parse(&format!("nbd+unix:///disk?socket={}&x-connections=1", self.0.display())).unwrap()
    }
}

impl Drop for TemporarySocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A server that speaks the protocol as far as its script says.
pub struct ScriptedServer(pub UnixStream);

impl ScriptedServer {
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// Reads an option; returns its number.
    pub async fn option(&mut self) -> Option<u32> {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).await.ok()?;
        let number = |range: std::ops::Range<usize>| u32::from_be_bytes(header[range].try_into().unwrap());
        let mut data = vec![0; number(12..16) as usize];
        self.0.read_exact(&mut data).await.ok()?;
        Some(number(8..12))
    }

    pub async fn reply(&mut self, option: u32, reply: u32, data: &[u8]) {
        let mut bytes = 0x3_e889_0455_65a9u64.to_be_bytes().to_vec();
        for number in [option, reply, data.len() as u32] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(data);
        self.send(&bytes).await;
    }

    /// Haggles until the client has an export with this size, flags and block sizes. False if the client left.
    pub async fn agree(&mut self, size: u64, flags: u16, blocks: Option<[u32; 3]>) -> bool {
        self.agree_on(size, flags, blocks, false).await
    }

    /// Does the same, with extended headers if `is_extended`.
    pub async fn agree_on(&mut self, size: u64, flags: u16, blocks: Option<[u32; 3]>, is_extended: bool) -> bool {
        self.send(GREETING).await;
        let mut flags_of_client = [0; 4];
        if self.0.read_exact(&mut flags_of_client).await.is_err() {
            return false;
        }
        while let Some(option) = self.option().await {
            if option == 11 && is_extended {
                self.reply(option, 1, b"").await;
                continue;
            }
            if option != 6 && option != 7 {
                self.reply(option, (1 << 31) | 1, b"").await;
                continue;
            }
            let export = [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
            self.reply(option, 3, &export).await;
            if let Some(blocks) = blocks {
                let sizes = [&[0, 3][..], &blocks.map(u32::to_be_bytes).concat()].concat();
                self.reply(option, 3, &sizes).await;
            }
            self.reply(option, 1, b"").await;
            if option == 7 {
                return true;
            }
        }
        false
    }
}

/// Runs `script` for each connection, one after another, while `work` runs.
pub async fn against<T, S>(
    place: &TemporarySocketPath,
    script: impl Fn(ScriptedServer) -> S,
    work: impl Future<Output = T>,
) -> T
where
    S: Future<Output = ()>,
{
    let listener = UnixListener::bind(&place.0).unwrap();
    let serving = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            script(ScriptedServer(stream)).await;
        }
    };
    tokio::select! {
        done = tokio::time::timeout(PATIENCE, work) => done.expect("the client ends in time"),
        () = serving => unreachable!(),
    }
}

pub async fn connect(place: &TemporarySocketPath) -> Result<NbdDevice, Error> {
    NbdDevice::connect(&place.url(), ConnectOptions::default()).await
}

/// The header of a structured or simple request: command, cookie, offset and length.
pub async fn request(script: &mut ScriptedServer) -> Option<(u16, u64, u64, u32)> {
    let mut bytes = [0; 28];
    script.0.read_exact(&mut bytes).await.ok()?;
    Some((
        u16::from_be_bytes(bytes[6..8].try_into().unwrap()),
        u64::from_be_bytes(bytes[8..16].try_into().unwrap()),
        u64::from_be_bytes(bytes[16..24].try_into().unwrap()),
        u32::from_be_bytes(bytes[24..].try_into().unwrap()),
    ))
}

pub async fn answer(script: &mut ScriptedServer, cookie: u64, data: &[u8]) {
    let head = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat();
    script.send(&[&head, data].concat()).await;
}

pub async fn refuse(script: &mut ScriptedServer, cookie: u64, error: u32) {
    let reply = [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat();
    script.send(&reply).await;
}
