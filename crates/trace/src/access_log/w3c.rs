//! The W3C's Extended Log File Format: the directive `#Fields:` names the columns of the lines behind it.
//!
//! Source: W3C Working Draft WD-logfile-960323.

use super::{LogLine, count_of};

/// The names of a column that means the same, in lower case.
const CLIENT: &[&str] = &["c-ip", "c-dns", "x-client-ip"];
const METHOD: &[&str] = &["cs-method"];
const URL: &[&str] = &["cs-uri"];
const STEM: &[&str] = &["cs-uri-stem"];
const QUERY: &[&str] = &["cs-uri-query"];
const HOST: &[&str] = &["cs(host)", "cs-host", "x-host-header"];
const STATUS: &[&str] = &["sc-status"];
const BYTES: &[&str] = &["sc-bytes", "bytes"];
const TYPE: &[&str] = &["sc-content-type", "sc(content-type)", "rs(content-type)"];

/// The columns that the last directive named.
#[derive(Debug, Default)]
pub(super) struct LogColumns {
    client: Option<usize>,
    method: Option<usize>,
    url: Option<usize>,
    stem: Option<usize>,
    query: Option<usize>,
    host: Option<usize>,
    status: Option<usize>,
    bytes: Option<usize>,
    content_type: Option<usize>,
}

impl LogColumns {
    /// Reads a directive.
    pub fn direct(&mut self, line: &str) {
        let Some(names) = line.strip_prefix("#Fields:") else { return };
        let names: Vec<String> = names.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
        let place = |known: &[&str]| known.iter().find_map(|known| names.iter().position(|name| name == known));
        *self = LogColumns {
            client: place(CLIENT),
            method: place(METHOD),
            url: place(URL),
            stem: place(STEM),
            query: place(QUERY),
            host: place(HOST),
            status: place(STATUS),
            bytes: place(BYTES),
            content_type: place(TYPE),
        };
    }

    /// Reads a line; `None` if it lacks a column that a request needs.
    pub fn parse<'a>(&self, line: &'a str) -> Option<LogLine<'a>> {
        let values: Vec<&str> = match line.contains('\t') {
            true => line.split('\t').collect(),
            false => line.split_ascii_whitespace().collect(),
        };
        let text = |column: Option<usize>| values.get(column?).copied();
        let known = |column| text(column).filter(|value| *value != "-").unwrap_or_default();
        let url = match text(self.url) {
            Some(url) => url.into(),
            None => {
                let (host, stem, query) = (known(self.host), text(self.stem)?, known(self.query));
                let mark = if query.is_empty() { "" } else { "?" };
                format!("{host}{stem}{mark}{query}").into()
            }
        };
        Some(LogLine {
            client: known(self.client).into(),
            method: text(self.method)?.into(),
            url,
            status: text(self.status)?.parse().ok()?,
            bytes: text(self.bytes).map_or(Some(0), count_of)?,
            object_bytes: None,
            content_type: known(self.content_type).into(),
        })
    }
}
