//! `--origin`, `--origin-ca`: the server behind a proxy, and the certificates that are trusted for origins.

use std::path::PathBuf;

use clap::Args;
use nectary_proxy::OriginUrl;

/// The origin of a reverse proxy.
#[derive(Debug, Args)]
pub struct OriginArguments {
    /// The server to stand in front of, http:// or https://; without it this is a forward proxy
    #[arg(long, value_name = "URL")]
    pub origin: Option<OriginUrl>,
    /// Certificates, a PEM file, that https origins may be signed by, in addition to the system's; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub origin_ca: Option<PathBuf>,
}
