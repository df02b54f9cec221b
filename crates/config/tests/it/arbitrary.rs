//! Random configurations that are right.
//!
//! Owns: a strategy for each table. What does not fit together is repaired, not filtered.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use nectary_config::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// A setting, which may be absent.
fn setting<S: Strategy>(values: S) -> impl Strategy<Value = Setting<S::Value>>
where
    S::Value: Clone,
{
    option::of(values.prop_map(LocatedValue::nowhere))
}

/// A list of located values.
fn list<S: Strategy>(values: S, count_max: usize) -> impl Strategy<Value = Vec<LocatedValue<S::Value>>>
where
    S::Value: Clone,
{
    vec(values.prop_map(LocatedValue::nowhere), 0..=count_max)
}

fn switch() -> impl Strategy<Value = Setting<bool>> {
    setting(any::<bool>())
}

/// Times of whole milliseconds, not 0, up to a year.
fn time() -> impl Strategy<Value = Setting<Duration>> {
    setting(prop_oneof![1_u64..5000, 1_u64..=366 * 86_400_000].prop_map(Duration::from_millis))
}

/// Lifetimes of whole seconds.
fn ttl() -> impl Strategy<Value = Setting<Duration>> {
    setting((0_u64..=3650 * 86_400).prop_map(Duration::from_secs))
}

fn size() -> impl Strategy<Value = Setting<u64>> {
    setting(prop_oneof![1_u64..100_000, any::<u64>().prop_map(|bytes| bytes.max(1))])
}

fn file() -> impl Strategy<Value = PathBuf> {
    "[a-zA-Z0-9/._ \"'\\\\#=ü-]{1,20}".prop_map(|text| PathBuf::from(format!("/{text}")))
}

fn network() -> impl Strategy<Value = IpNetwork> {
    let network = |(address, bits): (IpAddr, u8)| {
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        IpNetwork::new(address, bits % (bits_max + 1)).expect("not too many bits")
    };
    (any::<IpAddr>(), any::<u8>()).prop_map(network)
}

fn host() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,8}(\\.[a-z][a-z0-9-]{0,4}[a-z]){0,2}"
}

fn server_url() -> impl Strategy<Value = ServerUrl> {
    let schemes = select(vec![ServerScheme::Http, ServerScheme::Https]);
    let hosts = prop_oneof![host(), any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string())];
    let url = (schemes, hosts, 1_u16..).prop_map(|(scheme, host, port)| ServerUrl { scheme, host, port });
    let socket = "/[a-z/. ]{1,20}".prop_map(|host| ServerUrl { scheme: ServerScheme::Unix, host, port: 0 });
    prop_oneof![url, socket]
}

fn srv_name() -> impl Strategy<Value = SrvName> {
    ("(_[a-z][a-z0-9-]{0,4}[a-z]\\.){0,2}", host())
        .prop_map(|(service, host)| SrvName::new(format!("{service}{host}")).expect("it has a domain"))
}

fn socket_mode() -> impl Strategy<Value = Setting<SocketMode>> {
    setting((0..=SocketMode::MAX).prop_map(SocketMode))
}

prop_compose! {
    fn listener()(
        port in 1_u16..,
        path in option::of("/[a-z/]{1,20}"),
        tls in switch(),
        redirect in switch(),
        peers in list(network(), 2),
        is_headed in any::<bool>(),
        mode in socket_mode(),
    ) -> ListenerConfig {
        let (address, senders) = match path {
            Some(path) => {
                let all = is_headed.then_some(HeaderSender::Unix).map(LocatedValue::nowhere);
                (ListenAddress::Unix(path.into()), all.into_iter().collect())
            }
            None => {
                let senders = peers.into_iter().map(|peer| LocatedValue::nowhere(HeaderSender::Network(peer.value)));
                (ListenAddress::Socket(SocketAddr::from(([127, 0, 0, 1], port))), senders.collect())
            }
        };
        ListenerConfig {
            address: LocatedValue::nowhere(address),
            tls,
            redirect_to_https: redirect,
            proxy_protocol_from: senders,
            socket_mode: mode,
        }
    }
}

