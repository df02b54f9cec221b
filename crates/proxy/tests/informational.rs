//! `1xx` responses of an origin are passed to the waiting client, are limited in number, and are never the final
//! answer.

use nectary_proxy::ProxyOptions;

use crate::common::*;

const HINT: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\nconnection: y\r\ny: z\r\n\r\n";
const FRESH: &[u8] = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 2\r\n\r\nok";

/// Reads the informational responses and the final one.
async fn replies(client: &mut TestClient) -> (Vec<ClientReply>, ClientReply) {
    let mut early = Vec::new();
    loop {
        let head = client.head().await;
        if head.status >= 200 {
            let body = client.take(head.header("content-length").parse().expect("a length")).await;
            return (early, ClientReply { body, ..head });
        }
        early.push(head);
    }
}

async fn ask(proxy: &TestProxy, lines: &[&str]) -> (Vec<ClientReply>, ClientReply) {
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(lines).as_bytes()).await;
    replies(&mut client).await
}

/// Informational responses are passed on and are not mistaken for the answer.
#[tokio::test]
async fn informational_responses_precede_answer() {
    let origin = TestOrigin::start().await;
    let processing = b"HTTP/1.1 102 Processing\r\n\r\n";
    let script =
        OriginScript::raw(HINT).wait("seen").then(processing).then(b"HTTP/1.1 100 Continue\r\n\r\n").then(FRESH);
    for path in ["/stored", "/posted"] {
        origin.on(path, script.clone());
    }
    let proxy = TestProxy::forward().await;
    for line in [format!("GET {} HTTP/1.1", origin.url("/stored")), format!("POST {} HTTP/1.1", origin.url("/posted"))]
    {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line, "content-length: 0"]).as_bytes()).await;
        // The `103` arrives while the origin is still working, without the hop-by-hop headers of the origin's
        // connection.
        let hint = client.head().await;
        assert_eq!((hint.status, hint.header("link").as_str(), hint.header("y").as_str()), (103, "</x>", ""));
        assert!(hint.header("via").contains("nectary") && hint.header("connection").is_empty());
        origin.open("seen");
        let (early, reply) = replies(&mut client).await;
        assert_eq!(early.iter().map(|reply| reply.status).collect::<Vec<_>>(), [102, 100]);
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"));
        // The connection stays open, and only the final response is stored.
        client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/stored"))]).as_bytes()).await;
        let (early, reply) = replies(&mut client).await;
        assert!(early.is_empty() && reply.is_hit() && reply.text() == "ok", "{reply:?}");
    }
    assert_eq!(proxy.stats().informational, 6);
}

/// Followers of a fetch and clients of HTTP/1.0 get the final answer alone.
#[tokio::test]
async fn followers_get_no_informational_responses() {
    let origin = TestOrigin::start().await;
    origin.on("/old", OriginScript::raw(HINT).then(FRESH));
    origin.on("/joined", OriginScript::raw(HINT).wait("joined").then(HINT).then(FRESH));
    let proxy = TestProxy::forward().await;
    let (early, reply) = ask(&proxy, &[&format!("GET {} HTTP/1.0", origin.url("/old"))]).await;
    assert!(early.is_empty() && reply.text() == "ok");
    let line = format!("GET {} HTTP/1.1", origin.url("/joined"));
    let (mut first, mut second) = (TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await);
    first.send(request(&[&line]).as_bytes()).await;
    assert_eq!(first.head().await.status, 103);
    second.send(request(&[&line]).as_bytes()).await;
    proxy.wait_for(|stats| stats.requests == 3).await;
    origin.open("joined");
    let (early, reply) = replies(&mut first).await;
    assert_eq!((early.len(), reply.text().as_str()), (1, "ok"));
    let (early, reply) = replies(&mut second).await;
    assert_eq!((early.len(), reply.text().as_str()), (0, "ok"));
    assert_eq!(origin.count(), 2);
}

/// The request is not repeated.
#[tokio::test]
async fn informational_limit_excess_is_502() {
    for (count, status) in [(16, 200), (17, 502)] {
        let origin = TestOrigin::start().await;
        origin.on("/kept", OriginScript::ok(&["cache-control: no-store"], b"x"));
        origin.on("/a", OriginScript::raw(&[HINT.repeat(count), FRESH.to_vec()].concat()));
        let proxy = TestProxy::forward().await;
        // The next request uses this kept connection. A request that gets no answer on a kept connection would be
        // repeated.
        get(proxy.address, &origin.url("/kept"), &[]).await;
        let (early, reply) = ask(&proxy, &[&format!("GET {} HTTP/1.1", origin.url("/a"))]).await;
        assert_eq!((early.len(), reply.status), (16, status), "{}", reply.text());
        assert_eq!(origin.count(), 2, "{count}");
        assert_eq!(proxy.stats().informational, 16);
    }
}

#[tokio::test]
async fn informational_flood_ends_quickly() {
    let origin = TestOrigin::start().await;
    origin.on("/flood", OriginScript::raw(b"").endless(&HINT.repeat(1000)));
    origin.on("/a", OriginScript::fresh(b"x"));
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let proxy = TestProxy::start(ProxyOptions { origin: url, ..options() }).await;
    get(proxy.address, "/a", &[]).await;
    let mut flooded = TestClient::connect(proxy.address).await;
    flooded.send(request(&["GET /flood HTTP/1.1"]).as_bytes()).await;
    assert!(get(proxy.address, "/a", &[]).await.is_hit());
    let (_, reply) = replies(&mut flooded).await;
    assert_eq!((reply.status, reply.text().contains("too many informational")), (502, true), "{}", reply.text());
    // The proxy reads no more from the origin.
    origin.wait_for_ends(1).await;
    assert_eq!((origin.count(), proxy.stats().origin_failures), (2, 1));
}

/// What is announced to a pipelining client is never in the middle of an answer.
#[tokio::test]
async fn announcement_spares_pipelined_answers() {
    let origin = TestOrigin::start().await;
    origin.on("/large", OriginScript::fresh(&vec![b'l'; 8 << 20]));
    origin.on("/a", OriginScript::raw(HINT).then(FRESH));
    let proxy = TestProxy::forward().await;
    let lines = ["/large", "/a", "/large", "/a"].map(|path| request(&[&format!("GET {} HTTP/1.1", origin.url(path))]));
    let mut client = TestClient::connect(proxy.address).await;
    client.send(lines.concat().as_bytes()).await;
    for expected in [8 << 20, 2, 8 << 20, 2] {
        let (_, reply) = replies(&mut client).await;
        assert_eq!((reply.status, reply.body.len()), (200, expected));
    }
}
