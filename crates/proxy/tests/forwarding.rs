//! The headers that tell an origin about earlier hops are the same for every method.

use nectary_proxy::{ForwardedOptions, ProxyOptions};

use crate::common::*;

const SAID: [&str; 5] = [
    "forwarded: for=192.0.2.1;host=evil;proto=https",
    "x-forwarded-for: 192.0.2.1",
    "x-forwarded-host: evil",
    "x-forwarded-proto: https",
    "x-real-ip: 192.0.2.1",
];
const NAMES: [&str; 5] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

/// The forwarding headers that an origin gets if the client sends the headers `saying`. They must be the same for each
/// method.
async fn told(origin: &Origin, proxy: &TestProxy, target: &str, saying: &[&str]) -> [String; 5] {
    let mut found = None;
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
        let line = format!("{method} {target} HTTP/1.1");
        let lines = [&[line.as_str(), "content-length: 0", "connection: forwarded, x-forwarded-for"], saying].concat();
        Client::connect(proxy.address).await.ask(&lines).await;
        let got = origin.got().pop().expect("a request");
        assert!(got.line.starts_with(method), "{}", got.line);
        let now = NAMES.map(|name| got.header(name));
        assert_eq!(*found.get_or_insert(now.clone()), now, "{method}");
    }
    found.expect("requests")
}

async fn reverse(origin: &Origin, forwarded: ForwardedOptions) -> TestProxy {
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    TestProxy::start(ProxyOptions { origin: url, forwarded, ..options() }).await
}

#[tokio::test]
async fn an_origin_is_told_who_asked_this_proxy_and_not_what_clients_say() {
    let origin = Origin::start().await;
    let proxy = reverse(&origin, ForwardedOptions::default()).await;
    let own = ["for=127.0.0.1;proto=http", "127.0.0.1", "", "http", ""];
    assert_eq!(told(&origin, &proxy, "/a", &[]).await, own);
    assert_eq!(told(&origin, &proxy, "/a", &SAID).await, own, "this machine is no more believed than others");
    let silent = reverse(&origin, ForwardedOptions { is_silent: true, ..ForwardedOptions::default() }).await;
    assert_eq!(told(&origin, &silent, "/a", &SAID).await, [""; 5]);
}

#[tokio::test]
async fn a_trusted_proxy_in_front_is_believed_and_gone_on_from() {
    let origin = Origin::start().await;
    let net = |text: &str| vec![text.parse().expect("a net")];
    let trusting = ForwardedOptions { trusted: net("127.0.0.0/8"), is_silent: false };
    let proxy = reverse(&origin, trusting).await;
    let expected = [
        "for=192.0.2.1;host=evil;proto=https, for=127.0.0.1;proto=http",
        "192.0.2.1, 127.0.0.1",
        "evil",
        "https",
        "192.0.2.1",
    ];
    assert_eq!(told(&origin, &proxy, "/a", &SAID).await, expected);
    let another = reverse(&origin, ForwardedOptions { trusted: net("192.0.2.0/24"), is_silent: false }).await;
    assert_eq!(told(&origin, &another, "/a", &SAID).await[1], "127.0.0.1");
}

#[tokio::test]
async fn a_forward_proxy_tells_nobody_who_asks() {
    let origin = Origin::start().await;
    let proxy = TestProxy::forward().await;
    assert_eq!(told(&origin, &proxy, &origin.url("/a"), &SAID).await, [""; 5]);
}
