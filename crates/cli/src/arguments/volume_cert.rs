//! The options of `volume cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{TEMPLATE, exit};

/// Certificates of a volume's hosts.
#[derive(Debug, Subcommand)]
pub enum VolumeCertCommand {
    /// Make an authority: its certificate `ca.pem` for every host, and its key `ca.key`, which stays secret
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume cert init ./pki --name builds", after_help = exit::HELP)]
    Init(CertInitArguments),
    /// Make the certificate of a host, for its server and its mounts
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume cert host ./pki h1 --out ./h1
  nectary volume cert host ./pki h1.example,h1,10.0.0.1 --out ./h1", after_help = exit::HELP)]
    Host(CertHostArguments),
    /// Show whose certificates a file has, and when they end
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary volume cert show h1/h1.pem
  nectary volume cert show h1/h1.pem --json | jq .certificates[0].days_left",
        after_help = SHOW_HELP)]
    Show(CertShowArguments),
}

const SHOW_HELP: &str = "\
Exit codes:
  0  every certificate counts              3  one ends within 30 days
  1  one has ended, or is damaged          4  no such file";

/// `volume cert init`.
#[derive(Debug, Args)]
pub struct CertInitArguments {
    /// The folder of the authority; it is made
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Name of the authority, for people, at most 64 bytes
    #[arg(long, value_name = "TEXT", default_value = "nectary volume")]
    pub name: String,
}

/// `volume cert host`.
#[derive(Debug, Args)]
pub struct CertHostArguments {
    /// The folder of the authority
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The host, then further names and addresses that clients reach it by, for example h1.example,h1,10.0.0.1
    #[arg(value_name = "HOSTNAME[,ADDR]", value_delimiter = ',', required = true)]
    pub hosts: Vec<String>,
    /// Folder for `HOSTNAME.pem`, `HOSTNAME.key` and `ca.pem`; it is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// How long it counts, at most as long as the authority's
    #[arg(long, value_name = "N", default_value_t = 730, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}

/// `volume cert show`.
#[derive(Debug, Args)]
pub struct CertShowArguments {
    /// A file of certificates (PEM)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
