//! Where the configuration says so, clients must show a certificate: others get nothing but the reason, and a reload
//! changes whose certificates count.

use std::io;
use std::path::Path;
use std::sync::Arc;

use nectary_config::{CertificateConfig, ProxyConfig};
use nectary_proxy::{CertificateFiles, ProxyReopener};
use rustls::{AlertDescription, ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::certificates::TestCertificates;
use crate::common::http2::{Http2Client, tls_config, tls_config_with, tls_with};
use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

/// A site with TLS whose clients must show certificates by `client_ca`.
fn verified(from: &TestOrigin, own: &CertificateFiles, client_ca: &Path) -> ProxyConfig {
    let mut config = config(vec![site(&["site.test"], vec![route("/", "o")])], vec![origin("o", &[from.address])]);
    config.listeners[0].value.tls = Some(at(true));
    let (cert, key) = (at(own.certificate.clone()), at(own.key.clone()));
    config.tls.certificates = vec![at(CertificateConfig { cert, key })];
    config.tls.client_ca = Some(at(client_ca.to_owned()));
    config
}

/// Asks for `/a` on a new connection. *Returns*: how the handshake was done. *Errors*: the connection ends without an
/// answer.
async fn ask(proxy: &TestProxy, config: &Arc<ClientConfig>) -> io::Result<Option<HandshakeKind>> {
    let mut stream = tls_with(config.clone(), proxy.address, "site.test").await?;
    let lines = request(&["GET /a HTTP/1.1", "host: site.test", "connection: close"]);
    stream.write_all(lines.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Ok(stream.get_ref().1.handshake_kind())
}

/// What the proxy says of a handshake that it refused.
fn reason(result: io::Result<Option<HandshakeKind>>) -> AlertDescription {
    let error = result.expect_err("it is refused");
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(reason)) => *reason,
        _ => panic!("no reason: {error}"),
    }
}

async fn reopen(reopener: ProxyReopener) -> Vec<String> {
    let problems = tokio::task::spawn_blocking(move || reopener.reopen()).await.expect("joined");
    problems.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn clients_without_their_certificate_get_nothing() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let (files, foreign) = (TestCertificates::new("clients"), TestCertificates::new("clients-foreign"));
    let own = files.sign("site", &["site.test"]);
    let proxy = configured(verified(&from, &own, &files.ca())).await;
    let client = files.sign("client", &["client.test"]);
    let good = tls_config_with(&files.ca(), &[b"http/1.1"], Some(&client));
    for _ in 0..2 {
        // Each connection shows its certificate.
        assert_eq!(ask(&proxy, &good).await.expect("an answer"), Some(HandshakeKind::Full));
    }
    let newer = tls_config_with(&files.ca(), &[b"h2"], Some(&client));
    let stream = tls_with(newer, proxy.address, "site.test").await.expect("TLS");
    assert!(Http2Client::over(stream).await.ask("GET", "https://site.test/a", &[]).await.is_hit());
    let none = tls_config(&files.ca(), &[b"http/1.1"]);
    assert_eq!(reason(ask(&proxy, &none).await), AlertDescription::CertificateRequired);
    let other = foreign.sign("client", &["client.test"]);
    let other = tls_config_with(&files.ca(), &[b"http/1.1"], Some(&other));
    reason(ask(&proxy, &other).await);
    proxy.wait_for(|stats| stats.failed_handshakes == 2).await;
    let stats = proxy.stats();
    assert_eq!((stats.handshakes, stats.requests), (3, 3));
}

#[tokio::test]
async fn reload_changes_whose_certificates_count() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let (files, others) = (TestCertificates::new("signers"), TestCertificates::new("signers-others"));
    let own = files.sign("site", &["site.test"]);
    let authority = files.ca().with_file_name("clients.pem");
    std::fs::copy(files.ca(), &authority).expect("copied");
    let proxy = configured(verified(&from, &own, &authority)).await;
    let former = tls_config_with(&files.ca(), &[b"http/1.1"], Some(&files.sign("former", &["a.test"])));
    let new = tls_config_with(&files.ca(), &[b"http/1.1"], Some(&others.sign("new", &["a.test"])));
    ask(&proxy, &former).await.expect("an answer");
    reason(ask(&proxy, &new).await);
    std::fs::copy(others.ca(), &authority).expect("copied");
    assert_eq!(reopen(proxy.reopener()).await, Vec::<String>::new());
    reason(ask(&proxy, &former).await);
    ask(&proxy, &new).await.expect("an answer");
    // What is no certificate changes nothing.
    for bad in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&authority, bad).expect("written");
        let problems = reopen(proxy.reopener()).await;
        assert!(problems.len() == 1 && problems[0].contains("clients.pem"), "{problems:?}");
    }
    ask(&proxy, &new).await.expect("an answer");
    reason(ask(&proxy, &former).await);
}

/// A client that goes on with a session from before would need no certificate.
#[tokio::test]
async fn reload_enforces_new_client_ca() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let files = TestCertificates::new("later");
    let own = files.sign("site", &["site.test"]);
    let needed = verified(&from, &own, &files.ca());
    let mut open = needed.clone();
    open.tls.client_ca = None;
    let proxy = configured(open).await;
    let none = tls_config(&files.ca(), &[b"http/1.1"]);
    assert!(ask(&proxy, &none).await.is_ok());
    let needs_restart = proxy.reopener().reload(&Arc::new(needed)).expect("a good configuration");
    assert_eq!(needs_restart, Vec::<&str>::new());
    assert_eq!(reason(ask(&proxy, &none).await), AlertDescription::CertificateRequired);
}
