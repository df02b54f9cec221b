//! A client that sends exactly the given bytes and reads the answer, without an HTTP library.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest time that a test may wait for an answer. After it, the test fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A response as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReply {
    pub status: u16,
    /// The headers' names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body was complete.
    pub is_complete: bool,
}

impl ClientReply {
    /// The values of all lines of a header, joined.
    pub fn header(&self, name: &str) -> String {
        let values = self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str());
        values.collect::<Vec<_>>().join(", ")
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The value of `NameCache-Status`.
    pub fn cache_status(&self) -> String {
        self.header("cache-status")
    }

    /// Whether the response came from the store without a request to the origin.
    pub fn is_hit(&self) -> bool {
        self.cache_status().contains("nectary; hit")
    }
}

/// A connection to the proxy.
pub struct TestClient {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl TestClient {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> TestClient {
        let stream = TcpStream::connect(address).await.expect("a connection");
        TestClient::of(stream)
    }

    /// Uses a connection.
    pub fn of(stream: TcpStream) -> TestClient {
        stream.set_nodelay(true).expect("an option");
        TestClient { stream, buffer: Vec::new() }
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("room");
    }

    /// Sends a request, whose lines are given without line ends, and reads its response.
    pub async fn ask(&mut self, lines: &[&str]) -> ClientReply {
        let is_head = lines[0].starts_with("HEAD ");
        self.send(request(lines).as_bytes()).await;
        self.reply(is_head).await
    }

    /// Reads one response.
    pub async fn reply(&mut self, to_head: bool) -> ClientReply {
        tokio::time::timeout(LIMIT, self.read_reply(to_head)).await.expect("in time").expect("a response")
    }

    /// Reads one response; `None` if the connection ends without a response.
    pub async fn reply_or_end(&mut self) -> Option<ClientReply> {
        tokio::time::timeout(LIMIT, self.read_reply(false)).await.expect("in time")
    }

    /// Reads until the connection ends.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.buffer);
        let read = self.stream.read_to_end(&mut rest);
        // A reset ends the connection as well.
        let _ = tokio::time::timeout(LIMIT, read).await.expect("in time");
        rest
    }

    /// Reads exactly `count` bytes.
    pub async fn take(&mut self, count: usize) -> Vec<u8> {
        tokio::time::timeout(LIMIT, async {
            while self.buffer.len() < count {
                assert!(self.more().await, "the connection ended after {} of {count} bytes", self.buffer.len());
            }
        })
        .await
        .expect("in time");
        self.buffer.drain(..count).collect()
    }

    /// Reads one response's head.
    pub async fn head(&mut self) -> ClientReply {
        tokio::time::timeout(LIMIT, self.read_head()).await.expect("in time").expect("a head")
    }

    async fn more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(count) if count > 0)
    }

    async fn read_head(&mut self) -> Option<ClientReply> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if !self.more().await {
                return None;
            }
        };
        let head = String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("a head in ASCII");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(ClientReply { status, headers, body: Vec::new(), is_complete: true })
    }

    async fn read_reply(&mut self, to_head: bool) -> Option<ClientReply> {
        let reply = self.read_head().await?;
        if to_head || reply.status == 204 || reply.status == 304 {
            return Some(reply);
        }
        Some(self.read_body(reply).await)
    }

    /// Reads the body of a response whose head was read.
    pub async fn body(&mut self, head: ClientReply) -> ClientReply {
        tokio::time::timeout(LIMIT, self.read_body(head)).await.expect("in time")
    }

    async fn read_body(&mut self, mut reply: ClientReply) -> ClientReply {
        if reply.header("transfer-encoding").eq_ignore_ascii_case("chunked") {
            self.read_chunks(&mut reply).await;
        } else if let Ok(length) = reply.header("content-length").parse::<usize>() {
            while self.buffer.len() < length {
                if !self.more().await {
                    reply.is_complete = false;
                    break;
                }
            }
            reply.body = self.buffer.drain(..length.min(self.buffer.len())).collect();
        } else {
            while self.more().await {}
            reply.body = std::mem::take(&mut self.buffer);
        }
        reply
    }

    async fn read_chunks(&mut self, reply: &mut ClientReply) {
        loop {
            let Some(line) = self.line().await else {
                reply.is_complete = false;
                return;
            };
            let size = usize::from_str_radix(line.trim(), 16).expect("a chunk's size");
            while self.buffer.len() < size + 2 {
                if !self.more().await {
                    reply.is_complete = false;
                    return;
                }
            }
            reply.body.extend(self.buffer.drain(..size));
            self.buffer.drain(..2);
            if size == 0 {
                return;
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return String::from_utf8(line).ok();
            }
            if !self.more().await {
                return None;
            }
        }
    }
}

/// The bytes of a request with these lines. A `Host` line is added if the lines have none.
pub fn request(lines: &[&str]) -> String {
    let mut text = String::new();
    lines.iter().for_each(|line| text.push_str(&format!("{line}\r\n")));
    if !lines.iter().any(|line| line.to_ascii_lowercase().starts_with("host:")) {
        text.push_str("host: test\r\n");
    }
    text + "\r\n"
}

/// Sends one GET on a new connection, and reads its response.
pub async fn get(proxy: SocketAddr, url: &str, headers: &[&str]) -> ClientReply {
    let line = format!("GET {url} HTTP/1.1");
    let lines: Vec<&str> = std::iter::once(line.as_str()).chain(headers.iter().copied()).collect();
    TestClient::connect(proxy).await.ask(&lines).await
}
