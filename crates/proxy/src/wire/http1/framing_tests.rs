//! Tests that streams are accepted or refused in the same way however their bytes are split.

use super::*;

const MAX: usize = 1024;

/// Feeds `text` in pieces of `piece` bytes. Returns the last phase, or the number of accepted bytes and the violation.
fn run(mut framing: FramingReader, text: &[u8], piece: usize) -> Result<FramingPhase, (usize, FramingViolation)> {
    let mut at = 0;
    for chunk in text.chunks(piece) {
        framing.accept(chunk).map_err(|(taken, violation)| (at + taken, violation))?;
        at += chunk.len();
    }
    Ok(framing.phase())
}

fn check(make: impl Fn() -> FramingReader, text: &[u8], expected: Result<FramingPhase, FramingViolation>) {
    let shown = String::from_utf8_lossy(text);
    for piece in [1, 2, 3, 7, text.len()] {
        let found = run(make(), text, piece);
        assert_eq!(found.map_err(|(_, violation)| violation), expected, "{shown:?} in pieces of {piece}");
    }
}

#[test]
fn ambiguous_requests_are_refused() {
    use FramingViolation::*;
    let between = Ok(FramingPhase::Between);
    let table: &[(&str, Result<FramingPhase, FramingViolation>)] = &[
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", between),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n", between),
        ("\r\nGET / HTTP/1.1\r\n\r\n", between),
        ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", Err(Unexpected)),
        ("GET / HTTP/1.1\r\nHost: a\r\n", Ok(FramingPhase::Head)),
        ("GET / HT", Ok(FramingPhase::Head)),
        ("CONNECT a:1 HTTP/1.1\r\n\r\nanything\n\n", Ok(FramingPhase::Opaque)),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", between),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", Ok(FramingPhase::Body)),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\ncontent-length: 3\r\n\r\nabc", between),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", Err(ContentLength)),
        ("POST / HTTP/1.1\r\nContent-Length : 3\r\n\r\n", Err(SpaceBeforeColon)),
        ("POST / HTTP/1.1\r\nContent-Lengthy: x\r\n\r\n", between),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", between),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", between),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", Err(BothLengths)),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Err(BothLengths)),
        ("POST / HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n", Err(BothLengths)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Err(UnknownCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", Err(UnknownCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", Err(UnknownCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", Err(UnknownCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", Err(TransferCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", Err(TransferCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding:\r\n\r\n", Err(TransferCoding)),
        ("GET / HTTP/1.2\r\n\r\n", between),
        ("GET / HTTP/2.0\r\n\r\n", Err(Version)),
        ("GET / HTTP/0.9\r\n\r\n", Err(Version)),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Err(Version)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Err(TransferCoding)),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Err(TransferCoding)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n", Err(SpaceBeforeColon)),
        ("POST / HTTP/1.1\r\nTransfer-Encoding\t: chunked\r\n\r\n", Err(SpaceBeforeColon)),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", Err(BareLineFeed)),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", Err(BareLineFeed)),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", Err(BareLineFeed)),
        ("GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", Err(FoldedLine)),
        ("GET / HTTP/1.1\r\n A: b\r\n\r\n", Err(FoldedLine)),
        ("GET / HTTP/1.1\r\nA: b\r\n\tTransfer-Encoding: chunked\r\n\r\n", Err(FoldedLine)),
    ];
    for (text, expected) in table {
        check(|| FramingReader::of_requests(MAX), text.as_bytes(), *expected);
    }
}

#[test]
fn chunked_bodies_are_read_strictly() {
    use FramingViolation::*;
    let table: &[(&str, Result<FramingPhase, FramingViolation>)] = &[
        ("3\r\nabc\r\n0\r\n\r\n", Ok(FramingPhase::Between)),
        ("a;name=value\r\n0123456789\r\n0\r\n\r\n", Ok(FramingPhase::Between)),
        ("0003\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", Ok(FramingPhase::Between)),
        ("0\r\n\r\nGET / HTTP/1.1\r\n\r\n", Ok(FramingPhase::Between)),
        ("3\r\nabc\r\n", Ok(FramingPhase::Body)),
        ("0\r\n", Ok(FramingPhase::Body)),
        ("\r\n", Err(Chunk)),
        ("x\r\n", Err(Chunk)),
        ("-1\r\n", Err(Chunk)),
        ("0x3\r\nabc\r\n", Err(Chunk)),
        (" 3\r\nabc\r\n", Err(Chunk)),
        ("3 \r\nabc\r\n", Err(Chunk)),
        ("3\nabc\r\n", Err(Chunk)),
        ("3\r\nabcd\r\n", Err(Chunk)),
        ("3\r\nabc\n", Err(Chunk)),
        ("3\r\nabcX\n", Err(Chunk)),
        ("3;a\nb\r\nabc\r\n", Err(Chunk)),
        ("3\rabc", Err(Chunk)),
        ("fffffffffffffffff\r\n", Err(Chunk)),
        ("0\r\nA: b\n\r\n", Err(BareLineFeed)),
        ("0\r\n folded\r\n\r\n", Err(FoldedLine)),
    ];
    for (body, expected) in table {
        let text = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        check(|| FramingReader::of_requests(MAX), text.as_bytes(), *expected);
    }
}

