//! The grammar of `Host`.
//!
//! *Source*: RFC 9110, 7.2; RFC 3986, 3.2.2. An empty host is refused, because no `http` URL has an empty host.

use std::net::Ipv6Addr;

/// Whether a value is a host, or a host and a port. *Cost*: no allocation.
pub fn is_host(value: &[u8]) -> bool {
    let (is_good, rest) = match value.strip_prefix(b"[") {
        Some(literal) => {
            let Some(end) = memchr::memchr(b']', literal) else { return false };
            (is_literal(&literal[..end]), &literal[end + 1..])
        }
        None => {
            let end = memchr::memchr(b':', value).unwrap_or(value.len());
            (is_name(&value[..end]), &value[end..])
        }
    };
    is_good && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(|port| port.iter().all(u8::is_ascii_digit)))
}

/// Whether the text between brackets is an address of IPv6 or of a later version.
fn is_literal(text: &[u8]) -> bool {
    if let [b'v' | b'V', rest @ ..] = text {
        let Some(dot) = memchr::memchr(b'.', rest) else { return false };
        let (version, address) = (&rest[..dot], &rest[dot + 1..]);
        return !version.is_empty()
            && version.iter().all(u8::is_ascii_hexdigit)
            && !address.is_empty()
            && address.iter().all(|byte| is_plain(*byte) || *byte == b':');
    }
    str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Whether a text is a name, or an IPv4 address, which has the same syntax.
fn is_name(mut text: &[u8]) -> bool {
    if text.is_empty() {
        return false;
    }
    while let [first, rest @ ..] = text {
        text = match (first, rest) {
            (b'%', [high, low, rest @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
            (first, rest) if is_plain(*first) => rest,
            _ => return false,
        };
    }
    true
}

/// Whether a byte is in `unreserved` or `sub-delims` of RFC 3986.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::is_host;

    #[test]
    fn hosts_are_told_from_everything_else() {
        for host in [
            "a",
            "example.org",
            "example.org:80",
            "example.org:",
            "a_b.c-d~e",
            "192.0.2.1:8080",
            "[::1]",
            "[2001:db8::1]:443",
            "[::ffff:192.0.2.1]",
            "[v1.a:b]",
            "%41.example",
            "a!$&'()*+,;=b",
        ] {
            assert!(is_host(host.as_bytes()), "{host:?}");
        }
        for other in [
            "",
            ":80",
            "a b",
            "a:b",
            "a:80:80",
            "a:80x",
            "a/b",
            "http://a",
            "a@b",
            "a#b",
            "a?b",
            "a\\b",
            "a\"b",
            "a<b>",
            "%4",
            "%zz",
            "%",
            "[::1",
            "::1",
            "[]",
            "[a]",
            "[::1]a",
            "[::1%25eth0]",
            "[v1]",
            "[v.a]",
            "[v1.]",
            "a[",
            "\u{e9}",
            "a\tb",
            "a\0",
        ] {
            assert!(!is_host(other.as_bytes()), "{other:?}");
        }
    }
}
