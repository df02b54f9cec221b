//! What nodes that share keys ask each other, beside whole objects for copies: ranges, heads and long bodies; and how questions
//! are counted.

use nectary_host::fleet::QuestionFigures;
use nectary_proxy::ProxyStats;
use tokio::net::TcpListener;

use crate::common::certificates::TestCertificates;
use crate::common::sharing::*;
use crate::common::sites::{config, origin, route, site};
use crate::common::*;

/// A store that takes no object of [`LONG`] bytes.
const SMALL_STORE: u64 = 32 << 20;
const LONG: usize = 12 << 20;

/// Like [`three`], but the store of `a` takes no object of [`LONG`] bytes.
async fn with_small_store(fleet: &ModelFleet, from: &TestOrigin, files: &TestCertificates) -> [SharingNode; 3] {
    let described = || one_site(from, vec![route("/", "o")]);
    let nodes = [
        start_sized(fleet, "a", described(), files, SMALL_STORE).await,
        start_with(fleet, "b", described(), files).await,
        start_with(fleet, "c", described(), files).await,
    ];
    set_owners(&nodes);
    nodes
}

/// Sends a request without a body for a path of the site.
async fn ask(node: &SharingNode, method: &str, path: &str, line: &str) -> ClientReply {
    let (start, head) = (format!("{method} {path} HTTP/1.1"), method == "HEAD");
    let mut client = TestClient::connect(node.proxy.address).await;
    client.send(format!("{start}\r\n{HOST}\r\n{line}\r\n\r\n").as_bytes()).await;
    client.reply(head).await
}

#[tokio::test]
async fn questions_are_counted_by_node() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-counts"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    from.now("/a", OriginScript::fresh(b"four"));
    from.now("/dead", OriginScript::raw(b"").close());
    assert_eq!((a.get("/a").await.text(), c.get("/a").await.text()), ("four".to_owned(), "four".to_owned()));
    let miss = QuestionFigures { questions: 1, misses: 1, body_bytes: 4, ..QuestionFigures::default() };
    let hit = QuestionFigures { questions: 1, hits: 1, body_bytes: 4, ..QuestionFigures::default() };
    assert_eq!((a.with("b").asked, c.with("b").asked), (miss, hit));
    until("answers of the owner", || (b.with("a").answered, b.with("c").answered) == (miss, hit)).await;
    assert!(is_own_hit(&a.get("/a").await) && is_own_hit(&b.get("/a").await));
    // Each request of a client counts where it came, and nowhere else.
    for (node, requests, hits) in [(&a, 2, 1), (&b, 1, 1), (&c, 1, 0)] {
        let counts = |stats: &ProxyStats| (stats.requests, stats.hits, stats.body_bytes_sent);
        node.proxy.wait_for(|stats| stats.body_bytes_sent >= 4 * requests).await;
        assert_eq!(counts(&node.proxy.stats()), (requests, hits, 4 * requests));
    }
    assert_eq!(a.get("/dead").await.status, 502);
    assert_eq!((a.with("b").asked.failed, a.with("c").asked.failed), (1, 1));
    until("failures of the owner", || b.with("a").answered.failed == 1).await;
    b.member.cut();
    from.now("/b", OriginScript::fresh(b"x"));
    assert!(a.get("/b").await.cache_status().contains("fleet=\"c\""));
    assert_eq!(a.with("b").asked.refused, 1);
    until("a refusal", || b.with("a").answered.refused == 1).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    a.member.set_owners(&[("b", gone), ("c", c.peer()), ("a", a.peer())]);
    from.now("/c", OriginScript::fresh(b"x"));
    assert!(a.get("/c").await.cache_status().contains("fleet=\"c\""));
    assert_eq!((a.with("b").unreachable, a.with("b").asked.questions), (1, 4));
    assert_eq!((a.with("b").late, a.with("c").hedges_won, a.with("c").hedges_lost), (0, 0, 0));
}

#[tokio::test]
async fn late_answers_and_hedges_are_counted() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-late"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    let fresh = OriginScript::fresh(b"x");
    c.member.set_owners(&[("c", c.peer()), ("b", b.peer())]);
    from.now("/won", fresh.clone());
    c.get("/won").await;
    c.member.set_owners(&[("b", b.peer()), ("c", c.peer()), ("a", a.peer())]);
    from.now("/won", OriginScript::default().wait("never").then(&fresh.bytes()));
    assert!(a.get("/won").await.cache_status().contains("fleet=\"c\""), "it has it stored");
    assert_eq!((a.with("b").late, a.with("c").hedges_won, a.with("c").hedges_lost), (1, 1, 0));
    from.now("/lost", OriginScript::default().wait("first").then(&fresh.bytes()));
    let count = from.count();
    let (reply, ()) = tokio::join!(a.get("/lost"), async {
        until("a store without it", || a.with("c").asked.misses == 1).await;
        from.open("first");
    });
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
    assert_eq!((a.with("b").late, a.with("c").hedges_won, a.with("c").hedges_lost), (2, 1, 1));
    assert_eq!(from.count(), count + 1);
}

