//! The best case for a proxy on hyper: hyper alone answers every request from memory with a cache's headers, on one
//! thread.
//!
//! Start it with `bare_hyper 127.0.0.1:8080`. `e2e-campaigns bench-memory --floor` measures it next to the proxy. The
//! difference is the cost of everything between hyper's parser and the store.

use std::convert::Infallible;
use std::error::Error;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming, server::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// The length of every response's body.
const BODY_BYTES: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("an address to listen on is missing, as 127.0.0.1:8080")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(&address).await?;
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    stream.set_nodelay(true)?;
                    connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
                }
            }
        }
    })
}

async fn answer(_request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    static BODY: [u8; BODY_BYTES] = [b'x'; BODY_BYTES];
    let mut response = Response::new(Full::new(Bytes::from_static(&BODY)));
    let headers = response.headers_mut();
    headers.reserve(8);
    for (name, value) in [
        ("server", "e2e-origin"),
        ("content-type", "application/octet-stream"),
        ("cache-control", "max-age=86400"),
        ("etag", "\"0123456789abcdef-1\""),
        ("x-version", "1"),
        ("age", "60"),
        ("cache-status", "nectary; hit; ttl=86340"),
        ("via", "1.1 nectary"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}
