//! A client and servers that are faulty, or describe unusual exports: each script plays one server.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::PATIENCE;
use nectary_block::{BlockDevice, Buffer, Context, ErrorKind, read, write};
use nectary_nbd::{ConnectOptions, Error, ErrorKind as Kind, NbdDevice, Url, info, list};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The greeting of a server that knows the fixed newstyle and leaves the zeroes out.
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// The place of a socket that exists as long as this value.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nectary-nbd-script-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Place(std::env::temp_dir().join(name))
    }

    fn url(&self) -> Url {
        Url::parse(&format!("nbd+unix:///disk?socket={}&x-connections=1", self.0.display())).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A server that speaks the protocol as far as its script says.
struct Script(UnixStream);

impl Script {
    async fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// Reads an option; returns its number.
    async fn option(&mut self) -> Option<u32> {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).await.ok()?;
        let number = |range: std::ops::Range<usize>| u32::from_be_bytes(header[range].try_into().unwrap());
        let mut data = vec![0; number(12..16) as usize];
        self.0.read_exact(&mut data).await.ok()?;
        Some(number(8..12))
    }

    async fn reply(&mut self, option: u32, reply: u32, data: &[u8]) {
        let mut bytes = 0x3_e889_0455_65a9u64.to_be_bytes().to_vec();
        for number in [option, reply, data.len() as u32] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(data);
        self.send(&bytes).await;
    }

    /// Haggles until the client has an export with this size, flags and block sizes. False if the client left.
    async fn agree(&mut self, size: u64, flags: u16, blocks: Option<[u32; 3]>) -> bool {
        self.send(GREETING).await;
        let mut flags_of_client = [0; 4];
        if self.0.read_exact(&mut flags_of_client).await.is_err() {
            return false;
        }
        while let Some(option) = self.option().await {
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
async fn against<T, S>(place: &Place, script: impl Fn(Script) -> S, work: impl Future<Output = T>) -> T
where
    S: Future<Output = ()>,
{
    let listener = UnixListener::bind(&place.0).unwrap();
    let serving = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            script(Script(stream)).await;
        }
    };
    tokio::select! {
        done = tokio::time::timeout(PATIENCE, work) => done.expect("the client ends in time"),
        () = serving => unreachable!(),
    }
}

async fn connect(place: &Place) -> Result<NbdDevice, Error> {
    NbdDevice::connect(&place.url(), ConnectOptions::default()).await
}

#[tokio::test]
async fn partition_tables_of_small_sectors_are_read() {
    for (blocks, sector) in [
        (None, 512),
        (Some([1, 4096, 32 << 20]), 512),
        (Some([512, 65536, 32 << 20]), 512),
        (Some([4096, 4096, 32 << 20]), 4096),
    ] {
        let place = Place::new();
        let script = |mut script: Script| async move {
            script.agree(1 << 20, 1, blocks).await;
        };
        let device = against(&place, script, connect(&place)).await.unwrap();
        assert_eq!((device.geometry().block_bytes, device.sector_bytes()), (sector, sector), "{blocks:?}");
    }
}

#[tokio::test]
async fn export_of_two_to_the_63_is_refused() {
    for (size, is_taken) in [(1 << 63, false), (u64::MAX, false), ((1 << 63) - 512, true)] {
        let place = Place::new();
        let script = |mut script: Script| async move {
            script.agree(size, 1, None).await;
        };
        let found = against(&place, script, connect(&place)).await;
        match found {
            Ok(device) => assert!(is_taken && device.geometry().size_bytes == size, "{size}"),
            Err(error) => assert!(!is_taken && error.message.contains("less than 8E"), "{size}: {error}"),
        }
        let place = Place::new();
        let found = against(&place, script, async { info(&place.url(), &ConnectOptions::default()).await }).await;
        assert_eq!(found.is_ok(), is_taken, "{size}");
    }
}

/// The header of a structured or simple request: command, cookie, offset and length.
async fn request(script: &mut Script) -> Option<(u16, u64, u64, u32)> {
    let mut bytes = [0; 28];
    script.0.read_exact(&mut bytes).await.ok()?;
    Some((
        u16::from_be_bytes(bytes[6..8].try_into().unwrap()),
        u64::from_be_bytes(bytes[8..16].try_into().unwrap()),
        u64::from_be_bytes(bytes[16..24].try_into().unwrap()),
        u32::from_be_bytes(bytes[24..].try_into().unwrap()),
    ))
}

async fn answer(script: &mut Script, cookie: u64, data: &[u8]) {
    let head = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat();
    script.send(&[&head, data].concat()).await;
}

#[tokio::test]
async fn cut_reads_are_sent_again() {
    let place = Place::new();
    let connections = AtomicU32::new(0);
    // The first connection ends in the middle of the answer, the second one before it, and the third one answers.
    let script = |mut script: Script| {
        let number = connections.fetch_add(1, Ordering::Relaxed);
        async move {
            script.agree(1 << 20, 1, None).await;
            while let Some((_, cookie, offset, length)) = request(&mut script).await {
                match number {
                    0 => return answer(&mut script, cookie, &vec![1; length as usize / 2]).await,
                    1 => return,
                    _ => answer(&mut script, cookie, &vec![(offset / 4096) as u8; length as usize]).await,
                }
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        assert!(read(&device, 7 * 4096, 8192).await.unwrap().iter().all(|&byte| byte == 7));
        device.figures()[0].get("reconnects")
    };
    assert_eq!(against(&place, script, work).await, Some(2));
}

#[tokio::test]
async fn server_that_always_cuts_is_an_error() {
    let place = Place::new();
    let script = |mut script: Script| async move {
        script.agree(1 << 20, 1, None).await;
        request(&mut script).await;
    };
    let work = async { read(&connect(&place).await.unwrap(), 0, 4096).await.map(drop).unwrap_err() };
    let error = against(&place, script, work).await;
    assert!(error.kind == ErrorKind::Io && error.detail.contains("8 times"), "{error}");
}

#[tokio::test]
async fn cut_write_is_never_sent_again() {
    let place = Place::new();
    let writes = AtomicU32::new(0);
    let script = |mut script: Script| {
        let writes = &writes;
        async move {
            script.agree(1 << 20, 1 | 4, None).await;
            while let Some((command, cookie, _, length)) = request(&mut script).await {
                if command == 1 {
                    writes.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                answer(&mut script, cookie, &vec![0; if command == 0 { length as usize } else { 0 }]).await;
            }
        }
    };
    let work = async {
        let device = connect(&place).await.unwrap();
        // Nothing is at stake before the first write, so that a flush is answered also after a reconnection.
        device.flush(Context::default()).await.unwrap();
        write(&device, 0, Buffer::zeroed(4096)).await.map(drop).unwrap_err();
        read(&device, 0, 4096).await.unwrap();
        let later = [write(&device, 0, Buffer::zeroed(4096)).await.map(drop), device.flush(Context::default()).await];
        later.map(|result| result.unwrap_err().kind)
    };
    assert_eq!(against(&place, script, work).await, [ErrorKind::Latched; 2]);
    assert_eq!(writes.load(Ordering::Relaxed), 1);
}

/// How a faulty server behaves after what it has sent.
#[derive(Debug, Clone, Copy)]
enum Then {
    Closes,
    IsSilent,
}

#[tokio::test]
async fn faulty_handshakes_are_errors_in_time() {
    let reply = |magic: u64, option: u32, reply: u32, length: u32| {
        [&magic.to_be_bytes()[..], &[option, reply, length].map(u32::to_be_bytes).concat()].concat()
    };
    let ours = 0x3_e889_0455_65a9;
    for (sent, answers, then, kind, words) in [
        (&b""[..], vec![], Then::IsSilent, Kind::TimedOut, "does not answer within"),
        (b"", vec![], Then::Closes, Kind::Protocol, "ended the connection in the handshake"),
        (b"NBDMAGIC", vec![], Then::IsSilent, Kind::TimedOut, "does not answer within"),
        (b"NBDMAGIC", vec![], Then::Closes, Kind::Protocol, "ended the connection in the handshake"),
        (b"HTTP/1.1 400 Bad Request", vec![], Then::IsSilent, Kind::Protocol, "this is no NBD server"),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", vec![], Then::IsSilent, Kind::Unsupported, "old style"),
        (GREETING, vec![], Then::IsSilent, Kind::TimedOut, "does not answer within"),
        (GREETING, vec![], Then::Closes, Kind::Protocol, "ended the connection in the handshake"),
        (GREETING, reply(ours, 11, 1, 0)[..7].to_vec(), Then::IsSilent, Kind::TimedOut, "does not answer within"),
        (GREETING, reply(ours, 11, 1, 0)[..7].to_vec(), Then::Closes, Kind::Protocol, "ended the connection"),
        (GREETING, reply(ours, 11, 1 << 31 | 1, 9), Then::Closes, Kind::Protocol, "ended the connection"),
        (GREETING, reply(ours, 11, 1 << 31 | 1, 1 << 30), Then::IsSilent, Kind::Protocol, "at most 65536 are taken"),
        (GREETING, reply(ours, 7, 1, 0), Then::IsSilent, Kind::Protocol, "an answer to option 7"),
        (GREETING, reply(7, 11, 1, 0), Then::IsSilent, Kind::Protocol, "does not begin with its magic number"),
        (GREETING, reply(ours, 11, 5, 0), Then::IsSilent, Kind::Protocol, "which does not fit"),
    ] {
        let script = |mut script: Script| {
            let answers = answers.clone();
            async move {
                script.send(&[sent, &answers].concat()).await;
                let mut rest = Vec::new();
                match then {
                    // A client that has no greeting yet sends nothing.
                    Then::Closes if sent != GREETING => {}
                    Then::Closes => {
                        let _ = script.0.read(&mut [0; 64]).await;
                    }
                    Then::IsSilent => drop(script.0.read_to_end(&mut rest).await),
                }
            }
        };
        let mut options = ConnectOptions::default();
        options.handshake_time = Some(Duration::from_millis(150));
        let place = Place::new();
        let work = async {
            let device = NbdDevice::connect(&place.url(), options.clone()).await.map(drop).unwrap_err();
            (device, info(&place.url(), &options).await.unwrap_err())
        };
        let (device, info) = against(&place, script, work).await;
        for error in [&device, &info] {
            assert!(error.kind == kind && error.message.contains(words), "{sent:?} {then:?}: {error}");
        }
    }
}

#[tokio::test]
async fn list_without_end_is_an_error() {
    let place = Place::new();
    let script = |mut script: Script| async move {
        script.send(GREETING).await;
        let entry = [&0x3_e889_0455_65a9u64.to_be_bytes()[..], &[3u32, 2, 5, 1].map(u32::to_be_bytes).concat(), b"x"];
        while script.0.write_all(&entry.concat()).await.is_ok() {}
    };
    let found = against(&place, script, async { list(&place.url(), &ConnectOptions::default()).await }).await;
    assert!(found.unwrap_err().message.contains("more than 16384 answers"));
}

#[tokio::test]
async fn silent_further_connections_delay_little() {
    let place = Place::new();
    // The server says that it takes several connections, but answers only one at a time.
    let script = |mut script: Script| async move {
        script.agree(1 << 20, 1 | 1 << 8, None).await;
        while let Some((_, cookie, _, length)) = request(&mut script).await {
            answer(&mut script, cookie, &vec![0; length as usize]).await;
        }
    };
    let began = Instant::now();
    let work = async {
        let url = Url { connections: Some(4), ..place.url() };
        let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
        read(&device, 0, 4096).await.unwrap();
        device.connections()
    };
    assert_eq!(against(&place, script, work).await, 1);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