/// The ends of the certificates are told, and that of the node changes with its file.
#[tokio::test]
async fn ends_of_certificates_are_told() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-ends"));
    let a = start(&fleet, "a", &from, &files).await;
    let told = || {
        let certificates = a.seat.figures().certificates;
        certificates.into_iter().map(|found| (found.key, found.path, found.not_after_s)).collect::<Vec<_>>()
    };
    let before = told();
    let path = files.ca().with_file_name("a.pem").display().to_string();
    assert!(before.len() == 2 && before[0].0 == "cert" && before[0].1 == path, "{before:?}");
    assert!(before[1].0 == "ca" && before[1].2 > 2_000_000_000, "{before:?}");
    files.sign_until("a", &["localhost"], 2031);
    assert_eq!(told(), before, "what was read is in use");
    let reopened = a.proxy.reopener();
    assert!(tokio::task::spawn_blocking(move || reopened.reopen()).await.expect("no panic").is_empty());
    assert_eq!(told()[0].2, 1_924_992_000, "the beginning of 2031");
    assert_eq!(told()[1..], before[1..], "the authority is the same");
}

/// What an owner has answers ranges and heads, however far a range begins: the origin is not asked.
#[tokio::test]
async fn owners_answer_ranges_and_heads() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-ranges"));
    let [a, b, _c] = with_far_ranges(&fleet, &from, &files).await;
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at >> 8) as u8).collect();
    from.now("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], &body));
    assert!(b.get("/a").await.body == body);
    let owner = |reply: &ClientReply| {
        assert!(reply.cache_status().contains("hit; ttl=") && reply.cache_status().contains("fleet=\"b\""));
    };
    let reply = ask(&a, "GET", "/a", "range: bytes=70000-70099").await;
    assert_eq!((reply.status, reply.header("content-range").as_str()), (206, "bytes 70000-70099/100000"));
    assert!(reply.body == body[70_000..70_100]);
    owner(&reply);
    let reply = ask(&a, "GET", "/a", "range: bytes=70000-\r\nif-range: \"y\"").await;
    assert_eq!((reply.status, reply.body.len()), (200, body.len()), "it is another one");
    let reply = ask(&a, "GET", "/a", "range: bytes=100000-").await;
    assert_eq!((reply.status, reply.header("content-range").as_str()), (416, "bytes */100000"));
    let reply = ask(&a, "HEAD", "/a", "accept: */*").await;
    assert_eq!((reply.status, reply.header("content-length").as_str()), (200, "100000"));
    owner(&reply);
    let reply = ask(&a, "HEAD", "/a", "if-none-match: \"x\"").await;
    assert_eq!(reply.status, 304);
    let reply = ask(&a, "GET", "/a", "range: bytes=70000-70099\r\ncache-control: no-store").await;
    assert_eq!(reply.status, 206);
    assert_eq!(from.count(), 1, "the origin is asked once");
    assert_eq!((a.with("b").asked.hits, a.puts()), (6, (0, 0)));
}

/// A range that the owner does not have is asked of the origin as a range, by the owner.
#[tokio::test]
async fn absent_ranges_are_fetched_by_owners() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-absent"));
    let [a, b, _c] = with_far_ranges(&fleet, &from, &files).await;
    let body = vec![7; 100_000];
    from.now("/a", OriginScript::range(&["cache-control: max-age=60", "etag: \"x\""], &body));
    let reply = ask(&a, "GET", "/a", "range: bytes=70000-70099").await;
    assert_eq!((reply.status, reply.body.len()), (206, 100));
    assert_eq!((from.count(), from.got()[0].header("range").as_str()), (1, "bytes=70000-70099"));
    until("an answer of the owner", || b.with("a").answered.misses == 1).await;
}

/// A group that was invalidated at a node is not confirmed by an owner that does not know it.
#[tokio::test]
async fn invalidated_groups_reach_heads() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-groups"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    let response = |tag: &str| {
        OriginScript::ok(&["cache-control: max-age=60", "cache-groups: \"g\"", &format!("etag: \"{tag}\"")], b"x")
    };
    from.on("/a", response("old"));
    b.get("/a").await;
    from.now("/w", OriginScript::ok(&["cache-group-invalidation: \"g\""], b"done"));
    assert_eq!(send(&a, "POST", "/w", &[]).await.status, 200);
    from.now("/a", response("new"));
    let reply = ask(&a, "HEAD", "/a", "if-none-match: \"old\"").await;
    assert_eq!((reply.status, reply.header("etag").as_str()), (200, "\"new\""));
}

