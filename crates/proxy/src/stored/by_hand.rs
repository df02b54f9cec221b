//! Stored responses for programs that are not the proxy: a command puts files for the proxy to serve, and finds the
//! variants that the proxy stored.
//!
//! Owns: which keys belong to the proxy, and the response that is made of a file. Promises: the proxy serves such a
//! response as one that it has fetched. Leaves to others: the body, and the store.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, EXPIRES, HeaderName, TRANSFER_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};

use super::metadata::{ObjectMetadata, decode};
use super::response::to_metadata;
use crate::rules::age::ExchangeTimes;
use crate::rules::cache_control::RequestDirectives;
use crate::rules::hop::remove_hop_by_hop;
use crate::rules::invalidate::origin_of;
use crate::rules::key::push_key;
use crate::rules::policy::ResponsePolicy;
use crate::rules::storable::Storability;
use crate::rules::tags::tags_of;
use crate::rules::vary::push_variant;

/// The lifetime of a response without any other lifetime.
const TTL_DEFAULT: Duration = Duration::from_secs(24 * 3600);

/// One header, as `name: value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLine {
    name: HeaderName,
    value: HeaderValue,
}

impl FromStr for HeaderLine {
    type Err = String;

    fn from_str(text: &str) -> Result<HeaderLine, String> {
        let wrong = || format!("`{text}` is no header: write one as `accept-encoding: gzip`");
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        Ok(HeaderLine { name, value })
    }
}

fn map_of(lines: &[HeaderLine]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    lines.iter().for_each(|line| _ = headers.append(line.name.clone(), line.value.clone()));
    headers
}

/// Whether a key is that of a URL, and so belongs to the proxy.
pub fn is_url(key: &str) -> bool {
    let begins = |scheme: &str| key.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    begins("http://") || begins("https://")
}

/// The key under which the proxy looks for a URL: with a lower-case host, without the default port and the fragment.
/// `None` if no request can have this URL.
pub fn key_of_url(url: &str) -> Option<Vec<u8>> {
    let mut key = Vec::new();
    push_key(&mut key, &url.parse::<Uri>().ok()?).then_some(key)
}

/// What the store keeps beside the body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedResponse {
    /// The metadata of the object.
    pub metadata: Bytes,
    /// The tags that the headers name.
    pub tags: Vec<Vec<u8>>,
}

/// Describes the response `200` with these headers under `key`, as received at `now_ms`. It is fresh for `ttl`; without
/// one, for as long as the headers say, or a day.
///
/// *Errors*: a sentence about the header that the proxy would not store.
pub fn describe(
    key: &[u8],
    lines: &[HeaderLine],
    ttl: Option<Duration>,
    now_ms: u64,
) -> Result<DescribedResponse, String> {
    let mut headers = map_of(lines);
    for name in [VARY, CONTENT_LENGTH, TRANSFER_ENCODING] {
        if headers.contains_key(&name) {
            return Err(format!("the header {name} cannot be given here: the response has one variant, and a length"));
        }
    }
    remove_hop_by_hop(&mut headers);
    let has_lifetime = headers.contains_key(CACHE_CONTROL) || headers.contains_key(EXPIRES);
    if has_lifetime && ttl.is_some() {
        return Err("give either a lifetime or the header cache-control or expires".to_owned());
    }
    if !has_lifetime {
        let seconds = ttl.unwrap_or(TTL_DEFAULT).as_secs();
        headers.insert(CACHE_CONTROL, HeaderValue::try_from(format!("max-age={seconds}")).map_err(|e| e.to_string())?);
    }
    let (none, directives) = (HeaderMap::new(), RequestDirectives::default());
    let request = (&Method::GET, key, &none, &directives);
    let verdict = ResponsePolicy::default().storability(request, (StatusCode::OK, &headers, now_ms));
    match verdict {
        Storability::Storable => {}
        Storability::Useless | Storability::NoLifetime => {
            return Err("it would be stale at once: give a longer lifetime, or an etag to validate it".to_owned());
        }
        Storability::SetCookie => return Err("a response with set-cookie is not stored".to_owned()),
        _ => return Err("the proxy stores no response with these headers (see cache-control)".to_owned()),
    }
    let times = ExchangeTimes { request_ms: now_ms, response_ms: now_ms };
    let metadata = to_metadata(StatusCode::OK, &headers, times).ok_or("the headers are too long")?;
    Ok(DescribedResponse { metadata, tags: tags_of(&headers, origin_of(key)) })
}