#[test]
fn heads_extensions_and_trailers_are_bounded() {
    let head = |length: usize| format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(length - 23));
    check(|| FramingReader::of_requests(MAX), head(MAX).as_bytes(), Ok(FramingPhase::Between));
    check(|| FramingReader::of_requests(MAX), head(MAX + 1).as_bytes(), Err(FramingViolation::TooLong));
    let endless = "x".repeat(MAX + 1);
    check(|| FramingReader::of_requests(MAX), endless.as_bytes(), Err(FramingViolation::TooLong));
    let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let extension = |length: u32| format!("{chunked}0;{}\r\n\r\n", "x".repeat(length as usize));
    check(
        || FramingReader::of_requests(MAX),
        extension(CHUNK_EXTENSION_BYTES_MAX).as_bytes(),
        Ok(FramingPhase::Between),
    );
    check(
        || FramingReader::of_requests(MAX),
        extension(CHUNK_EXTENSION_BYTES_MAX + 1).as_bytes(),
        Err(FramingViolation::TooLong),
    );
    let trailers = |length: usize| format!("{chunked}0\r\nA: {}\r\n\r\n", "x".repeat(length - 7));
    check(|| FramingReader::of_requests(MAX), trailers(TRAILER_BYTES_MAX).as_bytes(), Ok(FramingPhase::Between));
    check(
        || FramingReader::of_requests(MAX),
        trailers(TRAILER_BYTES_MAX + 1).as_bytes(),
        Err(FramingViolation::TooLong),
    );
}

#[test]
fn too_long_target_differs_from_head() {
    let of = |target: &str| format!("GET {target} HTTP/1.1\r\n\r\n");
    let fits = "x".repeat(MAX - 4 - 13);
    check(|| FramingReader::of_requests(MAX), of(&fits).as_bytes(), Ok(FramingPhase::Between));
    for length in [MAX - 4 - 11 + 1, MAX, 100 * MAX] {
        check(
            || FramingReader::of_requests(MAX),
            of(&"x".repeat(length)).as_bytes(),
            Err(FramingViolation::TargetTooLong),
        );
    }
    check(|| FramingReader::of_requests(MAX), "G".repeat(2 * MAX).as_bytes(), Err(FramingViolation::TooLong));
    check(
        FramingReader::awaiting,
        format!("HTTP/1.1 200 {}", "x".repeat(MAX)).as_bytes(),
        Err(FramingViolation::TooLong),
    );
}

/// Informational responses are bounded in number and in bytes.
#[test]
fn informational_responses_are_bounded() {
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let last = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let of = |count: u32, length: usize| {
        let long = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(length));
        format!("{}{long}{last}", hint.repeat(count as usize - 1))
    };
    let make = || FramingReader { head_bytes_max: 10_000, ..FramingReader::awaiting() };
    check(make, of(INFORMATIONAL_MAX, 1).as_bytes(), Ok(FramingPhase::Between));
    check(make, of(INFORMATIONAL_MAX + 1, 1).as_bytes(), Err(FramingViolation::TooManyInformational));
    let room = 10_000 - of(1, 0).len();
    check(make, of(1, room).as_bytes(), Ok(FramingPhase::Between));
    check(make, of(1, room + 1).as_bytes(), Err(FramingViolation::TooLong));
    for piece in [1, 7, 1000] {
        let mut framing = make();
        let mut found = Vec::new();
        for chunk in of(2, 3).as_bytes().chunks(piece) {
            framing.accept(chunk).expect("fine");
            found.extend(framing.take_informational());
        }
        let expected = ["Link: </a>", "Link: xxx"]
            .map(|line| InformationalResponse { status: 103, lines: vec![line.as_bytes().to_vec()] });
        assert_eq!((found.as_slice(), framing.is_head_awaited()), (&expected[..], false), "in pieces of {piece}");
    }
}

/// Their positions are the same in whatever pieces the bytes arrive.
#[test]
fn later_minor_versions_are_located() {
    let requests = "GET / HTTP/1.2\r\nA: HTTP/1.2\r\n\r\nGET /HTTP/1.2 HTTP/1.1\r\n\r\nGET / HTTP/1.9\r\n\r\n";
    let responses = "HTTP/1.2 200 HTTP/1.2\r\nA: b\r\nContent-Length: 0\r\n\r\n";
    for (make, text) in
        [(FramingReader::requests as fn() -> FramingReader, requests), (FramingReader::awaiting, responses)]
    {
        let (first, last) = (text.find(".2").expect("one"), text.rfind(".9").unwrap_or(text.find(".2").expect("one")));
        for piece in 1..=text.len() {
            let (mut framing, mut read) = (make(), text.as_bytes().to_vec());
            for chunk in read.chunks_mut(piece) {
                framing.accept(chunk).expect("fine");
                framing.later_minors().iter().for_each(|at| chunk[*at] = b'1');
            }
            let mut expected = text.as_bytes().to_vec();
            (expected[first + 1], expected[last + 1]) = (b'1', b'1');
            assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(&expected), "in pieces of {piece}");
        }
    }
}

