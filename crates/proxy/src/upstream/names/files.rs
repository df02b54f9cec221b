//! The system's files about names: `/etc/hosts` and `/etc/resolv.conf`.
//!
//! Owns: parsing both, and following their changes. Before a lookup, but at most once a second, it is checked whether
//! the files are the same as before; a file that has changed is read again. Lines that are not understood are ignored.
//! *Source*: hosts(5), resolv.conf(5).

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::options::NameFiles;

/// The time between two checks whether a file has changed.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The longest part of a file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The maximum number of servers that are asked.
const SERVERS_MAX: usize = 8;

/// The maximum number of domains that are searched.
const SEARCH_MAX: usize = 16;

/// The names of `/etc/hosts` and their addresses.
pub(super) type Hosts = HashMap<String, Vec<IpAddr>>;

/// The settings of `/etc/resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResolverSettings {
    /// The servers, in the order in which they are asked.
    pub addresses: Vec<SocketAddr>,
    /// The domains that are appended to short names.
    pub search: Vec<String>,
    /// A name with fewer dots is short.
    pub dots_min: usize,
    /// The time for which one query waits for its answer.
    pub timeout: Duration,
    /// The number of times that each server is asked.
    pub attempts: usize,
}

/// Both files, as they were at the last check.
#[derive(Debug)]
pub(super) struct SystemFiles {
    paths: NameFiles,
    state: Mutex<SystemFilesState>,
}

#[derive(Debug)]
struct SystemFilesState {
    checked: Option<Instant>,
    hosts: ParsedFile<Hosts>,
    servers: ParsedFile<ResolverSettings>,
    changes: u64,
}

/// A parsed file, and what distinguishes it from later versions of the file.
#[derive(Debug)]
struct ParsedFile<T> {
    stamp: Option<Stamp>,
    content: Arc<T>,
}

/// Device, inode, length and time of change.
type Stamp = (u64, u64, u64, i64, i64);

/// What the files say now.
#[derive(Debug, Clone)]
pub(super) struct FilesNow {
    pub hosts: Arc<Hosts>,
    pub servers: Arc<ResolverSettings>,
    /// The number of times that the servers have changed.
    pub changes: u64,
}

impl SystemFiles {
    /// The files at these paths, which are read before the first lookup.
    pub fn new(paths: NameFiles) -> SystemFiles {
        let hosts = ParsedFile { stamp: None, content: Arc::default() };
        let servers = ParsedFile { stamp: None, content: Arc::new(parse_servers("")) };
        SystemFiles { paths, state: Mutex::new(SystemFilesState { checked: None, hosts, servers, changes: 0 }) }
    }

    /// What the files say now. *Cost*: two system calls a second, and reading what has changed.
    pub fn look_at(&self, now: Instant) -> FilesNow {
        let state = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.is_none_or(|checked| now.saturating_duration_since(checked) >= CHECK_EVERY) {
            state.checked = Some(now);
            state.hosts.follow(&self.paths.hosts, parse_hosts);
            if state.servers.follow(&self.paths.resolv_conf, parse_servers) {
                state.changes += 1;
            }
        }
        FilesNow { hosts: state.hosts.content.clone(), servers: state.servers.content.clone(), changes: state.changes }
    }
}

impl<T> ParsedFile<T> {
    /// Reads a file if it is not the same as before; returns whether it was read. A file that does not exist counts as
    /// empty. If it cannot be read, for example because no file descriptor is free, what it said before counts until the
    /// next check.
    fn follow(&mut self, path: &Path, parse: fn(&str) -> T) -> bool {
        let stamp = std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino(), it.len(), it.ctime(), it.ctime_nsec()));
        if stamp == self.stamp {
            return false;
        }
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        if read.is_err() && stamp.is_some() {
            return false;
        }
        self.content = Arc::new(parse(&String::from_utf8_lossy(&bytes)));
        self.stamp = stamp;
        true
    }
}

