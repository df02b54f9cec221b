//! The proxy answers requests with conditions or ranges from the store, and from a fetch under way.

use crate::common::*;

const DATE: &str = "last-modified: Sun, 06 Nov 1994 08:49:37 GMT";

async fn stored(body: &[u8]) -> (TestOrigin, TestProxy, String) {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\"", DATE, "content-type: a/b"], body));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &[]).await.body, body);
    (origin, proxy, url)
}

#[tokio::test]
async fn validated_client_gets_304() {
    let (origin, proxy, url) = stored(b"0123456789").await;
    for condition in [
        "if-none-match: \"x\"",
        "if-none-match: W/\"x\"",
        "if-none-match: *",
        &DATE.replace("last-modified", "if-modified-since"),
    ] {
        let reply = get(proxy.address, &url, &[condition]).await;
        assert_eq!((reply.status, reply.body.len()), (304, 0), "{condition}");
        assert_eq!((reply.header("etag"), reply.header("content-type")), ("\"x\"".into(), "".into()));
        assert!(reply.is_hit() && !reply.header("date").is_empty() && !reply.header("cache-control").is_empty());
    }
    let reply = get(proxy.address, &url, &["if-none-match: \"y\""]).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "0123456789"));
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn ranges_are_served_from_the_whole() {
    let (origin, proxy, url) = stored(b"0123456789").await;
    // Each row has the request's `Range` and `If-Range`, and the response's status, `BodyContent-Range` and body.
    let table = [
        ("bytes=2-4", "", 206, "bytes 2-4/10", "234"),
        ("bytes=-3", "", 206, "bytes 7-9/10", "789"),
        ("bytes=8-99", "", 206, "bytes 8-9/10", "89"),
        ("bytes=0-9", "", 206, "bytes 0-9/10", "0123456789"),
        ("bytes=10-", "", 416, "bytes */10", ""),
        ("bytes=1-2,x", "", 200, "", "0123456789"),
        ("lines=1-2", "", 200, "", "0123456789"),
        ("bytes=2-4", "\"x\"", 206, "bytes 2-4/10", "234"),
        ("bytes=2-4", "\"y\"", 200, "", "0123456789"),
    ];
    for (range, condition, status, content_range, body) in table {
        let (range, condition) = (format!("range: {range}"), format!("if-range: {condition}"));
        let headers = [range.as_str(), condition.as_str()];
        let headers = if condition == "if-range: " { &headers[..1] } else { &headers[..] };
        let reply = get(proxy.address, &url, headers).await;
        assert_eq!(
            (reply.status, reply.header("content-range").as_str(), reply.text().as_str()),
            (status, content_range, body),
            "{headers:?}"
        );
        assert!(reply.is_complete && reply.is_hit());
    }
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn stored_get_answers_head() {
    let (origin, proxy, url) = stored(b"0123456789").await;
    let mut client = TestClient::connect(proxy.address).await;
    let reply = client.ask(&[&format!("HEAD {url} HTTP/1.1")]).await;
    assert_eq!((reply.status, reply.header("content-length").as_str()), (200, "10"));
    assert!(reply.is_hit());
    // If the answer to the HEAD request had a body, the client would read the answer to the next request wrongly.
    assert_eq!(client.ask(&[&format!("GET {url} HTTP/1.1")]).await.text(), "0123456789");
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn range_miss_fetches_whole_response() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"0123456789"));
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=3-5"]).await;
    assert_eq!((reply.status, reply.text().as_str()), (206, "345"));
    assert_eq!(origin.got()[0].header("range"), "");
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(reply.is_hit() && reply.text() == "0123456789");
}

/// A range far from the start is fetched as a range and not stored.
#[tokio::test]
async fn far_range_is_not_stored() {
    let origin = TestOrigin::start().await;
    let part = OriginScript::response(
        "206 Partial Content",
        &["content-range: bytes 99-99/100", "cache-control: max-age=9"],
        b"x",
    );
    origin.on("/a", part);
    let mut options = options();
    options.limits.range_fill_start_bytes_max = 50;
    let proxy = TestProxy::start(options).await;
    for count in 1..=2 {
        let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=99-99"]).await;
        assert_eq!((reply.status, reply.text().as_str()), (206, "x"));
        assert_eq!(origin.got()[count - 1].header("range"), "bytes=99-99");
        assert_eq!(origin.count(), count);
    }
}

/// The condition is then compared with the fetched response.
#[tokio::test]
async fn conditional_miss_fetches_whole_response() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], b"hello"));
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["if-none-match: \"x\""]).await;
    assert_eq!(reply.status, 304);
    assert_eq!(origin.got()[0].header("if-none-match"), "");
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
}

