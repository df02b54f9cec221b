//! One connection of the origin: it reads requests and writes answers, or misbehaves.

use super::{OriginBehaviour, OriginSharedState, TargetAnswer};
use crate::content;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const HEAD_BYTES_MAX: usize = 64 << 10;
const PIECE_BYTES: u64 = 64 << 10;

/// Accepts connections until the origin is stopped. Each connection is a task of this runtime and ends with it.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    shared: Arc<OriginSharedState>,
    mut stopped: watch::Receiver<bool>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        let _ = stream.set_nodelay(true);
                        let _ = OriginConnection { stream, shared, input: Vec::new(), out: Vec::new() }.run().await;
                    });
                }
                // All file descriptors are in use: wait until connections end.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
            _ = stopped.changed() => return,
        }
    }
}

/// The parts of a request that the origin uses.
struct ParsedRequest {
    method: String,
    target: String,
    if_none_match: Option<String>,
    range: Option<(u64, u64)>,
    if_range: Option<String>,
    vary_value: String,
    close: bool,
    body_bytes: usize,
}

struct OriginConnection {
    stream: TcpStream,
    shared: Arc<OriginSharedState>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl OriginConnection {
    async fn run(mut self) -> io::Result<()> {
        while let Some(request) = self.request().await? {
            let close = request.close;
            if !self.answer(request).await? || close {
                break;
            }
        }
        self.stream.shutdown().await
    }

    /// Reads one request with its body; `None` at the end of the stream or if the bytes are not a request.
    async fn request(&mut self) -> io::Result<Option<ParsedRequest>> {
        let end = loop {
            if let Some(at) = find_end(&self.input) {
                break at;
            }
            if self.input.len() > HEAD_BYTES_MAX || !self.read().await? {
                return Ok(None);
            }
        };
        let Some(request) = parse(&self.input[..end]) else { return Ok(None) };
        self.input.drain(..end + 4);
        let mut left = request.body_bytes;
        while left > self.input.len() {
            left -= self.input.len();
            self.input.clear();
            if !self.read().await? {
                return Ok(None);
            }
        }
        self.input.drain(..left);
        Ok(Some(request))
    }

    async fn read(&mut self) -> io::Result<bool> {
        self.input.reserve(8 << 10);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }

    /// Answers one request; returns false if the connection must end.
    async fn answer(&mut self, request: ParsedRequest) -> io::Result<bool> {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let (version, behaviour) = self.shared.with(&request.target, |found| {
            found.count.requests += 1;
            found.asked_at = Some(Instant::now());
            found.count.conditional += u64::from(request.if_none_match.is_some());
            (found.bumps + 1, found.behaviour)
        });
        let resource = TargetAnswer::parse(&request.target);
        let seed = content::seed(&resource.identity(&request.target, &request.vary_value), version);
        let tag = resource.tag.then(|| format!("\"{seed:016x}-{version}\""));
        self.out.clear();
        if let Some(behaviour) = behaviour {
            return self.misbehave(behaviour, &resource, seed, version).await;
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            self.out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            self.flush().await?;
            return Ok(true);
        }
        if tag.is_some() && request.if_none_match == tag {
            self.shared.with(&request.target, |found| found.count.not_modified += 1);
            self.head("304 Not Modified", &resource, version, tag.as_deref(), AnswerFraming::None);
            self.flush().await?;
            return Ok(true);
        }
        if let Some((first, last)) = request.range
            && resource.ranges
            && first <= last
            && last < resource.bytes
            && (request.if_range.is_none() || request.if_range == tag)
        {
            return self.part(&resource, seed, version, tag.as_deref(), first..last + 1).await;
        }
        let framing = match (resource.close, resource.chunked) {
            (true, _) => AnswerFraming::Close,
            (false, true) => AnswerFraming::Chunked,
            (false, false) => AnswerFraming::Length(resource.bytes),
        };
        self.head("200 OK", &resource, version, tag.as_deref(), framing);
        if request.method == "HEAD" {
            self.flush().await?;
            return Ok(!resource.close);
        }
        self.body(seed, resource.bytes, resource.chunked && !resource.close, PIECE_BYTES, Duration::ZERO).await?;
        if resource.chunked && !resource.close {
            self.out.extend_from_slice(b"0\r\n\r\n");
        }
        // Count before the last byte is sent, so that the answer is counted when the client has all of it.
        self.shared.with(&request.target, |found| found.count.whole += 1);
        self.flush().await?;
        Ok(!resource.close)
    }

    /// Sends one part of the body.
    async fn part(
        &mut self,
        resource: &TargetAnswer,
        seed: u64,
        version: u64,
        tag: Option<&str>,
        range: std::ops::Range<u64>,
    ) -> io::Result<bool> {
        self.head("206 Partial Content", resource, version, tag, AnswerFraming::Length(range.end - range.start));
        let end = self.out.len() - 2;
        self.out.truncate(end);
        let line = format!("Content-Range: bytes {}-{}/{}\r\n\r\n", range.start, range.end - 1, resource.bytes);
        self.out.extend_from_slice(line.as_bytes());
        let mut offset = range.start;
        while offset < range.end {
            let count = PIECE_BYTES.min(range.end - offset) as usize;
            let start = self.out.len();
            self.out.resize(start + count, 0);
            content::fill(seed, offset, &mut self.out[start..]);
            offset += count as u64;
            self.flush().await?;
        }
        Ok(true)
    }

    fn head(&mut self, status: &str, resource: &TargetAnswer, version: u64, tag: Option<&str>, framing: AnswerFraming) {
        let fixed = format!("HTTP/1.1 {status}\r\nServer: e2e-origin\r\nContent-Type: application/octet-stream\r\n");
        self.out.extend_from_slice(fixed.as_bytes());
        let mut line = |name: &str, value: &str| {
            for part in [name, ": ", value, "\r\n"] {
                self.out.extend_from_slice(part.as_bytes());
            }
        };
        line("X-Version", &version.to_string());
        if let Some(value) = &resource.cache_control {
            line("Cache-Control", value);
        }
        if let Some(tag) = tag {
            line("ETag", tag);
        }
        if let Some(date) = resource.last_modified() {
            line("Last-Modified", &date);
        }
        if resource.ranges {
            line("Accept-Ranges", "bytes");
        }
        if let Some(name) = &resource.vary {
            line("Vary", name);
        }
        if let Some(tags) = &resource.tags {
            line("Surrogate-Key", tags);
        }
        match framing {
            AnswerFraming::None => {}
            AnswerFraming::Length(bytes) => line("Content-Length", &bytes.to_string()),
            AnswerFraming::Chunked => line("Transfer-Encoding", "chunked"),
            AnswerFraming::Close => line("Connection", "close"),
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sends `bytes` bytes of the body, in chunks if requested.
    async fn body(&mut self, seed: u64, bytes: u64, chunked: bool, piece: u64, pause: Duration) -> io::Result<()> {
        let mut offset = 0;
        while offset < bytes {
            let count = piece.max(1).min(bytes - offset);
            if chunked {
                self.out.extend_from_slice(format!("{count:x}\r\n").as_bytes());
            }
            let start = self.out.len();
            self.out.resize(start + count as usize, 0);
            content::fill(seed, offset, &mut self.out[start..]);
            if chunked {
                self.out.extend_from_slice(b"\r\n");
            }
            offset += count;
            if self.out.len() as u64 >= PIECE_BYTES || !pause.is_zero() {
                self.flush().await?;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        self.shared.body_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    /// Misbehaves as `behaviour` specifies; returns false if the connection must end.
    async fn misbehave(
        &mut self,
        behaviour: OriginBehaviour,
        resource: &TargetAnswer,
        seed: u64,
        version: u64,
    ) -> io::Result<bool> {
        let length = AnswerFraming::Length(resource.bytes);
        let total = resource.bytes;
        match behaviour {
            OriginBehaviour::DieAfter(bytes) => {
                self.spoiled(resource, version, seed, length, bytes.min(total)).await?;
            }
            OriginBehaviour::ResetAfter(bytes) => {
                self.spoiled(resource, version, seed, length, bytes.min(total)).await?;
                socket_reset(&self.stream);
            }
            OriginBehaviour::ChunkedDieAfter(bytes) => {
                self.spoiled(resource, version, seed, AnswerFraming::Chunked, bytes.min(total)).await?;
            }
            OriginBehaviour::ChunkedNonsenseAfter(bytes) => {
                self.spoiled(resource, version, seed, AnswerFraming::Chunked, bytes.min(total)).await?;
                self.out.extend_from_slice(b"xyzzy\r\nabc\r\n0\r\n\r\n");
                self.flush().await?;
            }
            OriginBehaviour::LieShorter(bytes) => {
                self.spoiled(resource, version, seed, AnswerFraming::Length(total.saturating_sub(bytes)), total)
                    .await?;
            }
            OriginBehaviour::LieLonger(bytes) => {
                self.spoiled(resource, version, seed, AnswerFraming::Length(total + bytes), total).await?;
            }
            OriginBehaviour::Slow { piece_bytes, pause } => {
                self.head("200 OK", resource, version, None, length);
                self.flush().await?;
                self.body(seed, total, false, piece_bytes, pause).await?;
                self.flush().await?;
                return Ok(true);
            }
            OriginBehaviour::Silent => self.wait_for_close().await,
            OriginBehaviour::StallAfter(bytes) => {
                self.spoiled(resource, version, seed, length, bytes.min(total)).await?;
                self.wait_for_close().await;
            }
            OriginBehaviour::Nonsense => {
                let mut bytes = vec![0; 4096];
                content::fill(seed, 0, &mut bytes);
                self.stream.write_all(&bytes).await?;
            }
            OriginBehaviour::BothFramings => {
                self.head("200 OK", resource, version, None, length);
                let end = self.out.len() - 2;
                self.out.truncate(end);
                self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
                self.flush().await?;
            }
            OriginBehaviour::TwoLengths => {
                self.head("200 OK", resource, version, None, length);
                let end = self.out.len() - 2;
                self.out.truncate(end);
                self.out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", total + 1).as_bytes());
                self.body(seed, total, false, PIECE_BYTES, Duration::ZERO).await?;
                self.flush().await?;
            }
            OriginBehaviour::EndlessHead(bytes) => {
                self.out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
                let line = format!("X-Filler: {}\r\n", "y".repeat(1000));
                for _ in 0..bytes / line.len() as u64 {
                    self.out.extend_from_slice(line.as_bytes());
                    self.flush().await?;
                }
                self.wait_for_close().await;
            }
            OriginBehaviour::EndlessBody(bytes) => {
                self.head("200 OK", resource, version, None, AnswerFraming::Chunked);
                self.body(seed, bytes, true, PIECE_BYTES, Duration::ZERO).await?;
            }
            OriginBehaviour::CloseAtOnce => {}
            OriginBehaviour::Status(code) => {
                self.out.extend_from_slice(format!("HTTP/1.1 {code} E2E\r\nContent-Length: 4\r\n\r\nbad\n").as_bytes());
                self.flush().await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn spoiled(
        &mut self,
        resource: &TargetAnswer,
        version: u64,
        seed: u64,
        framing: AnswerFraming,
        bytes: u64,
    ) -> io::Result<()> {
        self.head("200 OK", resource, version, None, framing);
        self.body(seed, bytes, matches!(framing, AnswerFraming::Chunked), PIECE_BYTES, Duration::ZERO).await?;
        self.flush().await
    }

    async fn wait_for_close(&mut self) {
        while matches!(self.read().await, Ok(true)) {
            self.input.clear();
        }
    }
}

#[derive(Clone, Copy)]
enum AnswerFraming {
    None,
    Length(u64),
    Chunked,
    Close,
}

/// Sets an option with which closing the socket sends a reset.
fn socket_reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

fn find_end(input: &[u8]) -> Option<usize> {
    input.windows(4).position(|window| window == b"\r\n\r\n")
}

fn parse(head: &[u8]) -> Option<ParsedRequest> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let method = first.next()?.to_owned();
    let target = first.next()?;
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let vary = TargetAnswer::parse(target).vary;
    let mut request = ParsedRequest {
        method,
        target: target.to_owned(),
        if_none_match: None,
        range: None,
        if_range: None,
        vary_value: String::new(),
        close: false,
        body_bytes: 0,
    };
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("if-none-match") {
            request.if_none_match = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("range") {
            let ends = value.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
            request.range = ends.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        } else if name.eq_ignore_ascii_case("if-range") {
            request.if_range = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("connection") {
            request.close = value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("content-length") {
            request.body_bytes = value.parse().ok()?;
        }
        if vary.as_deref().is_some_and(|vary| name.eq_ignore_ascii_case(vary)) {
            request.vary_value = value.to_owned();
        }
    }
    Some(request)
}