prop_compose! {
    fn acme_table()(
        directory in setting("https://[a-z]{1,9}(:[1-9][0-9]{0,3})?/[a-z0-9/?=-]{0,9}"),
        contact in list("[a-z.+]{1,9}@[a-z]{1,9}", 2),
        names in proptest::collection::btree_set(host(), 0..3),
        state in setting(file()),
        challenge in setting(select(vec![AcmeChallenge::Http01, AcmeChallenge::TlsAlpn01])),
        ca in setting(file()),
    ) -> AcmeConfig {
        let names = names.into_iter().map(LocatedValue::nowhere).collect();
        AcmeConfig { directory, contact, accept_terms: Some(LocatedValue::nowhere(true)), names, state, challenge, ca }
    }
}

prop_compose! {
    fn tls()(
        files in vec((file(), file()), 1..3),
        unknown_name in setting(select(vec![UnknownName::First, UnknownName::Refuse])),
        version_min in setting(select(vec![TlsVersion::Tls12, TlsVersion::Tls13])),
        client_ca in setting(file()),
        acme in setting(acme_table()),
    ) -> TlsConfig {
        let certificate = |(cert, key)| CertificateConfig { cert: LocatedValue::nowhere(cert), key: LocatedValue::nowhere(key) };
        let certificates = files.into_iter().map(certificate).map(LocatedValue::nowhere).collect();
        TlsConfig { certificates, acme, unknown_name, version_min, client_ca }
    }
}

prop_compose! {
    fn store()(
        device in "[a-z:/(),=]{1,20}",
        spans in list("[a-z:/]{1,9}", 2),
        forget_if_spans_missing in switch(),
        size_bytes in size(),
        memory_bytes in size(),
        io in setting(select(vec![StoreIoEngine::Auto, StoreIoEngine::Uring, StoreIoEngine::Posix])),
        disk_deadline in time(),
        admit in setting(select(vec![AdmitRule::All, AdmitRule::SecondRequest])),
        bytes in (size(), any::<bool>()),
        budget in setting((1_u64.., select(vec![1_u64, 60, 3600, 86400]))
            .prop_map(|(bytes, seconds)| WriteBudget { bytes, period: Duration::from_secs(seconds) })),
        percents in (setting(0_u32..=50), setting(0_u32..=100)),
        cluster in (
            setting(select(vec![ClusterRead::Auto, ClusterRead::Cluster, ClusterRead::Object])),
            setting(select(vec![0_u64, 4096, 65536, 1 << 20])),
        ),
    ) -> StoreConfig {
        StoreConfig {
            device: LocatedValue::nowhere(device),
            spans,
            forget_if_spans_missing,
            size_bytes,
            memory_bytes,
            io,
            disk_deadline,
            admit,
            admit_bytes_min: if bytes.1 { bytes.0 } else { None },
            admit_bytes_max: if bytes.1 { None } else { bytes.0 },
            write_budget: budget,
            reinsert_percent: percents.0,
            rewrite_percent: percents.1,
            cluster_read: cluster.0,
            cluster_size_bytes: cluster.1,
        }
    }
}

fn rate() -> impl Strategy<Value = Setting<RequestRate>> {
    let rate = (1_u32..=RequestRate::COUNT_MAX, select(vec![1_u64, 60]));
    setting(rate.prop_map(|(count, seconds)| RequestRate { count, period: Duration::from_secs(seconds) }))
}

