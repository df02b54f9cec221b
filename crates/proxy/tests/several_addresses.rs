//! The addresses of an origin are raced: one that does not work costs a fraction of a second, and is tried last for a
//! while.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use nectary_proxy::ProxyOptions;

use crate::common::*;

/// Addresses of this machine that share one port: some have an origin, others drop or refuse connections.
struct SharedPortSite {
    files: TestNameFiles,
    port: u16,
    origins: Vec<TestOrigin>,
    _full: Vec<FullListener>,
}

/// The treatment of connections at an address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AddressTreatment {
    /// An origin answers them.
    Origin,
    /// Their first packets are dropped.
    Drops,
    /// They are refused.
    Refuses,
}

impl SharedPortSite {
    async fn new(addresses: &[AddressTreatment]) -> SharedPortSite {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = probe.local_addr().expect("an address").port();
        drop(probe);
        let (mut origins, mut full, mut hosts) = (Vec::new(), Vec::new(), String::new());
        for (index, at) in addresses.iter().enumerate() {
            let address = std::net::SocketAddr::from(([127, 0, 0, 11 + index as u8], port));
            hosts += &format!("{} site.test\n", address.ip());
            match at {
                AddressTreatment::Origin => origins.push(TestOrigin::start_at(address).await),
                AddressTreatment::Drops => full.push(FullListener::start(address).await),
                AddressTreatment::Refuses => {}
            }
        }
        SharedPortSite { files: TestNameFiles::new(&hosts, None), port, origins, _full: full }
    }

    fn url(&self, path: &str) -> String {
        format!("http://site.test:{}{path}", self.port)
    }

    async fn proxy(&self) -> TestProxy {
        let mut options = ProxyOptions { names: self.files.names.clone(), ..options() };
        options.limits.response_timeout = Duration::from_millis(500);
        TestProxy::start(options).await
    }
}

/// Asks for a path on a new connection, and returns the reply and its time.
async fn timed(site: &SharedPortSite, proxy: &TestProxy, path: &str) -> (ClientReply, Duration) {
    let begin = Instant::now();
    let reply = get(proxy.address, &site.url(path), &[]).await;
    (reply, begin.elapsed())
}

/// The least time of three requests, all of which are answered. A busy machine may delay one, but not all.
async fn least_time(site: &SharedPortSite, proxy: &TestProxy, path: &str) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let (reply, time) = timed(site, proxy, path).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
        least = least.min(time);
    }
    least
}

/// Less than the delay of one address.
const AT_ONCE: Duration = Duration::from_millis(240);

const CLOSED: &[&str] = &["cache-control: no-store"];

#[tokio::test]
async fn dropping_address_costs_one_delay() {
    let site = SharedPortSite::new(&[AddressTreatment::Drops, AddressTreatment::Drops, AddressTreatment::Origin]).await;
    site.origins[0].on("/a", OriginScript::ok(CLOSED, b"1").close());
    let proxy = site.proxy().await;
    let (reply, time) = timed(&site, &proxy, "/a").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
    assert!(time > Duration::from_millis(450) && time < Duration::from_secs(5), "{time:?}");
    // The address that worked is the first from now on.
    assert!(least_time(&site, &proxy, "/a").await < AT_ONCE);
}

#[tokio::test]
async fn refusing_address_costs_no_time() {
    let site =
        SharedPortSite::new(&[AddressTreatment::Refuses, AddressTreatment::Refuses, AddressTreatment::Origin]).await;
    site.origins[0].on("/a", OriginScript::ok(CLOSED, b"1").close());
    let proxy = site.proxy().await;
    assert!(least_time(&site, &proxy, "/a").await < AT_ONCE);
}

