//! On a route with `part-size` bodies are fetched and stored in parts: a range costs its parts alone, and parts of
//! different bodies are never joined.

mod changes;

use std::sync::Arc;
use std::time::Duration;

use nectary_proxy::{ProxyOptions, options_of};

use crate::common::sites::{at, with_rule, with_rule_config};
use crate::common::*;

/// The size of parts on the routes of these tests.
const PART: usize = 65_536;
/// Some parts, the last of which is shorter.
const LENGTH: usize = 9 * PART + 1234;
const TAG: &str = "etag: \"a\"";
const FRESH: &str = "cache-control: max-age=3600";

/// A body whose bytes say where they are.
fn body(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: usize| ((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).to_le_bytes();
    (0..length.div_ceil(8)).flat_map(word).take(length).collect()
}

/// A proxy of a site whose route stores parts of this size.
async fn with_parts(origin: &TestOrigin, part_bytes: u64) -> TestProxy {
    with_rule(origin, |route| route.rules.part_size = Some(at(part_bytes))).await
}

/// An origin that has `body` at `/x` with these headers, and a proxy of it.
async fn proxied(headers: &[&str], body: &[u8]) -> (TestOrigin, TestProxy) {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::range(headers, body));
    let proxy = with_parts(&origin, PART as u64).await;
    (origin, proxy)
}

async fn ask(proxy: &TestProxy, headers: &[&str]) -> ClientReply {
    get(proxy.address, "/x", &[&["host: a"], headers].concat()).await
}

async fn ask_range(proxy: &TestProxy, range: &str) -> ClientReply {
    ask(proxy, &[&format!("range: bytes={range}")]).await
}

/// Asks until the answer is a hit: a fetch ends a moment after the last byte that a client wants of it.
async fn ask_until_hit(proxy: &TestProxy, headers: &[&str]) -> ClientReply {
    let hit = async {
        loop {
            let reply = ask(proxy, headers).await;
            if reply.is_hit() {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), hit).await.expect("a hit in time")
}

/// The values of `Range` that the origin got.
fn ranges(origin: &TestOrigin) -> Vec<String> {
    origin.got().iter().map(|got| got.header("range")).collect()
}

/// The `Range` of a part.
fn part(index: usize) -> String {
    format!("bytes={}-{}", index * PART, (index + 1) * PART - 1)
}

#[tokio::test]
async fn far_range_fetches_one_part() {
    let whole = body(0, LENGTH);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    let reply = ask_range(&proxy, "500000-500009").await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[500_000..500_010]));
    assert_eq!(reply.header("content-range"), format!("bytes 500000-500009/{LENGTH}"));
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=206; stored");
    assert_eq!(ranges(&origin), [part(7)]);
    let reply = ask_until_hit(&proxy, &["range: bytes=460000-520000"]).await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[460_000..520_001]));
    assert_eq!(ranges(&origin), [part(7)]);
    // A route without the rule fetches the whole.
    origin.on("/plain/x", OriginScript::range(&[TAG, FRESH], &whole));
    get(proxy.address, "/plain/x", &["host: a", "range: bytes=500000-500009"]).await;
    assert_eq!(ranges(&origin).last().expect("a request"), "");
}

#[tokio::test]
async fn whole_request_fetches_missing_parts() {
    let whole = body(1, LENGTH);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    for index in [2, 5] {
        let range = format!("{}-{}", index * PART + 5, index * PART + 9);
        assert_eq!(ask_range(&proxy, &range).await.status, 206);
        ask_until_hit(&proxy, &[&format!("range: bytes={range}")]).await;
    }
    let reply = ask(&proxy, &[]).await;
    assert_eq!((reply.status, reply.is_complete), (200, true));
    assert!(reply.body == whole, "the joined body differs");
    assert_eq!(reply.header("content-length"), LENGTH.to_string());
    assert_eq!((reply.header("content-range"), reply.header("accept-ranges")), (String::new(), "bytes".into()));
    let mut asked = ranges(&origin);
    asked.sort();
    let mut all: Vec<_> = (0..10).map(part).collect();
    all.sort();
    assert_eq!(asked, all, "each part once");
    let reply = ask_until_hit(&proxy, &[]).await;
    assert!(reply.body == whole);
    // Requests for several ranges get the whole.
    let reply = ask_range(&proxy, "0-1,5-6").await;
    assert_eq!((reply.status, reply.body.len()), (200, LENGTH));
    assert_eq!(origin.count(), 10);
}

