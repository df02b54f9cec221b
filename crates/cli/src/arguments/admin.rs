//! `--admin-listen`, `--admin-token-file`, `--admin-relayed`: who may purge over HTTP.

use std::path::PathBuf;

use clap::Args;
use nectary_config::ListenAddress;
use nectary_proxy::{AdminOptions, AdminToken, Error};

use super::{parse_listen, tcp_addresses};

/// Who may purge over HTTP.
#[derive(Debug, Args)]
pub struct AdminArguments {
    /// Address for administration, which serves PURGE, a page for operators, /metrics, /healthz and /readyz; without a
    /// token a loopback address or unix:PATH, which needs none; may be given again
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    pub admin_listen: Vec<ListenAddress>,
    /// File with the token that PURGE must show as `Authorization: Bearer TOKEN`; with it PURGE is served on every
    /// address
    #[arg(long, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Serve PURGE also if it has passed another proxy (Forwarded, X-Forwarded-*, X-Real-IP, Via)
    #[arg(long)]
    pub admin_relayed: bool,
}

impl AdminArguments {
    /// The checked options, with the token read from its file, and without the Unix sockets.
    pub fn options(&self) -> Result<AdminOptions, Error> {
        let token = self.admin_token_file.as_deref().map(AdminToken::read).transpose()?;
        let listen = tcp_addresses(&self.admin_listen);
        let options = AdminOptions { listen, token, relayed: self.admin_relayed, pages: None };
        options.check()?;
        Ok(options)
    }
}
