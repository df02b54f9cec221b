//! An origin that answers with what it was sent, so that a request shows what a proxy made of it.
//!
//! The path says what to answer: behind each `~` is a header and its value, as in `/a~cache-control=max-age=60`. Some
//! names are none of headers: `status`, `wait` (milliseconds before the answer), `close` (the body ends with the
//! connection), `only` (an origin of another name answers 503). The value of `etag` is put in quotes. The body is the head
//! of the request. `X-Serial` differs in each answer of a process, so that a stored answer is told from a fetched one
//! whatever the proxy says. Origins end with the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// The longest wait for a request, and for the proxy to take an answer.
const WAIT: Duration = Duration::from_secs(60);
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The longest body of a request that is read.
const BODY_BYTES_MAX: u64 = 1 << 20;

/// The serial of the last answer.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A running origin.
#[derive(Clone, Debug)]
pub struct EchoOrigin {
    address: SocketAddr,
    shared: Arc<EchoState>,
}

#[derive(Debug)]
struct EchoState {
    name: &'static str,
    is_closed: AtomicBool,
    connections: AtomicU64,
    at_once: AtomicU64,
    at_once_max: AtomicU64,
}

impl EchoOrigin {
    /// Starts an origin on a free port of 127.0.0.1. Its name is in `X-DeterministicOrigin` of its answers.
    pub fn start(name: &'static str) -> Result<EchoOrigin> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (connections, at_once, at_once_max) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(EchoState { name, is_closed: AtomicBool::new(false), connections, at_once, at_once_max });
        let accepted = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&accepted);
                state.connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || serve(&stream, &state));
            }
        });
        Ok(EchoOrigin { address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets it close connections instead of answering, or answer again.
    pub fn set_closed(&self, is_closed: bool) {
        self.shared.is_closed.store(is_closed, Ordering::Relaxed);
    }

    /// The connections that it has accepted.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The most requests that it had at once since the last call.
    pub fn take_at_once_max(&self) -> u64 {
        self.shared.at_once_max.swap(0, Ordering::Relaxed)
    }
}

/// The parts of a request that decide the answer.
struct EchoRequest {
    method: String,
    target: String,
    head: String,
}

/// Answers the requests of a connection. *Returns*: `None` when it ends.
fn serve(stream: &TcpStream, state: &EchoState) -> Option<()> {
    stream.set_read_timeout(Some(WAIT)).ok()?;
    stream.set_write_timeout(Some(WAIT)).ok()?;
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = read_request(&mut reader)?;
        if state.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let at_once = state.at_once.fetch_add(1, Ordering::Relaxed) + 1;
        state.at_once_max.fetch_max(at_once, Ordering::Relaxed);
        let (answer, is_last) = answer(&request, state.name);
        state.at_once.fetch_sub(1, Ordering::Relaxed);
        let mut out = stream;
        out.write_all(&answer).ok()?;
        if is_last {
            return None;
        }
    }
}

/// Reads a request with the body that it announces.
fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<EchoRequest> {
    let (mut head, mut length) = (String::new(), 0_u64);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || head.len() > HEAD_BYTES_MAX {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        head += line;
        head.push('\n');
    }
    let mut body = Vec::new();
    reader.take(length.min(BODY_BYTES_MAX)).read_to_end(&mut body).ok()?;
    let mut words = head.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(EchoRequest { method, target, head })
}

/// Makes the answer, after the time that the path names. *Returns*: also whether the connection ends with it.
fn answer(request: &EchoRequest, name: &str) -> (Vec<u8>, bool) {
    let path = request.target.split('?').next().unwrap_or_default();
    let (mut status, mut is_last, mut headers) = ("200", false, String::new());
    for (key, value) in path.split('~').skip(1).filter_map(|part| part.split_once('=')) {
        match key {
            "status" => status = value,
            "only" if value != name => status = "503",
            "only" => {}
            "wait" => thread::sleep(Duration::from_millis(value.parse().unwrap_or(0))),
            "close" => is_last = true,
            "etag" => headers += &format!("ETag: \"{value}\"\r\n"),
            _ => headers += &format!("{key}: {value}\r\n"),
        }
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) + 1;
    let body = request.head.as_bytes();
    headers += &match is_last {
        true => "Connection: close\r\n".to_owned(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let head =
        format!("HTTP/1.1 {status} x\r\nServer: echo\r\nX-Origin: {name}\r\nX-Serial: {serial}\r\n{headers}\r\n");
    let mut bytes = head.into_bytes();
    if request.method != "HEAD" {
        bytes.extend_from_slice(body);
    }
    (bytes, is_last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpConnection;

    #[test]
    fn paths_say_what_is_answered() {
        let echo = EchoOrigin::start("app").unwrap();
        let mut client = HttpConnection::new(echo.address(), Duration::from_secs(5));
        let first = client.request("GET", "/a~status=404~x-a=b=c~etag=t?q", &[("Cookie", "d=e")]).unwrap();
        assert_eq!((first.status, first.header("x-a"), first.header("etag")), (404, Some("b=c"), Some("\"t\"")));
        assert!(String::from_utf8_lossy(&first.body).contains("\nCookie: d=e\n"));
        let second = client.get("/a~only=spare").unwrap();
        assert_eq!((second.status, echo.connections(), echo.take_at_once_max()), (503, 1, 1));
        assert_ne!(first.header("x-serial"), second.header("x-serial"));
        assert_eq!(client.get("/a~close=1").unwrap().header("content-length"), None);
        echo.set_closed(true);
        assert!(client.get("/a").is_err());
    }
}
