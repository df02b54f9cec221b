//! The requests of a real access log, as a workload.
//!
//! Owns: which requests of a log a cache could answer, and what the log does not say of them. A request counts if its
//! method is GET and its status 200, 203, 206 or 304. Objects are told apart by the URL. An object's size is the
//! largest that a whole answer (200, 203) had, because shorter ones were broken off; some logs have the object's size.
//! Requests for objects without a size, and for objects of more than [`LOG_OBJECT_BYTES_MAX`], are left out and
//! counted. Hints are those of the seeds: the last HTML object of the client; HTML is told by the type of the answer, or
//! else by the end of the path. Promises: memory is bounded by [`LOG_REQUESTS_MAX`]. Leaves to others: the formats
//! (`nectary_trace::access_log`).

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use nectary_trace::access_log::{AccessLogReader, LineContents, LogLine};
use serde::Serialize;

use super::{ProxyRequest, WorkloadTotals};
use crate::{Error, ExperimentErrorKind};

/// The largest object of a log that is requested. *Units*: bytes. The seed's trace has none that is larger.
pub const LOG_OBJECT_BYTES_MAX: u64 = 2_000_000;
/// The largest number of requests; the rest of a longer log is left out.
pub const LOG_REQUESTS_MAX: usize = 1 << 26;
/// The share of malformed lines that a log may have, and the number that is always allowed.
const MALFORMED_SHARE_MAX: f64 = 0.01;
const MALFORMED_ALLOWED: u64 = 10;
/// The ends of paths that are HTML's, for logs without types.
const HTML_ENDS: [&str; 6] = [".html", ".htm", ".shtml", ".php", ".asp", ".jsp"];

/// How many lines of a log are not requested, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeftOutLines {
    /// Lines that are no request of the format.
    pub malformed: u64,
    /// Requests with another method.
    pub methods: u64,
    /// Requests with another status.
    pub statuses: u64,
    /// Requests for objects without a size.
    pub unsized_objects: u64,
    /// Requests for objects that are too large.
    pub large_objects: u64,
    /// Whether the log goes on behind the last request that was read.
    pub is_cut: bool,
}

/// The requests of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogWorkload {
    /// The file.
    pub path: PathBuf,
    /// The name of its format.
    pub format: &'static str,
    /// The requests, in the order of the log.
    pub requests: Vec<ProxyRequest>,
    /// Their totals.
    pub totals: WorkloadTotals,
    /// What the log has besides.
    pub left_out: LeftOutLines,
}

/// An object while a log is read.
#[derive(Debug, Clone, Copy, Default)]
struct LoggedObject {
    bytes: u64,
    is_html: bool,
}

/// A log while it is read.
#[derive(Default)]
struct LogBuilder {
    clients: HashMap<Box<str>, u32>,
    urls: HashMap<Box<str>, u32>,
    objects: Vec<LoggedObject>,
    /// Client and object of each request.
    asked: Vec<(u32, u32)>,
    left_out: LeftOutLines,
}

impl LogWorkload {
    /// Reads a log, plain or compressed.
    ///
    /// *Errors*: [`ExperimentErrorKind::Usage`] if the file is no log, or has no request that a cache could answer.
    pub fn read(path: &Path) -> Result<LogWorkload, Error> {
        let usage = |error: nectary_trace::Error| Error::new(ExperimentErrorKind::Usage, error.to_string());
        let mut reader = AccessLogReader::open(path).map_err(usage)?;
        let mut builder = LogBuilder::default();
        let mut lines = 0u64;
        while let Some(contents) = reader.read().map_err(usage)? {
            lines += 1;
            match contents {
                LineContents::Comment => {}
                LineContents::Request(line) => builder.add(&line),
                LineContents::Malformed => {
                    builder.left_out.malformed += 1;
                    let allowed = MALFORMED_ALLOWED.max((lines as f64 * MALFORMED_SHARE_MAX) as u64);
                    if builder.left_out.malformed > allowed {
                        return Err(usage(reader.bad_line()));
                    }
                }
            }
            if builder.asked.len() == LOG_REQUESTS_MAX {
                builder.left_out.is_cut = true;
                break;
            }
        }
        let log = builder.finish(path, reader.format().name());
        match log.requests.is_empty() {
            true => Err(Error::new(
                ExperimentErrorKind::Usage,
                format!("{}: no request that a cache could answer; {}", path.display(), log.left_out.describe()),
            )),
            false => Ok(log),
        }
    }
}

impl LogBuilder {
    fn add(&mut self, line: &LogLine<'_>) {
        if line.method != "GET" {
            self.left_out.methods += 1;
            return;
        }
        let is_whole = matches!(line.status, 200 | 203);
        if !is_whole && !matches!(line.status, 206 | 304) {
            self.left_out.statuses += 1;
            return;
        }
        let (client, object) = (number(&mut self.clients, &line.client), number(&mut self.urls, &line.url));
        if object as usize == self.objects.len() {
            self.objects.push(LoggedObject::default());
        }
        let known = &mut self.objects[object as usize];
        known.bytes = known.bytes.max(line.object_bytes.unwrap_or(if is_whole { line.bytes } else { 0 }));
        known.is_html |= is_html(line);
        self.asked.push((client, object));
    }

