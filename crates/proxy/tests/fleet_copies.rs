//! What the nodes of a fleet keep of each other's answers: in memory alone, and not what was purged, invalidated or is for one
//! client.

use std::time::{Duration, Instant};

use nectary_config::{HeaderEdits, HeaderValue};
use nectary_host::fleet::FleetMembership;
use tokio::net::TcpListener;

use crate::common::certificates::TestCertificates;
use crate::common::sharing::*;
use crate::common::sites::{at, route};
use crate::common::*;

#[tokio::test]
async fn purges_reach_copies() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-purge"));
    let nodes = three(&fleet, &from, &files).await;
    for (number, what) in ["url", "tag"].into_iter().enumerate() {
        from.now("/a", OriginScript::ok(&["cache-control: max-age=60", "surrogate-key: t"], what.as_bytes()));
        for node in &nodes {
            assert_eq!(node.get("/a").await.text(), what);
        }
        let tags = if what == "tag" { vec!["surrogate-key: t"] } else { Vec::new() };
        let lines = [vec!["PURGE /a HTTP/1.1", HOST, AUTHORIZATION], tags].concat();
        let reply = TestClient::connect(nodes[2].proxy.address).await.ask(&lines).await;
        assert_eq!((reply.status, fleet.log().len()), (200, number + 1), "{what}");
    }
    from.now("/a", OriginScript::fresh(b"last"));
    for node in &nodes {
        assert_eq!(node.get("/a").await.text(), "last");
    }
    assert_eq!(from.count(), 3);
}

/// A write that passes through a node is seen there, although the owner has what was before it.
#[tokio::test]
async fn writes_are_seen_at_their_node() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-write"));
    from.now("/a", OriginScript::fresh(b"old"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    assert_eq!(a.get("/a").await.text(), "old");
    from.now("/a", OriginScript::ok(&[], b"done"));
    let lines = ["POST /a HTTP/1.1", HOST, "content-length: 0"];
    assert_eq!(TestClient::connect(a.proxy.address).await.ask(&lines).await.text(), "done");
    from.now("/a", OriginScript::fresh(b"new"));
    assert_eq!((a.get("/a").await.text(), from.count()), ("new".to_owned(), 3));
    assert_eq!((b.get("/a").await.text(), from.count()), ("new".to_owned(), 3));
}

/// The owner has not applied a purge that the asking node is just applying: its answer may be what that purges.
#[tokio::test]
async fn older_answers_are_not_kept() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-older"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    a.member.gate().set_begun(5);
    // On a busy machine a node may be too slow, and then this one asks the origin itself.
    let path = 'answered: {
        for number in 0..50 {
            let path = format!("/{number}");
            from.on(&path, OriginScript::fresh(b"one"));
            if a.get(&path).await.cache_status().contains("fleet=") {
                break 'answered path;
            }
        }
        panic!("no node has answered");
    };
    let count = from.count();
    let reply = a.get(&path).await;
    assert_eq!((reply.text().as_str(), is_own_hit(&reply)), ("one", false), "{}", reply.cache_status());
    a.member.gate().set_begun(0);
    a.get(&path).await;
    assert!(is_own_hit(&a.get(&path).await));
    assert_eq!(from.count(), count);
}

