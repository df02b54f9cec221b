//! Reads a file.
//!
//! Owns: the order in which a file is read: syntax, then each table, then what must fit between them. Promises: no bytes
//! make it panic; it takes bounded time and memory; a file that was read has no mistake that this crate can find.

mod acme_reader;
mod consistency;
mod findings;
mod fleet_reader;
mod front;
mod origin_reader;
mod rule_reader;
mod site_reader;
mod storage_reader;
mod syntax;
mod table_reader;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::keys::{self, ConfigTable};
use crate::place::{LocatedValue, SourcePosition};
use crate::problem::{ConfigProblem, ConfigWarning, quoted};
use crate::source::ConfigSource;
use crate::suggest::nearest;
use crate::values::{OriginConfig, ProxyConfig};
use findings::ReadFindings;
use table_reader::{LIST_MAX, TableReader, Value, described, entries_of};

/// The longest file. *Units*: bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;
/// The longest file all of whose mistakes of syntax are found; of a longer one the first, as each costs memory. *Units*:
/// bytes.
const RECOVERED_BYTES_MAX: usize = 256 << 10;

impl ProxyConfig {
    /// Reads a configuration. `name` is the name of the file in messages.
    ///
    /// *Errors*: all mistakes that can be found, by place; at most 100, and then how many more. *Cost*: no I/O.
    pub fn parse(name: &str, text: &str) -> Result<(ProxyConfig, Vec<ConfigWarning>), Vec<ConfigProblem>> {
        if text.len() > FILE_BYTES_MAX {
            return Err(vec![too_large(name)]);
        }
        parse_text(ConfigSource::new(name, text))
    }

    /// Reads a configuration from the bytes of a file.
    ///
    /// *Errors*: as [`parse`](ProxyConfig::parse); and if it is no UTF-8.
    pub fn parse_bytes(name: &str, bytes: &[u8]) -> Result<(ProxyConfig, Vec<ConfigWarning>), Vec<ConfigProblem>> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(vec![too_large(name)]);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => ProxyConfig::parse(name, text),
            Err(error) => {
                let text = String::from_utf8_lossy(bytes);
                let source = ConfigSource::new(name, &text);
                let mark = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
                let at = error.valid_up_to().saturating_sub(mark);
                let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
                let message = format!("the byte 0x{byte:02X} is not UTF-8");
                Err(vec![
                    ConfigProblem::new(&source, source.place(at..at + 1), message).with_help("save the file as UTF-8"),
                ])
            }
        }
    }

    /// Reads a configuration file.
    ///
    /// *Errors*: as [`parse`](ProxyConfig::parse); and if the file cannot be read, is a directory, or is longer than
    /// [`FILE_BYTES_MAX`].
    pub fn read(path: &Path) -> Result<(ProxyConfig, Vec<ConfigWarning>), Vec<ConfigProblem>> {
        let name = path.display().to_string();
        let bytes = read_bytes(path).map_err(|error| vec![unreadable(&name, &error)])?;
        ProxyConfig::parse_bytes(&name, &bytes)
    }
}

/// Reads a file, up to one byte more than is allowed.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(name: &str, error: &io::Error) -> ConfigProblem {
    let (message, help) = match error.kind() {
        io::ErrorKind::NotFound => ("there is no such file".to_owned(), "docs/proxy-config.md has an example"),
        io::ErrorKind::IsADirectory => ("it is a directory".to_owned(), "name the file in it"),
        io::ErrorKind::PermissionDenied => {
            ("it may not be read".to_owned(), "let the user that the proxy runs as read it")
        }
        _ => (format!("it cannot be read: {error}"), "see whether the file system works"),
    };
    ConfigProblem::new(&ConfigSource::new(name, ""), SourcePosition::NOWHERE, message).with_help(help)
}

fn too_large(name: &str) -> ConfigProblem {
    let message = format!("it is longer than {} MiB", FILE_BYTES_MAX >> 20);
    ConfigProblem::new(&ConfigSource::new(name, ""), SourcePosition::NOWHERE, message)
        .with_help("is it the right file?")
}

fn parse_text(source: ConfigSource) -> Result<(ProxyConfig, Vec<ConfigWarning>), Vec<ConfigProblem>> {
    let mut out = ReadFindings::new(source.clone());
    if source.text().len() > RECOVERED_BYTES_MAX
        && let Err(error) = DeTable::parse(source.text())
    {
        syntax::tell(&mut out, &DeTable::new(), &[error]);
        return out.end().map(|warnings| (ProxyConfig::default(), warnings));
    }
    let (document, errors) = DeTable::parse_recoverable(source.text());
    syntax::tell(&mut out, document.get_ref(), &errors);
    drop(errors);
    let config = document_tables(&mut out, document.get_ref(), source.clone());
    consistency::check(&mut out, &config);
    out.end().map(|warnings| (config, warnings))
}

