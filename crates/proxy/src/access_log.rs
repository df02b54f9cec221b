//! The access log.
//!
//! Owns: the content of a line, the combined form of `docs/formats/access-log.md`, and the buffer in which a worker
//! gathers lines. Leaves to others: the JSON form (`json_line`), writing the lines (`writer`).

mod json_line;
mod writer;

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Version};

pub(crate) use self::writer::{LogQueue, LogWriter, OpenLog};
use crate::options::LogFormat;
use crate::rules::key::push_decimal;
use crate::sites::RouteName;
use crate::stats::WorkerStats;

/// The number of bytes of lines that a worker keeps while the writer is behind. Further lines are dropped.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// The number of gathered bytes of lines at which a worker sends them to the writer without waiting for the next tick.
const HAND_OVER_BYTES: usize = 64 << 10;

/// What the cache did with a request. The log has a word for each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheOutcome {
    Hit,
    Revalidated,
    Stale,
    Miss,
    Collapsed,
    Pass,
    TooLarge,
    Bypass,
    Purged,
    Tunnel,
    Failed,
    Own,
}

impl CacheOutcome {
    fn text(self) -> &'static [u8] {
        match self {
            CacheOutcome::Hit => b"HIT",
            CacheOutcome::Revalidated => b"REVALIDATED",
            CacheOutcome::Stale => b"STALE",
            CacheOutcome::Miss => b"MISS",
            CacheOutcome::Collapsed => b"COLLAPSED",
            CacheOutcome::Pass => b"PASS",
            CacheOutcome::TooLarge => b"TOO-LARGE",
            CacheOutcome::Bypass => b"BYPASS",
            CacheOutcome::Purged => b"PURGED",
            CacheOutcome::Tunnel => b"TUNNEL",
            CacheOutcome::Failed => b"FAILED",
            CacheOutcome::Own => b"OWN",
        }
    }

    /// Counts the request, and the status that answered it.
    fn count(self, status: u16, stats: &WorkerStats) {
        match status {
            200..300 => stats.responses_2xx.add(1),
            300..400 => stats.responses_3xx.add(1),
            400..500 => stats.responses_4xx.add(1),
            500.. => stats.responses_5xx.add(1),
            _ => {}
        }
        match self {
            CacheOutcome::Hit => stats.hits.add(1),
            CacheOutcome::Revalidated => stats.revalidated.add(1),
            CacheOutcome::Stale => stats.stale.add(1),
            CacheOutcome::Miss => stats.misses.add(1),
            CacheOutcome::Collapsed => stats.collapsed.add(1),
            CacheOutcome::TooLarge => {
                stats.passed.add(1);
                stats.too_large.add(1);
            }
            CacheOutcome::Pass | CacheOutcome::Bypass => stats.passed.add(1),
            CacheOutcome::Purged => stats.purges.add(1),
            CacheOutcome::Tunnel => stats.tunnels.add(1),
            CacheOutcome::Failed => stats.origin_failures.add(1),
            CacheOutcome::Own => stats.own_responses.add(1),
        }
    }
}

/// The content of one line of the log.
#[derive(Debug)]
pub(crate) struct AccessLogLine<'a> {
    /// The client's address; `None` for one of a Unix socket.
    pub client: Option<IpAddr>,
    /// The time at which the request's head had been read, in Unix milliseconds.
    pub at_ms: u64,
    pub method: &'a Method,
    pub url: &'a [u8],
    pub version: Version,
    pub status: u16,
    pub body_bytes: u64,
    pub referrer: Option<&'a [u8]>,
    pub user_agent: Option<&'a [u8]>,
    pub outcome: CacheOutcome,
    pub duration: Duration,
    pub object_bytes: Option<u64>,
    /// The version of TLS with the client, for example `1.3`; `None` without TLS.
    pub tls: Option<&'static str>,
    /// The route that the request took; `None` if it has no name.
    pub route: Option<&'a RouteName>,
    /// The answer of the origin; `None` if no origin was asked, or none answered.
    pub answer: Option<&'a OriginAnswer>,
}

/// An origin's answer to a request, as far as the log tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OriginAnswer {
    /// The URL of the server.
    pub server: String,
    /// How long connecting took, with TLS; `None` if a kept connection was used.
    pub connect: Option<Duration>,
    /// From sending the request to the end of the response's head.
    pub first_byte: Option<Duration>,
}

/// Where the answer of the origin to a request is noted until the request is logged. All clones are the same note.
/// *Cost*: an allocation, but nothing if the log does not tell of origins.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerNote(Option<Rc<RefCell<Option<OriginAnswer>>>>);

impl AnswerNote {
    /// Notes the last answer that the origin gave.
    pub fn set(&self, answer: impl FnOnce() -> OriginAnswer) {
        if let Some(note) = &self.0 {
            *note.borrow_mut() = Some(answer());
        }
    }

