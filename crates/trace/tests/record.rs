//! Recording real programs: what they refer to is in the trace, exactly, however they run and end.
//!
//! Each test has a folder of its own, made anew, and leaves nothing behind.

#[path = "record/support.rs"]
mod support;

use std::fs;
use std::process::Command;

use nectary_trace::formats::nectary::Outcome;
use nectary_trace::record::Error;
use support::{Folder, Trace, pattern};

/// Blocks of the default size.
const BLOCK: u64 = 8192;

#[test]
fn cat_reads_each_block_of_its_file_in_order() {
    let folder = Folder::new("cat");
    folder.file("in", 10 * BLOCK + 1);
    // dd reads as it is told to; cat may copy inside the kernel, and is seen there too.
    let trace = folder.record(&["dd", "if=in", "of=out", "bs=8k", "status=none"]);
    assert_eq!(trace.blocks("in", false), (0..=10).collect::<Vec<_>>());
    assert_eq!(trace.blocks("out", true), (0..=10).collect::<Vec<_>>());
    let trace = folder.record(&["cat", "in"]);
    assert_eq!(trace.distinct("in", false), (0..=10).collect::<Vec<_>>());
}

#[test]
fn a_pattern_of_reads_is_recorded_exactly() {
    let folder = Folder::new("pattern");
    folder.file("in", 100 * BLOCK);
    let Some(trace) = folder.python(
        "import os\nf = os.open('in', os.O_RDONLY)\nfor i in range(300):\n    os.pread(f, 8192, (i * 37 % 100) * 8192)\n\
         os.lseek(f, 50 * 8192, os.SEEK_SET)\nfor i in range(60):\n    os.read(f, 8192)\n\
         os.lseek(f, 4096, os.SEEK_SET)\nos.read(f, 8192)\nos.readv(f, [bytearray(4096), bytearray(8192)])\n\
         os.preadv(f, [bytearray(100), bytearray(9000)], 3 * 8192)\nos.pread(f, 1 << 30, 98 * 8192 + 5)\n",
    ) else {
        return;
    };
    let mut expected = pattern(300, 37, 100);
    expected.extend(50..100);
    expected.extend([0, 1, 1, 2, 3, 4, 98, 99]);
    assert_eq!(trace.blocks("in", false), expected);
}

#[test]
fn a_program_that_is_not_there_is_an_error_and_leaves_no_file() {
    let folder = Folder::new("absent");
    let options = folder.options();
    let error = nectary_trace::record::record(Command::new("./not-there"), &options, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Command { .. }), "{error}");
    assert!(!options.output.exists());
}

#[test]
fn the_exit_code_is_the_programs() {
    let folder = Folder::new("codes");
    for (script, outcome) in
        [("exit 0", Outcome::Exited(0)), ("exit 7", Outcome::Exited(7)), ("kill -9 $$", Outcome::Killed(9))]
    {
        let Trace { end, .. } = folder.record(&["sh", "-c", script]);
        assert_eq!(end.map(|end| end.outcome), Some(outcome), "{script}");
    }
    assert!(fs::exists(folder.path("trace.gz")).is_ok());
}