/// Reads the tables of a document.
fn document_tables(out: &mut ReadFindings, document: &DeTable<'_>, source: ConfigSource) -> ProxyConfig {
    unknown_tables(out, document);
    let mut config = ProxyConfig { source, ..ProxyConfig::default() };
    let start = SourcePosition { line: 1, column: 1, width: 1 };
    for table in tables(out, document, "listener", &keys::LISTENER) {
        config.listeners.extend(front::listener(out, &table));
    }
    if document.get("listener").is_none_or(|value| value.get_ref().as_array().is_some_and(|list| list.is_empty())) {
        out.unfit(start, "there is no [[listener]]", "write [[listener]] with for example `address = \":80\"`");
    }
    match table(out, document, "store", &keys::STORE) {
        Some(table) => config.store = storage_reader::store(out, &table),
        None if document.get("store").is_none() => {
            let help = "write [store] with for example `device = \"/var/lib/nectary/store\"`";
            out.unfit(start, "there is no [store]", help);
        }
        None => {}
    }
    if let Some(table) = table(out, document, "server", &keys::SERVER) {
        config.server = front::process(out, &table);
    }
    if let Some(table) = table(out, document, "admin", &keys::ADMIN) {
        config.admin = front::admin(out, &table);
    }
    if let Some(table) = table(out, document, "log", &keys::LOG) {
        config.log = front::log(out, &table);
    }
    if let Some(table) = table(out, document, "tls", &keys::TLS) {
        config.tls = front::tls(out, &table);
    }
    if let Some(table) = table(out, document, "limits", &keys::LIMITS) {
        config.limits = storage_reader::limits(out, &table);
    }
    if let Some(table) = table(out, document, "fleet", &keys::FLEET) {
        config.fleet = Some(fleet_reader::fleet(out, &table));
    }
    if let Some(table) = table(out, document, "forward-proxy", &keys::FORWARD) {
        config.forward = Some(site_reader::forward(out, &table));
    }
    config.origins = origins(out, document);
    for table in tables(out, document, "site", &keys::SITE) {
        config.sites.push(site_reader::site(out, &table));
    }
    if document.get("site").is_none() && document.get("forward-proxy").is_none() {
        let help = "write [[site]] with `names` and [[site.route]], or [forward-proxy]";
        out.unfit(start, "there is no [[site]]", help);
    }
    config
}

/// Tells what is at the top of the file and may not be.
fn unknown_tables(out: &mut ReadFindings, document: &DeTable<'_>) {
    let mut unknown: Vec<_> =
        document.iter().filter(|(key, _)| !keys::TOP.iter().any(|top| *top == key.get_ref())).collect();
    unknown.sort_by_key(|(key, _)| key.span().start);
    let header = |name: &str| match name {
        "listener" | "site" => format!("[[{name}]]"),
        "origins" => "[origins.NAME]".to_owned(),
        name => format!("[{name}]"),
    };
    for (key, value) in unknown {
        let place = out.place(key.span());
        if out.is_full() {
            out.wrong(place, "", "");
            continue;
        }
        let name: &str = key.get_ref();
        let tables = keys::TOP.map(header).join(", ");
        let elsewhere = keys::TABLES.iter().find(|table| table.key(name).is_some() && !value.get_ref().is_table());
        let help = match (nearest(name, keys::TOP), elsewhere) {
            (_, Some(table)) => format!("`{name}` is a key of {}: write it below such a header", table.header),
            (Some(near), None) => format!("perhaps {}; allowed: {tables}", header(near)),
            (None, None) => format!("allowed: {tables}"),
        };
        let what = if value.get_ref().is_table() { "table" } else { "key" };
        out.wrong(place, format!("the file has no {what} {}", quoted(name)), help);
    }
}

/// Opens a table at the top of the file.
fn table<'a>(
    out: &mut ReadFindings,
    document: &'a DeTable<'a>,
    name: &str,
    allowed: &'static ConfigTable,
) -> Option<TableReader<'a>> {
    let value = document.get(name)?;
    if let DeValue::Array(_) = value.get_ref() {
        let help = format!("write {}, once", allowed.header);
        out.wrong(out.place(value.span()), format!("`{name}` is a table, not a list of tables"), help);
        return None;
    }
    TableReader::open(out, allowed, value)
}

/// Opens the tables of a list at the top of the file.
fn tables<'a>(
    out: &mut ReadFindings,
    document: &'a DeTable<'a>,
    name: &str,
    allowed: &'static ConfigTable,
) -> Vec<TableReader<'a>> {
    let Some(value) = document.get(name) else { return Vec::new() };
    let place = out.place(value.span());
    let DeValue::Array(elements) = value.get_ref() else {
        let found = described(value.get_ref());
        let help = format!("write the header with two brackets: {}", allowed.header);
        out.wrong(place, format!("`{name}` must be a list of tables, not {found}"), help);
        return Vec::new();
    };
    if elements.len() > LIST_MAX {
        let message = format!("the file has {} of {}", elements.len(), allowed.header);
        out.wrong(place, message, format!("at most {LIST_MAX} are allowed"));
        return Vec::new();
    }
    elements.iter().filter_map(|element| TableReader::open(out, allowed, element)).collect()
}

/// Reads the origins.
fn origins(out: &mut ReadFindings, document: &DeTable<'_>) -> Vec<LocatedValue<OriginConfig>> {
    let Some(value) = document.get("origins") else { return Vec::new() };
    let place = out.place(value.span());
    let DeValue::Table(table) = value.get_ref() else {
        let found = described(value.get_ref());
        let help = "write a header for each origin, such as [origins.app]";
        out.wrong(place, format!("`origins` must be tables by name, not {found}"), help);
        return Vec::new();
    };
    let mut origins = Vec::new();
    for (name, value) in entries_of(out, "origins", place, table) {
        origins.extend(origin_or_lost_key(out, name, value));
    }
    origins
}

/// Reads an origin; a key of an origin that is not below the origin's name is told.
fn origin_or_lost_key(
    out: &mut ReadFindings,
    name: LocatedValue<&str>,
    value: Value<'_>,
) -> Option<LocatedValue<OriginConfig>> {
    let is_lost = keys::ORIGIN.key(name.value).is_some() && !value.get_ref().is_table();
    if is_lost {
        let message = format!("`{}` is not below the name of an origin", name.value);
        out.wrong(name.place, message, "write a header with a name, such as [origins.app]");
        return None;
    }
    origin_reader::origin(out, name, value)
}
