//! What is not admitted to the store's disk is served all the same, and its responses say so.

use nectary_store::{AdmissionOptions, AdmitRule};

use crate::common::*;

const FIRST: &str = "nectary; fwd=uri-miss; fwd-status=200";

fn second_request() -> AdmissionOptions {
    AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() }
}

#[tokio::test]
async fn a_response_is_stored_for_good_when_it_is_asked_for_again() {
    let origin = Origin::start().await;
    let long = vec![7; 700_000];
    origin.on("/short", Script::fresh(b"hello"));
    origin.on("/long", Script::fresh(&long));
    let proxy = TestProxy::start_with(options(), second_request()).await;
    let short = get(proxy.address, &origin.url("/short"), &[]).await;
    assert_eq!((short.text().as_str(), short.cache_status().as_str()), ("hello", FIRST));
    assert!(get(proxy.address, &origin.url("/short"), &[]).await.is_hit(), "memory keeps it");
    // One that is too long for memory is fetched again, and then stored.
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
async fn clients_stream_from_one_fetch_that_is_not_admitted() {
    let origin = Origin::start().await;
    let body = vec![3; 400_000];
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncache-control: max-age=60\r\n\r\n", body.len());
    origin.on("/a", Script::raw(head.as_bytes()).wait("go").then(&body));
    let proxy = TestProxy::start_with(options(), second_request()).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for status in [FIRST, "nectary; fwd=uri-miss; collapsed", "nectary; fwd=uri-miss; collapsed"] {
        let mut client = Client::connect(proxy.address).await;
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
