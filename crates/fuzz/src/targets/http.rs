//! Targets of `nectary-proxy`: stored metadata, the framing of requests and responses, the rules of caching, dates, and
//! URLs. The *guard* is the proxy's check of framing.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use nectary_proxy::fuzzing::{self, FramingPhase, FramingReader, FramingViolation, ObjectMetadata, ObjectView};
use nectary_proxy::rules::{
    age::ExchangeTimes, age::corrected_initial_age_ms, cache_control, conditional, default_ttl, freshness, hop,
    invalidate, key, list, origin, parse_date_s, policy, range, serve, storable, targeted, update, vary,
};
use nectary_proxy::{ClientNet, OriginUrl};

use super::choices;
use super::http_reference::{self, MessageEnd};

/// Typical parts of heads, dates and URLs.
pub const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b": ",
    b" ",
    b"\t",
    b",",
    b"\"",
    b"=",
    b"\0",
    b"GET / HTTP/1.1\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0",
    b"CONNECT ",
    b"HEAD ",
    b"Host: h\r\n",
    b"Content-Length: ",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"chunked",
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n",
    b";x=y",
    b"Connection: keep-alive\r\n",
    b"cache-control: ",
    b"max-age=",
    b"s-maxage=60",
    b"no-store",
    b"private",
    b"no-cache=\"a, b\"",
    b"must-understand",
    b"vary: ",
    b"age: ",
    b"date: ",
    b"expires: 0",
    b"etag: \"a\"",
    b"if-none-match: ",
    b"range: bytes=",
    b"bytes=0-",
    b"Sun, 06 Nov 1994 08:49:37 GMT",
    b"9223372036854775807",
    b"18446744073709551616",
    b"http://",
    b"//",
    b"[::1]:80",
    b"@",
    b"%00",
    b"*",
    b"NHTM",
    b"location: ../",
    b"\xff",
];

/// The longest head that the guard accepts in these targets. *Units*: bytes.
const HEAD_BYTES_MAX: usize = 1024;

/// Reads stored metadata. Checks that writing and reading them again gives the same metadata, and that no rendered
/// header contains a line break.
pub fn metadata(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let found = ObjectView::read(&bytes, b"http://h/p", &policy::ResponsePolicy::default());
    match fuzzing::decode(&bytes) {
        None => assert!(matches!(found, ObjectView::Damaged)),
        Some(ObjectMetadata::Marker(names)) => {
            let written = fuzzing::encode_marker(&names).expect("it was in bounds");
            assert_eq!(fuzzing::decode(&written), Some(ObjectMetadata::Marker(names)));
        }
        Some(ObjectMetadata::Response(head, entries)) => {
            let map = entries.to_map();
            assert_eq!((entries.iter().count(), entries.lines().count()), (entries.count(), entries.count()));
            for ((name, value), (shown, text)) in entries.iter().zip(entries.lines()) {
                assert!(shown.eq_ignore_ascii_case(name.as_str().as_bytes()) && text == value.as_bytes());
                assert!(!text.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "a value that ends its line");
            }
            let Some(written) = fuzzing::encode_response(&head, &map) else { return };
            let Some(ObjectMetadata::Response(again, others)) = fuzzing::decode(&written) else {
                panic!("what was written is not read");
            };
            assert_eq!((again, others.to_map()), (head, map));
            let ObjectView::Response(stored) = found else { panic!("read in one place alone") };
            let mut out = HeaderMap::new();
            stored.write_headers(&mut out);
            stored.write_headers_of_304(&mut HeaderMap::new());
            let mut lines = Vec::new();
            stored.render_headers(&mut lines);
            let _ = serve::decide(&stored.stored, &Default::default(), u64::MAX);
            let _ = serve::decide(&stored.stored, &Default::default(), 0);
        }
    }
}

/// Makes the metadata of a response, and a marker.
pub fn metadata_seeds() -> Vec<Vec<u8>> {
    let headers = header_lines(
        b"etag: \"a\"\ncache-control: max-age=60\nx-mine: 1\nx-mine: \ndate: Sun, 06 Nov 1994 08:49:37 GMT",
    );
    let times = ExchangeTimes { request_ms: 784_111_777_000, response_ms: 784_111_777_500 };
    let response = fuzzing::to_metadata(StatusCode::OK, &headers, times).expect("small");
    let marker = fuzzing::encode_marker(&[http::header::ACCEPT, HeaderName::from_static("x-mine")]).expect("small");
    vec![response.to_vec(), marker.to_vec()]
}

