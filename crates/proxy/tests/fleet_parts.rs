//! Long bodies in parts, in a fleet: the owner of a URL has all its parts, and the other nodes keep copies of those that
//! their clients request. Parts of different bodies are never joined, also if they are from different nodes.

use std::time::Duration;

use crate::common::certificates::TestCertificates;
use crate::common::sharing::*;
use crate::common::sites::{at, route};
use crate::common::*;

/// The size of parts on the route of these tests.
const PART: usize = 65_536;
/// Some parts, the last of which is shorter.
const LENGTH: usize = 3 * PART + 1234;
const FRESH: &str = "cache-control: max-age=3600";

/// A body in which each place has its own bytes.
fn numbered(seed: u8) -> Vec<u8> {
    (0..LENGTH).map(|at| (at >> 8) as u8 ^ seed).collect()
}

/// Three nodes whose route has parts; `a` asks `b`, and then `c`.
async fn with_parts(fleet: &ModelFleet, from: &TestOrigin, files: &TestCertificates) -> [SharingNode; 3] {
    let described = || {
        let mut parts = route("/", "o");
        parts.rules.part_size = Some(at(PART as u64));
        one_site(from, vec![parts])
    };
    three_with(fleet, described, files).await
}

/// Asks for a range that is in one part.
async fn ask_part(node: &SharingNode, path: &str, index: usize) -> ClientReply {
    let range = format!("range: bytes={}-{}", index * PART + 5, index * PART + 14);
    get(node.proxy.address, path, &[HOST, &range]).await
}

/// Asks until the node has the part: a fetch ends a moment after the last byte that its client wants.
async fn ask_until_kept(node: &SharingNode, path: &str, index: usize) {
    let kept = async {
        while !is_own_hit(&ask_part(node, path, index).await) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), kept).await.expect("a copy in time");
}

/// The values of `Range` that the origin got, sorted.
fn ranges(from: &TestOrigin) -> Vec<String> {
    let mut found: Vec<_> = from.got().iter().map(|got| got.header("range")).collect();
    found.sort();
    found
}

/// The `Range` of a part.
fn part(index: usize) -> String {
    format!("bytes={}-{}", index * PART, (index + 1) * PART - 1)
}

#[tokio::test]
async fn parts_come_from_their_owner() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts"));
    let [a, b, c] = with_parts(&fleet, &from, &files).await;
    let body = numbered(0);
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"x\""], &body));
    let reply = ask_part(&a, "/x", 2).await;
    assert_eq!((reply.status, &reply.body[..]), (206, &body[2 * PART + 5..2 * PART + 15]));
    assert_eq!(reply.header("content-range"), format!("bytes {}-{}/{LENGTH}", 2 * PART + 5, 2 * PART + 14));
    let said = "nectary; fwd=uri-miss; fwd-status=206; stored; fleet=\"b\", nectary; fwd=uri-miss; fwd-status=206";
    assert_eq!(reply.cache_status(), said);
    ask_until_kept(&a, "/x", 2).await;
    let reply = ask_part(&c, "/x", 2).await;
    assert!(reply.cache_status().starts_with("nectary; hit; ttl="), "{}", reply.cache_status());
    until("copies", || [&a, &b, &c].map(SharingNode::puts) == [(1, 1), (1, 0), (1, 1)]).await;
    assert_eq!(ranges(&from), [part(2)]);
    // Of a whole body the parts are fetched that nobody has, once for all nodes.
    for node in [&a, &c, &b, &a] {
        let reply = node.get("/x").await;
        assert!(reply.status == 200 && reply.body == body, "{} bytes", reply.body.len());
        assert_eq!(reply.header("content-length"), LENGTH.to_string());
    }
    let mut all: Vec<_> = (0..4).map(part).collect();
    all.sort();
    assert_eq!(ranges(&from), all);
    until("copies in memory alone", || [&a, &b, &c].map(SharingNode::puts) == [(4, 4), (4, 0), (4, 4)]).await;
    assert_eq!((a.with("b").asked.misses, a.with("b").asked.hits, c.with("b").asked.hits), (4, 0, 4));
    // The first part meets what a client demands.
    from.now("/y", OriginScript::range(&[FRESH, "etag: \"x\""], &body));
    assert!(b.get("/y").await.body == body);
    until("the parts of the owner", || b.puts().0 == 8).await;
    let count = from.count();
    assert!(get(a.proxy.address, "/y", &[HOST, "cache-control: no-cache"]).await.body == body);
    assert_eq!(from.count(), count + 1);
}

