//! The command line: commands, options and their help.
//!
//! Owns: every word that a user types, with examples before everything else in each help. Leaves to others: the work of
//! the commands. Promises: whatever does not parse is refused with exit code 2 before anything is touched.

mod admin;
mod admission;
mod attach;
mod bench;
mod cache;
mod cache_live;
mod cache_mount;
mod cert;
mod config;
mod limits;
mod listen;
mod nbd;
mod origin;
mod ram;
mod store;
mod tls;
mod trace;
mod trace_record;
mod volume;

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use nectary_block::parse_size;
use nectary_config::ListenAddress;
use nectary_host::memory;
use nectary_proxy::rules::default_ttl::DefaultTtlRule;
use nectary_proxy::{AccessLog, ClientNet};
use nectary_store::{ClusterRead, MEMORY_BYTES_MIN, OpenOptions, REINSERT_PERCENT_MAX, REWRITE_PERCENT_MAX};

use crate::exit;

pub use admin::AdminArguments;
pub use admission::AdmissionArguments;
pub use attach::{AttachArguments, DetachArguments};
pub use bench::{
    BenchAllArguments, BenchArguments, BenchBareFuseArguments, BenchCacheArguments, BenchClaimsArguments, BenchCommand,
    BenchCompareArguments, BenchDisk, BenchFiguresArguments, BenchFileSystem, BenchFilesArguments,
    BenchInsideArguments, BenchIoArguments, BenchLimitsArguments, BenchProxyArguments, BenchRamArguments,
    BenchReportArguments, BenchStoreArguments, IoMatrix, SeedFiles, SeedPrograms, SeedTable,
};
pub use cache::{CacheCommand, CurveArguments, SimulateArguments};
pub use cache_live::{CacheAdviseArguments, CacheFlushArguments, CachePathArguments, CacheSetArguments, TopArguments};
pub use cache_mount::{CacheMountArguments, CacheStatArguments, CacheUmountArguments};
pub use cert::{CertCommand, CertHostArguments, CertInitArguments, CertShowArguments};
pub use config::ConfigArguments;
pub use limits::LimitArguments;
pub(crate) use listen::parse_listen;
pub use listen::{tcp_addresses, unix_sockets};
pub use nbd::{ExportArguments, InfoArguments, ListArguments, NbdCommand, ServerArguments};
pub use origin::OriginArguments;
pub use ram::{RamCommand, RamSimulateArguments};
pub use store::{
    CreateArguments, DeleteArguments, DeviceArguments, GetArguments, PurgeArguments, PutArguments, ReadArguments,
    SpanArguments, StoreCommand,
};
pub use tls::ClientTlsArguments;
pub use trace::{ConvertArguments, StatArguments as TraceStatArguments, TraceCommand};
pub use trace_record::RecordArguments;
pub use volume::{
    VolumeCommand, VolumeFormatArguments, VolumeMountArguments, VolumeReadArguments, VolumeReleaseArguments,
    VolumeServeArguments, VolumeUmountArguments,
};