#[tokio::test]
async fn random_ranges_are_exact() {
    let seed = std::env::var("NECTARY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7_u64);
    println!("NECTARY_SEED={seed}");
    let whole = body(seed, LENGTH);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    let mut state = seed | 1;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for _ in 0..60 {
        let longest = [10, PART, 3 * PART, LENGTH][random(4)];
        let (first, length, form) = (random(LENGTH), 1 + random(longest), random(4));
        let (text, range) = match form {
            0 => (format!("{first}-"), first..LENGTH),
            1 => (format!("-{length}"), LENGTH - length.min(LENGTH)..LENGTH),
            _ => (format!("{first}-{}", first + length - 1), first..(first + length).min(LENGTH)),
        };
        let reply = ask_range(&proxy, &text).await;
        assert_eq!((reply.status, reply.is_complete), (206, true), "{text}");
        assert!(reply.body == whole[range], "{text} differs");
    }
    assert!(origin.count() <= 10, "a part was fetched twice: {:?}", ranges(&origin));
}

#[tokio::test]
async fn parts_of_several_records_are_exact() {
    const LONG: usize = 9 << 20;
    let (origin, whole) = (TestOrigin::start().await, body(2, LONG));
    origin.on("/x", OriginScript::range(&[TAG, FRESH], &whole));
    let proxy = with_parts(&origin, 4 << 20).await;
    for _ in 0..2 {
        assert!(ask(&proxy, &[]).await.body == whole);
    }
    let reply = ask_range(&proxy, "4194300-8388700").await;
    assert!(reply.body == whole[4_194_300..8_388_701]);
    assert_eq!(origin.count(), 3);
}

#[tokio::test]
async fn last_full_part_has_no_successor() {
    let whole = body(3, 2 * PART);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    assert!(ask(&proxy, &[]).await.body == whole);
    assert_eq!(ranges(&origin), [part(0), part(1)]);
}

#[tokio::test]
async fn parts_of_different_bodies_never_join() {
    let (old, new) = (body(4, LENGTH), body(5, LENGTH));
    let (origin, proxy) = proxied(&[TAG, FRESH], &old).await;
    assert_eq!(ask_range(&proxy, "0-9").await.body, old[..10]);
    ask_until_hit(&proxy, &["range: bytes=0-9"]).await;
    origin.now("/x", OriginScript::range(&["etag: \"b\"", FRESH], &new));
    let reply = ask(&proxy, &[]).await;
    assert_eq!((reply.status, reply.is_complete), (200, false));
    assert!(reply.body.len() <= PART && old.starts_with(&reply.body), "bytes of two bodies");
    // The parts that were stored are gone.
    let reply = ask(&proxy, &[]).await;
    assert_eq!((reply.status, reply.is_complete, reply.is_hit()), (200, true, false));
    assert!(reply.body == new && reply.header("etag") == "\"b\"");
}

/// Three clients read the old body when it changes: those that find it later do not purge the parts of the new one.
#[tokio::test]
async fn old_body_readers_purge_once() {
    let (old, new) = (body(14, LENGTH), body(15, LENGTH));
    let (origin, proxy) = proxied(&[TAG, FRESH], &old).await;
    ask_until_hit(&proxy, &["range: bytes=0-9"]).await;
    // Both have the first part of the old body, and want the second one, for which the origin keeps them waiting.
    origin.now("/x", OriginScript::default().wait("gate").then_range(&["etag: \"b\"", FRESH], &new));
    let before = proxy.stats().invalidations;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&["GET /x HTTP/1.1", "host: a"]).as_bytes()).await;
        let head = client.head().await;
        assert_eq!(head.header("etag"), "\"a\"");
        readers.push((client, head));
    }
    origin.wait_for(2).await;
    origin.open("gate");
    for (mut client, head) in readers {
        let reply = client.body(head).await;
        assert!(!reply.is_complete && old.starts_with(&reply.body), "bytes of two bodies");
    }
    assert_eq!(proxy.stats().invalidations - before, 1, "one purge for all");
    let reply = ask(&proxy, &[]).await;
    assert!(reply.is_complete && reply.body == new);
}

