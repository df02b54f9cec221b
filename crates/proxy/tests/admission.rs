//! A response that is not admitted to the store's disk is served anyway, and `NameCache-Status` does not say `stored`.

use nectary_store::{AdmissionOptions, AdmitRule, FillRole, KeyRef};

use crate::common::*;

const FIRST: &str = "nectary; fwd=uri-miss; fwd-status=200";

fn second_request() -> AdmissionOptions {
    AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() }
}

#[tokio::test]
async fn second_request_admits_response() {
    let origin = TestOrigin::start().await;
    let long = vec![7; 700_000];
    origin.on("/short", OriginScript::fresh(b"hello"));
    origin.on("/long", OriginScript::fresh(&long));
    let proxy = TestProxy::start_with(options(), second_request()).await;
    let short = get(proxy.address, &origin.url("/short"), &[]).await;
    assert_eq!((short.text().as_str(), short.cache_status().as_str()), ("hello", FIRST));
    assert!(get(proxy.address, &origin.url("/short"), &[]).await.is_hit(), "memory keeps it");
    // A response that is too long for the memory cache is fetched a second time, and is then stored on the disk.
    for stored in [FIRST.to_owned(), format!("{FIRST}; stored")] {
        let response = get(proxy.address, &origin.url("/long"), &[]).await;
        assert!(response.body == long);
        assert_eq!(response.cache_status(), stored);
    }
    let again = get(proxy.address, &origin.url("/long"), &[]).await;
    assert!(again.is_hit() && again.body == long);
    assert_eq!(origin.count(), 3);
    let counts = proxy.store.stat().counts;
    assert_eq!((counts.unadmitted_first, counts.admitted, counts.admitted_later), (2, 2, 1));
    assert_eq!(proxy.stats().failed_fills, 0);
}

#[tokio::test]
async fn unadmitted_fetch_streams_to_clients() {
    let origin = TestOrigin::start().await;
    let body = vec![3; 400_000];
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncache-control: max-age=60\r\n\r\n", body.len());
    origin.on("/a", OriginScript::raw(head.as_bytes()).wait("go").then(&body));
    let proxy = TestProxy::start_with(options(), second_request()).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for status in [FIRST, "nectary; fwd=uri-miss; collapsed", "nectary; fwd=uri-miss; collapsed"] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        assert_eq!(client.head().await.cache_status(), status);
        clients.push(client);
    }
    origin.open("go");
    for client in &mut clients {
        assert!(client.take(body.len()).await == body);
    }
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn too_long_response_is_reported() {
    let folder = std::env::temp_dir().join(format!("nectary-proxy-large-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("access.log");
    let _ = std::fs::remove_file(&path);
    let origin = TestOrigin::start().await;
    let mut options = options();
    options.access_log = nectary_proxy::AccessLog::File(path.clone());
    let mut proxy = TestProxy::start(options).await;
    let FillRole::Leader(fill) = proxy.store.begin_fill(KeyRef::new(b"any", b""), None) else {
        panic!("nobody else fills")
    };
    let most = fill.object_bytes_max();
    drop(fill);
    for (name, bytes, status) in [
        ("/most", most, "nectary; fwd=uri-miss; fwd-status=200; stored"),
        ("/more", most + 1, "nectary; fwd=uri-miss; fwd-status=200; detail=too-large"),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: {bytes}\r\n\r\n");
        origin.on(name, OriginScript::raw(head.as_bytes()).hang());
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&format!("GET {} HTTP/1.1", origin.url(name))]).as_bytes()).await;
        assert_eq!(client.head().await.cache_status(), status);
    }
    proxy.wait_for(|stats| stats.too_large == 1 && stats.passed == 1).await;
    proxy.shutdown.request();
    drop(origin);
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    let line = text.lines().find(|line| line.contains("/more")).expect("a line");
    assert!(line.contains(" TOO-LARGE ") && line.ends_with(&format!(" {}", most + 1)), "{line}");
    std::fs::remove_dir_all(&folder).expect("removed");
}
