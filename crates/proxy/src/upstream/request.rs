//! The request to an origin.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, EXPECT, HOST, IF_RANGE, MAX_FORWARDS, RANGE, VIA};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nectary_host::fleet::peer_headers;

use super::ForwardingHops;
use crate::pieces::BodyError;
use crate::rules::conditional::CONDITIONAL_HEADERS;
use crate::rules::forwarded::is_alike;
use crate::rules::hop::remove_hop_by_hop;
use crate::rules::origin::encodings::normal_form;
use crate::sites::HeaderEdits;
use crate::wire::exchange::ClientExchange;
use crate::wire::http1::framing::FramingViolation;

/// Headers that make some origins answer a different request, for example for another URL, host or scheme, or use
/// another proxy (`Proxy`, which programs of CGI get as the variable `HTTP_PROXY`). Neither the key nor `Vary` covers
/// these headers, so a client that sets them could decide what other clients get from the store. They are removed from
/// requests whose responses could be stored, unless the operator makes them a part of the key, and so are names that
/// have underscores instead of hyphens. [`ForwardingHops`] handles the headers about earlier hops.
const UNKEYED: [&str; 14] = [
    "front-end-https",
    "proxy",
    "x-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];

/// A request's head in the form that is sent to an origin.
#[derive(Debug, Clone)]
pub(crate) struct RequestHead {
    pub method: Method,
    pub target: PathAndQuery,
    pub headers: HeaderMap,
}

impl RequestHead {
    /// Makes the head from a client's request: removes hop-by-hop headers, sets `Host` to the origin's authority, and
    /// appends to `Via`.
    pub fn new(
        method: Method,
        uri: &Uri,
        headers: &HeaderMap,
        authority: &str,
        via: &HeaderValue,
        forwarding: &ForwardingHops<'_>,
    ) -> RequestHead {
        let mut headers = headers.clone();
        remove_hop_by_hop(&mut headers);
        headers.remove(EXPECT);
        headers.insert(HOST, HeaderValue::from_str(authority).expect("an authority is visible ASCII"));
        headers.append(VIA, via.clone());
        forwarding.apply(&mut headers);
        if method == Method::OPTIONS
            && let Some(count) = headers.get(MAX_FORWARDS).and_then(|count| count.to_str().ok()?.parse::<u32>().ok())
        {
            headers.insert(MAX_FORWARDS, HeaderValue::from(count.saturating_sub(1)));
        }
        let is_safe = method == Method::GET || method == Method::HEAD;
        let is_unkeyed = |name: &&HeaderName| {
            is_safe
                && !forwarding.keyed.contains(name)
                && UNKEYED.iter().any(|unkeyed| is_alike(name.as_str().as_bytes(), unkeyed.as_bytes()))
        };
        // What nodes of a fleet say to each other is for no origin, and from no client.
        let is_of_nodes = |name: &HeaderName| name.as_str().starts_with(peer_headers::PREFIX);
        let removed: Vec<_> = headers.keys().filter(|name| is_unkeyed(name) || is_of_nodes(name)).cloned().collect();
        removed.iter().for_each(|name| _ = headers.remove(name));
        RequestHead { method, target: origin_form(uri), headers }
    }

    /// Changes the head into an unconditional request for the whole response.
    pub fn ask_for_all(&mut self) {
        self.headers.remove(RANGE);
        CONDITIONAL_HEADERS.iter().for_each(|name| _ = self.headers.remove(name));
    }

    /// Removes the conditions by which a response may have no body, or be an error. A range is requested all the same, with
    /// its `If-Range`.
    pub fn ask_unconditionally(&mut self) {
        let conditions = CONDITIONAL_HEADERS.iter().filter(|name| **name != IF_RANGE);
        conditions.for_each(|name| _ = self.headers.remove(name));
    }

    /// Asks for one of the encodings that a client accepts in the words that all clients share, unless the operator says
    /// which.
    pub fn accept(&mut self, client: &HeaderMap, edits: &HeaderEdits) {
        if !edits.concerns(&ACCEPT_ENCODING) {
            self.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(normal_form(client)));
        }
    }

    /// Makes the request that hyper sends.
    pub fn with_body(self, body: RequestBody) -> Request<RequestBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = Uri::from(self.target);
        *request.headers_mut() = self.headers;
        request
    }
}