#[tokio::test]
async fn later_old_parts_are_replaced() {
    let (old, new) = (body(6, 3 * PART), body(7, 3 * PART));
    let (origin, proxy) = proxied(&[TAG, FRESH], &old).await;
    assert!(ask(&proxy, &[]).await.body == old);
    ask_until_hit(&proxy, &[]).await;
    origin.now("/x", OriginScript::range(&["etag: \"b\"", FRESH], &new));
    // This validates the first part, which is a new one then.
    let reply = ask(&proxy, &["cache-control: no-cache"]).await;
    assert!(reply.is_complete && reply.body == new);
    assert_eq!(origin.count(), 6);
    assert!(origin.got()[3..].iter().all(|got| got.header("if-none-match") == "\"a\""));
}

#[tokio::test]
async fn one_validation_confirms_all_parts() {
    let whole = body(8, 3 * PART);
    let (origin, proxy) = proxied(&[TAG, "cache-control: max-age=0"], &whole).await;
    assert!(ask(&proxy, &[]).await.body == whole);
    assert_eq!(origin.count(), 3);
    let confirmation = b"HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\ncache-control: max-age=0\r\n\r\n";
    origin.now("/x", OriginScript::raw(confirmation));
    let reply = ask(&proxy, &[]).await;
    assert!(reply.body == whole && reply.is_complete);
    assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
    let got = origin.got().pop().expect("a request");
    assert_eq!((got.header("if-none-match"), got.header("range")), ("\"a\"".into(), part(0)));
    assert_eq!(origin.count(), 4);
}

#[tokio::test]
async fn origin_without_ranges_gives_the_whole() {
    let (origin, whole) = (TestOrigin::start().await, body(9, LENGTH));
    origin.on("/x", OriginScript::ok(&[TAG, FRESH], &whole)).on("/short", OriginScript::fresh(b"hello"));
    let proxy = with_parts(&origin, PART as u64).await;
    let reply = ask_range(&proxy, "500000-500009").await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[500_000..500_010]));
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=200; stored; detail=no-parts");
    assert_eq!(ranges(&origin), [part(7), String::new()]);
    let reply = ask_until_hit(&proxy, &["range: bytes=10-19"]).await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[10..20]));
    assert_eq!(origin.count(), 2);
    // A short response is taken as it is.
    for is_hit in [false, true] {
        let reply = get(proxy.address, "/short", &["host: a"]).await;
        assert_eq!((reply.status, reply.text().as_str(), reply.is_hit()), (200, "hello", is_hit));
    }
    assert_eq!(origin.count(), 3);
}

/// Parts without a validator are not joined either.
#[tokio::test]
async fn weakly_validated_parts_never_join() {
    let whole = body(10, LENGTH);
    for tag in ["etag: W/\"a\"", "x-none: 1", "last-modified: Sun, 06 Nov 2194 08:49:37 GMT"] {
        let (origin, proxy) = proxied(&[tag, FRESH], &whole).await;
        let reply = ask(&proxy, &[]).await;
        assert!(reply.status == 200 && reply.body == whole, "{tag}");
        assert_eq!(ranges(&origin), [part(0), String::new()], "{tag}");
        assert!(reply.cache_status().ends_with("stored; detail=no-parts"), "{}", reply.cache_status());
        assert!(ask_until_hit(&proxy, &[]).await.body == whole, "{tag}");
    }
}

#[tokio::test]
async fn unstorable_parts_are_passed_on() {
    let whole = body(11, LENGTH);
    let (origin, proxy) = proxied(&[TAG, "cache-control: no-store"], &whole).await;
    for count in [2, 3] {
        let reply = ask_range(&proxy, "500000-500009").await;
        assert_eq!((reply.status, &reply.body[..]), (206, &whole[500_000..500_010]));
        assert_eq!(origin.count(), count, "the next request is passed on at once");
    }
    assert_eq!(ranges(&origin), [part(7), "bytes=500000-500009".into(), "bytes=500000-500009".into()]);
}

