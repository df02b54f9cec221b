//! Chooses the path of a request that is not answered at once from memory.
//!
//! Owns: refusing requests that must not reach the store or an origin (no `Host` or several, unsuitable targets,
//! clients that are not admitted, networks that send too many, loops, excessive sizes), the answers to checks of an
//! authority, and the choice between
//! `cached`, `parts`, `pass`, `tunnel` and `purge`.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HOST, MAX_FORWARDS, RETRY_AFTER, VIA};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use nectary_host::fleet::NodeStanding;

use super::redirect::{redirect, redirect_to};
use super::reply::{own, own_bytes};
use super::request::{ClientRequest, HeaderFeatures, RequestClient};
use super::{admin, cached, parts, pass, peers, purge, tunnel, upgrade};
use crate::access_log::CacheOutcome;
use crate::body::ReplyBody;
use crate::connections::EntranceRole;
use crate::fleet::FleetSeat;
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::rules::list::members_of;
use crate::sites::RouteTarget;
use crate::wire::http2::Form;
use crate::worker::ProxyWorker;

/// When a request came, and whether it is one too many.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestArrival {
    pub started: Instant,
    pub at_ms: u64,
    /// The seconds after which the client's network may send the next request, if this one is one too many.
    pub wait_s: Option<u64>,
}

/// Answers a request that [`hit`](super::hit) could not answer.
pub(super) async fn route(
    worker: Rc<ProxyWorker>,
    client: Rc<RequestClient>,
    request: Request<Incoming>,
    form: Form,
    RequestArrival { started, at_ms, wait_s }: RequestArrival,
) -> Response<ReplyBody> {
    if peers::is_message(&client, &request) {
        return peers::answer_message(&worker, &client, request).await;
    }
    let (mut parts, body) = request.into_parts();
    let client = peers::client_of(&worker, &client, &parts.headers);
    let (route, rules) = {
        let sites = worker.sites.borrow();
        (sites.find_for(&parts.uri, &parts.headers).clone(), sites.rules())
    };
    route.clean_cookies(&parts.method, &mut parts.headers);
    let mut key = Vec::new();
    let has_key = route.push_request_key(&parts.uri, parts.headers.get(HOST), &mut key);
    if !has_key {
        key = parts.uri.to_string().into_bytes();
    }
    let (features, answer) = (HeaderFeatures::of(&parts.headers), worker.log.new_note());
    let request = ClientRequest {
        directives: features.directives(&route, &parts.headers),
        worker,
        route,
        rules,
        client,
        method: parts.method,
        uri: parts.uri,
        version: parts.version,
        headers: parts.headers,
        key,
        features,
        started,
        at_ms,
        answer,
        part: None,
        continues: None,
    };
    // The clients behind another proxy are one network, which may have no token left when an authority checks a name.
    if form.is_ok()
        && let Some(answer) = of_check(&request)
    {
        // A check does not count.
        if let (None, Some(client)) = (wait_s, request.client.own_address()) {
            request.worker.client_limits.put_back_of_proxy(client, request.started);
        }
        return answer;
    }
    if let Some(wait_s) = wait_s {
        return too_many(&request, wait_s);
    }
    if let Err((status, problem)) = form {
        return own(&request, status, "malformed", problem, true);
    }
    if let Some(wait_s) = excess_at_site(&request) {
        return too_many(&request, wait_s);
    }
    if let Some(refusal) = refuse(&request, &body) {
        return refusal;
    }
    if request.client.door == EntranceRole::Redirect {
        return redirect(&request);
    }
    if request.client.door == EntranceRole::Fleet {
        return peers::answer(request, body).await;
    }
    let is_purge_of_body = request.client.is_admin() && purge::is_purge(&request);
    if request.worker.is_leaving.get() && (is_purge_of_body || request.method.as_str() == "PURGE") {
        return purge::stopping(&request);
    }
    if request.method.as_str() == "PURGE" {
        return match admin::refuse_purge(&request) {
            Some(refusal) => refusal,
            None => purge::purge(request, has_key).await,
        };
    }
    if is_purge_of_body {
        return match admin::refuse_purge(&request).or_else(|| admin::refuse_page_of_others(&request)) {
            Some(refusal) => refusal,
            None => purge::purge_wanted(request, body).await,
        };
    }
    if request.client.is_admin() {
        return admin::answer(&request).await;
    }
    if request.method == Method::CONNECT && request.version > Version::HTTP_11 {
        return own(&request, StatusCode::NOT_IMPLEMENTED, "connect", "Tunnels need HTTP/1.1.", false);
    }
    if request.method == Method::CONNECT {
        return tunnel::open(request).await;
    }
    if let Some(answer) = of_proxy(&request) {
        return answer;
    }
    if !has_key {
        let text = if request.route.is_forward() {
            "This is a forward proxy: ask it for whole URLs, as `GET http://example.org/ HTTP/1.1`, or set it as your \
             client's http_proxy. To cache one site, start it with --origin."
        } else {
            "This target names nothing at the origin."
        };
        return own(&request, StatusCode::BAD_REQUEST, "no-url", text, false);
    }
    let is_empty = body.is_end_stream();
    if !(request.method == Method::GET || request.method == Method::HEAD) {
        return pass::pass(request, Some(body), ForwardReason::Method).await;
    }
    if !is_empty || request.features.is_for_origin || (request.route.is_pass && !upgrade::is_wanted(&request)) {
        return pass::pass(request, Some(body), ForwardReason::Bypass).await;
    }
    if is_empty && upgrade::is_wanted(&request) {
        return upgrade::open(request).await;
    }
    if request.worker.is_leaving.get() {
        // Another process may have opened the store, so nothing in it is certain to be valid.
        return pass::pass(request, None, ForwardReason::Bypass).await;
    }
    let standing = request.standing();
    if standing == NodeStanding::ValidateOnly {
        return without_store(request).await;
    }
    let mut response = match request.route.part_bytes {
        None => cached::serve(request).await,
        Some(part_bytes) => parts::serve(request, part_bytes).await,
    };
    if standing == NodeStanding::Cut {
        peers::add_to_cache_status(response.headers_mut(), "fleet=cut");
    }
    response
}