/// Passes bytes through the guard. *Returns* the end of each message, the number of accepted bytes, and the guard.
fn guarded(
    mut framing: FramingReader,
    bytes: &[u8],
    mut between: impl FnMut(&mut FramingReader),
) -> (Vec<usize>, usize, FramingReader) {
    let mut ends = Vec::new();
    between(&mut framing);
    for (at, byte) in bytes.iter().enumerate() {
        if framing.accept(&[*byte]).is_err() {
            return (ends, at, framing);
        }
        if framing.phase() == FramingPhase::Between {
            ends.push(at + 1);
            between(&mut framing);
        }
    }
    (ends, bytes.len(), framing)
}

/// Checks that the guard's verdict is the same for all bytes at once and for pieces of them.
fn in_pieces(make: impl Fn() -> FramingReader, bytes: &[u8]) {
    let run = |size: usize| -> Result<FramingPhase, FramingViolation> {
        let mut framing = make();
        for piece in bytes.chunks(size) {
            framing.accept(piece).map_err(|(taken, violation)| {
                assert!(taken <= piece.len());
                violation
            })?;
        }
        Ok(framing.phase())
    };
    let whole = run(bytes.len().max(1));
    for size in [1, 3, 64] {
        assert_eq!(run(size), whole, "in pieces of {size}");
    }
}

/// Checks that a reader behind the guard finds the same ends of messages within the bytes that the guard accepts.
fn same_ends(bytes: &[u8], ends: &[usize], passed: usize, next: impl Fn(&[u8]) -> MessageEnd) {
    let mut start = 0;
    while start < passed {
        // An empty line before a request belongs to no message.
        let lead = if bytes[start..].starts_with(b"\r\n") { 2 } else { 0 };
        let inside = |end: usize| ends.iter().find(|&&at| at > start + lead && at < end);
        match next(&bytes[start..]) {
            MessageEnd::At(length) => {
                let end = start + length;
                assert_eq!(inside(end.min(passed + 1)), None, "the guard ends a message before {end}");
                assert!(end > passed || ends.contains(&end), "the guard does not end a message at {end}");
                start = end;
            }
            MessageEnd::Later => {
                assert_eq!(inside(passed + 1), None, "the guard ends a message that has not ended");
                return;
            }
            MessageEnd::Refused => return,
        }
    }
}

/// Reads requests with the guard, with the reference parser and on the fast path, and compares them.
pub fn requests(input: &[u8]) {
    in_pieces(|| FramingReader::of_requests(HEAD_BYTES_MAX), input);
    let (ends, passed, framing) = guarded(FramingReader::of_requests(HEAD_BYTES_MAX), input, |_| {});
    same_ends(input, &ends, passed, http_reference::request);
    let Some(path) = fuzzing::plain_path(input) else { return };
    if input.len() <= HEAD_BYTES_MAX {
        assert_eq!(
            (framing.phase(), ends.last()),
            (FramingPhase::Between, Some(&input.len())),
            "answered, and refused"
        );
    }
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(parsed) = request.parse(input) else { return assert!(input.len() > 128 * 4, "answered, and not parsed") };
    assert_eq!(parsed, httparse::Status::Complete(input.len()));
    assert_eq!((request.method, request.version), (Some("GET"), Some(1)));
    assert_eq!(request.path.map(str::as_bytes), Some(path));
    let uri: Uri = request.path.unwrap_or_default().parse().expect("hyper takes the path");
    assert_eq!(uri.path_and_query().map(|path| path.as_str().as_bytes()), Some(path), "hyper sees another path");
}

