//! The proxies of a run: which there are, where their programs are, and how each is configured.
//!
//! Owns: the configurations, one file each in `peers/`, with the source of each line; the versions. Promises: what a
//! proxy is given follows from [`ProxyResources`] alone, so that all are given the same. Leaves to others: disks, memory
//! groups and processes (`site`).

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// What a proxy may use of its memory group, in percent: the rest is for its index, connections, and the page cache.
const MEMORY_PERCENT: u64 = 60;
/// The same of Squid, whose process is about three times as large as its memory for objects, as its wiki says.
const SQUID_PERCENT: u64 = 33;
/// What the cache on a file system may use of its disk, in percent: the rest is for the file system, and for what is
/// being written. nginx and Squid look at the size from time to time only.
const FILES_PERCENT: u64 = 85;
/// What one file may use of a file system with few inodes, in percent: on the smallest disk, with blocks of 4 KiB, a
/// journal of 16 MiB and a reserve of 4 MiB leave 88.
const FILE_PERCENT: u64 = 85;
/// The number of files that a proxy may have open, and how many of them nginx keeps open.
const FILES_OPEN: u64 = 16_384;
const FILES_KEPT_OPEN: u64 = 8192;
/// The size of nginx's table of keys. *Units*: MB; a megabyte has about 8,000 keys.
const KEYS_MB: u64 = 24;

/// A proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyKind {
    /// Nectary.
    Nectary,
    /// nginx.
    Nginx,
    /// Varnish Cache.
    Varnish,
    /// Squid.
    Squid,
    /// HAProxy, whose cache is in memory only.
    Haproxy,
    /// Apache Traffic Server.
    TrafficServer,
}

/// Where a proxy keeps objects in a stage of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxyStorage {
    /// In memory, if it can be told so.
    Memory,
    /// On its disk.
    Disk,
}

/// What each proxy is given.
#[derive(Debug, Clone)]
pub(super) struct ProxyResources {
    /// Where it listens, and its origin.
    pub address: SocketAddr,
    pub origin: SocketAddr,
    /// Its directory, and that of the file system on its disk, as the proxy sees them.
    pub folder: PathBuf,
    pub disk: PathBuf,
    /// The block device, for a proxy that needs no file system.
    pub device: PathBuf,
    /// The sizes of its memory group and of its disk.
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub storage: ProxyStorage,
    /// The number of connections of the load.
    pub connections: usize,
}

/// A program of a proxy, which may be inside a root directory of another release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyProgram {
    /// The root; `None` for this machine's.
    pub root: Option<PathBuf>,
    /// The program inside of it.
    pub path: PathBuf,
}

