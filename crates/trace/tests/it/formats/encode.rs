//! Writes files of every format in the simplest way, and reads them.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};
use nectary_trace::formats::input::DecompressedInput;
use nectary_trace::formats::{ReadOptions, TraceFormat, from_input};
use nectary_trace::{Error, TraceReference};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// A request of a trace.
#[derive(Debug, Clone, Copy)]
pub struct EncodedRequest {
    pub stream: u32,
    pub offset: u64,
    pub bytes: u32,
    pub is_write: bool,
}

/// Generates requests on block boundaries from a seed.
pub fn requests(seed: u64, count: u64) -> Vec<EncodedRequest> {
    let mix = |number: u64| (number ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let request = |number| {
        let any = mix(number);
        let bytes = (any >> 40 & 3) as u32 * 8192 + 8192;
        EncodedRequest { stream: (any & 3) as u32, offset: (any >> 8 & 0xffff) * 8192, bytes, is_write: any & 16 != 0 }
    };
    (1..=count).map(request).collect()
}

/// The requests as a file of each format, with the name of each file.
pub fn files(requests: &[EncodedRequest]) -> Vec<(&'static str, Vec<u8>)> {
    let (mut text, mut arc, mut csv, mut columns) = (vec![], vec![], vec![], vec![]);
    let (mut first, mut second, mut oracle) = (vec![], vec![], vec![]);
    for (number, request) in requests.iter().enumerate() {
        let EncodedRequest { stream, offset, bytes, is_write } = *request;
        let block = offset / 8192;
        let operation: u16 = if is_write { 0x2a } else { 0x28 };
        let word = if is_write { "Write" } else { "Read" };
        writeln!(text, "{block}").expect("memory");
        writeln!(arc, "{block} {} 0 {number}", bytes / 8192).expect("memory");
        writeln!(csv, "{},host,{stream},{word},{offset},{bytes},77", 128_166_372_003_061_629 + number).expect("memory");
        writeln!(columns, "{word};{block};{stream}").expect("memory");
        let (serial, length, entries, command, version) = (number as u32, bytes, 1_u32, operation, 1_u16 << 8);
        first.extend([serial.to_le_bytes(), length.to_le_bytes(), entries.to_le_bytes()].concat());
        first.extend([command.to_le_bytes(), version.to_le_bytes()].concat());
        first.extend([(offset / 512).to_le_bytes(), (number as u64).to_le_bytes()].concat());
        second.extend([command.to_le_bytes(), (version * 2).to_le_bytes()].concat());
        second.extend([serial.to_le_bytes(), length.to_le_bytes(), entries.to_le_bytes()].concat());
        second.extend([offset / 512, number as u64, 9].map(u64::to_le_bytes).concat());
        oracle.extend((number as u32).to_le_bytes());
        oracle.extend(block.to_le_bytes());
        oracle.extend(bytes.to_le_bytes());
        oracle.extend((-1_i64).to_le_bytes());
    }
    vec![
        ("a.trace", text),
        ("a.lis", arc),
        ("msr.csv", csv),
        ("columns.csv", columns),
        ("a.vscsi1", first),
        ("a.vscsi2", second),
        ("a.oracleGeneral.bin", oracle),
    ]
}

/// The options for reading a file of [`files`].
pub fn options(name: &str) -> ReadOptions {
    let mut options = ReadOptions::default();
    if name.starts_with("columns") {
        options.columns =
            Some(nectary_trace::formats::csv::CsvColumns::parse("op=1,block=2,stream=3,sep=;").expect("columns"));
        options.format = Some(TraceFormat::Csv);
    }
    options
}

/// Reads a file to its end or to its first error.
pub fn read(name: &str, bytes: &[u8], options: &ReadOptions) -> (Vec<TraceReference>, Result<(), Error>) {
    let mut references = Vec::new();
    let input = DecompressedInput::from_reader(Path::new(name), Box::new(std::io::Cursor::new(bytes.to_vec())));
    let mut reader = match input.and_then(|input| from_input(input, options)) {
        Ok(reader) => reader,
        Err(error) => return (references, Err(error)),
    };
    // A damaged count may be large, so a few lines can give many references. Therefore the loop counts records, and
    // drops excess references.
    for _ in 0..1 << 20 {
        references.truncate(1 << 20);
        match reader.read(&mut references) {
            Ok(true) => {}
            Ok(false) => return (references, Ok(())),
            Err(error) => return (references, Err(error)),
        }
    }
    panic!("{name}: no end of records");
}

/// Compresses bytes with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// Compresses bytes with xz.
pub fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = XzWriter::new(Vec::new(), XzOptions::with_preset(1)).expect("options");
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// Compresses bytes with zstd.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}
