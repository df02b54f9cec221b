//! The options of `cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{TEMPLATE, exit};

/// An authority, and certificates that it signs.
#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// Make an authority: its certificate `ca.pem` for every host, and its key `ca.key`, which stays secret
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary cert init ./pki --name builds", after_help = exit::HELP)]
    Init(CertInitArguments),
    /// Make the certificate of a server: `server-cert.pem`, `server-key.pem` and `ca-cert.pem`
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary cert server ./pki h1.example,h1,10.0.0.1 --out ./h1
  nectary ram donate --listen :7070 --memory 8G --tls-cert h1/server-cert.pem \\
    --tls-key h1/server-key.pem --tls-client-ca h1/ca-cert.pem", after_help = exit::HELP)]
    Server(CertHostArguments),
    /// Make the certificate of a client: `client-cert.pem`, `client-key.pem` and `ca-cert.pem`, the names that
    /// `tls-certificates=DIR` in an NBD URL finds
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary cert client ./pki h2 --out ./h2
  nectary attach '\"nbds://h1/disk?tls-certificates=/root/h2\"'", after_help = exit::HELP)]
    Client(CertHostArguments),
    /// Make one certificate for both sides: `HOSTNAME.pem`, `HOSTNAME.key` and `ca.pem`, for a volume's server and mounts
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary cert host ./pki h1 --out ./h1
  nectary cert host ./pki h1.example,h1,10.0.0.1 --out ./h1", after_help = exit::HELP)]
    Host(CertHostArguments),
    /// Show whose certificates a file has, and when they end
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary cert show h1/h1.pem
  nectary cert show h1/h1.pem --json | jq .certificates[0].days_left",
        after_help = SHOW_HELP)]
    Show(CertShowArguments),
}

const SHOW_HELP: &str = "\
Exit codes:
  0  every certificate counts              3  one ends within 30 days
  1  one has ended, or is damaged          4  no such file";

/// `cert init`.
#[derive(Debug, Args)]
pub struct CertInitArguments {
    /// The folder of the authority; it is made
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Name of the authority, for people, at most 64 bytes
    #[arg(long, value_name = "TEXT", default_value = "nectary")]
    pub name: String,
}

/// `cert server`, `cert client` and `cert host`.
#[derive(Debug, Args)]
pub struct CertHostArguments {
    /// The folder of the authority
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The host, then further names and addresses that clients reach it by, for example h1.example,h1,10.0.0.1;
    /// localhost for Unix sockets
    #[arg(value_name = "HOSTNAME[,ADDR]", value_delimiter = ',', required = true)]
    pub hosts: Vec<String>,
    /// Folder for the certificate, its key and the certificate of the authority; it is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// How long it counts, at most as long as the authority's
    #[arg(long, value_name = "N", default_value_t = 730, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}

/// `cert show`.
#[derive(Debug, Args)]
pub struct CertShowArguments {
    /// A file of certificates (PEM)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