/// The path and query of a URI. An empty path becomes `/`; the target `*` stays unchanged.
fn origin_form(uri: &Uri) -> PathAndQuery {
    match uri.path_and_query() {
        Some(path) if path.as_str().starts_with('/') || path.as_str() == "*" => path.clone(),
        Some(path) => format!("/{}", path.as_str()).parse().unwrap_or(PathAndQuery::from_static("/")),
        None => PathAndQuery::from_static("/"),
    }
}

/// The body of a request to an origin.
pub(crate) enum RequestBody {
    /// The request has no body.
    Empty,
    /// The body of a client's request.
    Client(ClientBody),
    /// The body of a client's request, which can be taken back.
    Lent(Rc<LentBody>),
}

/// The body of a client's request in the hands of hyper, which sends it on a connection that other exchanges share: when
/// the exchange is over, the rest of the body is taken back, and the connection goes on.
pub(crate) struct LentBody {
    body: RefCell<Option<ClientBody>>,
    waker: RefCell<Option<Waker>>,
}

impl LentBody {
    /// Takes the body back: whoever sends it gets an error.
    pub fn take_back(&self) {
        self.body.take();
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut *self.body.borrow_mut() {
            Some(body) => body.poll_frame(context),
            None => return Poll::Ready(Some(Err(BodyError("the exchange is over".to_owned())))),
        };
        if polled.is_pending() {
            *self.waker.borrow_mut() = Some(context.waker().clone());
        }
        polled
    }
}

/// The body of a client's request.
pub(crate) struct ClientBody {
    incoming: Incoming,
    /// The number of further bytes that the body may have.
    left: u64,
    exchange: ClientExchange,
    progress: Rc<BodyProgress>,
}

/// How far a client's body has come. It can be read while the body is being sent.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    /// The client's mistake, if there is one.
    pub fault: Cell<Option<BodyFault>>,
    /// Whether the whole body was read from the client.
    pub is_complete: Cell<bool>,
    /// Whether the next part of the body is awaited from the client.
    pub is_awaited: Rc<Cell<bool>>,
    /// The number of parts that were read from the client so far.
    pub parts: Cell<u64>,
}

/// A client's mistake in the body of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyFault {
    /// The framing of the body is wrong.
    #[error("the framing of its body is wrong: {0}")]
    Framing(FramingViolation),
    /// The connection ended before the body was complete.
    #[error("its body ended early")]
    EndedEarly,
    /// The body is longer than the limit on bodies.
    #[error("its body is too large")]
    TooLarge,
}

impl RequestBody {
    /// The body of a request of this exchange.
    pub fn of_client(incoming: Incoming, bytes_max: u64, exchange: &ClientExchange) -> RequestBody {
        let progress = Rc::default();
        RequestBody::Client(ClientBody { incoming, left: bytes_max, exchange: exchange.clone(), progress })
    }

    /// How far the body has come; `None` if the request has no body.
    pub fn progress(&self) -> Option<Rc<BodyProgress>> {
        match self {
            RequestBody::Empty => None,
            RequestBody::Client(body) => Some(body.progress.clone()),
            RequestBody::Lent(lent) => lent.body.borrow().as_ref().map(|body| body.progress.clone()),
        }
    }

    /// The same body in a form that can be taken back, and the handle for that; `None` if the request has no body.
    pub fn lend(self) -> (RequestBody, Option<Rc<LentBody>>) {
        let lent = match self {
            RequestBody::Empty => return (RequestBody::Empty, None),
            RequestBody::Client(body) => {
                Rc::new(LentBody { body: RefCell::new(Some(body)), waker: RefCell::default() })
            }
            RequestBody::Lent(lent) => lent,
        };
        (RequestBody::Lent(lent.clone()), Some(lent))
    }

    /// Whether the request has no body.
    pub fn is_empty(&self) -> bool {
        matches!(self, RequestBody::Empty)
    }
}

impl Drop for ClientBody {
    /// Nobody waits for more of the body: the origin has answered early.
    fn drop(&mut self) {
        self.exchange.on_upload_polled(false);
    }
}