    /// Takes the answer for the line of the request.
    pub fn take(&self) -> Option<OriginAnswer> {
        self.0.as_ref().and_then(|note| note.borrow_mut().take())
    }
}

/// Counts the requests of a worker, and logs them if there is a log.
#[derive(Debug)]
pub(crate) struct RequestLog {
    pub stats: Arc<WorkerStats>,
    lines: RefCell<Option<LogBuffer>>,
    is_detailed: bool,
}

impl RequestLog {
    /// Makes the log of one worker. `lines` is the worker's buffer; it is `None` if requests are only counted.
    pub fn new(stats: Arc<WorkerStats>, lines: Option<LogBuffer>) -> Rc<RequestLog> {
        let is_detailed = lines.as_ref().is_some_and(|lines| lines.format == LogFormat::Json);
        Rc::new(RequestLog { stats, lines: RefCell::new(lines), is_detailed })
    }

    /// Whether requests are logged.
    pub fn is_on(&self) -> bool {
        self.lines.borrow().is_some()
    }

    /// Whether the log tells of routes and origins.
    pub fn is_detailed(&self) -> bool {
        self.is_detailed
    }

    /// The note of a new request.
    pub fn new_note(&self) -> AnswerNote {
        AnswerNote(self.is_detailed.then(Rc::default))
    }

    /// Counts a request without logging it.
    pub fn count(&self, outcome: CacheOutcome, status: u16, duration: Duration) {
        outcome.count(status, &self.stats);
        self.stats.latencies.note(outcome, duration);
    }

    /// Counts and logs a request.
    pub fn note(&self, line: &AccessLogLine<'_>) {
        self.count(line.outcome, line.status, line.duration);
        if let Some(lines) = &mut *self.lines.borrow_mut() {
            lines.push(line);
        }
    }

    /// Sends the gathered lines to the writer.
    pub fn flush(&self) {
        if let Some(lines) = &mut *self.lines.borrow_mut() {
            lines.flush();
        }
    }

    /// Sends the last lines to the writer, even if it is behind.
    pub fn finish(&self) {
        if let Some(lines) = self.lines.borrow_mut().take() {
            lines.queue.give_last(lines.lines);
        }
    }
}

/// The lines that one worker has gathered for the writer.
#[derive(Debug)]
pub(crate) struct LogBuffer {
    format: LogFormat,
    lines: Vec<u8>,
    /// The Unix second that `date` shows, and its text in this format.
    second: u64,
    date: Vec<u8>,
    queue: Arc<LogQueue>,
    stats: Arc<WorkerStats>,
}

impl LogBuffer {
    /// An empty buffer whose lines go to `queue`.
    pub fn new(format: LogFormat, queue: Arc<LogQueue>, stats: Arc<WorkerStats>) -> LogBuffer {
        LogBuffer { format, lines: Vec::new(), second: u64::MAX, date: Vec::new(), queue, stats }
    }

    /// Adds a line, or counts it as lost if the buffer is full.
    pub fn push(&mut self, line: &AccessLogLine<'_>) {
        if self.lines.len() >= KEPT_BYTES_MAX {
            self.stats.log_lines_lost.add(1);
            return;
        }
        if line.at_ms / 1000 != self.second {
            self.second = line.at_ms / 1000;
            match self.format {
                LogFormat::Combined => write_date(&mut self.date, self.second),
                LogFormat::Json => json_line::write_date(&mut self.date, self.second),
            }
        }
        match self.format {
            LogFormat::Combined => push_combined(&mut self.lines, line, &self.date),
            LogFormat::Json => json_line::push(&mut self.lines, line, &self.date),
        }
        if self.lines.len() >= HAND_OVER_BYTES {
            self.flush();
        }
    }

    /// Gives the lines to the writer, or keeps them if the writer is behind.
    pub fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        self.lines = match self.queue.offer(std::mem::take(&mut self.lines)) {
            Ok(()) => Vec::with_capacity(HAND_OVER_BYTES + 1024),
            Err(lines) => lines,
        };
    }
}

/// Appends a line in the combined form.
fn push_combined(out: &mut Vec<u8>, line: &AccessLogLine<'_>, date: &[u8]) {
    write_address(out, line.client);
    out.extend_from_slice(b" - - [");
    out.extend_from_slice(date);
    out.extend_from_slice(b"] \"");
    push_escaped(out, line.method.as_str().as_bytes());
    out.push(b' ');
    push_escaped(out, line.url);
    out.extend_from_slice(match line.version {
        Version::HTTP_10 => b" HTTP/1.0\" ",
        // Requests of other versions are refused.
        Version::HTTP_09 => b" HTTP/0.9\" ",
        Version::HTTP_2 => b" HTTP/2.0\" ",
        Version::HTTP_3 => b" HTTP/3.0\" ",
        _ => b" HTTP/1.1\" ",
    });
    push_decimal(out, u64::from(line.status));
    out.push(b' ');
    push_decimal(out, line.body_bytes);
    push_quoted(out, line.referrer);
    push_quoted(out, line.user_agent);
    out.push(b' ');
    out.extend_from_slice(line.outcome.text());
    out.push(b' ');
    push_seconds(out, line.duration);
    out.push(b' ');
    match line.object_bytes {
        Some(bytes) => push_decimal(out, bytes),
        None => out.push(b'-'),
    }
    out.push(b'\n');
}

