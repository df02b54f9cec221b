//! `PURGE`: purges a URL with all its variants, or all objects with a tag; and `POST /purge` at an address for
//! administration, which also purges what begins with a prefix, and everything.
//!
//! Owns: the meaning of a purge request. A `PURGE` with `Surrogate-Key`, `NameCache-Tag` or `NameCache-Groups` purges these
//! tags, and its URL only names the origin of the groups. A request without these headers purges its URL. A purge of a
//! URL that is not stored succeeds and says so, so that a repeated purge does not fail. A `POST` says in JSON what it
//! purges, in the words of the control socket (`purge_request`). A soft purge, which a `PURGE` asks for by the header
//! of Fastly, removes nothing: what it is about is stale from now on, so that it is validated, and may be served stale
//! meanwhile by the same rules as other stale responses. Leaves to others: the decision which clients may purge
//! (`admin`).

mod fleet_purge;

use std::time::Duration;

use futures_util::future::join_all;
use http::header::{ACCEPT, HOST};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use nectary_host::fleet::{PurgeScope, PurgeWish};
use nectary_store::{Error, KeyRef, PurgeEffect, StoreErrorKind, TAG_BYTES_MAX, TAGS_MAX};
use tokio::time::timeout;

use self::fleet_purge::{PurgedThings, wish_of};
use super::reply::{own, own_with};
use super::request::ClientRequest;
use crate::access_log::CacheOutcome;
use crate::body::ReplyBody;
use crate::purge_request::{PurgeRequest, PurgeSubject};
use crate::rules::cache_status::CacheStatus;
use crate::rules::invalidate::origin_of;
use crate::rules::key::push_key;
use crate::rules::tags::{are_about_tags, tags_of};
use crate::sites::{KeysOfUrl, RouteTarget};

/// The longest body of a purge.
const WANTED_BYTES_MAX: usize = 1 << 20;

/// The header that makes a purge a soft one, if it is 1.
const SOFT_PURGE: &str = "fastly-soft-purge";

/// The longest time that a purge looks whether something is stored.
const LOOK_TIME_MAX: Duration = Duration::from_millis(100);

/// Purges the request's URL or tags. *Durability*: the purge is durable before the response is sent.
pub(super) async fn purge(mut request: ClientRequest, has_key: bool) -> Response<ReplyBody> {
    // A host that no site has names nothing that is stored.
    let is_named = has_key || request.worker.sites.borrow().has_names();
    let key = if is_named { None } else { key_of_host(&request) };
    let has_key = has_key || key.is_some();
    if let Some(key) = key {
        request.key = key;
    }
    let Some(is_soft) = is_soft(&request.headers) else {
        let text = "The header Fastly-Soft-Purge of a PURGE is 1 for a soft purge, or 0.";
        return own(&request, StatusCode::BAD_REQUEST, "purge-unclear", text, false);
    };
    let wish = match wish_of(&request.headers) {
        Ok(wish) => wish,
        Err(text) => return own(&request, StatusCode::BAD_REQUEST, "purge-unclear", text, false),
    };
    let effect = effect_of(&request, is_soft);
    if are_about_tags(&request.headers) {
        let tags = tags_of(&request.headers, origin_of(&request.key));
        return purge_tags(&request, &tags, effect, wish).await;
    }
    if !has_key {
        let text = match request.route.target {
            RouteTarget::NoSite => "No site has this host. `nectary store purge` removes what a former one stored.",
            RouteTarget::NoRoute => {
                "The site of this host has no route for this path. `nectary store purge` removes what it stored."
            }
            _ => {
                "PURGE needs a URL (a whole one, or a path with a Host header), or tags in Surrogate-Key or Cache-Tag."
            }
        };
        return own(&request, StatusCode::BAD_REQUEST, "no-url", text, false);
    }
    let url = String::from_utf8_lossy(&request.key).into_owned();
    if let Some(seat) = &request.worker.fleet {
        let things = PurgedThings { json: serde_json::json!({ "purged": url }), text: url };
        let scope = PurgeScope::Keys(vec![request.key.clone()]);
        return fleet_purge::purge(&request, seat, (scope, effect, wish), things).await;
    }
    let key = KeyRef::new(&request.key, b"");
    // A response, or the marker of a URL with variants. A disk that answers late or not at all does not hold up a
    // purge.
    let look = async { if key.is_bounded() { request.worker.store.try_get(key).await } else { Ok(None) } };
    let found = timeout(LOOK_TIME_MAX, look).await.ok().and_then(Result::ok).map(|object| object.is_some());
    // Any part may be stored, so without a look at all of them nothing is certain.
    let found = found.filter(|is_found| *is_found || request.route.part_bytes.is_none());
    // The purge is made in any case: a fetch may be under way, or variants may be left whose marker is gone.
    match request.worker.store.purge_key_as(&request.key, effect).await {
        Ok(()) => {
            let json = serde_json::json!({ "found": found, "purged": url });
            if found != Some(false) {
                purged(&request, effect, json, &url)
            } else {
                let text = format!("nothing is stored for {url}; a fetch that is under way stores nothing either");
                purge_answer(&request, (StatusCode::OK, "not-stored"), json, &text)
            }
        }
        Err(error) => {
            let (status, detail, text) = failure(&url, &error, effect);
            own(&request, status, detail, &text, false)
        }
    }
}

