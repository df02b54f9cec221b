//! `nectary proxy`: a caching HTTP proxy over a store.
//!
//! Owns: the order in which the proxy's parts start (signals, addresses, store, control socket, proxy) and stop
//! (listeners, control socket, store, and then the requests under way), and the effect of signals.
//! Promises: if the command ends successfully, all accepted requests are finished, and every object that was whole in
//! time is written. A stop gives the store up at once, so that the next process can open it while this one still sends.
//! Leaves to others: the work of each part.

mod admin_pages;
mod config_file;
mod fleet_node;
pub mod fleet_report;
pub mod fleet_status;
mod listen_failure;
pub mod live_config;
mod printed_config;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use nectary_block::format_size;
use nectary_config::{ListenAddress, ServerScheme};
use nectary_host::log::{self, LogLevel, LogThrottle};
use nectary_host::{
    ControlFault, ControlLimits, ControlMethods, ControlServer, FaultKind, PartStatus, ReopenSignals, RuntimeDirectory,
    Shutdown, allocator, control, descriptors, inherited, memory,
};
use nectary_proxy::{
    BoundProxy, FleetSeat, ForwardedOptions, OriginUrl, Proxy, ProxyOptions, ProxyReopener, SocketUsers, UnixSocket,
};
use nectary_store::{AdmissionOptions, MEMORY_BYTES_MIN, OpenOptions, SpanSet};
use serde_json::{Value, json};

use crate::arguments::{ProxyArguments, tcp_addresses, unix_sockets};
use crate::device::{OpenStore, open_or_create_store};
use crate::exit::{BUSY, CommandFailure, FAILED, GOOD, USAGE};
use crate::health;
use crate::purge::{PURGE_HERE, register_purges};
use crate::services::service_manager::{self, Watchdog};
use admin_pages::{PageSources, pages_of};
use fleet_node::FleetNode;
use live_config::LiveConfig;

/// The interval at which the store's notices are checked.
const NOTES_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time for which a process that takes listeners over waits for the store.
const STORE_PATIENCE: Duration = Duration::from_secs(30);
/// The time between two attempts to open the store.
const STORE_PAUSE: Duration = Duration::from_millis(20);
/// The longest time in which the next process must answer a purge.
const SUCCESSOR_TIME_MAX: Duration = Duration::from_secs(5);

/// A warning says so if `--memory` leaves less than this share of the memory that may be used, and less than
/// `MEMORY_LEFT_BYTES`, for all else.
const MEMORY_LEFT_SHARE: u64 = 4;
const MEMORY_LEFT_BYTES: u64 = 256 << 20;

/// The most names without a certificate that a message has.
const NAMES_SHOWN: usize = 10;

/// The longest path of a Unix socket that is part of the name of the control socket. *Units*: bytes.
const SHORT_NAME_BYTES_MAX: usize = 40;

/// The file descriptors that each worker needs to start (its listener and its runtime), and those that all else needs.
const WORKER_DESCRIPTORS: u64 = 6;
const START_DESCRIPTORS: u64 = 32;

