//! Bodies that an owner breaks off: they go on at the origin, if that has the same response.
//!
//! The owner breaks off what its own origin breaks off.

use crate::common::certificates::TestCertificates;
use crate::common::sharing::*;
use crate::common::*;

/// A body in two chunks of these lengths, and headers. What is sent ends before the second chunk if it `is_cut`.
fn chunked(headers: &[&str], body: &[u8], first: usize, is_cut: bool) -> Vec<u8> {
    let chunk = |part: &[u8]| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!("HTTP/1.1 200 OK\r\n{lines}transfer-encoding: chunked\r\n\r\n");
    let begun = [head.as_bytes(), &chunk(&body[..first])].concat();
    if is_cut { begun } else { [&begun[..], &chunk(&body[first..]), b"0\r\n\r\n"].concat() }
}

/// A body in which each place has its own bytes.
fn numbered(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at >> 8) as u8).collect()
}

/// The origin has the rest of a body that an owner breaks off.
#[tokio::test]
async fn broken_bodies_go_on_at_origin() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-broken"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at >> 8) as u8).collect();
    let headers = ["cache-control: max-age=60", "etag: \"x\""];
    let whole = OriginScript::ok(&headers, &body).bytes();
    from.on("/a", OriginScript::raw(&whole[..whole.len() - 30_000]).close())
        .on("/a", OriginScript::range(&headers, &body));
    let reply = a.get("/a").await;
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
    assert!(reply.body == body, "{} bytes", reply.body.len());
    assert_eq!(a.proxy.stats().resumed, 1);
    assert!(from.got()[1].header("range").ends_with("-99999"), "the rest alone");
    assert!(is_own_hit(&a.get("/a").await), "it is kept");
}

/// What has no length and no validator goes on as well, if the origin sends the same again: nothing else would have the head
/// and the first bytes that the client has.
#[tokio::test]
async fn bodies_without_length_go_on() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("breaks-chunked"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    let body = numbered(100_000);
    for (path, headers) in
        [("/kept", &["cache-control: max-age=60"][..]), ("/passed", &["cache-control: no-store"]), ("/none", &[])]
    {
        from.on(path, OriginScript::raw(&chunked(headers, &body, 30_000, true)).close())
            .on(path, OriginScript::raw(&chunked(headers, &body, 70_000, false)));
        let reply = a.get(path).await;
        assert!(reply.cache_status().contains("fleet=\"b\""), "{path}: {}", reply.cache_status());
        assert!(reply.body == body, "{path}: {} bytes", reply.body.len());
    }
    assert_eq!((a.proxy.stats().resumed, a.proxy.stats().cut_off), (3, 0));
    assert!(from.got().iter().all(|got| got.header("range").is_empty()), "nothing proves that a range is of the same");
    assert!(is_own_hit(&a.get("/kept").await), "it is kept");
}

/// With a strong validator the rest alone is requested, also if nobody has said how long the body is.
#[tokio::test]
async fn rest_without_length_is_a_range() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("breaks-range"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    let (body, headers) = (numbered(100_000), ["cache-control: max-age=60", "etag: \"x\""]);
    let rest = |from: usize| {
        let head = format!("HTTP/1.1 206 Partial Content\r\n{}\r\n", headers.join("\r\n"));
        let length = body.len() - from;
        let lines = format!("content-range: bytes {from}-99999/100000\r\ncontent-length: {length}\r\n\r\n");
        OriginScript::raw(&[head.as_bytes(), lines.as_bytes(), &body[from..]].concat())
    };
    from.on("/a", OriginScript::raw(&chunked(&headers, &body, 30_000, true)).close()).on("/a", rest(30_000));
    let reply = a.get("/a").await;
    assert!(reply.body == body, "{} bytes", reply.body.len());
    let got = &from.got()[1];
    assert_eq!((got.header("range").as_str(), got.header("if-range").as_str()), ("bytes=30000-", "\"x\""));
}