prop_compose! {
    fn limits()(
        connections_max in setting(1_u32..),
        client_connections_max in setting(1_u32..),
        client_requests in rate(),
        heads in (setting(8000_u64..=16 << 20), setting(1024_u64..=16 << 20)),
        headers_max in setting(1_u16..=10_000),
        url_bytes_max in setting(1_u64..=8000),
        upload_bytes_max in size(),
        fills_max in setting(1_u32..),
        range_start_bytes_max in size(),
        origin_idle_max in setting(any::<u32>()),
        times in vec(time(), 10),
    ) -> LimitConfig {
        LimitConfig {
            connections_max,
            client_connections_max,
            client_requests,
            request_head_bytes_max: heads.0,
            response_head_bytes_max: heads.1,
            headers_max,
            url_bytes_max,
            upload_bytes_max,
            fills_max,
            range_start_bytes_max,
            origin_idle_max,
            head_time: times[0],
            keep_alive: times[1],
            client_silence: times[2],
            send_silence: times[3],
            connect_time: times[4],
            first_byte: times[5],
            origin_silence: times[6],
            origin_keep_alive: times[7],
            tunnel_silence: times[8],
            drain: times[9],
        }
    }
}

prop_compose! {
    fn fleet_purges()(
        when_cut in setting(select(vec![PurgeWhenCut::Fail, PurgeWhenCut::Queue])),
        queue_max in setting(1_u32..=100_000),
        answer in setting(select(vec![PurgeAnswer::Applied, PurgeAnswer::Accepted])),
        times in vec(time(), 2),
        rate in rate(),
        log_bytes_max in setting(1_u64 << 20..=1 << 30),
    ) -> FleetPurges {
        FleetPurges { when_cut, queue_max, answer, time: times[0], rate, log_bytes_max, log: None, log_age: times[1] }
    }
}

prop_compose! {
    fn fleet_share()(
        host in prop_oneof![host(), any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string())],
        port in 1_u16..,
        listen in setting(1_u16..),
        files in vec(file(), 3),
    ) -> FleetShare {
        let [cert, key, ca] = [0, 1, 2].map(|index: usize| LocatedValue::nowhere(files[index].clone()));
        let listen = listen.map(|port| LocatedValue::nowhere(SocketAddr::from(([127, 0, 0, 1], port.value))));
        FleetShare { address: LocatedValue::nowhere(PeerAddress { host, port }), listen, cert, key, ca }
    }
}

prop_compose! {
    fn fleet()(
        names in vec(setting("[a-zA-Z0-9._-]{1,9}"), 2),
        node in "[a-zA-Z0-9._-]{1,9}",
        share in option::of(fleet_share()),
        etcd in vec(server_url(), 1..4),
        etcd_files in (setting(file()), option::of((file(), file()))),
        lease in setting((2_u64..=300).prop_map(Duration::from_secs)),
        serve_when_cut in time(),
        validate_when_cut in rate(),
        purges in fleet_purges(),
    ) -> FleetConfig {
        let (cert, key) = etcd_files.1.map(|(cert, key)| (LocatedValue::nowhere(cert), LocatedValue::nowhere(key))).unzip();
        let is_url = |url: &ServerUrl| url.scheme != ServerScheme::Unix;
        let mut etcd: Vec<_> = etcd.into_iter().filter(is_url).map(LocatedValue::nowhere).collect();
        if etcd.is_empty() {
            etcd.push(LocatedValue::nowhere(ServerUrl { scheme: ServerScheme::Http, host: "a".to_owned(), port: 2379 }));
        }
        FleetConfig {
            name: names[0].clone(),
            node: LocatedValue::nowhere(node),
            zone: names[1].clone(),
            share,
            members: Vec::new(),
            etcd,
            etcd_tls: EtcdTls { ca: etcd_files.0, cert, key },
            lease,
            serve_when_cut,
            validate_when_cut,
            purges,
        }
    }
}