/// Makes requests with all kinds of framing.
pub fn request_seeds() -> Vec<Vec<u8>> {
    [
        "GET /a?b=c HTTP/1.1\r\nHost: h\r\nUser-Agent: x y\r\nAccept: */*\r\n\r\n",
        "GET / HTTP/1.1\r\nhost:h:80\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcdeGET / HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nabcde\r\n0\r\nt: 1\r\n\r\n",
        "\r\nCONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\nanything\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Reads responses with the guard and with the reference parser, and compares them. The first byte chooses whether the
/// responses answer a HEAD request.
pub fn responses(input: &[u8]) {
    let (choices, bytes) = choices(input);
    let to_head = choices & 1 == 1;
    let framing = || FramingReader::of_responses(HEAD_BYTES_MAX);
    in_pieces(
        || {
            let mut framing = framing();
            framing.await_response(to_head);
            framing
        },
        bytes,
    );
    let (ends, passed, _) = guarded(framing(), bytes, |framing| framing.await_response(to_head));
    same_ends(bytes, &ends, passed, |rest| http_reference::response(rest, to_head));
}

/// Makes responses with all kinds of framing.
pub fn response_seeds() -> Vec<Vec<u8>> {
    [
        "\0HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcdeHTTP/1.1 304 Not Modified\r\n\r\n",
        "\0HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3  \r\nabc\r\n0\r\nt: 1\r\n\r\n",
        "\x01HTTP/1.0 200 OK\nContent-Length: 5\n\nHTTP/1.1 204 No Content\r\n\r\n",
        "\0HTTP/1.0 200 OK\r\n\r\nuntil the end",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Reads `name: value` lines; ignores other lines.
fn header_lines(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split(|&byte| byte == b'\n').take(64) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// Applies the rules about what an origin gets and how its references reach clients.
fn origin_rules(asked: &HeaderMap, answered: &HeaderMap) {
    let (mut stripped, keyed) = (asked.clone(), HeaderName::from_static("x-forwarded-proto"));
    origin::forwarded::remove_unkeyed(&mut stripped, true, std::slice::from_ref(&keyed));
    assert!(!stripped.contains_key("x-forwarded-host"));
    let forwarded = stripped.get("forwarded").map_or(&b""[..], HeaderValue::as_bytes).to_ascii_lowercase();
    assert!(!forwarded.windows(5).any(|window| window == b"host=" || window == b"roto="), "an origin may believe it");
    let mut again = stripped.clone();
    origin::forwarded::remove_unkeyed(&mut again, true, &[keyed]);
    assert_eq!(again, stripped);
    let form = origin::encodings::normal_form(asked);
    assert!(["br, zstd, gzip", "br, gzip", "br", "gzip", "identity"].contains(&form));
    let mut host = Vec::new();
    for value in asked.get_all("host") {
        host.clear();
        let is_host = origin::host_sent::push_host(&mut host, value.as_bytes(), false);
        let form = host.clone();
        host.clear();
        assert!(!is_host || (origin::host_sent::push_host(&mut host, &form, false) && host == form), "one form");
    }
    let own = key::UrlOrigin { https: false, host: "example.org".to_owned(), port: 80 };
    let mut relative = answered.clone();
    origin::references::OwnReferences::new(vec![own]).rewrite(&mut relative);
    for name in ["location", "content-location"] {
        for (before, after) in answered.get_all(name).iter().zip(relative.get_all(name)) {
            let is_hostless = after.as_bytes().starts_with(b"/") && !after.as_bytes()[1..].starts_with(b"/");
            assert!(before == after || is_hostless, "it leads to another host");
        }
    }
}

/// Applies the rules of RFC 9111 to a request and its response. Four bytes choose method, status and times; the
/// request's lines, an empty line and the response's lines follow.
pub fn rules(input: &[u8]) {
    let Some((&[method, status, sent, now], text)) = input.split_first_chunk::<4>() else { return };
    let method = [Method::GET, Method::HEAD, Method::POST, Method::DELETE][usize::from(method & 3)].clone();
    let statuses = [200, 203, 204, 206, 301, 304, 404, 410, 500, 599];
    let status = StatusCode::from_u16(statuses[usize::from(status) % statuses.len()]).expect("one of the table");
    let response_ms = 784_111_777_000 + (1_u64 << (sent & 31));
    let times = ExchangeTimes { request_ms: response_ms - u64::from(sent) * 7, response_ms };
    let now_ms = if now == 255 { u64::MAX } else { response_ms + (1_u64 << (now & 41)) };
    let split = text.windows(2).position(|pair| pair == b"\n\n").unwrap_or(text.len());
    let (asked, mut answered) = (header_lines(&text[..split]), header_lines(&text[split..]));

    origin_rules(&asked, &answered);
    let request = cache_control::RequestDirectives::parse(&asked);
    let response = cache_control::ResponseDirectives::parse(&answered);
    plain_directives(&answered, &response);
    let fresh = freshness::lifetime(status, &answered, &response, Some(u64::from(now)), times.response_ms);
    let storability = storable::storability(&method, &asked, &request, status, &answered, &response, fresh);
    if storability.is_storable() {
        assert!(!response.private && !request.no_store && (!response.no_store || response.must_understand));
    }
    let initial_age_ms = corrected_initial_age_ms(&answered, times);
    let stored = serve::StoredFacts::new(times.response_ms, initial_age_ms, fresh.lifetime_ms, &response);
    match serve::decide(&stored, &request, now_ms) {
        serve::ServeVerdict::Serve { ttl_s, .. } => {
            assert!(!response.no_cache && !request.no_cache);
            assert!(ttl_s >= 0 || (request.max_stale.is_some() && !response.forbids_stale()), "served stale");
        }
        serve::ServeVerdict::ServeAndValidate { ttl_s, .. } => {
            assert!(!request.no_cache && response.stale_while_revalidate.is_some());
            assert!(ttl_s <= 0 && !response.forbids_stale(), "served stale");
        }
        serve::ServeVerdict::Validate(_) => {}
    }
    if serve::decide_on_failure(&stored, &request, now_ms, serve::OriginFailure::Error, 60).is_some() {
        let is_allowed = response.stale_if_error.is_some() || request.stale_if_error.is_some();
        assert!(is_allowed && !response.forbids_stale() && !request.no_cache, "served stale");
    }
    if let Some(targeted) = targeted::directives(&answered) {
        assert!(targeted.replaces_expires);
    }
    hop::remove_hop_by_hop(&mut answered);
    assert!([CONNECTION, TRANSFER_ENCODING, UPGRADE].iter().all(|name| !answered.contains_key(name)));
    if let vary::Vary::Names(names) = vary::Vary::parse(&answered) {
        let mut variant = Vec::new();
        vary::push_variant(&mut variant, &names, &asked);
        assert!(vary::matches_variant(&variant, &asked), "a request does not match its own variant");
        assert_eq!(vary::names_in(&variant), names);
    }
    let size = u64::from(now) * 100;
    if let range::RequestedRange::Part(part) = range::wanted(&asked, size) {
        assert!(part.start < part.end && part.end <= size);
    }
    let _ = range::first_byte(&asked);
    let _ = conditional::is_not_modified(&method, &asked, status, &answered, times.response_ms);
    let _ =
        (conditional::if_range_holds(&asked, &answered), conditional::validates(&answered, &asked, times.response_ms));
    let target = b"http://example.org/a/b?c";
    for key in invalidate::invalidated(&method, target, status, &answered) {
        assert!(key.starts_with(b"http://example.org/"), "another origin's object is purged");
    }
    let merged = update::merged(&answered, &header_lines(&text[..split]));
    assert!(!merged.contains_key(http::header::AGE) || asked.contains_key(http::header::AGE));
    if let Some(bytes) = fuzzing::to_metadata(status, &answered, times) {
        let found = ObjectView::read(&bytes, target, &policy::ResponsePolicy::default());
        assert!(matches!(found, ObjectView::Response(_)), "what is stored is not read");
    }
    conditional::set_validation(&mut asked.clone(), &answered);
}

/// Checks the directives that were found in headers without quotes: each directive must be a part between commas.
fn plain_directives(headers: &HeaderMap, found: &cache_control::ResponseDirectives) {
    let lines: Vec<&[u8]> = headers.get_all(CACHE_CONTROL).into_iter().map(HeaderValue::as_bytes).collect();
    if lines.iter().any(|line| line.contains(&b'"')) {
        return;
    }
    let has = |name: &[u8]| {
        let members = lines.iter().flat_map(|line| line.split(|&byte| byte == b','));
        members.map(<[u8]>::trim_ascii).any(|member| {
            let end = member.iter().position(|&byte| byte == b'=').unwrap_or(member.len());
            member[..end].eq_ignore_ascii_case(name)
        })
    };
    assert_eq!((found.no_store, found.private), (has(b"no-store"), has(b"private")));
    assert_eq!((found.no_cache, found.public), (has(b"no-cache"), has(b"public")));
    assert_eq!((found.max_age.is_some(), found.s_maxage.is_some()), (has(b"max-age"), has(b"s-maxage")));
}

/// Makes headers that the rules read.
pub fn rule_seeds() -> Vec<Vec<u8>> {
    [
        "\0\0\x09\x05cache-control: max-age=5, min-fresh=3\nrange: bytes=5-10\n\ncache-control: max-age=60, s-maxage=\"70\"\ndate: Sun, 06 Nov 1994 08:49:37 GMT\nage: 7, 8\nvary: accept, X-Y\netag: \"a\"",
        "\0\x06\0\x12if-none-match: W/\"a\", *\nif-range: \"a\"\naccept: a ,b\n\nexpires: Sun, 06 Nov 1994 08:50:37 GMT\nlast-modified: Sunday, 06-Nov-94 08:49:37 GMT\nvary: accept",
        "\x02\0\0\0pragma: no-cache\nauthorization: x\n\nlocation: ../x?y#z\ncontent-location: http://EXAMPLE.org:80/d\nconnection: close, x-hop\nx-hop: 1",
        "\0\0\0\x14cache-control: max-stale, only-if-cached\n\ncache-control: no-cache=\"set-cookie, x\", private, no-store, must-understand",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Reads an input as a date, as a number of seconds, and as a list of directives.
pub fn dates(input: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(input)
        && let Some(seconds) = parse_date_s(&value)
    {
        assert!(seconds < 253_402_300_800, "a date beyond the year 9999");
    }
    let expected =
        std::str::from_utf8(input).ok().filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let expected = expected.map(|text| text.parse::<u64>().unwrap_or(u64::MAX).min(cache_control::DELTA_SECONDS_MAX));
    assert_eq!(cache_control::delta_seconds(Some(input)), expected);
    let mut bytes = 0;
    for member in list::ListMembers::new(input) {
        assert!(!member.is_empty() && member.trim_ascii() == member);
        bytes += member.len();
        let (name, argument) = list::directive(member);
        assert!(name.len() + argument.map_or(0, |argument| argument.len()) <= member.len());
    }
    assert!(bytes <= input.len());
}

/// Makes the three forms of dates, a number, and a list.
pub fn date_seeds() -> Vec<Vec<u8>> {
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "2147483648",
        "a, b=\"c, \\\"d\" ,, e=f",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Reads URLs, networks and the operator's rules; checks the keys and origins of URLs.
pub fn urls(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(uri) = text.parse::<Uri>() {
        let (mut pushed, origin) = (Vec::new(), key::UrlOrigin::of(&uri));
        let has_key = key::push_key(&mut pushed, &uri);
        assert_eq!(has_key, origin.is_some(), "{text:?}: two readings of one URL");
        if let Some(origin) = origin {
            let mut start = Vec::new();
            origin.push(&mut start);
            assert!(pushed.starts_with(&start) && pushed.get(start.len()) == Some(&b'/'), "{text:?}: {pushed:?}");
            let (host, path) = key::host_and_path(&pushed);
            assert_eq!((host, path), (origin.host.as_bytes(), &pushed[start.len()..]), "{text:?}");
        }
    }
    if let Ok(rule) = default_ttl::DefaultTtlRule::parse(text) {
        let ttl = default_ttl::DefaultTtl::new(vec![rule]).for_key(b"http://example.org/a/b.deb");
        assert!(ttl.is_none_or(|ttl| ttl <= cache_control::DELTA_SECONDS_MAX));
    }
    if let Ok(origin) = text.parse::<OriginUrl>() {
        assert!(origin.to_string().parse::<OriginUrl>().is_ok(), "{text:?} became {origin}");
    }
    let _ = text.parse::<ClientNet>();
}

/// Makes URLs, rules and networks.
pub fn url_seeds() -> Vec<Vec<u8>> {
    [
        "http://Example.org:80/a?b",
        "https://[::1]:8443/",
        "http://u@h/",
        "/a/../b",
        "h:443",
        "*.example.org/*.deb=12h",
        "90",
        "192.0.2.0/24",
        "2001:db8::/32",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
