//! Proxies of a fleet that share keys: the owner of a key answers the others; and a node that is away, slow or behind costs
//! a miss and never an error.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nectary_host::fleet::FleetMembership;
use tokio::net::TcpListener;

use crate::common::certificates::TestCertificates;
use crate::common::http2::{Http2Client, tls_config, tls_config_with, tls_with};
use crate::common::sharing::*;
use crate::common::sites::{at, route};
use crate::common::*;

#[tokio::test]
async fn owner_answers_other_nodes() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares"));
    from.on("/a", OriginScript::ok(&["cache-control: max-age=60", "surrogate-key: t"], b"one"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    let reply = a.get("/a").await;
    let said = "nectary; fwd=uri-miss; fwd-status=200; stored; fleet=\"b\", nectary; fwd=uri-miss; fwd-status=200";
    assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("one", said));
    assert!(is_own_hit(&a.get("/a").await) && is_own_hit(&b.get("/a").await));
    let reply = c.get("/a").await;
    assert!(reply.cache_status().starts_with("nectary; hit; ttl="), "{}", reply.cache_status());
    assert_eq!(from.count(), 1, "the origin is asked once");
    assert_eq!((a.puts(), b.puts(), c.puts()), ((1, 1), (1, 0), (1, 1)), "copies are in memory alone");
}

#[tokio::test]
async fn cold_objects_are_fetched_once() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-cold"));
    from.on("/a", OriginScript::fresh(b"one"));
    let nodes = three(&fleet, &from, &files).await;
    let (a, b, c) = tokio::join!(nodes[0].get("/a"), nodes[1].get("/a"), nodes[2].get("/a"));
    assert_eq!([a, b, c].map(|reply| reply.text()), ["one", "one", "one"]);
    assert_eq!(from.count(), 1);
}

/// However long the origin needs: an owner that lives is waited for.
#[tokio::test]
async fn slow_origins_are_asked_once() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-slow"));
    from.now("/a", OriginScript::default().wait("go").then(&OriginScript::fresh(b"one").bytes()));
    let nodes = three(&fleet, &from, &files).await;
    let [a, b, c] = &nodes;
    let (one, two, three, ()) = tokio::join!(a.get("/a"), b.get("/a"), c.get("/a"), async {
        // Each asks, and looks twice whether the owner lives.
        until("signs of life", || ["a", "c"].iter().all(|name| b.with(name).answered.questions >= 3)).await;
        from.open("go");
    });
    assert_eq!([one, two, three].map(|reply| reply.text()), ["one", "one", "one"]);
    assert_eq!((a.with("b").late, c.with("b").late, from.count()), (1, 1, 1));
    assert_eq!((a.with("c").asked.questions, a.with("c").asked.misses), (1, 1), "its store is asked once");
}

#[tokio::test]
async fn lagging_or_cut_nodes_stay_silent() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-behind"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    c.member.cut();
    a.member.gate().set_applied(5);
    from.on("/a", OriginScript::fresh(b"origin"));
    let reply = a.get("/a").await;
    let said = "nectary; fwd=uri-miss; fwd-status=200";
    assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("origin", said), "b is behind, c is cut");
    assert_eq!((b.puts(), c.puts()), ((0, 0), (0, 0)));
    b.member.gate().set_applied(5);
    from.on("/b", OriginScript::fresh(b"b"));
    assert!(a.get("/b").await.cache_status().contains("fleet=\"b\""), "it has caught up");
    c.member.gate().set_applied(5);
    a.member.set_owners(&[("c", c.peer()), ("a", a.peer())]);
    from.on("/c", OriginScript::fresh(b"c"));
    assert_eq!((a.get("/c").await.cache_status().as_str(), c.puts()), (said, (0, 0)), "it has all, and is cut");
}