/// Parses the lines of `/etc/hosts`.
fn parse_hosts(text: &str) -> Hosts {
    let mut hosts = Hosts::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        for name in words {
            let addresses = hosts.entry(name.trim_end_matches('.').to_ascii_lowercase()).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    hosts
}

/// Parses the lines of `/etc/resolv.conf`. A server may have a port, as in `192.0.2.1:5353`.
fn parse_servers(text: &str) -> ResolverSettings {
    let mut servers = ResolverSettings {
        addresses: Vec::new(),
        search: Vec::new(),
        dots_min: 1,
        timeout: Duration::from_secs(5),
        attempts: 2,
    };
    for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                let word = words.next().unwrap_or_default();
                let address = word.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53)).or_else(|_| word.parse());
                servers.addresses.extend(address.ok().filter(|_| servers.addresses.len() < SERVERS_MAX));
            }
            Some("search" | "domain") => {
                let domains = words.map(|word| word.trim_matches('.').to_ascii_lowercase());
                servers.search = domains.filter(|domain| !domain.is_empty()).take(SEARCH_MAX).collect();
            }
            Some("options") => {
                for (name, value) in words.filter_map(|word| word.split_once(':')) {
                    let Ok(value) = value.parse::<usize>() else { continue };
                    match name {
                        "ndots" => servers.dots_min = value.min(15),
                        "timeout" => servers.timeout = Duration::from_secs(value.clamp(1, 30) as u64),
                        "attempts" => servers.attempts = value.clamp(1, 5),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if servers.addresses.is_empty() {
        servers.addresses.push(SocketAddr::from(([127, 0, 0, 1], 53)));
    }
    servers
}

/// The addresses of `localhost` and the names below it, which are never asked for. *Source*: RFC 6761, 6.3.
pub(super) fn local_addresses(name: &str) -> Option<[IpAddr; 2]> {
    let is_local = name == "localhost" || name.ends_with(".localhost");
    is_local.then_some([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)])
}

impl ResolverSettings {
    /// The full names to ask for in turn: a short name is first looked for in the domains to search.
    pub fn full_names(&self, name: &str) -> Vec<String> {
        if let Some(full) = name.strip_suffix('.') {
            return vec![full.to_owned()];
        }
        let mut names: Vec<String> = self.search.iter().map(|domain| format!("{name}.{domain}")).collect();
        let is_short = name.bytes().filter(|byte| *byte == b'.').count() < self.dots_min;
        names.insert(if is_short { names.len() } else { 0 }, name.to_owned());
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_parses_like_system() {
        let hosts = parse_hosts(
            "127.0.0.1\tlocalhost\n# 1.1.1.1 no\n\n::1 localhost ip6\n1.2.3.4 A.Example a # more\nnonsense b\n\
             1.2.3.4 a\n1.2.3.5 a\n9.9.9.9",
        );
        let of = |name: &str| hosts.get(name).map(|found| found.iter().map(IpAddr::to_string).collect::<Vec<_>>());
        assert_eq!(of("localhost").expect("two"), ["127.0.0.1", "::1"]);
        assert_eq!(of("a").expect("two"), ["1.2.3.4", "1.2.3.5"]);
        assert_eq!((of("a.example").expect("one").len(), of("b"), of("no")), (1, None, None));
    }

    #[test]
    fn resolver_file_parses_like_system() {
        let servers = parse_servers(
            "; a\n# nameserver 9.9.9.9\ndomain old\nnameserver 192.0.2.1\nnameserver not-an-address\n\
             nameserver fd00::1\nnameserver 127.0.0.1:5353\nsearch Corp.Example. example\n\
             options ndots:2 timeout:0 attempts:99 rotate unknown:1\nnonsense\n",
        );
        let expected = ["192.0.2.1:53", "[fd00::1]:53", "127.0.0.1:5353"].map(|it| it.parse().expect("an address"));
        assert_eq!(servers.addresses, expected);
        assert_eq!((servers.dots_min, servers.timeout.as_secs(), servers.attempts), (2, 1, 5));
        assert_eq!(servers.full_names("a"), ["a.corp.example", "a.example", "a"]);
        assert_eq!(servers.full_names("a.b.c"), ["a.b.c", "a.b.c.corp.example", "a.b.c.example"]);
        assert_eq!(servers.full_names("a."), ["a"]);
        assert_eq!(parse_servers("").addresses, ["127.0.0.1:53".parse().expect("an address")]);
        let many = parse_servers(&"nameserver 1.1.1.1\n".repeat(SERVERS_MAX + 1));
        assert_eq!(many.addresses.len(), SERVERS_MAX);
    }

    #[test]
    fn changed_files_are_read_again() {
        let folder = std::env::temp_dir().join(format!("nectary-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let paths = NameFiles { hosts: folder.join("hosts"), resolv_conf: folder.join("resolv.conf") };
        let (files, mut now) = (SystemFiles::new(paths.clone()), Instant::now());
        assert_eq!((files.look_at(now).hosts.len(), files.look_at(now).changes), (0, 0));
        std::fs::write(&paths.hosts, "1.1.1.1 a").expect("written");
        std::fs::write(&paths.resolv_conf, "nameserver 1.1.1.1").expect("written");
        assert_eq!(files.look_at(now).hosts.len(), 0, "not again within a second");
        now += CHECK_EVERY;
        assert_eq!((files.look_at(now).hosts.len(), files.look_at(now).changes), (1, 1));
        now += CHECK_EVERY;
        assert_eq!(files.look_at(now).changes, 1);
        std::fs::write(folder.join("new"), "1.1.1.1 a b").expect("written");
        std::fs::rename(folder.join("new"), &paths.hosts).expect("renamed");
        std::fs::remove_file(&paths.resolv_conf).expect("removed");
        now += CHECK_EVERY;
        assert_eq!(files.look_at(now).changes, 2);
        std::fs::rename(&paths.hosts, folder.join("kept")).expect("renamed");
        std::fs::create_dir(&paths.hosts).expect("a folder, which cannot be read");
        now += CHECK_EVERY;
        assert_eq!(files.look_at(now).hosts.len(), 2, "what it said before");
        std::fs::remove_dir(&paths.hosts).expect("removed");
        std::fs::rename(folder.join("kept"), &paths.hosts).expect("renamed");
        std::fs::write(&paths.hosts, "1.1.1.1 a c").expect("written");
        now += CHECK_EVERY;
        let seen = files.look_at(now);
        assert_eq!((seen.hosts.len(), seen.changes, *seen.servers == parse_servers("")), (2, 2, true));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
