//! Access logs of web servers and proxies, read as a sequence of requests.
//!
//! Owns: [`LogLine`], what a line says of a request; the formats (one file each), and guessing the format of a file.
//! Promises: memory does not grow with the log; a line that is no request of its format is reported as such and ends
//! nothing, because real logs have such lines. Leaves to others: reading and decompressing bytes (`formats::input`),
//! and which requests a cache could answer (`nectary-bench`).
//!
//! | format | its lines |
//! |---|---|
//! | [`AccessLogFormat::Squid`] | Squid's native format |
//! | [`AccessLogFormat::Common`] | Common and Combined, also with more fields at the end: Nectary's, "extended-2" |
//! | [`AccessLogFormat::W3c`] | the W3C's extended format, whose `#Fields:` names the columns |
//! | [`AccessLogFormat::Json`] | an object a line: Nectary's, and the usual names of nginx, HAProxy and Caddy |

mod common;
mod json;
mod squid;
mod w3c;

use std::borrow::Cow;
use std::path::Path;

use crate::error::{Error, Result, TracePosition, quote};
use crate::formats::input::DecompressedInput;
use w3c::LogColumns;

/// What a line of a log says of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogLine<'a> {
    /// The client's address or name.
    pub client: Cow<'a, str>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The URL as the log has it: absolute, or a path.
    pub url: Cow<'a, str>,
    /// The status of the answer; 0 if there was none.
    pub status: u16,
    /// The bytes that were sent; some formats include the head of the answer.
    pub bytes: u64,
    /// The size of the whole object, for formats that have it.
    pub object_bytes: Option<u64>,
    /// The media type of the answer; empty if the format does not have it.
    pub content_type: Cow<'a, str>,
}

/// What a line is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineContents<'a> {
    /// A request.
    Request(LogLine<'a>),
    /// A comment, a directive, or a blank line.
    Comment,
    /// Not a line of the format.
    Malformed,
}

/// A format of access logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// Squid's native format.
    Squid,
    /// The Common Log Format, and all that begin like it.
    Common,
    /// The W3C's Extended Log File Format.
    W3c,
    /// JSON lines.
    Json,
}

impl AccessLogFormat {
    /// All formats.
    pub const ALL: [AccessLogFormat; 4] =
        [AccessLogFormat::Squid, AccessLogFormat::Common, AccessLogFormat::W3c, AccessLogFormat::Json];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            AccessLogFormat::Squid => "squid",
            AccessLogFormat::Common => "common",
            AccessLogFormat::W3c => "w3c",
            AccessLogFormat::Json => "json",
        }
    }

    /// The format in which a line of the beginning of a file is a request; `None` if there is none.
    fn guess(head: &[u8]) -> Option<AccessLogFormat> {
        let text = String::from_utf8_lossy(head);
        AccessLogFormat::ALL.into_iter().find(|format| {
            let mut columns = LogColumns::default();
            text.lines().any(|line| matches!(format.parse(line, &mut columns), LineContents::Request(_)))
        })
    }

    fn parse<'a>(self, line: &'a str, columns: &mut LogColumns) -> LineContents<'a> {
        let line = line.trim();
        if line.is_empty() {
            return LineContents::Comment;
        }
        let request = match self {
            AccessLogFormat::Squid => squid::parse(line),
            AccessLogFormat::Common => common::parse(line),
            AccessLogFormat::Json => json::parse(line),
            AccessLogFormat::W3c if line.starts_with('#') => {
                columns.direct(line);
                return LineContents::Comment;
            }
            AccessLogFormat::W3c => columns.parse(line),
        };
        request.map_or(LineContents::Malformed, LineContents::Request)
    }
}

/// A reader of an access log, plain or compressed.
pub struct AccessLogReader {
    input: DecompressedInput,
    format: AccessLogFormat,
    columns: LogColumns,
    text: String,
}

impl AccessLogReader {
    /// Opens a log; `-` is standard input.
    ///
    /// *Errors*: the file cannot be read, or none of its first lines is a request in a known format.
    pub fn open(path: &Path) -> Result<AccessLogReader> {
        AccessLogReader::from_input(DecompressedInput::open(path)?)
    }

    /// Reads a log from an open input.
    pub fn from_input(input: DecompressedInput) -> Result<AccessLogReader> {
        let Some(format) = AccessLogFormat::guess(input.head()) else {
            let names: Vec<&str> = AccessLogFormat::ALL.iter().map(|format| format.name()).collect();
            let expected = format!("an access log ({})", names.join(", "));
            return Err(Error::malformed(input.path(), TracePosition::Whole, expected, quote(input.head())));
        };
        Ok(AccessLogReader { input, format, columns: LogColumns::default(), text: String::new() })
    }

    /// The format of the log.
    pub fn format(&self) -> AccessLogFormat {
        self.format
    }

    /// Reads the next line; `None` at the end of the log. Bytes that are no UTF-8 are replaced.
    pub fn read(&mut self) -> Result<Option<LineContents<'_>>> {
        let Some(line) = self.input.line()? else { return Ok(None) };
        self.text.clear();
        self.text.push_str(&String::from_utf8_lossy(line));
        Ok(Some(self.format.parse(&self.text, &mut self.columns)))
    }

    /// An error about the line that was read last.
    pub fn bad_line(&self) -> Error {
        let expected = format!("a line of the format {}", self.format.name());
        self.input.bad_line(expected, quote(self.text.as_bytes()))
    }
}