impl ProxyKind {
    /// All proxies; the first two are Nectary.
    pub const ALL: [ProxyKind; 6] = [
        ProxyKind::Nectary,
        ProxyKind::Nginx,
        ProxyKind::Varnish,
        ProxyKind::Squid,
        ProxyKind::Haproxy,
        ProxyKind::TrafficServer,
    ];

    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            ProxyKind::Nectary => "nectary",
            ProxyKind::Nginx => "nginx",
            ProxyKind::Varnish => "varnish",
            ProxyKind::Squid => "squid",
            ProxyKind::Haproxy => "haproxy",
            ProxyKind::TrafficServer => "trafficserver",
        }
    }

    /// Its program, the option that prints its version, and the Debian package that has it.
    fn program(self) -> (&'static str, &'static str, &'static str) {
        match self {
            ProxyKind::Nectary => ("nectary", "--version", "nectary"),
            ProxyKind::Nginx => ("nginx", "-v", "nginx-light"),
            ProxyKind::Varnish => ("varnishd", "-V", "varnish"),
            ProxyKind::Squid => ("squid", "-v", "squid"),
            ProxyKind::Haproxy => ("haproxy", "-v", "haproxy"),
            ProxyKind::TrafficServer => ("traffic_server", "-V", "trafficserver"),
        }
    }

    /// The user that owns its files, if it does not run as root.
    pub(super) fn user(self) -> &'static str {
        match self {
            ProxyKind::Squid => "proxy",
            ProxyKind::TrafficServer => "trafficserver",
            _ => "root",
        }
    }

    /// Whether it has a cache on disk.
    pub fn has_disk(self) -> bool {
        self != ProxyKind::Haproxy
    }

    /// Whether its cache is many files, for which its file system needs inodes.
    pub(super) fn has_many_files(self) -> bool {
        matches!(self, ProxyKind::Nginx | ProxyKind::Squid)
    }

    /// The files in shared memory that it leaves when it is killed.
    pub(super) fn shared_files(self, address: SocketAddr) -> Vec<PathBuf> {
        let file = |part| PathBuf::from(format!("/dev/shm/{}-cf__{part}.shm", shared_name(address)));
        match self {
            ProxyKind::Squid => ["metadata", "queues", "readers"].map(file).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Whether it uses the block device without a file system.
    pub(super) fn uses_device(self) -> bool {
        self == ProxyKind::Nectary
    }

    /// Finds its program: in `peers`, the root of a later release, or else on this machine.
    ///
    /// *Errors*: it is not there; the text names the package.
    pub(super) fn find(self, nectary: &Path, peers: Option<&Path>) -> Result<ProxyProgram, String> {
        if self == ProxyKind::Nectary {
            return Ok(ProxyProgram { root: None, path: nectary.to_owned() });
        }
        let (name, _, package) = self.program();
        let places = ["usr/sbin", "usr/bin"].map(|folder| Path::new(folder).join(name));
        for root in peers.into_iter().chain([Path::new("/")]) {
            // A link may be good inside of the root alone.
            if let Some(place) = places.iter().find(|place| root.join(place).symlink_metadata().is_ok()) {
                let is_here = root == Path::new("/");
                return Ok(ProxyProgram {
                    root: (!is_here).then(|| root.to_owned()),
                    path: Path::new("/").join(place),
                });
            }
        }
        Err(format!("{name} is not installed (Debian package {package}; `ci/setup peers`)"))
    }

    /// Its name with the version that the program prints.
    pub(super) fn version(self, program: &ProxyProgram) -> String {
        let mut command = program.command();
        let output = command.arg(self.program().1).stdin(Stdio::null()).output();
        let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let numbers = said.split(|character: char| !character.is_ascii_digit() && character != '.');
        let number = numbers.map(|part| part.trim_matches('.')).find(|part| part.contains('.'));
        number.map_or_else(|| self.name().to_owned(), |number| format!("{} {number}", self.name()))
    }

    /// Writes the configuration into `place`, the directory as this process sees it, and returns the commands to run
    /// before the proxy, if any, and that of the proxy.
    pub(super) fn configure(
        self,
        program: &ProxyProgram,
        given: &ProxyResources,
        place: &Path,
    ) -> Result<Vec<Vec<OsString>>, Error> {
        let write = |name: &str, text: &str| {
            let path = place.join(name);
            fs::write(&path, text).map_err(|error| Error::failed(path.display(), error))
        };
        let fill = |text: &str| filled(text, &values(self, given));
        let folder = &given.folder;
        let path = |name: &str| folder.join(name).into_os_string();
        let own = program.path.clone().into_os_string();
        let commands = match self {
            ProxyKind::Nectary => {
                let device = OsString::from(format!("disk:{}", given.device.display()));
                let memory = (given.memory_bytes * MEMORY_PERCENT / 100).to_string();
                let (address, origin) = (given.address.to_string(), format!("http://{}", given.origin));
                let mut create = vec![own.clone()];
                create.extend(words(&["store", "create", "--force"]));
                create.push(device.clone());
                let mut serve = vec![own];
                serve.extend(words(&["proxy", "--listen", &address, "--origin", &origin]));
                serve.extend(words(&["--workers", "1", "--memory", &memory, "--store"]));
                serve.push(device);
                vec![create, serve]
            }
            ProxyKind::Nginx => {
                write("nginx.conf", &fill(include_str!("peers/nginx.conf")))?;
                vec![vec![
                    own,
                    "-p".into(),
                    folder.into(),
                    "-c".into(),
                    path("nginx.conf"),
                    "-e".into(),
                    "stderr".into(),
                ]]
            }
            ProxyKind::Varnish => {
                write("varnish.vcl", &fill(include_str!("peers/varnish.vcl")))?;
                let options = fill(include_str!("peers/varnish.options"));
                vec![[own].into_iter().chain(options_of(&options).into_iter().map(OsString::from)).collect()]
            }
            ProxyKind::Squid => {
                write("squid.conf", &fill(include_str!("peers/squid.conf")))?;
                let name = shared_name(given.address).into();
                let serve = vec![own, "-N".into(), "-n".into(), name, "-f".into(), path("squid.conf")];
                let prepare = serve.iter().cloned().chain(["-z".into()]).collect();
                // With -z and without a directory on disk it goes on as a proxy.
                match given.storage {
                    ProxyStorage::Memory => vec![serve],
                    ProxyStorage::Disk => vec![prepare, serve],
                }
            }
            ProxyKind::Haproxy => {
                write("haproxy.cfg", &fill(include_str!("peers/haproxy.cfg")))?;
                vec![vec![own, "-db".into(), "-f".into(), path("haproxy.cfg")]]
            }
            ProxyKind::TrafficServer => {
                for name in ["etc", "run", "log", "cache", "var", "data"] {
                    let path = place.join(name);
                    fs::create_dir_all(&path).map_err(|error| Error::failed(path.display(), error))?;
                }
                write("runroot.yaml", &fill(include_str!("peers/runroot.yaml")))?;
                write("etc/records.config", &fill(include_str!("peers/records.config")))?;
                write("etc/ip_allow.yaml", include_str!("peers/ip_allow.yaml"))?;
                write("etc/remap.config", &fill("map / http://{origin}/\n"))?;
                write("etc/storage.config", &fill("{disk} {file_bytes}\n"))?;
                let mut root = OsString::from("--run-root=");
                root.push(path("runroot.yaml"));
                vec![vec![own, root]]
            }
        };
        Ok(commands)
    }
}

impl ProxyProgram {
    /// The command that runs it, without arguments.
    pub fn command(&self) -> Command {
        match &self.root {
            None => Command::new(&self.path),
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&self.path);
                command
            }
        }
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// The name of a Squid among others on this machine: letters and digits.
fn shared_name(address: SocketAddr) -> String {
    format!("nectary{}", address.port())
}

/// The words in braces of the configurations.
fn values(kind: ProxyKind, given: &ProxyResources) -> Vec<(&'static str, String)> {
    let ProxyResources { address, origin, folder, disk, memory_bytes, disk_bytes, storage, connections, .. } = given;
    let percent = if kind == ProxyKind::Squid { SQUID_PERCENT } else { MEMORY_PERCENT };
    let memory_bytes = memory_bytes * percent / 100;
    let (disk_mb, file_bytes) = ((disk_bytes * FILES_PERCENT / 100) >> 20, disk_bytes * FILE_PERCENT / 100);
    let (storage, cache_dir) = match storage {
        ProxyStorage::Memory => (format!("malloc,{memory_bytes}"), "# [bench] memory alone".to_owned()),
        ProxyStorage::Disk => (
            format!("file,{}/objects,{file_bytes}", disk.display()),
            format!("cache_dir aufs {}/aufs {disk_mb} 16 256", disk.display()),
        ),
    };
    vec![
        ("address", address.to_string()),
        ("host", address.ip().to_string()),
        ("port", address.port().to_string()),
        ("origin", origin.to_string()),
        ("origin_host", origin.ip().to_string()),
        ("origin_port", origin.port().to_string()),
        ("folder", folder.display().to_string()),
        ("disk", disk.display().to_string()),
        ("memory_bytes", memory_bytes.to_string()),
        ("memory_mb", (memory_bytes >> 20).to_string()),
        ("disk_mb", disk_mb.to_string()),
        ("file_bytes", file_bytes.to_string()),
        ("storage", storage),
        ("cache_dir", cache_dir),
        ("user", kind.user().to_owned()),
        ("files", FILES_OPEN.to_string()),
        ("open_files", FILES_KEPT_OPEN.to_string()),
        ("keys_mb", KEYS_MB.to_string()),
        ("threads", (connections + 20).to_string()),
        ("threads_max", (connections * 2 + 100).to_string()),
    ]
}

/// A configuration with its words in braces replaced.
fn filled(text: &str, values: &[(&'static str, String)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// The options in a file of options: the words of each line, without its comment. An option may have one value.
fn options_of(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).flat_map(|line| line.splitn(2, ' ').map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(storage: ProxyStorage) -> ProxyResources {
        ProxyResources {
            address: "127.0.0.1:8080".parse().expect("an address"),
            origin: "127.0.0.1:9090".parse().expect("an address"),
            folder: "/mnt/x".into(),
            disk: "/mnt/x/disk".into(),
            device: "/dev/loop7".into(),
            memory_bytes: 100 << 20,
            disk_bytes: 1000 << 20,
            storage,
            connections: 64,
        }
    }

    /// No word in braces is left, and the same sizes are in all configurations.
    #[test]
    fn peer_configurations_have_all_values() {
        let place = std::env::temp_dir().join(format!("nectary-bench-peers-{}", std::process::id()));
        fs::create_dir(&place).expect("a directory");
        for kind in ProxyKind::ALL {
            for storage in [ProxyStorage::Memory, ProxyStorage::Disk] {
                let program = ProxyProgram { root: None, path: "/usr/sbin/x".into() };
                let commands = kind.configure(&program, &given(storage), &place).expect("a configuration");
                assert!(commands.iter().flatten().all(|word| !word.to_string_lossy().contains('{')), "{commands:?}");
            }
        }
        for entry in fs::read_dir(&place).expect("the directory").chain(fs::read_dir(place.join("etc")).expect("etc")) {
            let path = entry.expect("an entry").path();
            let text = fs::read_to_string(&path).unwrap_or_default();
            let wrong = |line: &&str| line.contains('{') && line.contains('}') && !line.trim_start().starts_with('#');
            assert_eq!(text.lines().find(wrong), None, "{}", path.display());
        }
        let read = |name: &str| fs::read_to_string(place.join(name)).expect("a configuration");
        assert!(read("nginx.conf").contains("max_size=850m"));
        assert!(read("squid.conf").contains("cache_mem 33 MB") && read("squid.conf").contains("aufs 850 16 256"));
        assert!(read("haproxy.cfg").contains("total-max-size 60"));
        fs::remove_dir_all(place).expect("the directory");
    }

    /// Each line of a configuration says where it comes from.
    #[test]
    fn peer_configuration_lines_have_sources() {
        let sources = |text: &str| text.lines().filter(|line| line.contains('[') && line.contains(']')).count();
        for (text, least) in [
            (include_str!("peers/nginx.conf"), 30),
            (include_str!("peers/varnish.options"), 12),
            (include_str!("peers/squid.conf"), 9),
            (include_str!("peers/haproxy.cfg"), 14),
            (include_str!("peers/records.config"), 8),
        ] {
            assert!(sources(text) >= least, "{} of {least} in {}", sources(text), text.lines().next().unwrap_or(""));
        }
        let bare = |line: &&str| line.trim_end().ends_with(';') && !line.trim_start().starts_with('#');
        assert_eq!(include_str!("peers/nginx.conf").lines().find(bare), None);
    }

    #[test]
    fn option_lines_become_arguments() {
        assert_eq!(options_of("# why\n-F   # [x]\n-p a=1 # [y]\n\n"), ["-F", "-p", "a=1"]);
    }

    #[test]
    fn missing_peer_names_its_package() {
        let nowhere = Path::new("/nowhere");
        for kind in ProxyKind::ALL {
            if let Err(why) = kind.find(nowhere, Some(nowhere)) {
                assert!(why.contains("Debian package"), "{why}");
            }
        }
        assert_eq!(ProxyKind::Nectary.find(nowhere, None).map(|program| program.path), Ok(nowhere.to_owned()));
    }
}
