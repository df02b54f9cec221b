//! Tests of purges over HTTP: by default nobody may purge, not even a client on the same machine.

use nectary_proxy::{AdminOptions, ProxyOptions};

use crate::common::*;

/// Starts a proxy and lets it store the path `/a` of an origin.
async fn holding(origin: &Origin, admin: AdminOptions) -> TestProxy {
    origin.on("/a", Script::fresh(b"x"));
    let proxy = TestProxy::start(ProxyOptions { admin, ..options() }).await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    proxy
}

/// Options with a listener for administration and without a token.
fn listener() -> AdminOptions {
    AdminOptions { listen: vec!["127.0.0.1:0".parse().expect("an address")], ..AdminOptions::default() }
}

async fn purge(to: std::net::SocketAddr, origin: &Origin, headers: &[&str]) -> Reply {
    let line = format!("PURGE {} HTTP/1.1", origin.url("/a"));
    let reply = Client::connect(to).await.ask(&[&[line.as_str()], headers].concat()).await;
    assert_eq!(reply.header("connection") == "close", reply.status != 200, "a refusal ends the connection");
    reply
}

async fn is_hit(proxy: &TestProxy, origin: &Origin) -> bool {
    get(proxy.address, &origin.url("/a"), &[]).await.is_hit()
}

#[tokio::test]
async fn nobody_purges_over_http_by_default_and_the_answer_says_what_to_do() {
    let origin = Origin::start().await;
    let proxy = holding(&origin, AdminOptions::default()).await;
    for headers in [&[][..], &["x-forwarded-for: 192.0.2.1"], &[AUTHORIZATION], &["surrogate-key: a"]] {
        let reply = purge(proxy.address, &origin, headers).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (405, "nectary; detail=purge-off"));
        assert!(reply.text().contains("--admin-listen") && reply.text().contains("--admin-token-file"));
        assert!(reply.header("allow").contains("GET") && !reply.header("allow").contains("PURGE"));
    }
    assert!(is_hit(&proxy, &origin).await);
    assert_eq!((proxy.stats().purges, proxy.stats().purges_refused), (0, 4));
}

#[tokio::test]
async fn a_purge_that_another_proxy_relays_is_refused_unless_the_operator_allows_it() {
    let origin = Origin::start().await;
    let relays = [
        "forwarded: for=192.0.2.1",
        "x-forwarded-for: 192.0.2.1",
        "x-forwarded-proto: https",
        "x-forwarded-host: h",
        "x-real-ip: 192.0.2.1",
        "via: 1.1 terminator",
        "via:",
    ];
    let refusing = holding(&origin, AdminOptions { token: Some(token()), ..listener() }).await;
    for relay in relays {
        for address in [refusing.address, refusing.admin_address.expect("one")] {
            let reply = purge(address, &origin, &[AUTHORIZATION, relay]).await;
            assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=purge-relayed"));
            assert!(reply.text().contains(relay.split(':').next().expect("a name")), "{}", reply.text());
            assert!(reply.text().contains("--admin-relayed"));
        }
    }
    assert!(is_hit(&refusing, &origin).await);
    let allowing = holding(&origin, AdminOptions { token: Some(token()), relayed: true, ..listener() }).await;
    for relay in relays {
        assert_eq!(purge(allowing.address, &origin, &[relay]).await.status, 401, "the token is needed all the same");
        assert_eq!(purge(allowing.address, &origin, &[AUTHORIZATION, relay]).await.status, 200, "{relay}");
        assert!(!is_hit(&allowing, &origin).await && is_hit(&allowing, &origin).await);
    }
}

#[tokio::test]
async fn a_token_purges_on_every_address_and_nothing_else_does() {
    let origin = Origin::start().await;
    let proxy = holding(&origin, AdminOptions { token: Some(token()), ..listener() }).await;
    let addresses = [proxy.address, proxy.admin_address.expect("one")];
    for headers in [
        &[][..],
        &["authorization: Bearer a-token-for-testt"],
        &["authorization: Bearer a-token-for-test"],
        &["authorization: Basic a-token-for-tests"],
        &[AUTHORIZATION, AUTHORIZATION],
        &["proxy-authorization: Bearer a-token-for-tests"],
    ] {
        for address in addresses {
            let reply = purge(address, &origin, headers).await;
            assert_eq!((reply.status, reply.header("www-authenticate").as_str()), (401, "Bearer realm=\"nectary\""));
            assert!(!reply.text().contains("a-token"), "{}", reply.text());
        }
    }
    assert!(is_hit(&proxy, &origin).await);
    for address in addresses {
        assert_eq!(purge(address, &origin, &[AUTHORIZATION]).await.status, 200);
        assert!(!is_hit(&proxy, &origin).await && is_hit(&proxy, &origin).await);
    }
    assert!(origin.got().iter().all(|got| got.header("authorization").is_empty()));
}

#[tokio::test]
async fn an_address_for_administration_serves_purges_alone() {
    let origin = Origin::start().await;
    let proxy = holding(&origin, listener()).await;
    let admin = proxy.admin_address.expect("one");
    let own = origin.url("/a");
    for line in ["GET", "HEAD", "POST", "OPTIONS"].map(|method| format!("{method} {own} HTTP/1.1")) {
        let reply = Client::connect(admin).await.ask(&[&line]).await;
        assert_eq!((reply.status, reply.header("allow").as_str()), (405, "PURGE"), "{line}");
    }
    let reply = Client::connect(admin).await.ask(&[&format!("CONNECT {} HTTP/1.1", origin.address)]).await;
    assert_eq!(reply.status, 405);
    assert_eq!((origin.count(), purge(proxy.address, &origin, &[]).await.status), (1, 405));
    assert_eq!(purge(admin, &origin, &[]).await.status, 200, "without a token, as none was given");
    assert!(!is_hit(&proxy, &origin).await);
    let reverse = TestProxy::start(ProxyOptions {
        origin: Some(format!("http://{}", origin.address).parse().expect("an origin")),
        admin: listener(),
        ..options()
    })
    .await;
    get(reverse.address, "/a", &[]).await;
    let admin = reverse.admin_address.expect("one");
    assert_eq!(get(admin, "/a", &[]).await.status, 405, "not even what is in memory");
    assert!(get(reverse.address, "/a", &[]).await.is_hit());
    assert_eq!(Client::connect(admin).await.ask(&["PURGE /a HTTP/1.1"]).await.status, 200);
    assert!(!get(reverse.address, "/a", &[]).await.is_hit());
}
