//! Administration and the access log.
//!
//! Owns: the values of `[admin]` and `[log]`.

use std::path::PathBuf;

use super::listener::{ListenAddress, SocketMode};
use crate::place::{LocatedValue, Setting};

/// `[admin]`: who may administer the proxy over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdminConfig {
    /// `listen`: the addresses for administration, one or a list. Without a token these are loopback addresses and Unix
    /// sockets. Default: none.
    pub listen: Vec<LocatedValue<ListenAddress>>,
    /// `socket-mode`: the permissions of the files of Unix sockets in [`listen`](Self::listen). Default: 0600.
    pub socket_mode: Setting<SocketMode>,
    /// `token-file`: a file with the token that `PURGE` must show; it is not read here. Default: none.
    pub token_file: Setting<PathBuf>,
    /// `relayed`: whether `PURGE` is served that has passed another proxy. Default: false.
    pub relayed: Setting<bool>,
}

/// `[log]`: one line for each request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogConfig {
    /// `access`: where the lines go. Default: [`LogTarget::None`].
    pub access: Setting<LogTarget>,
    /// `format`: their form. Default: [`LogFormat::Combined`].
    pub format: Setting<LogFormat>,
}

/// Where the lines of the access log go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// `"none"`: nowhere.
    None,
    /// `"-"`: to the standard output.
    Stdout,
    /// To this file.
    File(PathBuf),
}

/// The form of the lines of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `"combined"`: as other servers write it.
    Combined,
    /// `"json"`: a JSON object a line.
    Json,
}
