//! Sends clients elsewhere: those that came without TLS to the same URL with it, and those of a route to its URL.

use http::header::{HOST, LOCATION};
use http::uri::Authority;
use http::{HeaderValue, Response, StatusCode};

use super::reply::own;
use super::request::ClientRequest;
use crate::body::ReplyBody;
use crate::sites::RedirectTo;

/// The port that an `https` URL has without naming one.
const HTTPS_PORT: u16 = 443;

/// Answers with the URL of the same resource under `https`. The method stays: `308`.
pub(super) fn redirect(request: &ClientRequest) -> Response<ReplyBody> {
    let named = request.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let authority = request.uri.authority().cloned().or(named);
    let port = request.worker.tls.as_ref().map_or(HTTPS_PORT, |tls| tls.port);
    let location = authority.filter(|authority| !authority.host().is_empty()).and_then(|authority| {
        let port = if port == HTTPS_PORT { String::new() } else { format!(":{port}") };
        let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') { path } else { "/" };
        HeaderValue::from_bytes(format!("https://{}{port}{path}", authority.host()).as_bytes()).ok()
    });
    let Some(location) = location else {
        return own(request, StatusCode::BAD_REQUEST, "host", "This site is served over https. Name its host.", true);
    };
    let text = "This site is served over https.";
    let mut response = own(request, StatusCode::PERMANENT_REDIRECT, "https", text, false);
    response.headers_mut().insert(LOCATION, location);
    response
}

/// Answers with the URL of a route.
pub(super) fn redirect_to(request: &ClientRequest, to: &RedirectTo) -> Response<ReplyBody> {
    let Some(location) = to.location(&request.uri) else {
        return own(request, StatusCode::BAD_REQUEST, "redirect", "This path cannot be part of another URL.", false);
    };
    let mut response = own(request, to.status, "redirect", "It is elsewhere.", false);
    response.headers_mut().insert(LOCATION, location);
    request.route.response_headers.apply(response.headers_mut());
    response
}
