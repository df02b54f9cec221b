//! `nectary trace record`: its options.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use nectary_block::parse_size;
use nectary_trace::record::BLOCK_BYTES;

/// The first text of the help.
pub const EXAMPLES: &str = "Examples:
  What a program and its children refer to, into cscope.nectrace.gz:
    nectary trace record -- cscope -d -L -1 main
  Reads alone, and what a cache of 6 MiB would make of them:
    nectary trace record --only-reads -o join.nectrace.gz -- \\
      sqlite3 data.db < join.sql
    nectary cache simulate join.nectrace.gz --size 6MiB
  A whole build; its summary as JSON is the last line on standard error:
    nectary trace record -o build.nectrace.gz --json -- make 2> summary
    tail -n 1 summary | jq .maps";

/// The last text of the help: the exit codes, which are those of the recorded command.
pub const AFTER: &str = "\
Exit codes:
  COMMAND's own; 128 and the signal where one killed it. 126 where COMMAND cannot be run, 127 where there is none.
  Otherwise: 1 failed, also where the trace broke off; 2 the command line is wrong.";

/// `trace record`.
#[derive(Debug, Args)]
pub struct RecordArguments {
    /// File to write, gzip if it ends in .gz [default: the name of COMMAND with .nectrace.gz, in this directory]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long)]
    pub force: bool,
    /// Size of a block, a power of two from 512 to 16M
    #[arg(long, alias = "block-size", value_name = "SIZE", value_parser = parse_block, default_value_t = BLOCK_BYTES)]
    pub block: u32,
    /// Leave out writes, which then cost nothing
    #[arg(long)]
    pub only_reads: bool,
    /// Leave out references to the block that its program referred to just before in that file; otherwise each call is
    /// a reference to each block that it touches
    #[arg(long)]
    pub collapse: bool,
    /// Print the summary as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Reads a block size.
fn parse_block(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (512..=1 << 24).contains(&bytes) => Ok(bytes),
        _ => Err("expected a power of two from 512 to 16M".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_size_is_power_of_two() {
        assert_eq!(parse_block("8K"), Ok(8192));
        assert_eq!(parse_block("16M"), Ok(1 << 24));
        for wrong in ["0", "256", "5K", "32M", "many"] {
            assert!(parse_block(wrong).is_err(), "{wrong}");
        }
    }
}
