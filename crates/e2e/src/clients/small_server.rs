//! A small HTTP server on loopback: one answer per connection, made by a function from the request's path and headers.

use crate::http::HttpResponse;
use anyhow::Result;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The longest wait for a request, and for the client to accept a piece of an answer.
const WAIT: Duration = Duration::from_secs(60);
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// The function that answers: method, target, headers.
pub type Handler = dyn Fn(&str, &str, &[(String, String)]) -> HttpResponse + Send + Sync;

/// Serves until the process ends.
pub fn start(handler: Arc<Handler>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = handler.clone();
            thread::spawn(move || serve(stream, &*handler));
        }
    });
    Ok(address)
}

/// Answers one request; stops if the client does not accept the answer.
fn serve(stream: TcpStream, handler: &Handler) -> Option<()> {
    stream.set_read_timeout(Some(WAIT)).ok()?;
    stream.set_write_timeout(Some(WAIT)).ok()?;
    let mut lines = BufReader::new((&stream).take(HEAD_BYTES_MAX)).lines();
    let line = lines.next()?.ok()?;
    let (method, rest) = line.split_once(' ')?;
    let target = rest.split(' ').next()?;
    let mut headers = Vec::new();
    loop {
        let line = lines.next()?.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let response = handler(method, target, &headers);
    let mut head =
        format!("HTTP/1.1 {} x\r\nconnection: close\r\ncontent-length: {}\r\n", response.status, response.body.len());
    for (name, value) in &response.headers {
        head += &format!("{name}: {value}\r\n");
    }
    (&stream).write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if method != "HEAD" {
        (&stream).write_all(&response.body).ok()?;
    }
    Some(())
}
