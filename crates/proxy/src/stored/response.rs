//! A stored response, decoded once for all requests that it answers.
//!
//! Owns: the facts that are computed once per object in memory (lifetime, age, directives), and the headers with which
//! a stored response is sent whole, in part, or as a `304`. The decoded form is small, because every object in memory
//! may have one. It has no map of headers: for each answer the headers are decoded from the metadata into a map that
//! the connection reuses.

use bytes::Bytes;
use http::header::{
    AGE, CACHE_CONTROL, CDN_CACHE_CONTROL, CONTENT_LENGTH, CONTENT_LOCATION, DATE, ETAG, EXPIRES, HeaderName,
    LAST_MODIFIED, VARY, VIA,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::metadata::{HeaderEntries, ObjectMetadata, ResponseHead, decode, encode_response};
use crate::rules::age::{ExchangeTimes, corrected_initial_age_ms};
use crate::rules::freshness::LifetimeSource;
use crate::rules::policy::ResponsePolicy;
use crate::rules::serve::StoredFacts;
use crate::rules::tags::CACHE_GROUPS;

/// The proxy's view of an object in the store.
#[derive(Debug)]
pub enum ObjectView {
    /// A response.
    Response(StoredResponse),
    /// A marker: the names of the request headers by which the URL varies.
    Marker(Box<[HeaderName]>),
    /// Metadata that this version cannot read.
    Damaged,
}

impl ObjectView {
    /// Reads an object's metadata. `key` is the primary key; the operator's default lifetimes depend on it.
    pub fn read(metadata: &Bytes, key: &[u8], policy: &ResponsePolicy) -> ObjectView {
        match decode(metadata) {
            Some(ObjectMetadata::Response(head, entries)) => {
                ObjectView::Response(StoredResponse::new(head, entries, key, policy))
            }
            Some(ObjectMetadata::Marker(names)) => ObjectView::Marker(names.into()),
            None => ObjectView::Damaged,
        }
    }
}

/// A stored response.
#[derive(Debug)]
pub struct StoredResponse {
    /// The response's status, its times and its age.
    pub head: ResponseHead,
    /// The facts that decide whether the response may be served.
    pub stored: StoredFacts,
    /// The policy by which it was judged, if the operator has a say in its lifetime; `None` if the origin alone has.
    judged_by: Option<u32>,
    entries: HeaderEntries,
}

impl StoredResponse {
    fn new(head: ResponseHead, entries: HeaderEntries, key: &[u8], policy: &ResponsePolicy) -> StoredResponse {
        let headers = entries.to_map();
        let directives = policy.directives(&headers);
        let response_ms = head.times.response_ms;
        let freshness = policy.lifetime(key, head.status, &headers, &directives, response_ms);
        let mut stored = StoredFacts::new(response_ms, head.initial_age_ms, freshness.lifetime_ms, &directives);
        let says_all = freshness.source == LifetimeSource::Explicit && directives.stale_while_revalidate.is_some();
        if directives.stale_while_revalidate.is_none() {
            stored.while_revalidate_s = policy.while_revalidate_s;
        }
        let judged_by = (!says_all).then_some(policy.generation);
        StoredResponse { head, stored, judged_by, entries }
    }

    /// The facts by which `policy` decides about the response. They were computed when it was read, unless the operator has
    /// changed the rules since then.
    pub fn facts(&self, key: &[u8], policy: &ResponsePolicy) -> StoredFacts {
        self.judged_anew(key, policy).unwrap_or(self.stored)
    }

    /// The facts if the operator has changed the rules since the response was read.
    #[inline]
    pub fn judged_anew(&self, key: &[u8], policy: &ResponsePolicy) -> Option<StoredFacts> {
        match self.judged_by {
            Some(generation) if generation != policy.generation => Some(self.judge(key, policy)),
            _ => None,
        }
    }

    #[cold]
    fn judge(&self, key: &[u8], policy: &ResponsePolicy) -> StoredFacts {
        let headers = self.headers();
        let directives = policy.directives(&headers);
        let freshness = policy.lifetime(key, self.head.status, &headers, &directives, self.head.times.response_ms);
        let mut facts = StoredFacts { lifetime_ms: freshness.lifetime_ms, ..self.stored };
        if directives.stale_while_revalidate.is_none() {
            facts.while_revalidate_s = policy.while_revalidate_s;
        }
        facts
    }

    /// The response's headers, without `Age` and `BodyContent-Length`.
    pub fn headers(&self) -> HeaderMap {
        self.entries.to_map()
    }

    /// Puts the response's headers into the empty map `out`.
    pub fn write_headers(&self, out: &mut HeaderMap) {
        out.reserve(self.entries.count() + 3);
        self.entries.iter().for_each(|(name, value)| _ = out.append(name, value));
    }

    /// Appends the response's headers to `out` as lines of HTTP/1.1.
    pub fn render_headers(&self, out: &mut Vec<u8>) {
        for (name, value) in self.entries.lines() {
            for part in [name, b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }

    /// Puts the headers that a `304` must have into `out`: those that update the client's copy.
    pub fn write_headers_of_304(&self, out: &mut HeaderMap) {
        const KEPT: [HeaderName; 8] =
            [CACHE_CONTROL, CDN_CACHE_CONTROL, CONTENT_LOCATION, DATE, ETAG, EXPIRES, LAST_MODIFIED, VARY];
        let is_kept = |name: &HeaderName| KEPT.contains(name) || *name == VIA || name.as_str() == "cache-status";
        self.entries.iter().filter(|(name, _)| is_kept(name)).for_each(|(name, value)| _ = out.append(name, value));
    }

    /// Puts the header that names the groups of the response into `out`.
    pub fn write_groups(&self, out: &mut HeaderMap) {
        let named = self.entries.iter().filter(|(name, _)| *name == CACHE_GROUPS);
        named.for_each(|(name, value)| _ = out.append(name, value));
    }
}

/// Prepares a response's headers for the store and writes its metadata; `None` if the metadata exceed a limit of the
/// format.
///
/// `headers` must have no hop-by-hop headers. `Age` moves into the head and `BodyContent-Length` is removed. A missing
/// `Date` is set to the time of reception, as RFC 9110, 6.6.1 requires of caches.
pub fn to_metadata(status: StatusCode, headers: &HeaderMap, times: ExchangeTimes) -> Option<Bytes> {
    let initial_age_ms = corrected_initial_age_ms(headers, times);
    let mut kept = headers.clone();
    kept.remove(AGE);
    kept.remove(CONTENT_LENGTH);
    if !kept.contains_key(DATE) {
        kept.insert(DATE, http_date(times.response_ms));
    }
    encode_response(&ResponseHead { status, times, initial_age_ms }, &kept)
}

/// Writes a time as an HTTP date.
pub fn http_date(unix_ms: u64) -> HeaderValue {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(unix_ms);
    HeaderValue::from_maybe_shared(Bytes::from(httpdate::fmt_http_date(time))).expect("a date is ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::default_ttl::{DefaultTtl, DefaultTtlRule};
    use crate::rules::headers;

    const TIMES: ExchangeTimes = ExchangeTimes { request_ms: 784_111_777_000, response_ms: 784_111_777_500 };

    fn stored(lines: &[(&str, &str)], policy: &ResponsePolicy) -> StoredResponse {
        let metadata = to_metadata(StatusCode::OK, &headers(lines), TIMES).expect("small");
        match ObjectView::read(&metadata, b"http://a/x", policy) {
            ObjectView::Response(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// `Age` and `Content-Length` are removed, and a missing `Date` is added.
    #[test]
    fn stored_headers_keep_date_not_age() {
        let found = stored(
            &[("age", "5"), ("content-length", "9"), ("cache-control", "max-age=60")],
            &ResponsePolicy::default(),
        );
        assert_eq!(
            found.headers(),
            headers(&[("cache-control", "max-age=60"), ("date", "Sun, 06 Nov 1994 08:49:37 GMT")])
        );
        assert_eq!(found.stored.initial_age_ms, 5500);
        assert_eq!(found.stored.lifetime_ms, 60_000);
    }

    #[test]
    fn operator_lifetimes_apply_on_read() {
        let default_ttl = DefaultTtl::new(vec![DefaultTtlRule::parse("a/x=90").expect("a rule")]);
        let rules = ResponsePolicy { default_ttl, ..ResponsePolicy::default() };
        assert_eq!(stored(&[], &rules).stored.lifetime_ms, 90_000);
        let later = ResponsePolicy { generation: 1, ..ResponsePolicy::default() };
        assert_eq!(stored(&[], &rules).facts(b"http://a/x", &later).lifetime_ms, 0);
        assert_eq!(stored(&[], &rules).facts(b"http://a/x", &rules).lifetime_ms, 90_000);
        assert_eq!(stored(&[("expires", "0")], &rules).stored.lifetime_ms, 0);
    }

    /// The `304` has nothing that describes the body.
    #[test]
    fn stored_304_has_update_headers() {
        let found = stored(
            &[("etag", "\"a\""), ("content-type", "a/b"), ("vary", "accept"), ("cdn-cache-control", "max-age=1")],
            &ResponsePolicy::default(),
        );
        let mut out = HeaderMap::new();
        found.write_headers_of_304(&mut out);
        let expected = headers(&[
            ("etag", "\"a\""),
            ("vary", "accept"),
            ("cdn-cache-control", "max-age=1"),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ]);
        assert_eq!(out, expected);
    }

    #[test]
    fn damaged_metadata_is_found_as_such() {
        assert!(matches!(
            ObjectView::read(&Bytes::from_static(b"x"), b"", &ResponsePolicy::default()),
            ObjectView::Damaged
        ));
    }
}