/// An origin without parts gets one request for the whole, and what it sends is shared as on other routes.
#[tokio::test]
async fn bodies_without_parts_are_shared_whole() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-none"));
    let [a, b, c] = with_parts(&fleet, &from, &files).await;
    let body = numbered(0);
    from.now("/long", OriginScript::ok(&[FRESH, "etag: \"x\""], &body));
    from.now("/short", OriginScript::ok(&[FRESH], b"short"));
    for node in [&a, &a, &c, &b] {
        assert!(node.get("/long").await.body == body);
        assert_eq!(node.get("/short").await.text(), "short");
        let reply = get(node.proxy.address, "/short", &[HOST, "range: bytes=1-2"]).await;
        assert_eq!((reply.status, reply.text().as_str()), (206, "ho"));
    }
    let of = |path: &str| from.got().iter().filter(|got| got.line.contains(path)).count();
    // The owner finds that there are no parts, and fetches the whole then.
    assert_eq!((of("/long"), of("/short")), (2, 1));
    until("copies", || [&a, &b, &c].map(SharingNode::puts) == [(2, 2), (2, 0), (2, 2)]).await;
}

/// A whole body that the owner joins is not kept as one object: its parts may have other tags than the first one.
#[tokio::test]
async fn joined_bodies_are_not_kept_whole() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-whole"));
    let [a, b, _c] = with_parts(&fleet, &from, &files).await;
    from.now("/x", OriginScript::ok(&[FRESH, "etag: \"short\""], b"short"));
    assert_eq!(a.get("/x").await.text(), "short");
    let body = numbered(0);
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"long\""], &body));
    b.proxy.store.purge_key(b"http://site.test/x").await.expect("purged");
    assert!(b.get("/x").await.body == body);
    // The node has a whole response, so it asks for one.
    let reply = get(a.proxy.address, "/x", &[HOST, "cache-control: no-cache"]).await;
    assert!(reply.is_complete && reply.body == body, "{} bytes: {}", reply.body.len(), reply.cache_status());
    from.now("/other", OriginScript::ok(&[FRESH], b"other"));
    a.get("/other").await;
    until("a later copy", || a.puts().0 >= 2).await;
    assert_eq!(a.puts(), (2, 2), "the short one, and the later one");
    // What it had as a whole is gone, so it asks for parts again.
    let kept = async {
        loop {
            let reply = ask_part(&a, "/x", 1).await;
            if reply.status == 206 && is_own_hit(&reply) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), kept).await.expect("a copy of a part in time");
}

/// Those who wait for a part that the origin does not give get the whole from the owner, which asks for that once.
#[tokio::test]
async fn waiters_for_absent_parts_get_the_whole() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-wait"));
    let [a, b, c] = with_parts(&fleet, &from, &files).await;
    let (body, questions) = (numbered(0), || b.with("a").answered.questions + b.with("c").answered.questions);
    // On a busy machine the owner may be late, and then others ask the origin as well.
    for number in 0..20 {
        let (path, before, count) = (format!("/{number}"), questions(), from.count());
        let long = OriginScript::ok(&[FRESH], &body);
        from.on(&path, OriginScript::default().wait("go").then(&long.bytes())).on(&path, long);
        let late = || a.with("b").late + c.with("b").late;
        let late_before = late();
        let (one, two, ()) = tokio::join!(a.get(&path), c.get(&path), async {
            until("both questions", || questions() >= before + 2).await;
            from.open("go");
        });
        assert!(one.body == body && two.body == body, "{} and {} bytes", one.body.len(), two.body.len());
        if late() == late_before {
            assert_eq!(from.count(), count + 2, "{:?}", ranges(&from));
            return;
        }
    }
    panic!("the owner was always late");
}

