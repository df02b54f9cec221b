//! The contestants of the suite, each with its configuration.
//!
//! Owns: Nectary with its defaults, over HTTP/1, TLS and HTTP/2; nginx, Varnish and Squid configured as the suite's authors configure them for their
//! published results (validation on, no invented lifetimes, no grace); and the origin itself, as a proxy that caches
//! nothing. Their configurations are here in full.

use crate::guard::{GuardedProcess, find_program};
use crate::http::wait_listening;
use crate::nectary::certificates::ServerCertificates;
use crate::nectary::{self, ProxyCommand};
use crate::report::not_run;
use crate::scratch::{ScratchFolder, free_address};
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A proxy in front of the suite's server.
#[derive(Debug)]
pub struct SuiteContestant {
    /// Name and version.
    pub name: String,
    /// The address for requests of the suite's client.
    pub address: SocketAddr,
    /// How the suite's client speaks to it.
    pub protocol: SuiteProtocol,
    /// The authority that the client trusts.
    pub ca: Option<PathBuf>,
    _process: Option<GuardedProcess>,
    _scratch: Option<ScratchFolder>,
}

/// How the suite's client speaks to a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteProtocol {
    /// HTTP/1.1 without TLS.
    Http1,
    /// HTTP/1.1 with TLS.
    Tls,
    /// HTTP/2 with TLS.
    Http2,
}

impl SuiteProtocol {
    /// All of them; the first is the one of all contestants but Nectary.
    pub const ALL: [SuiteProtocol; 3] = [SuiteProtocol::Http1, SuiteProtocol::Tls, SuiteProtocol::Http2];

    /// What a report calls it.
    fn words(self) -> &'static str {
        match self {
            SuiteProtocol::Http1 => "",
            SuiteProtocol::Tls => " over TLS",
            SuiteProtocol::Http2 => " over HTTP/2",
        }
    }
}

impl SuiteContestant {
    /// The URL that those of all requests begin with.
    pub fn base(&self) -> String {
        let scheme = if self.protocol == SuiteProtocol::Http1 { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    fn new(
        name: String,
        address: SocketAddr,
        process: Option<GuardedProcess>,
        scratch: Option<ScratchFolder>,
    ) -> SuiteContestant {
        SuiteContestant {
            name,
            address,
            protocol: SuiteProtocol::Http1,
            ca: None,
            _process: process,
            _scratch: scratch,
        }
    }
}

/// A proxy of the suite's server that somebody else runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContestant {
    name: String,
    address: SocketAddr,
}

impl RunningContestant {
    /// It in front of the suite's server; it goes on afterwards.
    pub fn contestant(&self) -> SuiteContestant {
        SuiteContestant::new(self.name.clone(), self.address, None, None)
    }
}

/// Reads `NAME=ADDRESS`.
pub fn parse_running(text: &str) -> Result<RunningContestant, String> {
    let (name, address) = text.split_once('=').ok_or("it is not NAME=ADDRESS")?;
    let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
    match name.is_empty() {
        true => Err("it has no name".to_owned()),
        false => Ok(RunningContestant { name: name.to_owned(), address }),
    }
}

/// Starts Nectary once for each protocol, then the other contestants that are installed; if `only` is given, only those of `nginx`, `varnish`,
/// `squid` and `nothing` that it names.
pub fn start(origin: SocketAddr, only: Option<&[String]>) -> Result<Vec<SuiteContestant>> {
    type Start = fn(SocketAddr) -> Result<SuiteContestant>;
    let peers: [(&str, &str, Start); 3] =
        [("nginx", "nginx", nginx), ("varnish", "varnishd", varnish), ("squid", "squid", squid)];
    let is_wanted = |name: &str| only.is_none_or(|only| only.iter().any(|wanted| wanted == name));
    let mut contestants =
        SuiteProtocol::ALL.map(|protocol| nectary(origin, protocol)).into_iter().collect::<Result<Vec<_>>>()?;
    for (name, program, start) in peers {
        if !is_wanted(name) {
            continue;
        }
        match find_program(program) {
            Some(_) => contestants.push(start(origin)?),
            None => not_run(format!("cache-tests: {program} is not installed")),
        }
    }
    if is_wanted("nothing") {
        contestants.push(SuiteContestant::new("no cache".to_owned(), origin, None, None));
    }
    Ok(contestants)
}

fn nectary(origin: SocketAddr, protocol: SuiteProtocol) -> Result<SuiteContestant> {
    let scratch = ScratchFolder::new("cache-tests-nectary")?;
    let mut command = ProxyCommand::new(scratch.path(), Some(format!("http://{origin}")))?;
    let (_, version) = nectary::run(&["--version"], scratch.path())?;
    let mut ca = None;
    if protocol != SuiteProtocol::Http1 {
        let certificates = ServerCertificates::make(scratch.path(), "127.0.0.1")?;
        command.arguments.extend(certificates.options());
        ca = Some(certificates.ca);
    }
    let nectary = command.start()?;
    let name = version.trim().to_owned() + protocol.words();
    let contestant = SuiteContestant::new(name, nectary.listen, Some(nectary.process), Some(scratch));
    Ok(SuiteContestant { protocol, ca, ..contestant })
}

fn nginx(origin: SocketAddr) -> Result<SuiteContestant> {
    let (scratch, address) = (ScratchFolder::new("cache-tests-nginx")?, free_address()?);
    let folder = scratch.path().display();
    let configuration = format!(
        "daemon off;
master_process off;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=objects:8m max_size=1000m inactive=600m;
  server {{
    listen {address};
    location / {{
      proxy_pass http://{origin};
      proxy_cache objects;
      proxy_cache_revalidate on;
      proxy_http_version 1.1;
    }}
  }}
}}
"
    );
    let file = scratch.join("nginx.conf");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new(program("nginx")?);
    command.arg("-p").arg(scratch.path()).arg("-c").arg(&file).arg("-e").arg("stderr");
    spawn(version("nginx", "-v"), command, address, scratch)
}