/// Whether the headers of a `PURGE` ask for a soft purge; `None` if they are unclear.
fn is_soft(headers: &HeaderMap) -> Option<bool> {
    let mut values = headers.get_all(SOFT_PURGE).iter();
    match (values.next().map(|value| value.as_bytes().trim_ascii()), values.next()) {
        (None | Some(b"0"), None) => Some(false),
        (Some(b"1"), None) => Some(true),
        _ => None,
    }
}

/// The effect of a purge that the request makes.
fn effect_of(request: &ClientRequest, is_soft: bool) -> PurgeEffect {
    if !is_soft {
        return PurgeEffect::Hard;
    }
    let since_s = u32::try_from(request.worker.now_ms() / 1000).unwrap_or(u32::MAX);
    PurgeEffect::Soft { since_s }
}

/// Whether a request is a purge whose body says what is purged.
pub(super) fn is_purge(request: &ClientRequest) -> bool {
    request.method == Method::POST && request.uri.path() == "/purge"
}

/// Purges what the body of a request says. *Durability*: the purge is durable before the response is sent.
pub(super) async fn purge_wanted(request: ClientRequest, body: Incoming) -> Response<ReplyBody> {
    let refused = |text: &str| own(&request, StatusCode::BAD_REQUEST, "purge-unclear", text, true);
    let too_long = "The body of this purge is not complete, or longer than 1 MiB.";
    if body.size_hint().lower() > WANTED_BYTES_MAX as u64 {
        return refused(too_long);
    }
    let Ok(body) = Limited::new(body, WANTED_BYTES_MAX).collect().await else { return refused(too_long) };
    if request.worker.is_leaving.get() {
        return stopping(&request);
    }
    let PurgeRequest { subject, is_soft, wish } = match PurgeRequest::parse(&body.to_bytes()) {
        Ok(wanted) => wanted,
        Err(error) => return refused(&error),
    };
    // What the body says counts more than the header.
    let wish = match (wish, wish_of(&request.headers)) {
        (Some(wish), _) => Some(wish),
        (None, Ok(wish)) => wish,
        (None, Err(text)) => return refused(text),
    };
    let effect = effect_of(&request, is_soft);
    let doubt = doubt_of(&request, &subject);
    if let Some(seat) = &request.worker.fleet
        && let Some((scope, what)) = scope_of(&request, &subject)
    {
        let (json, text) = told(&what, doubt);
        return fleet_purge::purge(&request, seat, (scope, effect, wish), PurgedThings { json, text }).await;
    }
    let (what, result) = match subject {
        PurgeSubject::Tags(tags) => {
            let tags: Vec<_> = tags.into_iter().map(String::into_bytes).collect();
            return purge_tags(&request, &tags, effect, wish).await;
        }
        PurgeSubject::All => ("everything".to_owned(), request.worker.store.purge_all_as(effect).await),
        PurgeSubject::Url(url) => {
            let result = purge_keys(&request, &KeysOfUrl { url: &url, is_prefix: false }, effect).await;
            (url, result)
        }
        PurgeSubject::Prefix(prefix) => {
            let result = purge_keys(&request, &KeysOfUrl { url: &prefix, is_prefix: true }, effect).await;
            (format!("what begins with {prefix}"), result)
        }
    };
    match result {
        Ok(()) => {
            let (json, text) = told(&what, doubt);
            purged(&request, effect, json, &text)
        }
        Err(error) => {
            let (status, detail, text) = failure(&what, &error, effect);
            own(&request, status, detail, &text, false)
        }
    }
}