/// A name with a dead address of IPv6, as of every dual-stack origin behind a broken route, and a good one of IPv4.
#[tokio::test]
async fn dead_ipv6_costs_one_delay() {
    let Ok(probe) = std::net::TcpListener::bind("[::1]:0") else {
        println!("NOT RUN: a dead address of IPv6: this machine has none");
        return;
    };
    let port = probe.local_addr().expect("an address").port();
    drop(probe);
    let live = SocketAddr::from(([127, 0, 0, 21], port));
    let origin = TestOrigin::start_at(live).await;
    origin.on("/a", OriginScript::ok(CLOSED, b"1").close());
    let local = IpAddr::from(Ipv6Addr::LOCALHOST);
    // The second one has no route, or its packets are dropped: it is reserved for that.
    for (dead, is_full) in [(local, true), (local, false), ("100::1".parse().expect("an address"), false)] {
        let full = if is_full { Some(FullListener::start(SocketAddr::new(dead, port)).await) } else { None };
        let server = NameServer::start().await;
        server.on("site.test", NameResponse::Addresses(vec![dead, live.ip()], 60));
        let files = TestNameFiles::new("", Some(server.address));
        let proxy = TestProxy::start(ProxyOptions { names: files.names.clone(), ..options() }).await;
        let (begun, url) = (Instant::now(), format!("http://site.test:{port}/a"));
        let reply = get(proxy.address, &url, &[]).await;
        let taken = begun.elapsed();
        assert_eq!((reply.status, reply.text().as_str()), (200, "1"), "{dead}");
        assert!(taken < Duration::from_secs(5), "{dead}: {taken:?}");
        assert!(!is_full || taken > Duration::from_millis(200), "IPv6 is tried first: {taken:?}");
        drop(full);
    }
}

#[tokio::test]
async fn a_tunnel_races_addresses_too() {
    let site = SharedPortSite::new(&[AddressTreatment::Drops, AddressTreatment::Origin]).await;
    let names = site.files.names.clone();
    let mut options = ProxyOptions { names, connect_ports: vec![site.port], ..options() };
    options.limits.drain_timeout = Duration::from_millis(100);
    let proxy = TestProxy::start(options).await;
    let begin = Instant::now();
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("CONNECT site.test:{} HTTP/1.1", site.port);
    client.send(request(&[&line]).as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn broken_exchange_uses_other_address() {
    for end in
        [OriginScript::raw(b"").close(), OriginScript::raw(b"").reset(), OriginScript::raw(b"HTTP/1.1 2").close()]
    {
        let site = SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin]).await;
        site.origins[0].on("/a", end.clone());
        site.origins[1].on("/a", OriginScript::ok(CLOSED, b"1"));
        let proxy = site.proxy().await;
        for _ in 0..3 {
            let (reply, _) = timed(&site, &proxy, "/a").await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
        }
        assert_eq!((site.origins[0].count(), site.origins[1].count()), (1, 3));
        // A request with consequences is never repeated.
        let site = SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin]).await;
        site.origins[0].on("/a", end.clone());
        let proxy = site.proxy().await;
        let line = format!("POST {} HTTP/1.1", site.url("/a"));
        let reply = TestClient::connect(proxy.address).await.ask(&[&line, "content-length: 0"]).await;
        assert_eq!((reply.status, site.origins[1].count()), (502, 0));
    }
}

#[tokio::test]
async fn silent_address_is_abandoned() {
    let site = SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin]).await;
    site.origins[0].on("/a", OriginScript::raw(b"").hang());
    site.origins[1].on("/a", OriginScript::ok(CLOSED, b"1"));
    let proxy = site.proxy().await;
    let (reply, time) = timed(&site, &proxy, "/a").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
    assert!(time < Duration::from_secs(5), "{time:?}");
    assert!(least_time(&site, &proxy, "/a").await < AT_ONCE);
    assert_eq!(site.origins[0].count(), 1);
    // One more that is silent does not double the wait.
    let site =
        SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin, AddressTreatment::Origin]).await;
    for origin in &site.origins[..2] {
        origin.on("/a", OriginScript::raw(b"").hang());
    }
    site.origins[2].on("/a", OriginScript::ok(CLOSED, b"1"));
    let proxy = site.proxy().await;
    let (reply, time) = timed(&site, &proxy, "/a").await;
    assert!(reply.status == 200 && time < Duration::from_secs(5), "{time:?}");
    assert!(least_time(&site, &proxy, "/a").await < AT_ONCE);
    // If all are silent, the client does not wait for each.
    site.origins[2].now("/a", OriginScript::raw(b"").hang());
    let (reply, time) = timed(&site, &proxy, "/a").await;
    assert!(reply.status == 504 && time < Duration::from_secs(8), "{time:?}");
}

