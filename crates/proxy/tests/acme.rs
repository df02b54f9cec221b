//! Certificates that the proxy orders: issued, renewed and kept, while clients are served and whatever fails.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nectary_config::{
    AcmeChallenge, AcmeConfig, CertificateConfig, ListenAddress, ListenerConfig, ProxyConfig, RequestRate,
};
use nectary_proxy::{AcmeName, AcmeOptions, ProxyOptions, RetryRule, TlsRules};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::authority::{DAY_S, certificate_in, shown};
use crate::common::http2::tls;
use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

pub(crate) const HTTP: &[u8] = b"http/1.1";

/// Options of a proxy that orders certificates for these names, and tries again soon.
pub(crate) fn ordering(authority: &AcmeServer, from: &TestOrigin, names: &[&str]) -> ProxyOptions {
    let acme = AcmeOptions {
        directory: authority.directory(),
        contact: vec!["admin@a.test".to_owned()],
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        state: authority.state(),
        ca: Some(authority.ca()),
        retry: RetryRule { first: Duration::from_millis(30), longest: Duration::from_millis(100) },
        ..AcmeOptions::default()
    };
    ProxyOptions {
        origin: Some(format!("http://{}", from.address).parse().expect("an origin")),
        redirect: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        acme: Some(acme),
        ..options()
    }
}

/// The state of the only name.
pub(crate) fn only(proxy: &TestProxy) -> AcmeName {
    proxy.reader().ordered_names().remove(0)
}

