//! An origin that does exactly what the test says, on raw sockets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::waiting::until;

/// The steps of the origin's answer to one request, in order.
#[derive(Clone, Debug, Default)]
pub struct OriginScript {
    steps: Vec<ScriptStep>,
    then_close: bool,
    then_reset: bool,
}

#[derive(Clone, Debug)]
enum ScriptStep {
    Send(Vec<u8>),
    /// Sends the same bytes again and again, as long as the peer reads them.
    Repeat(Vec<u8>),
    /// Waits until the test opens a gate.
    Wait(&'static str),
    /// Sends the range of the body that the request names, with these header lines.
    Range(String, Arc<[u8]>),
    /// Waits for ever.
    Hang,
}

impl OriginScript {
    /// A response with `headers`, which are lines without line ends, and with a body and its `BodyContent-Length`.
    pub fn response(status: &str, headers: &[&str], body: &[u8]) -> OriginScript {
        let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|line| head.push_str(&format!("{line}\r\n")));
        OriginScript::raw(&[format!("{head}\r\n").as_bytes(), body].concat())
    }

    /// A `200` response that is fresh for an hour.
    pub fn fresh(body: &[u8]) -> OriginScript {
        OriginScript::response("200 OK", &["cache-control: max-age=3600"], body)
    }

    /// A `200` response with headers.
    pub fn ok(headers: &[&str], body: &[u8]) -> OriginScript {
        OriginScript::response("200 OK", headers, body)
    }

    /// A script that sends these bytes and nothing else.
    pub fn raw(bytes: &[u8]) -> OriginScript {
        OriginScript { steps: vec![ScriptStep::Send(bytes.to_vec())], ..OriginScript::default() }
    }

    /// A `206` response with `headers` and the range, of one part, that the request names; `416` if the body ends before
    /// it, and `200` without a range.
    pub fn range(headers: &[&str], body: &[u8]) -> OriginScript {
        OriginScript::default().then_range(headers, body)
    }

    /// Adds the step of [`OriginScript::range`].
    pub fn then_range(mut self, headers: &[&str], body: &[u8]) -> OriginScript {
        let lines = headers.iter().map(|line| format!("{line}\r\n")).collect();
        self.steps.push(ScriptStep::Range(lines, body.into()));
        self
    }

    /// All bytes that the script sends, without the rest of its steps.
    pub fn bytes(&self) -> Vec<u8> {
        let sent = |step: &ScriptStep| if let ScriptStep::Send(bytes) = step { bytes.clone() } else { Vec::new() };
        self.steps.iter().flat_map(sent).collect()
    }

    /// Adds a step that sends these bytes.
    pub fn then(mut self, bytes: &[u8]) -> OriginScript {
        self.steps.push(ScriptStep::Send(bytes.to_vec()));
        self
    }

    /// Adds a step that waits until the gate of this name is open.
    pub fn wait(mut self, gate: &'static str) -> OriginScript {
        self.steps.push(ScriptStep::Wait(gate));
        self
    }

    /// Adds a step that sends the same bytes for ever.
    pub fn endless(mut self, bytes: &[u8]) -> OriginScript {
        self.steps.push(ScriptStep::Repeat(bytes.to_vec()));
        self
    }

    /// Adds a step that sends nothing and keeps the connection open.
    pub fn hang(mut self) -> OriginScript {
        self.steps.push(ScriptStep::Hang);
        self
    }

    /// Resets the connection after all steps.
    pub fn reset(mut self) -> OriginScript {
        self.then_reset = true;
        self
    }

    /// Closes the connection after all steps.
    pub fn close(mut self) -> OriginScript {
        self.then_close = true;
        self
    }
}

/// A request that the origin got.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub line: String,
    /// The headers' names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// The values of all lines of a header, joined.
    pub fn header(&self, name: &str) -> String {
        let values = self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str());
        values.collect::<Vec<_>>().join(", ")
    }
}

#[derive(Default)]
struct OriginState {
    /// The scripts of each path, in the order of the requests that they answer. The last script is repeated.
    scripts: HashMap<String, Vec<OriginScript>>,
    got: Vec<ReceivedRequest>,
    gates: HashMap<&'static str, Arc<Semaphore>>,
    connections: usize,
    ended: usize,
    open_max: usize,
}

impl OriginState {
    fn gate(&mut self, name: &'static str) -> Arc<Semaphore> {
        self.gates.entry(name).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }
}

/// A running origin, which ends when it is dropped.
pub struct TestOrigin {
    pub address: SocketAddr,
    state: Arc<Mutex<OriginState>>,
    task: JoinHandle<()>,
}

impl Drop for TestOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TestOrigin {
    /// Starts an origin without scripts. It answers every request with a `404` that has no lifetime.
    pub async fn start() -> TestOrigin {
        TestOrigin::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Like [`TestOrigin::start`], at an address.
    pub async fn start_at(address: SocketAddr) -> TestOrigin {
        let listener = TcpListener::bind(address).await.expect("the address");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(OriginState::default()));
        let task = tokio::spawn(accept(listener, state.clone()));
        TestOrigin { address, state, task }
    }

