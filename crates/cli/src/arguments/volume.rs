//! The options of `volume`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use nectary_block::{parse_duration, parse_size};
use nectary_volume::client::ServerAddress;

use super::cert::CertCommand;
use super::{EngineArguments, TEMPLATE, exit};

/// The commands on shared volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make an empty volume on a disk that several hosts can reach
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume format disk:/dev/sdb --name builds
  nectary volume format ./volume.img --size 10G
  nectary volume format disk:/dev/sdb --force      (forgets everything on it)", after_help = exit::HELP)]
    Format(VolumeFormatArguments),
    /// Be the metadata server of a volume
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume serve disk:/dev/sdb --listen unix:/run/builds.sock
  On a network that is trusted:
    nectary volume serve disk:/dev/sdb --listen 10.0.0.1:7200 --insecure
  With certificates on both sides (`nectary cert`):
    nectary volume serve disk:/dev/sdb --listen :7200 \\
      --tls-cert h1.pem --tls-key h1.key --tls-client-ca ca.pem
  After host h1, which served it before, was switched off:
    nectary volume serve disk:/dev/sdb --listen :7200 --insecure \\
      --number 1 --confirm-gone h1",
        after_help = exit::HELP)]
    Serve(VolumeServeArguments),
    /// Mount a volume at a directory
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume mount disk:/dev/sdb /mnt --server 10.0.0.1:7200
  nectary volume mount ./vol.img /mnt --server unix:/run/vol.sock --background
  nectary volume mount disk:/dev/sdb /mnt --server h1:7200,h2:7200
  nectary volume mount ./vol.img /mnt --server unix:/run/vol.sock -o ro,noexec
  nectary volume mount disk:/dev/sdb /mnt --server h1:7200 \\
    --tls-ca ca.pem --tls-cert h2.pem --tls-key h2.key",
        after_help = exit::HELP)]
    Mount(VolumeMountArguments),
    /// Unmount a volume
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume umount /mnt
  nectary volume umount /mnt --lazy      (also while programs use it)", after_help = exit::HELP)]
    Umount(VolumeUmountArguments),
    /// Read a volume's metadata and compare it from all sides; changes nothing
    #[command(alias = "fsck", help_template = TEMPLATE, before_help = "Examples:
  nectary volume check disk:/dev/sdb
  nectary volume check ./volume.img --json", after_help = exit::HELP)]
    Check(VolumeReadArguments),
    /// Show what a volume is: name, size, use, sessions
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume info disk:/dev/sdb
  nectary volume info ./volume.img --json | jq .free_bytes
  nectary volume info ./volume.img --file builds/a.iso", after_help = exit::HELP)]
    Info(VolumeInfoArguments),
    /// Tell the server on this host that the host of a session writes nothing any more
    #[command(help_template = TEMPLATE, before_help = "Examples:
  After host h2 was switched off:
    nectary volume info disk:/dev/sdb      (lists the sessions)
    nectary volume release disk:/dev/sdb 7", after_help = exit::HELP)]
    Release(VolumeReleaseArguments),
    /// The same as `nectary cert`
    #[command(subcommand, arg_required_else_help = true, help_template = TEMPLATE, before_help = "Examples:
  nectary cert init ./pki --name builds
  nectary cert host ./pki h1,10.0.0.1 --out ./h1
  nectary cert show ./h1/h1.pem", after_help = exit::HELP)]
    Cert(CertCommand),
}

/// `volume format`.
#[derive(Debug, Args)]
pub struct VolumeFormatArguments {
    /// The disk, by a SPEC that every host can open: `disk:/dev/sdb`, a file, an NBD export
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// A name for people, at most 64 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub name: String,
    /// Size of a file that is created, for example 10G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// How long a server that ended without a word is waited for by the next one
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub lease: Duration,
    /// Overwrite whatever is there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// `volume serve`.
#[derive(Debug, Args)]
pub struct VolumeServeArguments {
    /// The disk of the volume
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// Address to listen on, for example 10.0.0.1:7200, :7200 for every address, or unix:PATH; may be given again
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<ServerAddress>,
    /// The number of this server among those that may serve the volume, each another one
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..32))]
    pub number: u32,
    /// Say that a host on which the volume was served before writes nothing any more, because it was switched off:
    /// what its servers have held back is free. Its name or the incarnation, as `nectary volume info` shows them; may
    /// be given again
    #[arg(long, value_name = "HOST")]
    pub confirm_gone: Vec<String>,
    /// Serve addresses beyond this machine without certificates of clients: everybody who reaches them can read and
    /// change everything
    #[arg(long)]
    pub insecure: bool,
    /// Certificate of this server, a PEM file; with it every connection must be encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Clients must show a certificate that one of this PEM file has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// `volume mount`.
#[derive(Debug, Args)]
pub struct VolumeMountArguments {
    /// The disk of the volume, as this host reaches it
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// Where it is shown
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The metadata server: HOST:PORT or unix:PATH; several with commas between them, if another one may take over
    #[arg(long, value_name = "ADDR", required = true, value_delimiter = ',')]
    pub server: Vec<ServerAddress>,
    /// Memory for the contents of files, for example 1G; 0 for none: then each read is a read of the disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub memory: u64,
    /// The replacement policy of this memory
    #[arg(long, value_name = "NAME", default_value = "adaptive")]
    pub policy: String,
    /// Reading does not change times of access; without this it does by the rule of `relatime`
    #[arg(long)]
    pub noatime: bool,
    /// Changes of names and attributes are on the disk when a call returns, as with `-o dirsync`; without this they are
    /// after fsync, after some milliseconds, and before another host sees them
    #[arg(long)]
    pub sync_names: bool,
    /// Create files, and remove those that were created, without waiting for the server in directories that this mount
    /// alone uses; coherence and durability stay as they are
    #[arg(long)]
    pub local_names: bool,
    /// Options as those of mount(8): ro or rw, noatime or relatime, nodev (the default) or dev, nosuid (the default) or
    /// suid, noexec or exec, dirsync; may be given again
    #[arg(short = 'o', long = "options", value_name = "OPT", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Return once it is mounted, and go on in the background
    #[arg(long)]
    pub background: bool,
    /// Leave the terminal once mounted; given by the command to itself
    #[arg(long, hide = true, conflicts_with = "background")]
    pub leave_terminal: bool,
    /// What lists of mounts show as the source; given by the helper of mount(8)
    #[arg(long, hide = true, value_name = "TEXT")]
    pub source: Option<String>,
    /// Encrypt, and trust servers with a certificate that one of this PEM file has signed
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this host, a PEM file
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// `volume umount`.
#[derive(Debug, Args)]
pub struct VolumeUmountArguments {
    /// The directory that it is shown at
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Take it off the tree also while programs use it; it ends with the last of them
    #[arg(long)]
    pub lazy: bool,
}

/// `volume check`, and a part of `volume info`.
#[derive(Debug, Args)]
pub struct VolumeReadArguments {
    /// The disk of the volume
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// `volume info`.
#[derive(Debug, Args)]
pub struct VolumeInfoArguments {
    #[command(flatten)]
    pub read: VolumeReadArguments,
    /// Show where the data of a file is, by its path below the root of the volume
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
}

/// `volume release`.
#[derive(Debug, Args)]
pub struct VolumeReleaseArguments {
    /// The disk of the volume; its server runs on this host
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// The number of the session
    #[arg(value_name = "SESSION")]
    pub session: u64,
}
