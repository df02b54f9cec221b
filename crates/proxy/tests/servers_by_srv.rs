//! Servers of an origin that SRV records name: they are looked up again, and what is known of those that stay is kept.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_config::{HealthCheck, OriginConfig, ProxyConfig, SrvName};
use nectary_proxy::{ProxyOptions, ServerFigures, ServiceFigures, options_of};

use crate::common::sites::{at, config, origin, route, site};
use crate::common::*;
use crate::https_origin::{fixture, origin as tls_origin};

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const NOT_STORED: &[&str] = &["cache-control: no-store"];
const SRV: &str = "_http._tcp.service.test";

/// A server of names for which each `N.test` is this machine.
async fn name_server() -> NameServer {
    let names = NameServer::start().await;
    for host in ["one.test", "two.test", "three.test", "dead.test"] {
        names.on(host, NameResponse::Addresses(vec![LOCAL], 60));
    }
    names
}

async fn server(body: &str) -> TestOrigin {
    let server = TestOrigin::start().await;
    server.on("/x", OriginScript::ok(NOT_STORED, body.as_bytes()));
    server
}

/// A record: priority, weight, server and target.
fn record(priority: u16, weight: u16, server: SocketAddr, target: &str) -> (u16, u16, u16, String) {
    (priority, weight, server.port(), target.to_owned())
}

/// An address at which nothing listens.
async fn free() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address")
}

/// An origin of these records.
fn by_records(listed: &[SocketAddr]) -> OriginConfig {
    OriginConfig { srv: Some(at(SrvName::new(SRV.to_owned()).expect("a domain"))), ..origin("o", listed) }
}

fn of_origin(origin: OriginConfig) -> ProxyConfig {
    config(vec![site(&["a"], vec![route("/", "o")])], vec![origin])
}

/// A proxy of one site over an origin, which asks this server of names.
async fn over(origin: OriginConfig, names: &NameServer) -> (TestProxy, TestNameFiles) {
    with_files(origin, TestNameFiles::new("", Some(names.address))).await
}

/// A proxy of one site over an origin, whose names are looked up as these files say.
async fn with_files(origin: OriginConfig, files: TestNameFiles) -> (TestProxy, TestNameFiles) {
    let options = options_of(&Arc::new(of_origin(origin))).expect("a good configuration");
    let mut options = ProxyOptions { workers: 1, names: files.names.clone(), ..options };
    options.limits.drain_timeout = Duration::from_millis(100);
    (TestProxy::start(options).await, files)
}

async fn ask(proxy: &TestProxy) -> String {
    get(proxy.address, "/x", &["host: a"]).await.text()
}

fn figures(proxy: &TestProxy) -> ServiceFigures {
    proxy.reader().services().remove(0)
}

/// Waits until something is so. If it is not in time, the test fails, and tells what `shown` shows.
async fn until<T: std::fmt::Debug>(is_so: impl AsyncFn() -> bool, shown: impl Fn() -> T) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", shown());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the servers of the proxy have these targets, in this order.
async fn wait_for_targets(proxy: &TestProxy, targets: &[&str]) {
    let servers = || proxy.reader().servers();
    let are_so = async || {
        let servers = servers();
        let is_at = |(server, target): (&ServerFigures, &&str)| server.url.contains(&format!("//{target}:"));
        servers.len() == targets.len() && servers.iter().zip(targets).all(is_at)
    };
    until(are_so, servers).await;
}

async fn wait_for_figures(proxy: &TestProxy, is_so: impl Fn(&ServiceFigures) -> bool) {
    until(async || is_so(&figures(proxy)), || figures(proxy)).await;
}

