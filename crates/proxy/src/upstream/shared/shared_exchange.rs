//! Requests to origins in HTTP/2.
//!
//! Owns: the form of a request in HTTP/2, its stream up to the head of the response, and where a request is sent again. A
//! request that may be repeated is repeated as in HTTP/1. One that must not be sent twice is sent again only if the server
//! says that it has not begun with it: it has refused the stream, or its `GOAWAY` names an earlier one as the last. For that
//! the request must have no body, because a body that was sent is not kept. Leaves to others: the response's body (`lease`).
//! *Source*: RFC 9113, 6.8, 8.3 and 8.7.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use http::header::{CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, Uri, Version};
use hyper::body::Incoming;

use super::super::error::FetchError;
use super::super::exchange::{Hear, SendOutcome, UnansweredRequest, race_others, try_addresses};
use super::super::lease::ConnectionLease;
use super::super::{Destination, RequestBody, RequestHead, Upstream};
use super::{RequestTransport, StreamUse, way};
use crate::wire::http1::framing::FramingViolation;

/// The maximum number of times that a request is sent again.
const REPEATS_MAX: usize = 3;

/// Sends a request to a server that may speak HTTP/2, until it is answered. `is_queued` says meanwhile whether it waits for a
/// connection, because the server has as many as it may have.
pub(in super::super) async fn ask(
    upstream: &Rc<Upstream>,
    to: &Destination,
    (head, mut body): (RequestHead, RequestBody),
    may_repeat: bool,
    hear: Hear<'_>,
    is_queued: &Cell<bool>,
) -> Result<(Response<Incoming>, ConnectionLease), UnansweredRequest> {
    let has_body = !body.is_empty();
    // The addresses that have failed, the last failure, and how often the request was sent.
    let (mut tried, mut failed, mut sent_count) = (Vec::<SocketAddr>::new(), None::<FetchError>, 0);
    loop {
        let stream = match way(upstream, to, (tried.as_slice(), !may_repeat), is_queued).await {
            Ok(RequestTransport::Stream(stream)) => stream,
            Ok(RequestTransport::Http1(fresh)) => {
                let request = (head, body, fresh.map(|fresh| *fresh));
                return try_addresses(upstream, to, request, may_repeat, hear, is_queued).await;
            }
            Err(error) => {
                return Err(match failed {
                    Some(failed) => failed.into(),
                    None => UnansweredRequest { error, unsent: Some(head.with_body(body)) },
                });
            }
        };
        let (address, is_first) = (stream.address(), stream.is_first);
        let sending = std::mem::replace(&mut body, RequestBody::Empty);
        let sent = send_on(upstream, to, stream, head.clone().with_body(sending)).await;
        sent_count += 1;
        let error = match sent {
            SendOutcome::Answered(response, lease) => return Ok((response, lease)),
            // The connection ended before anything of the request was sent.
            SendOutcome::Not(unsent) if sent_count <= REPEATS_MAX => {
                body = unsent.into_body();
                continue;
            }
            SendOutcome::Not(unsent) => {
                let error = FetchError::Broken("it closed the connection at once".into());
                return Err(UnansweredRequest { error, unsent: Some(head.with_body(unsent.into_body())) });
            }
            SendOutcome::Unprocessed(error) if !has_body && sent_count <= REPEATS_MAX => {
                failed = Some(error);
                continue;
            }
            SendOutcome::Failed(error @ (FetchError::Broken(_) | FetchError::TimedOut(_))) => error,
            SendOutcome::Failed(error) | SendOutcome::Unprocessed(error) => return Err(error.into()),
        };
        // A connection that was used before may have ended since, which says nothing about the address.
        let is_address_bad = is_first || sent_count > 1 || matches!(error, FetchError::TimedOut(_));
        if is_address_bad {
            upstream.note_failure(to, address);
            tried.push(address);
        }
        if !may_repeat || sent_count > REPEATS_MAX {
            return Err(error.into());
        }
        if matches!(error, FetchError::TimedOut(_)) {
            return Ok(race_others(upstream, to, Some(head), tried, error, hear).await?);
        }
        failed = Some(error);
    }
}

/// Sends a request on a stream, and waits for the head of the response.
pub(in super::super) async fn send_on(
    upstream: &Rc<Upstream>,
    to: &Destination,
    mut stream: StreamUse,
    request: Request<RequestBody>,
) -> SendOutcome {
    upstream.stats.origin_requests.add(1);
    let progress = request.body().progress();
    let (mut parts, body) = request.into_parts();
    if let Err(error) = to_http2(&mut parts, to) {
        return SendOutcome::Failed(error);
    }
    let (body, lent) = body.lend();
    stream.lent = lent;
    stream.clock.await_answer(progress.clone());
    let (begun, connect_time) = (Instant::now(), stream.connection.connect_time.take());
    let answer = stream.connection.sender.clone().try_send_request(Request::from_parts(parts, body));
    match stream.clock.until_cut(answer).await {
        // The origin took too long.
        None => {
            // If it was silent on all streams, nothing begins on the connection any more, and pings may end it.
            if stream.connection.state.unheard_ticks() >= stream.connection.state.head_ticks() {
                stream.connection.state.retire();
            }
            SendOutcome::Failed(FetchError::TimedOut("responding"))
        }
        Some(Ok(response)) => {
            upstream.known.addresses.note_success(stream.connection.address);
            stream.clock.answered();
            if let Err(violation) = check_form(response.headers(), upstream.options.limits.headers_max) {
                return SendOutcome::Failed(FetchError::Refused(violation));
            }
            let mut lease = ConnectionLease::of_stream(upstream, to, stream, connect_time);
            lease.progress = progress;
            lease.head_time = Some(begun.elapsed());
            SendOutcome::Answered(response, lease)
        }
        Some(Err(mut refused)) => match refused.take_message() {
            Some(unsent) => {
                // The body is the caller's again.
                stream.lent = None;
                SendOutcome::Not(unsent)
            }
            None => match progress.and_then(|progress| progress.fault.get()) {
                Some(fault) => SendOutcome::Failed(FetchError::Client(fault)),
                None if is_unprocessed(refused.error()) => SendOutcome::Unprocessed(stream.explain(refused.error())),
                None => SendOutcome::Failed(stream.explain(refused.error())),
            },
        },
    }
}

