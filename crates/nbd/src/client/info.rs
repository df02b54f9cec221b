//! Information about a server's exports. The client gets it without reading or writing an export.

use serde::Serialize;

use super::connect::{ConnectOptions, ConnectResult, open};
use super::handshake::{ClientAgreement, ConnectGoal, ListedExport};
use crate::error::{Error, NbdErrorKind};
use crate::url::ExportUrl;
use crate::wire::flag;

/// A server's information about an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportInfo {
    /// The server's name for the export, or the requested name if the server states none.
    pub name: String,
    /// The server's description of the export.
    pub description: Option<String>,
    /// The size of the export, in bytes.
    pub size_bytes: u64,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Whether replies are structured.
    pub structured_replies: bool,
    /// Whether the headers are extended, which have 64-bit lengths.
    pub extended_headers: bool,
    /// Whether the server can report which ranges are allocated (`base:allocation`).
    pub allocation: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the export has the characteristics of a rotating disk.
    pub rotational: bool,
    /// The abilities of the export, by their names in [`ExportInfo::WORDS`].
    pub can: Vec<&'static str>,
    /// The smallest block, in bytes, if the server states it.
    pub block_bytes_min: Option<u32>,
    /// The preferred block, in bytes, if the server states it.
    pub block_bytes_preferred: Option<u32>,
    /// The largest payload of one request, in bytes, if the server states it.
    pub payload_bytes_max: Option<u32>,
}

impl ExportInfo {
    /// The names of all abilities that an export can have.
    pub const WORDS: [&'static str; 12] = [
        "write",
        "flush",
        "fua",
        "trim",
        "zero",
        "fast-zero",
        "cache",
        "df",
        "multi-conn",
        "structured-replies",
        "extended-headers",
        "allocation",
    ];

    /// Whether the export has an ability, named as in [`ExportInfo::WORDS`].
    pub fn can(&self, word: &str) -> bool {
        self.can.contains(&word)
    }

    fn new(url: &ExportUrl, agreed: &ClientAgreement) -> ExportInfo {
        let has = |flag: u16| agreed.flags & flag != 0;
        let is = [
            !has(flag::READ_ONLY),
            has(flag::SEND_FLUSH),
            has(flag::SEND_FUA),
            has(flag::SEND_TRIM),
            has(flag::SEND_WRITE_ZEROES),
            has(flag::SEND_FAST_ZERO),
            has(flag::SEND_CACHE),
            has(flag::SEND_DF),
            has(flag::CAN_MULTI_CONN),
            agreed.headers.is_structured(),
            agreed.headers.is_extended(),
            agreed.allocation.is_some(),
        ];
        let can = ExportInfo::WORDS.iter().zip(is).filter(|(_, is)| *is).map(|(word, _)| *word).collect();
        ExportInfo {
            name: agreed.name.clone().unwrap_or_else(|| url.export.clone()),
            description: agreed.description.clone(),
            size_bytes: agreed.size_bytes,
            tls: url.tls,
            structured_replies: agreed.headers.is_structured(),
            extended_headers: agreed.headers.is_extended(),
            allocation: agreed.allocation.is_some(),
            read_only: has(flag::READ_ONLY),
            rotational: has(flag::ROTATIONAL),
            can,
            block_bytes_min: agreed.block_sizes.map(|sizes| sizes.0),
            block_bytes_preferred: agreed.block_sizes.map(|sizes| sizes.1),
            payload_bytes_max: agreed.block_sizes.map(|sizes| sizes.2),
        }
    }
}

/// Requests information about an export from its server.
///
/// *Errors*: [`NbdErrorKind::Absent`] if nothing listens or there is no such export; otherwise the other kinds of errors
/// of connecting.
pub async fn info(url: &ExportUrl, options: &ConnectOptions) -> Result<ExportInfo, Error> {
    match open(url, options, ConnectGoal::Info).await? {
        ConnectResult::Export(_, agreed) => Ok(ExportInfo::new(url, &agreed)),
        ConnectResult::List(_) => Err(Error::new(NbdErrorKind::Protocol, url.to_string(), "the server sent a list")),
    }
}

/// Requests the list of a server's exports. The name of the export in the URL is not used.
///
/// *Errors*: [`NbdErrorKind::Refused`] if the server does not list its exports; otherwise the errors of [`info`].
pub async fn list(url: &ExportUrl, options: &ConnectOptions) -> Result<Vec<ListedExport>, Error> {
    match open(url, options, ConnectGoal::List).await? {
        ConnectResult::List(list) => Ok(list),
        ConnectResult::Export(..) => {
            Err(Error::new(NbdErrorKind::Protocol, url.to_string(), "the server sent no list"))
        }
    }
}
