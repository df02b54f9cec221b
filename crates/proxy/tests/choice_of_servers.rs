//! Which server of an origin gets a request: by balance, by checks, and by how it has answered before.

use std::time::{Duration, Instant};

use nectary_config::{EjectRules, HealthCheck, HostRule, LoadBalancing, OriginConfig};

use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

const NOT_STORED: &[&str] = &["cache-control: no-store"];

/// Origins that answer every request for `/x` with their number.
async fn numbered<const COUNT: usize>() -> [TestOrigin; COUNT] {
    let mut origins = Vec::new();
    for number in 0..COUNT {
        let origin = TestOrigin::start().await;
        origin.on("/x", OriginScript::ok(NOT_STORED, number.to_string().as_bytes()));
        origins.push(origin);
    }
    origins.try_into().unwrap_or_else(|_| unreachable!("so many were made"))
}

/// A proxy of one site over an origin.
async fn over(origin: OriginConfig) -> TestProxy {
    configured(config(vec![site(&["a"], vec![route("/", "o")])], vec![origin])).await
}

fn of(servers: &[&TestOrigin]) -> OriginConfig {
    origin("o", &servers.iter().map(|server| server.address).collect::<Vec<_>>())
}

async fn ask(proxy: &TestProxy, path: &str) -> String {
    get(proxy.address, path, &["host: a"]).await.text()
}

/// A check every 20 ms.
fn check() -> HealthCheck {
    HealthCheck {
        path: at("/health".to_owned()),
        interval: Some(at(Duration::from_millis(20))),
        ..HealthCheck::default()
    }
}

