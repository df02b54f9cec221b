//! The stage that sends requests with two meanings through a proxy, and looks at what its origin gets.
//!
//! Owns: the payloads with their numbers, the origin that keeps all bytes, and the verdict on each payload. A payload is
//! *through* if the origin gets it in a form that has two meanings (`strict`), *cleaned* if the origin gets it, or the
//! request hidden in it, in a form that has one, and *refused* if the origin gets nothing of it. Promises: a plain
//! request is sent first and has to arrive, or else the stage has no results; each wait has a bound; all threads have
//! ended at the end. Leaves to others: the bytes of the payloads (`payloads`).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::payloads::{AMBIGUOUS_HEADS, WRONG_CHUNKS};
use super::strict;
use crate::Error;

/// The number of payloads.
pub(super) const PAYLOADS: usize = AMBIGUOUS_HEADS.len() + WRONG_CHUNKS.len();
/// How long the origin waits for more of a request; a client waits so many times as long for the end of its connection.
pub(super) const ORIGIN_WAIT: Duration = Duration::from_millis(500);
const CLIENT_WAITS: u32 = 4;
/// How often the origin waits for the rest of a head.
const ORIGIN_WAITS_MAX: u32 = 2;
/// How long a proxy may take until the plain request arrives.
const PLAIN_WAIT: Duration = Duration::from_secs(20);
/// The most bytes that are kept of a connection, and the most connections.
const KEPT_BYTES_MAX: usize = 64 << 10;
const CONNECTIONS_MAX: usize = 1024;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nok";

/// What became of the payloads at one proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct SmugglingResult {
    /// The contender's name.
    pub name: String,
    /// How many payloads reached the origin in no form.
    pub refused: usize,
    /// The payloads that reached it in a form with one meaning.
    pub cleaned: Vec<String>,
    /// The payloads that reached it in a form with two, each with what is ambiguous there.
    pub through: Vec<String>,
}