#[tokio::test]
async fn records_name_servers_by_weight() {
    let (names, one, two) = (name_server().await, server("1").await, server("2").await);
    let records = vec![record(10, 300, one.address, "ONE.test"), record(10, 100, two.address, "two.test")];
    names.on(SRV, NameResponse::Services(records, 60));
    let (proxy, _files) = over(by_records(&[]), &names).await;
    for _ in 0..12 {
        ask(&proxy).await;
    }
    assert_eq!((one.count(), two.count()), (9, 3));
    assert!(one.got().iter().chain(&two.got()).all(|got| got.header("host") == "service.test"));
    let servers = proxy.reader().servers();
    let shown: Vec<_> = servers.iter().map(|it| (it.url.as_str(), it.weight, it.priority, it.requests)).collect();
    let urls = [format!("http://one.test:{}", one.address.port()), format!("http://two.test:{}", two.address.port())];
    let mut expected = vec![(&*urls[0], 300, Some(10), 9), (&*urls[1], 100, Some(10), 3)];
    expected.sort_by_key(|(_, weight, ..)| if *weight == 300 { one.address.port() } else { two.address.port() });
    assert_eq!(shown, expected);
    assert_eq!(names.count(SRV), 1, "the answer counts for its lifetime");
}

#[tokio::test]
async fn next_priority_is_for_failures() {
    let (names, spare, listed) = (name_server().await, server("spare").await, server("listed").await);
    let address = free().await;
    let records = vec![record(20, 1, spare.address, "two.test"), record(10, 1, address, "one.test")];
    names.on(SRV, NameResponse::Services(records, 60));
    let (proxy, _files) = over(by_records(&[listed.address]), &names).await;
    for _ in 0..6 {
        assert_eq!(ask(&proxy).await, "spare");
    }
    assert_eq!(proxy.reader().origins_down().len(), 1);
    let back = TestOrigin::start_at(address).await;
    back.on("/x", OriginScript::ok(NOT_STORED, b"first"));
    until(async || ask(&proxy).await == "first", || proxy.reader().servers()).await;
    let before = spare.count();
    for _ in 0..6 {
        assert_eq!(ask(&proxy).await, "first");
    }
    assert_eq!((spare.count(), listed.count()), (before, 0));
}

#[tokio::test]
async fn changed_records_are_followed() {
    let (names, one, two) = (name_server().await, server("1").await, server("2").await);
    let begun = OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncache-control: no-store\r\n\r\nab");
    one.on("/slow", begun.wait("gate").then(b"cd"));
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 0));
    let (proxy, _files) = over(by_records(&[]), &names).await;
    assert_eq!(ask(&proxy).await, "1");
    let slow = tokio::spawn(get(proxy.address, "/slow", &["host: a"]));
    one.wait_for(2).await;
    let both = vec![record(1, 1, one.address, "one.test"), record(2, 1, two.address, "two.test")];
    names.on(SRV, NameResponse::Services(both, 0));
    wait_for_targets(&proxy, &["one.test", "two.test"]).await;
    let stayed = &proxy.reader().servers()[0];
    assert_eq!((stayed.requests, stayed.requests_under_way), (2, 1), "what stays keeps its counts");
    let connections = one.connections();
    names.on(SRV, NameResponse::Services(vec![record(1, 1, two.address, "two.test")], 0));
    wait_for_targets(&proxy, &["two.test"]).await;
    for _ in 0..4 {
        assert_eq!(ask(&proxy).await, "2");
    }
    one.open("gate");
    assert_eq!(slow.await.expect("answered").text(), "abcd", "what is gone finishes its requests");
    // No connection to it is kept.
    one.wait_for_ends(connections).await;
    assert_eq!(one.count(), 2);
}

/// A target is a whole name: the domains of `/etc/resolv.conf` are not for it, whatever `ndots` says.
#[tokio::test]
async fn targets_are_looked_up_without_search() {
    let (names, one) = (name_server().await, server("1").await);
    names.on("one.test.inner.test", NameResponse::Addresses(vec![IpAddr::from([127, 0, 0, 9])], 60));
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 60));
    names.on(&format!("{SRV}.inner.test"), NameResponse::NoName(60));
    let files = TestNameFiles::new("", Some(names.address));
    let settings = format!("nameserver {}\nsearch inner.test\noptions ndots:5\n", names.address);
    std::fs::write(&files.names.resolv_conf, settings).expect("written");
    let (proxy, _files) = with_files(by_records(&[]), files).await;
    assert_eq!(ask(&proxy).await, "1");
    assert_eq!((names.count("one.test"), names.count("one.test.inner.test")), (1, 0));
    assert_eq!(names.count(&format!("{SRV}.inner.test")), 1, "the name of the configuration is looked for");
}

