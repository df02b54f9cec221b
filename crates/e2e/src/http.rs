//! A small blocking HTTP/1.1 client that checks everything: it distinguishes complete answers from truncated ones.
//!
//! One [`HttpConnection`] is one TCP connection, kept alive as long as the answers allow. Bodies are bounded. The client
//! sends exactly the given bytes, so that malformed requests are possible. It follows no redirects and decodes no
//! content encodings.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: u64 = 1 << 30;

/// The reason why there is no complete answer.
#[derive(Debug)]
pub enum RequestFailure {
    /// The connection failed, or broke before the first byte of the answer.
    Connection(io::Error),
    /// The answer ended early: the body is incomplete.
    Truncated {
        /// The head of the answer.
        response: Box<HttpResponse>,
        /// The length that the framing announced, if any.
        expected: Option<u64>,
    },
    /// The answer is not HTTP.
    Malformed(String),
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestFailure::Connection(error) => write!(out, "connection failed: {error}"),
            RequestFailure::Truncated { response, expected } => {
                write!(out, "body cut short: status {}, {} bytes", response.status, response.body.len())?;
                expected.map_or(Ok(()), |bytes| write!(out, " of {bytes}"))
            }
            RequestFailure::Malformed(what) => write!(out, "malformed answer: {what}"),
        }
    }
}

impl std::error::Error for RequestFailure {}

/// One answer; it is complete unless it is in [`RequestFailure::Truncated`].
#[derive(Clone, Debug, Default)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// The value of the first field with this (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// True if `Cache-Status` says that the proxy answered from its store without contacting the origin.
    pub fn is_hit(&self) -> bool {
        self.cache_status().split(';').skip(1).any(|part| part.trim() == "hit")
    }

    /// The last member of `Cache-Status`, which is that of the nearest cache. Empty if the field is absent.
    pub fn cache_status(&self) -> &str {
        let last = self.headers.iter().rev().find(|(name, _)| name == "cache-status");
        last.and_then(|(_, value)| value.rsplit(',').next()).unwrap_or("").trim()
    }

    /// The version that the origin wrote into the answer.
    pub fn version(&self) -> Option<u64> {
        self.header("x-version")?.parse().ok()
    }
}

/// A keep-alive connection to one address; connects at the first request, and again after a close.
#[derive(Debug)]
pub struct HttpConnection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    timeout: Duration,
}

impl HttpConnection {
    /// Prepares a connection; nothing is sent yet. `timeout` bounds each wait for bytes.
    pub fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self { address, stream: None, buffer: Vec::new(), timeout }
    }

    /// Sends a request without a body and reads the whole answer.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<HttpResponse, RequestFailure> {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.address);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.exchange(head.as_bytes(), method)
    }

    /// Sends a plain GET.
    pub fn get(&mut self, target: &str) -> Result<HttpResponse, RequestFailure> {
        self.request("GET", target, &[])
    }

    /// Sends raw bytes and reads one answer, framed as an answer to `method`.
    pub fn exchange(&mut self, request: &[u8], method: &str) -> Result<HttpResponse, RequestFailure> {
        self.send(request)?;
        self.receive(method)
    }

    /// Sends raw bytes.
    pub fn send(&mut self, request: &[u8]) -> Result<(), RequestFailure> {
        if self.stream.is_none() {
            self.buffer.clear();
            self.stream = Some(connect(self.address, self.timeout).map_err(RequestFailure::Connection)?);
        }
        let stream = self.stream.as_mut().expect("connected above");
        stream.write_all(request).map_err(|error| {
            self.close();
            RequestFailure::Connection(error)
        })
    }

    /// Waits until the first byte of an answer has arrived, without reading it.
    pub fn wait_begun(&self) -> io::Result<()> {
        let stream = self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        stream.peek(&mut [0]).map(|_| ())
    }

    /// Reads one answer, framed as an answer to `method`.
    pub fn receive(&mut self, method: &str) -> Result<HttpResponse, RequestFailure> {
        let result = self.receive_once(method);
        if !matches!(result, Ok((_, true))) {
            self.close();
        }
        result.map(|(response, _)| response)
    }

    /// Closes the connection; the next request makes a new one.
    pub fn close(&mut self) {
        self.stream = None;
        self.buffer.clear();
    }

    /// Reads an answer; also returns whether the connection can be reused.
    fn receive_once(&mut self, method: &str) -> Result<(HttpResponse, bool), RequestFailure> {
        let stream =
            self.stream.as_mut().ok_or_else(|| RequestFailure::Connection(io::ErrorKind::NotConnected.into()))?;
        let mut reader = AnswerReader { stream, buffer: &mut self.buffer };
        let mut response = reader.head()?;
        while (100..200).contains(&response.status) {
            response = reader.head()?;
        }
        let keep = reader.body(&mut response, method)?;
        Ok((response, keep))
    }
}

/// Connects without Nagle's delay, with bounded waits in both directions.
pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

/// Waits until something accepts connections at `address`; returns how long it took.
pub fn wait_listening(address: SocketAddr, limit: Duration) -> io::Result<Duration> {
    let started = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(_) => return Ok(started.elapsed()),
            Err(error) if started.elapsed() > limit => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

struct AnswerReader<'a> {
    stream: &'a mut TcpStream,
    buffer: &'a mut Vec<u8>,
}