/// Waits until a condition is met; the test's own time limit ends the wait.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a client that trusts the authority is served under a name.
pub(crate) async fn wait_for_tls(proxy: &TestProxy, name: &str, authority: &AcmeServer) {
    while tls(proxy.address, name, &authority.ca(), &[HTTP]).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn issued_certificate_is_served_without_restart() {
    let (authority, from) = (AcmeServer::start("issued").await, TestOrigin::start().await);
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    // Nothing is checked yet, so there is only the placeholder.
    until(|| authority.book().orders.len() == 1).await;
    assert!(tls(proxy.address, "a.test", &authority.ca(), &[HTTP]).await.is_err());
    let (placeholder, _) = shown(proxy.address, "a.test", HTTP).await.expect("a handshake");
    assert_eq!(proxy.reader().certificates(), []);
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    until(|| authority.file_of("a.test").exists()).await;
    let (issued, _) = shown(proxy.address, "a.test", HTTP).await.expect("a handshake");
    assert!(issued != placeholder && issued == certificate_in(&authority.file_of("a.test")));
    until(|| only(&proxy).not_after_s.is_some()).await;
    let found = &proxy.reader().certificates()[0];
    assert!(found.is_ordered && found.names == ["a.test"] && found.days_left() >= 89, "{found:?}");
    assert_eq!(found.path, authority.file_of("a.test"));
    assert_eq!((only(&proxy).failure, only(&proxy).not_written), (None, None));
    assert_eq!(authority.counts(), (1, 1));
    // Clients without a name get the first certificate.
    assert_eq!(shown(proxy.address, "127.0.0.1", HTTP).await.expect("a handshake").0, issued);
}

#[tokio::test]
async fn only_tokens_under_way_are_answered() {
    let (authority, from) = (AcmeServer::start("tokens").await, TestOrigin::start().await);
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    let door = proxy.redirect_address.expect("an address");
    let ask = |token: &str| {
        let path = format!("/.well-known/acme-challenge/{token}");
        async move { get(door, &path, &["host: a.test"]).await }
    };
    while ask("token-0").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reply = ask("token-0").await;
    assert!(reply.text().starts_with("token-0."), "{reply:?}");
    assert_eq!(
        (reply.header("cache-control"), reply.header("content-type")),
        ("no-store".into(), "application/octet-stream".into())
    );
    assert_eq!((ask("token-1").await.status, ask("").await.status), (308, 308));
    authority.book().check_at = Some(door);
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert_eq!(ask("token-0").await.status, 308, "the check is over");
}

#[tokio::test]
async fn check_is_answered_without_a_token() {
    let (authority, from) = (AcmeServer::start("limited").await, TestOrigin::start().await);
    let mut options = ordering(&authority, &from, &["a.test"]);
    options.limits.by_network.requests = Some(RequestRate { count: 1, period: Duration::from_secs(60) });
    let proxy = TestProxy::start(options).await;
    let door = proxy.redirect_address.expect("an address");
    until(|| authority.book().orders.len() == 1).await;
    for status in [308, 429] {
        assert_eq!(get(door, "/x", &["host: a.test"]).await.status, status);
    }
    // The authority is in the same network.
    authority.book().check_at = Some(door);
    until(|| authority.book().orders[0].status != "pending").await;
    assert_eq!(authority.book().orders[0].problem, None);
    assert_eq!(get(door, "/x", &["host: a.test"]).await.status, 429);
}

#[tokio::test]
async fn names_without_certificate_can_be_refused() {
    let (authority, from) = (AcmeServer::start("refused-name").await, TestOrigin::start().await);
    let rules = TlsRules { refuses_unknown: true, ..TlsRules::default() };
    let proxy = TestProxy::start(ProxyOptions { tls: rules, ..ordering(&authority, &from, &["a.test"]) }).await;
    until(|| authority.book().orders.len() == 1).await;
    assert!(shown(proxy.address, "a.test", HTTP).await.is_err());
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert!(shown(proxy.address, "b.test", HTTP).await.is_err());
}

#[tokio::test]
async fn refused_order_is_shown_and_retried() {
    let (authority, from) = (AcmeServer::start("refused").await, TestOrigin::start().await);
    authority.book().refuses = Some("rejectedIdentifier");
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    until(|| only(&proxy).failure.is_some_and(|failure| failure.count >= 2)).await;
    let failure = only(&proxy).failure.expect("a failure");
    assert!(failure.what.contains("not for you") && failure.remedy.contains("`names`"), "{failure:?}");
    authority.book().check_at = proxy.redirect_address;
    authority.book().refuses = None;
    wait_for_tls(&proxy, "a.test", &authority).await;
    until(|| only(&proxy).failure.is_none()).await;
    assert_eq!(authority.book().accounts, 1, "the account is used again");
}

/// The pause is about the look at another name. With it, the order would be tried again after hours.
#[tokio::test]
async fn lookup_pause_delays_no_order() {
    let (authority, from) = (AcmeServer::start("look-pause").await, TestOrigin::start().await);
    authority.put("b.test", (-DAY_S, 89 * DAY_S));
    {
        let mut book = authority.book();
        (book.look_pause_s, book.refuses) = (Some(40_000), Some("rejectedIdentifier"));
    }
    let proxy = TestProxy::start(ordering(&authority, &from, &["b.test", "a.test"])).await;
    until(|| authority.book().looks >= 1).await;
    let failures = || {
        let found = proxy.reader().ordered_names().into_iter().find(|found| found.name == "a.test");
        found.and_then(|found| found.failure).map_or(0, |failure| failure.count)
    };
    until(|| failures() >= 3).await;
}

/// The client library panics on such a pause.
#[tokio::test]
async fn endless_pause_stops_no_orders() {
    let (authority, from) = (AcmeServer::start("endless-pause").await, TestOrigin::start().await);
    authority.put("b.test", (-DAY_S, 89 * DAY_S));
    authority.book().look_pause_s = Some(u64::MAX);
    authority.book().refuses = Some("rejectedIdentifier");
    let proxy = TestProxy::start(ordering(&authority, &from, &["b.test", "a.test"])).await;
    until(|| authority.book().looks >= 1).await;
    authority.book().check_at = proxy.redirect_address;
    authority.book().refuses = None;
    wait_for_tls(&proxy, "a.test", &authority).await;
}

/// The client library panics on such a directory.
#[tokio::test]
async fn broken_directory_is_a_failure() {
    let (authority, from) = (AcmeServer::start("directory").await, TestOrigin::start().await);
    authority.book().breaks_directory = true;
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    until(|| only(&proxy).failure.is_some_and(|failure| failure.count >= 2)).await;
    assert!(only(&proxy).failure.expect("a failure").what.contains("not one of ACME"));
    authority.book().check_at = proxy.redirect_address;
    authority.book().breaks_directory = false;
    wait_for_tls(&proxy, "a.test", &authority).await;
}

/// A server that has nothing.
async fn other_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    address
}