#[tokio::test]
async fn a_purge_takes_all_parts() {
    let whole = body(12, 3 * PART);
    let (origin, proxy) = proxied(&[TAG, FRESH, "surrogate-key: video"], &whole).await;
    for (turn, line) in ["x-none: 1", "surrogate-key: video"].into_iter().enumerate() {
        assert!(ask(&proxy, &[]).await.body == whole);
        ask_until_hit(&proxy, &[]).await;
        assert_eq!(origin.count(), 3 * (turn + 1), "{line}");
        let purge = ["PURGE /x HTTP/1.1", "host: a", AUTHORIZATION, line];
        let reply = TestClient::connect(proxy.address).await.ask(&purge).await;
        assert_eq!((reply.status, reply.text().contains("nothing is stored")), (200, false), "{line}");
    }
    assert!(ask(&proxy, &[]).await.body == whole);
    assert_eq!(origin.count(), 9);
}

#[tokio::test]
async fn a_soft_purge_validates_all_parts() {
    let whole = body(20, 3 * PART);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    assert!(ask(&proxy, &[]).await.body == whole);
    for index in 0..3 {
        ask_until_hit(&proxy, &[&format!("range: bytes={}-{}", index * PART, index * PART + 9)]).await;
    }
    assert_eq!(origin.count(), 3);
    let purge = ["PURGE /x HTTP/1.1", "host: a", AUTHORIZATION, "fastly-soft-purge: 1"];
    assert_eq!(TestClient::connect(proxy.address).await.ask(&purge).await.status, 200);
    let confirmation = b"HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\ncache-control: max-age=3600\r\n\r\n";
    origin.now("/x", OriginScript::raw(confirmation));
    let reply = ask(&proxy, &[]).await;
    assert!(reply.body == whole && reply.is_complete);
    assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
    assert_eq!(ranges(&origin)[3..], [part(0), part(1), part(2)], "each part is validated");
    assert!(origin.got()[3..].iter().all(|got| got.header("if-none-match") == "\"a\""));
    let reply = ask_until_hit(&proxy, &[]).await;
    assert!(reply.body == whole && reply.is_complete);
    assert_eq!(origin.count(), 6, "all parts are fresh again");
}

#[tokio::test]
async fn head_and_conditions_use_parts() {
    let whole = body(13, LENGTH);
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"));
    let proxy = with_parts(&origin, PART as u64).await;
    let head = async || TestClient::connect(proxy.address).await.ask(&["HEAD /x HTTP/1.1", "host: a"]).await;
    assert_eq!(head().await.header("content-length"), "5");
    assert!(origin.got()[0].line.starts_with("HEAD "), "nothing is fetched for a HEAD");
    origin.now("/x", OriginScript::range(&[TAG, FRESH], &whole));
    for range in ["0-9", "500000-500009"] {
        ask_range(&proxy, range).await;
        ask_until_hit(&proxy, &[&format!("range: bytes={range}")]).await;
    }
    let reply = head().await;
    assert_eq!((reply.status, reply.header("content-length"), reply.is_hit()), (200, LENGTH.to_string(), true));
    assert_eq!(reply.header("content-range"), "");
    // `If-None-Match` comes before the range.
    for more in [&[][..], &["range: bytes=500000-500009"]] {
        let reply = ask(&proxy, &[&["if-none-match: \"a\""], more].concat()).await;
        assert_eq!((reply.status, reply.header("etag"), reply.is_hit()), (304, "\"a\"".into(), true));
    }
    let reply = ask(&proxy, &["if-none-match: \"b\"", "range: bytes=5-6"]).await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[5..7]));
    let range = "range: bytes=500000-500009";
    let reply = ask(&proxy, &[range, "if-range: \"a\""]).await;
    assert_eq!((reply.status, &reply.body[..], reply.is_hit()), (206, &whole[500_000..500_010], true));
    assert_eq!(origin.count(), 3);
    let reply = ask(&proxy, &[range, "if-range: \"b\""]).await;
    assert!(reply.status == 200 && reply.body == whole);
    let reply = ask(&proxy, &["cache-control: only-if-cached"]).await;
    assert_eq!(reply.status, 504, "parts may be missing");
}

#[tokio::test]
async fn clients_share_part_fetch() {
    let whole = body(14, LENGTH);
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::default().wait("go").then_range(&[TAG, FRESH], &whole));
    let proxy = with_parts(&origin, PART as u64).await;
    let mut clients = Vec::new();
    for index in 0..4 {
        let mut client = TestClient::connect(proxy.address).await;
        let range = format!("range: bytes={}-{}", 500_000 + index, 500_009 + index);
        client.send(request(&["GET /x HTTP/1.1", "host: a", &range]).as_bytes()).await;
        clients.push(client);
    }
    origin.wait_for(1).await;
    proxy.wait_for(|stats| stats.requests == 4).await;
    origin.open("go");
    for (index, client) in clients.iter_mut().enumerate() {
        let reply = client.reply(false).await;
        assert_eq!((reply.status, &reply.body[..]), (206, &whole[500_000 + index..500_010 + index]));
    }
    assert_eq!(ranges(&origin), [part(7)]);
}

