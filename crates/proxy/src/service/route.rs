//! Where a request goes that is not answered at once.
//!
//! Owns: what is refused before anything is asked of store or origin (no or several `Host`s, targets that make no sense here,
//! clients that are not admitted, loops, sizes), and the choice among cache, pass, tunnel and purge.

use std::rc::Rc;
use std::time::Instant;

use http::header::{MAX_FORWARDS, VIA};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};

use super::asked::{Asked, Client, Features, push_request_key};
use super::reply::own;
use super::{admin, cached, pass, purge, tunnel};
use crate::body::ReplyBody;
use crate::rules::cache_status::Forward;
use crate::rules::list::members_of;
use crate::worker::{Mode, Worker};

/// Answers a request.
pub(super) async fn route(
    worker: Rc<Worker>,
    client: Rc<Client>,
    request: Request<Incoming>,
    started: Instant,
    at_ms: u64,
) -> Response<ReplyBody> {
    let (parts, body) = request.into_parts();
    let mut key = Vec::new();
    let has_key = push_request_key(&worker, &parts.uri, &mut key);
    if !has_key {
        key = parts.uri.to_string().into_bytes();
    }
    let features = Features::of(&parts.headers);
    let asked = Asked {
        directives: features.directives(&worker, &parts.headers),
        worker,
        client,
        method: parts.method,
        uri: parts.uri,
        version: parts.version,
        headers: parts.headers,
        key,
        features,
        started,
        at_ms,
    };
    if let Some(refusal) = refuse(&asked, &body) {
        return refusal;
    }
    if asked.method.as_str() == "PURGE" {
        return match admin::refuse_purge(&asked) {
            Some(refusal) => refusal,
            None => purge::purge(asked, has_key).await,
        };
    }
    if asked.client.is_admin {
        return admin::refuse_other(&asked);
    }
    if asked.method == Method::CONNECT {
        return tunnel::open(asked).await;
    }
    if !has_key {
        let text = match asked.worker.mode {
            Mode::Forward => {
                "This is a forward proxy: ask it for whole URLs, as `GET http://example.org/ HTTP/1.1`, or set it as \
                 your client's http_proxy. To cache one site, start it with --origin."
            }
            Mode::Reverse { .. } => "This target names nothing at the origin.",
        };
        return own(&asked, StatusCode::BAD_REQUEST, "no-url", text, false);
    }
    let is_empty = body.is_end_stream();
    if !(asked.method == Method::GET || asked.method == Method::HEAD) {
        return pass::pass(asked, Some(body), Forward::Method).await;
    }
    if !is_empty || asked.features.is_for_origin {
        return pass::pass(asked, Some(body), Forward::Bypass).await;
    }
    cached::serve(asked).await
}

/// Refuses what is not to be asked of anybody.
fn refuse(asked: &Asked, body: &Incoming) -> Option<Response<ReplyBody>> {
    let limits = &asked.worker.options.limits;
    let refusal = |status, detail, text: &str| Some(own(asked, status, detail, text, true));
    if !asked.features.has_host(asked.version) {
        let text =
            "A request must have exactly one Host header, with a host and perhaps a port, as `example.org:8080`.";
        return refusal(StatusCode::BAD_REQUEST, "host", text);
    }
    if asked.key.len() > limits.url_bytes_max {
        return refusal(StatusCode::URI_TOO_LONG, "url-too-long", "The URL is too long.");
    }
    if body.size_hint().lower() > limits.request_body_bytes_max {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The request's body is too large.");
    }
    let is_for_admin = asked.client.is_admin || asked.method.as_str() == "PURGE";
    if matches!(asked.worker.mode, Mode::Forward) && !asked.client.is_admitted && !is_for_admin {
        let text = "This proxy does not serve your address. Its operator can allow it.";
        return refusal(StatusCode::FORBIDDEN, "client-not-admitted", text);
    }
    if asked.method == Method::TRACE {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "trace", "TRACE is not served.");
    }
    if asked.method == Method::OPTIONS && asked.headers.get(MAX_FORWARDS).is_some_and(|count| count == "0") {
        return Some(own(asked, StatusCode::OK, "max-forwards", "This request was to go no further.", false));
    }
    if asked.features.has_via {
        let own_name = asked.worker.pseudonym.as_bytes();
        let is_own = |member: &[u8]| member.split(|byte| *byte == b' ').nth(1) == Some(own_name);
        if members_of(&asked.headers, &VIA).any(is_own) {
            return refusal(StatusCode::LOOP_DETECTED, "loop", "This request has already passed this proxy.");
        }
    }
    None
}