/// A number of bytes; `-` is none.
fn count_of(text: &str) -> Option<u64> {
    if text == "-" { Some(0) } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    fn lines(bytes: &[u8]) -> (AccessLogFormat, Vec<String>) {
        let input =
            DecompressedInput::from_reader(Path::new("log"), Box::new(Cursor::new(bytes.to_vec()))).expect("an input");
        let mut reader = AccessLogReader::from_input(input).expect("a known format");
        let mut found = Vec::new();
        while let Some(contents) = reader.read().expect("a line") {
            found.push(match contents {
                LineContents::Request(line) => {
                    let LogLine { client, method, url, status, bytes, object_bytes, content_type } = line;
                    let object = object_bytes.map_or(String::new(), |bytes| format!(" of {bytes}"));
                    format!("{client} {method} {url} {status} {bytes}{object} {content_type}").trim_end().to_owned()
                }
                LineContents::Comment => "#".to_owned(),
                LineContents::Malformed => "?".to_owned(),
            });
        }
        (reader.format(), found)
    }

    const SQUID: &str = "1157689312.049   5006 10.105.21.199 TCP_MISS/200 19763 CONNECT login.example:443 badeyek DIRECT/209.73.177.115 -\n\
        1157689320.343    357 10.105.21.199 TCP_HIT/200 10182 GET http://www.example/a.gif?x=1 - NONE/- image/gif\n";

    #[test]
    fn squid_lines_are_requests() {
        let (format, found) = lines(SQUID.as_bytes());
        assert_eq!(format, AccessLogFormat::Squid);
        assert_eq!(found[1], "10.105.21.199 GET http://www.example/a.gif?x=1 200 10182 image/gif");
        assert_eq!(found[0], "10.105.21.199 CONNECT login.example:443 200 19763");
    }

    /// Also with a virtual host in front, and with Nectary's fields behind.
    #[test]
    fn common_and_combined_are_one_format() {
        let text = "127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] \"GET /apache_pb.gif HTTP/1.0\" 200 2326\n\
            ::1 - - [10/Oct/2000:13:55:36 -0700] \"GET /a \\\"b\\\" HTTP/1.1\" 304 - \"http://h/\" \"Mozilla/4.08 [en]\"\n\
            www.example:443 10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"GET /x HTTP/2.0\" 200 5 \"-\" \"-\"\n\
            192.0.2.7 - - [21/Nov/2026:20:23:00 +0000] \"GET http://h/p?q HTTP/1.1\" 206 12 \"-\" \"c\" HIT 0.000123 1234\n\
            \"-\" 400 0\n";
        let (format, found) = lines(text.as_bytes());
        assert_eq!(format, AccessLogFormat::Common);
        let expected = [
            "127.0.0.1 GET /apache_pb.gif 200 2326",
            "::1 GET /a \\\"b\\\" 304 0",
            "10.0.0.1 GET www.example:443/x 200 5",
            "192.0.2.7 GET http://h/p?q 206 12 of 1234",
            "?",
        ];
        assert_eq!(found, expected);
    }

    /// Columns may change within a log.
    #[test]
    fn w3c_columns_follow_their_directive() {
        let text = "#Version: 1.0\n#Fields: time c-ip cs-method cs-uri-stem cs-uri-query sc-status sc-bytes cs(Host)\n\
            00:34:23 10.0.0.1 GET /foo/bar.html a=b 200 77 www.example\n#Fields: sc-status c-ip cs-uri cs-method\n\
            304 10.0.0.2 http://h/ GET\n304 10.0.0.2\n";
        let (format, found) = lines(text.as_bytes());
        assert_eq!(format, AccessLogFormat::W3c);
        let expected =
            ["#", "#", "10.0.0.1 GET www.example/foo/bar.html?a=b 200 77", "#", "10.0.0.2 GET http://h/ 304 0", "?"];
        assert_eq!(found, expected);
    }

    #[test]
    fn json_has_names_of_several_programs() {
        let text = r#"{"client":"192.0.2.7","method":"GET","scheme":"https","host":"h","target":"/p?q","status":200,"bytes":7,"object_bytes":9}
{"remote_addr":"10.0.0.1","request":"GET /x HTTP/1.1","status":"200","body_bytes_sent":"12","sent_http_content_type":"text/html"}
{"request":{"remote_ip":"10.0.0.2","method":"GET","host":"h","uri":"/y"},"status":404,"size":3}
[1]
"#;
        let (format, found) = lines(text.as_bytes());
        assert_eq!(format, AccessLogFormat::Json);
        let expected = [
            "192.0.2.7 GET https://h/p?q 200 7 of 9",
            "10.0.0.1 GET /x 200 12 text/html",
            "10.0.0.2 GET h/y 404 3",
            "?",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn compressed_log_reads_like_plain() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(SQUID.as_bytes()).expect("memory");
        let zstd = ruzstd::encoding::compress_to_vec(SQUID.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        for bytes in [gzip.finish().expect("memory"), zstd] {
            assert_eq!(lines(&bytes), lines(SQUID.as_bytes()));
        }
    }

    #[test]
    fn unknown_log_is_an_error() {
        let input = DecompressedInput::from_reader(Path::new("log"), Box::new(Cursor::new(b"no log\n".to_vec())));
        let error = AccessLogReader::from_input(input.expect("an input")).map(drop).expect_err("no log");
        assert!(error.to_string().contains("an access log (squid, common, w3c, json)"), "{error}");
    }
}