#[tokio::test]
async fn failed_check_tells_what_was_found() {
    let (authority, from) = (AcmeServer::start("check").await, TestOrigin::start().await);
    // The authority is led to another server, which has no token.
    authority.book().check_at = Some(other_server().await);
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    until(|| only(&proxy).failure.is_some()).await;
    let failure = only(&proxy).failure.expect("a failure");
    assert!(failure.what.starts_with("the authority's check failed: the answer is"), "{failure:?}");
    assert!(failure.remedy.contains("port 80"));
}

#[tokio::test]
async fn unreachable_authority_keeps_no_client_waiting() {
    let (authority, from) = (AcmeServer::start("unreachable").await, TestOrigin::start().await);
    from.on("/x", OriginScript::fresh(b"hello"));
    authority.put("b.test", (-DAY_S, 89 * DAY_S));
    let options = ordering(&authority, &from, &["a.test", "b.test"]);
    let (ca, folder) = (std::fs::read(authority.ca()).expect("a file"), authority.folder.clone());
    let address = authority.address;
    let kept = folder.with_extension("kept");
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::rename(&folder, &kept).expect("moved");
    drop(authority);
    std::fs::rename(&kept, &folder).expect("moved");
    let proxy = TestProxy::start(options).await;
    let state =
        |name: &str| proxy.reader().ordered_names().into_iter().find(|found| found.name == name).expect("a name");
    until(|| state("a.test").failure.is_some_and(|failure| failure.what.contains(&address.to_string()))).await;
    assert_eq!(state("b.test").failure, None);
    let trusted: PathBuf = folder.join("trusted.pem");
    std::fs::write(&trusted, ca).expect("written");
    assert!(tls(proxy.address, "b.test", &trusted, &[HTTP]).await.is_ok());
    drop(proxy);
    let _ = std::fs::remove_dir_all(&folder);
}

#[tokio::test]
async fn state_survives_a_restart() {
    let (authority, from) = (AcmeServer::start("restart").await, TestOrigin::start().await);
    let mut proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    until(|| authority.file_of("a.test").exists()).await;
    proxy.stop().await;
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    // The first client is served with it.
    assert!(tls(proxy.address, "a.test", &authority.ca(), &[HTTP]).await.is_ok());
    // The authority is asked when to renew, and says: not now.
    until(|| authority.book().looks >= 1).await;
    assert_eq!(authority.counts(), (1, 1));
    assert_eq!(only(&proxy).failure, None);
}

#[tokio::test]
async fn certificate_near_its_end_is_renewed() {
    let (authority, from) = (AcmeServer::start("renewed").await, TestOrigin::start().await);
    let old = authority.put("a.test", (-61 * DAY_S, 29 * DAY_S));
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    assert_eq!(shown(proxy.address, "a.test", HTTP).await.expect("a handshake").0, old);
    authority.book().check_at = proxy.redirect_address;
    until(|| certificate_in(&authority.file_of("a.test")) != old).await;
    assert_eq!(authority.book().orders.len(), 1);
    let new = shown(proxy.address, "a.test", HTTP).await.expect("a handshake").0;
    assert!(new != old && new == certificate_in(&authority.file_of("a.test")));
}

#[tokio::test]
async fn suggested_renewal_comes_at_once() {
    let (authority, from) = (AcmeServer::start("suggested").await, TestOrigin::start().await);
    let old = authority.put("a.test", (-DAY_S, 89 * DAY_S));
    authority.book().suggests_s = Some((-2 * DAY_S, -DAY_S));
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    until(|| certificate_in(&authority.file_of("a.test")) != old).await;
    assert_eq!(authority.book().orders.len(), 1);
}

