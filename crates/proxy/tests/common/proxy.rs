//! A proxy in this process, whose store is in memory.

use std::net::SocketAddr;
use std::sync::Arc;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_host::Shutdown;
use nectary_proxy::{AdminOptions, AdminToken, FleetSeat, Proxy, ProxyLimits, ProxyOptions, ProxyStats, StatsReader};
use nectary_store::{AdmissionOptions, CreateOptions, OpenOptions, Store};

use super::waiting::until;

/// A running proxy, which is stopped when it is dropped.
pub struct TestProxy {
    pub address: SocketAddr,
    /// The first address for administration.
    pub admin_address: Option<SocketAddr>,
    /// The first address at which clients are sent to TLS.
    pub redirect_address: Option<SocketAddr>,
    /// The address for other nodes of a fleet.
    pub peer_address: Option<SocketAddr>,
    pub store: Store,
    pub shutdown: Shutdown,
    proxy: Option<Proxy>,
}

/// How long responses may go on at the end, unless a test says otherwise.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// The header line that shows the token of [`options`].
pub const AUTHORIZATION: &str = "authorization: Bearer a-token-for-tests";

/// The token that [`AUTHORIZATION`] shows.
pub fn token() -> AdminToken {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/token");
    AdminToken::read(&path).expect("a token")
}

/// Options of a forward proxy with one worker on a free port, and with a token for purges.
pub fn options() -> ProxyOptions {
    let admin = AdminOptions { token: Some(token()), ..AdminOptions::default() };
    ProxyOptions { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], workers: 1, admin, ..ProxyOptions::default() }
}

impl TestProxy {
    /// Starts a proxy.
    pub async fn start(options: ProxyOptions) -> TestProxy {
        TestProxy::start_with(options, AdmissionOptions::default()).await
    }

    /// Starts a proxy whose store follows the given admission rule.
    pub async fn start_with(options: ProxyOptions, admission: AdmissionOptions) -> TestProxy {
        let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
        let store_options = OpenOptions { memory_bytes: 64 << 20, admission, ..OpenOptions::default() };
        TestProxy::over(options, device, store_options).await
    }

    /// Starts a proxy over the store that a device has.
    pub async fn over(options: ProxyOptions, device: SharedDevice, store_options: OpenOptions) -> TestProxy {
        TestProxy::open(options, device, store_options, |_| None).await
    }

    /// Starts a proxy over the store that a device has, as a node of a fleet.
    pub async fn in_fleet(
        options: ProxyOptions,
        device: SharedDevice,
        seat: impl FnOnce(&Store) -> FleetSeat,
    ) -> TestProxy {
        let admission = AdmissionOptions { has_copies: options.peers.is_some(), ..AdmissionOptions::default() };
        let store_options = OpenOptions { memory_bytes: 64 << 20, admission, ..OpenOptions::default() };
        TestProxy::open(options, device, store_options, |store| Some(seat(store))).await
    }

    async fn open(
        mut options: ProxyOptions,
        device: SharedDevice,
        store_options: OpenOptions,
        seat: impl FnOnce(&Store) -> Option<FleetSeat>,
    ) -> TestProxy {
        // A proxy that is dropped keeps the test's thread, and with it the origin that a fetch in the background waits for.
        if options.limits.drain_timeout == ProxyLimits::default().drain_timeout {
            options.limits.drain_timeout = DRAIN;
        }
        let store = Store::open(device, store_options).await;
        let store = store.expect("an open store");
        let shutdown = Shutdown::new();
        let bound = Proxy::bind(options).expect("bound addresses");
        let bound = match seat(&store) {
            Some(seat) => bound.with_fleet(seat),
            None => bound,
        };
        let proxy = bound.serve(store.clone(), shutdown.clone()).expect("a proxy");
        let admin_address = proxy.admin_addresses().first().copied();
        let redirect_address = proxy.redirect_addresses().first().copied();
        let peer_address = proxy.peer_addresses().first().copied();
        TestProxy {
            // One that listens on Unix sockets alone has none.
            address: proxy.addresses().first().copied().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))),
            admin_address,
            redirect_address,
            peer_address,
            store,
            shutdown,
            proxy: Some(proxy),
        }
    }

    /// A forward proxy.
    pub async fn forward() -> TestProxy {
        TestProxy::start(options()).await
    }

    /// A reverse proxy of an origin.
    pub async fn reverse(origin: SocketAddr) -> TestProxy {
        let origin = Some(format!("http://{origin}").parse().expect("an origin"));
        TestProxy::start(ProxyOptions { origin, ..options() }).await
    }

    /// The proxy's counters.
    pub fn stats(&self) -> ProxyStats {
        self.proxy.as_ref().expect("running").stats().snapshot()
    }

    /// The reader of the proxy's counters.
    pub fn reader(&self) -> StatsReader {
        self.proxy.as_ref().expect("running").stats()
    }

    /// What reopens the proxy's files.
    pub fn reopener(&self) -> nectary_proxy::ProxyReopener {
        self.proxy.as_ref().expect("running").reopener()
    }

    /// Waits until the counters meet a condition.
    pub async fn wait_for(&self, is_so: impl Fn(&ProxyStats) -> bool) {
        until("counters of a proxy", || is_so(&self.stats())).await;
    }

    /// Stops the proxy and waits until it has ended, while the test's own tasks continue.
    pub async fn stop(&mut self) {
        self.shutdown.request();
        let proxy = self.proxy.take().expect("running");
        tokio::task::spawn_blocking(move || proxy.wait()).await.expect("joined").expect("a good end");
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.shutdown.request();
        if let Some(proxy) = self.proxy.take() {
            let _ = proxy.wait();
        }
    }
}