/// After a group was invalidated at a node, owners evaluate the conditions of other requests as before: a `304` names the
/// groups, too.
#[tokio::test]
async fn conditions_survive_invalidated_groups() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-conditions"));
    let [a, b, _c] = with_far_ranges(&fleet, &from, &files).await;
    let modified = "last-modified: Sun, 06 Nov 1994 08:49:37 GMT";
    for (path, group) in [("/g", "g"), ("/i", "g"), ("/h", "h")] {
        let groups = format!("cache-groups: \"{group}\"");
        from.now(path, OriginScript::ok(&["cache-control: max-age=60", &groups, "etag: \"x\"", modified], b"old"));
        b.get(path).await;
    }
    from.now("/w", OriginScript::ok(&["cache-group-invalidation: \"g\""], b"done"));
    assert_eq!(send(&a, "POST", "/w", &[]).await.status, 200);
    let count = from.count();
    for condition in ["if-none-match: \"x\"", "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT"] {
        for (method, line) in [("HEAD", "accept: */*"), ("GET", "range: bytes=5000-")] {
            let reply = ask(&a, method, "/h", &format!("{condition}\r\n{line}")).await;
            assert_eq!(reply.status, 304, "{method} {condition}");
            assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
        }
    }
    assert_eq!(from.count(), count, "the owner has it");
    for (path, condition) in
        [("/g", "if-none-match: \"x\""), ("/i", "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT")]
    {
        from.now(path, OriginScript::ok(&["cache-control: max-age=60", "etag: \"y\"", modified], &[7; 9000]));
        let reply = ask(&a, "GET", path, &format!("{condition}\r\nrange: bytes=5000-")).await;
        assert_eq!((reply.status, reply.header("etag").as_str()), (200, "\"y\""), "{condition}");
    }
}

/// The head alone of a response, with these header lines.
fn head_of(headers: &[&str]) -> OriginScript {
    OriginScript::raw(&[b"HTTP/1.1 200 OK\r\n", headers.join("\r\n").as_bytes(), b"\r\n\r\n"].concat())
}

/// However long the origin needs: an owner that has nothing says so at once, and the node asks the origin itself.
#[tokio::test]
async fn heads_reach_the_origin_once() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-heads"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    let lines = ["content-length: 5", "cache-control: max-age=60"];
    from.now("/a", OriginScript::default().wait("go").then(&head_of(&lines).bytes()));
    let (reply, ()) = tokio::join!(ask(&a, "HEAD", "/a", "accept: */*"), async {
        until("an answer of the owner", || a.with("b").asked.misses == 1).await;
        from.wait_for(1).await;
        from.open("go");
    });
    assert_eq!((reply.status, reply.header("content-length").as_str(), from.count()), (200, "5", 1));
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=200");
    let once = QuestionFigures { questions: 1, misses: 1, ..QuestionFigures::default() };
    assert_eq!(a.with("b").asked, once);
    // On a busy machine the owner may be late, and then the next one is asked.
    if a.with("b").late == 0 {
        assert_eq!((a.with("c"), c.with("a")), Default::default());
    }
    assert_eq!((b.with("a").answered.questions, b.with("a").answered.misses), (1, 1));
    // The owner's purge for an invalidated URL is noted also if it has nothing then.
    from.now("/a", OriginScript::ok(&[], b"done"));
    assert_eq!(send(&a, "POST", "/a", &[]).await.status, 200);
    from.now("/a", head_of(&lines));
    assert_eq!(ask(&a, "HEAD", "/a", "accept: */*").await.status, 200);
    from.now("/a", OriginScript::fresh(b"new"));
    b.get("/a").await;
    let count = from.count();
    assert!(ask(&a, "HEAD", "/a", "accept: */*").await.cache_status().contains("hit; ttl="), "it was purged again");
    assert_eq!(from.count(), count);
}