/// Answers a request of a node that may not use its store, as it is cut off from its fleet or has not caught up: the
/// origin answers, and nothing is stored, within a limit on the origin's load.
async fn without_store(request: ClientRequest) -> Response<ReplyBody> {
    if request.directives.only_if_cached {
        let text = "This proxy is cut off from its fleet, so nothing stored may be served.";
        return own(&request, StatusCode::GATEWAY_TIMEOUT, "only-if-cached", text, false);
    }
    let Some(Err(wait_s)) = request.worker.fleet.as_ref().map(FleetSeat::take_pass) else {
        return pass::pass(request, None, ForwardReason::Bypass).await;
    };
    let text = "This proxy is cut off from its fleet, and asks origins only so often. Send this again later.";
    let mut response = own(&request, StatusCode::SERVICE_UNAVAILABLE, "fleet-cut", text, false);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait_s));
    response
}

/// The seconds after which the client's network may send its next request to the site or route, if this one is one too
/// many.
fn excess_at_site(request: &ClientRequest) -> Option<u64> {
    let (rule, limits) = (request.route.request_rule.as_ref(), &request.worker.client_limits);
    let client = request.client.own_address().filter(|_| request.client.is_limited())?;
    limits.take_after_proxy(rule, client, request.started).err()
}

/// Refuses a request of a network that sends too many.
fn too_many(request: &ClientRequest, wait_s: u64) -> Response<ReplyBody> {
    request.worker.stats.limited_requests.add(1);
    let text = "Your network sends too many requests. Send this one again later.";
    // What follows a `CONNECT` may be meant for its target.
    let close = request.method == Method::CONNECT;
    let mut response = own(request, StatusCode::TOO_MANY_REQUESTS, "client-requests", text, close);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait_s));
    response
}

/// Answers a request whose route leads to no origin.
fn of_proxy(request: &ClientRequest) -> Option<Response<ReplyBody>> {
    match &request.route.target {
        RouteTarget::Named(_) | RouteTarget::Pool(_) => None,
        RouteTarget::Redirect(to) => Some(redirect_to(request, to)),
        RouteTarget::NoSite => {
            // A client of HTTP/2 may have taken this connection because of its certificate; it can then try another
            // one.
            let is_http2 = request.version > Version::HTTP_11;
            let status = if is_http2 { StatusCode::MISDIRECTED_REQUEST } else { StatusCode::NOT_FOUND };
            Some(own(request, status, "no-site", "No site has this host.", false))
        }
        RouteTarget::NoRoute => {
            Some(own(request, StatusCode::NOT_FOUND, "no-route", "This site has nothing here.", false))
        }
        RouteTarget::Ambiguous => {
            let text = "This path can be read in two ways. Write it without codes, dots and double slashes.";
            Some(own(request, StatusCode::BAD_REQUEST, "ambiguous-path", text, false))
        }
    }
}

/// Answers the check HTTP-01 by which an authority sees that a name leads to this proxy (RFC 8555, section 8.3). It
/// comes from any address, and before a redirect to TLS.
fn of_check(request: &ClientRequest) -> Option<Response<ReplyBody>> {
    let acme = request.worker.tls.as_ref()?.certificates.acme()?;
    if request.client.is_admin() || !(request.method == Method::GET || request.method == Method::HEAD) {
        return None;
    }
    let answer = acme.answers.of_path(request.uri.path())?;
    let (own, kind) = (CacheStatus::Own { detail: "acme" }, "application/octet-stream");
    let body = Bytes::copy_from_slice(answer.as_bytes());
    let mut response = own_bytes(request, StatusCode::OK, own, CacheOutcome::Own, kind, body, false);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
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
    let is_for_admin = request.client.is_admin() || request.method.as_str() == "PURGE";
    if request.route.is_forward() && !request.client.is_admitted && !is_for_admin {
        let text = "This proxy does not serve your address. Its operator can allow it.";
        return refusal(StatusCode::FORBIDDEN, "client-not-admitted", text);
    }
    if !is_for_admin && !request.route.admits(request.client.address.ip()) {
        return refusal(StatusCode::FORBIDDEN, "client-not-allowed", "This is not for clients with your address.");
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
