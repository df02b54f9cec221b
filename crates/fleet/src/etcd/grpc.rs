//! gRPC over one connection of HTTP/2.
//!
//! Owns: the frames of messages, the status at the end, and their bounds. A call is one request, or a stream of them, and
//! a stream of responses. Leaves to others: which member of etcd is called, and how long a call may take (`client`).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nectary_host::tls::ClientTls;
use prost::Message;
use tokio::sync::mpsc;

use crate::http2::Http2Connection;
use crate::options::EtcdEndpoint;

/// The longest message. *Units*: bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The status of a call that succeeded.
const OK: u32 = 0;
/// The status of a call about a revision that is no longer there.
pub const OUT_OF_RANGE: u32 = 11;
/// The status that a call without one has.
const UNKNOWN: u32 = 2;

/// Why a call failed.
#[derive(Debug, Clone)]
pub struct CallError {
    /// The status that the server gave; `None` if it gave none.
    pub status: Option<u32>,
    /// Whether the request has certainly not been acted upon.
    pub is_unsent: bool,
    what: String,
}

impl CallError {
    /// An error of the connection.
    pub fn broken(what: impl fmt::Display) -> CallError {
        CallError { status: None, is_unsent: false, what: what.to_string() }
    }

    /// Whether the request has certainly not been acted upon: it was not sent, or it was refused because of its form (3),
    /// the rights of this client (7, 16), the room that is left (8) or the state of what it is about (9).
    pub fn is_certain(&self) -> bool {
        self.is_unsent || matches!(self.status, Some(3 | 7 | 8 | 9 | 16))
    }

    /// An error before anything was sent.
    pub fn unsent(what: impl fmt::Display) -> CallError {
        CallError { is_unsent: true, ..CallError::broken(what) }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// The messages of a call: one, and then perhaps more.
pub struct OutgoingMessages {
    first: Option<Bytes>,
    more: Option<mpsc::Receiver<Bytes>>,
}

impl Body for OutgoingMessages {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match &mut self.more {
            Some(more) => more.poll_recv(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes)))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.more.is_none()
    }
}

/// A connection to a member of etcd. Calls share it.
pub struct GrpcChannel(Http2Connection<OutgoingMessages>);

impl GrpcChannel {
    /// Connects. A connection that does not answer pings for `silence_max` ends. The caller bounds the time.
    ///
    /// *Errors*: nothing was sent.
    pub async fn connect(
        endpoint: &EtcdEndpoint,
        tls: Option<&ClientTls>,
        silence_max: Duration,
    ) -> Result<GrpcChannel, CallError> {
        let tls = tls.filter(|_| endpoint.has_tls);
        let connected = Http2Connection::connect((&endpoint.host, endpoint.port), tls, silence_max).await;
        connected.map(GrpcChannel).map_err(CallError::unsent)
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.0.sender.is_closed()
    }

    /// Calls a method with one message, and takes one.
    pub async fn call<Q: Message, P: Message + Default>(&self, path: &str, request: &Q) -> Result<P, CallError> {
        let mut incoming = self.open(path, OutgoingMessages { first: Some(framed(request)?), more: None }).await?;
        let response = incoming.next().await?;
        response.ok_or_else(|| CallError::broken("etcd has sent no response"))
    }

    /// Begins a call with several messages: the first, and those that are sent into the channel.
    pub async fn stream<Q: Message, P: Message + Default>(
        &self,
        path: &str,
        first: &Q,
    ) -> Result<(mpsc::Sender<Bytes>, IncomingMessages<P>), CallError> {
        let (sender, receiver) = mpsc::channel(4);
        let incoming = self.open(path, OutgoingMessages { first: Some(framed(first)?), more: Some(receiver) }).await?;
        Ok((sender, incoming))
    }

    async fn open<P: Message + Default>(
        &self,
        path: &str,
        body: OutgoingMessages,
    ) -> Result<IncomingMessages<P>, CallError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.0.base))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            // A member without a leader then ends the call, instead of holding it.
            .header("hasleader", "true")
            .body(body)
            .map_err(CallError::unsent)?;
        let mut sender = self.0.sender.clone();
        sender.ready().await.map_err(CallError::unsent)?;
        let response = sender.send_request(request).await.map_err(CallError::broken)?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(CallError::broken(format!("this is not etcd: it answers with status {}", head.status)));
        }
        // A call that fails at once has its status in the head.
        if head.headers.contains_key("grpc-status") {
            status_of(&head.headers)?;
        }
        Ok(IncomingMessages { body, read: BytesMut::new(), kind: std::marker::PhantomData })
    }
}