/// Examples stand where the eye falls first: before usage and options.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Storage for caches.
#[derive(Debug, Parser)]
#[command(
    name = "nectary",
    version,
    about = "An HTTP cache with its own disk store; and caches, block devices, RAM disks, volumes and traces",
    help_template = TEMPLATE,
    before_help = "Examples:
  A forward proxy for this machine, and a reverse proxy:
    nectary proxy --listen 127.0.0.1:8080 --store ./cache --size 10G
    nectary proxy --listen :80 --origin https://example.org --store ./example
  What runs, and what it does:
    nectary status
    nectary top
  Which blocks a program refers to, and what a cache would save:
    nectary trace record -o grep.nectrace.gz -- \\
      sh -c 'grep -r nectary /etc; grep -r purge /etc'
    nectary cache simulate grep.nectrace.gz --size 10%,50%
  A directory through a cache, and a file as a disk (root):
    nectary cache mount /srv/sources /mnt/sources --memory 1G --background
    nectary attach ./disk.img --size 10G",
    after_help = exit::HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct NectaryArguments {
    /// What to do
    #[command(subcommand)]
    pub command: NectaryCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum NectaryCommand {
    /// Run a caching HTTP proxy
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  A forward proxy for this machine:
    nectary proxy --listen 127.0.0.1:8080 --store ./cache --memory 256M
    curl -x http://127.0.0.1:8080 http://example.org/
  A reverse proxy in front of a package registry:
    nectary proxy --listen 127.0.0.1:8081 --origin https://registry.example \\
      --store ./packages --size 50G
  If a Debian mirror gives no lifetime: a week for files, 5 minutes for lists:
    nectary proxy --listen 127.0.0.1:8080 --store ./apt --size 20G \\
      --default-ttl 'mirror.example/debian/pool/=7d' \\
      --default-ttl 'mirror.example=5m'
  One store on two disks, which goes on when one of them fails:
    nectary proxy --listen 127.0.0.1:8080 \\
      --store disk:/dev/sdb --span disk:/dev/sdc --size 200G
  Write to a disk only what is requested twice, at most 50 GiB a day:
    nectary proxy --listen 127.0.0.1:8080 --store ./cache --size 100G \\
      --admit second-request --write-budget 50G/day
  Purge over HTTP, on an address that only this machine can reach: a URL with
  all its variants, and what has one of two tags (Surrogate-Key, Cache-Tag):
    nectary proxy --listen 127.0.0.1:8080 --store ./cache \\
      --admin-listen 127.0.0.1:8090
    curl -x http://127.0.0.1:8090 -X PURGE http://example.org/
    curl -X PURGE -H 'Surrogate-Key: front-page news' http://127.0.0.1:8090/
  On a Unix socket, behind a web server on the same machine:
    nectary proxy --listen unix:/run/nectary/http.sock \\
      --origin http://127.0.0.1:3000 --store ./cache",
        after_help = exit::HELP
    )]
    Proxy(ProxyArguments),
    /// Make, inspect and use a store by hand
    #[command(subcommand, help_template = TEMPLATE, before_help = "Examples:
  nectary store create ./cache --size 10G
  nectary store put ./cache greeting hello.txt
  nectary store get ./cache greeting > copy.txt
  nectary store stat ./cache --json", after_help = exit::HELP)]
    Store(StoreCommand),
    /// Cache directories and devices in memory, and simulate replacement policies
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  A directory through a cache (root):
    nectary cache mount /srv/sources /mnt/sources --memory 1G --background
    nectary cache stat /mnt/sources
    nectary cache advise /mnt/sources
    nectary cache umount /mnt/sources
  A device through a cache (root):
    nectary attach 'cache(./disk.img,memory=1G)'        (prints /dev/loop0)
    nectary cache set /dev/loop0 --memory 512M --policy lirs
  What caches of 10 and 50 % of a program's blocks would save, by policy:
    nectary trace record -o grep.nectrace.gz -- \\
      sh -c 'grep -r nectary /etc; grep -r purge /etc'
    nectary cache simulate grep.nectrace.gz --size 10%,50%", after_help = exit::HELP)]
    Cache(CacheCommand),
    /// Record which blocks programs refer to, look into traces, and convert them
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  nectary trace record -o grep.nectrace.gz -- \\
    sh -c 'grep -r nectary /etc; grep -r purge /etc'
  nectary trace stat grep.nectrace.gz
  nectary cache simulate grep.nectrace.gz --size 10%,50%
  nectary trace convert grep.nectrace.gz grep.oracleGeneral.bin", after_help = exit::HELP)]
    Trace(TraceCommand),
    /// Make any device a block device of the kernel, for file systems
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A file as a disk, with ext4 on it:
    nectary attach ./disk.img --size 10G      (prints /dev/loop0)
    mkfs.ext4 /dev/loop0 && mount /dev/loop0 /mnt
    umount /mnt && nectary detach /dev/loop0
  A disk through a buffer cache with write-back:
    nectary attach 'cache(disk:/dev/sdb,memory=2G,mode=writeback)'
  An export of an NBD server, and a disk in the memory of other machines:
    nectary attach nbd://host/disk
    nectary attach 'ram(h1:7070,h2:7070,id=build)'
  A disk of 1999, in memory:
    nectary attach 'model(memory:4G,disk=hdd-1999)'", after_help = exit::HELP)]
    Attach(AttachArguments),
    /// Release a block device that `attach` made
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary detach /dev/loop0
  nectary detach ./disk.img      (the SPEC that it was attached by)", after_help = exit::HELP)]
    Detach(DetachArguments),
    /// Serve devices to NBD clients
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary export memory:4G --nbd unix:/run/disk.sock      (prints the URL)
  nectary export ./disk.img --size 10G --nbd tcp:127.0.0.1:10809
  nectary export a=disk:/dev/sdb b=memory:1G --nbd tcp:127.0.0.1 --read-only
  Beyond this machine, with certificates on both sides (`nectary cert`):
    nectary export ./disk.img --nbd tcp:0.0.0.0:10809 --tls-ca ca-cert.pem \\
      --tls-cert server-cert.pem --tls-key server-key.pem", after_help = exit::HELP)]
    Export(ExportArguments),
    /// Show the exports of NBD servers, and what they can do
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  nectary nbd info nbd://localhost/disk
  nectary nbd list nbd://localhost", after_help = exit::HELP)]
    Nbd(NbdCommand),
    /// Lend memory to other machines, and make disks of what others lend
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  On each machine that lends, if the network is trusted:
    nectary ram donate --listen :7070 --memory 8G --insecure
  On the machine that uses it, every block on two donors:
    nectary ram create 'ram(h1:7070,h2:7070,id=safe,size=8G,redundancy=mirror)'
    nectary attach 'ram(h1:7070,h2:7070,id=safe,redundancy=mirror)'
    nectary status
  When it is not needed any more:
    nectary detach /dev/loop0
    nectary ram delete 'ram(h1:7070,h2:7070,id=safe,redundancy=mirror)'", after_help = exit::HELP)]
    Ram(RamCommand),
    /// Share a file system on one disk among several hosts
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  nectary volume format disk:/dev/sdb --name builds
  nectary volume serve disk:/dev/sdb --listen unix:/run/builds.sock
  nectary volume mount disk:/dev/sdb /mnt --server unix:/run/builds.sock
  nectary volume check disk:/dev/sdb", after_help = exit::HELP)]
    Volume(VolumeCommand),
    /// Make certificates for RAM disks, exports and volumes, and show them
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  Once, and then for each machine that serves or connects:
    nectary cert init ./pki
    nectary cert server ./pki h1,10.0.0.1 --out ./h1
    nectary cert client ./pki h2 --out ./h2
  When a certificate ends:
    nectary cert show h1/server-cert.pem", after_help = exit::HELP)]
    Cert(CertCommand),
    /// Measure the store, caches, disks, RAM disks and volumes, beside their peers
    #[command(arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  nectary bench --list
  nectary bench io /var/cache --quick
  nectary bench files --folder /var/cache
  nectary bench store --seed table4 --quick
  nectary bench all --report look --quick", after_help = exit::HELP)]
    Bench(BenchArguments),
    /// Show the fleets of which proxies on this machine are nodes
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  nectary fleet status
  nectary fleet status --json | jq '.[].fleet.nodes[].purges_behind'", after_help = exit::HELP)]
    Fleet(FleetCommand),
    /// Show every running part: state, what is wrong, what to do
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary status
  nectary status --json | jq '.[].status.state'
  nectary status || echo 'somebody should look'", after_help = exit::HELP)]
    Status(StatusArguments),
    /// Show what the caches, proxies and volumes of this machine do, each second
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary top
  nectary top /mnt/sources --every 5
  nectary top --once | less
  nectary top --json | jq '.caches[].figures.reads_saved'
  nectary top --prometheus > /var/lib/node_exporter/nectary.prom", after_help = exit::HELP)]
    Top(TopArguments),
    /// Print every command and option as JSON, for manual pages and completions
    #[command(hide = true)]
    Describe,
}