/// A response that differs does not go on: the client sees that its body is not whole.
#[tokio::test]
async fn other_bodies_do_not_go_on() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("breaks-other"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    let (body, plain) = (numbered(100_000), ["cache-control: max-age=60"]);
    let mut other = body.clone();
    other[10] ^= 1;
    let tagged = ["cache-control: max-age=60", "etag: \"y\""];
    let typed = ["cache-control: max-age=60", "content-type: text/plain"];
    let coded = ["cache-control: max-age=60", "content-encoding: gzip"];
    let private = ["cache-control: private, max-age=60"];
    let varying = ["cache-control: max-age=60", "vary: accept-language"];
    let cookie = ["cache-control: max-age=60", "set-cookie: a=1"];
    for (path, next) in [
        ("/bytes", OriginScript::ok(&plain, &other)),
        ("/tag", OriginScript::ok(&tagged, &body)),
        ("/type", OriginScript::ok(&typed, &body)),
        ("/coding", OriginScript::ok(&coded, &body)),
        ("/private", OriginScript::ok(&private, &body)),
        ("/varying", OriginScript::ok(&varying, &body)),
        ("/cookie", OriginScript::ok(&cookie, &body)),
        ("/short", OriginScript::ok(&plain, &body[..20_000])),
        ("/gone", OriginScript::response("404 Not Found", &plain, b"gone")),
    ] {
        from.on(path, OriginScript::raw(&chunked(&plain, &body, 30_000, true)).close()).on(path, next);
        let reply = a.get(path).await;
        assert!(!reply.is_complete && reply.body.len() <= 30_000, "{path}: {} bytes", reply.body.len());
        assert!(body.starts_with(&reply.body), "{path}");
    }
    assert_eq!((a.proxy.stats().resumed, a.proxy.stats().cut_off), (0, 9));
}

/// An answer that says no length does not go on a body of another length, also if the client alone gets it.
#[tokio::test]
async fn other_lengths_do_not_go_on() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("breaks-lengths"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    let longer = numbered(120_000);
    for (path, control) in [("/kept", "cache-control: max-age=60"), ("/passed", "cache-control: no-store")] {
        for bytes in [120_000, 90_000] {
            let (path, whole) = (format!("{path}/{bytes}"), OriginScript::ok(&[control], &longer[..100_000]).bytes());
            from.on(&path, OriginScript::raw(&whole[..whole.len() - 30_000]).close())
                .on(&path, OriginScript::raw(&chunked(&[control], &longer[..bytes], 80_000, false)));
            let reply = a.get(&path).await;
            assert!(!reply.is_complete && longer.starts_with(&reply.body), "{path}: {} bytes", reply.body.len());
        }
    }
}

/// The conditions of the client were met when the body began; the rest is requested without them.
#[tokio::test]
async fn rest_is_requested_without_conditions() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("breaks-conditions"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    let (body, headers) = (numbered(100_000), ["cache-control: max-age=60", "etag: \"x\""]);
    let conditions = ["if-none-match: \"y\"", "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT"];
    for (path, validator) in [("/range", true), ("/again", false)] {
        let headers = if validator { &headers[..] } else { &headers[..1] };
        let whole = OriginScript::ok(headers, &body).bytes();
        from.on(path, OriginScript::raw(&whole[..whole.len() - 30_000]).close())
            .on(path, OriginScript::range(headers, &body));
        let lines = [&[HOST, "cache-control: no-store"], &conditions[..]].concat();
        let reply = get(a.proxy.address, path, &lines).await;
        assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
        assert!(reply.body == body, "{path}: {} bytes", reply.body.len());
        let got = from.got();
        let (first, rest) = (&got[got.len() - 2], &got[got.len() - 1]);
        for name in ["if-none-match", "if-modified-since"] {
            assert!(!first.header(name).is_empty() && rest.header(name).is_empty(), "{path}: {name}");
        }
        assert_eq!(rest.header("if-range"), if validator { "\"x\"" } else { "" });
    }
}

/// A range of a long body, which the owner breaks off, goes on where it was.
#[tokio::test]
async fn broken_ranges_go_on() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("breaks-part"));
    let nodes = with_far_ranges(&fleet, &from, &files).await;
    let (body, headers) = (numbered(100_000), ["cache-control: max-age=60", "etag: \"x\""]);
    let part = format!(
        "HTTP/1.1 206 Partial Content\r\n{}\r\ncontent-range: bytes 50000-89999/100000\r\ncontent-length: 40000\r\n\r\n",
        headers.join("\r\n")
    );
    from.on("/a", OriginScript::raw(&[part.as_bytes(), &body[50_000..60_000]].concat()).close())
        .on("/a", OriginScript::range(&headers, &body));
    let reply = get(nodes[0].proxy.address, "/a", &[HOST, "range: bytes=50000-89999"]).await;
    assert_eq!(reply.status, 206);
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
    assert!(reply.body == body[50_000..90_000], "{} bytes", reply.body.len());
    assert_eq!(from.got()[1].header("range"), "bytes=60000-89999");
}