/// A message with its prefix.
pub fn framed(message: &impl Message) -> Result<Bytes, CallError> {
    let length = u32::try_from(message.encoded_len()).ok().filter(|length| *length as usize <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| CallError::unsent("the message is too long"))?;
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length as usize);
    bytes.put_u8(0);
    bytes.put_u32(length);
    message.encode(&mut bytes).map_err(CallError::unsent)?;
    Ok(bytes.freeze())
}

/// The responses of a call.
pub struct IncomingMessages<P> {
    body: Incoming,
    read: BytesMut,
    kind: std::marker::PhantomData<fn() -> P>,
}

impl<P: Message + Default> IncomingMessages<P> {
    /// The next message; `None` at the end of a call that succeeded. *Cancel safety*: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<P>, CallError> {
        loop {
            if let Some(message) = unframed(&mut self.read)? {
                return P::decode(message).map(Some).map_err(CallError::broken);
            }
            let Some(frame) = self.body.frame().await else {
                return Err(CallError::broken("the connection ended"));
            };
            match frame.map_err(CallError::broken)?.into_data() {
                Ok(data) => self.read.extend_from_slice(&data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    status_of(&trailers)?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Takes a whole message out of what was read; `None` if more is to be read.
fn unframed(read: &mut BytesMut) -> Result<Option<Bytes>, CallError> {
    let Some(prefix) = read.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let [is_compressed, length @ ..] = *prefix;
    let length = u32::from_be_bytes(length) as usize;
    if is_compressed != 0 || length > MESSAGE_BYTES_MAX {
        // A watch that cannot take what etcd has for it begins again by reading, as after a compaction.
        let what = format!("a message of {length} bytes, or compressed, is not expected");
        return Err(CallError { status: Some(OUT_OF_RANGE), ..CallError::broken(what) });
    }
    if read.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    read.advance(PREFIX_BYTES);
    Ok(Some(read.split_to(length).freeze()))
}

/// The status of a call. *Errors*: it failed.
fn status_of(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let status = text("grpc-status").and_then(|status| status.parse().ok()).unwrap_or(UNKNOWN);
    if status == OK {
        return Ok(());
    }
    let what = text("grpc-message").map_or_else(|| format!("status {status}"), str::to_owned);
    Err(CallError { status: Some(status), is_unsent: false, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::LeaseRequest;

    #[test]
    fn messages_are_read_in_any_pieces() {
        let frame = framed(&LeaseRequest { id: 300 }).expect("short");
        assert_eq!(&frame[..], b"\0\0\0\0\x03\x08\xac\x02");
        let mut read = BytesMut::new();
        for byte in frame.iter().chain(frame.iter()) {
            read.extend_from_slice(&[*byte]);
            if read.len() == frame.len() {
                assert_eq!(unframed(&mut read).expect("right"), Some(Bytes::from_static(b"\x08\xac\x02")));
            } else {
                assert_eq!(unframed(&mut read).expect("right"), None);
            }
        }
        assert!(unframed(&mut BytesMut::from(&b"\x01\0\0\0\0"[..])).is_err(), "compressed");
        assert!(unframed(&mut BytesMut::from(&b"\0\xff\0\0\0"[..])).is_err(), "too long");
    }

    #[test]
    fn calls_without_a_status_have_failed() {
        let mut headers = HeaderMap::new();
        assert_eq!(status_of(&headers).expect_err("none").status, Some(UNKNOWN));
        headers.insert("grpc-status", "0".parse().expect("a value"));
        assert!(status_of(&headers).is_ok());
        headers.insert("grpc-status", "11".parse().expect("a value"));
        headers.insert("grpc-message", "compacted".parse().expect("a value"));
        let error = status_of(&headers).expect_err("failed");
        assert_eq!((error.status, error.to_string()), (Some(OUT_OF_RANGE), "compacted".to_owned()));
    }
}
