//! `--config` and its kind: the options of a proxy in one file.

use std::path::PathBuf;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use nectary_config::ProxyConfig;

/// The configuration file of `proxy`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration file")]
pub struct ConfigArguments {
    /// A TOML file with everything that options say, and with sites, routes and origins; no other option beside it.
    /// SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only check the file of --config, and the files and names that it refers to; start nothing
    #[arg(long, requires = "config")]
    pub check_config: bool,
    /// Only print the options as a file for --config; start nothing
    #[arg(long, conflicts_with = "check_config")]
    pub print_config: bool,
    /// What the file says, once it was read.
    #[arg(skip)]
    pub read: Option<Arc<ProxyConfig>>,
}

/// The options that may be given beside `--config`, by their identifiers.
const BESIDE: [&str; 3] = ["config", "check_config", "print_config"];

impl ConfigArguments {
    /// The option of `proxy` that is given beside `--config` although the file says the same.
    pub fn given_beside(proxy: &ArgMatches) -> Option<String> {
        let is_given = |id: &str| proxy.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given("config") {
            return None;
        }
        // The identifiers of groups have no source of the command line that is an option's.
        let mut ids = proxy.ids().map(|id| id.as_str()).filter(|id| !BESIDE.contains(id) && !id.contains("Arguments"));
        ids.find(|id| is_given(id)).map(|id| format!("--{}", id.replace('_', "-")))
    }
}
