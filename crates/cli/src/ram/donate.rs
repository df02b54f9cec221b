//! `nectary ram donate`: lends memory of this machine to others.
//!
//! Owns: the check of who may connect, the control socket of a donor, and its reaction to signals. Leaves to others:
//! memory and devices (`nectary-ram`), serving (`nectary-nbd`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use nectary_block::{format_size, parse_duration, parse_size};
use nectary_host::log::{self, LogLevel};
use nectary_host::tls::ServerTls;
use nectary_host::{ControlLimits, ControlMethods, ControlServer, PartHealth, PartStatus, RuntimeDirectory, Shutdown};
use nectary_nbd::limits::THREADS_MAX;
use nectary_nbd::{ExportTable, ListenEndpoint, NetworkBlockServer, ServerFigures, ServerOptions};
use nectary_ram::donor::page::check_label;
use nectary_ram::donor::{Donor, DonorFigures, DonorOptions};
use serde_json::json;

use crate::exit::{CommandFailure, GOOD, USAGE, listening};
use crate::output;
use crate::services::service_manager;

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  On this machine alone:
    nectary ram donate --listen 127.0.0.1:7070 --memory 1G
  For others, who show certificates:
    nectary ram donate --listen :7070 --memory 8G \\
      --tls-cert server-cert.pem --tls-key server-key.pem \\
      --tls-client-ca ca-cert.pem                  (`nectary cert` makes them)
  For others on a network that is trusted:
    nectary ram donate --listen 10.0.0.1:7070 --memory 8G --insecure";

/// The interval at which a donor that is to end checks whether its clients have gone.
const LEAVE_PAUSE: Duration = Duration::from_millis(50);

/// `ram donate`.
#[derive(Debug, Args)]
pub struct DonateArguments {
    /// Address to listen on, for example 10.0.0.1:7070, :7070 for every address, or unix:PATH; may be given again
    #[arg(long, value_name = "ADDR", required = true, value_parser = parse_listen)]
    pub listen: Vec<ListenEndpoint>,
    /// Memory to lend, for example 8G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: u64,
    /// The most that one device may have; all memory if it is not given
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub quota: Option<u64>,
    /// Take memory when it is first written, and do not lock it: it may be swapped out, or not be there when needed
    #[arg(long)]
    pub on_demand: bool,
    /// Label of this donor, for example rack=a; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<String>,
    /// Threads that share the connections; as many as there are processors if it is not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
    pub threads: Option<u64>,
    /// Serve addresses beyond this machine without certificates of clients: everybody who reaches them can read and
    /// write
    #[arg(long)]
    pub insecure: bool,
    /// Certificate of this donor, a PEM file; with it every connection must be encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Clients must show a certificate that one of this PEM file has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// How long SIGTERM waits for clients to leave while devices hold data
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    pub grace: Duration,
}

/// Parses `IP:PORT`, `:PORT`, or an address as `export --nbd` accepts it.
fn parse_listen(text: &str) -> Result<ListenEndpoint, String> {
    if text.starts_with("unix:") || text.starts_with("tcp:") {
        return text.parse();
    }
    let all = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    let address = all.unwrap_or_else(|| text.replacen("localhost:", "127.0.0.1:", 1));
    address
        .parse::<SocketAddr>()
        .map(ListenEndpoint::Tcp)
        .map_err(|_| format!("expected IP:PORT, :PORT or unix:PATH, found \"{text}\""))
}

fn parse_label(text: &str) -> Result<String, String> {
    check_label(text).map(|()| text.to_owned())
}

/// Lends memory until a signal arrives.
pub async fn run(arguments: &DonateArguments) -> Result<u8, CommandFailure> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            let tls = ServerTls::load(certificate, key, arguments.tls_client_ca.as_deref())?;
            crate::cert::note_end(certificate);
            Some(tls)
        }
        _ => None,
    };
    check_public(arguments, tls.as_ref())?;
    let donor = Donor::new(DonorOptions {
        memory_bytes: arguments.memory,
        quota_bytes: arguments.quota,
        on_demand: arguments.on_demand,
        labels: arguments.label.clone(),
    })?;
    let mut options = ServerOptions::default();
    (options.tls, options.insecure) = (tls, arguments.insecure);
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    options.threads = arguments.threads.map_or_else(processors, |count| count as usize);
    let server =
        NetworkBlockServer::start(&arguments.listen, ExportTable::of(donor.source()), options).map_err(listening)?;
    let control = start_control(&server, &donor)?;
    let addresses = server.addresses().iter().map(|address| match address {
        ListenEndpoint::Tcp(address) => format!("{address}\n"),
        unix @ ListenEndpoint::Unix(_) => format!("{}\n", unix.url("", arguments.tls_cert.is_some())),
    });
    output::text(&addresses.collect::<String>())?;
    service_manager::ready("lends memory");
    shutdown.requested().await;
    service_manager::stopping("waits for its clients to leave");
    leave(&donor, arguments.grace).await;
    control.stop().await;
    server.stop().await.context("the end of the last requests")?;
    Ok(GOOD)
}

