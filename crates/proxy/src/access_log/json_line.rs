//! The JSON form of a line.
//!
//! Owns: the fields of `docs/formats/access-log.md`, and the form of texts in them. Promises: whatever bytes clients
//! send, a line is one valid JSON object (RFC 8259) without a line end inside, and its texts tell exactly which bytes
//! came. *Cost*: a line is written into the worker's buffer without an allocation.

use std::io::Write;
use std::time::Duration;

use http::Version;

use super::{AccessLogLine, write_address};
use crate::rules::key::push_decimal;

/// The names of the months in a date of HTTP.
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Appends a line. `second` is the second of the line's time, as [`write_date`] writes it.
pub(super) fn push(out: &mut Vec<u8>, line: &AccessLogLine<'_>, second: &[u8]) {
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(second);
    out.push(b'.');
    push_digits(out, (line.at_ms % 1000) as u32);
    out.extend_from_slice(b"Z\",\"client\":\"");
    write_address(out, line.client);
    out.push(b'"');
    push_text(out, "method", line.method.as_str().as_bytes());
    let (scheme, host, target) = parts_of(line.url);
    for (name, part) in [("scheme", scheme), ("host", host), ("target", target)] {
        if !part.is_empty() {
            push_text(out, name, part);
        }
    }
    push_text(out, "protocol", protocol(line.version).as_bytes());
    if let Some(version) = line.tls {
        push_text(out, "tls", version.as_bytes());
    }
    push_number(out, "status", line.status.into());
    push_number(out, "bytes", line.body_bytes);
    if let Some(bytes) = line.object_bytes {
        push_number(out, "object_bytes", bytes);
    }
    if let Some(referrer) = line.referrer {
        push_text(out, "referer", referrer);
    }
    if let Some(agent) = line.user_agent {
        push_text(out, "user_agent", agent);
    }
    push_text(out, "outcome", line.outcome.text());
    if let Some(route) = line.route {
        push_text(out, "site", route.site.as_bytes());
        push_text(out, "route", route.path.as_bytes());
    }
    push_ms(out, "total_ms", line.duration);
    if let Some(answer) = line.answer {
        push_text(out, "server", answer.server.as_bytes());
        if let Some(time) = answer.connect {
            push_ms(out, "connect_ms", time);
        }
        if let Some(time) = answer.first_byte {
            push_ms(out, "first_byte_ms", time);
        }
    }
    out.extend_from_slice(b"}\n");
}

/// Writes a second as `2026-11-21T20:23:00`.
pub(super) fn write_date(out: &mut Vec<u8>, unix_s: u64) {
    let text = httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_secs(unix_s));
    // `text` is like "Sat, 21 Nov 2026 20:23:00 GMT".
    let (day, name, year, time) = (&text[5..7], &text[8..11], &text[12..16], &text[17..25]);
    let month = MONTHS.iter().position(|month| *month == name).map_or(0, |index| index + 1);
    out.clear();
    write!(out, "{year}-{month:02}-{day}T{time}").expect("a Vec takes what is written");
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "HTTP/0.9",
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_3 => "HTTP/3",
        _ => "HTTP/1.1",
    }
}

/// The scheme, the host and the target of a URL. What is no URL is a target.
fn parts_of(url: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let starts = [&b"http://"[..], b"https://"];
    let Some(start) = starts.into_iter().find(|start| url.starts_with(start)) else { return (b"", b"", url) };
    let (scheme, rest) = (&url[..start.len() - 3], &url[start.len()..]);
    let end = match rest.iter().position(|byte| matches!(byte, b'/' | b'?')) {
        Some(end) => end,
        // The target of `OPTIONS *` follows the host at once.
        None => rest.len() - usize::from(rest.ends_with(b"*")),
    };
    (scheme, &rest[..end], &rest[end..])
}

fn push_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn push_text(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    push_name(out, name);
    out.push(b'"');
    push_escaped(out, value);
    out.push(b'"');
}

fn push_number(out: &mut Vec<u8>, name: &str, value: u64) {
    push_name(out, name);
    push_decimal(out, value);
}

/// Appends a time in milliseconds, with the digits of microseconds.
fn push_ms(out: &mut Vec<u8>, name: &str, time: Duration) {
    push_name(out, name);
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    push_decimal(out, micros / 1000);
    out.push(b'.');
    push_digits(out, (micros % 1000) as u32);
}

/// Appends three digits.
fn push_digits(out: &mut Vec<u8>, number: u32) {
    for scale in [100, 10, 1] {
        out.push(b'0' + (number / scale % 10) as u8);
    }
}

/// Appends the inside of a JSON text: valid UTF-8 as it is, but without control characters, and all other bytes, and
/// backslashes, as `\xHH` in the decoded text.
fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if text.iter().copied().all(is_plain) {
        out.extend_from_slice(text);
        return;
    }
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => push_byte(out, b'\\'),
                '\t' => out.extend_from_slice(b"\\t"),
                // All control characters are below U+0100.
                control if control.is_control() => {
                    out.extend_from_slice(b"\\u00");
                    push_hex(out, u32::from(control) as u8);
                }
                other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(out, *byte));
    }
}

