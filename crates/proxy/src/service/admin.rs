//! Decides for each request whether its client may purge.
//!
//! Owns: the refusals. Each refusal tells the operator what to do; no refusal reveals whether a token was nearly right.

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use super::reply::own;
use super::request::ClientRequest;
use crate::body::ReplyBody;

/// Headers that proxies and TLS terminators add to requests that they pass on.
const RELAYED: [&str; 6] =
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

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
    if !request.client.is_admin && options.token.is_none() {
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
    let token = options.token.as_ref()?;
    let mut shown = request.headers.get_all(AUTHORIZATION).iter();
    match (shown.next(), shown.next()) {
        (Some(value), None) if token.is_shown_by(value.as_bytes()) => None,
        _ => {
            let text = "PURGE needs the token of --admin-token-file, as `Authorization: Bearer TOKEN`.";
            let mut response = own(request, StatusCode::UNAUTHORIZED, "purge-token", text, true);
            let scheme = HeaderValue::from_static("Bearer realm=\"nectary\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            Some(response)
        }
    }
}

/// Refuses everything except purges on an address for administration.
pub(super) fn refuse_other(request: &ClientRequest) -> Response<ReplyBody> {
    let text = "This address is for administration: it serves PURGE alone. Send all else to an address of --listen.";
    own(request, StatusCode::METHOD_NOT_ALLOWED, "admin-only", text, true)
}
