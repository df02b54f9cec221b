//! Targets of `nectary-nbd`: the server's input from a client, the client's input from a server, and URLs.

use nectary_nbd::{ExportUrl, fuzzing};

use super::choices;

/// Magic numbers, options and names.
pub const WORDS: &[&[u8]] = &[
    b"NBDMAGIC",
    b"IHAVEOPT",
    &[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9],
    &[0x25, 0x60, 0x95, 0x13],
    &[0x67, 0x44, 0x66, 0x98],
    &[0x66, 0x8e, 0x33, 0xef],
    &[0x21, 0xe4, 0x1c, 0x71],
    &[0x6e, 0x8a, 0x27, 0x8c],
    &[0, 0, 0, 11],
    b"base:allocation",
    b"base:",
    &[0, 0, 0, 7],
    &[0, 0, 0, 10],
    &[0x80, 0, 0, 1],
    &[0, 0, 0, 0, 0, 0, 0, 1],
    &[0xff, 0xff, 0xff, 0xff],
    &[0, 1, 0, 1],
];

/// Serves a client's flags, options and requests, and checks that the server's answers are bounded in size.
pub fn server(input: &[u8]) {
    let (choices, rest) = choices(input);
    let sent = fuzzing::serve(rest, choices & 1 == 1);
    assert!(sent <= 64 * (rest.len() + 64), "{} bytes made the server send {sent}", rest.len());
}

/// Makes an option as a client sends it.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Makes the data of an option about an export.
fn about(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}

/// Makes the inputs of a client that uses all features, of one that knows only the old option, and of one that requests
/// TLS.
pub fn server_seeds() -> Vec<Vec<u8>> {
    let query = [&1u32.to_be_bytes()[..], &15u32.to_be_bytes(), b"base:allocation"].concat();
    let flags = 3u32.to_be_bytes();
    let mut requests = Vec::new();
    for (command, offset, length) in
        [(0u16, 4096u64, 512u32), (1, 0, 4096), (3, 0, 0), (6, 0, 1 << 20), (7, 0, 4096), (2, 0, 0)]
    {
        requests.extend([0x25, 0x60, 0x95, 0x13, 0, 0]);
        requests.extend(command.to_be_bytes());
        requests.extend(1u64.to_be_bytes());
        requests.extend(offset.to_be_bytes());
        requests.extend(length.to_be_bytes());
    }
    let info = [0u16, 4, 0, 1, 2, 3].map(u16::to_be_bytes);
    let everything = [
        &[0][..],
        &flags,
        &option(3, &[]),
        &option(8, &[]),
        &option(9, &about("a", &0u32.to_be_bytes())),
        &option(10, &about("a", &query)),
        &option(6, &about("b", &[0, 0])),
        &option(7, &about("a", &info[1..].concat())),
        &requests,
    ]
    .concat();
    let old = [&[0][..], &1u32.to_be_bytes(), &option(1, b"a"), &requests].concat();
    let mut long = Vec::new();
    for (command, flags, offset, length) in [(1u16, 32u16, 0u64, 16u64), (6, 0, 0, 1 << 20), (7, 32, 0, 8)] {
        long.extend([0x21, 0xe4, 0x1c, 0x71]);
        long.extend([flags, command].map(u16::to_be_bytes).concat());
        long.extend([1, offset, length].map(u64::to_be_bytes).concat());
    }
    let extended = [&[0][..], &flags, &option(11, &[]), &option(7, &about("a", &[0, 0])), &long].concat();
    let encrypted = [&[1][..], &flags, &option(7, &about("a", &[0, 0])), &option(5, &[]), &option(2, &[])].concat();
    vec![everything, old, extended, encrypted]
}

/// Reads a server's greeting and its answers to options.
pub fn client(input: &[u8]) {
    let (choices, rest) = choices(input);
    fuzzing::haggle(rest, choices);
}