prop_compose! {
    fn origin()(
        (servers, srv) in prop_oneof![
            (vec((server_url(), setting(1_u16..=1000)), 1..4), Just(None)),
            (vec((server_url(), setting(1_u16..=1000)), 0..3), (srv_name(), switch()).prop_map(Some)),
        ],
        host in setting(prop_oneof![
            Just(HostRule::Own),
            Just(HostRule::Site),
            Just(HostRule::Client),
            (host(), option::of(1_u16..)).prop_map(|(host, port)| {
                HostRule::Fixed(port.map_or(format!("{host}.x"), |port| format!("{host}:{port}")))
            }),
        ]),
        balance in setting(select(vec![LoadBalancing::RoundRobin, LoadBalancing::LeastOutstanding, LoadBalancing::Hash])),
        switches in vec(switch(), 2),
        times in vec(time(), 7),
        counts in (setting(any::<u32>()), setting(1_u32..), setting(any::<u32>()), setting(0_u32..=10)),
        files in (setting(file()), setting(host()), option::of((file(), file()))),
        check in setting(("/[a-z?=/]{0,9}", time(), time(), list(100_u16..=599, 3))),
        eject in setting((setting(1_u32..=1000), time())),
    ) -> OriginConfig {
        let server = |(url, weight)| LocatedValue::nowhere(ServerConfig { url: LocatedValue::nowhere(url), weight });
        let pair = files.2.map(|(cert, key)| (LocatedValue::nowhere(cert), LocatedValue::nowhere(key)));
        let (client_cert, client_key) = pair.unzip();
        OriginConfig {
            name: LocatedValue::default(),
            servers: servers.into_iter().map(server).collect(),
            srv: srv.as_ref().map(|(name, _)| LocatedValue::nowhere(name.clone())),
            srv_tls: srv.and_then(|(_, tls)| tls),
            host,
            balance,
            store_close_delimited: switches[0],
            http2: switches[1],
            times: OriginTimes {
                connect_time: times[0],
                first_byte: times[1],
                silence: times[2],
                total_time: times[3],
                keep_alive: times[4],
                idle_max: counts.0,
                queue_time: times[5],
            },
            tls: OriginTls { ca: files.0, tls_name: files.1, client_cert, client_key },
            connections_max: counts.1,
            queue_max: counts.2,
            retries: counts.3,
            check: check.map(|check| {
                let (path, interval, time, status) = check.value;
                LocatedValue::nowhere(HealthCheck { path: LocatedValue::nowhere(path), interval, time, status })
            }),
            eject: eject.map(|eject| LocatedValue::nowhere(EjectRules { failures: eject.value.0, time: eject.value.1 })),
        }
    }
}

fn filter() -> impl Strategy<Value = Setting<NameFilter>> {
    let pattern = prop_oneof![
        "[a-zA-Z0-9_\"%-]{1,9}".prop_map(NamePattern::Exact),
        "[a-zA-Z0-9_-]{0,9}".prop_map(NamePattern::Prefix),
    ];
    let filter = (any::<bool>(), list(pattern, 3))
        .prop_map(|(keeps, names)| if keeps { NameFilter::Keep(names) } else { NameFilter::Ignore(names) });
    setting(filter)
}

fn status_ttl() -> impl Strategy<Value = Vec<(LocatedValue<u16>, LocatedValue<Duration>)>> {
    let pair =
        |(status, ttl): (u16, u64)| (LocatedValue::nowhere(status), LocatedValue::nowhere(Duration::from_secs(ttl)));
    proptest::collection::btree_map(200_u16..=599, 0_u64..1_000_000, 0..3)
        .prop_map(move |map| map.into_iter().map(pair).collect())
}

fn header() -> impl Strategy<Value = String> {
    "x-[a-z0-9.!_-]{1,9}"
}

