//! The fastest way to answer: a plain `GET` of a fresh object that is whole in memory is answered before hyper sees it.
//!
//! Owns: the definition of a plain request, and the bytes of the response to one. A plain request is one complete head
//! that the framing has accepted. It has only headers of a short list, none of which changes the answer. All other
//! requests go to hyper unchanged. Answering copies no body, and allocates no memory after the buffer for the head has
//! grown.

use std::rc::Rc;

use bytes::Bytes;
use http::{Method, StatusCode, Version};
use nectary_host::fleet::NodeStanding;
use nectary_store::KeyRef;

use super::lookup::{LookupVerdict, look_at};
use super::request::RequestClient;
use crate::access_log::{AccessLogLine, CacheOutcome};
use crate::connections::EntranceRole;
use crate::rules::cache_control::RequestDirectives;
use crate::rules::host::is_host;
use crate::rules::key::push_decimal;
use crate::wire::http1::stream::RequestShortcut;
use crate::worker::ProxyWorker;

/// The longest body that is sent here. A longer body may not fit into the send buffer, so hyper sends it, and its bytes
/// are counted when they are sent.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Answers the plain requests of one client.
pub(crate) struct DirectAnswerer {
    pub worker: Rc<ProxyWorker>,
    pub client: Rc<RequestClient>,
}

/// A request that is plain.
#[derive(Debug, PartialEq, Eq)]
struct PlainRequest<'a> {
    path: &'a [u8],
    host: &'a [u8],
    referrer: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
}

impl RequestShortcut for DirectAnswerer {
    fn answer(&self, request: &[u8], head: &mut Vec<u8>) -> Option<Bytes> {
        let plain = plain(request)?;
        let worker = &*self.worker;
        // The request has come, and nothing was looked up yet.
        if worker.standing() != NodeStanding::Member {
            return None;
        }
        let sites = worker.sites.borrow();
        let route = sites.find(Some(plain.host), plain.path);
        if !(route.is_stored() && route.is_plain()) {
            return None;
        }
        let scratch = &mut *worker.scratch.borrow_mut();
        let key = &mut scratch.0;
        key.clear();
        if !route.key.push_prefix(key, Some(plain.host)) {
            return None;
        }
        route.push_path(plain.path, key);
        if key.len() > worker.options.limits.url_bytes_max {
            return None;
        }
        let object = worker.store.get_resident(KeyRef::new(key, b""))?;
        let body = object.whole().filter(|body| body.len() <= BODY_BYTES_MAX)?.clone();
        let (started, at_ms) = worker.now();
        let nothing = RequestDirectives::default();
        let LookupVerdict::Serve(stored, age_s, ttl_s) = look_at(&route.policy, key, &object, &nothing, at_ms) else {
            return None;
        };
        if stored.head.status != StatusCode::OK {
            return None;
        }
        // Without a token the request goes on to hyper, and is refused there.
        if let Some(client) = self.client.own_address()
            && worker.client_limits.take_all(route.request_rule.as_ref(), client, started).is_err()
        {
            return None;
        }
        head.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        stored.render_headers(head);
        head.extend_from_slice(b"age: ");
        push_decimal(head, age_s);
        head.extend_from_slice(b"\r\ncache-status: ");
        head.extend_from_slice(worker.rendered.borrow_mut().hit(ttl_s).as_bytes());
        head.extend_from_slice(b"\r\ncontent-length: ");
        push_decimal(head, body.len() as u64);
        head.extend_from_slice(b"\r\n\r\n");

        worker.stats.requests.add(1);
        worker.stats.body_bytes_sent.add(body.len() as u64);
        if worker.log.is_on() {
            worker.log.note(&AccessLogLine {
                client: self.client.own_address(),
                at_ms,
                method: &Method::GET,
                url: &route.logged_url(key, self.client.door == EntranceRole::Tls, Some(plain.host), plain.path),
                version: Version::HTTP_11,
                status: 200,
                body_bytes: body.len() as u64,
                referrer: plain.referrer,
                user_agent: plain.user_agent,
                outcome: CacheOutcome::Hit,
                duration: started.elapsed(),
                object_bytes: Some(body.len() as u64),
                tls: self.client.tls,
                route: route.name.as_deref(),
                answer: None,
            });
        } else {
            worker.log.count(CacheOutcome::Hit, 200, started.elapsed());
        }
        Some(body)
    }
}

