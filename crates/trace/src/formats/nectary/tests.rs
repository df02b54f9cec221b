//! Compares the format with a model of the written records, for files that are complete, cut short, or damaged.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::formats::{ReferenceReader as _, TraceOperation, TraceReference};

const HEADER: TraceHeader = TraceHeader { block_bytes: 8192, is_collapsed: false, is_reads_only: true };

/// The records to write: the process and file of each stream, and the stream, first block, number of blocks and
/// direction of each call.
#[derive(Debug, Clone)]
struct TraceScript {
    streams: Vec<(u32, u32)>,
    calls: Vec<(usize, u64, u64, bool)>,
    /// The number of calls after which a chunk is flushed.
    flush_every: usize,
}

fn scripts() -> impl Strategy<Value = TraceScript> {
    let call = (0_usize..8, prop_oneof![0_u64..40, 0..BLOCKS_MAX - 8], 1_u64..8, any::<bool>());
    (prop::collection::vec((0_u32..3, 0_u32..4), 1..8), prop::collection::vec(call, 0..60), 1_usize..20).prop_map(
        |(streams, mut calls, flush_every)| {
            for call in &mut calls {
                call.0 %= streams.len();
            }
            TraceScript { streams, calls, flush_every }
        },
    )
}

fn written(script: &TraceScript) -> (Vec<u8>, Vec<TraceReference>) {
    let mut writer = NectaryWriter::new(Vec::new(), [9; 16], &HEADER).unwrap();
    for pid in 0..3 {
        let parent = (pid > 0).then_some(0);
        let number = writer.process(&TraceProcess { pid, parent, name: format!("process {pid}") }).unwrap();
        assert_eq!(number, Some(pid));
    }
    for inode in 0..4 {
        let name = "n".repeat(inode as usize * 3);
        let kind = if inode == 3 { FileKind::BlockDevice } else { FileKind::Regular };
        writer.file(&FileEntry { kind, device: u64::MAX, inode, size_bytes: 1 << inode, name }).unwrap();
    }
    let map = FileMapping {
        process: 1,
        file: 2,
        is_executable: true,
        is_written: false,
        is_program: false,
        offset: 4096,
        bytes: 8192,
    };
    writer.map(&map).unwrap();
    writer.unseen(1, UnseenCall::IoSubmit, 5).unwrap();
    for &(process, file) in &script.streams {
        writer.stream(process, file).unwrap();
    }
    let mut expected = Vec::new();
    for (index, &(stream, first, count, is_write)) in script.calls.iter().enumerate() {
        assert!(writer.references(stream as u32, first, count, is_write).unwrap());
        expected.extend((first..first + count).map(|block| TraceReference {
            stream: nectary_cache::StreamId(stream as u32),
            block: u64::from(script.streams[stream].1) * BLOCKS_MAX + block,
            bytes: 8192,
            operation: if is_write { TraceOperation::Write } else { TraceOperation::Read },
            ..TraceReference::default()
        }));
        if (index + 1) % script.flush_every == 0 {
            writer.flush().unwrap();
        }
    }
    (writer.finish(RecordingOutcome::Killed(9)).unwrap(), expected)
}

fn read(bytes: &[u8]) -> (Vec<TraceReference>, Result<NectaryReader<&[u8]>, Error>) {
    let mut references = Vec::new();
    let mut reader = match NectaryReader::new(Path::new("t"), bytes) {
        Ok(reader) => reader,
        Err(error) => return (references, Err(error)),
    };
    loop {
        match reader.next_reference() {
            Ok(Some(reference)) => references.push(reference),
            Ok(None) => return (references, Ok(reader)),
            Err(error) => return (references, Err(error)),
        }
    }
}

fn plain() -> TraceScript {
    let calls = (0..30).map(|call| (call % 2, call as u64 * 3 % 17, 1 + call as u64 % 3, call % 5 == 0)).collect();
    TraceScript { streams: vec![(0, 1), (2, 3)], calls, flush_every: 7 }
}