/// How devices are read and written.
#[derive(Debug, Args)]
pub struct EngineArguments {
    /// How files and disks are read and written; auto is uring if the kernel allows it
    #[arg(long, value_name = "ENGINE", value_enum, default_value = "auto")]
    pub io: DeviceIoEngine,
}

/// The engines that `--io` names.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum DeviceIoEngine {
    /// io_uring, or an error
    Uring,
    /// plain system calls on a pool of threads
    Posix,
    /// io_uring if the kernel allows it
    Auto,
}

/// Fleets of proxies.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Show the nodes, what each has applied, what is wrong, what to do
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary fleet status
  nectary fleet status || echo 'somebody should look'", after_help = exit::HELP)]
    Status(FleetStatusArguments),
}

/// `fleet status`.
#[derive(Debug, Args)]
pub struct FleetStatusArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print every figure of every part
    #[arg(long, short)]
    pub verbose: bool,
}

/// `proxy`.
#[derive(Debug, Args)]
pub struct ProxyArguments {
    /// Address to listen on, for example 127.0.0.1:8080, [::1]:8080, :8080 for every address, or unix:PATH; may be given
    /// again
    #[arg(
        long,
        value_name = "ADDR",
        required_unless_present_any = ["config", "check_config"],
        value_parser = parse_listen
    )]
    pub listen: Vec<ListenAddress>,
    #[command(flatten)]
    pub origin: OriginArguments,
    /// Networks that may use a forward proxy beside this machine, for example 192.0.2.0/24; may be given again
    #[arg(long, value_name = "NET")]
    pub allow: Vec<ClientNet>,
    /// Ports to which CONNECT may tunnel; may be given again
    #[arg(long, value_name = "PORT", default_values_t = [443])]
    pub connect_port: Vec<u16>,
    /// Keep Surrogate-Key and Cache-Tag of responses from clients
    #[arg(long)]
    pub strip_tags: bool,
    /// A proxy in front of this one, for example 127.0.0.1 or 192.0.2.0/24, whose X-Forwarded-For and X-Real-IP are
    /// passed on, and any other X-Forwarded-* that --key-header names; from others they are removed; may be given again
    #[arg(long, value_name = "NET")]
    pub trust_forwarded: Vec<ClientNet>,
    /// Do not tell the origin who asked, in Forwarded, X-Forwarded-For and X-Forwarded-Proto
    #[arg(long)]
    pub no_forwarded: bool,
    #[command(flatten)]
    pub admin: AdminArguments,
    /// Device of the store, made if it is absent: a path, `disk:/dev/sdb`, `memory:2G`
    #[arg(long, value_name = "SPEC", required_unless_present_any = ["config", "check_config"])]
    pub store: Option<String>,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// Begin empty instead of failing, if the missing spans may have served without the others
    #[arg(long)]
    pub forget_if_spans_missing: bool,
    /// Size of a store that is created, or of each of several spans, for example 10G [default: 4G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Memory for objects, index and buffers, for example 512M [default: 256M, but half of what the machine has or the
    /// memory group allows, if that is less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// How much of a segment is rewritten before it is overwritten, of requested objects, in percent; 0 for none
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=i64::from(REINSERT_PERCENT_MAX)),
        default_value_t = OpenOptions::default().reinsert_percent)]
    pub reinsert: u32,
    /// How much may be rewritten from memory, in percent of the bytes admitted to the disk: to place an object beside
    /// its page, or to keep it
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=i64::from(REWRITE_PERCENT_MAX)),
        default_value_t = OpenOptions::default().rewrite_percent)]
    pub rewrite: u32,
    /// The extent of a read from the store's disk: the object, the cluster around it, or whichever has recently saved
    /// reads
    #[arg(long, value_name = "WHAT", value_parser = ClusterRead::from_str, default_value = ClusterRead::Auto.name())]
    pub cluster_read: ClusterRead,
    /// Size of a cluster, in which a page's embedded objects are kept beside it: a power of two from 4K to 1M, or 0 for
    /// none
    #[arg(long, value_name = "SIZE", value_parser = parse_cluster_size, default_value = "64K")]
    pub cluster_size: u64,
    /// How long the store's disk may take for an operation: then a read is a miss, and a purge fails; 0 for no bound
    #[arg(long, value_name = "TIME", value_parser = parse_deadline, default_value = "2s")]
    pub disk_deadline: Duration,
    #[command(flatten)]
    pub admission: AdmissionArguments,
    /// Threads that serve, each with its own connections [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Lifetime of responses that give none, as [HOST][/PATH]=TTL; may be given again, the first that matches counts
    #[arg(long, value_name = "RULE", value_parser = DefaultTtlRule::parse)]
    pub default_ttl: Vec<DefaultTtlRule>,
    /// How long beyond its lifetime a response is served while its origin cannot be reached, unless the response says
    /// itself; 0 for not at all
    #[arg(long, value_name = "TIME", value_parser = nectary_proxy::parse_duration, default_value = "1d")]
    pub stale_unreachable: Duration,
    /// Ignore no-cache, max-age and min-fresh of requests (and Pragma): package clients send them with every request
    #[arg(long)]
    pub ignore_request_cache_control: bool,
    /// Store responses with Set-Cookie as if they had none; otherwise they are stored if they are `public`, or without
    /// the cookie if they say `no-cache="set-cookie"`
    #[arg(long)]
    pub store_set_cookie: bool,
    /// The file for log lines of requests, - for the standard output, or none; SIGUSR1 and SIGHUP open the file again
    #[arg(long, value_name = "PATH", value_parser = parse_access_log, default_value = "none")]
    pub access_log: AccessLog,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub file: ConfigArguments,
    #[command(flatten)]
    pub tls: ClientTlsArguments,
    #[command(flatten)]
    pub limits: LimitArguments,
}