/// Two connections at a time would be one more than the server has room for.
#[tokio::test]
async fn limit_outlives_a_missing_record() {
    let (names, one, two) = (name_server().await, server("1").await, server("2").await);
    let begun = OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncache-control: no-store\r\n\r\nab");
    one.on("/slow", begun.wait("gate").then(b"cd"));
    let both = || vec![record(1, 1, one.address, "one.test"), record(2, 1, two.address, "two.test")];
    names.on(SRV, NameResponse::Services(both(), 0));
    let mut origin = OriginConfig { connections_max: Some(at(1)), retries: Some(at(0)), ..by_records(&[]) };
    origin.times.queue_time = Some(at(Duration::from_millis(200)));
    let (proxy, _files) = over(origin, &names).await;
    let slow = tokio::spawn(get(proxy.address, "/slow", &["host: a"]));
    one.wait_for(1).await;
    names.on(SRV, NameResponse::Services(vec![record(2, 1, two.address, "two.test")], 0));
    wait_for_targets(&proxy, &["two.test"]).await;
    names.on(SRV, NameResponse::Services(both(), 0));
    wait_for_targets(&proxy, &["one.test", "two.test"]).await;
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 503, "the one connection is in use");
    assert_eq!(one.connections(), 1);
    one.open("gate");
    assert_eq!(slow.await.expect("answered").text(), "abcd");
    until(async || ask(&proxy).await == "1", || proxy.reader().servers()).await;
}

#[tokio::test]
async fn failed_look_ups_keep_servers() {
    let (names, one) = (name_server().await, server("1").await);
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 0));
    let (proxy, files) = over(by_records(&[]), &names).await;
    assert_eq!(ask(&proxy).await, "1");
    assert_eq!((figures(&proxy).failure, figures(&proxy).is_failing), (None, false));
    names.on(SRV, NameResponse::Alias("_http._tcp.loop.test".to_owned()));
    wait_for_figures(&proxy, |now| now.failure.as_deref() == Some("name server: the answer is damaged")).await;
    assert_eq!(ask(&proxy).await, "1");
    names.on(SRV, NameResponse::NoName(0));
    wait_for_figures(&proxy, |now| now.is_failing && now.failure.as_deref() == Some("it has no SRV record")).await;
    assert_eq!((ask(&proxy).await.as_str(), figures(&proxy).servers), ("1", 1));
    // A reload begins with the servers of before, although nobody answers.
    names.on(SRV, NameResponse::Silence);
    proxy.reopener().reload(&Arc::new(of_origin(by_records(&[])))).expect("a good configuration");
    assert_eq!(ask(&proxy).await, "1");
    drop(files);
}

#[tokio::test]
async fn withdrawn_service_has_no_server() {
    let (names, one, listed) = (name_server().await, server("1").await, server("listed").await);
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 0));
    let (proxy, _files) = over(by_records(&[]), &names).await;
    let (with_listed, _more) = over(by_records(&[listed.address]), &names).await;
    assert_eq!((ask(&proxy).await.as_str(), ask(&with_listed).await.as_str()), ("1", "1"));
    names.on(SRV, NameResponse::Services(vec![(0, 0, 0, ".".to_owned())], 0));
    wait_for_figures(&proxy, |now| now.is_failing).await;
    wait_for_figures(&with_listed, |now| now.is_failing).await;
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 502);
    assert_eq!(ask(&with_listed).await, "listed");
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 60));
    wait_for_targets(&proxy, &["one.test"]).await;
    assert_eq!((ask(&proxy).await.as_str(), figures(&proxy).is_failing), ("1", false));
}

#[tokio::test]
async fn first_requests_wait_for_records() {
    let (names, one) = (name_server().await, server("1").await);
    let (proxy, _files) = over(by_records(&[]), &names).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(async || names.count(SRV) > 0, || "no question").await;
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 60));
    assert_eq!(client.reply(false).await.text(), "1", "the answer came to the second question");
}