#[tokio::test]
async fn useless_certificate_is_no_hot_loop() {
    let (authority, from) = (AcmeServer::start("clock").await, TestOrigin::start().await);
    // As if the clock of this machine were years ahead.
    authority.book().validity_s = (-900 * DAY_S, -800 * DAY_S);
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    until(|| only(&proxy).failure.is_some_and(|failure| failure.count >= 2)).await;
    let failure = only(&proxy).failure.expect("a failure");
    assert!(failure.what.contains("by the clock of this machine"), "{failure:?}");
    authority.book().validity_s = (-DAY_S, 89 * DAY_S);
    wait_for_tls(&proxy, "a.test", &authority).await;
}

#[tokio::test]
async fn tls_alpn_check_is_answered() {
    let (authority, from) = (AcmeServer::start("alpn").await, TestOrigin::start().await);
    let mut options = ordering(&authority, &from, &["a.test"]);
    options.acme.as_mut().expect("options").challenge = AcmeChallenge::TlsAlpn01;
    let proxy = TestProxy::start(options).await;
    // Nobody else speaks this protocol here.
    assert!(shown(proxy.address, "b.test", b"acme-tls/1").await.is_err());
    authority.book().check_at = Some(proxy.address);
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert!(shown(proxy.address, "a.test", b"acme-tls/1").await.is_err(), "the check is over");
}

#[tokio::test]
async fn unwritable_state_is_shown_and_harmless() {
    let (authority, from) = (AcmeServer::start("unwritable").await, TestOrigin::start().await);
    let file = authority.folder.join("file");
    std::fs::write(&file, "").expect("written");
    let mut options = ordering(&authority, &from, &["a.test"]);
    options.acme.as_mut().expect("options").state = file.join("acme");
    let proxy = TestProxy::start(options).await;
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    until(|| only(&proxy).not_written.is_some()).await;
    assert!(only(&proxy).not_written.expect("a reason").contains("cannot be written"));
    assert_eq!(authority.book().accounts, 1, "the account is used from memory");
}

#[tokio::test]
async fn damaged_files_are_replaced() {
    let (authority, from) = (AcmeServer::start("damaged").await, TestOrigin::start().await);
    authority.put("a.test", (-DAY_S, 89 * DAY_S));
    std::fs::write(authority.file_of("a.test"), "no certificate").expect("written");
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    let failure = only(&proxy).failure.expect("a failure");
    assert!(failure.what.contains("a.test.pem cannot be used"), "{failure:?}");
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    until(|| only(&proxy).failure.is_none()).await;
}

#[tokio::test]
async fn unreadable_account_is_kept() {
    let (authority, from) = (AcmeServer::start("account").await, TestOrigin::start().await);
    authority.put("b.test", (-DAY_S, 89 * DAY_S));
    let account = authority.file_of("b.test").with_file_name("account.json");
    std::fs::write(&account, "{ \"format\": 2, \"credentials\": {} }").expect("written");
    let proxy = TestProxy::start(ordering(&authority, &from, &["a.test"])).await;
    until(|| only(&proxy).failure.is_some()).await;
    assert!(only(&proxy).failure.expect("a failure").what.contains("its format is 2"));
    assert_eq!(authority.book().accounts, 0);
    assert!(std::fs::read_to_string(&account).expect("a file").contains("\"format\": 2"));
}