impl FramingReader {
    fn requests() -> FramingReader {
        FramingReader::of_requests(MAX)
    }

    fn awaiting() -> FramingReader {
        let mut framing = FramingReader::of_responses(MAX);
        framing.await_response(false);
        framing
    }
}

#[test]
fn refused_head_never_ends_accepted_bytes() {
    let heads = [
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\n\n",
        "GET / HTTP/1.1\r\n folded\r\n\r\n",
    ];
    for head in heads {
        let (accepted, _) = run(FramingReader::of_requests(MAX), head.as_bytes(), head.len()).expect_err(head);
        let passed_on = &head.as_bytes()[..accepted];
        assert!(!passed_on.ends_with(b"\n\r\n") && !passed_on.ends_with(b"\n\n"), "{head:?} up to {accepted}");
        assert!(accepted < head.len());
    }
}

#[test]
fn response_framing_is_strict() {
    use FramingViolation::*;
    // Each row has the text of a response, whether it answers a HEAD request, and the expected result.
    let table: &[(&str, bool, Result<FramingPhase, FramingViolation>)] = &[
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", false, Ok(FramingPhase::Between)),
        ("HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", false, Ok(FramingPhase::Between)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true, Ok(FramingPhase::Between)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", false, Err(Unexpected)),
        ("HTTP/1.1 200 OK\r\n\r\nanything", false, Ok(FramingPhase::Opaque)),
        ("HTTP/1.1 204 No Content\r\n\r\n", false, Ok(FramingPhase::Between)),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", false, Ok(FramingPhase::Between)),
        ("HTTP/1.1 304 Not Modified\r\n\r\nabc", false, Err(Unexpected)),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, Ok(FramingPhase::Between)),
        ("HTTP/1.1 101 Switching\r\n\r\n", false, Err(Switching)),
        ("HTTP/1.3 200 OK\r\nContent-Length: 0\r\n\r\n", false, Ok(FramingPhase::Between)),
        ("HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", false, Err(Version)),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3  \r\nabc\r\n0\r\n\r\n",
            false,
            Ok(FramingPhase::Between),
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", false, Err(BothLengths)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", false, Err(ContentLength)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", false, Err(UnknownCoding)),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false, Err(TransferCoding)),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", false, Err(FoldedLine)),
        ("nonsense that goes on\r\n", false, Err(StatusLine)),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", false, Err(Unexpected)),
    ];
    for (text, to_head, expected) in table {
        let make = || {
            let mut framing = FramingReader::of_responses(MAX);
            framing.await_response(*to_head);
            framing
        };
        check(make, text.as_bytes(), *expected);
    }
    check(|| FramingReader::of_responses(MAX), b"HTTP/1.1 200 OK\r\n", Err(Unexpected));
}

/// The parts from which random streams are made that look like HTTP.
const PARTS: [&str; 34] = [
    "GET / HTTP/1.1\r\n",
    "POST / HTTP/1.0\r\n",
    "CONNECT a:1 HTTP/1.1\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 204 No Content\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "Content-Length: 3\r\n",
    "content-length:0\r\n",
    "Content-Length: 3",
    "Content-Length : 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "Transfer-Encoding",
    "A: b\r\n",
    "\r\n",
    "\r\n\r\n",
    "\r",
    "\n",
    " ",
    "\t",
    ":",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
    "0\r\n",
    "a;b=c\r\n",
    "abc",
    "ffffffffffffffff",
    "\0",
    "\u{ff}",
    ";",
    "0",
    "T",
    "c",
    "-",
];

proptest::proptest! {
    #[test]
    fn how_bytes_arrive_makes_no_difference(
        parts in proptest::collection::vec(0..PARTS.len(), 0..24),
        piece in 1usize..40,
        is_response in proptest::bool::ANY,
    ) {
        let text: String = parts.iter().map(|&part| PARTS[part]).collect();
        let make = || {
            let mut framing =
                if is_response { FramingReader::of_responses(200) } else { FramingReader::of_requests(200) };
            framing.await_response(false);
            framing
        };
        let whole = run(make(), text.as_bytes(), text.len().max(1));
        let pieces = run(make(), text.as_bytes(), piece);
        match (whole, pieces) {
            (Err((_, one)), Err((_, other))) => proptest::prop_assert_eq!(one, other),
            (one, other) => proptest::prop_assert_eq!(one, other),
        }
    }
}