/// Runs the proxy until a signal requests its end.
pub async fn run(given: &ProxyArguments) -> Result<u8, CommandFailure> {
    if given.file.print_config {
        return printed_config::print(given);
    }
    let of_file = match &given.file.config {
        Some(path) if given.file.check_config => return config_file::check(path).await,
        Some(path) => Some(config_file::options_of(path)?),
        None => None,
    };
    let arguments = of_file.as_ref().unwrap_or(given);
    let live_config = given.file.config.clone().map(|path| Arc::new(LiveConfig::new(path)));
    allocator::give_back_large_blocks();
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    let reopen_signals = ReopenSignals::listen().context("cannot listen for signals")?;
    let options = OpenOptions {
        memory_bytes: arguments.memory_bytes(),
        reinsert_percent: arguments.reinsert,
        rewrite_percent: arguments.rewrite,
        cluster_bytes: arguments.cluster_size,
        cluster_read: arguments.cluster_read,
        device_deadline: Some(arguments.disk_deadline).filter(|limit| !limit.is_zero()),
        admission: AdmissionOptions { has_copies: shares_keys(arguments), ..arguments.admission.options() },
        ..OpenOptions::default()
    };
    // The options and addresses are checked before a store is opened or made.
    check_memory(arguments)?;
    check_descriptors(arguments)?;
    let sources = Arc::new(OnceLock::new());
    let mut proxy_options = proxy_options(arguments)?;
    for doubt in nectary_proxy::unused_lifetimes(&proxy_options) {
        log::write(LogLevel::Warning, "proxy", format_args!("{doubt}"));
    }
    proxy_options.admin.pages = Some(pages_of(sources.clone()));
    let bound = Proxy::bind_with(proxy_options, inherited::listeners()).map_err(listen_failure::failure_of)?;
    let bound = with_successor(arguments, bound)?;
    // A slow disk does not keep a signal waiting. What was read or made so far is found by the next start.
    let store = tokio::select! {
        store = open_store(arguments, options, bound.has_successor()) => store?,
        () = shutdown.requested() => {
            log::write(LogLevel::Note, "proxy", format_args!("stopped before the store was open"));
            return Ok(GOOD);
        }
    };
    let served = serve(arguments, bound, &store, &shutdown, (reopen_signals, sources, live_config)).await;
    let closed = store.release().await.context("cannot write what was left");
    served?;
    closed?;
    log::write(LogLevel::Note, "proxy", format_args!("stopped"));
    Ok(GOOD)
}

/// Whether this proxy shares keys with other nodes of a fleet, and so keeps copies of objects that are theirs.
fn shares_keys(arguments: &ProxyArguments) -> bool {
    let fleet = arguments.file.read.as_ref().and_then(|config| config.fleet.as_ref());
    fleet.is_some_and(|fleet| fleet.share.is_some() && fleet.members.is_empty())
}

/// Lets the process that serves inherited listeners next be told what it has to purge.
fn with_successor(arguments: &ProxyArguments, bound: BoundProxy) -> Result<BoundProxy, CommandFailure> {
    if !bound.has_successor() {
        return Ok(bound);
    }
    let socket = RuntimeDirectory::open()?.socket(&part(arguments))?;
    Ok(bound.with_successor(Arc::new(move |params: &Value| {
        let tell = |method| control::request(&socket, method, params.clone(), SUCCESSOR_TIME_MAX);
        let told = match tell(PURGE_HERE) {
            // A program from before this method.
            Err(nectary_host::Error::Fault { fault, .. }) if fault.kind == FaultKind::UnknownMethod => tell("purge"),
            told => told,
        };
        told.map(drop).map_err(|error| error.to_string())
    })))
}

