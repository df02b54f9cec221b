//! Decides for each request whether its client may purge, and answers the other requests at an address for
//! administration.
//!
//! Owns: the refusals. Each refusal tells the operator what to do; no refusal reveals whether a token was nearly right.
//! Without a token, whoever runs programs on this machine may use the addresses for administration; and with or without
//! one, whoever may write to the file of a Unix socket for administration may use that. Pages of the web
//! that are open in a browser on it may not: such a page can send requests here under a name of its own that it has
//! made to mean this machine (DNS rebinding). The operators' page, which this address itself serves, may: its origin is
//! the address, by which the browser names this machine.
//!
//! Every page forbids the browser to show it in a frame, to guess its type, to keep it, to run anything but the script
//! that is served here, and to take a text for markup.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};

use super::reply::{own, own_with};
use super::request::ClientRequest;
use crate::access_log::CacheOutcome;
use crate::admin::{AdminPage, AdminPages, AdminToken};
use crate::body::ReplyBody;
use crate::rules::cache_status::CacheStatus;

/// Headers that proxies and TLS terminators add to requests that they pass on.
const RELAYED: [&str; 6] =
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

/// What browsers may do with a page: nothing from elsewhere, no script in the page itself, and no text as markup.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                              connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                              require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every page.
const PAGE_HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Refuses a purge request if its client or its connection is not allowed to purge.
pub(super) fn refuse_purge(request: &ClientRequest) -> Option<Response<ReplyBody>> {
    let refusal = refusal_of_purge(request);
    if refusal.is_some() {
        request.worker.stats.purges_refused.add(1);
    }
    refusal
}

fn refusal_of_purge(request: &ClientRequest) -> Option<Response<ReplyBody>> {
    let options = &request.worker.options.admin;
    if !request.client.is_admin() && options.token.is_none() {
        let text = "PURGE is not served here. The operator can start the proxy with --admin-listen ADDRESS or with \
                    --admin-token-file FILE, or purge over the control socket.";
        return Some(own(request, StatusCode::METHOD_NOT_ALLOWED, "purge-off", text, true));
    }
    if let Some(name) = RELAYED.iter().find(|name| request.headers.contains_key(**name))
        && !options.relayed
    {
        let text = format!(
            "This PURGE has passed another proxy: it has `{name}`. Send it to this proxy itself; the operator can \
             also start the proxy with --admin-relayed."
        );
        return Some(own(request, StatusCode::FORBIDDEN, "purge-relayed", &text, true));
    }
    // Browsers send `Origin` with every request that does not merely read.
    if token(request).is_none() && request.headers.contains_key(ORIGIN) && !is_of_own_page(request) {
        let text = "This PURGE was sent by a page in a browser that is not the page of this address: it has another \
                    `Origin`. To purge from there, start the proxy with --admin-token-file.";
        return Some(own(request, StatusCode::FORBIDDEN, "purge-browser", text, true));
    }
    refuse_without_token(request, "purge-token")
}

/// Refuses a `POST` without a token that a page of the web may have sent: browsers send such a request without asking first.
pub(super) fn refuse_page_of_others(request: &ClientRequest) -> Option<Response<ReplyBody>> {
    let is_of_page = request.headers.get("sec-fetch-site").is_some_and(|site| site != "none" && site != "same-origin");
    if token(request).is_some() || (names_this_machine(request) && !is_of_page) {
        return None;
    }
    request.worker.stats.purges_refused.add(1);
    let text = "Without a token, this is served to requests that name this machine as `localhost` or by an address. Use one \
                of these, or start the proxy with --admin-token-file.";
    Some(own(request, StatusCode::FORBIDDEN, "admin-host", text, true))
}

/// Whether the page that this address serves sent a request: its origin is the name by which the request names this
/// machine.
fn is_of_own_page(request: &ClientRequest) -> bool {
    let mut origins = request.headers.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else { return false };
    let Some(named) = named_authority(request) else { return false };
    let origin = origin.as_bytes().strip_prefix(b"http://").unwrap_or_default();
    request.client.is_admin() && names_this_machine(request) && named.as_str().as_bytes().eq_ignore_ascii_case(origin)
}

