//! Targets of `nectary-trace`: every trace format, uncompressed and compressed with gzip, xz or zstd, and access logs.
//!
//! Each target reads a trace to its end or to its first error. An error names the file and contains no control
//! characters.

use std::io::{Cursor, Write};
use std::path::Path;

use nectary_trace::access_log::{AccessLogReader, LineContents};
use nectary_trace::formats::csv::CsvColumns;
use nectary_trace::formats::input::{DecompressedInput, LINE_BYTES_MAX};
use nectary_trace::formats::nectary::{
    FileEntry, FileKind, FileMapping, NectaryWriter, RecordingOutcome, TraceHeader, TraceProcess, UnseenCall,
};
use nectary_trace::formats::{BLOCKS_PER_RECORD_MAX, ReadOptions, TraceFormat, from_input};
use nectary_trace::{Error, TraceReference};

use super::choices;
use crate::units;

/// Typical parts of lines.
pub const WORDS: &[&[u8]] = &[
    b"\n",
    b"\r\n",
    b" ",
    b",",
    b"*",
    b"Read",
    b"Write",
    b"0",
    b"18446744073709551615",
    b"1048576",
    b"block=1,",
    b"sep=;",
    b"\"",
    b"key,size",
    b"volume=2+3,offset=5,size=6,op=4",
];

/// Typical parts of lines of access logs.
pub const LOG_WORDS: &[&[u8]] = &[
    b"\n",
    b" ",
    b"\t",
    b"\"",
    b"\\",
    b"[",
    b"] ",
    b"-",
    b"GET ",
    b" HTTP/1.1\"",
    b"TCP_HIT/200",
    b"#Fields: ",
    b"cs-uri-stem",
    b"sc-status",
    b"{\"status\":",
    b"18446744073709551615",
];

/// The number of references after which reading stops; no valid file as short as an input has so many.
const REFERENCES_MAX: usize = 8 << 20;
/// The largest number of references from one record or one call.
const AT_ONCE_MAX: usize = 1 << 22;

fn read(bytes: &[u8], options: &ReadOptions) -> Result<u64, Error> {
    let input = DecompressedInput::from_reader(Path::new("input"), Box::new(Cursor::new(bytes.to_vec())))?;
    let mut reader = from_input(input, options)?;
    let (mut batch, mut count) = (Vec::<TraceReference>::new(), 0);
    loop {
        batch.clear();
        if !reader.read(&mut batch)? {
            break;
        }
        assert!(batch.len() <= AT_ONCE_MAX);
        count += batch.len();
        for reference in batch.iter().take(4) {
            let _ = reader.stream_name(reference.stream);
        }
        if count > REFERENCES_MAX {
            break;
        }
    }
    let _ = reader.warning();
    Ok(count as u64)
}

fn check(bytes: &[u8], options: &ReadOptions) {
    if let Err(error) = read(bytes, options) {
        let text = error.to_string();
        assert!(text.contains("input") && text.len() < 4000, "{text:?}");
        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
    }
}

fn of(format: TraceFormat) -> ReadOptions {
    ReadOptions { format: Some(format), ..ReadOptions::default() }
}

/// Reads an access log in the format that its first lines have. The parts of a line are no longer than a line may be.
pub fn access_log(input: &[u8]) {
    let read = || -> Result<(), Error> {
        let source = Box::new(Cursor::new(input.to_vec()));
        let mut reader = AccessLogReader::from_input(DecompressedInput::from_reader(Path::new("input"), source)?)?;
        while let Some(contents) = reader.read()? {
            if let LineContents::Request(line) = contents {
                // Bytes that are no UTF-8 become three.
                assert!(line.url.len() + line.client.len() <= 4 * LINE_BYTES_MAX, "{line:?}");
            }
        }
        let text = reader.bad_line().to_string();
        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
        Ok(())
    };
    if let Err(error) = read() {
        let text = error.to_string();
        assert!(text.contains("input") && text.chars().all(|c| !c.is_control()), "{text:?}");
    }
}

/// Reads one block number per line.
pub fn text(input: &[u8]) {
    check(input, &of(TraceFormat::Text));
}

/// Reads lines in the form of the ARC authors' traces.
pub fn arc(input: &[u8]) {
    check(input, &of(TraceFormat::Arc));
}

/// Reads CSV. If the first line parses as a definition of columns, it defines them.
pub fn csv(input: &[u8]) {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let columns = std::str::from_utf8(&input[..end]).ok().and_then(|line| CsvColumns::parse(line).ok());
    let lines = if columns.is_some() { &input[end..] } else { input };
    check(lines, &ReadOptions { columns, ..of(TraceFormat::Csv) });
}

/// Reads both versions of VSCSI.
pub fn vscsi(input: &[u8]) {
    check(input, &of(TraceFormat::Vscsi));
}

/// Reads libCacheSim's oracleGeneral format, and checks that each record gives one reference.
pub fn oracle_general(input: &[u8]) {
    if let Ok(count) = read(input, &of(TraceFormat::OracleGeneral))
        && !is_compressed(input)
    {
        assert_eq!(count, input.len() as u64 / 24);
    }
    check(input, &of(TraceFormat::OracleGeneral));
}

/// Reads Nectary's own format.
pub fn nectary(input: &[u8]) {
    let (choices, rest) = choices(input);
    let mut bytes = rest.to_vec();
    if choices & 1 == 1 {
        units::seal_trace(&mut bytes);
    }
    check(&bytes, &of(TraceFormat::Nectary));
}

