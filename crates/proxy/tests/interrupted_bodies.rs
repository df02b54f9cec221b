//! A stored body whose disk stops answering, or fails, in the middle goes on from the origin at the same byte, or its
//! connection ends. The same is true for one that is still being fetched, for a reader that has fallen behind.
//!
//! The body has different bytes in each word, so a mine (`common/mined_device`) can lie under one of them, and no range
//! of another place equals the right one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, OpenOptions, Store};

use crate::common::*;

/// The deadline of the disk.
const DEADLINE: Duration = Duration::from_millis(300);
/// The limits of the origin: for the head of a response, and between the bytes of its body.
const ORIGIN: Duration = Duration::from_millis(500);
/// Far more than these three together, and far less than the client's own limit.
const SOON: Duration = Duration::from_secs(6);
const LENGTH: usize = 10 << 20;
/// A stored body is read in fragments of this length.
const FRAGMENT: usize = 1 << 20;
const TAG: &str = "etag: \"a\"";
const FRESH: &str = "cache-control: max-age=3600";

fn body(seed: u64) -> Vec<u8> {
    let word = |at: usize| ((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).to_le_bytes();
    (0..LENGTH / 8).flat_map(word).collect()
}

/// A store with one body, and the origin that has it.
struct InterruptedStore {
    device: SharedDevice,
    origin: TestOrigin,
    body: Vec<u8>,
}

impl InterruptedStore {
    /// Stores the body, which comes with these headers.
    async fn with(headers: &[&str]) -> InterruptedStore {
        let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
        let (origin, body) = (TestOrigin::start().await, body(0));
        let headers = [&[FRESH], headers].concat();
        origin.on("/a", OriginScript::ok(&headers, &body));
        origin.on("/a", OriginScript::range(&headers, &body));
        let disk = InterruptedStore { device, origin, body };
        let mut proxy = disk.proxy(&DeviceMine::default()).await;
        assert!(get(proxy.address, &disk.url(), &["accept-encoding: br"]).await.body == disk.body);
        proxy.stop().await;
        proxy.store.close().await.expect("closed");
        disk
    }

    fn url(&self) -> String {
        self.origin.url("/a")
    }

    /// A proxy whose memory is empty, over a mine.
    async fn proxy(&self, mine: &DeviceMine) -> TestProxy {
        let mut options = options();
        (options.limits.response_timeout, options.limits.origin_body_timeout) = (ORIGIN, ORIGIN);
        let store_options = OpenOptions {
            memory_bytes: 64 << 20,
            warm_up: false,
            // On a busy machine, a deadline would also lose what comes before the mine.
            device_deadline: mine.hangs().then_some(DEADLINE),
            ..OpenOptions::default()
        };
        let proxy = TestProxy::over(options, mine.under(self.device.clone()), store_options).await;
        while proxy.store.stat().index_loading {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        mine.arm();
        proxy
    }

    /// A mine under the word at this offset.
    fn mine(&self, fault: MineFault, offset: usize) -> DeviceMine {
        DeviceMine::at(fault, &self.body[offset..offset + 8])
    }
}

/// The bytes of each part of a response with several ranges.
fn parts(reply: &ClientReply) -> Vec<Vec<u8>> {
    let content_type = reply.header("content-type");
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect("several parts");
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    let starts: Vec<usize> = memchr::memmem::find_iter(&reply.body, &delimiter).collect();
    let part = |ends: &[usize]| {
        let part = &reply.body[ends[0] + delimiter.len()..ends[1]];
        part[memchr::memmem::find(part, b"\r\n\r\n").expect("headers") + 4..].to_vec()
    };
    starts.windows(2).map(part).collect()
}

#[tokio::test]
async fn interrupted_body_goes_on_exactly() {
    let disk = InterruptedStore::with(&[TAG]).await;
    let offsets = [0, FRAGMENT - 8, FRAGMENT, 3 * FRAGMENT + 4096, 7 * FRAGMENT + 8, LENGTH - 8];
    for (fault, offset) in
        [MineFault::Hang, MineFault::Unreadable].into_iter().flat_map(|fault| offsets.map(|at| (fault, at)))
    {
        let proxy = disk.proxy(&disk.mine(fault, offset)).await;
        let is_at_the_edge = !(FRAGMENT..LENGTH - FRAGMENT).contains(&offset);
        let (begun, asked) = (Instant::now(), disk.origin.count());
        let clients = ["1.1", "1.1", "1.1", "1.0"].map(|version| {
            let (address, line) = (proxy.address, format!("GET {} HTTP/{version}", disk.url()));
            tokio::spawn(async move {
                let mut client = TestClient::connect(address).await;
                client.ask(&[&line, "accept-encoding: gzip;q=0.1, br, zstd", "if-none-match: \"b\""]).await
            })
        });
        for client in clients {
            let reply = client.await.expect("joined");
            // A client that comes after the device became silent is a miss, and so is one whose first read fails.
            let is_right = reply.is_hit() || fault == MineFault::Hang || is_at_the_edge;
            assert_eq!((reply.status, reply.is_complete, is_right), (200, true, true), "{fault:?} {offset}");
            assert!(reply.body == disk.body, "{fault:?} {offset}: other bytes");
        }
        assert!(begun.elapsed() < SOON, "{fault:?} {offset}: {:?}", begun.elapsed());
        let stats = proxy.stats();
        assert_eq!(stats.cut_off, 0, "{fault:?} {offset}");
        let got = disk.origin.got()[asked..].to_vec();
        let rests = got.iter().filter(|got| !got.header("range").is_empty());
        assert_eq!(rests.clone().count() as u64, stats.resumed, "{fault:?} {offset}");
        let is_exact = (stats.resumed, got.len()) == (4, 4);
        assert!(is_exact || fault == MineFault::Hang || is_at_the_edge, "{fault:?} {offset}: {}", stats.resumed);
        for got in rests {
            let range = got.header("range");
            let start = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix(&format!("-{}", LENGTH - 1)));
            let start: usize = start.and_then(|start| start.parse().ok()).expect("a range up to the end");
            assert!(start.is_multiple_of(FRAGMENT) && start <= offset, "{range} for {offset}");
            assert!(fault == MineFault::Hang || start == offset / FRAGMENT * FRAGMENT, "{range} for {offset}");
            assert_eq!(got.header("if-range"), "\"a\"");
            assert_eq!(
                (got.header("accept-encoding").as_str(), got.header("if-none-match").as_str()),
                ("br, zstd, gzip", "")
            );
        }
        let head = TestClient::connect(proxy.address).await.ask(&[&format!("HEAD {} HTTP/1.1", disk.url())]).await;
        assert_eq!((head.status, head.header("content-length")), (200, LENGTH.to_string()));
    }
}

#[tokio::test]
async fn interrupted_range_resumes_to_end() {
    let date = format!("date: {}", httpdate::fmt_http_date(std::time::SystemTime::now()));
    let disk = InterruptedStore::with(&["last-modified: Sun, 06 Nov 1994 08:49:37 GMT", &date]).await;
    let last = LENGTH - 1;
    for fault in [MineFault::Hang, MineFault::Unreadable] {
        // Each row has the place of the mine, the ranges, and the number of ranges whose rest comes from the origin.
        for (offset, ranges, resumed) in [
            (0, &[(0, 1)][..], 1),
            (5 * FRAGMENT, &[(3, last)], 1),
            (5 * FRAGMENT, &[(5 * FRAGMENT + 77, 5 * FRAGMENT + 79)], 1),
            (9 * FRAGMENT, &[(9 * FRAGMENT - 5, 9 * FRAGMENT - 1)], 0),
            (
                5 * FRAGMENT,
                &[(0, 9), (4 * FRAGMENT + 1, 6 * FRAGMENT), (8 * FRAGMENT, 8 * FRAGMENT + 1), (last, last)],
                3,
            ),
            (2 * FRAGMENT, &[(last - 1, last), (2 * FRAGMENT + 5, 2 * FRAGMENT + 6), (0, 0)], 2),
        ] {
            // With nothing read ahead, the ranges that end before the mine come from the disk.
            let proxy = disk.proxy(&disk.mine(fault, offset)).await;
            let texts: Vec<_> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            let range = format!("range: bytes={}", texts.join(","));
            let reply = get(proxy.address, &disk.url(), &[&range, "if-range: Sun, 06 Nov 1994 08:49:37 GMT"]).await;
            // A device that becomes silent may be silent before the ranges are read; then the request is a miss, and
            // several ranges of a miss get the whole.
            let is_miss = fault == MineFault::Hang && !reply.is_hit();
            if is_miss && reply.status == 200 {
                assert!(reply.is_complete && reply.body == disk.body, "{range}: {} bytes", reply.body.len());
                continue;
            }
            assert_eq!((reply.status, reply.is_complete), (206, true), "{fault:?} {range}");
            let found = if ranges.len() > 1 { parts(&reply) } else { vec![reply.body.clone()] };
            assert_eq!(found.len(), ranges.len());
            for (found, (first, last)) in found.iter().zip(ranges) {
                assert!(*found == disk.body[*first..=*last], "{fault:?} {first}-{last}: {} bytes", found.len());
            }
            let stats = proxy.stats();
            assert_eq!(stats.cut_off, 0, "{fault:?} {range}");
            // Which ranges were read before the silence is not certain either.
            let is_right = stats.resumed == resumed || fault == MineFault::Hang && stats.resumed <= ranges.len() as u64;
            assert!(is_right, "{fault:?} {range}: {} resumed, not {resumed}", stats.resumed);
        }
    }
}

/// The head of a response with these lines.
fn response(status: &str, lines: &[&str]) -> Vec<u8> {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    format!("HTTP/1.1 {status}\r\n{lines}\r\n").into_bytes()
}

#[tokio::test]
async fn odd_rest_ends_the_connection() {
    let disk = InterruptedStore::with(&[TAG]).await;
    let start = 4 * FRAGMENT;
    let (other, rest) = (body(1), disk.body[start..].to_vec());
    let part = "206 Partial Content";
    let range = format!("content-range: bytes {start}-{}/{LENGTH}", LENGTH - 1);
    let length = format!("content-length: {}", rest.len());
    let head = response(part, &[&range, TAG, &length]);
    let chunked = response(part, &[&range, TAG, "transfer-encoding: chunked"]);
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    // Each row has a name, the origin's answer, and whether its first bytes may be passed on.
    let table = [
        ("ranges are ignored", OriginScript::ok(&[TAG], &disk.body), false),
        ("another object", OriginScript::ok(&["etag: \"b\""], &other), false),
        ("another tag", OriginScript::range(&["etag: \"b\""], &other), false),
        ("a weak tag", OriginScript::range(&["etag: W/\"a\""], &other), false),
        ("no tag", OriginScript::range(&[], &other), false),
        ("another coding", OriginScript::range(&[TAG, "content-encoding: br"], &other), false),
        ("another length", OriginScript::range(&[TAG], &[other.clone(), vec![0]].concat()), false),
        (
            "another start",
            OriginScript::raw(&response(part, &["content-range: bytes 0-9/10", TAG, "content-length: 10"])),
            false,
        ),
        ("fewer bytes", OriginScript::raw(&response(part, &[&range, TAG, "content-length: 3"])).then(b"abc"), false),
        ("not found", OriginScript::response("404 Not Found", &[], b"no"), false),
        ("an error", OriginScript::response("503 Service Unavailable", &[], b"no"), false),
        ("no range", OriginScript::response("416 Range Not Satisfiable", &[], b"no"), false),
        ("no answer", OriginScript::default().hang(), false),
        ("half a head", OriginScript::raw(&head[..40]).hang(), false),
        ("nonsense", OriginScript::raw(b"nonsense\r\n\r\n").close(), false),
        ("a reset", OriginScript::default().reset(), false),
        ("stalls", OriginScript::raw(&head).then(&rest[..FRAGMENT + 5]).hang(), true),
        ("breaks off", OriginScript::raw(&head).then(&rest[..FRAGMENT + 5]).close(), true),
        ("is reset", OriginScript::raw(&head).then(&rest[..5]).reset(), true),
        ("short in chunks", OriginScript::raw(&chunked).then(&chunk(&rest[..FRAGMENT])).then(b"0\r\n\r\n"), true),
        ("bad chunks", OriginScript::raw(&chunked).then(&chunk(&rest[..FRAGMENT])).then(b"xyz\r\n"), true),
    ];
    for (name, script, begins) in table {
        // A device that becomes silent may lose an earlier fragment, too; the answers with a fixed range need this one.
        let proxy = disk.proxy(&disk.mine(MineFault::Unreadable, start + 8)).await;
        disk.origin.now("/a", script);
        let begun = Instant::now();
        let reply = get(proxy.address, &disk.url(), &[]).await;
        assert!(reply.is_hit() && !reply.is_complete, "{name}: {} bytes", reply.body.len());
        assert!(disk.body.starts_with(&reply.body), "{name}: wrong bytes");
        assert!(begins || reply.body.len() <= start, "{name}: {} bytes", reply.body.len());
        assert!(begun.elapsed() < SOON, "{name}: {:?}", begun.elapsed());
        proxy.wait_for(|stats| (stats.cut_off, stats.resumed) == (u64::from(!begins), u64::from(begins))).await;
    }
    // A chunked rest of the right length is good.
    let proxy = disk.proxy(&disk.mine(MineFault::Unreadable, start + 8)).await;
    disk.origin.now("/a", OriginScript::raw(&chunked).then(&chunk(&rest)).then(b"0\r\n\r\n"));
    assert!(get(proxy.address, &disk.url(), &[]).await.body == disk.body);
}

#[tokio::test]
async fn without_origin_or_validator_it_ends() {
    let now = httpdate::fmt_http_date(std::time::SystemTime::now());
    let (modified, date) = (format!("last-modified: {now}"), format!("date: {now}"));
    for headers in [&[][..], &["etag: W/\"a\""], &[&modified, &date]] {
        let disk = InterruptedStore::with(headers).await;
        let proxy = disk.proxy(&disk.mine(MineFault::Unreadable, 4 * FRAGMENT)).await;
        let asked = disk.origin.count();
        let reply = get(proxy.address, &disk.url(), &[]).await;
        assert!(!reply.is_complete && disk.body.starts_with(&reply.body), "{headers:?}");
        assert_eq!((disk.origin.count(), proxy.stats().cut_off), (asked, 1), "nothing could be proved: {headers:?}");
    }
    for fault in [MineFault::Unreadable, MineFault::Hang] {
        let disk = InterruptedStore::with(&[TAG]).await;
        let proxy = disk.proxy(&disk.mine(fault, 4 * FRAGMENT)).await;
        let url = disk.url();
        let InterruptedStore { origin, body, .. } = disk;
        drop(origin);
        let begun = Instant::now();
        let reply = get(proxy.address, &url, &[]).await;
        let has_ended = !reply.is_complete && body.starts_with(&reply.body);
        // On a busy machine, an earlier read may miss the deadline; then the request is a miss without an origin.
        let is_refused = fault == MineFault::Hang && reply.status == 502;
        assert!(
            (has_ended || is_refused) && begun.elapsed() < SOON,
            "{fault:?}: {} {:?}",
            reply.status,
            begun.elapsed()
        );
    }
}

/// A proxy over a store on a mine, and an origin that has sent a part of a body. The store keeps few fragments in memory.
struct MinedProxy {
    origin: TestOrigin,
    proxy: TestProxy,
    body: Vec<u8>,
}

/// The text of the mine. It is in each fragment from the sixth on: whichever of them are in memory, one that is not is
/// soon needed by a reader that has stood still, because the buffers of a connection are shorter than the rest.
const MARK: &[u8] = b"the mine";
const RUNNING_LENGTH: usize = 32 * FRAGMENT;
/// The origin sends this much before the gate `rest`.
const SENT: usize = 30 * FRAGMENT;

impl MinedProxy {
    async fn new(fault: MineFault) -> MinedProxy {
        let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
        let (origin, mut body) = (TestOrigin::start().await, [body(0), body(2), body(3), body(4)].concat());
        body.truncate(RUNNING_LENGTH);
        body.chunks_mut(FRAGMENT).skip(5).for_each(|fragment| fragment[8..8 + MARK.len()].copy_from_slice(MARK));
        let head = format!("HTTP/1.1 200 OK\r\n{FRESH}\r\n{TAG}\r\ncontent-length: {RUNNING_LENGTH}\r\n\r\n");
        let script = OriginScript::raw(head.as_bytes()).then(&body[..SENT]).wait("rest").then(&body[SENT..]);
        origin.on("/a", script).on("/a", OriginScript::range(&[TAG], &body));
        let mine = DeviceMine::at(fault, MARK);
        mine.arm();
        let store_options = OpenOptions {
            memory_bytes: 64 << 20,
            objects_bytes_max: Some(12 << 20),
            write_delay: Duration::from_millis(10),
            device_deadline: mine.hangs().then_some(DEADLINE),
            ..OpenOptions::default()
        };
        let mut options = options();
        options.limits.drain_timeout = Duration::from_millis(100);
        let proxy = TestProxy::over(options, mine.under(device), store_options).await;
        MinedProxy { origin, proxy, body }
    }

    /// A client that has asked with these headers and reads nothing yet.
    async fn client(&self, headers: &[&str]) -> TestClient {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(64 << 10).expect("an option");
        let mut client = TestClient::of(socket.connect(self.proxy.address).await.expect("a connection"));
        let line = format!("GET {} HTTP/1.1", self.origin.url("/a"));
        client.send(request(&[&[&*line], headers].concat()).as_bytes()).await;
        client
    }
}

/// A disk that takes nothing more costs the object its place, and its readers nothing.
#[tokio::test]
async fn fetch_survives_failing_writes() {
    for fault in [MineFault::Unwritable, MineFault::HangWrites] {
        let running = MinedProxy::new(fault).await;
        running.origin.open("rest");
        let [mut leader, mut follower, mut part] =
            [running.client(&[]).await, running.client(&[]).await, running.client(&["range: bytes=5-"]).await];
        let replies = tokio::join!(leader.reply(false), follower.reply(false), part.reply(false));
        for (reply, start) in [(replies.0, 0), (replies.1, 0), (replies.2, 5)] {
            assert!(reply.is_complete && reply.body == running.body[start..], "{fault:?}: {} bytes", reply.body.len());
        }
        assert_eq!(running.proxy.stats().cut_off, 0, "{fault:?}");
    }
}

/// An origin that breaks a body off is not asked for its rest: the whole is fetched by the next request.
#[tokio::test]
async fn a_broken_fetch_is_not_resumed() {
    let (origin, body) = (TestOrigin::start().await, body(0));
    let head = format!("HTTP/1.1 200 OK\r\n{FRESH}\r\n{TAG}\r\ncontent-length: {LENGTH}\r\n\r\n");
    origin.on("/a", OriginScript::raw(head.as_bytes()).then(&body[..3 * FRAGMENT]).close());
    origin.on("/a", OriginScript::range(&[TAG, FRESH], &body));
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(!reply.is_complete && body.starts_with(&reply.body), "{} bytes", reply.body.len());
    let stats = proxy.stats();
    assert_eq!((origin.count(), stats.resumed, stats.cut_off, stats.failed_fills), (1, 0, 0, 1));
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.body == body);
}
