//! The options of `export` and `nbd`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use nectary_block::parse_size;
use nectary_nbd::{ExportInfo, ListenEndpoint};

use super::ram::ClientArguments;
use super::{EngineArguments, TEMPLATE};

/// `export`.
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// Device to export, as a SPEC; several, or one under another name, as NAME=SPEC
    #[arg(value_name = "SPEC", required = true)]
    pub devices: Vec<String>,
    /// Address to serve NBD on: unix:PATH, or tcp:IP:PORT; may be given again
    #[arg(long, value_name = "ADDR", required = true)]
    pub nbd: Vec<ListenEndpoint>,
    /// Size of a file that does not exist yet and is made, for example 10G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Clients cannot write
    #[arg(long)]
    pub read_only: bool,
    #[command(flatten)]
    pub client: ClientArguments,
    /// Serve addresses beyond this machine without TLS: everybody who reaches them can read and write
    #[arg(long)]
    pub insecure: bool,
    /// Certificate of this server, a PEM file; with it every connection must be encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Clients must show a certificate that one of this PEM file has signed
    #[arg(long, visible_alias = "tls-client-ca", value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// Questions to NBD servers.
#[derive(Debug, Subcommand)]
pub enum NbdCommand {
    /// Show what a server says of an export, or whether it can do something
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary nbd info nbd://localhost/disk
  nectary nbd info 'nbd+unix:///?socket=/run/disk.sock' --json
  nectary nbd info nbd://localhost/disk --can trim && echo 'it can'", after_help = INFO_HELP)]
    Info(InfoArguments),
    /// List the exports of a server
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary nbd list nbd://localhost
  nectary nbd list 'nbd+unix:///?socket=/run/disk.sock' --json", after_help = crate::exit::HELP)]
    List(ListArguments),
}

/// The exit codes of `nbd info`.
const INFO_HELP: &str = "\
Exit codes:
  0  done; with --can: yes     2  with --can: no; or the command line is wrong
  1  failed                    4  nothing listens there, or no such export";

/// The server to ask.
#[derive(Debug, Args)]
pub struct ServerArguments {
    /// URL of the export: nbd://HOST[:PORT]/NAME, nbd+unix:///NAME?socket=PATH; nbds for TLS
    #[arg(value_name = "URL")]
    pub url: String,
    /// Trust the certificates of this PEM file instead of the system's
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate to show to the server, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `nbd info`.
#[derive(Debug, Args)]
pub struct InfoArguments {
    #[command(flatten)]
    pub server: ServerArguments,
    /// Print nothing; the exit code says whether the export can do this
    #[arg(long, value_name = "WHAT", conflicts_with = "json",
        value_parser = PossibleValuesParser::new(ExportInfo::WORDS))]
    pub can: Option<String>,
}

/// `nbd list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    pub server: ServerArguments,
}