/// Reads bytes that begin like gzip, xz or zstd; the format is guessed.
pub fn compressed(input: &[u8]) {
    let (choices, rest) = choices(input);
    let magic: &[u8] = match choices % 3 {
        0 => &[0x28, 0xb5, 0x2f, 0xfd],
        1 => &[0x1f, 0x8b, 8],
        _ => b"\xfd7zXZ\0",
    };
    let mut bytes = rest.to_vec();
    let length = magic.len().min(bytes.len());
    bytes[..length].copy_from_slice(&magic[..length]);
    check(&bytes, &ReadOptions::default());
}

fn is_compressed(input: &[u8]) -> bool {
    [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0"].iter().any(|magic| input.starts_with(magic))
}

/// Makes lines and comments.
pub fn text_seeds() -> Vec<Vec<u8>> {
    vec![b"1\n2\n\n* a comment\n18446744073709551615\n".to_vec(), b" 7 \r\n8".to_vec()]
}

/// Makes a log of each format.
pub fn access_log_seeds() -> Vec<Vec<u8>> {
    vec![
        b"1157689320.343 357 10.0.0.1 TCP_HIT/200 10182 GET http://h/a.gif - NONE/- image/gif\n".to_vec(),
        b"h:80 ::1 - u [10/Oct/2000:13:55:36 -0700] \"GET /a\\\"b HTTP/1.0\" 200 26 \"-\" \"x\" HIT 0.1 9\n".to_vec(),
        b"#Fields: c-ip cs-method cs-uri-stem cs-uri-query sc-status sc-bytes\n10.0.0.1 GET /a b=c 200 77\n".to_vec(),
        b"{\"client\":\"c\",\"method\":\"GET\",\"host\":\"h\",\"target\":\"/p\",\"status\":200,\"bytes\":7}\n".to_vec(),
    ]
}

/// Makes requests.
pub fn arc_seeds() -> Vec<Vec<u8>> {
    vec![b"1 4 0 1\n100 1048576 0 2\n\n7 1 0 3\n".to_vec()]
}

/// Makes CSV with the columns of MSR's traces and with other columns.
pub fn csv_seeds() -> Vec<Vec<u8>> {
    assert!(BLOCKS_PER_RECORD_MAX as usize <= AT_ONCE_MAX);
    vec![
        b"128166372003061629,host,0,Read,8192,16384,77\n128166372003061630,host,1,Write,0,512,9\n".to_vec(),
        b"block=1,op=2,stream=3,sep=;\n7;r;a\n8;W;b\n".to_vec(),
        b"time,host,disk,op,offset,size\n1,h,0,Read,0,0\n".to_vec(),
        b"time,key,size,op,ttl\n1.5,\"a,\"\"b\",7,set,60\n2,c,0,delete,\n".to_vec(),
        b"\xef\xbb\xbfkey=id,size=bytes\nid  bytes\nx    9\n".to_vec(),
    ]
}

/// Makes two records of each version.
pub fn vscsi_seeds() -> Vec<Vec<u8>> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for number in 0..2_u32 {
        for field in [number, 16384, 1] {
            first.extend(field.to_le_bytes());
        }
        first.extend([0x28, 0, 0, 1]);
        first.extend([u64::from(number) * 16, 5].map(u64::to_le_bytes).concat());
        second.extend([0x2a, 0, 0, 2]);
        for field in [number, 4096, 1] {
            second.extend(field.to_le_bytes());
        }
        second.extend([u64::from(number) * 8, 5, 9].map(u64::to_le_bytes).concat());
    }
    vec![first, second]
}

/// Makes three records.
pub fn oracle_general_seeds() -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for (time, object, size, next) in [(1_u32, 7_u64, 512_u32, 3_i64), (2, 8, 0, -1), (3, 7, 512, -1)] {
        bytes.extend(time.to_le_bytes());
        bytes.extend(object.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    vec![bytes]
}

/// Makes a file with every kind of item in two chunks.
pub fn nectary_seeds() -> Vec<Vec<u8>> {
    let bytes = recorded().expect("memory takes every write");
    vec![[&[0], &bytes[..]].concat(), [&[1], &bytes[..]].concat()]
}

fn recorded() -> std::io::Result<Vec<u8>> {
    let header = TraceHeader { block_bytes: 4096, is_collapsed: true, is_reads_only: false };
    let mut bytes = Vec::new();
    let mut writer = NectaryWriter::new(&mut bytes, [7; 16], &header)?;
    let process = TraceProcess { pid: 100, parent: None, name: "make".to_owned() };
    writer.process(&process)?;
    writer.process(&TraceProcess { pid: 101, parent: Some(0), name: "cc".to_owned() })?;
    let file =
        FileEntry { kind: FileKind::Regular, device: 2049, inode: 77, size_bytes: 10_000, name: "a.c".to_owned() };
    writer.file(&file)?;
    writer.stream(1, 0)?;
    writer.references(0, 0, 3, false)?;
    writer.flush()?;
    writer.references(0, 3, 1, true)?;
    writer.references(0, 0, 1, false)?;
    let map = FileMapping {
        process: 1,
        file: 0,
        is_executable: true,
        is_written: false,
        is_program: true,
        offset: 0,
        bytes: 10_000,
    };
    writer.map(&map)?;
    writer.unseen(1, UnseenCall::IoUring, 2)?;
    writer.finish(RecordingOutcome::Exited(0))?;
    Ok(bytes)
}

/// Makes small compressed files.
pub fn compressed_seeds() -> Vec<Vec<u8>> {
    let text = b"1\n2\n3\n".repeat(40);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&text).expect("memory takes every write");
    let gzip = encoder.finish().expect("memory takes every write");
    let zstd = ruzstd::encoding::compress_to_vec(&text[..], ruzstd::encoding::CompressionLevel::Fastest);
    vec![[&[1], &gzip[..]].concat(), [&[0], &zstd[..]].concat()]
}
