//! An etcd in memory, which speaks gRPC.
//!
//! Owns: keys with revisions, transactions, leases that end, watches with history and compaction; and its faults: it
//! hangs, it ends all connections, it compacts, it leads no longer and goes on. Nothing of it is shared with the client
//! but the messages.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nectary_host::tls::ServerTls;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::etcd::grpc::framed;
use crate::etcd::messages::*;
use crate::options::EtcdEndpoint;

/// The frames of a response.
struct ReplyFrames(mpsc::Receiver<Frame<Bytes>>);

impl Body for ReplyFrames {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

#[derive(Default)]
struct FakeEtcdKeys {
    revision: i64,
    compacted: i64,
    kvs: BTreeMap<Bytes, KeyValue>,
    /// Every change, with its revision.
    history: Vec<(i64, EtcdEvent)>,
    /// The seconds of each lease, and when it ends.
    leases: HashMap<i64, (i64, Instant)>,
    leases_made: i64,
    connections: Vec<AbortHandle>,
}

/// A server; it ends with the runtime of its test.
#[derive(Clone)]
pub struct FakeEtcd {
    keys: Arc<Mutex<FakeEtcdKeys>>,
    changed: watch::Sender<i64>,
    /// Whether it answers nothing.
    hangs: watch::Sender<bool>,
    /// Whether it keeps leases all the same, but only in its own eyes.
    is_misled: watch::Sender<bool>,
    tls: watch::Sender<Option<ServerTls>>,
    pub endpoint: EtcdEndpoint,
}

impl FakeEtcd {
    pub async fn start() -> FakeEtcd {
        FakeEtcd::start_with(None).await
    }

