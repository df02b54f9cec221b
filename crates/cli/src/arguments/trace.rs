//! `nectary trace`: its commands and options, and the options for reading traces, which `nectary cache` has too.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nectary_block::parse_size;
use nectary_trace::formats::csv::CsvColumns;
use nectary_trace::formats::{FORMATS, ReadOptions, TraceFormat};

use super::TEMPLATE;
use super::trace_record::{self, RecordArguments};
use crate::exit;

/// The commands on traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Run a program and record the blocks that it and its children refer to
    #[command(help_template = TEMPLATE, before_help = trace_record::EXAMPLES, after_help = trace_record::AFTER)]
    Record(RecordArguments),
    /// Count what is in traces: references, blocks, streams, reads and writes, reuse
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary trace stat cs.trace.gz
  nectary trace stat *.lis --json | jq '.traces[] | {trace, distinct}'
  nectary trace stat io.csv --columns 'offset=1,size=2,op=3,stream=4'", after_help = exit::HELP)]
    Stat(StatArguments),
    /// Convert a trace into another format
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary trace convert w01.vscsi w01.txt
  nectary trace convert prxy_0.csv.gz prxy_0.nectrace --block 4K
  nectary trace convert cs.trace.gz cs.oracleGeneral.bin", after_help = exit::HELP)]
    Convert(ConvertArguments),
}

/// How traces are read.
#[derive(Debug, Args)]
pub struct ReadArguments {
    /// Format of the traces [default: guessed by name and content]
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub format: Option<TraceFormat>,
    /// Columns of CSV in their order (time,key,size,op; - for an unused one), by number (offset=5,size=6,volume=2+3) or
    /// by the names of the header (key=object_id,size=bytes): offset, sector, block or key, and size, sectors, op, time,
    /// time_ms, time_us, time_ns, time_100ns, ttl, count, stream, volume, sep; read=0,write=1,delete=2 say what values of
    /// op mean [default: those that the header names, else those of MSR Cambridge, volume=2+3,op=4,offset=5,size=6]
    #[arg(long, value_name = "COLUMNS", value_parser = CsvColumns::parse)]
    pub columns: Option<CsvColumns>,
    /// Size of a block, for sizes of caches in bytes and for traces whose requests have offsets in bytes [default: that
    /// of a Nectary trace, else 8K]
    #[arg(long, value_name = "SIZE", value_parser = parse_block)]
    pub block: Option<u64>,
}

impl ReadArguments {
    /// The options of the reader.
    pub fn options(&self) -> ReadOptions {
        ReadOptions { format: self.format, block_bytes: self.block, columns: self.columns.clone() }
    }
}

/// `trace stat`.
#[derive(Debug, Args)]
pub struct StatArguments {
    /// The traces, plain, gzip, xz or zstd; - is the standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub read: ReadArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `trace convert`.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// The trace, plain, gzip, xz or zstd; - is the standard input
    #[arg(value_name = "IN")]
    pub from: PathBuf,
    /// The file to be written; it replaces an existing one
    #[arg(value_name = "OUT")]
    pub to: PathBuf,
    #[command(flatten)]
    pub read: ReadArguments,
    /// Format of OUT: nectary, text or oracleGeneral [default: by its name]
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub into: Option<TraceFormat>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads the name of a format.
fn parse_format(text: &str) -> Result<TraceFormat, String> {
    TraceFormat::by_name(text).ok_or_else(|| {
        let names: Vec<&str> = FORMATS.iter().flat_map(|entry| entry.names).copied().collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Reads the size of a block.
fn parse_block(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a block has at least 1 byte".to_owned()),
        bytes if bytes > 1 << 30 => Err("a block has at most 1G".to_owned()),
        bytes => Ok(bytes),
    }
}