#[tokio::test]
async fn silent_addresses_are_asked_once() {
    let site = SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin]).await;
    site.origins.iter().for_each(|origin| _ = origin.on("/a", OriginScript::raw(b"").hang()));
    let proxy = site.proxy().await;
    let (reply, time) = timed(&site, &proxy, "/a").await;
    assert!(reply.status == 504 && time < Duration::from_secs(8), "{time:?}");
    assert_eq!(site.origins.iter().map(TestOrigin::count).collect::<Vec<_>>(), [1, 1]);
}

/// Half an answer is neither repeated nor stored.
#[tokio::test]
async fn half_answer_is_not_repeated() {
    let site = SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin]).await;
    let half = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n01234";
    site.origins[0].on("/a", OriginScript::raw(half).close());
    site.origins[1].on("/a", OriginScript::fresh(b"0123456789"));
    let proxy = site.proxy().await;
    let (reply, _) = timed(&site, &proxy, "/a").await;
    assert!(!reply.is_complete && reply.text() == "01234");
    assert_eq!((proxy.stats().failed_fills, site.origins[1].count()), (1, 0));
    let (reply, _) = timed(&site, &proxy, "/a").await;
    assert!(reply.is_complete && reply.text() == "0123456789" && !reply.is_hit());
}

#[tokio::test]
async fn broken_exchange_is_repeated_few_times() {
    let site = SharedPortSite::new(&[AddressTreatment::Origin; 6]).await;
    site.origins.iter().for_each(|origin| _ = origin.on("/a", OriginScript::raw(b"").close()));
    let proxy = site.proxy().await;
    assert_eq!(timed(&site, &proxy, "/a").await.0.status, 502);
    assert_eq!(site.origins.iter().map(TestOrigin::count).sum::<usize>(), 4);
}

/// A kept connection tells as much about its address as a new one.
#[tokio::test]
async fn silent_address_connections_are_dropped() {
    let site = SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Origin]).await;
    let [silent, other] = &site.origins[..] else { panic!("two") };
    for path in ["/a", "/b"] {
        silent.on(path, OriginScript::raw(b"").wait("both").then(&OriginScript::ok(CLOSED, b"0").bytes()));
    }
    other.on("/a", OriginScript::ok(CLOSED, b"1").close());
    let proxy = site.proxy().await;
    let urls = [site.url("/a"), site.url("/b")];
    let both = async { tokio::join!(get(proxy.address, &urls[0], &[]), get(proxy.address, &urls[1], &[])) };
    let opened = async {
        silent.wait_for(2).await;
        silent.open("both");
    };
    let (replies, ()) = tokio::join!(both, opened);
    assert_eq!((replies.0.text(), replies.1.text(), silent.connections()), ("0".into(), "0".into(), 2));
    silent.now("/a", OriginScript::raw(b"").hang());
    for _ in 0..3 {
        assert_eq!(timed(&site, &proxy, "/a").await.0.text(), "1");
    }
    assert_eq!((silent.count(), silent.connections(), other.count()), (3, 2, 3));
}

/// The other addresses accept no connection, and the silent one may be back.
#[tokio::test]
async fn silent_address_is_last_resort() {
    let site =
        SharedPortSite::new(&[AddressTreatment::Origin, AddressTreatment::Refuses, AddressTreatment::Refuses]).await;
    site.origins[0].on("/a", OriginScript::raw(b"").hang()).on("/a", OriginScript::ok(CLOSED, b"1"));
    let proxy = site.proxy().await;
    assert_eq!(timed(&site, &proxy, "/a").await.0.text(), "1");
    assert_eq!(site.origins[0].count(), 2);
}

/// So many addresses are silent that the good one is not reached in time. It is reached by a later request, because those
/// that were silent are tried last.
#[tokio::test]
async fn failed_race_demotes_silent_addresses() {
    let site = SharedPortSite::new(&[
        AddressTreatment::Drops,
        AddressTreatment::Drops,
        AddressTreatment::Drops,
        AddressTreatment::Drops,
        AddressTreatment::Origin,
    ])
    .await;
    site.origins[0].on("/a", OriginScript::ok(CLOSED, b"1").close());
    let mut options = ProxyOptions { names: site.files.names.clone(), ..options() };
    options.limits.connect_timeout = Duration::from_millis(900);
    let proxy = TestProxy::start(options).await;
    assert_eq!(timed(&site, &proxy, "/a").await.0.status, 504);
    assert_eq!(timed(&site, &proxy, "/a").await.0.status, 200);
}