/// The host and port that a request names.
fn named_authority(request: &ClientRequest) -> Option<Authority> {
    let of_header = || request.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    request.uri.authority().cloned().or_else(of_header)
}

/// Whether a request names this machine by an address or as `localhost`, or names none, as no page of the web can.
fn names_this_machine(request: &ClientRequest) -> bool {
    let Some(authority) = named_authority(request) else { return true };
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

/// Refuses a request that does not show the token, if there is one.
fn refuse_without_token(request: &ClientRequest, detail: &'static str) -> Option<Response<ReplyBody>> {
    if shows_token(request) {
        return None;
    }
    let text = "This needs the token of --admin-token-file, as `Authorization: Bearer TOKEN`.";
    let mut response = own(request, StatusCode::UNAUTHORIZED, detail, text, true);
    let scheme = HeaderValue::from_static("Bearer realm=\"nectary\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    Some(response)
}

/// The token that a request must show; `None` if it needs none. At a Unix socket for administration the permissions of
/// its file have decided who may connect.
fn token(request: &ClientRequest) -> Option<&AdminToken> {
    let is_by_file = request.client.is_admin() && request.client.is_unnamed;
    request.worker.options.admin.token.as_ref().filter(|_| !is_by_file)
}

/// Whether a request shows the token, if it needs one.
fn shows_token(request: &ClientRequest) -> bool {
    let Some(token) = token(request) else { return true };
    let mut shown = request.headers.get_all(AUTHORIZATION).iter();
    matches!((shown.next(), shown.next()), (Some(value), None) if token.is_shown_by(value.as_bytes()))
}

/// Answers a request other than a purge on an address for administration: a page, or a refusal.
pub(super) async fn answer(request: &ClientRequest) -> Response<ReplyBody> {
    let is_read = request.method == Method::GET || request.method == Method::HEAD;
    let pages = request.worker.options.admin.pages.as_ref().filter(|_| is_read);
    let Some((page, pages)) = AdminPage::of(request.uri.path()).zip(pages) else { return refuse_other(request) };
    let mut response = answer_page(request, page, pages).await;
    for (name, value) in PAGE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn answer_page(request: &ClientRequest, page: AdminPage, pages: &AdminPages) -> Response<ReplyBody> {
    let is_trusted = if token(request).is_some() { shows_token(request) } else { names_this_machine(request) };
    if page.is_protected() && !is_trusted {
        let text = "Without a token, pages are served to requests that name this machine as `localhost` or by an \
                    address. Use one of these, or start the proxy with --admin-token-file.";
        let detail = if page == AdminPage::Metrics { "metrics-token" } else { "status-token" };
        let refusal = refuse_without_token(request, detail);
        return refusal.unwrap_or_else(|| own(request, StatusCode::FORBIDDEN, "admin-host", text, true));
    }
    let make = pages.0.clone();
    let Ok(answer) = tokio::task::spawn_blocking(move || make(page)).await else {
        return own(request, StatusCode::INTERNAL_SERVER_ERROR, "page", "This page cannot be made.", false);
    };
    let status = if answer.is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let cache_status = CacheStatus::Own { detail: "administration" };
    // Who balances load may not have the token, and learns nothing but whether this proxy works.
    let is_whole = is_trusted || page.is_static();
    let text = if is_whole { answer.text.as_str() } else { answer.text.lines().next().unwrap_or_default() };
    own_with(request, status, cache_status, CacheOutcome::Own, answer.content_type, text, false)
}

/// Refuses everything except purges and pages on an address for administration.
fn refuse_other(request: &ClientRequest) -> Response<ReplyBody> {
    let text = "This address is for administration: it serves PURGE, POST of /purge, and GET of / (the operators' \
                page), /status.json, /metrics, /healthz and /readyz. Send all else to an address of --listen.";
    own(request, StatusCode::METHOD_NOT_ALLOWED, "admin-only", text, true)
}