prop_compose! {
    fn rules()(
        query in filter(),
        cookies in filter(),
        cookies_key in list("[a-zA-Z_-]{1,9}", 2),
        key_headers in list(header(), 2),
        ttls in vec(ttl(), 3),
        status_ttl in status_ttl(),
        switches in vec(switch(), 4),
        part_size in setting(65_536_u64..=67_108_864),
        tags in list("[a-zA-Z:\"\\\\]{1,9}", 2),
    ) -> RouteRules {
        RouteRules {
            key: KeyRules { query, cookies, cookies_key, key_headers },
            lifetimes: LifetimeRules {
                default_ttl: ttls[0],
                status_ttl,
                stale_unreachable: ttls[1],
                stale_while_revalidate: ttls[2],
            },
            pass: switches[0],
            part_size,
            ignore_request_cache_control: switches[1],
            store_set_cookie: switches[2],
            strip_tags: switches[3],
            tags,
        }
    }
}

prop_compose! {
    fn edits()(names in vec((header(), option::of("[!-~ü]{0,3}[ -~]{0,5}[!-~]")), 0..4)) -> HeaderEdits {
        let mut edits = HeaderEdits::default();
        let mut known = HashSet::new();
        for (name, value) in names {
            let name = LocatedValue::nowhere(name);
            match value {
                _ if !known.insert(name.value.clone()) => {}
                Some(value) => edits.set.push(HeaderValue { name, value: LocatedValue::nowhere(value.trim().to_owned()) }),
                None => edits.remove.push(name),
            }
        }
        edits
    }
}

prop_compose! {
    fn access()(allow in list(network(), 2), deny in list(network(), 2)) -> AccessRules {
        AccessRules { allow, deny }
    }
}

prop_compose! {
    fn route()(
        path in ("/[a-z/%4]{0,9}", any::<bool>()),
        origin in any::<prop::sample::Index>(),
        redirect in option::of(("/[a-z/]{0,9}", setting(select(vec![301_u16, 302, 307])), switch())),
        rules in rules(),
        request_headers in edits(),
        response_headers in edits(),
        access in access(),
        client_requests in rate(),
    ) -> (RouteConfig, prop::sample::Index) {
        let encoded = path.0.replace('%', "%41");
        let path = if path.1 { RoutePath::Exact(encoded) } else { RoutePath::Prefix(encoded) };
        let to = |(to, status, keep_path): (String, _, _)| {
            let to = LocatedValue::nowhere(format!("/{}", to.trim_start_matches('/')));
            RouteAction::Redirect(LocatedValue::nowhere(RedirectConfig { to, status, keep_path }))
        };
        let action = redirect.map_or(RouteAction::Origin(LocatedValue::default()), to);
        let is_redirect = matches!(action, RouteAction::Redirect(_));
        let config = RouteConfig {
            path: LocatedValue::nowhere(path),
            action,
            rules: if is_redirect { RouteRules::default() } else { rules },
            request_headers: if is_redirect { HeaderEdits::default() } else { request_headers },
            response_headers,
            access,
            client_requests,
        };
        (config, origin)
    }
}

prop_compose! {
    fn site()(
        names in vec((host(), any::<bool>()), 0..3),
        access in access(),
        client_requests in rate(),
        routes in vec(route(), 1..4),
    ) -> (SiteConfig, Vec<prop::sample::Index>) {
        let name = |(name, is_wildcard)| if is_wildcard { SiteName::Wildcard(name) } else { SiteName::Exact(name) };
        let names = names.into_iter().map(name).map(LocatedValue::nowhere).collect();
        let (routes, origins): (Vec<_>, Vec<_>) = routes.into_iter().unzip();
        let routes = routes.into_iter().map(LocatedValue::nowhere).collect();
        (SiteConfig { names, default: None, access, client_requests, routes }, origins)
    }
}