/// A node has a part of the old body, and the owner those of the new one: the client sees that its body is not whole, and
/// the next one gets the new body.
#[tokio::test]
async fn parts_of_two_nodes_never_mix() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-mix"));
    let [a, b, _c] = with_parts(&fleet, &from, &files).await;
    let (old, new) = (numbered(0), numbered(1));
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"old\""], &old));
    ask_until_kept(&a, "/x", 0).await;
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"new\""], &new));
    b.proxy.store.purge_key(b"http://site.test/x").await.expect("purged");
    assert!(b.get("/x").await.body == new);
    let reply = a.get("/x").await;
    assert!(!reply.is_complete && reply.body.len() <= PART && old.starts_with(&reply.body), "bytes of two bodies");
    let count = from.count();
    let reply = a.get("/x").await;
    assert!(reply.is_complete && reply.body == new && reply.header("etag") == "\"new\"");
    assert_eq!(from.count(), count, "the owner has all parts of the new body");
    // The node's part is newer than those of the owner, which validates them.
    from.now("/y", OriginScript::range(&[FRESH, "etag: \"old\""], &old));
    assert!(b.get("/y").await.body == old);
    from.now("/y", OriginScript::range(&[FRESH, "etag: \"new\""], &new));
    a.member.set_owners(&[("a", a.peer()), ("b", b.peer())]);
    ask_part(&a, "/y", 0).await;
    a.member.set_owners(&[("b", b.peer()), ("a", a.peer())]);
    let reply = a.get("/y").await;
    assert!(reply.is_complete && reply.body == new, "{} bytes", reply.body.len());
}

/// A node meets a change of the body of which the owner has older parts, too: these are validated, and nothing else is
/// fetched again.
#[tokio::test]
async fn former_parts_of_owners_are_validated() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-gone"));
    let [a, b, c] = with_parts(&fleet, &from, &files).await;
    let (old, new) = (numbered(0), numbered(1));
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"old\""], &old));
    ask_until_kept(&a, "/x", 0).await;
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"new\""], &new));
    // The owner has the first part of the old body, and the others of the new one.
    for index in 1..4 {
        ask_until_kept(&c, "/x", index).await;
    }
    let reply = a.get("/x").await;
    assert!(!reply.is_complete && old.starts_with(&reply.body), "bytes of two bodies");
    let count = from.count();
    for node in [&a, &b, &c] {
        let reply = node.get("/x").await;
        assert!(reply.is_complete && reply.body == new, "{} bytes", reply.body.len());
    }
    assert_eq!(ranges(&from).iter().filter(|range| **range == part(0)).count(), 2, "{:?}", ranges(&from));
    assert_eq!(from.count(), count + 1, "the first part is validated");
}

#[tokio::test]
async fn purges_reach_copies_of_parts() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-purge"));
    let nodes = with_parts(&fleet, &from, &files).await;
    for (seed, lines) in [vec![], vec!["surrogate-key: t"]].into_iter().enumerate() {
        let (body, tag) = (numbered(seed as u8), format!("etag: \"{seed}\""));
        from.now("/x", OriginScript::range(&[FRESH, "surrogate-key: t", &tag], &body));
        for node in &nodes {
            assert!(node.get("/x").await.body == body, "{lines:?}");
        }
        let lines = [&["PURGE /x HTTP/1.1", HOST, AUTHORIZATION], &lines[..]].concat();
        assert_eq!(TestClient::connect(nodes[2].proxy.address).await.ask(&lines).await.status, 200);
    }
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"last\""], &numbered(9)));
    for node in &nodes {
        assert!(node.get("/x").await.body == numbered(9));
    }
    assert_eq!(from.count(), 12, "each part once a purge");
}

/// A write at a node, and a part that was softly purged at the owner: no older part comes back.
#[tokio::test]
async fn outdated_parts_are_not_kept() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-write"));
    let [a, b, c] = with_parts(&fleet, &from, &files).await;
    let body = numbered(1);
    for path in ["/write", "/soft"] {
        from.now(path, OriginScript::range(&[FRESH, "etag: \"old\""], &numbered(0)));
        assert!(b.get(path).await.body == numbered(0));
    }
    from.now("/write", OriginScript::ok(&[], b"done"));
    assert_eq!(send(&a, "POST", "/write", &[]).await.text(), "done");
    from.now("/write", OriginScript::range(&[FRESH, "etag: \"new\""], &body));
    assert!(a.get("/write").await.body == body);
    assert_eq!(send(&c, "PURGE", "/soft", &[AUTHORIZATION, "fastly-soft-purge: 1"]).await.status, 200);
    from.now("/soft", OriginScript::range(&[FRESH, "etag: \"new\""], &body));
    let lines = [HOST, "cache-control: max-stale", "range: bytes=5-14"];
    let reply = get(a.proxy.address, "/soft", &lines).await;
    assert_eq!((reply.status, reply.body), (206, numbered(0)[5..15].to_vec()));
    let reply = ask_part(&a, "/soft", 0).await;
    assert_eq!((reply.status, reply.body), (206, body[5..15].to_vec()), "the copy is not fresh");
}