/// Appends `\xHH`, whose backslash is doubled in JSON.
fn push_byte(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(b"\\\\x");
    push_hex(out, byte);
}

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::{CacheOutcome, OriginAnswer};
    use super::*;
    use crate::sites::RouteName;

    fn line(url: &[u8]) -> AccessLogLine<'_> {
        AccessLogLine {
            client: Some("192.0.2.7".parse().expect("an address")),
            at_ms: 1_795_292_580_009,
            method: &Method::GET,
            url,
            version: Version::HTTP_2,
            status: 200,
            body_bytes: 1234,
            referrer: None,
            user_agent: None,
            outcome: CacheOutcome::Miss,
            duration: Duration::from_micros(1_000_023),
            object_bytes: None,
            tls: None,
            route: None,
            answer: None,
        }
    }

    fn text(line: &AccessLogLine<'_>) -> String {
        let (mut out, mut second) = (Vec::new(), Vec::new());
        write_date(&mut second, line.at_ms / 1000);
        push(&mut out, line, &second);
        String::from_utf8(out).expect("a line is UTF-8")
    }

    /// The bytes that a decoded text stands for.
    fn bytes_of(text: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), text);
        while let Some((before, code)) = rest.split_once("\\x") {
            bytes.extend_from_slice(before.as_bytes());
            bytes.push(u8::from_str_radix(&code[..2], 16).expect("two digits"));
            rest = &code[2..];
        }
        assert!(!rest.contains('\\'), "a backslash that begins no code: {text}");
        bytes.extend_from_slice(rest.as_bytes());
        bytes
    }

    #[test]
    fn json_line_has_fields_in_order() {
        let route = RouteName { site: "example.org".to_owned(), path: "=/p".to_owned() };
        let answer = OriginAnswer {
            server: "http://10.0.0.5:3000".to_owned(),
            connect: Some(Duration::from_micros(412)),
            first_byte: Some(Duration::from_micros(21_871)),
        };
        let full = AccessLogLine {
            referrer: Some(b"a\"b\\c"),
            user_agent: Some("\u{e4}\u{85}\t\n\u{7f}".as_bytes()),
            object_bytes: Some(5678),
            tls: Some("1.3"),
            route: Some(&route),
            answer: Some(&answer),
            ..line(b"https://example.org/p?q")
        };
        let expected = concat!(
            r#"{"time":"2026-11-21T20:23:00.009Z","client":"192.0.2.7","method":"GET","scheme":"https","#,
            r#""host":"example.org","target":"/p?q","protocol":"HTTP/2","tls":"1.3","status":200,"bytes":1234,"#,
            r#""object_bytes":5678,"referer":"a\"b\\x5Cc","user_agent":"ä\u0085\t\u000A\u007F","#,
            r#""outcome":"MISS","site":"example.org","route":"=/p","total_ms":1000.023,"#,
            r#""server":"http://10.0.0.5:3000","connect_ms":0.412,"first_byte_ms":21.871}"#,
            "\n"
        );
        assert_eq!(text(&full), expected);
        let bare = concat!(
            r#"{"time":"2026-11-21T20:23:00.009Z","client":"192.0.2.7","method":"GET","target":"-","#,
            r#""protocol":"HTTP/2","status":200,"bytes":1234,"outcome":"MISS","total_ms":1000.023}"#,
            "\n"
        );
        assert_eq!(text(&line(b"-")), bare);
    }

    #[test]
    fn urls_are_split_where_hosts_end() {
        let table = [
            ("http://a/b?c", ("http", "a", "/b?c")),
            ("https://[::1]:8443/", ("https", "[::1]:8443", "/")),
            ("http://a?b", ("http", "a", "?b")),
            ("http://a", ("http", "a", "")),
            ("http://a*", ("http", "a", "*")),
            ("http://*.a/*", ("http", "*.a", "/*")),
            ("http://", ("http", "", "")),
            ("a:443", ("", "", "a:443")),
            ("*", ("", "", "*")),
        ];
        for (url, (scheme, host, target)) in table {
            let found = parts_of(url.as_bytes());
            assert_eq!(found, (scheme.as_bytes(), host.as_bytes(), target.as_bytes()), "{url}");
        }
    }

    #[test]
    fn dates_have_all_months() {
        let mut found = Vec::new();
        for (unix_s, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_798_761_599, "2026-12-31T23:59:59"),
        ] {
            write_date(&mut found, unix_s);
            assert_eq!(String::from_utf8_lossy(&found), expected);
        }
    }

    proptest! {
        /// Whatever bytes came, the line is one JSON object, from which the same bytes can be read.
        #[test]
        fn any_bytes_make_valid_json(
            start in prop::sample::select(vec!["", "http://", "https://a/"]),
            rest in vec(any::<u8>(), 0..40),
            referrer in prop::option::of(vec(prop_oneof![any::<u8>(), Just(b'\\'), Just(b'"')], 0..20)),
            agent in ".{0,20}",
        ) {
            let url = [start.as_bytes(), &rest].concat();
            let (referrer_sent, agent_sent) = (referrer.as_deref(), Some(agent.as_bytes()));
            let written = text(&AccessLogLine { referrer: referrer_sent, user_agent: agent_sent, ..line(&url) });
            prop_assert_eq!(written.matches('\n').count(), 1);
            let is_ended = written.ends_with("}\n");
            prop_assert!(is_ended);
            prop_assert!(!written.trim_end_matches('\n').chars().any(char::is_control));
            let value: Value = serde_json::from_str(&written).expect("valid JSON");
            let field = |name: &str| value[name].as_str().map(bytes_of);
            prop_assert_eq!(field("user_agent"), Some(agent.into_bytes()));
            prop_assert_eq!(field("referer"), referrer);
            let mut found = field("scheme").map(|scheme| [&scheme[..], b"://"].concat()).unwrap_or_default();
            found.extend(["host", "target"].into_iter().filter_map(field).flatten());
            prop_assert_eq!(found, url);
        }
    }
}