/// The memory of the store of a proxy by default. *Units*: bytes.
const MEMORY_BYTES: u64 = 256 << 20;

impl ProxyArguments {
    /// The SPEC of the store's first device.
    pub fn store_spec(&self) -> &str {
        self.store.as_deref().unwrap_or_default()
    }

    /// The size of a store that is created, or of each of its spans. *Units*: bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size.unwrap_or(4 << 30)
    }

    /// The memory of the store. *Units*: bytes.
    pub fn memory_bytes(&self) -> u64 {
        let least = (1 + self.spans.spans.len() as u64) * MEMORY_BYTES_MIN;
        let by_limit = || memory::limit().map_or(MEMORY_BYTES, |limit| limit.default_of(MEMORY_BYTES, least));
        self.memory.unwrap_or_else(by_limit)
    }
}

/// Reads the command line. *Errors*: what to print instead; also if `proxy` has a file and options that it could say.
pub fn of_command_line() -> Result<NectaryArguments, clap::Error> {
    let mut command = NectaryArguments::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    if let Some(("proxy", proxy)) = matches.subcommand()
        && let Some(option) = ConfigArguments::given_beside(proxy)
    {
        let text = format!("{option} cannot be given beside --config: write it into the file");
        return Err(command.error(clap::error::ErrorKind::ArgumentConflict, text));
    }
    NectaryArguments::from_arg_matches(&matches)
}

