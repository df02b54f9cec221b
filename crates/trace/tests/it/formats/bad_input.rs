//! Tests that bad input is refused with a message that names the file and the place, what was expected and what was
//! found.

use std::path::Path;

use nectary_trace::formats::csv::CsvColumns;
use nectary_trace::formats::{ReadOptions, ReferenceReader, TraceFormat};
use nectary_trace::simulate::{LoadOptions, REFERENCES_MAX, TraceWorkload};
use nectary_trace::{Error, Result, TraceReference};

use super::encode::{files, gzip, options, read, requests, xz, zstd};

#[track_caller]
fn refused(name: &str, bytes: &[u8], parts: &[&str]) {
    let text = match read(name, bytes, &options(name)).1 {
        Ok(()) => panic!("{name}: was read"),
        Err(error) => error.to_string(),
    };
    for part in [name].iter().chain(parts) {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

/// Garbage, negative and gigantic numbers are refused with their line.
#[test]
fn invalid_numbers_name_their_line() {
    refused("a.trace", b"1\n2\n*\n\nx7\n", &["line 5:", "expected a block number", "found \"x7\""]);
    refused("a.trace", b"1\n-5\n", &["line 2:", "found \"-5\""]);
    refused("a.trace", b"1\n1.5\n", &["line 2:", "found \"1.5\""]);
    refused("a.trace", b"1\n1 2\n", &["line 2:", "found \"1 2\""]);
    refused("a.trace", b"18446744073709551616\n", &["line 1:", "2^64-1"]);
    refused("a.lis", b"1 2 0 1\n5 6\n", &["line 2:", "four numbers", "\"5 6\""]);
    refused("a.lis", b"1 0 0 1\n", &["line 1:", "0 blocks from 1"]);
    refused("a.lis", b"1 9999999999 0 1\n", &["line 1:", "9999999999 blocks"]);
    refused("a.lis", b"18446744073709551615 2 0 1\n", &["line 1:", "below 2^64"]);
    refused("a.lis", b"1 2 0 -1\n", &["line 1:", "four numbers"]);
}

/// Bad values of CSV are refused with their line and column.
#[test]
fn bad_csv_values_name_column() {
    refused("a.csv", b"1,h,0,Read,0,8,0\n1,h,0,Read,-5,8,0\n", &["line 2:", "offset", "column 5", "\"-5\""]);
    refused("a.csv", b"1,h,0,Read,0,8,0\n1,h,0,Read,5,huge,0\n", &["line 2:", "size", "column 6", "\"huge\""]);
    refused(
        "a.csv",
        b"1,h,0,Erase,0,8,0\n",
        &["line 1:", "read, write or delete (or its meaning in --columns: read=VALUE) in column 4", "\"Erase\""],
    );
    refused("a.csv", b"1,h,0,Read,0,8,0\n1,h\n", &["line 2:", "column 5", "\"1,h\""]);
    refused("a.csv", b"1,h,0,Read,0,18446744073709551615,0\n", &["line 1:", "at most 1048576 blocks"]);
    refused("a.csv", b"1,h,0,Read,18446744073709551615,9,0\n", &["line 1:", "within the volume"]);
    let long = [b"1,h,0,Read,0,8,0\n1,".as_slice(), &[b'x'; 300], b",0,Read,0,8,0\n"].concat();
    refused("a.csv", &long, &["line 2:", "names of at most 256 bytes"]);
    for wrong in
        ["", "size=1", "offset=0", "offset=1,op=1+2", "offset=1,colour=2", "offset=1,size=x", "offset=1,sep=ab"]
    {
        assert!(CsvColumns::parse(wrong).is_err(), "{wrong}");
    }
}

/// A truncated file is refused with the offset.
#[test]
fn truncated_file_names_offset() {
    for (name, plain) in files(&requests(4, 40)) {
        if name.contains("vscsi") || name.contains("oracle") {
            let cut = &plain[..plain.len() - 5];
            refused(name, cut, &["offset", "expected a record of", "found the end of the file after"]);
        }
        for whole in [gzip(&plain), xz(&plain), zstd(&plain)] {
            refused(name, &whole[..whole.len() - 1], &["expected whole compressed data"]);
            refused(name, &whole[..whole.len() / 2], &["expected whole compressed data"]);
        }
    }
    refused("a.vscsi", &[0; 64], &["offset 0:", "VSCSI version 1 or 2"]);
    refused("a.vscsi", &[], &["offset 0:", "VSCSI version 1 or 2", "found \"\""]);
    let mut records = files(&requests(4, 40)).swap_remove(4).1;
    records[32 * 7 + 15] = 9;
    refused("a.vscsi1", &records, &["offset 224:", "a record of version 1", "version 9"]);
    let mut records = files(&requests(4, 40)).swap_remove(6).1;
    records[24 * 3 + 16..24 * 4].copy_from_slice(&(-7_i64).to_le_bytes());
    refused("a.oracleGeneral.bin", &records, &["offset 72:", "a next reference of -1 or more", "-7"]);
}

#[test]
fn compressed_bit_flips_fail_checksum() {
    let plain = files(&requests(5, 400)).swap_remove(0).1;
    for sound in [gzip(&plain), xz(&plain), zstd(&plain)] {
        let expected = read("a.trace", &sound, &options("a.trace")).0;
        let mut wrong = 0;
        for at in 12..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 4;
            let (found, result) = read("a.trace", &bytes, &options("a.trace"));
            wrong += u32::from(result.is_ok() && found != expected);
        }
        assert_eq!(wrong, 0);
    }
}

/// An endless line and an unknown file are refused.
#[test]
fn endless_or_unknown_is_refused() {
    refused("a.trace", &vec![b'7'; 1 << 20], &["line 1:", "a line of at most 65536 bytes"]);
    refused("a.trace", &gzip(&vec![0; 50 << 20]), &["line 1:", "a line of at most 65536 bytes"]);
    refused("a.doc", b"Dear Sir or Madam,\n", &["expected a trace of a known format", "--format", "\"Dear Sir"]);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(TraceWorkload::load(directory, &ReadOptions::default(), &LoadOptions::default()).is_err());
    let absent = TraceWorkload::load(&directory.join("absent"), &ReadOptions::default(), &LoadOptions::default());
    assert!(matches!(absent, Err(Error::Absent { .. })));
}

#[test]
fn zstd_gigantic_window_is_refused() {
    // The first file needs a window of 2^41 bytes, the second is a single segment of 2^63 bytes.
    refused("a.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 1, 0, 0], &["window of 2199023255552 bytes"]);
    let single = [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0][..], &(1_u64 << 63).to_le_bytes(), &[1, 0, 0]].concat();
    refused("a.zst", &single, &["window of 9223372036854775808 bytes"]);
}

/// `xz` writes the size of the dictionary into the header of each block; this one has 256 MiB.
#[test]
fn xz_excessive_memory_is_refused() {
    let mut bytes = xz(b"1\n2\n3\n");
    // The header of the first block follows the 12 bytes of the stream header: size, flags, filter, length, dictionary.
    assert_eq!(bytes[14..16], [0x21, 1]);
    bytes[16] = 34;
    let sum = crc32(&bytes[12..20]).to_le_bytes();
    bytes[20..24].copy_from_slice(&sum);
    refused("a.xz", &bytes, &["damage", "memory"]);
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// A trace without end.
struct EndlessTrace;

impl ReferenceReader for EndlessTrace {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        let reference = |block| TraceReference { block, ..TraceReference::default() };
        to.extend((0..1 << 20).map(reference));
        Ok(true)
    }
}

/// A trace without references or with too many is refused, and a limit cuts it.
#[test]
fn empty_or_long_trace_refused() {
    for text in [&b""[..], b"\n\n", b"*\n* 5\n"] {
        let mut reader = reader_of(text);
        let result = TraceWorkload::from_reader(Path::new("a.trace"), &mut *reader, &LoadOptions::default());
        let text = result.map(|_| ()).expect_err("nothing in it").to_string();
        assert_eq!(text, "a.trace: expected at least one reference, found none");
    }
    let limit = Some(1_000_000);
    let workload = TraceWorkload::from_reader(
        Path::new("endless"),
        &mut EndlessTrace,
        &LoadOptions { limit, ..LoadOptions::default() },
    )
    .expect("cut");
    assert_eq!(workload.references(), 1_000_000);
    const { assert!(REFERENCES_MAX * 8 <= 1 << 30, "a GiB of references") };
}

fn reader_of(text: &'static [u8]) -> Box<dyn ReferenceReader> {
    let input = nectary_trace::formats::input::DecompressedInput::from_reader(Path::new("a.trace"), Box::new(text))
        .expect("text");
    let options = ReadOptions { format: Some(TraceFormat::Text), ..ReadOptions::default() };
    nectary_trace::formats::from_input(input, &options).expect("text")
}