#[tokio::test]
async fn empty_bodies_and_errors_have_no_parts() {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::range(&[TAG, FRESH], b""));
    let missing = OriginScript::response("404 Not Found", &["cache-control: max-age=60"], b"no such video");
    origin.on("/none", missing).on("/end", OriginScript::range(&[TAG, FRESH], &body(15, LENGTH)));
    let proxy = with_parts(&origin, PART as u64).await;
    for is_hit in [false, true] {
        let reply = ask(&proxy, &[]).await;
        assert_eq!((reply.status, reply.body.len(), reply.is_hit()), (200, 0, is_hit));
    }
    assert_eq!(ranges(&origin), [part(0), String::new()]);
    assert_eq!(ask_range(&proxy, "0-9").await.status, 416);
    for is_hit in [false, true] {
        let reply = get(proxy.address, "/none", &["host: a", "range: bytes=70000-"]).await;
        assert_eq!((reply.status, reply.text().as_str(), reply.is_hit()), (404, "no such video", is_hit));
    }
    assert_eq!(origin.count(), 3);
    let range = format!("range: bytes={}-", 100 * PART);
    let reply = get(proxy.address, "/end", &["host: a", &range]).await;
    assert_eq!((reply.status, reply.header("content-range")), (416, format!("bytes */{LENGTH}")));
    assert_eq!(origin.count(), 4);
    // A range behind the end, in the last part.
    let range = format!("range: bytes={}-", LENGTH + 1);
    let reply = get(proxy.address, "/end", &["host: a", &range]).await;
    assert_eq!((reply.status, reply.header("content-range")), (416, format!("bytes */{LENGTH}")));
}

#[tokio::test]
async fn variants_have_their_own_parts() {
    let (packed, plain) = (body(16, 50_000), body(17, 100_000));
    let origin = TestOrigin::start().await;
    let packed_headers = ["etag: \"p\"", FRESH, "vary: accept-encoding", "content-encoding: gzip"];
    origin.on("/x", OriginScript::range(&packed_headers, &packed));
    origin.on("/x", OriginScript::range(&[TAG, FRESH, "vary: accept-encoding"], &plain));
    let proxy = with_parts(&origin, PART as u64).await;
    let (gzip, identity) = (["accept-encoding: gzip"], ["accept-encoding: identity"]);
    assert!(ask(&proxy, &gzip).await.body == packed);
    assert!(ask(&proxy, &identity).await.body == plain);
    for _ in 0..2 {
        let reply = ask_until_hit(&proxy, &gzip).await;
        assert!(reply.body == packed && reply.header("content-encoding") == "gzip");
        let reply = ask_until_hit(&proxy, &identity).await;
        assert!(reply.body == plain && reply.header("content-encoding").is_empty());
    }
    assert_eq!(origin.count(), 3);
}

#[tokio::test]
async fn leaving_client_ends_part_fetches() {
    let whole = body(18, LENGTH);
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::range(&[TAG, FRESH], &whole));
    origin.on("/x", OriginScript::default().wait("go").then_range(&[TAG, FRESH], &whole));
    let proxy = with_parts(&origin, PART as u64).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&["GET /x HTTP/1.1", "host: a"]).as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    assert!(client.take(PART).await == whole[..PART]);
    origin.wait_for(2).await;
    drop(client);
    proxy.wait_for(|stats| stats.connections_open == 0).await;
    origin.open("go");
    // The part under way is stored, and no other was requested.
    let reply = ask_until_hit(&proxy, &["range: bytes=70000-70009"]).await;
    assert!(reply.body == whole[70_000..70_010]);
    assert_eq!(ranges(&origin), [part(0), part(1)]);
}

