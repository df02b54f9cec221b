//! Chooses the path of a request that is not answered at once from memory.
//!
//! Owns: refusing requests that must not reach the store or an origin (no `Host` or several, unsuitable targets,
//! clients that are not admitted, loops, excessive sizes), and the choice between `cached`, `pass`, `tunnel` and
//! `purge`.

use std::rc::Rc;
use std::time::Instant;

use http::header::{HOST, MAX_FORWARDS, VIA};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};

use super::reply::own;
use super::request::{Client, ClientRequest, Features, push_request_key};
use super::{admin, cached, pass, purge, tunnel, upgrade};
use crate::body::ReplyBody;
use crate::rules::cache_status::Forward;
use crate::rules::list::members_of;
use crate::worker::{Mode, Worker};

/// Answers a request that [`hit`](super::hit) could not answer.
pub(super) async fn route(
    worker: Rc<Worker>,
    client: Rc<Client>,
    request: Request<Incoming>,
    started: Instant,
    at_ms: u64,
) -> Response<ReplyBody> {
    let (parts, body) = request.into_parts();
    let mut key = Vec::new();
    let has_key = push_request_key(&worker, &parts.uri, parts.headers.get(HOST), &mut key);
    if !has_key {
        key = parts.uri.to_string().into_bytes();
    }
    let features = Features::of(&parts.headers);
    let request = ClientRequest {
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
    if let Some(refusal) = refuse(&request, &body) {
        return refusal;
    }
    if request.worker.is_leaving.get() && request.method.as_str() == "PURGE" {
        let text = "This proxy stops, and cannot purge any more. Send it again.";
        return own(&request, StatusCode::SERVICE_UNAVAILABLE, "stopping", text, true);
    }
    if request.method.as_str() == "PURGE" {
        return match admin::refuse_purge(&request) {
            Some(refusal) => refusal,
            None => purge::purge(request, has_key).await,
        };
    }
    if request.client.is_admin {
        return admin::refuse_other(&request);
    }
    if request.method == Method::CONNECT {
        return tunnel::open(request).await;
    }
    if !has_key {
        let text = match request.worker.mode {
            Mode::Forward => {
                "This is a forward proxy: ask it for whole URLs, as `GET http://example.org/ HTTP/1.1`, or set it as \
                 your client's http_proxy. To cache one site, start it with --origin."
            }
            Mode::Reverse { .. } => "This target names nothing at the origin.",
        };
        return own(&request, StatusCode::BAD_REQUEST, "no-url", text, false);
    }
    let is_empty = body.is_end_stream();
    if !(request.method == Method::GET || request.method == Method::HEAD) {
        return pass::pass(request, Some(body), Forward::Method).await;
    }
    if !is_empty || request.features.is_for_origin {
        return pass::pass(request, Some(body), Forward::Bypass).await;
    }
    if is_empty && upgrade::is_wanted(&request) {
        return upgrade::open(request).await;
    }
    if request.worker.is_leaving.get() {
        // Another process may have opened the store, so nothing in it is certain to be valid.
        return pass::pass(request, None, Forward::Bypass).await;
    }
    cached::serve(request).await
}

/// Refuses a request that must not reach the store or an origin.
fn refuse(request: &ClientRequest, body: &Incoming) -> Option<Response<ReplyBody>> {
    let limits = &request.worker.options.limits;
    let refusal = |status, detail, text: &str| Some(own(request, status, detail, text, true));
    if !request.features.has_host(request.version) {
        let text =
            "A request must have exactly one Host header, with a host and perhaps a port, as `example.org:8080`.";
        return refusal(StatusCode::BAD_REQUEST, "host", text);
    }
    if request.key.len() > limits.url_bytes_max {
        return refusal(StatusCode::URI_TOO_LONG, "url-too-long", "The URL is too long.");
    }
    if body.size_hint().lower() > limits.request_body_bytes_max {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The request's body is too large.");
    }
    let is_for_admin = request.client.is_admin || request.method.as_str() == "PURGE";
    if matches!(request.worker.mode, Mode::Forward) && !request.client.is_admitted && !is_for_admin {
        let text = "This proxy does not serve your address. Its operator can allow it.";
        return refusal(StatusCode::FORBIDDEN, "client-not-admitted", text);
    }
    if request.method == Method::TRACE {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "trace", "TRACE is not served.");
    }
    if request.method == Method::OPTIONS && request.headers.get(MAX_FORWARDS).is_some_and(|count| count == "0") {
        return Some(own(request, StatusCode::OK, "max-forwards", "This request was to go no further.", false));
    }
    if request.features.has_via {
        let own_name = request.worker.pseudonym.as_bytes();
        let is_own = |member: &[u8]| member.split(|byte| *byte == b' ').nth(1) == Some(own_name);
        if members_of(&request.headers, &VIA).any(is_own) {
            return refusal(StatusCode::LOOP_DETECTED, "loop", "This request has already passed this proxy.");
        }
    }
    None
}
