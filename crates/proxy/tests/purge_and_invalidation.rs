//! A purged response, or one that an unsafe request may have changed, is not served again.

use crate::common::*;

async fn ask(proxy: &TestProxy, lines: &[&str]) -> ClientReply {
    TestClient::connect(proxy.address).await.ask(lines).await
}

#[tokio::test]
async fn purge_removes_all_variants() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: accept"], b"hello"));
    origin.on("/b", OriginScript::fresh(b"other"));
    let proxy = TestProxy::forward().await;
    for accept in ["accept: x", "accept: y"] {
        get(proxy.address, &origin.url("/a"), &[accept]).await;
        assert!(get(proxy.address, &origin.url("/a"), &[accept]).await.is_hit());
    }
    get(proxy.address, &origin.url("/b"), &[]).await;
    let reply = ask(&proxy, &[&format!("PURGE {} HTTP/1.1", origin.url("/a")), AUTHORIZATION]).await;
    assert_eq!((reply.status, reply.text().trim()), (200, format!("purged {}", origin.url("/a")).as_str()));
    for accept in ["accept: x", "accept: y"] {
        assert!(!get(proxy.address, &origin.url("/a"), &[accept]).await.is_hit());
    }
    assert!(get(proxy.address, &origin.url("/b"), &[]).await.is_hit());
}

/// The answer can be JSON.
#[tokio::test]
async fn purge_accepts_path_with_host() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let host = format!("host: {}", origin.address);
    let reply = ask(&proxy, &["PURGE /a HTTP/1.1", &host, AUTHORIZATION, "accept: application/json"]).await;
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.text().trim(), format!("{{\"found\":true,\"purged\":\"{}\"}}", origin.url("/a")));
    assert!(!get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
    let reverse = TestProxy::reverse(origin.address).await;
    get(reverse.address, "/a", &[]).await;
    assert!(get(reverse.address, "/a", &[]).await.is_hit());
    assert_eq!(ask(&reverse, &["PURGE /a HTTP/1.1", AUTHORIZATION]).await.status, 200);
    assert!(!get(reverse.address, "/a", &[]).await.is_hit());
}

/// The answer says that nothing was found.
#[tokio::test]
async fn purge_of_absent_url_succeeds() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: accept"], b"hello"));
    let proxy = TestProxy::forward().await;
    let (url, line) = (origin.url("/a"), format!("PURGE {} HTTP/1.1", origin.url("/a")));
    let mut found = Vec::new();
    for is_stored in [false, true] {
        if is_stored {
            get(proxy.address, &url, &["accept: x"]).await;
            assert!(get(proxy.address, &url, &["accept: x"]).await.is_hit());
        }
        for json in [false, true] {
            let accept = if json { "accept: application/json" } else { "accept: */*" };
            let reply = ask(&proxy, &[&line, AUTHORIZATION, accept]).await;
            assert_eq!(reply.status, 200, "a purge that is repeated does not fail");
            found.push((reply.cache_status(), reply.text().trim().to_owned()));
        }
    }
    let json = format!("{{\"found\":false,\"purged\":\"{url}\"}}");
    let absent = |text: &String| ("nectary; detail=not-stored".to_owned(), text.clone());
    let texts = [format!("nothing is stored for {url}; a fetch that is under way stores nothing either"), json];
    let expected = [
        absent(&texts[0]),
        absent(&texts[1]),
        ("nectary; detail=purged".to_owned(), format!("purged {url}")),
        absent(&texts[1]),
    ];
    assert_eq!(found, expected);
}

/// A fetch that began before the purge stores nothing.
#[tokio::test]
async fn purge_outdates_running_fetch() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 3\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).wait("body").then(b"old")).on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    client.head().await;
    assert_eq!(ask(&proxy, &[&format!("PURGE {} HTTP/1.1", origin.url("/a")), AUTHORIZATION]).await.status, 200);
    origin.open("body");
    assert_eq!(client.take(3).await, b"old");
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "new");
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(reply.is_hit() && reply.text() == "new");
}

/// A successful unsafe request also invalidates its target.
#[tokio::test]
async fn unsafe_request_invalidates_named_urls() {
    let origin = TestOrigin::start().await;
    for path in ["/a", "/named", "/other"] {
        origin.on(path, OriginScript::fresh(b"x"));
    }
    let proxy = TestProxy::forward().await;
    for path in ["/a", "/named", "/other"] {
        get(proxy.address, &origin.url(path), &[]).await;
        assert!(get(proxy.address, &origin.url(path), &[]).await.is_hit());
    }
    let done = OriginScript::response("200 OK", &["content-location: /named", "cache-control: no-store"], b"done");
    origin.now("/a", done);
    let reply = ask(&proxy, &[&format!("POST {} HTTP/1.1", origin.url("/a")), "content-length: 0"]).await;
    assert_eq!(reply.text(), "done");
    assert!(!get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
    assert!(!get(proxy.address, &origin.url("/named"), &[]).await.is_hit());
    assert!(get(proxy.address, &origin.url("/other"), &[]).await.is_hit());
}

#[tokio::test]
async fn a_failed_unsafe_request_invalidates_nothing() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x")).on("/a", OriginScript::response("500 Oh", &[], b"no"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let reply = ask(&proxy, &[&format!("DELETE {} HTTP/1.1", origin.url("/a"))]).await;
    assert_eq!(reply.status, 500);
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
}