/// The client or the response demands it: the origin confirms the first part, whichever nodes have the body, and no part of a
/// former body follows.
#[tokio::test]
async fn demands_reach_the_origin_through_owners() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-wants"));
    let [a, b, _c] = with_parts(&fleet, &from, &files).await;
    for (path, lifetime, demand) in
        [("/client", FRESH, "cache-control: no-cache"), ("/response", "cache-control: no-cache", "accept: */*")]
    {
        from.now(path, OriginScript::range(&[lifetime, "etag: \"old\""], &numbered(0)));
        let before = (a.puts().0, b.puts().0);
        assert!(a.get(path).await.body == numbered(0), "{path}");
        until("parts at both nodes", || (a.puts().0, b.puts().0) == (before.0 + 4, before.1 + 4)).await;
        let count = from.count();
        assert!(get(a.proxy.address, path, &[HOST, demand]).await.body == numbered(0), "{path}");
        assert_eq!(from.count(), count + 1, "{path}: the first part confirms the others");
        from.now(path, OriginScript::range(&[lifetime, "etag: \"new\""], &numbered(1)));
        let reply = get(a.proxy.address, path, &[HOST, demand]).await;
        assert!(reply.is_complete && reply.body == numbered(1), "{path}: {} bytes", reply.body.len());
        assert_eq!(from.count(), count + 5, "{path}");
    }
}

/// A part that a node may not keep, as it has a tag that its headers do not name: its owner sends it, and not the origin.
#[tokio::test]
async fn unkept_parts_come_from_their_owner() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-alone"));
    let [a, b, _c] = with_parts(&fleet, &from, &files).await;
    let body = numbered(0);
    from.now("/x", OriginScript::range(&[FRESH, "etag: \"x\"", "surrogate-key: one"], &body));
    assert!(b.get("/x").await.body == body);
    until("the parts of the owner", || b.puts().0 == 4).await;
    from.now("/x", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\nsurrogate-key: two\r\n\r\n"));
    let range = format!("range: bytes={}-{}", 2 * PART, 2 * PART + 9);
    let reply = get(b.proxy.address, "/x", &[HOST, &range, "cache-control: no-cache"]).await;
    assert_eq!((reply.status, &reply.body[..]), (206, &body[2 * PART..2 * PART + 10]));
    let count = from.count();
    for _ in 0..2 {
        let reply = a.get("/x").await;
        assert!(reply.is_complete && reply.body == body, "{} bytes", reply.body.len());
        // From the middle of the part before it on.
        let range = format!("range: bytes={}-{}", PART + 100, 2 * PART + 99);
        let reply = get(a.proxy.address, "/x", &[HOST, &range]).await;
        assert!(reply.is_complete && reply.body == body[PART + 100..2 * PART + 100], "{}", reply.status);
    }
    assert_eq!(from.count(), count, "the owner has it");
    until("copies of the other parts", || a.puts().0 == 3).await;
}

/// An owner that breaks a part off, and one that is away.
#[tokio::test]
async fn parts_of_lost_owners_go_on() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("parts-lost"));
    let [a, b, _c] = with_parts(&fleet, &from, &files).await;
    let (body, headers) = (numbered(0), [FRESH, "etag: \"x\""]);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{}\r\ncontent-length: {PART}\r\ncontent-range: bytes {PART}-{}/{LENGTH}\r\n\r\n",
        headers.join("\r\n"),
        2 * PART - 1
    );
    from.on("/x", OriginScript::raw(&[head.as_bytes(), &body[PART..PART + 40_000]].concat()).close())
        .on("/x", OriginScript::range(&headers, &body));
    let range = format!("range: bytes={PART}-{}", 2 * PART - 1);
    let reply = get(a.proxy.address, "/x", &[HOST, &range]).await;
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
    assert!(reply.status == 206 && reply.body == body[PART..2 * PART], "{} bytes", reply.body.len());
    assert_eq!(from.got()[1].header("range"), format!("bytes={}-{}", PART + 40_000, 2 * PART - 1));
    b.member.cut();
    assert!(a.get("/x").await.body == body);
}