/// Refuses to listen on addresses that other machines can reach if clients need no certificate.
fn check_public(arguments: &DonateArguments, tls: Option<&ServerTls>) -> Result<(), CommandFailure> {
    let is_public =
        |listen: &&ListenEndpoint| matches!(listen, ListenEndpoint::Tcp(address) if !address.ip().is_loopback());
    let is_closed = tls.is_some_and(ServerTls::wants_certificates);
    match arguments.listen.iter().find(is_public).filter(|_| !is_closed && !arguments.insecure) {
        None => Ok(()),
        Some(listen) => Err(CommandFailure::new(
            USAGE,
            format!("{listen}: everybody who reaches this address could read and write the memory"),
            "give --tls-cert, --tls-key and --tls-client-ca (`nectary cert` makes them), or --insecure on a network that is \
             trusted",
        )),
    }
}

/// Waits for clients to leave, because their data here is lost when the donor ends. A client that has crashed or is cut
/// off has not left: what is here may be all that is left of its data.
async fn leave(donor: &Donor, grace: Duration) {
    donor.leave();
    let note = |text: String| log::write(LogLevel::Note, "donor", format_args!("{text}"));
    let deadline = Instant::now() + grace;
    let holding = || -> Vec<String> {
        let devices = donor.figures().devices.into_iter().filter(|device| device.used_bytes > 0);
        let line = |device: nectary_ram::donor::DeviceFigures| {
            let (used, connections) = (format_size(device.used_bytes), device.connections);
            let is_away = device.is_attached && connections == 0;
            let clients = if is_away { "its client is away".to_owned() } else { format!("{connections} connections") };
            format!("{used} of device {} ({clients})", device.id)
        };
        devices.map(line).collect()
    };
    let has_clients = || {
        let mut held = donor.figures().devices.into_iter().filter(|device| device.used_bytes > 0);
        held.any(|device| device.connections > 0 || device.is_attached)
    };
    if has_clients() {
        let (held, seconds) = (holding().join(", "), grace.as_secs());
        let move_it =
            "devices with spares move it there; for others, `nectary ram replace DEVICE` on their machines does";
        let end = "a second signal ends it at once";
        note(format!("holds {held}: waits {seconds} s for its clients to leave; {move_it}; {end}"));
    }
    while has_clients() && Instant::now() < deadline {
        tokio::time::sleep(LEAVE_PAUSE).await;
    }
    match holding() {
        held if held.is_empty() => note("holds nothing, and ends".to_owned()),
        held => note(format!("ends, and with it {}", held.join(", "))),
    }
}

fn start_control(server: &NetworkBlockServer, donor: &Donor) -> Result<ControlServer, CommandFailure> {
    let name = server.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let first = server.addresses().first().map(ToString::to_string).unwrap_or_default();
    let (figures, donor) = (server.reader(), donor.clone());
    let mut methods = ControlMethods::new();
    methods.status(move || status(&name, &figures().0, &donor.figures()));
    let directory = RuntimeDirectory::open()?;
    // The path of a socket has a short limit: if the name is too long, the process number is used.
    let part = match directory.socket(&format!("donor-{first}")) {
        Ok(_) => format!("donor-{first}"),
        Err(_) => format!("donor-{}", std::process::id()),
    };
    Ok(ControlServer::start(&directory, &part, methods, ControlLimits::default())?)
}

/// Returns the status of a donor, as `nectary status` shows it.
fn status(name: &str, server: &ServerFigures, donor: &DonorFigures) -> PartStatus {
    let mut status = PartStatus::healthy("donor", name);
    if server.turned_away > 0 {
        let what = format!("{} clients were turned away, as {} are served", server.turned_away, server.connections);
        status = status.with_problem(PartHealth::Degraded, what, "let clients use fewer connections");
    }
    status.with_detail(json!({ "donor": donor, "server": server }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_scheme_is_optional() {
        for (text, listen) in [
            ("127.0.0.1:7070", "tcp:127.0.0.1:7070"),
            ("localhost:7070", "tcp:127.0.0.1:7070"),
            (":7070", "tcp:[::]:7070"),
            ("[::1]:7070", "tcp:[::1]:7070"),
            ("tcp:10.0.0.1:1", "tcp:10.0.0.1:1"),
            ("unix:/run/a", "unix:/run/a"),
        ] {
            assert_eq!(parse_listen(text).unwrap().to_string(), listen);
        }
        assert!(parse_listen("h1:7070").is_err() && parse_listen("").is_err());
    }
}