/// Writes the address of a client. One of a Unix socket has none, and is written as other servers do.
fn write_address(out: &mut Vec<u8>, address: Option<IpAddr>) {
    let Some(address) = address else { return out.extend_from_slice(b"unix:") };
    match address.to_canonical() {
        IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                push_decimal(out, u64::from(octet));
            }
        }
        IpAddr::V6(address) => write!(out, "{address}").expect("a Vec takes what is written"),
    }
}

/// Writes a time as `21/Nov/2026:20:23:00 +0000`.
fn write_date(out: &mut Vec<u8>, unix_s: u64) {
    let text = httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_secs(unix_s));
    out.clear();
    // `text` is like "Sat, 21 Nov 2026 20:23:00 GMT".
    let parts = [&text[5..7], "/", &text[8..11], "/", &text[12..16], ":", &text[17..25], " +0000"];
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

fn push_quoted(out: &mut Vec<u8>, value: Option<&[u8]>) {
    out.extend_from_slice(b" \"");
    match value {
        Some(value) => push_escaped(out, value),
        None => out.push(b'-'),
    }
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if text.iter().copied().all(is_plain) {
        out.extend_from_slice(text);
        return;
    }
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        if is_plain(byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

fn push_seconds(out: &mut Vec<u8>, duration: Duration) {
    push_decimal(out, duration.as_secs());
    out.push(b'.');
    let mut micros = duration.subsec_micros();
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (micros % 10) as u8;
        micros /= 10;
    }
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(url: &'a [u8], agent: Option<&'a [u8]>) -> AccessLogLine<'a> {
        AccessLogLine {
            client: Some("192.0.2.7".parse().expect("an address")),
            at_ms: 1_795_292_580_999,
            method: &Method::GET,
            url,
            version: Version::HTTP_11,
            status: 200,
            body_bytes: 1234,
            referrer: None,
            user_agent: agent,
            outcome: CacheOutcome::Hit,
            duration: Duration::from_micros(1_000_123),
            object_bytes: Some(5678),
            tls: Some("1.3"),
            route: None,
            answer: None,
        }
    }

    fn buffer() -> (LogBuffer, Arc<LogQueue>, Arc<WorkerStats>) {
        let (queue, stats) = (Arc::new(LogQueue::default()), Arc::new(WorkerStats::default()));
        (LogBuffer::new(LogFormat::Combined, queue.clone(), stats.clone()), queue, stats)
    }

    #[test]
    fn log_line_escapes_every_field() {
        let (mut log, queue, _) = buffer();
        log.push(&line(b"http://h/p?q", Some(b"a \"quoted\" \n \xff agent\\")));
        log.push(&AccessLogLine { outcome: CacheOutcome::Own, object_bytes: None, ..line(b"*", None) });
        log.push(&AccessLogLine { client: None, ..line(b"*", None) });
        log.flush();
        let expected = concat!(
            r#"192.0.2.7 - - [21/Nov/2026:20:23:00 +0000] "GET http://h/p?q HTTP/1.1" 200 1234 "-" "#,
            r#""a \x22quoted\x22 \x0A \xFF agent\x5C" HIT 1.000123 5678"#,
            "\n",
            r#"192.0.2.7 - - [21/Nov/2026:20:23:00 +0000] "GET * HTTP/1.1" 200 1234 "-" "-" OWN 1.000123 -"#,
            "\n",
            r#"unix: - - [21/Nov/2026:20:23:00 +0000] "GET * HTTP/1.1" 200 1234 "-" "-" HIT 1.000123 5678"#,
            "\n"
        );
        assert_eq!(String::from_utf8_lossy(&queue.take_all().concat()), expected);
    }

    /// Lines that do not fit are dropped and counted.
    #[test]
    fn slow_log_writer_bounds_memory() {
        let (mut log, queue, stats) = buffer();
        let long = vec![b'x'; 1 << 20];
        for _ in 0..40 {
            log.push(&line(&long, None));
        }
        assert!(log.lines.len() < KEPT_BYTES_MAX + (2 << 20));
        let reader = crate::stats::StatsReader::new(vec![stats]);
        assert!(reader.snapshot().log_lines_lost > 10);
        let kept: usize = queue.take_all().iter().chain([&log.lines]).map(|lines| lines.len() >> 20).sum();
        assert_eq!(kept as u64 + reader.snapshot().log_lines_lost, 40);
    }
}
