//! Concurrent misses share one fetch, and all clients get its bytes while they arrive.

use crate::common::*;

#[tokio::test]
async fn concurrent_misses_share_one_fetch() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).then(b"first").wait("rest").then(b"later"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut leader = TestClient::connect(proxy.address).await;
    leader.send(request(&[&line]).as_bytes()).await;
    assert!(leader.head().await.cache_status().contains("stored"));
    let mut followers = Vec::new();
    for _ in 0..8 {
        let mut follower = TestClient::connect(proxy.address).await;
        follower.send(request(&[&line]).as_bytes()).await;
        followers.push(follower);
    }
    for follower in &mut followers {
        let head = follower.head().await;
        assert_eq!(head.cache_status(), "nectary; fwd=uri-miss; stored; collapsed");
        // The proxy sends the first bytes to clients before the rest has arrived.
        assert_eq!(follower.take(5).await, b"first");
    }
    assert_eq!(leader.take(5).await, b"first");
    origin.open("rest");
    for client in followers.iter_mut().chain([&mut leader]) {
        assert_eq!(client.take(5).await, b"later");
    }
    assert_eq!(origin.count(), 1);
    let hit = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(hit.is_hit() && hit.text() == "firstlater");
}

#[tokio::test]
async fn fetch_survives_first_client_leaving() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).then(b"first").wait("rest").then(b"later"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut leader = TestClient::connect(proxy.address).await;
    leader.send(request(&[&line]).as_bytes()).await;
    assert_eq!(leader.head().await.status, 200);
    let mut follower = TestClient::connect(proxy.address).await;
    follower.send(request(&[&line]).as_bytes()).await;
    assert_eq!(follower.head().await.status, 200);
    drop(leader);
    proxy.wait_for(|stats| stats.connections_open == 1).await;
    origin.open("rest");
    assert_eq!(follower.take(10).await, b"firstlater");
    assert_eq!(origin.count(), 1);
}

/// Each client has its own fetch, and none waits for another.
#[tokio::test]
async fn unstorable_misses_fetch_in_parallel() {
    let origin = TestOrigin::start().await;
    let response = b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 2\r\n\r\n";
    origin.on("/a", OriginScript::raw(b"").wait("answer").then(response).then(b"ok"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        clients.push(client);
    }
    origin.wait_for(1).await;
    origin.open("answer");
    for client in &mut clients {
        let reply = client.reply(false).await;
        assert_eq!(
            (reply.text().as_str(), reply.cache_status().as_str()),
            ("ok", "nectary; fwd=uri-miss; fwd-status=200")
        );
    }
    assert_eq!(origin.count(), 4);
    // The proxy now knows that the response cannot be stored, so no request waits for another: a fetch that hangs
    // delays only its own client.
    origin.now("/a", OriginScript::raw(b"").hang());
    let mut hanging = TestClient::connect(proxy.address).await;
    origin.on("/a", OriginScript::raw(response).then(b"ok"));
    hanging.send(request(&[&line]).as_bytes()).await;
    origin.wait_for(5).await;
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!(reply.text(), "ok");
}

#[tokio::test]
async fn newly_storable_resource_is_stored() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"1")).on("/a", OriginScript::fresh(b"2"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "1");
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "2");
    assert!(get(proxy.address, &url, &[]).await.cache_status().ends_with("stored"));
    assert!(get(proxy.address, &url, &[]).await.is_hit());
}

#[tokio::test]
async fn followers_learn_of_failed_fetch() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::raw(b"").wait("answer").close());
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        clients.push(client);
    }
    proxy.wait_for(|stats| stats.requests == 3).await;
    origin.wait_for(1).await;
    origin.open("answer");
    for client in &mut clients {
        let reply = client.reply(false).await;
        assert_eq!(reply.status, 502, "{reply:?}");
        assert!(reply.cache_status().starts_with("nectary; fwd=uri-miss"));
    }
}
