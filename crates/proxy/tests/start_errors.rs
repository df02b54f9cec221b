//! A proxy that cannot start reports the cause and leaves nothing running.

use nectary_host::Shutdown;
use nectary_proxy::{AccessLog, Error, Proxy, ProxyOptions};

use crate::common::*;

async fn error_of(options: ProxyOptions) -> Error {
    let proxy = TestProxy::forward().await;
    Proxy::start(options, proxy.store.clone(), Shutdown::new()).expect_err("it cannot start")
}

#[tokio::test]
async fn each_error_names_its_cause() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    assert!(matches!(error_of(ProxyOptions { listen: vec![], ..options() }).await, Error::NoAddress));
    let error = error_of(ProxyOptions { listen: vec![address], ..options() }).await;
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let missing = std::path::PathBuf::from("/no/such/folder/file");
    let error = error_of(ProxyOptions { access_log: AccessLog::File(missing.clone()), ..options() }).await;
    assert!(error.to_string().contains("/no/such/folder/file"), "{error}");
    let error = error_of(ProxyOptions { origin_ca: Some(missing), ..options() }).await;
    assert!(error.to_string().contains("/no/such/folder/file"), "{error}");
}

/// Workers share addresses only within one proxy.
#[tokio::test]
async fn used_address_is_an_error() {
    let mut first = TestProxy::start(ProxyOptions { workers: 2, ..options() }).await;
    let address = first.address;
    let error = error_of(ProxyOptions { listen: vec![address], ..options() }).await;
    assert!(matches!(error, Error::Listen { .. }), "{error}");
    first.stop().await;
}

#[tokio::test]
async fn an_inherited_socket_must_be_named() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address").to_string();
    let error = Proxy::bind_with(options(), vec![socket].into()).expect_err("no address is that of the socket");
    assert!(matches!(error, Error::Inherited { .. }) && error.to_string().contains(&address), "{error}");
}