/// Opens the store. A process that takes listeners over waits until the one before it has given the store up.
async fn open_store(
    arguments: &ProxyArguments,
    options: OpenOptions,
    is_next: bool,
) -> Result<OpenStore, CommandFailure> {
    let deadline = Instant::now() + STORE_PATIENCE;
    loop {
        match open_or_create_store(arguments, options.clone()).await {
            Err(failure) if failure.code() == BUSY && is_next && Instant::now() < deadline => {
                static WAITS: LogThrottle = LogThrottle::every(STORE_PATIENCE);
                WAITS.write(LogLevel::Note, "proxy", format_args!("waits for the store: {}", failure.message()));
                tokio::time::sleep(STORE_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

async fn serve(
    arguments: &ProxyArguments,
    bound: BoundProxy,
    store: &OpenStore,
    shutdown: &Shutdown,
    (signals, sources, live_config): (ReopenSignals, Arc<OnceLock<PageSources>>, Option<Arc<LiveConfig>>),
) -> Result<(), CommandFailure> {
    let proxy_of_status = Arc::new(OnceLock::new());
    let report = report(arguments, store, &proxy_of_status);
    let _ = sources.set(PageSources { report: report.clone(), proxy: proxy_of_status.clone() });
    // The control socket is made before the proxy listens, so that two proxies that start at the same time cannot share
    // an address by mistake.
    let fleet = FleetNode::join(arguments.file.read.as_ref(), store)?;
    let seat = fleet.as_ref().map(|fleet| fleet.seat().clone());
    let control = match start_control(arguments, (store, seat.as_ref()), &proxy_of_status, report) {
        Ok(control) => control,
        Err(failure) => {
            leave(fleet.as_ref()).await;
            return Err(failure);
        }
    };
    let bound = match &seat {
        Some(seat) => bound.with_fleet(seat.clone()),
        None => bound,
    };
    if let Some(fleet) = &fleet {
        tokio::select! {
            () = fleet.ready() => {}
            () = shutdown.requested() => {}
        }
    }
    match bound.serve(SpanSet::clone(store), shutdown.clone()) {
        Ok(proxy) => {
            announce(arguments, &proxy, store);
            let sockets = proxy.unix_sockets().iter().filter(|socket| socket.users == SocketUsers::Clients);
            let addresses = proxy.addresses().iter().map(ToString::to_string);
            let addresses = addresses.chain(sockets.map(ToString::to_string)).collect();
            let running = health::RunningProxy {
                addresses,
                stats: proxy.stats(),
                reopener: proxy.reopener(),
                limits: limits_of(arguments).figures(),
                config: live_config.clone(),
                fleet: seat,
            };
            let _ = proxy_of_status.set(running);
            let _watchdog = Watchdog::start();
            service_manager::ready(&format!("serves {}", served_addresses(arguments)));
            wait(arguments, proxy, (store, control, fleet), (signals, live_config)).await
        }
        Err(error) => {
            control.stop().await;
            leave(fleet.as_ref()).await;
            Err(error.into())
        }
    }
}

/// Refuses less memory than the store needs, and more than the machine has or a memory group allows: otherwise the kernel
/// would kill the process long after its start. Warns if little is left for all else.
fn check_memory(arguments: &ProxyArguments) -> Result<(), CommandFailure> {
    let memory_bytes = arguments.memory_bytes();
    let memory = format_size(memory_bytes);
    let spans = 1 + arguments.spans.spans.len() as u64;
    if memory_bytes < spans * MEMORY_BYTES_MIN {
        let least = format_size(spans * MEMORY_BYTES_MIN);
        let message = format!("--memory {memory} is too little: a store of {spans} spans needs at least {least}");
        let message = if spans == 1 { message.replace(" of 1 spans", "") } else { message };
        return Err(CommandFailure::new(USAGE, message, "give a larger --memory; 256M is the default"));
    }
    let Some(limit) = memory::limit() else { return Ok(()) };
    let all = format_size(limit.bytes);
    if memory_bytes > limit.bytes {
        let message = format!("--memory {memory} is more than {}, which is {all}", limit.source());
        return Err(CommandFailure::new(
            USAGE,
            message,
            "give a smaller --memory; half of that leaves room for all else",
        ));
    }
    if limit.bytes - memory_bytes < (limit.bytes / MEMORY_LEFT_SHARE).min(MEMORY_LEFT_BYTES) {
        let text = format_args!(
            "--memory {memory} leaves {} of {all} for connections and all else; the kernel ends a process that takes more",
            format_size(limit.bytes - memory_bytes)
        );
        log::write(LogLevel::Warning, "proxy", text);
    }
    Ok(())
}

/// Refuses to start with too few file descriptors, before a store is made.
fn check_descriptors(arguments: &ProxyArguments) -> Result<(), CommandFailure> {
    let processors = || std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let workers = arguments.workers.map_or_else(processors, u64::from);
    let needed = workers * WORKER_DESCRIPTORS + START_DESCRIPTORS;
    let limit = descriptors::limit().soft;
    if limit.saturating_sub(descriptors::open_now()) >= needed {
        return Ok(());
    }
    let message = format!("{needed} file descriptors are needed to start, and no more than {limit} may be open");
    Err(CommandFailure::new(FAILED, message, "raise the limit: `ulimit -n`, or LimitNOFILE= in a unit of systemd"))
}

/// Prints the store's notices and obeys signals until the proxy ends.
async fn wait(
    arguments: &ProxyArguments,
    proxy: Proxy,
    (store, control, fleet): (&OpenStore, ControlServer, Option<FleetNode>),
    (mut signals, live_config): (ReopenSignals, Option<Arc<LiveConfig>>),
) -> Result<(), CommandFailure> {
    static NOTES: LogThrottle = LogThrottle::every(Duration::from_secs(60));
    let reopener = proxy.reopener();
    let stats = proxy.stats();
    let mut left = std::pin::pin!(proxy.left());
    let mut ended = tokio::task::spawn_blocking(move || proxy.wait());
    let (mut control, mut released) = (Some(control), Ok(()));
    let mut ticks = tokio::time::interval(NOTES_INTERVAL);
    let mut looking_up = std::pin::pin!(look_up(origins_of(arguments)));
    let mut is_looked_up = false;
    loop {
        tokio::select! {
            ended = &mut ended => {
                if let Some(control) = control.take() {
                    released = give_up(store, control, fleet.as_ref()).await;
                }
                ended.context("the proxy panicked")??;
                return released;
            }
            // The control socket goes first: who can open the store can also make the socket.
            () = &mut left, if control.is_some() => if let Some(control) = control.take() {
                service_manager::stopping("finishes what is under way");
                released = give_up(store, control, fleet.as_ref()).await;
                let open = stats.snapshot().connections_open;
                if open > 0 {
                    let text = format_args!("the store is closed; {open} connections go on without it");
                    log::write(LogLevel::Note, "proxy", text);
                }
            },
            signal = signals.next() => match (&live_config, signal) {
                // What went wrong is in the log and in the status.
                (Some(config), "SIGHUP") => _ = reload(config.clone(), reopener.clone(), signal).await,
                _ => match reopen(reopener.clone()).await.as_slice() {
                [] => log::write(LogLevel::Note, "proxy", format_args!("{signal}: log and certificates reopened")),
                failed => for error in failed {
                    log::write(LogLevel::Error, "proxy", format_args!("{signal}: {error}; what was open stays in use"));
                },
                },
            },
            () = &mut looking_up, if !is_looked_up => is_looked_up = true,
            // What a closed store cannot read may be what the next process has written.
            _ = ticks.tick(), if control.is_some() => {
                for note in store.take_notes() {
                    NOTES.write(LogLevel::Warning, "store", format_args!("{note}"));
                }
                if let Some(fleet) = &fleet {
                    fleet.tell_problems();
                }
            },
        }
    }
}

/// Gives up the name of this part, its place in the fleet, and the store.
async fn give_up(store: &OpenStore, control: ControlServer, fleet: Option<&FleetNode>) -> Result<(), CommandFailure> {
    control.stop().await;
    leave(fleet).await;
    Ok(store.release().await.context("cannot write what was left")?)
}

/// Leaves the fleet, if there is one.
async fn leave(fleet: Option<&FleetNode>) {
    if let Some(fleet) = fleet {
        fleet.leave().await;
    }
}

/// Opens the log and the certificates again; returns what failed.
async fn reopen(reopener: ProxyReopener) -> Vec<String> {
    match tokio::task::spawn_blocking(move || reopener.reopen()).await {
        Ok(failed) => failed.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// Reads the configuration file again and uses it.
async fn reload(config: Arc<LiveConfig>, reopener: ProxyReopener, cause: &'static str) -> Result<(), String> {
    match tokio::task::spawn_blocking(move || config.reload(&reopener, cause)).await {
        Ok(Ok(())) => {
            service_manager::status(&format!("serves by the file that was read at {cause}"));
            Ok(())
        }
        Ok(Err(error)) => {
            service_manager::status(&format!("the former file stays in use, as the new one is wrong: {error}"));
            Err(error)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The servers of origins: each with its URL, its host and its port.
fn origins_of(arguments: &ProxyArguments) -> Vec<(String, String, u16)> {
    if let Some(config) = &arguments.file.read {
        let servers = config.origins.iter().flat_map(|origin| &origin.servers).map(|server| &server.url);
        let servers = servers.filter(|url| url.scheme != ServerScheme::Unix);
        return servers.map(|url| (url.to_string(), url.host.clone(), url.port)).collect();
    }
    let of_url = |url: &OriginUrl| {
        let (host, port) = url.host_and_port();
        (url.to_string(), host.to_owned(), port)
    };
    arguments.origin.origin.iter().map(of_url).collect()
}

/// Warns if the name of an origin's server has no address now. The proxy runs all the same: it serves what is stored.
async fn look_up(servers: Vec<(String, String, u16)>) {
    for (url, host, port) in servers {
        let reason = match tokio::net::lookup_host((host, port)).await.map(|mut found| found.next()) {
            Ok(Some(_)) => continue,
            Ok(None) => "it has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        log::write(
            LogLevel::Warning,
            "proxy",
            format_args!(
                "cannot look up the origin {url}: {reason}; see --origin and DNS. Each fetch looks it up again"
            ),
        );
    }
}

/// The limits that the options or the file say.
fn limits_of(arguments: &ProxyArguments) -> nectary_proxy::ProxyLimits {
    let of_file = arguments.file.read.as_ref().and_then(|config| nectary_proxy::options_of(config).ok());
    of_file.map_or_else(|| arguments.limits.limits(), |options| options.limits)
}

fn proxy_options(arguments: &ProxyArguments) -> Result<ProxyOptions, CommandFailure> {
    if let Some(config) = &arguments.file.read {
        return nectary_proxy::options_of(config).map_err(|problems| nectary_proxy::Error::Config(problems).into());
    }
    Ok(ProxyOptions {
        listen: tcp_addresses(&arguments.listen),
        unix: unix_of(arguments),
        certificates: arguments.tls.certificates()?,
        redirect: tcp_addresses(&arguments.tls.redirect_listen),
        origin: arguments.origin.origin.clone(),
        origin_ca: arguments.origin.origin_ca.clone(),
        origin_rules: arguments.origin.rules(),
        workers: arguments.workers.map_or(0, usize::from),
        default_ttl: arguments.default_ttl.clone(),
        stale_unreachable: arguments.stale_unreachable,
        access_log: arguments.access_log.clone(),
        clients: arguments.allow.clone(),
        connect_ports: arguments.connect_port.clone(),
        strip_tags: arguments.strip_tags,
        ignore_request_cache_control: arguments.ignore_request_cache_control,
        store_set_cookie: arguments.store_set_cookie,
        forwarded: ForwardedOptions { trusted: arguments.trust_forwarded.clone(), is_silent: arguments.no_forwarded },
        admin: arguments.admin.options()?,
        limits: arguments.limits.limits(),
        ..ProxyOptions::default()
    })
}

/// The Unix sockets for clients and for administration.
fn unix_of(arguments: &ProxyArguments) -> Vec<UnixSocket> {
    let clients = unix_sockets(&arguments.listen, SocketUsers::Clients);
    let redirect = unix_sockets(&arguments.tls.redirect_listen, SocketUsers::Redirect);
    let admin = unix_sockets(&arguments.admin.admin_listen, SocketUsers::Admin);
    clients.chain(redirect).chain(admin).collect()
}

/// The addresses at which clients are served.
fn served_addresses(arguments: &ProxyArguments) -> String {
    arguments.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// What tells the state of the proxy.
type Report = Arc<dyn Fn() -> PartStatus + Send + Sync>;

fn report(arguments: &ProxyArguments, store: &SpanSet, proxy: &Arc<OnceLock<health::RunningProxy>>) -> Report {
    let (store, proxy) = (store.clone(), proxy.clone());
    let name = served_addresses(arguments);
    Arc::new(move || health::status(&name, &store.stat(), proxy.get()))
}

fn start_control(
    arguments: &ProxyArguments,
    (store, fleet): (&SpanSet, Option<&FleetSeat>),
    proxy: &Arc<OnceLock<health::RunningProxy>>,
    report: Report,
) -> Result<ControlServer, CommandFailure> {
    let mut methods = ControlMethods::new();
    methods.status(move || report());
    let of_stat = store.clone();
    methods.register("stat", "the store's size, contents and counters", move |_| {
        let stat = serde_json::to_value(of_stat.stat());
        async move { stat.map_err(|error| ControlFault::new(FaultKind::Failed, error.to_string(), "")) }
    });
    let of_sync = store.clone();
    methods.register("sync", "makes everything put so far survive a power cut", move |_| {
        let store = of_sync.clone();
        async move {
            let failed = |error: String| ControlFault::new(FaultKind::Failed, error, "see `nectary status`");
            store.sync().await.map_err(|error| failed(error.to_string()))?;
            serde_json::to_value(store.stat().sequences).map_err(|error| failed(error.to_string()))
        }
    });
    let of_reopen = proxy.clone();
    methods.register(
        "reopen",
        "opens the access log again, and reads certificates again, as SIGUSR1 does",
        move |_| {
            let proxy = of_reopen.clone();
            async move {
                let Some(running) = proxy.get() else {
                    return Err(ControlFault::new(
                        FaultKind::Busy,
                        "the proxy is starting".to_owned(),
                        "try again in a moment",
                    ));
                };
                let failed = reopen(running.reopener.clone()).await;
                match failed.is_empty() {
                    true => Ok(json!({})),
                    false => Err(ControlFault::new(
                        FaultKind::Failed,
                        failed.join("; "),
                        "what was open stays in use; mend it",
                    )),
                }
            }
        },
    );
    let of_reload = proxy.clone();
    methods.register("reload", "reads the configuration file again and uses it, as SIGHUP does", move |_| {
        let proxy = of_reload.clone();
        async move {
            let Some(running) = proxy.get() else {
                return Err(ControlFault::new(
                    FaultKind::Busy,
                    "the proxy is starting".to_owned(),
                    "try again in a moment",
                ));
            };
            let Some(config) = &running.config else {
                let what = "the proxy has no configuration file".to_owned();
                return Err(ControlFault::new(FaultKind::Invalid, what, "start it with --config"));
            };
            let reloaded = reload(config.clone(), running.reopener.clone(), "reload").await;
            reloaded.map(|()| json!({})).map_err(|error| ControlFault::new(FaultKind::Failed, error, "mend the file"))
        }
    });
    register_purges(&mut methods, store, proxy, fleet);
    Ok(ControlServer::start(&RuntimeDirectory::open()?, &part(arguments), methods, ControlLimits::default())?)
}

/// Returns the part's name: its first address, and its process number if the port is not known yet.
fn part(arguments: &ProxyArguments) -> String {
    match arguments.listen.first() {
        Some(ListenAddress::Unix(path)) => format!("proxy-unix:{}", short_name(path)),
        Some(address) if address.is_any_port() => format!("proxy-{address}-{}", std::process::id()),
        Some(address) => format!("proxy-{address}"),
        None => "proxy-".to_owned(),
    }
}

/// A name for a path, which the path of the control socket has room for.
fn short_name(path: &Path) -> String {
    let text = path.display().to_string();
    if text.len() <= SHORT_NAME_BYTES_MAX {
        return text;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Describes the entries found when the store was opened; a large index is still being read in the background.
fn found_entries(entries: u64, is_loading: bool, milliseconds: u64) -> String {
    if is_loading {
        // A store without a checkpoint is not empty.
        let known = if entries == 0 { String::new() } else { format!(" ({entries} at the last checkpoint)") };
        format!("number of entries not known yet{known}, index still being read; opened in {milliseconds} ms")
    } else {
        format!("{entries} entries found in {milliseconds} ms")
    }
}

fn announce(arguments: &ProxyArguments, proxy: &Proxy, store: &SpanSet) {
    let stat = store.stat();
    let kind = match (&arguments.file.read, &arguments.origin.origin) {
        (Some(config), _) if config.sites.is_empty() => "forward proxy".to_owned(),
        (Some(config), _) => format!("proxy of {} sites", config.sites.len()),
        (None, Some(origin)) => format!("reverse proxy of {origin}"),
        (None, None) => "forward proxy".to_owned(),
    };
    let certificates = proxy.stats().certificates();
    let scheme = if proxy.stats().is_tls() { "https" } else { "http" };
    for address in proxy.addresses() {
        log::write(LogLevel::Note, "proxy", format_args!("{kind} on {scheme}://{address}"));
    }
    for address in proxy.redirect_addresses() {
        log::write(LogLevel::Note, "proxy", format_args!("clients of http://{address} are sent to https"));
    }
    for certificate in &certificates {
        if let Some((what, _)) = health::certificate_problem(certificate) {
            log::write(LogLevel::Warning, "proxy", format_args!("{what}"));
        }
    }
    let missing = proxy.stats().ordered_names().into_iter().filter(|found| found.not_after_s.is_none());
    let missing: Vec<String> = missing.map(|found| found.name).collect();
    if !missing.is_empty() {
        let (count, shown) = (missing.len(), missing[..missing.len().min(NAMES_SHOWN)].join(", "));
        log::write(LogLevel::Note, "proxy", format_args!("certificates are ordered for {count} names: {shown}"));
    }
    for address in proxy.admin_addresses() {
        log::write(LogLevel::Note, "proxy", format_args!("administration at http://{address}"));
    }
    for socket in proxy.unix_sockets() {
        let what = match socket.users {
            SocketUsers::Clients => format!("{kind} with {scheme} on {socket}"),
            SocketUsers::Redirect => format!("clients of {socket} are sent to https"),
            SocketUsers::Admin => format!("administration at {socket}"),
        };
        log::write(LogLevel::Note, "proxy", format_args!("{what}"));
    }
    let limits = proxy.stats().connection_limits();
    if let Some(limits) = limits.filter(|limits| limits.clients_max < u64::from(arguments.limits.connections_max) / 2) {
        let (clients, files) = (limits.clients_max, limits.descriptors);
        let text =
            format_args!("at most {clients} clients at a time, as {files} files may be open: raise `ulimit -Hn`");
        log::write(LogLevel::Warning, "proxy", text);
    }
    let (size, memory) = (format_size(stat.span_bytes), format_size(arguments.memory_bytes()));
    let entries = found_entries(stat.entries, stat.index_loading, stat.recovery.duration_us / 1000);
    log::write(LogLevel::Note, "store", format_args!("{}: {size}, {memory} of memory, {entries}", stat.device));
    let spans = 1 + arguments.spans.spans.len() as u64;
    // A store has whole blocks, so it may be a little smaller than was wanted.
    if let Some(wanted) = arguments.size.filter(|wanted| format_size(wanted.saturating_mul(spans)) != size) {
        let text = format_args!("--size {} is for a store that is made; this one has {size}", format_size(wanted));
        log::write(LogLevel::Note, "store", text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_line_counts_known_entries() {
        assert_eq!(found_entries(36_000, false, 12), "36000 entries found in 12 ms");
        let loading = found_entries(36_000, true, 12);
        let expected = "number of entries not known yet (36000 at the last checkpoint), index still being read";
        assert_eq!(loading, format!("{expected}; opened in 12 ms"));
        assert!(found_entries(0, true, 12).starts_with("number of entries not known yet, index still"));
    }
}