proptest! {
    #[test]
    fn what_was_written_is_read(script in scripts()) {
        let (bytes, expected) = written(&script);
        let (references, reader) = read(&bytes);
        let reader = reader.unwrap();
        prop_assert_eq!(&references, &expected);
        prop_assert_eq!(reader.header(), &HEADER);
        prop_assert!(!reader.is_truncated());
        let end = reader.end().unwrap();
        prop_assert_eq!(end.outcome, RecordingOutcome::Killed(9));
        prop_assert_eq!(end.totals.references, expected.len() as u64);
        prop_assert_eq!(reader.stream(nectary_cache::StreamId(0)), Some(script.streams[0]));
        prop_assert_eq!(reader.unseen(UnseenCall::IoSubmit), 5);
        prop_assert_eq!(reader.mapped_bytes(2), 8192);
        // Read the same references through the trait that all formats share.
        let mut reader = NectaryReader::new(Path::new("t"), bytes.as_slice()).unwrap();
        let mut again = Vec::new();
        while reader.read(&mut again).unwrap() {}
        prop_assert_eq!(again, expected);
    }

    #[test]
    fn mutation_is_noticed_or_harmless(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let (mut bytes, expected) = written(&plain());
        let at = at.index(bytes.len());
        let before = std::mem::replace(&mut bytes[at], to);
        let (references, reader) = read(&bytes);
        prop_assert!(expected.starts_with(&references));
        prop_assert_eq!(reader.is_ok(), before == to, "offset {}", at);
    }

    #[test]
    fn any_payload_is_read_or_refused(payload in prop::collection::vec(prop_oneof![0_u8..8, 0x80_u8..0x90, any::<u8>()], 1..200)) {
        // The chunk has correct checksums and arbitrary contents.
        let mut writer = NectaryWriter::new(Vec::new(), [9; 16], &HEADER).unwrap();
        writer.process(&TraceProcess { pid: 1, parent: None, name: String::new() }).unwrap();
        let file = FileEntry { kind: FileKind::Regular, device: 1, inode: 1, size_bytes: 1, name: String::new() };
        writer.file(&file).unwrap();
        writer.stream(0, 0).unwrap();
        writer.items_of_a_test(&payload);
        writer.flush().unwrap();
        let bytes = writer.finish(RecordingOutcome::Stopped).unwrap();
        let mut reader = NectaryReader::new(Path::new("t"), bytes.as_slice()).unwrap();
        // An item may hold millions of references; the test reads only some of them.
        for _ in 0..10_000 {
            match reader.next_reference() {
                Ok(Some(reference)) => prop_assert!(reference.block < BLOCKS_MAX),
                Ok(None) | Err(_) => break,
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (references, reader) = read(&bytes);
        prop_assert!(references.is_empty() && reader.is_err());
    }
}

/// A file cut anywhere gives what is whole and says that it is truncated.
#[test]
fn truncated_file_yields_whole_chunks() {
    let (bytes, expected) = written(&plain());
    let mut counts = Vec::new();
    for length in 64..bytes.len() {
        let (references, reader) = read(&bytes[..length]);
        let reader = reader.unwrap();
        assert!(expected.starts_with(&references));
        assert!(reader.is_truncated() && reader.end().is_none(), "cut at {length}");
        counts.push(references.len());
    }
    counts.dedup();
    assert_eq!(counts, [0, 13, 27, 42, 55], "{} in all", expected.len());
    for length in 0..64 {
        assert!(read(&bytes[..length]).1.is_err(), "cut at {length}");
    }
}

#[test]
fn bytes_after_the_end_are_damage() {
    let (mut bytes, expected) = written(&plain());
    let chunk = bytes[64..].to_vec();
    bytes.extend_from_slice(&chunk);
    let (references, reader) = read(&bytes);
    assert_eq!(references, expected);
    assert!(reader.err().unwrap().to_string().contains("expected the end of the file"));
}

#[test]
fn messages_name_place_expected_and_found() {
    let (bytes, _) = written(&plain());
    let message = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        read(&bytes).1.err().unwrap().to_string()
    };
    assert_eq!(message(8, 2), "t: offset 8: expected version 1, found version 2");
    assert!(message(0, b'X').contains("expected a trace of nectary's format, NECTTRC, found \"XECTTRC\\x00\""));
    assert!(message(64, b'X').starts_with("t: offset 64: expected a chunk, NTCH, found \"XTCH\""));
    assert!(message(96, 0).starts_with("t: offset 88: expected checksum "));
}

/// Items beyond the bounds are refused and counted as lost.
#[test]
fn items_beyond_bounds_are_lost() {
    let mut writer = NectaryWriter::new(Vec::new(), [9; 16], &HEADER).unwrap();
    writer.process(&TraceProcess { pid: 1, parent: None, name: "é".repeat(NAME_BYTES_MAX) }).unwrap();
    let file = FileEntry { kind: FileKind::Regular, device: 1, inode: 1, size_bytes: 1, name: String::new() };
    writer.file(&file).unwrap();
    writer.stream(0, 0).unwrap();
    assert!(writer.references(0, BLOCKS_MAX - 1, 1, false).unwrap());
    assert!(!writer.references(0, BLOCKS_MAX - 1, 2, false).unwrap());
    assert!(!writer.references(0, u64::MAX, 2, false).unwrap());
    assert!(!writer.references(0, 0, REFERENCES_PER_CALL_MAX + 1, false).unwrap());
    assert!(!writer.references(1, 0, 1, false).unwrap());
    assert!(writer.references(0, 5, 0, false).unwrap());
    let lost = writer.totals().lost_references;
    assert_eq!(lost, 2 + 2 + REFERENCES_PER_CALL_MAX + 1 + 1);
    let bytes = writer.finish(RecordingOutcome::Exited(0)).unwrap();
    let (references, reader) = read(&bytes);
    assert_eq!(references.len(), 1);
    let reader = reader.unwrap();
    assert_eq!(reader.processes()[0].name.len(), NAME_BYTES_MAX);
    assert_eq!(reader.end().unwrap().totals.lost_references, lost);
}

#[test]
fn golden_file_stays_readable() {
    // These bytes were written by hand from docs/formats/trace.md.
    let mut head = Vec::new();
    head.extend_from_slice(b"NECTTRC\0\x01\0\x40\0\x00\x10\0\0");
    head.extend_from_slice(&[5; 16]);
    head.extend_from_slice(&[0; 28]);
    let sum = crc32c::crc32c(&head);
    head.extend_from_slice(&sum.to_le_bytes());
    let payload = [
        &b"\x01\x2a\x00\x02ls"[..],
        b"\x02\x00\x07\x09\x80\x20\x01a",
        b"\x03\x00\x00",
        b"\x80\x80\x8d\x03\x02\x84\x03",
        b"\x06\x00\x00\x01\x01\x01\x07\x00\x00",
    ]
    .concat();
    let mut chunk = b"NTCH\x01\0\0\0\x05\x05\x05\x05\x05\x05\x05\x05\0\0\0\0".to_vec();
    chunk.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    chunk.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
    let sum = crc32c::crc32c(&chunk);
    chunk.extend_from_slice(&sum.to_le_bytes());
    let bytes = [head, chunk, payload].concat();
    let (references, reader) = read(&bytes);
    let reader = reader.unwrap();
    let found: Vec<(u64, bool)> =
        references.iter().map(|reference| (reference.block, reference.operation == TraceOperation::Write)).collect();
    assert_eq!(found, [(0, false), (1, false), (0, true), (1, true), (2, false), (3, false), (4, false)]);
    assert_eq!(reader.files()[0].size_bytes, 4096);
    assert_eq!(reader.end().unwrap().outcome, RecordingOutcome::Exited(0));
}