/// An origin that keeps the bytes of each connection.
pub(super) struct PayloadOrigin {
    address: SocketAddr,
    wait: Duration,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
    is_over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl PayloadOrigin {
    /// Starts an origin on a free port of the loopback, which waits so long for more of a request.
    pub fn start(wait: Duration) -> Result<PayloadOrigin, Error> {
        let failed = |error| Error::failed("the origin of payloads", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (kept, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (all, over) = (kept.clone(), is_over.clone());
        let listener = std::thread::spawn(move || accept(&listener, wait, &all, &over));
        Ok(PayloadOrigin { address, wait, kept, is_over, listener: Some(listener) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bytes of all connections so far, which are then forgotten.
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.kept.lock().expect("no thread panics with it"))
    }
}

impl Drop for PayloadOrigin {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn accept(listener: &TcpListener, wait: Duration, kept: &Arc<Mutex<Vec<Vec<u8>>>>, is_over: &AtomicBool) {
    let mut running: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        running.retain(|one| !one.is_finished());
        let (Ok(stream), true) = (stream, running.len() < CONNECTIONS_MAX) else { continue };
        let kept = kept.clone();
        running.push(std::thread::spawn(move || keep(stream, wait, &kept)));
    }
    running.into_iter().for_each(|thread| drop(thread.join()));
}

/// Reads until a request seems to be complete, answers, and keeps what comes until the connection ends.
fn keep(mut stream: TcpStream, wait: Duration, kept: &Mutex<Vec<Vec<u8>>>) {
    let mut bytes = Vec::new();
    let mut room = [0; 4096];
    let (mut is_answered, mut waits) = (false, 0);
    let _ = stream.set_read_timeout(Some(wait));
    while bytes.len() < KEPT_BYTES_MAX {
        match stream.read(&mut room) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&room[..count]),
            // What is silent for so long behind an answer has ended.
            Err(error) if is_wait(&error) && !is_answered && waits < ORIGIN_WAITS_MAX => waits += 1,
            Err(_) => break,
        }
        let is_silent = bytes.is_empty();
        let is_whole = |end: &[u8]| bytes.windows(end.len()).any(|window| window == end);
        if !is_answered && !is_silent && (is_whole(b"\r\n\r\n") || is_whole(b"\n\n") || is_whole(b"\n\r\n")) {
            is_answered = true;
            if stream.write_all(ANSWER).and_then(|()| stream.shutdown(Shutdown::Write)).is_err() {
                break;
            }
        }
        if is_silent && !is_answered {
            break;
        }
    }
    if !bytes.is_empty() {
        kept.lock().expect("no thread panics with it").push(bytes);
    }
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A payload: its name, and its bytes with the request that is hidden behind it.
struct NumberedPayload {
    name: String,
    bytes: Vec<u8>,
}

/// The target of a payload, and that of the request behind it; no target is a part of another one.
fn targets(index: usize) -> [String; 2] {
    [format!("/payload-{index:03}"), format!("/hidden-{index:03}")]
}

fn payloads() -> Vec<NumberedPayload> {
    let heads = AMBIGUOUS_HEADS.iter().map(|(name, head)| ((*name).to_owned(), (*head).to_owned()));
    let chunks = WRONG_CHUNKS.iter().map(|body| {
        let head = "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        (format!("the chunks {body:?}"), format!("{head}{body}"))
    });
    let numbered = heads.chain(chunks).enumerate().map(|(index, (name, text))| {
        let [target, hidden] = targets(index);
        let bytes = format!("{}GET {hidden} HTTP/1.1\r\nhost: a\r\n\r\n", text.replace('@', &target)).into_bytes();
        NumberedPayload { name, bytes }
    });
    numbered.collect()
}

/// Sends all payloads to a proxy of this origin.
///
/// *Errors*: a plain request does not reach the origin.
pub(super) fn run(name: &str, proxy: SocketAddr, origin: &PayloadOrigin) -> Result<SmugglingResult, Error> {
    let deadline = Instant::now() + PLAIN_WAIT;
    while !is_reached(proxy, origin) {
        if Instant::now() > deadline {
            return Err(Error::failed(name, "a plain request does not reach the origin of payloads"));
        }
        std::thread::sleep(origin.wait / 10);
    }
    let all = payloads();
    std::thread::scope(|scope| {
        for payload in &all {
            scope.spawn(move || ask(proxy, origin.wait, &payload.bytes));
        }
    });
    // The proxy may still send what it has got.
    std::thread::sleep(2 * origin.wait);
    Ok(judge(name, &all, &origin.take()))
}

/// Whether a plain request is answered by the origin.
fn is_reached(proxy: SocketAddr, origin: &PayloadOrigin) -> bool {
    let answer = ask(proxy, origin.wait, b"GET /plain HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    // The connection of this request may still be open.
    std::thread::sleep(2 * origin.wait);
    let came = origin.take();
    let is_plain = |bytes: &Vec<u8>| {
        strict::read(bytes).is_ok_and(|lines| lines.iter().any(|line| line.starts_with("GET /plain ")))
    };
    answer.starts_with(b"HTTP/1.1 200 ") && came.iter().any(is_plain)
}

/// Sends bytes and returns what comes back until the connection ends or is silent.
fn ask(proxy: SocketAddr, wait: Duration, bytes: &[u8]) -> Vec<u8> {
    let mut came = Vec::new();
    // A proxy that ends the connection refuses.
    let asked = TcpStream::connect(proxy).and_then(|mut stream| {
        stream.set_read_timeout(Some(CLIENT_WAITS * wait))?;
        stream.write_all(bytes)?;
        stream.take(KEPT_BYTES_MAX as u64).read_to_end(&mut came)
    });
    drop(asked);
    came
}

fn judge(name: &str, payloads: &[NumberedPayload], connections: &[Vec<u8>]) -> SmugglingResult {
    let mut result = SmugglingResult { name: name.to_owned(), ..SmugglingResult::default() };
    for (index, payload) in payloads.iter().enumerate() {
        let targets = targets(index);
        let has = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            targets.iter().any(|target| text.contains(target.as_str()))
        };
        let mut found = connections.iter().filter(|bytes| has(bytes)).map(|bytes| strict::read(bytes)).peekable();
        if found.peek().is_none() {
            result.refused += 1;
        } else if let Some(why) = found.find_map(Result::err) {
            result.through.push(format!("{}: {why}", payload.name));
        } else {
            result.cleaned.push(payload.name.clone());
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shorter than in a run, because these proxies are quick.
    const TEST_WAIT: Duration = Duration::from_millis(100);

    /// A proxy in miniature, which answers each connection by a function, and ends with the test's process.
    fn proxy(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        address
    }

    /// Passes on all bytes both ways.
    fn pipe(client: TcpStream, origin: SocketAddr) {
        let upstream = TcpStream::connect(origin).expect("the origin");
        let (mut from, mut to) = (client.try_clone().expect("a copy"), upstream.try_clone().expect("a copy"));
        let there = std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
        drop(std::io::copy(&mut &upstream, &mut &client));
        let _ = client.shutdown(Shutdown::Both);
        let _ = there.join();
    }

    /// The planted proxy that refuses nothing: each payload is seen.
    #[test]
    fn pipe_lets_every_payload_through() {
        let origin = PayloadOrigin::start(TEST_WAIT).expect("an origin");
        let address = origin.address();
        let result = run("pipe", proxy(move |client| pipe(client, address)), &origin).expect("results");
        assert_eq!((result.refused, result.cleaned.len(), result.through.len()), (0, 0, PAYLOADS), "{result:?}");
    }

    /// A proxy that answers the plain request, and each other one with 400.
    #[test]
    fn refusing_proxy_lets_nothing_through() {
        let origin = PayloadOrigin::start(TEST_WAIT).expect("an origin");
        let address = origin.address();
        let refusing = proxy(move |mut client| {
            let mut room = [0; 4096];
            let count = client.peek(&mut room).unwrap_or(0);
            match room[..count].starts_with(b"GET /plain") {
                true => pipe(client, address),
                false => drop(client.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")),
            }
        });
        let result = run("refusing", refusing, &origin).expect("results");
        assert_eq!((result.refused, result.through.len()), (PAYLOADS, 0), "{result:?}");
    }

    /// A payload that arrives with one meaning is cleaned, also if only the hidden request arrives.
    #[test]
    fn judged_payloads_have_three_ends() {
        let all = payloads();
        let clean = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes();
        let came = [clean("/payload-001"), clean("/hidden-002"), all[3].bytes.clone(), clean("/plain")];
        let result = judge("one", &all, &came);
        assert_eq!(result.cleaned, [all[1].name.clone(), all[2].name.clone()]);
        assert_eq!((result.through.len(), result.refused), (1, PAYLOADS - 3));
        assert!(result.through[0].starts_with(&all[3].name), "{result:?}");
    }
}