impl AnswerReader<'_> {
    /// Reads more bytes into the buffer; false at the end of the stream.
    fn more(&mut self) -> io::Result<bool> {
        let filled = self.buffer.len();
        self.buffer.resize(filled + (64 << 10), 0);
        let result = self.stream.read(&mut self.buffer[filled..]);
        self.buffer.truncate(filled + *result.as_ref().unwrap_or(&0));
        Ok(result? > 0)
    }

    fn head(&mut self) -> Result<HttpResponse, RequestFailure> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(RequestFailure::Malformed(format!("no end of the head in {HEAD_BYTES_MAX} bytes")));
            }
            if !self.more().map_err(RequestFailure::Connection)? {
                if !self.buffer.is_empty() {
                    return Err(RequestFailure::Malformed("closed inside the head".to_owned()));
                }
                let kind = io::ErrorKind::UnexpectedEof;
                return Err(RequestFailure::Connection(io::Error::new(kind, "closed without an answer")));
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        parse_head(&head[..end])
    }

    /// Reads the body into the response; true if the connection can be reused.
    fn body(&mut self, response: &mut HttpResponse, method: &str) -> Result<bool, RequestFailure> {
        let keep = !response.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if method == "HEAD" || matches!(response.status, 204 | 304) {
            return Ok(keep);
        }
        if response.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return self.chunked(response).map(|()| keep);
        }
        match response.header("content-length").map(str::to_owned) {
            Some(text) => {
                let expected =
                    text.parse().map_err(|_| RequestFailure::Malformed(format!("Content-Length: {text}")))?;
                self.take(response, expected, Some(expected))?;
                Ok(keep)
            }
            None => {
                while self.more().map_err(|_| truncated(response, None))? {
                    bounded(self.buffer.len() as u64)?;
                }
                response.body.append(self.buffer);
                Ok(false)
            }
        }
    }

    fn chunked(&mut self, response: &mut HttpResponse) -> Result<(), RequestFailure> {
        loop {
            let line = self.line(response)?;
            let digits = line.split(';').next().unwrap_or("").trim();
            let bytes =
                u64::from_str_radix(digits, 16).map_err(|_| RequestFailure::Malformed(format!("chunk size {line}")))?;
            if bytes == 0 {
                while !self.line(response)?.is_empty() {}
                return Ok(());
            }
            self.take(response, bytes, None)?;
            if !self.line(response)?.is_empty() {
                return Err(RequestFailure::Malformed("a chunk is longer than its size".to_owned()));
            }
        }
    }

    fn line(&mut self, response: &mut HttpResponse) -> Result<String, RequestFailure> {
        let end = loop {
            if let Some(at) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                break at;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(RequestFailure::Malformed("endless line".to_owned()));
            }
            if !matches!(self.more(), Ok(true)) {
                return Err(truncated(response, None));
            }
        };
        let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
        Ok(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// Moves `bytes` bytes of the stream to the end of the body.
    fn take(&mut self, response: &mut HttpResponse, bytes: u64, expected: Option<u64>) -> Result<(), RequestFailure> {
        bounded(bytes + response.body.len() as u64)?;
        let end = response.body.len() + bytes as usize;
        let buffered = self.buffer.len().min(bytes as usize);
        response.body.extend(self.buffer.drain(..buffered));
        let mut filled = response.body.len();
        response.body.resize(end, 0);
        while filled < end {
            match self.stream.read(&mut response.body[filled..]) {
                Ok(count) if count > 0 => filled += count,
                _ => {
                    response.body.truncate(filled);
                    return Err(truncated(response, expected));
                }
            }
        }
        Ok(())
    }
}

fn truncated(response: &mut HttpResponse, expected: Option<u64>) -> RequestFailure {
    RequestFailure::Truncated { response: Box::new(std::mem::take(response)), expected }
}

fn bounded(bytes: u64) -> Result<(), RequestFailure> {
    if bytes > BODY_BYTES_MAX {
        return Err(RequestFailure::Malformed(format!("body of more than {BODY_BYTES_MAX} bytes")));
    }
    Ok(())
}

fn parse_head(head: &[u8]) -> Result<HttpResponse, RequestFailure> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or("");
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| RequestFailure::Malformed(format!("status line {first:?}")))?;
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) =
            line.split_once(':').ok_or_else(|| RequestFailure::Malformed(format!("header line {line:?}")))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(HttpResponse { status, headers, body: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer(bytes: &'static [u8]) -> Result<HttpResponse, RequestFailure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(bytes).unwrap();
        });
        let result = HttpConnection::new(address, Duration::from_secs(5)).get("/");
        server.join().unwrap();
        result
    }

    #[test]
    fn whole_answers_are_read() {
        let response =
            answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nCache-Status: up; hit, nectary; hit\r\n\r\nabc");
        let response = response.unwrap();
        assert_eq!((response.status, response.body.as_slice(), response.is_hit()), (200, b"abc".as_slice(), true));
        let response =
            answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n");
        assert_eq!(response.unwrap().body, b"abc");
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\n\r\nabc").unwrap().body, b"abc");
    }

    #[test]
    fn cut_answers_are_told_apart() {
        let cut = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc");
        assert!(matches!(cut, Err(RequestFailure::Truncated { expected: Some(4), .. })), "{cut:?}");
        let cut = answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        assert!(matches!(cut, Err(RequestFailure::Truncated { .. })), "{cut:?}");
        assert!(matches!(answer(b"nonsense\r\n\r\n"), Err(RequestFailure::Malformed(_))));
        assert!(matches!(answer(b""), Err(RequestFailure::Connection(_))));
    }

    /// Only a hit in the nearest cache is a hit.
    #[test]
    fn hit_requires_nearest_cache() {
        let response =
            answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCache-Status: up; hit, nectary; fwd=uri-miss\r\n\r\n");
        assert!(!response.unwrap().is_hit());
    }
}