    pub async fn start_with(tls: Option<ServerTls>) -> FakeEtcd {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let endpoint = EtcdEndpoint { host: "127.0.0.1".to_owned(), port, has_tls: tls.is_some() };
        let fake = FakeEtcd {
            keys: Arc::new(Mutex::new(FakeEtcdKeys { revision: 1, ..FakeEtcdKeys::default() })),
            changed: watch::Sender::new(1),
            hangs: watch::Sender::new(false),
            is_misled: watch::Sender::new(false),
            tls: watch::Sender::new(tls),
            endpoint,
        };
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = serving.clone();
                let connection = tokio::spawn(async move {
                    let tls = fake.tls.borrow().clone();
                    let Some(tls) = tls else { return fake.serve_connection(stream).await };
                    if let Ok(stream) = tls.accept(stream).await {
                        fake.serve_connection(stream).await;
                    }
                });
                serving.keys().connections.push(connection.abort_handle());
            }
        });
        let ending = fake.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                ending.end_leases();
            }
        });
        fake
    }

    async fn serve_connection(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(move |request| {
            let fake = self.clone();
            async move { Ok::<_, Infallible>(fake.serve(request)) }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    /// Connections from now on have other certificates.
    pub fn set_tls(&self, tls: ServerTls) {
        self.tls.send_replace(Some(tls));
    }

    /// From now on it hangs, but keeps leases, which end nevertheless; or it is well again.
    pub fn mislead(&self, is_misled: bool) {
        self.is_misled.send_replace(is_misled);
        self.hang(is_misled);
    }

    /// The leases of the keys that contain this text.
    pub fn leases(&self, text: &str) -> Vec<i64> {
        let keys = self.keys();
        let found = keys.kvs.values().filter(|kv| String::from_utf8_lossy(&kv.key).contains(text));
        found.map(|kv| kv.lease).collect()
    }

    fn keys(&self) -> MutexGuard<'_, FakeEtcdKeys> {
        self.keys.lock().expect("no test panics with it")
    }

    /// From now on nothing is answered, or everything again.
    pub fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.keys().connections.drain(..).for_each(|connection| connection.abort());
    }

    /// Forgets the history up to now.
    pub fn compact(&self) {
        let mut keys = self.keys();
        keys.compacted = keys.revision;
        keys.history.clear();
    }

    /// The values of all keys that contain this text, by key.
    pub fn values(&self, text: &str) -> Vec<String> {
        let keys = self.keys();
        let found = keys.kvs.values().filter(|kv| String::from_utf8_lossy(&kv.key).contains(text));
        found.map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect()
    }

    /// Removes all keys that contain this text, in one revision.
    pub fn remove(&self, text: &str) {
        let mut keys = self.keys();
        let gone: Vec<Bytes> =
            keys.kvs.keys().filter(|key| String::from_utf8_lossy(key).contains(text)).cloned().collect();
        keys.revision += 1;
        gone.iter().for_each(|key| keys.delete(key));
        self.changed.send_replace(keys.revision);
    }

    /// Goes back to an earlier state, without the identity of the fleet; leases go on, and all connections end.
    pub fn restore(&self, (revision, kvs): (i64, BTreeMap<Bytes, KeyValue>)) {
        let mut keys = self.keys();
        (keys.revision, keys.kvs) = (revision + 1, kvs);
        keys.kvs.retain(|key, _| !key.ends_with(b"/fleet"));
        keys.history.retain(|(known, _)| *known <= revision);
        keys.connections.drain(..).for_each(|connection| connection.abort());
    }

    /// The state to go back to.
    pub fn backup(&self) -> (i64, BTreeMap<Bytes, KeyValue>) {
        let keys = self.keys();
        (keys.revision, keys.kvs.clone())
    }

    fn end_leases(&self) {
        let mut keys = self.keys();
        let now = Instant::now();
        let ended: Vec<i64> = keys.leases.iter().filter(|lease| lease.1.1 <= now).map(|lease| *lease.0).collect();
        for lease in ended {
            keys.end_lease(lease);
        }
        self.changed.send_if_modified(|known| std::mem::replace(known, keys.revision) != keys.revision);
    }

    fn serve(&self, request: Request<Incoming>) -> Response<ReplyFrames> {
        let (sender, receiver) = mpsc::channel(16);
        let (path, fake) = (request.uri().path().to_owned(), self.clone());
        tokio::spawn(async move { fake.answer(&path, request.into_body(), sender).await });
        let response = Response::builder().header("content-type", "application/grpc");
        response.body(ReplyFrames(receiver)).expect("a response")
    }

    async fn answer(self, path: &str, mut body: Incoming, sender: mpsc::Sender<Frame<Bytes>>) {
        let mut read = BytesMut::new();
        let Some(message) = next_message(&mut body, &mut read).await else { return };
        if path == "/etcdserverpb.Watch/Watch" {
            return self.watch(&message, body, read, sender).await;
        }
        let is_misled = path == "/etcdserverpb.Lease/LeaseKeepAlive" && *self.is_misled.borrow();
        if is_misled {
            let id = LeaseRequest::decode(message).expect("a lease").id;
            let kept = reply(&LeaseKeepAliveResponse { id, ttl: 1 }).expect("short");
            let _ = sender.send(Frame::data(kept)).await;
            let _ = sender.send(Frame::trailers(trailers("0"))).await;
            return;
        }
        // What reads nothing needs no majority, so a member answers it alone.
        let is_local = path == "/etcdserverpb.KV/Txn"
            && TxnRequest::decode(&message[..]).is_ok_and(|txn| txn.success.is_empty() && txn.failure.is_empty());
        if !is_local {
            let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
        }
        let answered = match path {
            "/etcdserverpb.KV/Txn" => self.txn(TxnRequest::decode(message).expect("a txn")),
            "/etcdserverpb.KV/Range" => {
                let keys = self.keys();
                keys.range(&RangeRequest::decode(message).expect("a range")).and_then(|found| reply(&found))
            }
            "/etcdserverpb.Lease/LeaseGrant" => {
                let ttl = LeaseGrantRequest::decode(message).expect("a grant").ttl;
                let mut keys = self.keys();
                keys.leases_made += 1;
                let id = keys.leases_made;
                keys.leases.insert(id, (ttl, Instant::now() + Duration::from_secs(ttl.unsigned_abs())));
                reply(&LeaseGrantResponse { id, ttl, error: String::new() })
            }
            "/etcdserverpb.Lease/LeaseKeepAlive" => {
                let id = LeaseRequest::decode(message).expect("a lease").id;
                let mut keys = self.keys();
                let kept = keys.leases.get_mut(&id).map(|lease| {
                    lease.1 = Instant::now() + Duration::from_secs(lease.0.unsigned_abs());
                    lease.0
                });
                reply(&LeaseKeepAliveResponse { id, ttl: kept.unwrap_or(0) })
            }
            "/etcdserverpb.Lease/LeaseRevoke" => {
                let id = LeaseRequest::decode(message).expect("a lease").id;
                let mut keys = self.keys();
                keys.end_lease(id);
                self.changed.send_replace(keys.revision);
                reply(&LeaseRevokeResponse {})
            }
            other => panic!("{other} is not known"),
        };
        let status = match answered {
            Some(bytes) => {
                let _ = sender.send(Frame::data(bytes)).await;
                "0"
            }
            None => "11",
        };
        let _ = sender.send(Frame::trailers(trailers(status))).await;
    }

    fn txn(&self, request: TxnRequest) -> Option<Bytes> {
        let mut keys = self.keys();
        let succeeded = request.compare.iter().all(|compare| keys.compares(compare));
        let operations = if succeeded { request.success } else { request.failure };
        let writes = operations.iter().any(|op| !matches!(op.operation, Some(EtcdOperation::Range(_))));
        keys.revision += i64::from(writes);
        let mut responses = Vec::new();
        for operation in operations {
            let result = match operation.operation.expect("an operation") {
                EtcdOperation::Range(range) => OperationResult::Range(keys.range(&range)?),
                EtcdOperation::Put(put) => {
                    keys.put(put)?;
                    OperationResult::Put(ChangeResponse {})
                }
                EtcdOperation::Delete(delete) => {
                    keys.delete(&delete.key);
                    OperationResult::Delete(ChangeResponse {})
                }
            };
            responses.push(ResponseOp { result: Some(result) });
        }
        self.changed.send_replace(keys.revision);
        reply(&TxnResponse { header: Some(ResponseHeader { revision: keys.revision }), succeeded, responses })
    }

    async fn watch(self, first: &Bytes, mut body: Incoming, mut read: BytesMut, sender: mpsc::Sender<Frame<Bytes>>) {
        let first = WatchRequest::decode(&first[..]).expect("a watch");
        let Some(WatchKind::Create(create)) = first.kind else { panic!("a watch begins with its creation") };
        let mut from = create.start_revision;
        let mut changed = self.changed.subscribe();
        let mut hangs = self.hangs.subscribe();
        let send = async |response: &WatchResponse| {
            let frame = Frame::data(framed(response).expect("short"));
            sender.send(frame).await.is_ok()
        };
        if !send(&WatchResponse { created: true, ..WatchResponse::default() }).await {
            return;
        }
        loop {
            if hangs.wait_for(|hangs| !hangs).await.is_err() {
                return;
            }
            let (compacted, events, next) = {
                let keys = self.keys();
                let in_range = |event: &EtcdEvent| {
                    event.kv.as_ref().is_some_and(|kv| kv.key >= create.key && kv.key < create.range_end)
                };
                let events = keys.history.iter().filter(|(revision, event)| *revision >= from && in_range(event));
                (keys.compacted, events.map(|(_, event)| event.clone()).collect::<Vec<_>>(), keys.revision + 1)
            };
            if from <= compacted {
                let ended = WatchResponse { canceled: true, compact_revision: compacted, ..WatchResponse::default() };
                send(&ended).await;
                let _ = sender.send(Frame::trailers(trailers("0"))).await;
                return;
            }
            from = next;
            if !events.is_empty() && !send(&WatchResponse { events, ..WatchResponse::default() }).await {
                return;
            }
            tokio::select! {
                more = changed.changed() => if more.is_err() { return },
                progress = next_message(&mut body, &mut read) => match progress {
                    Some(_) if *hangs.borrow() => {}
                    Some(_) => if !send(&WatchResponse::default()).await { return },
                    None => return,
                },
            }
        }
    }
}