    /// Adds the script for the next request for a path; the last script of a path is repeated.
    pub fn on(&self, path: &str, script: OriginScript) -> &TestOrigin {
        self.state.lock().expect("state").scripts.entry(path.into()).or_default().push(script);
        self
    }

    /// Replaces all scripts of a path by this one.
    pub fn now(&self, path: &str, script: OriginScript) -> &TestOrigin {
        self.state.lock().expect("state").scripts.insert(path.into(), vec![script]);
        self
    }

    /// Opens a gate for all requests that wait at it, and for later requests.
    pub fn open(&self, gate: &'static str) {
        self.state.lock().expect("state").gate(gate).add_permits(1000);
    }

    /// A URL at this origin.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The requests that have arrived so far.
    pub fn got(&self) -> Vec<ReceivedRequest> {
        self.state.lock().expect("state").got.clone()
    }

    /// The number of requests that have arrived so far.
    pub fn count(&self) -> usize {
        self.state.lock().expect("state").got.len()
    }

    /// The number of connections that were opened so far.
    pub fn connections(&self) -> usize {
        self.state.lock().expect("state").connections
    }

    /// The greatest number of connections that were open at a time.
    pub fn open_max(&self) -> usize {
        self.state.lock().expect("state").open_max
    }

    /// Waits until `count` connections have ended.
    pub async fn wait_for_ends(&self, count: usize) {
        until("ended connections", || self.state.lock().expect("state").ended >= count).await;
    }

    /// Waits until `count` requests have arrived.
    pub async fn wait_for(&self, count: usize) {
        until("requests at the origin", || self.count() >= count).await;
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<OriginState>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        {
            let mut state = state.lock().expect("state");
            state.connections += 1;
            state.open_max = state.open_max.max(state.connections - state.ended);
        }
        let state = state.clone();
        connections.spawn(async move {
            serve(stream, state.clone()).await;
            state.lock().expect("state").ended += 1;
        });
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<OriginState>>) {
    let mut buffer = Vec::new();
    while let Some(got) = read_request(&mut stream, &mut buffer).await {
        let path = got.line.split(' ').nth(1).unwrap_or("").to_owned();
        let range = got.header("range");
        let script = {
            let mut state = state.lock().expect("state");
            state.got.push(got);
            match state.scripts.get_mut(&path) {
                Some(scripts) if scripts.len() > 1 => scripts.remove(0),
                Some(scripts) => scripts[0].clone(),
                None => OriginScript::response("404 Not Found", &["cache-control: no-store"], b"nothing here"),
            }
        };
        for step in script.steps {
            match step {
                ScriptStep::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                ScriptStep::Repeat(bytes) => loop {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                },
                ScriptStep::Wait(gate) => {
                    let gate = state.lock().expect("state").gate(gate);
                    gate.acquire().await.expect("open for ever").forget();
                }
                ScriptStep::Range(lines, body) if range.is_empty() => {
                    let head = format!("HTTP/1.1 200 OK\r\n{lines}content-length: {}\r\n\r\n", body.len());
                    if stream.write_all(&[head.as_bytes(), &body[..]].concat()).await.is_err() {
                        return;
                    }
                }
                ScriptStep::Range(lines, body) => {
                    let ends = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).expect("a range");
                    let (first, last): (usize, usize) =
                        (ends.0.parse().expect("a number"), ends.1.parse().expect("a number"));
                    if first >= body.len() {
                        let head = format!(
                            "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\ncontent-range: bytes \
                             */{}\r\n\r\n",
                            body.len()
                        );
                        if stream.write_all(head.as_bytes()).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    let last = last.min(body.len() - 1);
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\n{lines}content-length: {}\r\ncontent-range: bytes \
                         {first}-{last}/{}\r\n\r\n",
                        last + 1 - first,
                        body.len()
                    );
                    let bytes = [head.as_bytes(), &body[first..=last]].concat();
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                ScriptStep::Hang => std::future::pending().await,
            }
        }
        if script.then_reset {
            _ = socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO));
        }
        if script.then_close || script.then_reset {
            return;
        }
    }
}

/// Reads a request. Its body has a length or is chunked; a chunked body is kept as received.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<ReceivedRequest> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    buffer.drain(..end + 4);
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut got = ReceivedRequest { line, headers, body: Vec::new() };
    let is_complete = |body: &[u8], got: &ReceivedRequest| match got.header("content-length").parse::<usize>() {
        Ok(length) => body.len() >= length,
        Err(_) => got.header("transfer-encoding").is_empty() || body.ends_with(b"0\r\n\r\n"),
    };
    while !is_complete(buffer, &got) {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let length = got.header("content-length").parse::<usize>().ok();
    let has_chunks = !got.header("transfer-encoding").is_empty();
    let length = length.unwrap_or(if has_chunks { buffer.len() } else { 0 });
    got.body = buffer.drain(..length).collect();
    Some(got)
}