#[tokio::test]
async fn long_bodies_serve_all_ranges() {
    let body: Vec<u8> = (0..3_000_000u32).map(|index| (index * 7 + index / 251) as u8).collect();
    let (origin, proxy, url) = stored(&body).await;
    let whole = get(proxy.address, &url, &[]).await;
    assert!(whole.is_hit() && whole.body == body);
    for (first, last) in [(0, 0), (1_000_000, 2_500_000), (2_999_999, 2_999_999), (262_143, 262_144)] {
        let reply = get(proxy.address, &url, &[&format!("range: bytes={first}-{last}")]).await;
        assert_eq!(reply.status, 206);
        assert!(reply.body == body[first..=last], "{first}-{last}");
    }
    assert_eq!(origin.count(), 1);
}

/// Splits a `multipart/byteranges` response; returns the headers and the bytes of each part.
fn parts_of(reply: &ClientReply) -> Vec<(String, Vec<u8>)> {
    let content_type = reply.header("content-type");
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect("several parts");
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    let mut found = Vec::new();
    let mut rest = reply.body.strip_prefix(delimiter.as_slice()).expect("a delimiter");
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let end = part.windows(delimiter.len()).position(|window| window == delimiter).expect("a delimiter");
        let head = part.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        found.push((String::from_utf8_lossy(&part[..head]).into_owned(), part[head + 4..end].to_vec()));
        rest = &part[end + delimiter.len()..];
    }
    assert_eq!(rest, b"--\r\n");
    found
}

#[tokio::test]
async fn multiple_ranges_share_bounded_response() {
    let body: Vec<u8> = (0..3_000_000u32).map(|index| (index * 7 + index / 251) as u8).collect();
    for (size, content_type) in [(10, "content-type: text/plain"), (1000, "x: y"), (3_000_000, "content-type: a/b")] {
        let origin = TestOrigin::start().await;
        origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\"", content_type], &body[..size]));
        let proxy = TestProxy::forward().await;
        let url = origin.url("/a");
        get(proxy.address, &url, &[]).await;
        while !get(proxy.address, &url, &[]).await.is_hit() {}
        let last = size - 1;
        let reply = get(proxy.address, &url, &[&format!("range: bytes=0-1, 4-5,{}-{}, -2", size + 5, size + 9)]).await;
        assert_eq!((reply.status, reply.is_complete, reply.header("content-range").as_str()), (206, true, ""));
        assert!(reply.is_hit() && reply.header("etag") == "\"x\"");
        let parts = parts_of(&reply);
        for (part, (first, end)) in parts.iter().zip([(0, 2), (4, 6), (last - 1, size)]) {
            assert!(part.0.contains(&format!("content-range: bytes {first}-{}/{size}", end - 1)), "{}", part.0);
            assert_eq!(part.0.contains("content-type: "), content_type.starts_with("content-type"));
            assert!(part.1 == body[first..end], "{first}-{end} of {size}");
        }
        assert_eq!(parts.len(), 3);
        let many = |count: usize| format!("range: bytes={}", vec!["0-0"; count].join(","));
        if size >= 17 {
            assert_eq!(parts_of(&get(proxy.address, &url, &[&many(16)]).await).len(), 16);
        }
        let whole = get(proxy.address, &url, &[&many(17)]).await;
        assert!(whole.status == 200 && whole.body == body[..size], "one more than are served");
        let whole = get(proxy.address, &url, &["range: bytes=0-, 0-, 0-"]).await;
        assert!(whole.status == 200 && whole.body == body[..size], "more than there is");
        let none = get(proxy.address, &url, &[&format!("range: bytes={size}-, {}-{}", size + 1, size + 2)]).await;
        assert_eq!((none.status, none.header("content-range")), (416, format!("bytes */{size}")));
        let one = get(proxy.address, &url, &[&format!("range: bytes=2-3, {size}-")]).await;
        assert_eq!((one.status, one.header("content-range")), (206, format!("bytes 2-3/{size}")));
        let changed = get(proxy.address, &url, &["range: bytes=0-1,4-5", "if-range: \"other\""]).await;
        assert_eq!(changed.status, 200);
        let mut client = TestClient::connect(proxy.address).await;
        let head = client.ask(&[&format!("HEAD {url} HTTP/1.1"), "range: bytes=0-1,4-5"]).await;
        assert_eq!((head.status, head.header("content-length")), (200, size.to_string()));
        assert_eq!(origin.count(), 1);
    }
}

#[tokio::test]
async fn multiple_ranges_on_miss_get_whole() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"0123456789"));
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=0-1,4-5"]).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "0123456789"));
    assert_eq!(origin.got()[0].header("range"), "");
    let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=0-1,4-5"]).await;
    assert_eq!((reply.status, parts_of(&reply).len()), (206, 2));
}