fn varnish(origin: SocketAddr) -> Result<SuiteContestant> {
    let (scratch, address) = (ScratchFolder::new("cache-tests-varnish")?, free_address()?);
    let (host, port) = (origin.ip(), origin.port());
    let file = scratch.join("default.vcl");
    std::fs::write(&file, format!("vcl 4.1;\nbackend default {{ .host = \"{host}\"; .port = \"{port}\"; }}\n"))?;
    let mut command = Command::new(program("varnishd")?);
    command.args(["-F", "-j", "none", "-n"]).arg(scratch.join("work")).arg("-f").arg(&file);
    command.arg("-a").arg(address.to_string()).args(["-s", "malloc,64m", "-T", "none"]);
    command.args(["-p", "default_ttl=0", "-p", "default_grace=0", "-p", "default_keep=3600"]);
    spawn(version("varnishd", "-V").replace("varnishd", "varnish"), command, address, scratch)
}

fn squid(origin: SocketAddr) -> Result<SuiteContestant> {
    let (scratch, address) = (ScratchFolder::new("cache-tests-squid")?, free_address()?);
    // If Squid is started as root, it drops its privileges, and must still be able to write to this directory.
    std::fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let (folder, host, port) = (scratch.path().display(), origin.ip(), origin.port());
    let configuration = format!(
        "http_port {address} accel defaultsite={host}:{port} no-vhost
cache_peer {host} parent {port} 0 no-query no-digest originserver default name=origin
acl everybody src all
cache_peer_access origin allow everybody
http_access allow everybody
cache_mem 64 MB
access_log none
cache_store_log none
cache_log {folder}/cache.log
pid_filename {folder}/pid
coredump_dir {folder}
pinger_enable off
shutdown_lifetime 1 second
connect_retries 3
visible_hostname squid
"
    );
    let file = scratch.join("squid.conf");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new(program("squid")?);
    // Use one process, so that nothing remains when it is killed, and a unique name for its shared memory.
    command.args(["-N", "-n", &format!("nectary{}", std::process::id()), "-f"]).arg(&file);
    spawn(version("squid", "-v"), command, address, scratch)
}

fn program(name: &str) -> Result<PathBuf> {
    find_program(name).with_context(|| format!("{name} is not installed"))
}

fn spawn(name: String, command: Command, address: SocketAddr, scratch: ScratchFolder) -> Result<SuiteContestant> {
    let process = GuardedProcess::spawn(&name, command, &scratch.join("log"), None)?;
    wait_listening(address, Duration::from_secs(60))
        .with_context(|| format!("{name} does not listen on {address}\n{}", process.log_tail()))?;
    Ok(SuiteContestant::new(name, address, Some(process), Some(scratch)))
}

/// Returns a program's name and version; only the name if it does not print a version.
fn version(name: &str, option: &str) -> String {
    let output = Command::new(find_program(name).unwrap_or_else(|| Path::new(name).to_owned())).arg(option).output();
    let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut numbers = text.split(|character: char| !character.is_ascii_digit() && character != '.');
    let number = numbers.find(|part| part.contains('.') && part.starts_with(|first: char| first.is_ascii_digit()));
    number.map_or_else(|| name.to_owned(), |number| format!("{name} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_contestants_have_name_and_address() {
        let running = parse_running("varnish=127.0.0.1:8080").expect("a contestant").contestant();
        assert_eq!((running.name.as_str(), running.base().as_str()), ("varnish", "http://127.0.0.1:8080"));
        for wrong in ["", "varnish", "=127.0.0.1:8080", "varnish=8080"] {
            assert!(parse_running(wrong).is_err(), "{wrong}");
        }
    }
}
