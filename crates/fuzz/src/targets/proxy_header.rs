//! The target of the PROXY protocol: the first bytes of a connection from a load balancer, whole and in every part.

use nectary_proxy::fuzzing::{ParsedHeader, parse_proxy_header};

/// The parts of headers.
pub const WORDS: &[&[u8]] = &[
    b"PROXY TCP4 ",
    b"PROXY TCP6 ",
    b"PROXY UNKNOWN",
    b"192.0.2.7 ",
    b"2001:db8::7 ",
    b" 65535",
    b" 65536",
    b"\r\n",
    b"\r\n\r\n\0\r\nQUIT\n",
    &[0x20],
    &[0x21, 0x11, 0, 12],
    &[0x21, 0x21, 0, 36],
    &[0x21, 0x31, 0, 216],
    &[0x0f, 0xf0],
    &[0x0f, 0xf1],
];

/// Reads a header: what follows it changes nothing, no part of it is a header, and what is none stays none.
pub fn header(input: &[u8]) {
    let whole = parse_proxy_header(input);
    for length in 0..input.len() {
        let part = parse_proxy_header(&input[..length]);
        if part != Ok(ParsedHeader::Part) {
            assert_eq!(part, whole, "{length} bytes are read in another way than all");
        }
    }
    if let Ok(ParsedHeader::Whole { header_bytes, .. }) = whole {
        assert!((15..=4096).contains(&header_bytes) && header_bytes <= input.len());
        assert_eq!(parse_proxy_header(&input[..header_bytes]), whole);
        assert_eq!(parse_proxy_header(&input[..header_bytes - 1]), Ok(ParsedHeader::Part));
    }
}

/// Makes headers of both versions.
pub fn header_seeds() -> Vec<Vec<u8>> {
    let binary = |kind: [u8; 4], following: &[u8]| [&b"\r\n\r\n\0\r\nQUIT\n"[..], &kind, following].concat();
    vec![
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::7 ::1 80 443\r\n\x16\x03\x01".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        binary([0x20, 0, 0, 0], b"GET / HTTP/1.1\r\n\r\n"),
        binary([0x21, 0x11, 0, 12], &[192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 1, 187]),
        binary([0x21, 0x21, 0, 41], &[[7; 36].as_slice(), &[4, 0, 2, 0, 0]].concat()),
        binary([0x21, 0x31, 0, 216], &[b'/'; 216]),
    ]
}
