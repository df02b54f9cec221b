//! Reads what belongs to the process: `[server]`, `[[listener]]`, `[tls]`, `[admin]` and `[log]`.
//!
//! Owns: their bounds. Leaves to others: whether they fit to each other (`consistency`).

use super::acme_reader;
use super::findings::ReadFindings;
use super::table_reader::{LIST_MAX, TableReader, text_element};
use crate::keys;
use crate::place::LocatedValue;
use crate::text::{Read, file_path, header_sender, listen_address, network, socket_mode};
use crate::values::{
    AdminConfig, CertificateConfig, ListenerConfig, LogConfig, LogFormat, LogTarget, ProcessConfig, TlsConfig,
    TlsVersion, UnknownName,
};

/// The most worker threads.
const WORKERS_MAX: u16 = 1024;

/// Reads `[server]`.
pub(super) fn process(out: &mut ReadFindings, table: &TableReader<'_>) -> ProcessConfig {
    ProcessConfig {
        workers: table.number(out, "workers", 1..=WORKERS_MAX),
        trust_forwarded: table.list(out, "trust-forwarded", network),
        send_forwarded: table.switch(out, "send-forwarded"),
    }
}

/// Reads a `[[listener]]`. *Errors*: `None`, and it is told, if it has no address.
pub(super) fn listener(out: &mut ReadFindings, table: &TableReader<'_>) -> Option<LocatedValue<ListenerConfig>> {
    let address = table.required(out, "address", |out| table.text(out, "address", listen_address));
    let (tls, redirect_to_https) = (table.switch(out, "tls"), table.switch(out, "redirect-to-https"));
    let proxy_protocol_from = table.list(out, "proxy-protocol-from", header_sender);
    let socket_mode = table.text(out, "socket-mode", socket_mode);
    let listener = ListenerConfig { address: address?, tls, redirect_to_https, proxy_protocol_from, socket_mode };
    Some(LocatedValue::new(listener, table.place))
}

/// Reads `[tls]`.
pub(super) fn tls(out: &mut ReadFindings, table: &TableReader<'_>) -> TlsConfig {
    let mut certificates = Vec::new();
    for value in table
        .elements(out, "certificate", "tables, each with a header [[tls.certificate]]", LIST_MAX)
        .into_iter()
        .flatten()
    {
        if let Some(inner) = TableReader::open(out, &keys::CERTIFICATE, value) {
            certificates.extend(certificate(out, &inner));
        }
    }
    let acme = table.table(out, "acme", &keys::ACME).map(|inner| acme_reader::acme(out, &inner));
    TlsConfig {
        certificates,
        acme,
        unknown_name: table.choice(
            out,
            "unknown-name",
            &[("first", UnknownName::First), ("refuse", UnknownName::Refuse)],
        ),
        version_min: table.choice(out, "version-min", &[("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)]),
        client_ca: table.file(out, "client-ca"),
    }
}

fn certificate(out: &mut ReadFindings, table: &TableReader<'_>) -> Option<LocatedValue<CertificateConfig>> {
    let cert = table.required(out, "cert", |out| table.file(out, "cert"));
    let key = table.required(out, "key", |out| table.file(out, "key"));
    Some(LocatedValue::new(CertificateConfig { cert: cert?, key: key? }, table.place))
}

/// Reads `[admin]`.
pub(super) fn admin(out: &mut ReadFindings, table: &TableReader<'_>) -> AdminConfig {
    let listen = match table.get("listen") {
        Some(value) if value.get_ref().is_str() => {
            text_element(out, "listen", value, listen_address).into_iter().collect()
        }
        _ => table.list(out, "listen", listen_address),
    };
    AdminConfig {
        listen,
        socket_mode: table.text(out, "socket-mode", socket_mode),
        token_file: table.file(out, "token-file"),
        relayed: table.switch(out, "relayed"),
    }
}

/// Reads `[log]`.
pub(super) fn log(out: &mut ReadFindings, table: &TableReader<'_>) -> LogConfig {
    LogConfig {
        access: table.text(out, "access", log_target),
        format: table.choice(out, "format", &[("combined", LogFormat::Combined), ("json", LogFormat::Json)]),
    }
}

fn log_target(text: &str) -> Read<LogTarget> {
    match text {
        "none" => Ok(LogTarget::None),
        "-" => Ok(LogTarget::Stdout),
        path => file_path(path).map(LogTarget::File),
    }
}