/// A variant of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlVariant {
    /// The names of the request headers by which the URL varies.
    pub names: Vec<String>,
    /// The variant part of the object's key for a request with the given headers.
    pub part: Vec<u8>,
}

/// If these are the metadata of a URL that varies, the variant for a request with these headers.
pub fn variant_for(metadata: &Bytes, request: &[HeaderLine]) -> Option<UrlVariant> {
    let Some(ObjectMetadata::Marker(names)) = decode(metadata) else { return None };
    let mut part = Vec::new();
    push_variant(&mut part, &names, &map_of(request));
    Some(UrlVariant { names: names.iter().map(ToString::to_string).collect(), part })
}

/// The request headers of a variant, each as `name: value`; headers that the request lacks are left out.
pub fn headers_of(variant_part: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(variant_part);
    text.lines().filter_map(|line| line.split_once(':').map(|(name, value)| format!("{name}: {value}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::metadata::encode_marker;
    use super::super::response::ObjectView;
    use super::*;
    use crate::rules::serve::{ServeVerdict, decide};

    fn lines(texts: &[&str]) -> Vec<HeaderLine> {
        texts.iter().map(|text| text.parse().expect("a header")).collect()
    }

    /// A response made by hand is served until its lifetime ends.
    #[test]
    fn handmade_response_expires() {
        const KEY: &[u8] = b"http://a/x";
        const NOW_MS: u64 = 784_111_777_000;
        for (given, ttl_s, fresh_s) in
            [(&[][..], None, 86_400), (&["etag: \"a\""], Some(60), 60), (&["Cache-Control: max-age=5"], None, 5)]
        {
            let described = describe(KEY, &lines(given), ttl_s.map(Duration::from_secs), NOW_MS).expect("storable");
            let ObjectView::Response(found) = ObjectView::read(&described.metadata, KEY, &ResponsePolicy::default())
            else {
                panic!("a response")
            };
            let served = |after_s: u64| {
                let verdict = decide(&found.stored, &RequestDirectives::default(), NOW_MS + after_s * 1000);
                matches!(verdict, ServeVerdict::Serve { .. })
            };
            assert!(found.head.status == StatusCode::OK && served(0) && served(fresh_s - 1) && !served(fresh_s));
        }
        let tagged = describe(KEY, &lines(&["surrogate-key: a b"]), None, NOW_MS).expect("storable");
        assert_eq!(tagged.tags, [b"a", b"b"]);
        for wrong in ["vary: accept", "content-length: 3", "cache-control: no-store", "set-cookie: a=b"] {
            assert!(describe(KEY, &lines(&[wrong]), None, NOW_MS).is_err(), "{wrong}");
        }
        assert!(describe(KEY, &lines(&["expires: 0"]), Some(Duration::from_secs(9)), NOW_MS).is_err());
        assert!(describe(KEY, &[], Some(Duration::ZERO), NOW_MS).is_err());
    }

    #[test]
    fn handmade_url_has_proxy_key() {
        assert_eq!(key_of_url("HTTP://Example.com:80").as_deref(), Some(&b"http://example.com/"[..]));
        for wrong in ["http://", "http://a b/", "http://user@a/", "https://a:0/"] {
            assert!(is_url(wrong) && key_of_url(wrong).is_none(), "{wrong}");
        }
        assert!(!is_url("greeting") && !is_url("ftp://a/") && !is_url("http:"));
    }

    #[test]
    fn handmade_variant_follows_request_headers() {
        let marker = encode_marker(&[HeaderName::from_static("accept-encoding")]).expect("small");
        let variant = variant_for(&marker, &lines(&["Accept-Encoding: GZIP", "x: y"])).expect("it varies");
        assert_eq!((variant.names.len(), &variant.part[..]), (1, &b"accept-encoding:gzip\n"[..]));
        assert_eq!(headers_of(&variant.part), ["accept-encoding: gzip"]);
        assert!(headers_of(b"accept-language\n").is_empty());
        let none = variant_for(&marker, &[]).map(|variant| variant.part);
        assert_eq!(none.as_deref(), Some(&b"accept-encoding:identity\n"[..]));
        assert_eq!(variant_for(&Bytes::new(), &[]), None);
        for wrong in ["", "a", "a b: c", "a: \u{7f}"] {
            assert!(wrong.parse::<HeaderLine>().is_err(), "{wrong}");
        }
    }
}
