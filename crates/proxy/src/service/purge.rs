//! `PURGE`: a URL and all its variants out of the store, from this machine only.

use http::header::{ACCEPT, HOST};
use http::uri::{Authority, Scheme};
use http::{Response, StatusCode, Uri};

use super::asked::Asked;
use super::reply::{own, own_with};
use crate::access_log::Outcome;
use crate::body::ReplyBody;
use crate::rules::cache_status::CacheStatus;
use crate::rules::key::push_key;

/// Purges the request's URL. When the response is sent, the purge is durable.
pub(super) async fn purge(mut asked: Asked, has_key: bool) -> Response<ReplyBody> {
    if !asked.client.is_loopback {
        let text = "PURGE is served to this machine's own addresses only.";
        return own(&asked, StatusCode::FORBIDDEN, "purge-not-admitted", text, true);
    }
    if !has_key {
        match key_of_host(&asked) {
            Some(key) => asked.key = key,
            None => {
                let text = "PURGE needs a URL: a whole one, or a path with a Host header.";
                return own(&asked, StatusCode::BAD_REQUEST, "no-url", text, false);
            }
        }
    }
    let wants_json = asked
        .headers
        .get(ACCEPT)
        .is_some_and(|value| value.as_bytes().windows(16).any(|window| window == b"application/json"));
    let url = String::from_utf8_lossy(&asked.key).into_owned();
    match asked.worker.store.purge_key(&asked.key).await {
        Ok(()) => {
            let (kind, text) = if wants_json {
                ("application/json", serde_json::json!({ "purged": url }).to_string())
            } else {
                ("text/plain; charset=utf-8", format!("purged {url}"))
            };
            let status = CacheStatus::Own { detail: "purged" };
            own_with(&asked, StatusCode::OK, status, Outcome::Purged, kind, &text, false)
        }
        Err(error) => {
            let text = format!("{url} is out of this process, but the purge is not on the device: {error}");
            own(&asked, StatusCode::INTERNAL_SERVER_ERROR, "purge-not-durable", &text, false)
        }
    }
}

/// The key of a path and a `Host`.
fn key_of_host(asked: &Asked) -> Option<Vec<u8>> {
    let path = asked.uri.path_and_query()?.clone();
    let host: Authority = asked.headers.get(HOST)?.to_str().ok()?.parse().ok()?;
    let uri = Uri::builder().scheme(Scheme::HTTP).authority(host).path_and_query(path).build().ok()?;
    let mut key = Vec::new();
    push_key(&mut key, &uri).then_some(key)
}