/// Why a purge finds nothing that the sites of now have stored; `None` if it may.
fn doubt_of(request: &ClientRequest, subject: &PurgeSubject) -> Option<String> {
    let (url, is_prefix) = match subject {
        PurgeSubject::Url(url) => (url, false),
        PurgeSubject::Prefix(url) => (url, true),
        PurgeSubject::Tags(_) | PurgeSubject::All => return None,
    };
    request.worker.sites.borrow().doubt_of(&KeysOfUrl { url, is_prefix })
}

/// What was purged, as JSON and in words, and what is doubtful about it.
fn told(what: &str, doubt: Option<String>) -> (serde_json::Value, String) {
    match doubt {
        None => (serde_json::json!({ "purged": what }), what.to_owned()),
        Some(doubt) => {
            let text = format!("{what}; but {doubt}");
            (serde_json::json!({ "note": doubt, "purged": what }), text)
        }
    }
}

/// The answer to a purge that comes too late for this process.
pub(super) fn stopping(request: &ClientRequest) -> Response<ReplyBody> {
    let text = "This proxy stops, and cannot purge any more. Send it again.";
    own(request, StatusCode::SERVICE_UNAVAILABLE, "stopping", text, true)
}

/// What a purge of a fleet is about, and the same in words; `None` for tags, which have bounds.
fn scope_of(request: &ClientRequest, subject: &PurgeSubject) -> Option<(PurgeScope, String)> {
    let keys = |url: &str, is_prefix| request.worker.sites.borrow().keys_of(&KeysOfUrl { url, is_prefix });
    match subject {
        PurgeSubject::Tags(_) => None,
        PurgeSubject::All => Some((PurgeScope::All, "everything".to_owned())),
        PurgeSubject::Url(url) => Some((PurgeScope::Keys(keys(url, false)), url.clone())),
        PurgeSubject::Prefix(prefix) => {
            Some((PurgeScope::Prefixes(keys(prefix, true)), format!("what begins with {prefix}")))
        }
    }
}

/// Purges a URL, or what begins so, by each key that it has.
async fn purge_keys(request: &ClientRequest, url: &KeysOfUrl<'_>, effect: PurgeEffect) -> Result<(), Error> {
    let keys = request.worker.sites.borrow().keys_of(url);
    for key in keys {
        match url.is_prefix {
            true => request.worker.store.purge_prefix_as(&key, effect).await?,
            false => request.worker.store.purge_key_as(&key, effect).await?,
        }
    }
    Ok(())
}

/// Purges all objects that have one of these tags.
async fn purge_tags(
    request: &ClientRequest,
    tags: &[Vec<u8>],
    effect: PurgeEffect,
    wish: Option<PurgeWish>,
) -> Response<ReplyBody> {
    if !(1..=TAGS_MAX).contains(&tags.len()) || tags.iter().any(|tag| tag.len() > TAG_BYTES_MAX) {
        let text = format!("A purge by tag names 1 to {TAGS_MAX} tags of at most {TAG_BYTES_MAX} bytes each.");
        return own(request, StatusCode::BAD_REQUEST, "tags-out-of-bounds", &text, false);
    }
    let names: Vec<_> = tags.iter().map(|tag| String::from_utf8_lossy(name(tag)).into_owned()).collect();
    let what = format!("what has a tag of: {}", names.join(", "));
    if let Some(seat) = &request.worker.fleet {
        let things = PurgedThings { json: serde_json::json!({ "purged_tags": names }), text: what };
        let scope = PurgeScope::Tags(tags.to_vec());
        return fleet_purge::purge(request, seat, (scope, effect, wish), things).await;
    }
    // The purges run concurrently, so that they share one block of the purge log and one flush.
    let purges = join_all(tags.iter().map(|tag| request.worker.store.purge_tag_as(tag, effect))).await;
    let mut errors: Vec<_> = purges.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind != StoreErrorKind::Busy);
    if let Some(error) = errors.first() {
        let (status, detail, text) = failure("what has the tags", error, effect);
        return own(request, status, detail, &text, false);
    }
    purged(request, effect, serde_json::json!({ "purged_tags": names }), &what)
}