/// The path of a plain request.
pub(crate) fn plain_path(request: &[u8]) -> Option<&[u8]> {
    plain(request).map(|plain| plain.path)
}

/// Reads a buffer that must hold exactly one complete head; `None` if the request is not plain.
fn plain(request: &[u8]) -> Option<PlainRequest<'_>> {
    let head = request.strip_suffix(b"\r\n\r\n")?;
    let mut lines = HeadLines { rest: head };
    let path = lines.next()?.strip_prefix(b"GET ")?.strip_suffix(b" HTTP/1.1")?;
    let is_path = path.first() == Some(&b'/') && path.iter().all(|byte| matches!(byte, b'!'..=b'~') && is_plain(*byte));
    if !is_path {
        return None;
    }
    let (mut hosts, mut host, mut referrer, mut user_agent) = (0, &b""[..], None, None);
    for line in lines {
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
            host = value;
            if !is_host(value) {
                return None;
            }
        } else if name.eq_ignore_ascii_case(b"user-agent") && user_agent.is_none() {
            user_agent = Some(value);
        } else if name.eq_ignore_ascii_case(b"referer") && referrer.is_none() {
            referrer = Some(value);
        } else if name.eq_ignore_ascii_case(b"connection") {
            if !value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        } else if ![&b"accept"[..], b"accept-encoding", b"accept-language"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
        {
            return None;
        }
        // The untrimmed value is checked, because trimming also removes line feeds, which some parsers treat as the end
        // of a line.
        if !line[colon + 1..].iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return None;
        }
    }
    (hosts == 1).then_some(PlainRequest { path, host, referrer, user_agent })
}

/// Whether hyper accepts a byte in a path unchanged.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~/?&=+%:@!$,;*()".contains(&byte)
}

/// The lines of a head, separated by `\r\n`. [`plain`] refuses the lines that two faults yield: an empty line, after
/// which a second head may follow, and a `\r` without `\n`.
struct HeadLines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for HeadLines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        match memchr::memchr(b'\r', self.rest) {
            Some(end) => {
                let line = &self.rest[..end];
                self.rest = self.rest[end..].strip_prefix(b"\r\n").unwrap_or(b"\0");
                Some(line)
            }
            None => Some(std::mem::take(&mut self.rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    fn path(request: &str) -> Option<String> {
        plain(request.as_bytes()).map(|plain| String::from_utf8_lossy(plain.path).into_owned())
    }

    #[test]
    fn plain_requests_are_taken() {
        for (request, expected) in [
            ("GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n", "/a?b=c"),
            ("GET / HTTP/1.1\r\nhost:h:80\r\nUser-Agent: x y\r\nAccept: */*\r\n\r\n", "/"),
            ("GET /%20 HTTP/1.1\r\nHost: [::1]:8\r\nConnection: Keep-Alive\r\n\r\n", "/%20"),
        ] {
            assert_eq!(path(request).as_deref(), Some(expected), "{request:?}");
        }
    }

    /// A request with anything that could change the answer is not plain.
    #[test]
    fn special_requests_are_not_plain() {
        for request in [
            "",
            "\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n",
            "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: h\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET * HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /# HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /\"<> HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: \r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: ::1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nIf-None-Match: *\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nCache-Control: no-cache\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nVia: 1.1 x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nAccept : x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\nAccept: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nAccept:\nx\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\rAccept: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nAccept: \u{e9}\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        ] {
            assert_eq!(path(request), None, "{request:?}");
        }
    }
}