    fn finish(mut self, path: &Path, format: &'static str) -> LogWorkload {
        let mut pages: HashMap<u32, u32> = HashMap::new();
        let mut requests = Vec::with_capacity(self.asked.len());
        // Objects are numbered again, so that those that are requested have the first numbers.
        let mut numbers: Vec<Option<u32>> = vec![None; self.objects.len()];
        let mut totals = WorkloadTotals::default();
        for (client, logged) in std::mem::take(&mut self.asked) {
            let LoggedObject { bytes, is_html } = self.objects[logged as usize];
            match bytes {
                0 => self.left_out.unsized_objects += 1,
                1..=LOG_OBJECT_BYTES_MAX => {
                    let object = *numbers[logged as usize].get_or_insert_with(|| {
                        totals.objects += 1;
                        totals.unique_bytes += bytes;
                        totals.objects as u32 - 1
                    });
                    totals.requests += 1;
                    totals.bytes += bytes;
                    let page = if is_html { None } else { pages.get(&client).copied() };
                    if is_html {
                        pages.insert(client, object);
                    }
                    requests.push(ProxyRequest { client, object, bytes: bytes as u32, site: 0, page });
                }
                _ => self.left_out.large_objects += 1,
            }
        }
        LogWorkload { path: path.to_owned(), format, requests, totals, left_out: self.left_out }
    }
}

/// The number of a name, in the order of the first uses.
fn number(numbers: &mut HashMap<Box<str>, u32>, name: &str) -> u32 {
    if let Some(number) = numbers.get(name) {
        return *number;
    }
    let number = numbers.len() as u32;
    numbers.insert(name.into(), number);
    number
}

fn is_html(line: &LogLine<'_>) -> bool {
    if !line.content_type.is_empty() {
        return line.content_type.to_ascii_lowercase().starts_with("text/html");
    }
    let path = line.url.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    // The last part of a path; of an absolute URL without a path it is the host.
    let last = path.rsplit('/').next().unwrap_or_default();
    last.is_empty() || !last.contains('.') || HTML_ENDS.iter().any(|end| last.ends_with(end))
}

impl LeftOutLines {
    /// What is left out, in words.
    pub fn describe(&self) -> String {
        let counts = [
            (self.malformed, "malformed lines"),
            (self.methods, "requests with other methods"),
            (self.statuses, "with other statuses"),
            (self.unsized_objects, "for objects without a size"),
            (self.large_objects, "for objects of more than 2 MB"),
        ];
        let mut text = String::from("left out:");
        for (count, what) in counts {
            let _ = write!(text, " {count} {what},");
        }
        text.pop();
        if self.is_cut {
            let _ = write!(text, "; only the first {LOG_REQUESTS_MAX} requests were read");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<LogWorkload, Error> {
        let path = std::env::temp_dir().join(format!("nectary-bench-log-{name}-{}", std::process::id()));
        std::fs::write(&path, text).expect("a file");
        let log = LogWorkload::read(&path);
        std::fs::remove_file(path).expect("the file");
        log
    }

    fn line(client: &str, method: &str, url: &str, status: u16, bytes: u64) -> String {
        format!("{client} - - [10/Oct/2000:13:55:36 -0700] \"{method} {url} HTTP/1.1\" {status} {bytes}\n")
    }

    /// A broken-off answer does not make an object smaller, and a part or a 304 requests the whole.
    #[test]
    fn log_objects_keep_their_largest_size() {
        let text = [
            line("a", "GET", "/", 200, 1000),
            line("a", "GET", "/x.gif", 200, 10),
            line("b", "GET", "/x.gif", 304, 0),
            line("b", "GET", "/x.gif", 200, 50),
            line("a", "GET", "/x.gif", 206, 7),
        ];
        let log = read("sizes", &text.concat()).expect("a log");
        let found: Vec<_> = log.requests.iter().map(|one| (one.client, one.object, one.bytes, one.page)).collect();
        assert_eq!(
            found,
            [(0, 0, 1000, None), (0, 1, 50, Some(0)), (1, 1, 50, None), (1, 1, 50, None), (0, 1, 50, Some(0))]
        );
        assert_eq!(log.totals, WorkloadTotals { requests: 5, bytes: 1200, objects: 2, unique_bytes: 1050 });
    }

    #[test]
    fn log_lines_left_out_are_counted() {
        let text = [
            line("a", "POST", "/", 200, 1),
            line("a", "GET", "/gone", 404, 1),
            line("a", "GET", "/never", 304, 0),
            line("a", "GET", "/large", 200, LOG_OBJECT_BYTES_MAX + 1),
            "nonsense\n".to_owned(),
            line("a", "GET", "/good", 200, LOG_OBJECT_BYTES_MAX),
        ];
        let log = read("left", &text.concat()).expect("a log");
        let expected =
            LeftOutLines { malformed: 1, methods: 1, statuses: 1, unsized_objects: 1, large_objects: 1, is_cut: false };
        assert_eq!((log.left_out, log.requests.len(), log.requests[0].object), (expected, 1, 0));
        assert!(log.left_out.describe().contains("1 for objects of more than 2 MB"));
    }

    #[test]
    fn file_of_nonsense_is_no_log() {
        let good = line("a", "GET", "/", 200, 1);
        let error = read("nonsense", &format!("{good}{}", "x\n".repeat(20))).expect_err("too many bad lines");
        assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains("line 12"), "{error}");
        let error = read("empty", &line("a", "PUT", "/", 200, 1)).expect_err("no requests");
        assert!(error.message.contains("1 requests with other methods"), "{error}");
    }
}