impl ClientBody {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let progress = &self.progress;
        let fault = loop {
            let polled = Pin::new(&mut self.incoming).poll_frame(context);
            progress.is_awaited.set(polled.is_pending());
            self.exchange.on_upload_polled(polled.is_pending());
            let frame = match std::task::ready!(polled) {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => break self.exchange.violation().map_or(BodyFault::EndedEarly, BodyFault::Framing),
                None => {
                    progress.is_complete.set(true);
                    return Poll::Ready(None);
                }
            };
            // Trailers are not forwarded.
            let Ok(data) = frame.into_data() else { continue };
            let Some(left) = self.left.checked_sub(data.len() as u64) else { break BodyFault::TooLarge };
            self.left = left;
            progress.parts.set(progress.parts.get() + 1);
            // A reader that knows the body's length does not poll after the last byte.
            progress.is_complete.set(self.incoming.is_end_stream());
            return Poll::Ready(Some(Ok(Frame::data(data))));
        };
        progress.fault.set(Some(fault));
        Poll::Ready(Some(Err(BodyError(fault.to_string()))))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Client(body) => body.poll_frame(context),
            RequestBody::Lent(lent) => lent.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Client(body) => body.incoming.is_end_stream(),
            // One that was taken back has an error, but no end.
            RequestBody::Lent(lent) => lent.body.borrow().as_ref().is_some_and(|body| body.incoming.is_end_stream()),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Client(body) => body.incoming.size_hint(),
            RequestBody::Lent(lent) => {
                lent.body.borrow().as_ref().map_or_else(SizeHint::default, |body| body.incoming.size_hint())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn origin_request_has_intended_headers() {
        let from = headers(&[
            ("host", "evil"),
            ("connection", "x-drop"),
            ("x-drop", "1"),
            ("x-keep", "1"),
            ("via", "1.1 other"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "evil"),
            ("x-original-url", "/evil"),
            ("x_original-url", "/evil"),
            ("x_forwarded_host", "evil"),
            ("proxy", "evil"),
            ("nectary-fleet-hop", "1"),
            ("expect", "100-continue"),
        ]);
        let via = HeaderValue::from_static("1.1 nectary-1");
        let peer = "::ffff:192.0.2.9".parse().expect("an address");
        let told = ForwardingHops { peer, is_secure: false, is_trusted: false, is_told: true, keyed: &[] };
        let uri: Uri = "http://ignored/p?q".parse().expect("a URL");
        let head = RequestHead::new(Method::GET, &uri, &from, "a:81", &via, &told);
        let expected = headers(&[
            ("host", "a:81"),
            ("x-keep", "1"),
            ("via", "1.1 other"),
            ("via", "1.1 nectary-1"),
            ("forwarded", "for=192.0.2.9;proto=http"),
            ("x-forwarded-for", "192.0.2.9"),
            ("x-forwarded-proto", "http"),
        ]);
        assert_eq!((head.target.as_str(), head.headers), ("/p?q", expected));
        let silent = ForwardingHops { is_told: false, ..told };
        let head = RequestHead::new(Method::POST, &uri, &from, "a:81", &via, &silent);
        assert_eq!(head.headers["x-original-url"], "/evil");
        assert!(!head.headers.contains_key("x-forwarded-host") && !head.headers.contains_key("x-forwarded-for"));
    }

    #[test]
    fn targets_are_in_origin_form() {
        for (uri, target) in
            [("http://a", "/"), ("http://a?x", "/?x"), ("/p", "/p"), ("*", "*"), ("http://a/p#f", "/p")]
        {
            assert_eq!(origin_form(&uri.parse().expect(uri)).as_str(), target, "{uri}");
        }
    }

    #[test]
    fn request_for_whole_drops_conditions() {
        let from =
            headers(&[("range", "bytes=0-1"), ("if-none-match", "\"a\""), ("if-range", "\"a\""), ("accept", "x")]);
        let via = HeaderValue::from_static("v");
        let peer = "192.0.2.9".parse().expect("an address");
        let silent = ForwardingHops { peer, is_secure: false, is_trusted: false, is_told: false, keyed: &[] };
        let mut head = RequestHead::new(Method::GET, &"/".parse().expect("a path"), &from, "a", &via, &silent);
        head.ask_for_all();
        assert_eq!(head.headers, headers(&[("accept", "x"), ("host", "a"), ("via", "v")]));
    }

    #[test]
    fn unconditional_request_keeps_its_range() {
        let from = headers(&[
            ("range", "bytes=0-1"),
            ("if-range", "\"a\""),
            ("if-none-match", "\"a\""),
            ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("if-match", "\"a\""),
            ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ]);
        let mut head = RequestHead { method: Method::GET, target: PathAndQuery::from_static("/"), headers: from };
        head.ask_unconditionally();
        assert_eq!(head.headers, headers(&[("range", "bytes=0-1"), ("if-range", "\"a\"")]));
    }
}
