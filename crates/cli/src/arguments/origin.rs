//! `--origin` and its kind: the server behind a proxy, the certificates that are trusted for origins, and what of a
//! request is part of the key.

use std::path::PathBuf;

use clap::Args;
use nectary_proxy::{KeyHeader, OriginHost, OriginOptions, OriginUrl};

/// The origin of a reverse proxy.
#[derive(Debug, Args)]
pub struct OriginArguments {
    /// The server to stand in front of, http:// or https://; without it this is a forward proxy
    #[arg(long, value_name = "URL")]
    pub origin: Option<OriginUrl>,
    /// Certificates, a PEM file, that https origins may be signed by, in addition to the system's; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub origin_ca: Option<PathBuf>,
    /// The Host that the origin gets, which is also in the keys: origin (its own), client (the one that each client
    /// names), or a host, for example www.example.org
    #[arg(long, value_name = "HOST", default_value = "origin", requires = "origin")]
    pub origin_host: OriginHost,
    /// A request header that is part of every key, for example X-Forwarded-Proto: each of its values has its own copies.
    /// Of the X-Forwarded-* that --trust-forwarded allows, only those named here reach the origin; may be given again
    #[arg(long, value_name = "NAME")]
    pub key_header: Vec<KeyHeader>,
    /// Do not store bodies that end with the origin's connection, for origins that break off and close cleanly
    #[arg(long)]
    pub no_store_close_delimited: bool,
}

impl OriginArguments {
    /// What the origin is asked for, and what of a request is part of the key.
    pub fn rules(&self) -> OriginOptions {
        OriginOptions {
            host: self.origin_host.clone(),
            key_headers: self.key_header.clone(),
            distrusts_close: self.no_store_close_delimited,
        }
    }
}