/// Reads a deadline, which may be shorter than a second; 0 needs no unit.
fn parse_deadline(text: &str) -> Result<Duration, String> {
    match nectary_proxy::parse_duration(text) {
        Ok(time) => limits::at_most_a_year(time),
        Err(_) => limits::parse_any_time(text),
    }
}

/// Reads the size of a cluster, which the store then checks; 0 needs no unit.
fn parse_cluster_size(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_size(text).map_err(|error| error.to_string()) }
}

/// Reads the destination of the access log.
fn parse_access_log(text: &str) -> Result<AccessLog, String> {
    match text {
        "none" => Ok(AccessLog::None),
        "-" => Ok(AccessLog::Stdout),
        "" => Err("expected a file, - for the standard output, or none".to_owned()),
        path => Ok(AccessLog::File(path.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        NectaryArguments::command().debug_assert();
    }

    /// Every help also shows the exit codes.
    #[test]
    fn help_shows_examples_before_options() {
        fn visit(command: &mut clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.render_long_help().to_string();
            if command.get_name() != "help" {
                let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{path}: no {text} in\n{help}"));
                assert!(place("Examples:") < place("Usage:"), "{path}");
                assert!(place("Usage:") < place("Exit codes:"), "{path}");
            }
            // Hidden options are for the program itself.
            for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()) {
                visit(sub, &path);
            }
        }
        visit(&mut NectaryArguments::command(), "");
    }

    /// The help is wrapped at the width of the terminal, and a command that was wrapped does not run as it is printed.
    #[test]
    fn help_examples_fit_80_columns() {
        fn visit(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let examples = command.get_before_help().map(ToString::to_string).unwrap_or_default();
            for line in examples.lines() {
                assert!(line.chars().count() <= 80, "{path}: {line}");
            }
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                visit(sub, &path);
            }
        }
        visit(&NectaryArguments::command(), "");
    }

    #[test]
    fn size_argument_refuses_nonsense() {
        let parse = |line: &str| NectaryArguments::try_parse_from(line.split(' '));
        assert!(parse("nectary proxy --listen :80 --store ./a --size 10G --memory 1.5G").is_ok());
        for wrong in [
            "nectary proxy --store ./a",
            "nectary proxy --listen :80 --store ./a --size ten",
            "nectary proxy --listen :80 --store ./a --workers 0",
            "nectary proxy --listen :80 --store ./a --io fast",
            "nectary proxy --listen :80 --store ./a --admit sometimes",
            "nectary proxy --listen :80 --store ./a --write-budget 50G",
            "nectary proxy --listen :80 --store ./a --trust-forwarded everybody",
            "nectary store",
            "nectary store get ./a",
            "nectary store purge ./a",
            "nectary store purge ./a --all --prefix b",
            "nectary cache simulate",
            "nectary cache simulate a --limit 0",
            "nectary cache simulate a --log",
            "nectary cache simulate a --block 0",
            "nectary trace stat a --format fast",
            "nectary trace stat a --columns size=2",
            "nectary trace convert a",
        ] {
            assert_eq!(parse(wrong).map(|_| ()).map_err(|error| error.exit_code()), Err(2), "{wrong}");
        }
    }
}
