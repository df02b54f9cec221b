//! Tests that written references are read back, plain and compressed, with the format guessed or named.

use nectary_cache::StreamId;
use nectary_trace::TraceReference;
use nectary_trace::formats::{TraceFormat, TraceOperation};
use proptest::prelude::*;

use super::encode::{EncodedRequest, files, gzip, options, read, requests, xz, zstd};

/// The references that a file of [`files`] should have.
fn expected(name: &str, requests: &[EncodedRequest]) -> Vec<TraceReference> {
    let mut references = Vec::new();
    let mut streams: Vec<u32> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let known = streams.iter().position(|&stream| stream == request.stream);
        let number = known.unwrap_or_else(|| {
            streams.push(request.stream);
            streams.len() - 1
        }) as u32;
        let first = request.offset / 8192;
        let count = u64::from(request.bytes) / 8192;
        let (count, bytes, is_write, stream, tag) = match name.split('.').next_back().unwrap_or_default() {
            "trace" => (1, 0, false, 0, 0),
            "lis" => (count, 512, false, 0, 0),
            "csv" if name == "msr.csv" => (count, 8192, request.is_write, number, u64::from(number) << 48),
            "csv" => (1, 8192, request.is_write, number, 0),
            "bin" => (1, request.bytes, false, 0, 0),
            _ => (count, 8192, request.is_write, 0, 0),
        };
        let operation = if is_write { TraceOperation::Write } else { TraceOperation::Read };
        let time_s = if name.ends_with(".bin") { index as u64 } else { 0 };
        let stream = StreamId(stream);
        let reference = |block| TraceReference {
            stream,
            block: block | tag,
            bytes,
            operation,
            time_s,
            ..TraceReference::default()
        };
        references.extend((first..first + count).map(reference));
    }
    references
}

fn check(requests: &[EncodedRequest]) {
    for (name, plain) in files(requests) {
        let expected = expected(name, requests);
        for (ending, bytes) in [("", plain.clone()), (".gz", gzip(&plain)), (".xz", xz(&plain)), (".zst", zstd(&plain))]
        {
            let (found, result) = read(&format!("{name}{ending}"), &bytes, &options(name));
            assert!(result.is_ok(), "{name}{ending}: {result:?}");
            assert_eq!(found, expected, "{name}{ending}");
        }
        // Compression is recognised by content, and a file may consist of several gzip members, xz streams or zstd frames.
        for twice in [gzip(&plain).repeat(2), xz(&plain).repeat(2), zstd(&plain).repeat(2)] {
            let (found, result) = read(name, &twice, &options(name));
            assert!(result.is_ok(), "{name} twice: {result:?}");
            assert_eq!(found.len(), 2 * expected.len(), "{name} twice");
        }
    }
}

#[test]
fn formats_read_back_their_output() {
    check(&requests(1, 3000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn requests_round_trip_in_formats(
        requests in prop::collection::vec(
            (0..4_u32, 0..1_u64 << 30, 1..4_u32, any::<bool>()).prop_map(|(stream, block, blocks, is_write)| EncodedRequest {
                stream,
                offset: block * 8192,
                bytes: blocks * 8192,
                is_write,
            }),
            2..60,
        ),
    ) {
        check(&requests);
    }

    #[test]
    fn block_numbers_round_trip_text(
        blocks in prop::collection::vec(any::<u64>(), 1..50),
        gaps in prop::collection::vec(0..4_usize, 50),
    ) {
        let lines = ["", "*\n", "\n", " * marker 5\r\n"];
        let text: String = blocks.iter().zip(gaps).map(|(block, gap)| format!("{}  {block}\r\n", lines[gap])).collect();
        let (found, result) = read("a.trace", text.as_bytes(), &options("a.trace"));
        prop_assert!(result.is_ok());
        prop_assert_eq!(found.iter().map(|reference| reference.block).collect::<Vec<_>>(), blocks);
    }
}

/// Formats are guessed by content where the file name says nothing.
#[test]
fn formats_are_guessed_by_content() {
    for (name, plain) in files(&requests(2, 50)) {
        let found = read("what", &plain, &options(name));
        // oracleGeneral has no magic number, so it is not guessed by content.
        assert_eq!(found.1.is_ok(), name != "a.oracleGeneral.bin", "{name}: {:?}", found.1);
    }
    for name in ["text", "LIRS", "arc", "csv", "msr", "vscsi", "oraclegeneral", "nectary"] {
        assert!(TraceFormat::by_name(name).is_some(), "{name}");
    }
}

#[test]
fn unaligned_offset_touches_surrounding_blocks() {
    let line = b"1,h,0,Read,8191,2,0\n1,h,0,Read,8192,0,0\n";
    let (found, result) = read("a.csv", line, &options("a.csv"));
    assert!(result.is_ok());
    assert_eq!(found.iter().map(|reference| reference.block).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn header_line_is_skipped() {
    let text = b"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n1,h,0,Write,0,8192,0\n";
    let (found, result) = read("a.csv", text, &options("a.csv"));
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(found, [TraceReference { bytes: 8192, operation: TraceOperation::Write, ..TraceReference::default() }]);
}