#[tokio::test]
async fn dead_and_silent_owners_cost_misses() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-dead"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_address = silent.local_addr().expect("an address");
    for (number, (first, second)) in
        [(gone, c.peer()), (silent_address, c.peer()), (gone, gone), (silent_address, gone)].into_iter().enumerate()
    {
        a.member.set_owners(&[("b", first), ("c", second), ("a", a.peer())]);
        let path = format!("/{number}");
        from.on(&path, OriginScript::fresh(b"x"));
        let begun = Instant::now();
        let reply = a.get(&path).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "x"), "{number}");
        assert_eq!(reply.cache_status().contains("fleet=\"c\""), number < 2, "{}", reply.cache_status());
        assert!(begun.elapsed() < Duration::from_secs(10), "{number}: {:?}", begun.elapsed());
        assert!(is_own_hit(&a.get(&path).await), "{number}");
    }
    drop((silent, b));
}

/// What nodes say to each other counts at their own listener alone, which takes certificates of the fleet.
#[tokio::test]
async fn headers_of_nodes_need_certificates() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-trust"));
    from.on("/a", OriginScript::fresh(b"x"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    let spoofed = ["nectary-fleet-hop: 1", "nectary-fleet-from: b", "nectary-fleet-client: 192.0.2.1", HOST];
    let reply = get(a.proxy.address, "/a", &spoofed).await;
    assert!(reply.cache_status().contains("fleet=\"b\""), "the owner answers nevertheless: {}", reply.cache_status());
    assert!(!reply.headers.iter().any(|(name, _)| name.starts_with("nectary-fleet")), "{:?}", reply.headers);
    let got = from.got();
    assert!(
        got.len() == 1
            && spoofed[..3].iter().all(|line| got[0].header(line.split(':').next().unwrap_or("")).is_empty())
    );
    let none = tls_config(&files.ca(), &[b"http/1.1"]);
    let others = TestCertificates::new("shares-foreign");
    let foreign = others.sign("x", &["localhost"]);
    let other = tls_config_with(&files.ca(), &[b"http/1.1"], Some(&foreign));
    for config in [none, other] {
        let refused = async {
            let mut stream = tls_with(config.clone(), b.peer(), "localhost").await?;
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /a HTTP/1.1\r\nhost: site.test\r\n\r\n").await?;
            tokio::io::AsyncReadExt::read_u8(&mut stream).await
        };
        assert!(refused.await.is_err(), "it has no certificate of the fleet");
    }
    let own = tls_config_with(&files.ca(), &[b"h2"], Some(&files.sign("own", &["localhost"])));
    let stream = tls_with(own, b.peer(), "localhost").await.expect("TLS");
    let reply = Http2Client::over(stream).await.ask("GET", "https://site.test/a", &[]).await;
    assert_eq!(reply.status, 400, "it says nothing of the fleet");
}

/// An origin that is away or silent does not take the nodes away that have what others ask for.
#[tokio::test]
async fn failing_origins_leave_owners_in() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-failing"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    for path in ["/one", "/two"] {
        from.now(path, OriginScript::fresh(b"kept"));
        b.get(path).await;
        from.now(path, OriginScript::raw(b"").close());
    }
    from.now("/dead", OriginScript::raw(b"").close());
    for _ in 0..4 {
        assert_eq!(a.get("/dead").await.status, 502);
    }
    let count = from.count();
    let reply = a.get("/one").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "kept"), "{}", reply.cache_status());
    assert_eq!(from.count(), count, "the owner is asked first");
    let mut clients = Vec::new();
    for number in 0..4 {
        let path = format!("/silent/{number}");
        from.now(&path, OriginScript::default().hang());
        let mut client = TestClient::connect(a.proxy.address).await;
        client.send(format!("GET {path} HTTP/1.1\r\n{HOST}\r\n\r\n").as_bytes()).await;
        clients.push(client);
    }
    from.wait_for(count + clients.len()).await;
    until("late answers", || a.with("b").late >= 4).await;
    let reply = a.get("/two").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "kept"), "{}", reply.cache_status());
}