#[tokio::test]
async fn parts_beyond_the_fetches_come_unstored() {
    let whole = body(20, 3 * PART);
    let origin = TestOrigin::start().await;
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{TAG}\r\n{FRESH}\r\ncontent-length: {PART}\r\ncontent-range: bytes \
         0-{}/{}\r\n\r\n",
        PART - 1,
        whole.len()
    );
    let first = OriginScript::raw(head.as_bytes()).then(&whole[..10]).wait("rest").then(&whole[10..PART]);
    origin.on("/x", first).on("/x", OriginScript::range(&[TAG, FRESH], &whole));
    let config = with_rule_config(&origin, |route| route.rules.part_size = Some(at(PART as u64)));
    let mut options = options_of(&Arc::new(config)).expect("a good configuration");
    options.limits.fills_max = 1;
    let proxy = TestProxy::start(ProxyOptions { workers: 1, ..options }).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&["GET /x HTTP/1.1", "host: a"]).as_bytes()).await;
    let head = client.head().await;
    assert_eq!(client.take(10).await, whole[..10]);
    // The first part is still being fetched, so the second one is requested for this client alone.
    origin.open("rest");
    assert_eq!((head.status, head.header("content-length")), (200, whole.len().to_string()));
    assert!(client.take(whole.len() - 10).await == whole[10..]);
    assert_eq!(ranges(&origin), [part(0), part(1), part(2)]);
    assert_eq!(origin.got()[1].header("if-range"), "\"a\"");
    assert_eq!(proxy.stats().resumed, 1);
    // It is stored when it is requested again.
    ask_until_hit(&proxy, &["range: bytes=70000-70009"]).await;
    assert_eq!(origin.count(), 4);
}

#[tokio::test]
async fn broken_part_fetch_resumes() {
    let whole = body(21, 2 * PART);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{TAG}\r\n{FRESH}\r\ncontent-length: {PART}\r\ncontent-range: bytes \
         {PART}-{}/{}\r\n\r\n",
        2 * PART - 1,
        whole.len()
    );
    origin.on("/x", OriginScript::raw(head.as_bytes()).then(&whole[PART..PART + 100]).close());
    origin.on("/x", OriginScript::range(&[TAG, FRESH], &whole));
    let reply = ask(&proxy, &[]).await;
    assert!(reply.is_complete && reply.body == whole);
    let asked = ranges(&origin);
    assert_eq!(asked[..2], [part(0), part(1)]);
    assert!(asked.len() == 3 && asked[2].ends_with(&format!("-{}", 2 * PART - 1)), "{asked:?}");
    assert_eq!(origin.got()[2].header("if-range"), "\"a\"");
    // With another body at the origin the connection ends.
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::range(&[TAG, FRESH], &whole));
    origin.on("/x", OriginScript::raw(head.as_bytes()).then(&whole[PART..PART + 100]).close());
    origin.on("/x", OriginScript::range(&["etag: \"b\"", FRESH], &body(22, 2 * PART)));
    let proxy = with_parts(&origin, PART as u64).await;
    let reply = ask(&proxy, &[]).await;
    assert!(!reply.is_complete && whole.starts_with(&reply.body));
}

#[tokio::test]
async fn part_error_purges_nothing() {
    let whole = body(23, 3 * PART);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    ask_until_hit(&proxy, &["range: bytes=0-9"]).await;
    for status in ["401 Unauthorized", "429 Too Many Requests"] {
        origin.now("/x", OriginScript::response(status, &[], b"not now"));
        let reply = ask(&proxy, &[]).await;
        assert_eq!((reply.status, reply.is_complete), (200, false), "{status}");
        assert!(reply.body.len() <= PART && whole.starts_with(&reply.body), "{status}");
        // The part that is stored is still served, although another one could not be stored.
        let reply = ask_range(&proxy, "0-9").await;
        assert_eq!((reply.is_hit(), &reply.body[..]), (true, &whole[..10]), "{status}");
    }
    origin.now("/x", OriginScript::range(&[TAG, FRESH], &whole));
    assert!(ask(&proxy, &[]).await.body == whole);
}

#[tokio::test]
async fn parts_count_as_one_request() {
    let whole = body(19, LENGTH);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    assert!(ask(&proxy, &[]).await.body == whole);
    proxy.wait_for(|stats| stats.misses == 1).await;
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.hits, stats.responses_2xx), (1, 0, 1));
    assert_eq!((stats.body_bytes_sent, origin.count()), (LENGTH as u64, 10));
    ask_until_hit(&proxy, &[]).await;
    proxy.wait_for(|stats| stats.misses + stats.hits + stats.collapsed == stats.requests).await;
}