#[tokio::test]
async fn a_key_stays_with_its_server() {
    let servers = numbered::<3>().await;
    let pool = OriginConfig { balance: Some(at(LoadBalancing::Hash)), ..of(&[&servers[0], &servers[1], &servers[2]]) };
    let proxy = over(pool).await;
    let mut seen = std::collections::HashSet::new();
    for key in 0..100 {
        let path = format!("/x?{key}");
        servers.iter().enumerate().for_each(|(number, server)| {
            server.on(&path, OriginScript::ok(NOT_STORED, number.to_string().as_bytes()));
        });
        let first = ask(&proxy, &path).await;
        assert_eq!(ask(&proxy, &path).await, first, "{path}");
        seen.insert(first);
    }
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn least_busy_server_gets_request() {
    let servers = numbered::<2>().await;
    for server in &servers {
        server.on("/slow", OriginScript::raw(b"").wait("gate").then(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"));
    }
    let pool = OriginConfig { balance: Some(at(LoadBalancing::LeastOutstanding)), ..of(&[&servers[0], &servers[1]]) };
    let proxy = over(pool).await;
    let mut slow = TestClient::connect(proxy.address).await;
    slow.send(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    while servers[0].count() + servers[1].count() == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (busy, free) = if servers[0].count() == 1 { (0, 1) } else { (1, 0) };
    for _ in 0..6 {
        assert_eq!(ask(&proxy, "/x").await, free.to_string());
    }
    servers[busy].open("gate");
    assert_eq!(slow.reply(false).await.status, 200);
    for _ in 0..4 {
        ask(&proxy, "/x").await;
    }
    assert_eq!(servers[busy].count(), 3, "the two are in turns again");
}

#[tokio::test]
async fn a_silent_server_costs_one_wait() {
    let servers = numbered::<2>().await;
    servers[0].now("/x", OriginScript::default().hang());
    let mut pool = of(&[&servers[0], &servers[1]]);
    pool.times.first_byte = Some(at(Duration::from_secs(1)));
    let times = EjectRules { failures: Some(at(1)), time: Some(at(Duration::from_millis(10))) };
    pool.eject = Some(at(times));
    let proxy = over(pool).await;
    let mut waits = 0;
    for round in 0..40 {
        let begin = Instant::now();
        assert_eq!(ask(&proxy, "/x").await, "1", "round {round}");
        waits += usize::from(begin.elapsed() >= Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(waits <= 1, "{waits} requests waited");
    assert!(servers[0].count() >= 2, "it is probed");
    // A probe finds it back.
    servers[0].now("/x", OriginScript::ok(NOT_STORED, b"0"));
    while ask(&proxy, "/x").await != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn body_breaking_server_is_avoided() {
    let servers = numbered::<2>().await;
    let half = b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 100\r\n\r\nsome";
    servers[0].now("/x", OriginScript::raw(half).close());
    let proxy = over(of(&[&servers[0], &servers[1]])).await;
    let mut broken = 0;
    for _ in 0..40 {
        let reply = get(proxy.address, "/x", &["host: a"]).await;
        broken += usize::from(!reply.is_complete);
    }
    assert!(broken <= 3, "{broken} clients got half an answer");
    servers[0].now("/x", OriginScript::ok(NOT_STORED, b"0"));
    while ask(&proxy, "/x").await != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A probe reads a part of a long body alone.
#[tokio::test]
async fn long_error_page_ends_no_failing() {
    let servers = numbered::<2>().await;
    let page = vec![b'e'; 300_000];
    servers[0].now("/x", OriginScript::response("503 Service Unavailable", NOT_STORED, &page));
    let mut pool = of(&[&servers[0], &servers[1]]);
    pool.eject = Some(at(EjectRules { failures: Some(at(1)), time: Some(at(Duration::from_millis(1))) }));
    let proxy = over(pool).await;
    let mut errors = 0;
    while servers[0].count() < 8 {
        errors += usize::from(ask(&proxy, "/x").await != "1");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(errors, 1, "the others are answers to probes");
}

#[tokio::test]
async fn unsafe_requests_find_servers_back() {
    // No other test binds this address.
    let address = {
        let listener = tokio::net::TcpListener::bind("127.0.77.1:0").await.expect("a port");
        listener.local_addr().expect("an address")
    };
    let [live] = numbered::<1>().await;
    let mut pool = origin("o", &[address, live.address]);
    pool.eject = Some(at(EjectRules { failures: Some(at(1)), time: Some(at(Duration::from_millis(10))) }));
    let proxy = over(pool).await;
    let post = async || {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").await;
        client.reply(false).await.text()
    };
    for _ in 0..4 {
        assert_eq!(post().await, "0");
    }
    let back = TestOrigin::start_at(address).await;
    back.on("/x", OriginScript::ok(NOT_STORED, b"back"));
    while post().await != "back" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(back.got().iter().filter(|got| !got.line.starts_with("POST")).count(), 0);
}

#[tokio::test]
async fn server_failing_checks_gets_nothing() {
    let servers = numbered::<2>().await;
    servers[0].on("/health", OriginScript::response("503 Service Unavailable", &[], b""));
    servers[1].on("/health", OriginScript::ok(&[], b""));
    let proxy = over(OriginConfig { check: Some(at(check())), ..of(&[&servers[0], &servers[1]]) }).await;
    while proxy.reader().origins_unhealthy().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..6 {
        assert_eq!(ask(&proxy, "/x").await, "1");
    }
    let unhealthy = proxy.reader().origins_unhealthy();
    let last = "GET /health was answered with 503";
    assert_eq!((unhealthy[0].name.as_str(), unhealthy[0].last.as_str()), ("o", last));
    servers[0].now("/health", OriginScript::ok(&[], b""));
    while !proxy.reader().origins_unhealthy().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answers = [ask(&proxy, "/x").await, ask(&proxy, "/x").await];
    assert!(answers.contains(&"0".to_owned()), "{answers:?}");
    // Without a healthy server all are asked.
    servers.iter().for_each(|server| _ = server.now("/health", OriginScript::raw(b"").close()));
    while proxy.reader().origins_unhealthy().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(["0", "1"].contains(&ask(&proxy, "/x").await.as_str()));
}

#[tokio::test]
async fn servers_without_checks_are_not_unhealthy() {
    let servers = numbered::<2>().await;
    let made = |has_check: bool, weight: u16| {
        let mut pool = OriginConfig { check: has_check.then(|| at(check())), ..of(&[&servers[0], &servers[1]]) };
        pool.servers[0].value.weight = Some(at(weight));
        std::sync::Arc::new(config(vec![site(&["a"], vec![route("/", "o")])], vec![pool]))
    };
    servers[0].on("/health", OriginScript::raw(b"").close());
    servers[1].on("/health", OriginScript::ok(&[], b""));
    let proxy =
        configured(config(vec![site(&["a"], vec![route("/", "o")])], vec![of(&[&servers[0], &servers[1]])])).await;
    let unhealthy = async |count: usize| {
        while proxy.reader().origins_unhealthy().len() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    for (after, weight) in [(false, 1), (true, 0)] {
        proxy.reopener().reload(&made(true, 1)).expect("a good configuration");
        unhealthy(1).await;
        assert!(proxy.reader().servers().iter().any(|server| server.failure.is_some()));
        proxy.reopener().reload(&made(after, weight)).expect("a good configuration");
        assert_eq!(proxy.reader().origins_unhealthy(), [], "{after} {weight}");
        assert!(proxy.reader().servers().iter().all(|server| server.failure.is_none()));
    }
}

#[tokio::test]
async fn probes_hold_no_end_up() {
    let servers = numbered::<2>().await;
    servers[0].now("/x", OriginScript::default().close());
    let mut pool = of(&[&servers[0], &servers[1]]);
    pool.eject = Some(at(EjectRules { failures: Some(at(1)), time: Some(at(Duration::from_millis(1))) }));
    let mut config = config(vec![site(&["a"], vec![route("/", "o")])], vec![pool]);
    config.limits.drain = Some(at(Duration::from_secs(29)));
    let mut proxy = configured(config).await;
    let asked = servers[0].count();
    while servers[0].count() == asked {
        assert_eq!(ask(&proxy, "/x").await, "1");
    }
    servers[0].now("/x", OriginScript::default().hang());
    let asked = servers[0].count();
    while servers[0].count() == asked {
        assert_eq!(ask(&proxy, "/x").await, "1");
    }
    let begin = Instant::now();
    proxy.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(15), "the limits are 29 and 60 s");
}

#[tokio::test]
async fn checks_are_as_the_file_says() {
    let [server] = numbered::<1>().await;
    server.on("/health", OriginScript::response("204 No Content", &[], b""));
    let mut pool = OriginConfig { check: Some(at(HealthCheck { status: vec![at(204)], ..check() })), ..of(&[&server]) };
    pool.host = Some(at(HostRule::Fixed("www.example.org".to_owned())));
    let proxy = over(pool).await;
    server.wait_for(3).await;
    let got = &server.got()[0];
    assert_eq!((got.line.as_str(), got.header("host").as_str()), ("GET /health HTTP/1.1", "www.example.org"));
    assert_eq!(got.header("user-agent"), "nectary-check");
    assert_eq!(proxy.reader().origins_unhealthy(), []);
    server.now("/health", OriginScript::ok(&[], b""));
    while proxy.reader().origins_unhealthy().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_reload_begins_and_ends_checks() {
    let [server] = numbered::<1>().await;
    let made = |has_check: bool| {
        let pool = OriginConfig { check: has_check.then(|| at(check())), ..of(&[&server]) };
        config(vec![site(&["a"], vec![route("/", "o")])], vec![pool])
    };
    let proxy = configured(made(false)).await;
    assert_eq!(ask(&proxy, "/x").await, "0");
    proxy.reopener().reload(&std::sync::Arc::new(made(true))).expect("a good configuration");
    server.wait_for(5).await;
    proxy.reopener().reload(&std::sync::Arc::new(made(false))).expect("a good configuration");
    // One may be under way.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let count = server.count();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.count(), count);
}
