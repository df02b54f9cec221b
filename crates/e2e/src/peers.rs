//! The peers that Nectary is compared with: nginx and Varnish, each configured to answer from memory with one worker.
//!
//! Promises configurations that favour the peer if there is a choice: no access log, no added headers, files in memory
//! (tmpfs), as many Varnish threads as there are connections; nginx with defaults, and tuned with its open file cache.
//! The configurations are here in full, so that they can be checked.

use crate::guard::{self, GuardedProcess};
use crate::http::wait_listening;
use crate::nectary::certificates::ServerCertificates;
use crate::scratch::{ScratchFolder, free_address};
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A caching proxy that runs in front of an origin.
#[derive(Debug)]
pub struct PeerProxy {
    /// Name for reports, with the version.
    pub name: String,
    /// The address that it listens on.
    pub address: SocketAddr,
    process: GuardedProcess,
    _scratch: ScratchFolder,
}

impl PeerProxy {
    /// Starts nginx: one worker, `proxy_cache` on tmpfs; if `tuned`, with its open file cache, which is off by default.
    pub fn nginx(origin: SocketAddr, tuned: bool, cpu: Option<usize>) -> Result<Self> {
        Self::nginx_in(ScratchFolder::in_memory("nginx")?, origin, tuned, cpu)
    }

    /// As [`nginx`](Self::nginx), with its cache in another directory.
    pub fn nginx_in(scratch: ScratchFolder, origin: SocketAddr, tuned: bool, cpu: Option<usize>) -> Result<Self> {
        let program = guard::find_program("nginx").context("nginx is not installed (Debian package nginx-light)")?;
        let address = free_address()?;
        let folder = scratch.path().display();
        // Each open file costs a descriptor; the least recently used files are closed first. Connections and the cache
        // itself need the remaining descriptors.
        let files = guard::files_max().min(60_000).saturating_sub(4000).max(512);
        let open_files = match tuned {
            true => format!("max={files} inactive=3600s"),
            false => "off".to_owned(),
        };
        let configuration = format!(
            "daemon off;
# One process that is the worker itself, so that nothing is left when it is killed.
master_process off;
worker_processes 1;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 4096; use epoll; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  tcp_nodelay on;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  open_file_cache {open_files};
  open_file_cache_valid 3600s;
  open_file_cache_min_uses 1;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=objects:256m max_size=32g inactive=1d use_temp_path=off;
  upstream origin {{ server {origin}; keepalive 64; }}
  server {{
    listen {address} backlog=1024;
    location / {{
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_cache objects;
      proxy_cache_lock on;
    }}
  }}
}}
"
        );
        let file = scratch.join("nginx.conf");
        std::fs::write(&file, configuration)?;
        let mut command = Command::new(&program);
        command.arg("-p").arg(scratch.path()).arg("-c").arg(&file).arg("-e").arg("stderr");
        let name = version("nginx", &program, "-v") + if tuned { " tuned" } else { "" };
        Self::start(name, command, address, scratch, cpu)
    }

    /// Starts nginx with HTTP/2 and without TLS: one worker, which passes all requests on.
    pub fn nginx_http2(origin: SocketAddr) -> Result<Self> {
        let program = guard::find_program("nginx").context("nginx is not installed (Debian package nginx-light)")?;
        let (scratch, address) = (ScratchFolder::in_memory("nginx-http2")?, free_address()?);
        let folder = scratch.path().display();
        let configuration = format!(
            "daemon off;
master_process off;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen {address} http2;
    location / {{ proxy_pass http://{origin}; }}
  }}
}}
"
        );
        let file = scratch.join("nginx.conf");
        std::fs::write(&file, configuration)?;
        let mut command = Command::new(&program);
        command.arg("-p").arg(scratch.path()).arg("-c").arg(&file).arg("-e").arg("stderr");
        Self::start(version("nginx", &program, "-v"), command, address, scratch, None)
    }

    /// Starts nginx with TLS and HTTP/2: one worker, `proxy_cache` on tmpfs with its open file cache. It is the nginx of
    /// Debian 13 if that has been unpacked, otherwise the installed one.
    pub fn nginx_edge(origin: SocketAddr, certificates: &ServerCertificates, cpu: Option<usize>) -> Result<Self> {
        let installed = guard::find_program("nginx").context("nginx is not installed (Debian package nginx-light)")?;
        let (scratch, address) = (ScratchFolder::in_memory("nginx-edge")?, free_address()?);
        let folder = scratch.path().display();
        let (certificate, key) = (certificates.certificate.display(), certificates.key.display());
        let configuration = format!(
            "daemon off;
master_process off;
worker_processes 1;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 16384; use epoll; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  tcp_nodelay on;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  open_file_cache max=1000 inactive=3600s;
  open_file_cache_valid 3600s;
  open_file_cache_min_uses 1;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=objects:64m max_size=1g inactive=1d use_temp_path=off;
  ssl_certificate {certificate};
  ssl_certificate_key {key};
  ssl_protocols TLSv1.2 TLSv1.3;
  server {{
    listen {address} ssl http2 backlog=1024;
    location / {{
      proxy_pass http://{origin};
      proxy_cache objects;
      proxy_cache_lock on;
    }}
  }}
}}
"
        );
        let file = scratch.join("nginx.conf");
        std::fs::write(&file, configuration)?;
        let command = |argument: &[&std::ffi::OsStr]| {
            let mut command = match debian13() {
                // Its own libraries, found by its own loader.
                Some(root) => {
                    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
                    command.arg("--library-path").arg(root.join("usr/lib/x86_64-linux-gnu"));
                    command.arg(root.join("usr/sbin/nginx"));
                    command
                }
                None => Command::new(&installed),
            };
            command.args(argument);
            command
        };
        let name = version_of("nginx", command(&["-v".as_ref()]));
        let folder = scratch.path().as_os_str().to_owned();
        let arguments =
            ["-p".as_ref(), folder.as_ref(), "-c".as_ref(), file.as_ref(), "-e".as_ref(), "stderr".as_ref()];
        Self::start(name, command(&arguments), address, scratch, cpu)
    }

    /// Starts Varnish: malloc storage, one pool of `threads` threads.
    pub fn varnish(origin: SocketAddr, threads: usize, cpu: Option<usize>) -> Result<Self> {
        let program = guard::find_program("varnishd").context("varnishd is not installed (Debian package varnish)")?;
        let scratch = ScratchFolder::in_memory("varnish")?;
        let address = free_address()?;
        let (host, port) = (origin.ip(), origin.port());
        let file = scratch.join("default.vcl");
        std::fs::write(&file, format!("vcl 4.1;\nbackend default {{ .host = \"{host}\"; .port = \"{port}\"; }}\n"))?;
        let mut command = Command::new(&program);
        command.args(["-F", "-j", "none", "-n"]).arg(scratch.join("work")).arg("-f").arg(&file);
        command.arg("-a").arg(address.to_string()).args(["-s", "malloc,8g", "-T", "none"]);
        command.args(["-p", "thread_pools=1"]);
        command.arg("-p").arg(format!("thread_pool_max={}", threads.max(100)));
        command.arg("-p").arg(format!("thread_pool_min={threads}"));
        let name = version("varnish", &program, "-V");
        Self::start(name, command, address, scratch, cpu)
    }

    fn start(
        name: String,
        command: Command,
        address: SocketAddr,
        scratch: ScratchFolder,
        cpu: Option<usize>,
    ) -> Result<Self> {
        let process = GuardedProcess::spawn(&name, command, &scratch.join("log"), cpu)?;
        wait_listening(address, Duration::from_secs(30))
            .with_context(|| format!("{name} does not listen on {address}\n{}", process.log_tail()))?;
        Ok(Self { name, address, process, _scratch: scratch })
    }

    /// The process that was started.
    pub fn process(&self) -> &GuardedProcess {
        &self.process
    }
}