impl StreamUse {
    /// The error of an exchange that failed in hyper.
    pub fn explain(&self, error: &hyper::Error) -> FetchError {
        if error.is_timeout() {
            return FetchError::TimedOut("answering a ping");
        }
        if self.connection.state.transport.is_killed() {
            return FetchError::TimedOut("responding");
        }
        FetchError::of_hyper(error)
    }
}

/// Whether the origin has said that it has done nothing about a request. h2 gives an error of a `GOAWAY` that came to those
/// streams alone that are later than its last one.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_refused || error.is_go_away())
    })
}

/// Gives a request the form that it has in HTTP/2: scheme and authority are parts of the URL, and there is no `Host`.
fn to_http2(parts: &mut Parts, to: &Destination) -> Result<(), FetchError> {
    let wrong = |error: http::Error| FetchError::Connect(format!("no request in HTTP/2 can be made: {error}"));
    let authority = match parts.headers.remove(HOST) {
        Some(host) => Authority::try_from(host.as_bytes()),
        None => Authority::try_from(to.origin.named().authority().as_str()),
    };
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.scheme = Some(if to.origin.https { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority.map_err(|error| wrong(error.into()))?);
    uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    parts.uri = Uri::from_parts(uri).map_err(|error| wrong(error.into()))?;
    parts.version = Version::HTTP_2;
    // Those that belong to one connection are gone already.
    parts.headers.remove(TE);
    parts.headers.remove(TRANSFER_ENCODING);
    Ok(())
}

/// Checks what h2 leaves of the rules that the heads of HTTP/1 must keep.
fn check_form(headers: &HeaderMap, headers_max: usize) -> Result<(), FramingViolation> {
    if headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        return Err(FramingViolation::ContentLength);
    }
    if headers.len() > headers_max { Err(FramingViolation::TooLong) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use http::Method;

    use super::*;
    use crate::options::{OriginTimes, ProxyLimits};
    use crate::rules::headers;
    use crate::rules::key::UrlOrigin;
    use crate::upstream::{AddressReach, OriginRules, OriginTrust};

    fn destination(https: bool) -> Destination {
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let rules = Arc::new(OriginRules::new(OriginTimes::of(&ProxyLimits::default()), trust));
        let origin = UrlOrigin { https, host: "[::1]".into(), port: 81 };
        Destination::new(origin, AddressReach::Everywhere, IpAddr::V4(Ipv4Addr::LOCALHOST), rules)
    }

    #[test]
    fn host_becomes_the_authority() {
        let table = [
            (&[("host", "a.example:82"), ("accept", "x")][..], true, "/p?q", "https://a.example:82/p?q"),
            (&[("host", "a.example"), ("te", "trailers")][..], false, "/", "http://a.example/"),
            (&[][..], false, "/p", "http://[::1]:81/p"),
        ];
        for (lines, https, target, url) in table {
            let head =
                RequestHead { method: Method::GET, target: target.parse().expect("a path"), headers: headers(lines) };
            let (mut parts, _) = head.with_body(RequestBody::Empty).into_parts();
            to_http2(&mut parts, &destination(https)).expect("a request");
            assert_eq!((parts.uri.to_string().as_str(), parts.version), (url, Version::HTTP_2));
            assert!(!parts.headers.contains_key("host") && !parts.headers.contains_key("te"));
            assert_eq!(parts.headers.contains_key("accept"), lines.iter().any(|(name, _)| *name == "accept"));
        }
    }

    #[test]
    fn host_without_authority_is_no_request() {
        let headers = headers(&[("host", "a b")]);
        let head = RequestHead { method: Method::GET, target: PathAndQuery::from_static("/"), headers };
        let (mut parts, _) = head.with_body(RequestBody::Empty).into_parts();
        let error = to_http2(&mut parts, &destination(true)).expect_err("a space").to_string();
        assert!(error.contains("no request in HTTP/2"), "{error}");
    }

    #[test]
    fn shared_head_has_http1_limits() {
        let two = headers(&[("content-length", "3"), ("content-length", "3")]);
        assert_eq!(check_form(&two, 10), Err(FramingViolation::ContentLength));
        let many = headers(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!((check_form(&many, 3), check_form(&many, 2)), (Ok(()), Err(FramingViolation::TooLong)));
    }
}