/// The status, the detail and the text of the response if the purge of `what` failed.
fn failure(what: &str, error: &Error, effect: PurgeEffect) -> (StatusCode, &'static str, String) {
    let state = if effect == PurgeEffect::Hard { "out of" } else { "stale in" };
    match error.kind {
        // The store did not begin this purge. If the request names several tags, other tags may have been purged.
        StoreErrorKind::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "purge-busy",
            format!("{what} is still served, at least in part: {error}"),
        ),
        _ => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "purge-not-durable",
            format!("{what} is {state} this process, but the purge is not on the device: {error}"),
        ),
    }
}

/// The name of a tag as the request gave it. For the tag of a cache group, this is the group's name.
fn name(tag: &[u8]) -> &[u8] {
    tag.rsplit(|byte| *byte == 0).next().unwrap_or(tag)
}

/// The response that says what was purged, and how.
fn purged(
    request: &ClientRequest,
    effect: PurgeEffect,
    mut json: serde_json::Value,
    what: &str,
) -> Response<ReplyBody> {
    if effect == PurgeEffect::Hard {
        return purge_answer(request, (StatusCode::OK, "purged"), json, &format!("purged {what}"));
    }
    json["soft"] = true.into();
    purge_answer(request, (StatusCode::OK, "soft-purged"), json, &format!("stale from now on: {what}"))
}

/// The response to a purge that was made, as text or JSON.
fn purge_answer(
    request: &ClientRequest,
    (code, detail): (StatusCode, &'static str),
    json: serde_json::Value,
    text: &str,
) -> Response<ReplyBody> {
    let accept = request.headers.get(ACCEPT).map_or(&[][..], |value| value.as_bytes());
    let status = CacheStatus::Own { detail };
    let (kind, text) = match accept.windows(16).any(|window| window == b"application/json") {
        true => ("application/json", json.to_string()),
        false => ("text/plain; charset=utf-8", text.to_owned()),
    };
    own_with(request, code, status, CacheOutcome::Purged, kind, &text, false)
}

/// The key of the URL that the request's path and `Host` form.
fn key_of_host(request: &ClientRequest) -> Option<Vec<u8>> {
    let path = request.uri.path_and_query()?.clone();
    let host: Authority = request.headers.get(HOST)?.to_str().ok()?.parse().ok()?;
    let uri = Uri::builder().scheme(Scheme::HTTP).authority(host).path_and_query(path).build().ok()?;
    let mut key = Vec::new();
    push_key(&mut key, &uri).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_purge_header_is_one_or_zero() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(SOFT_PURGE, http::HeaderValue::from_static(value));
            }
            is_soft(&headers)
        };
        assert_eq!((of(&[]), of(&["0"]), of(&["1"])), (Some(false), Some(false), Some(true)));
        for unclear in [&[""][..], &["true"], &["1", "1"], &["0", "1"], &["2"]] {
            assert_eq!(of(unclear), None, "{unclear:?}");
        }
    }

    #[test]
    fn refused_purge_reports_no_purge() {
        let of = |kind| failure("http://a/b", &Error::new(kind, "a reason"), PurgeEffect::Hard);
        let (status, detail, text) = of(StoreErrorKind::Busy);
        assert_eq!((status.as_u16(), detail), (503, "purge-busy"));
        assert_eq!(text, "http://a/b is still served, at least in part: a reason");
        let (status, detail, text) = of(StoreErrorKind::Io);
        assert_eq!((status.as_u16(), detail), (500, "purge-not-durable"));
        assert_eq!(text, "http://a/b is out of this process, but the purge is not on the device: a reason");
        let soft = PurgeEffect::Soft { since_s: 1 };
        let (_, _, text) = failure("http://a/b", &Error::new(StoreErrorKind::Io, "a reason"), soft);
        assert_eq!(text, "http://a/b is stale in this process, but the purge is not on the device: a reason");
    }
}
