//! Requests of HTTP/2 that would become two in HTTP/1, or another one, if they were written out as they are: none of
//! them reaches the origin in such a form, and nobody else gets the answer to it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::http2::{OPENING, frame};
use crate::common::*;

/// A header field as it is on the wire.
type Field<'a> = (&'a [u8], &'a [u8]);

/// A request: a family's name, its fields after `:method GET`, `:scheme http` and `:path /a` (which they replace), and its
/// body.
struct DesyncAttack {
    family: &'static str,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Option<&'static [u8]>,
}

/// What an attacker would like the origin to see as a request of its own.
const INSIDE: &str = "\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\nx-evil: 1\r\n\r\n";

fn attack(family: &'static str, fields: &[Field<'_>], body: Option<&'static [u8]>) -> DesyncAttack {
    DesyncAttack { family, fields: fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(), body }
}

fn attacks() -> Vec<DesyncAttack> {
    let inside = INSIDE.as_bytes();
    let with = |start: &str| [start.as_bytes(), inside].concat();
    let evil = b"0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\nx-evil: 1\r\n\r\n";
    let mut all = Vec::new();
    for end in ["\r\n", "\n", "\r", "\0"] {
        let value = format!("b{end}x-evil: 1");
        all.push(attack("line end in a value", &[(b"x-a", value.as_bytes())], None));
        all.push(attack("line end in a cookie", &[(b"cookie", b"a=1"), (b"cookie", value.as_bytes())], None));
        all.push(attack("line end in the authority", &[(b":authority", value.as_bytes())], None));
        all.push(attack("line end in the path", &[(b":path", format!("/a{end}x-evil: 1").as_bytes())], None));
        all.push(attack(
            "line end in the method",
            &[(b":method", format!("GET /evil HTTP/1.1{end}x: ").as_bytes())],
            None,
        ));
        all.push(attack("line end in the scheme", &[(b":scheme", format!("http{end}x-evil: 1").as_bytes())], None));
        all.push(attack("line end in a name", &[(format!("x-a: b{end}x-evil").as_bytes(), b"1")], None));
    }
    all.push(attack("request in a value", &[(b"x-a", &with("b"))], None));
    all.push(attack("request in the path", &[(b":path", &with("/a HTTP/1.1"))], None));
    all.push(attack("space in the path", &[(b":path", b"/a HTTP/1.1 /evil")], None));
    all.push(attack("space in the method", &[(b":method", b"GET /evil HTTP/1.1 ")], None));
    all.push(attack("colon in a name", &[(b"x-evil: 1, x", b"1")], None));
    all.push(attack("space in a name", &[(b"x-evil ", b"1")], None));
    all.push(attack("upper case in a name", &[(b"X-Evil", b"1")], None));
    all.push(attack("empty name", &[(b"", b"x-evil: 1")], None));
    for coding in ["chunked", "identity, chunked", "xchunked"] {
        all.push(attack(
            "transfer coding",
            &[(b":method", b"POST"), (b"transfer-encoding", coding.as_bytes())],
            Some(evil),
        ));
    }
    all.push(attack("connection", &[(b"connection", b"x-a, content-length"), (b"x-a", b"1")], None));
    all.push(attack("upgrade", &[(b"upgrade", b"h2c"), (b"http2-settings", b"AAMAAABkAARAAAAAAAIAAAAA")], None));
    all.push(attack("te", &[(b"te", b"chunked")], None));
    for length in ["0", "1", "4, 4", "-1", "+4", "0x1f", "18446744073709551620", " 4"] {
        let fields: &[Field<'_>] = &[(b":method", b"POST"), (b"content-length", length.as_bytes())];
        all.push(attack("length of another body", fields, Some(evil)));
    }
    let twice: &[Field<'_>] = &[(b":method", b"POST"), (b"content-length", b"4"), (b"content-length", b"60")];
    all.push(attack("two lengths", twice, Some(evil)));
    all.push(attack("length without a body", &[(b":method", b"POST"), (b"content-length", b"60")], None));
    all.push(attack("two hosts", &[(b":authority", b"a"), (b"host", b"evil")], None));
    all.push(attack("two hosts", &[(b"host", b"a"), (b"host", b"evil")], None));
    all.push(attack("user in the authority", &[(b":authority", b"evil@a")], None));
    all.push(attack("path in the authority", &[(b":authority", b"a/evil?")], None));
    all.push(attack("two paths", &[(b":path", b"/a"), (b":path", b"/evil")], None));
    all.push(attack("pseudo header after others", &[(b"x-a", b"1"), (b":path", b"/evil")], None));
    all.push(attack("unknown pseudo header", &[(b":evil", b"1")], None));
    all.push(attack("path that is a URL", &[(b":path", b"http://evil/evil")], None));
    all.push(attack("path without a slash", &[(b":path", b"evil")], None));
    all.push(attack("empty path", &[(b":path", b"")], None));
    all.push(attack("tunnel", &[(b":method", b"CONNECT"), (b":authority", b"evil:80")], None));
    all.push(attack("extended tunnel", &[(b":method", b"CONNECT"), (b":protocol", b"websocket")], None));
    all
}

/// A field as a literal of HPACK without Huffman's code.
fn literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let length = |out: &mut Vec<u8>, length: usize| {
        if length < 127 {
            out.push(length as u8);
        } else {
            out.push(127);
            let mut rest = length - 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            out.push(rest as u8);
        }
    };
    out.push(0);
    length(out, name.len());
    out.extend_from_slice(name);
    length(out, value.len());
    out.extend_from_slice(value);
}

/// The bytes of a connection with one request.
fn bytes(attack: &DesyncAttack) -> Vec<u8> {
    let mut block = Vec::new();
    let usual: [Field<'_>; 4] = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/a")];
    let is_replaced = |name: &[u8]| attack.fields.iter().any(|(own, _)| own == name);
    let is_late = attack.family == "pseudo header after others";
    let hosts = attack.fields.iter().filter(|(name, _)| name == b"host").count();
    for (name, value) in usual {
        let has_host = name == b":authority" && hosts > 1;
        if (!is_replaced(name) || (is_late && name == b":path")) && !has_host {
            literal(&mut block, name, value);
        }
    }
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for field in &attack.fields {
        if field.0.starts_with(b":") && !is_late { first.push(field) } else { others.push(field) }
    }
    for (name, value) in first.into_iter().chain(others) {
        literal(&mut block, name, value);
    }
    let head = frame(1, if attack.body.is_none() { 5 } else { 4 }, 1, &block);
    let body = attack.body.map(|body| frame(0, 1, 1, body)).unwrap_or_default();
    [OPENING, &head, &body].concat()
}

#[tokio::test]
async fn attack_requests_never_desynchronise() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=3600", "vary: x-a"], b"good"));
    origin.on("/evil", OriginScript::ok(&["cache-control: max-age=3600"], b"evil"));
    let proxy = TestProxy::reverse(origin.address).await;
    let all = attacks();
    let mut families: Vec<_> = all.iter().map(|attack| attack.family).collect();
    families.dedup();
    families.sort_unstable();
    families.dedup();
    for attack in &all {
        let before = origin.got().len();
        let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
        stream.write_all(&bytes(attack)).await.expect("room");
        // Until the proxy has answered the request or ended the stream or the connection.
        let mut came = Vec::new();
        let answered =
            async { while stream.read_buf(&mut came).await.is_ok_and(|count| count > 0) && !is_over(&came) {} };
        tokio::time::timeout(Duration::from_secs(5), answered).await.unwrap_or_else(|_| panic!("{}", attack.family));
        let got = origin.got().split_off(before);
        assert!(got.len() <= 1, "{}: {got:?}", attack.family);
        for got in got {
            let is_plain = got.line.ends_with(" /a HTTP/1.1") && got.line.split(' ').count() == 3;
            assert!(is_plain && got.header("x-evil").is_empty(), "{}: {got:?}", attack.family);
            assert!(got.header("host") == origin.address.to_string(), "{}: {got:?}", attack.family);
            assert!(
                !String::from_utf8_lossy(&got.body).contains("x-evil") || got.header("transfer-encoding") == "chunked"
            );
        }
        let after = get(proxy.address, "/a", &["host: a"]).await;
        assert_eq!((after.status, after.text().as_str()), (200, "good"), "{}", attack.family);
    }
    assert!(families.len() >= 25 && origin.got().iter().all(|got| !got.line.contains("evil")), "{}", families.len());
}

/// Whether the frames that came end stream 1: by its flag, by a reset, or with the whole connection.
fn is_over(came: &[u8]) -> bool {
    let mut rest = came;
    while let [a, b, c, kind, flags, s0, s1, s2, s3, after @ ..] = rest {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if after.len() < length {
            return false;
        }
        let is_first = u32::from_be_bytes([*s0, *s1, *s2, *s3]) == 1;
        let ends = (is_first && (*kind == 3 || (*kind <= 1 && flags & 1 == 1))) || *kind == 7;
        if ends {
            return true;
        }
        rest = &after[length..];
    }
    false
}