fn answer(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    let magic = [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9];
    let numbers = [option, reply, data.len() as u32].map(u32::to_be_bytes).concat();
    [&magic[..], &numbers, data].concat()
}

/// Makes the answers of a server to each goal of the client, and those of a server that knows only the old option.
pub fn client_seeds() -> Vec<Vec<u8>> {
    let greeting = [b"NBDMAGICIHAVEOPT", &3u16.to_be_bytes()[..]].concat();
    let context = [&1u32.to_be_bytes()[..], b"base:allocation"].concat();
    let export = [&0u16.to_be_bytes()[..], &(1u64 << 20).to_be_bytes(), &0x5edu16.to_be_bytes()].concat();
    let sizes = [&3u16.to_be_bytes()[..], &[1u32, 4096, 32 << 20].map(u32::to_be_bytes).concat()].concat();
    let begin =
        [answer(11, (1 << 31) | 1, &[]), answer(8, 1, &[]), answer(10, 4, &context), answer(10, 1, &[])].concat();
    let transmit =
        [&[0][..], &greeting, &begin, &answer(7, 3, &export), &answer(7, 3, &sizes), &answer(7, 1, &[])].concat();
    let info = [&[1][..], &greeting, &begin, &answer(6, 3, &export), &answer(6, 3, b"\0\x01name"), &answer(6, 1, &[])]
        .concat();
    let long = [answer(11, 1, &[]), answer(10, 4, &context), answer(10, 1, &[])].concat();
    let extended = [&[0][..], &greeting, &long, &answer(7, 3, &export), &answer(7, 1, &[])].concat();
    let list = [&[2][..], &greeting, &answer(3, 2, &about("a", b"about it")), &answer(3, 1, &[])].concat();
    let old = [&[0][..], b"NBDMAGICIHAVEOPT", &0u16.to_be_bytes(), &export[2..], &[0; 124]].concat();
    let refusing = [
        &[4][..],
        &greeting,
        &answer(5, 1, &[]),
        &answer(11, (1 << 31) | 1, b"no"),
        &answer(8, (1 << 31) | 1, b"no"),
        &answer(7, (1 << 31) | 6, b"no"),
    ]
    .concat();
    vec![transmit, info, extended, list, old, refusing]
}

/// Reads a server's replies to a read, a request for extents and a flush.
pub fn replies(input: &[u8]) {
    let (choices, rest) = choices(input);
    fuzzing::replies(rest, choices);
}

/// Makes valid replies, simple, structured and extended.
pub fn reply_seeds() -> Vec<Vec<u8>> {
    let seeds = fuzzing::reply_seeds();
    seeds.iter().enumerate().map(|(index, seed)| [&[index as u8][..], seed].concat()).collect()
}

/// Reads a URL, and checks that writing it and reading it again gives the same URL.
pub fn url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(url) = ExportUrl::parse(text) {
        let shown = url.to_string();
        let again = ExportUrl::parse(&shown).unwrap_or_else(|error| panic!("{shown:?} is not read again: {error}"));
        assert_eq!(url, again, "{text:?} became {shown:?}");
    }
}

/// Typical parts of URLs.
pub const URL_WORDS: &[&[u8]] = &[
    b"nbd://",
    b"nbds://",
    b"nbd+unix:///",
    b"nbds+unix:///",
    b"?socket=",
    b"&tls-hostname=",
    b"tls-certificates=",
    b"x-connections=",
    b"x-request-time=",
    b"[::1]",
    b":10809",
    b"%2F",
    b"%00",
    b"30s",
];

/// Makes URLs of all kinds.
pub fn url_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "nbd://example.com:1/a%20b",
        "nbds://[::1]/disk?tls-hostname=h&x-connections=4&x-request-time=1.5s",
        "nbd+unix:///a?socket=/run/x.sock",
        "nbds+unix:///?socket=/a&tls-certificates=/etc/pki&tls-type=x509&tls-verify-peer=1",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