/// A configuration that orders certificates for all names of its site.
pub(crate) fn ordering_config(authority: &AcmeServer, from: &TestOrigin, names: &[&str]) -> ProxyConfig {
    let mut config = config(vec![site(names, vec![route("/", "o")])], vec![origin("o", &[from.address])]);
    let listener = |tls: bool| ListenerConfig {
        address: at(ListenAddress::Socket(SocketAddr::from(([127, 0, 0, 1], 0)))),
        tls: Some(at(tls)),
        redirect_to_https: Some(at(!tls)),
        proxy_protocol_from: Vec::new(),
        socket_mode: None,
    };
    config.listeners = vec![at(listener(true)), at(listener(false))];
    config.tls.acme = Some(at(AcmeConfig {
        directory: Some(at(authority.directory())),
        accept_terms: Some(at(true)),
        state: Some(at(authority.state())),
        ca: Some(at(authority.ca())),
        ..AcmeConfig::default()
    }));
    config
}

#[tokio::test]
async fn reload_orders_new_names_alone() {
    let (authority, from) = (AcmeServer::start("reload").await, TestOrigin::start().await);
    let proxy = configured(ordering_config(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    let reopener = proxy.reopener();
    let two = ordering_config(&authority, &from, &["a.test", "b.test", "*.c.test", "192.0.2.1"]);
    assert_eq!(reopener.reload(&Arc::new(two)).expect("a good file"), Vec::<&str>::new());
    wait_for_tls(&proxy, "b.test", &authority).await;
    let names =
        |authority: &AcmeServer| authority.book().orders.iter().map(|order| order.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&authority), ["a.test", "b.test"]);
    // What is dropped is shown no more, and its file stays.
    let one = ordering_config(&authority, &from, &["b.test"]);
    reopener.reload(&Arc::new(one)).expect("a good file");
    until(|| proxy.reader().ordered_names().len() == 1).await;
    assert!(authority.file_of("a.test").exists());
    assert!(tls(proxy.address, "a.test", &authority.ca(), &[HTTP]).await.is_err());
    assert!(tls(proxy.address, "b.test", &authority.ca(), &[HTTP]).await.is_ok());
    // It is read again when it is back.
    let two = ordering_config(&authority, &from, &["a.test", "b.test"]);
    reopener.reload(&Arc::new(two)).expect("a good file");
    wait_for_tls(&proxy, "a.test", &authority).await;
    assert_eq!(names(&authority), ["a.test", "b.test"]);
}

#[tokio::test]
async fn other_state_keeps_the_certificate_shown() {
    let (authority, from) = (AcmeServer::start("other-state").await, TestOrigin::start().await);
    let proxy = configured(ordering_config(&authority, &from, &["a.test"])).await;
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "a.test", &authority).await;
    authority.book().check_at = None;
    let mut elsewhere = ordering_config(&authority, &from, &["a.test"]);
    elsewhere.tls.acme.as_mut().expect("a table").value.state = Some(at(authority.folder.join("elsewhere")));
    proxy.reopener().reload(&Arc::new(elsewhere)).expect("a good file");
    until(|| authority.book().orders.len() == 2).await;
    assert!(tls(proxy.address, "a.test", &authority.ca(), &[HTTP]).await.is_ok(), "it has the certificate of before");
}

#[tokio::test]
async fn names_with_files_are_not_ordered() {
    let (authority, from) = (AcmeServer::start("files").await, TestOrigin::start().await);
    let certificate = authority.put("a.test", (-DAY_S, 89 * DAY_S));
    let file = authority.folder.join("a.pem");
    std::fs::rename(authority.file_of("a.test"), &file).expect("moved");
    let mut config = ordering_config(&authority, &from, &["a.test", "b.test"]);
    config.tls.certificates = vec![at(CertificateConfig { cert: at(file.clone()), key: at(file) })];
    let proxy = configured(config).await;
    authority.book().check_at = proxy.redirect_address;
    wait_for_tls(&proxy, "b.test", &authority).await;
    assert_eq!(shown(proxy.address, "a.test", HTTP).await.expect("a handshake").0, certificate);
    assert_eq!(only(&proxy).name, "b.test");
    assert_eq!(authority.book().orders.len(), 1);
    until(|| proxy.reader().certificates().len() == 2).await;
    let shown: Vec<bool> = proxy.reader().certificates().iter().map(|found| found.is_ordered).collect();
    assert_eq!(shown, [false, true]);
}
