//! The origin of all proxies: it makes the body of an object from its number, and counts the requests.
//!
//! Owns: a listener, a thread for each connection, and their end. Each answer has a number one higher than the one
//! before. A client that remembers the last number when it asks knows from the answer's whether a proxy had it stored.
//! Promises: all threads have ended when the origin is dropped.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use super::answer::SERIAL;
use crate::Error;
use crate::workload::content;

/// The most connections at once; more are refused.
const CONNECTIONS_MAX: usize = 1024;
/// The longest line of a request. *Units*: bytes.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// The requests that an origin got.
#[derive(Debug, Default)]
pub(super) struct OriginCounts {
    answers: AtomicU64,
    body_bytes: AtomicU64,
}

impl OriginCounts {
    /// The number of answers, which is the number of the last one.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// The bytes of all bodies.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes.load(Ordering::SeqCst)
    }
}

/// A running origin.
pub(super) struct BenchOrigin {
    address: SocketAddr,
    counts: Arc<OriginCounts>,
    is_over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl BenchOrigin {
    /// Starts an origin on a free port of the loopback.
    pub fn start() -> Result<BenchOrigin, Error> {
        let failed = |error| Error::failed("the origin", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (counts, is_over) = (Arc::new(OriginCounts::default()), Arc::new(AtomicBool::new(false)));
        let (all, over) = (counts.clone(), is_over.clone());
        let listener = std::thread::spawn(move || accept(&listener, &all, &over));
        Ok(BenchOrigin { address, counts, is_over, listener: Some(listener) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests that it got.
    pub fn counts(&self) -> &Arc<OriginCounts> {
        &self.counts
    }
}

impl Drop for BenchOrigin {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// The target of an object.
pub(super) fn target(object: u32, bytes: u32) -> String {
    format!("/o/{object}?bytes={bytes}")
}

/// The object and its size that a target names.
fn parse_target(target: &str) -> Option<(u32, u32)> {
    let (object, bytes) = target.rsplit_once("/o/")?.1.split_once("?bytes=")?;
    Some((object.parse().ok()?, bytes.parse().ok()?))
}

fn accept(listener: &TcpListener, counts: &Arc<OriginCounts>, is_over: &AtomicBool) {
    let mut running: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
    for stream in listener.incoming() {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        running.retain(|one| !one.1.is_finished());
        let Ok(stream) = stream else { continue };
        if running.len() == CONNECTIONS_MAX {
            continue;
        }
        let (Ok(copy), counts) = (stream.try_clone(), counts.clone()) else { continue };
        // A connection that fails has ended; its proxy asks again.
        running.push((copy, std::thread::spawn(move || drop(serve(stream, &counts)))));
    }
    for (stream, thread) in running {
        let _ = stream.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

fn serve(stream: TcpStream, counts: &OriginCounts) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    loop {
        let Some(first) = read_line(&mut input)? else { return Ok(()) };
        while let Some(line) = read_line(&mut input)? {
            if line.is_empty() {
                break;
            }
        }
        let mut words = first.split(' ');
        let asked = (words.next() == Some("GET")).then(|| words.next().and_then(parse_target)).flatten();
        let date = httpdate::fmt_http_date(SystemTime::now());
        let Some((object, bytes)) = asked else {
            write!(output, "HTTP/1.1 404 Not Found\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let serial = counts.answers.fetch_add(1, Ordering::SeqCst) + 1;
        counts.body_bytes.fetch_add(bytes.into(), Ordering::SeqCst);
        let mut answer = format!(
            "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\
             Cache-Control: public, max-age=86400\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n{SERIAL}: {serial}\r\n\r\n"
        )
        .into_bytes();
        answer.extend_from_slice(&content::body(object, bytes));
        output.write_all(&answer)?;
    }
}

/// The next line without its end; `None` if the connection has ended.
fn read_line(input: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    std::io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
}