/// By its age a softly purged response is fresh; no node may make it so again.
#[tokio::test]
async fn softly_purged_answers_are_not_kept() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-soft"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    for (path, wish) in [("/stale", "cache-control: max-stale"), ("/away", "accept: */*")] {
        from.now(path, OriginScript::fresh(b"old"));
        assert_eq!(b.get(path).await.text(), "old");
        let soft = [AUTHORIZATION, "fastly-soft-purge: 1"];
        assert_eq!(send(&c, "PURGE", path, &soft).await.status, 200);
        let next = if path == "/away" { OriginScript::raw(b"").close() } else { OriginScript::fresh(b"new") };
        from.now(path, next);
        let reply = get(a.proxy.address, path, &[HOST, wish]).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "old"), "{path}: {}", reply.cache_status());
        from.now(path, OriginScript::fresh(b"new"));
        let begun = Instant::now();
        while a.get(path).await.text() != "new" {
            assert!(!is_own_hit(&a.get(path).await), "{path}: the copy is fresh");
            // The owner asks an origin that has failed again when its pause is over.
            assert!(begun.elapsed() < Duration::from_secs(20), "{path}: it is still old");
        }
        assert!(is_own_hit(&a.get(path).await), "{path}");
    }
}

/// A write invalidates all variants, what is being fetched at the owner, and what the owner has if another node answers.
#[tokio::test]
async fn writes_invalidate_all_of_the_owner() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-all"));
    let nodes = three(&fleet, &from, &files).await;
    let [a, b, c] = &nodes;
    let languages = ["accept-language: en", "accept-language: de"];
    let varied =
        |text: &str| OriginScript::ok(&["cache-control: max-age=60", "vary: accept-language"], text.as_bytes());
    from.now("/v", varied("old"));
    for language in languages {
        assert_eq!(get(a.proxy.address, "/v", &[HOST, language]).await.text(), "old");
    }
    from.now("/v", varied("new"));
    assert_eq!(send(a, "POST", "/v", &[]).await.status, 200);
    for language in languages {
        assert_eq!(get(a.proxy.address, "/v", &[HOST, language]).await.text(), "new", "{language}");
    }

    let slow = OriginScript::default().wait("slow").then(&OriginScript::fresh(b"old").bytes());
    from.on("/w", slow).on("/w", OriginScript::ok(&[], b"done")).on("/w", OriginScript::fresh(b"new"));
    let count = from.count();
    let rest = async {
        from.wait_for(count + 1).await;
        assert_eq!(send(a, "POST", "/w", &[]).await.text(), "done");
        let questions = b.with("a").answered.questions;
        tokio::join!(a.get("/w"), async {
            until("a question", || b.with("a").answered.questions > questions).await;
            from.open("slow");
        })
        .0
    };
    assert_eq!(tokio::join!(b.get("/w"), rest).1.text(), "new", "the fetch had begun before the write");

    from.now("/x", OriginScript::fresh(b"old"));
    assert_eq!(b.get("/x").await.text(), "old");
    from.now("/x", OriginScript::fresh(b"new"));
    assert_eq!(send(a, "POST", "/x", &[]).await.status, 200);
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    a.member.set_owners(&[("b", gone), ("c", c.peer()), ("a", a.peer())]);
    assert_eq!(a.get("/x").await.text(), "new");
    set_owners(&nodes);
    a.proxy.store.purge_key(b"http://site.test/x").await.expect("purged");
    assert_eq!(a.get("/x").await.text(), "new", "the first owner had not answered before");
}

#[tokio::test]
async fn invalidated_groups_are_validated_by_owners() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-groups"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    let grouped = |text: &str| OriginScript::ok(&["cache-control: max-age=60", "cache-groups: \"x\""], text.as_bytes());
    from.now("/g", grouped("old"));
    assert_eq!((b.get("/g").await.text(), a.get("/g").await.text()), ("old".to_owned(), "old".to_owned()));
    from.now("/p", OriginScript::ok(&["cache-group-invalidation: \"x\""], b"done"));
    assert_eq!(send(&a, "POST", "/p", &[]).await.text(), "done");
    from.now("/g", grouped("new"));
    assert_eq!(a.get("/g").await.text(), "new");
    assert!(is_own_hit(&a.get("/g").await));
}

/// A purge that waits for etcd was made at its node; owners do not have it yet.
#[tokio::test]
async fn queued_purges_hold_against_owners() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-queued"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    from.now("/a", OriginScript::fresh(b"old"));
    assert_eq!((b.get("/a").await.text(), c.get("/a").await.text()), ("old".to_owned(), "old".to_owned()));
    from.now("/a", OriginScript::fresh(b"new"));
    // It waits, and then it is in the log as revision 5, which the owners have not applied.
    for required in [u64::MAX, 5] {
        a.member.gate().set_required(required);
        a.proxy.store.purge_key(b"http://site.test/a").await.expect("purged");
        assert_eq!(a.get("/a").await.text(), "new", "{required}");
    }
    b.member.gate().set_applied(5);
    a.proxy.store.purge_key(b"http://site.test/a").await.expect("purged");
    assert_eq!(a.get("/a").await.text(), "old", "the owner has the purge, and this test's model has none");
}

/// A request that waits for the answer of an owner, and wants one that is validated now, does not get what the owner had.
#[tokio::test]
async fn demands_are_not_met_by_waiting() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-demands"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    from.now("/a", OriginScript::fresh(b"old"));
    assert_eq!(b.get("/a").await.text(), "old");
    from.now("/a", OriginScript::fresh(b"new"));
    // The owner waits until it has applied as much as the node that asks.
    a.member.gate().set_applied(5);
    let later = async {
        until("a question", || b.with("a").answered.questions == 1).await;
        let applied = async {
            a.proxy.wait_for(|stats| stats.requests == 2).await;
            b.member.gate().set_applied(5);
        };
        tokio::join!(get(a.proxy.address, "/a", &[HOST, "cache-control: no-cache"]), applied).0
    };
    let (_, reply) = tokio::join!(a.get("/a"), later);
    assert_eq!(reply.text(), "new", "{}", reply.cache_status());
}

#[tokio::test]
async fn variants_are_asked_of_owners() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-vary"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    from.now("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: x-shop"], b"x"));
    for (number, shop) in ["one", "two"].into_iter().enumerate() {
        let line = format!("x-shop: {shop}");
        for node in [&a, &c, &b] {
            assert_eq!(get(node.proxy.address, "/a", &[HOST, &line]).await.text(), "x");
        }
        assert_eq!((from.count(), from.got()[number].header("x-shop").as_str()), (number + 1, shop));
    }
}

/// What is for one client is kept by no node that it passes.
#[tokio::test]
async fn personal_answers_are_kept_nowhere() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-personal"));
    let nodes = three(&fleet, &from, &files).await;
    let [a, b, c] = &nodes;
    from.now("/private", OriginScript::ok(&["cache-control: private, max-age=60"], b"x"));
    from.now("/once", OriginScript::ok(&["cache-control: no-store"], b"x"));
    from.now("/key", OriginScript::ok(&["cache-control: max-age=60"], b"x"));
    for (path, line) in [("/private", "accept: */*"), ("/once", "accept: */*"), ("/key", "authorization: Basic eDp5")] {
        for node in [a, a, c] {
            let count = from.count();
            assert_eq!(get(node.proxy.address, path, &[HOST, line]).await.text(), "x");
            assert_eq!(from.count(), count + 1, "{path}");
        }
    }
    assert_eq!([a, b, c].map(SharingNode::puts), [(0, 0); 3]);
    let cookie = ["cache-control: max-age=60, no-cache=\"set-cookie\"", "set-cookie: a=b"];
    from.now("/cookie", OriginScript::ok(&cookie, b"x"));
    let count = from.count();
    let mut with_cookie = 0;
    for node in [a, a, c, b] {
        with_cookie += usize::from(!node.get("/cookie").await.header("set-cookie").is_empty());
    }
    assert_eq!((with_cookie, from.count() - count), (1, 1), "it is for the first one alone");
}

/// A response that was confirmed keeps its tags: by a copy without them a purge would not find it.
#[tokio::test]
async fn copies_have_all_tags() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-tags"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    from.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\"", "surrogate-key: one"], b"old"));
    from.on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\nsurrogate-key: two\r\n\r\n"));
    assert_eq!(b.get("/a").await.text(), "old");
    assert_eq!(get(b.proxy.address, "/a", &[HOST, "cache-control: no-cache"]).await.text(), "old");
    for _ in 0..2 {
        let reply = a.get("/a").await;
        assert!(reply.text() == "old" && !is_own_hit(&reply), "{}", reply.cache_status());
    }
    assert_eq!(from.count(), 2);
    assert_eq!(send(&c, "PURGE", "/other", &[AUTHORIZATION, "surrogate-key: one"]).await.status, 200);
    from.now("/a", OriginScript::fresh(b"new"));
    assert_eq!(a.get("/a").await.text(), "new");
}

/// What a route changes in responses to clients is changed once, by the node that answers the client.
#[tokio::test]
async fn changed_headers_are_for_clients_alone() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-edits"));
    let described = || {
        let mut all = route("/", "o");
        let set = HeaderValue { name: at("cache-control".to_owned()), value: at("no-store".to_owned()) };
        all.response_headers = HeaderEdits { set: vec![set], remove: Vec::new() };
        one_site(&from, vec![all])
    };
    let nodes = [
        start_with(&fleet, "a", described(), &files).await,
        start_with(&fleet, "b", described(), &files).await,
        start_with(&fleet, "c", described(), &files).await,
    ];
    set_owners(&nodes);
    from.now("/a", OriginScript::fresh(b"x"));
    for _ in 0..2 {
        assert_eq!(nodes[0].get("/a").await.header("cache-control"), "no-store");
    }
    assert!(is_own_hit(&nodes[0].get("/a").await), "it is kept by what the origin said");
}

/// What an owner says of its revision it has applied before it looked.
#[tokio::test]
async fn revisions_are_read_before_the_look() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-look"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    from.now("/a", OriginScript::default().wait("go").then(&OriginScript::fresh(b"one").bytes()));
    a.member.gate().set_begun(5);
    let applied = async {
        from.wait_for(1).await;
        // What the owner looks for now may be older than what it applies meanwhile.
        b.member.gate().set_applied(5);
        from.open("go");
    };
    let (reply, ()) = tokio::join!(a.get("/a"), applied);
    assert_eq!(reply.text(), "one");
    assert_eq!(a.puts(), (0, 0), "it is not kept: {}", reply.cache_status());
}