/// By other rules the same URL may have another key.
#[tokio::test]
async fn nodes_of_other_rules_do_not_answer() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-rules"));
    let other = one_site(&from, vec![route("/more/", "o"), route("/", "o")]);
    let nodes = [
        start_with(&fleet, "a", other, &files).await,
        start(&fleet, "b", &from, &files).await,
        start(&fleet, "c", &from, &files).await,
    ];
    set_owners(&nodes);
    from.on("/a", OriginScript::fresh(b"x"));
    let reply = nodes[0].get("/a").await;
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=200");
    assert_eq!((nodes[1].puts(), nodes[2].puts()), ((0, 0), (0, 0)));
}

/// Those who wait for an answer that is not kept ask the owner, and not the origin.
#[tokio::test]
async fn waiting_requests_ask_the_owner() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-waiting"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    a.member.gate().set_begun(5);
    from.now("/a", OriginScript::default().wait("go").then(&OriginScript::fresh(b"one").bytes()));
    let opened = async {
        a.proxy.wait_for(|stats| stats.requests >= 3).await;
        from.open("go");
    };
    let (one, two, three, ()) = tokio::join!(a.get("/a"), a.get("/a"), a.get("/a"), opened);
    for reply in [one, two, three] {
        assert_eq!(reply.text(), "one");
        assert!(reply.cache_status().contains("fleet="), "{}", reply.cache_status());
    }
}

/// Origins are told of the client, and not of the node that asks the owner.
#[tokio::test]
async fn owners_tell_origins_of_clients() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-client"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    from.on("/a", OriginScript::fresh(b"x"));
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).expect("an address");
    let mut client = TestClient::of(socket.connect(a.proxy.address).await.expect("connected"));
    let reply = client.ask(&["GET /a HTTP/1.1", HOST, "x-forwarded-for: 192.0.2.1"]).await;
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
    let got = &from.got()[0];
    assert_eq!(got.header("x-forwarded-for"), "127.0.0.2");
    assert_eq!((got.header("x-forwarded-proto").as_str(), got.header("host").is_empty()), ("http", false));
}

#[tokio::test]
async fn nodes_of_other_fleets_do_not_answer() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-identity"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    from.on("/a", OriginScript::fresh(b"x"));
    a.member.gate().set_fleet(9);
    assert_eq!(a.get("/a").await.cache_status(), "nectary; fwd=uri-miss; fwd-status=200");
    assert_eq!((b.puts(), c.puts()), ((0, 0), (0, 0)));
}

/// A node whose answers are late is slow, and not away: its share stays with it.
#[tokio::test]
async fn late_answers_of_nodes_are_counted() {
    let (from, fleet, files) = (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-late"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    for gate in ["one", "two", "three"] {
        let (path, late) = (format!("/{gate}"), a.with("b").late);
        from.now(&path, OriginScript::default().wait(gate).then(&OriginScript::fresh(b"x").bytes()));
        let (reply, ()) = tokio::join!(a.get(&path), async {
            until("a late answer", || a.with("b").late > late).await;
            from.open(gate);
        });
        assert!(reply.cache_status().contains("fleet=\"b\""), "{gate}: {}", reply.cache_status());
    }
    from.on("/four", OriginScript::fresh(b"x"));
    let reply = a.get("/four").await;
    assert!(reply.cache_status().contains("fleet=\"b\""), "{}", reply.cache_status());
}

/// A copy without tags could not be purged by them.
#[tokio::test]
async fn routes_that_hide_tags_ask_nobody() {
    let (from, fleet, files) =
        (TestOrigin::start().await, ModelFleet::default(), TestCertificates::new("shares-hidden"));
    let described = || {
        let mut hidden = route("/", "o");
        hidden.rules.strip_tags = Some(at(true));
        one_site(&from, vec![hidden])
    };
    let nodes = [
        start_with(&fleet, "a", described(), &files).await,
        start_with(&fleet, "b", described(), &files).await,
        start_with(&fleet, "c", described(), &files).await,
    ];
    set_owners(&nodes);
    from.on("/a", OriginScript::ok(&["cache-control: max-age=60", "surrogate-key: t"], b"x"));
    assert_eq!(nodes[0].get("/a").await.header("surrogate-key"), "");
    assert_eq!((nodes[1].with("a"), nodes[0].puts()), (Default::default(), (1, 0)));
}