#[tokio::test]
async fn long_and_bad_answers_are_bounded() {
    let (names, one) = (name_server().await, server("1").await);
    let mut records = vec![record(1, 0, one.address, "one.test"), record(0, 1, one.address, "127.0.0.1")];
    records.push((0, 1, 0, "two.test".to_owned()));
    records.extend((0..100).map(|number| record(9, 1, one.address, &format!("many{number}.test"))));
    names.on(SRV, NameResponse::ManyServices(records));
    let (proxy, _files) = over(by_records(&[]), &names).await;
    assert_eq!(ask(&proxy).await, "1");
    let now = figures(&proxy);
    assert_eq!((now.servers, now.records_ignored, now.failures), (64, 39, 0));
    assert!(now.ignored_reason.is_some_and(|reason| reason == "two.test has the port 0"));
}

#[tokio::test]
async fn checks_follow_found_servers() {
    let (names, one, two) = (name_server().await, server("1").await, server("2").await);
    for server in [&one, &two] {
        server.on("/health", OriginScript::ok(NOT_STORED, b""));
    }
    let asked =
        |server: &TestOrigin| server.got().iter().filter(|got| got.header("user-agent") == "nectary-check").count();
    names.on(SRV, NameResponse::Services(vec![record(1, 1, one.address, "one.test")], 0));
    let check = HealthCheck {
        path: at("/health".to_owned()),
        interval: Some(at(Duration::from_millis(20))),
        ..HealthCheck::default()
    };
    let (proxy, _files) = over(OriginConfig { check: Some(at(check)), ..by_records(&[]) }, &names).await;
    until(async || asked(&one) >= 3, || asked(&one)).await;
    names.on(SRV, NameResponse::Services(vec![record(1, 1, two.address, "two.test")], 0));
    until(async || asked(&two) >= 3, || asked(&two)).await;
    let before = asked(&one);
    until(async || asked(&two) >= 9, || asked(&two)).await;
    assert!(asked(&one) <= before + 1, "one may be under way");
    assert_eq!((asked(&two) > 0, figures(&proxy).servers), (true, 1));
    assert_eq!(two.got()[0].header("host"), "service.test");
}

#[tokio::test]
async fn certificates_are_for_the_domain() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncache-control: no-store\r\n\r\n1";
    let names = name_server().await;
    let (port, _task) = tls_origin(ANSWER).await;
    names.on("_https._tcp.localhost", NameResponse::Services(vec![(1, 1, port, "one.test".to_owned())], 60));
    names.on("_https._tcp.one.test", NameResponse::Services(vec![(1, 1, port, "localhost".to_owned())], 60));
    // The certificate is for `localhost`: the name of a target proves nothing.
    for (srv, status) in [("_https._tcp.localhost", 200), ("_https._tcp.one.test", 502)] {
        let srv = SrvName::new(srv.to_owned()).expect("a domain");
        let mut origin = OriginConfig { srv: Some(at(srv)), srv_tls: Some(at(true)), ..by_records(&[]) };
        origin.tls.ca = Some(at(fixture("ca.pem")));
        let (proxy, _files) = over(origin, &names).await;
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, status);
    }
}

#[tokio::test]
async fn service_is_counted_without_a_proxy() {
    let (names, one) = (name_server().await, server("1").await);
    names.on(
        SRV,
        NameResponse::Services(vec![record(1, 1, one.address, "one.test"), (1, 1, 0, "two.test".to_owned())], 60),
    );
    names.on("_http._tcp.none.test", NameResponse::NoName(5));
    let files = TestNameFiles::new("", Some(names.address));
    let count = |name: &'static str| nectary_proxy::count_service_servers(files.names.clone(), name);
    assert_eq!(count(SRV).await, Ok((1, Some("two.test has the port 0".to_owned()))));
    assert_eq!(count("_http._tcp.none.test").await, Err("it has no SRV record".to_owned()));
    assert_eq!(count("_http._tcp.never.invalid").await, Err("it has no SRV record".to_owned()));
}