/// If the origin fails, the owner answers a `HEAD` with what it may serve stale; the origin is not asked again.
#[tokio::test]
async fn failing_origins_leave_stale_heads() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-stale"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    let stale = ["cache-control: max-age=60, stale-if-error=6000", "age: 100", "etag: \"x\""];
    let error = OriginScript::raw(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    for (path, next) in [("/error", error), ("/silent", OriginScript::raw(b"").close())] {
        from.now(path, OriginScript::ok(&stale, b"x"));
        b.get(path).await;
        from.now(path, next);
        let count = from.count();
        let reply = ask(&a, "HEAD", path, "accept: */*").await;
        assert_eq!((reply.status, reply.header("etag").as_str()), (200, "\"x\""), "{path}: {}", reply.cache_status());
        assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
        assert_eq!(from.count(), count + 1, "{path}");
    }
    from.now("/none", OriginScript::raw(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"));
    assert_eq!(ask(&a, "HEAD", "/none", "accept: */*").await.status, 503);
}

/// A node that cannot reach the origin gets heads from owners that can.
#[tokio::test]
async fn unreachable_origins_are_left_to_owners() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-reach"));
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let cut_off = config(vec![site(&["site.test"], vec![route("/", "o")])], vec![origin("o", &[gone])]);
    let nodes = [
        start_with(&fleet, "a", cut_off, &files).await,
        start(&fleet, "b", &from, &files).await,
        start(&fleet, "c", &from, &files).await,
    ];
    set_owners(&nodes);
    from.now("/a", head_of(&["content-length: 5"]));
    let reply = ask(&nodes[0], "HEAD", "/a", "accept: */*").await;
    assert_eq!((reply.status, from.count()), (200, 1), "{}", reply.cache_status());
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
}

/// An owner that was left out for a moment is asked also for ranges and heads, if the origin gives nothing.
#[tokio::test]
async fn left_out_owners_answer_ranges_and_heads() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-left-out"));
    let nodes = with_far_ranges(&fleet, &from, &files).await;
    let [a, b, c] = &nodes;
    from.now("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], &[7; 9000]));
    b.get("/a").await;
    from.now("/a", OriginScript::raw(b"").close());
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    for (method, line, status) in [("GET", "range: bytes=5000-5099", 206), ("HEAD", "accept: */*", 200)] {
        a.member.set_owners(&[("b", gone), ("a", a.peer())]);
        for number in 0..3 {
            a.get(&format!("/{method}/{number}")).await;
        }
        a.member.set_owners(&[("b", b.peer()), ("c", c.peer()), ("a", a.peer())]);
        let reply = ask(a, method, "/a", line).await;
        assert_eq!(reply.status, status, "{method}: {}", reply.cache_status());
        assert!(reply.cache_status().contains("fleet=\"b\""), "{method}: {}", reply.cache_status());
    }
}

/// What is too long for the store of a node comes from the owner, whose store takes it.
#[tokio::test]
async fn long_bodies_come_from_owners() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-long"));
    let [a, b, _c] = with_small_store(&fleet, &from, &files).await;
    let body: Vec<u8> = (0..LONG).map(|at| (at >> 12) as u8).collect();
    from.now("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\"", "accept-ranges: bytes"], &body));
    let reply = ask(&a, "GET", "/a", "range: bytes=1000000-1000099").await;
    assert!(reply.status == 206 && reply.body == body[1_000_000..1_000_100], "{}", reply.status);
    for _ in 0..3 {
        assert!(a.get("/a").await.body == body);
    }
    assert!(b.get("/a").await.body == body);
    // On a busy machine an owner may be late, and then this node asks the origin, too.
    let late = usize::try_from(a.with("b").late + a.with("c").late).expect("few");
    assert!((1..=1 + late).contains(&from.count()), "the origin is asked {} times, {late} late", from.count());
    assert_eq!(a.puts(), (0, 0));
}

/// What no node can store does not go through two of them each time.
#[tokio::test]
async fn too_long_bodies_spare_owners() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-too-long"));
    let described = || one_site(&from, vec![route("/", "o")]);
    let nodes = [
        start_sized(&fleet, "a", described(), &files, SMALL_STORE).await,
        start_sized(&fleet, "b", described(), &files, SMALL_STORE).await,
        start_sized(&fleet, "c", described(), &files, SMALL_STORE).await,
    ];
    set_owners(&nodes);
    let [a, _b, _c] = &nodes;
    from.now("/a", OriginScript::fresh(&vec![7; LONG]));
    for _ in 0..4 {
        assert_eq!(a.get("/a").await.body.len(), LONG);
    }
    assert_eq!((a.with("b").asked.questions, from.count()), (2, 4), "it has learned that no node keeps it");
}

/// An answer of the owner takes the place of what a node has, and not of what the owner has.
#[tokio::test]
async fn newer_bodies_of_owners_stay() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("questions-newer"));
    let [a, b, _c] = with_small_store(&fleet, &from, &files).await;
    from.now("/a", OriginScript::fresh(b"short"));
    assert_eq!(a.get("/a").await.text(), "short");
    from.now("/a", OriginScript::fresh(&vec![7; LONG]));
    // The owner fetches what is too long for the store of the node that asks.
    assert_eq!(ask(&a, "GET", "/a", "cache-control: no-cache").await.body.len(), LONG);
    until("the long body at the owner", || b.puts().0 == 2).await;
    let count = from.count();
    assert_eq!(a.get("/a").await.body.len(), LONG);
    assert_eq!(from.count(), count, "the owner has not purged it");
}