/// The root of Debian 13 with nginx that `ci/setup peers` has unpacked, if it is there.
fn debian13() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let root = own.ancestors().map(|folder| folder.join("tools/debian13")).find(|root| root.is_dir())?;
    root.join("usr/sbin/nginx").is_file().then_some(root)
}

/// Returns a program's name and version; only the name if it does not print a version.
fn version(name: &str, program: &Path, option: &str) -> String {
    let mut command = Command::new(program);
    command.arg(option);
    version_of(name, command)
}

/// Like [`version`], with the command that prints it.
fn version_of(name: &str, mut command: Command) -> String {
    let output = command.output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    let number = text.split(|character: char| !character.is_ascii_digit() && character != '.');
    let number = number.filter(|part| part.contains('.') && part.starts_with(|first: char| first.is_ascii_digit()));
    number.max_by_key(|part| part.len()).map_or_else(|| name.to_owned(), |number| format!("{name} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content;
    use crate::http::HttpConnection;
    use crate::origin::DeterministicOrigin;
    use crate::report::not_run;

    #[test]
    fn peers_answer_the_second_request_themselves() {
        let origin = DeterministicOrigin::start().unwrap();
        for (name, program) in [("nginx", "nginx"), ("varnish", "varnishd")] {
            if guard::find_program(program).is_none() {
                not_run(format!("{name}: {program} is not installed"));
                continue;
            }
            let peer = match name {
                "nginx" => PeerProxy::nginx(origin.address(), true, None),
                _ => PeerProxy::varnish(origin.address(), 20, None),
            };
            let peer = peer.unwrap();
            let target = format!("/o/1?size=1024&cc=max-age=600&{name}");
            let mut client = HttpConnection::new(peer.address, Duration::from_secs(10));
            for _ in 0..3 {
                assert!(client.get(&target).unwrap().body == content::body(&target, 1, 1024), "{}", peer.name);
            }
            assert_eq!(origin.count(&target).requests, 1, "{}", peer.name);
        }
    }
}