impl FakeEtcdKeys {
    fn compares(&self, compare: &TxnCompare) -> bool {
        let found = self.kvs.get(&compare.key);
        let (is, wanted) = match compare.value.as_ref().expect("a value") {
            ComparedValue::CreateRevision(wanted) => (found.map_or(0, |kv| kv.create_revision), *wanted),
            ComparedValue::Lease(wanted) => (found.map_or(0, |kv| kv.lease), *wanted),
            ComparedValue::ModRevision(wanted) => (found.map_or(0, |kv| kv.mod_revision), *wanted),
        };
        match compare.result {
            EQUAL => is == wanted,
            other => panic!("comparison {other} is not known"),
        }
    }

    fn range(&self, request: &RangeRequest) -> Option<RangeResponse> {
        if request.revision > 0 && request.revision < self.compacted {
            return None;
        }
        let is_asked = |kv: &&KeyValue| {
            let in_range = match request.range_end.is_empty() {
                true => kv.key == request.key,
                false => kv.key >= request.key && kv.key < request.range_end,
            };
            let is_then = request.revision == 0 || kv.mod_revision <= request.revision;
            in_range && is_then
        };
        let mut kvs: Vec<KeyValue> = self.kvs.values().filter(is_asked).cloned().collect();
        let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        if request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value.clear());
        }
        Some(RangeResponse { header: Some(ResponseHeader { revision: self.revision }), kvs, more })
    }

    fn put(&mut self, put: PutRequest) -> Option<()> {
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return None;
        }
        let created = self.kvs.get(&put.key).map_or(self.revision, |kv| kv.create_revision);
        let PutRequest { key, value, lease } = put;
        let kv = KeyValue { key: key.clone(), create_revision: created, mod_revision: self.revision, value, lease };
        self.kvs.insert(key, kv.clone());
        self.history.push((self.revision, EtcdEvent { kind: 0, kv: Some(kv) }));
        Some(())
    }

    fn delete(&mut self, key: &Bytes) {
        if self.kvs.remove(key).is_some() {
            let kv = KeyValue { key: key.clone(), mod_revision: self.revision, ..KeyValue::default() };
            self.history.push((self.revision, EtcdEvent { kind: EVENT_DELETE, kv: Some(kv) }));
        }
    }

    fn end_lease(&mut self, lease: i64) {
        if self.leases.remove(&lease).is_some() {
            let keys: Vec<Bytes> = self.kvs.values().filter(|kv| kv.lease == lease).map(|kv| kv.key.clone()).collect();
            self.revision += i64::from(!keys.is_empty());
            keys.iter().for_each(|key| self.delete(key));
        }
    }
}

fn reply(message: &impl Message) -> Option<Bytes> {
    framed(message).ok()
}

fn trailers(status: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static(status));
    trailers
}

async fn next_message(body: &mut Incoming, read: &mut BytesMut) -> Option<Bytes> {
    loop {
        if let Some(prefix) = read.first_chunk::<5>() {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
            if read.len() >= 5 + length {
                read.advance(5);
                return Some(read.split_to(length).freeze());
            }
        }
        read.extend_from_slice(&body.frame().await?.ok()?.into_data().unwrap_or_default());
    }
}