/// Whole configurations.
pub fn configuration() -> impl Strategy<Value = ProxyConfig> {
    let process = (setting(1_u16..=1024), list(network(), 2), switch());
    let log_target = prop_oneof![Just(LogTarget::None), Just(LogTarget::Stdout), file().prop_map(LogTarget::File)];
    let log = (setting(log_target), setting(select(vec![LogFormat::Combined, LogFormat::Json])));
    let admin_socket = option::of("/ADMIN/[a-z]{1,9}");
    let admin = (vec(20_000_u16.., 0..3), setting(file()), switch(), admin_socket, socket_mode());
    let forward = setting((list(network(), 2), option::of(list(1_u16.., 2)), rules()));
    let front = (vec(listener(), 1..4), tls(), store(), limits(), process, log, admin, forward);
    let behind = (vec(origin(), 1..3), vec(site(), 1..3), setting(fleet()));
    (front, behind).prop_map(|(front, (origins, sites, fleet))| {
        let (listeners, tls, store, limits, process, log, admin, forward) = front;
        let mut config = ProxyConfig {
            server: ProcessConfig { workers: process.0, trust_forwarded: process.1, send_forwarded: process.2 },
            listeners: unique(listeners, |listener| listener.address.value.clone()),
            store,
            admin: AdminConfig {
                listen: unique(admin.0, |port| *port)
                    .into_iter()
                    .map(loopback)
                    .chain(admin.3.map(|path| LocatedValue::nowhere(ListenAddress::Unix(path.into()))))
                    .collect(),
                socket_mode: admin.4,
                token_file: admin.1,
                relayed: admin.2,
            },
            log: LogConfig { access: log.0, format: log.1 },
            tls,
            limits,
            fleet,
            forward: forward.map(|forward| {
                let (allow, connect_ports, rules) = forward.value;
                LocatedValue::nowhere(ForwardConfig { allow, connect_ports, rules })
            }),
            ..ProxyConfig::default()
        };
        for (index, mut origin) in origins.into_iter().enumerate() {
            origin.name = LocatedValue::nowhere(if index == 0 { "a.b".to_owned() } else { format!("origin-{index}") });
            config.origins.push(LocatedValue::nowhere(origin));
        }
        repair_sites(&mut config, sites);
        repair_listeners(&mut config);
        if config.acme_names().is_empty() {
            config.tls.acme = None;
        }
        if let (Some(acme), Some(_)) = (&mut config.tls.acme, &config.tls.client_ca) {
            acme.value.challenge = None;
        }
        config
    })
}

/// The first of the values that have the same key.
fn unique<T, K: Eq + std::hash::Hash>(values: Vec<T>, key: impl Fn(&T) -> K) -> Vec<LocatedValue<T>> {
    let mut known = HashSet::new();
    values.into_iter().filter(|value| known.insert(key(value))).map(LocatedValue::nowhere).collect()
}

fn loopback(port: LocatedValue<u16>) -> LocatedValue<ListenAddress> {
    LocatedValue::nowhere(ListenAddress::Socket(SocketAddr::from(([127, 0, 0, 2], port.value))))
}

/// Gives routes their origins, and leaves out paths and names that are there before.
fn repair_sites(config: &mut ProxyConfig, sites: Vec<(SiteConfig, Vec<prop::sample::Index>)>) {
    let mut names = HashSet::new();
    for (mut site, indices) in sites {
        site.names.retain(|name| names.insert(name.value.clone()));
        if site.names.is_empty() {
            let is_first = config.sites.iter().all(|site| site.default.is_none());
            if !is_first {
                continue;
            }
            site.default = Some(LocatedValue::nowhere(true));
        }
        for (route, index) in site.routes.iter_mut().zip(indices) {
            if let RouteAction::Origin(name) = &mut route.value.action {
                *name = config.origins[index.index(config.origins.len())].name.clone();
            }
        }
        let mut paths = HashSet::new();
        site.routes.retain(|route| paths.insert(route.path.value.clone()));
        config.sites.push(LocatedValue::nowhere(site));
    }
}

/// Takes back what clients are sent to where there is none.
fn repair_listeners(config: &mut ProxyConfig) {
    let has_tls = config.listeners.iter().any(|listener| listener.tls.is_some_and(|tls| tls.value));
    for listener in &mut config.listeners {
        if !has_tls || listener.tls.is_some_and(|tls| tls.value) {
            listener.value.redirect_to_https = None;
        }
    }
}
