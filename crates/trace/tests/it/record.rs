//! Tests of recording real programs: the trace has exactly their references, however the programs run and end.
//!
//! Each test has a folder, which it removes.

pub mod support;

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use nectary_trace::formats::nectary::RecordingOutcome;
use nectary_trace::record::{Error, record};
use support::{RecordedTrace, RecordingFolder, pattern};

/// The default size of a block. *Units*: bytes.
const BLOCK: u64 = 8192;

fn blocks(count: u64) -> Vec<u64> {
    (0..count).collect()
}

#[test]
fn file_blocks_recorded_in_order() {
    let folder = RecordingFolder::new("order");
    folder.file("in", 10 * BLOCK + 1);
    let trace = folder.record(&["dd", "if=in", "of=out", "bs=8k", "status=none"]);
    assert_eq!(trace.blocks("in", false), blocks(11));
    // dd requests whole blocks, and writes as many bytes as it has read.
    assert_eq!(trace.blocks("out", true), blocks(11));
    assert_eq!(trace.file("in").size_bytes, 10 * BLOCK + 1);
    // `cat` may read the file, or ask the kernel to copy it.
    for words in [&["cat", "in"][..], &["sh", "-c", "cat in > copy"]] {
        assert_eq!(folder.record(words).distinct("in", false), blocks(11));
    }
    assert_eq!(fs::read(folder.path("in")).unwrap(), fs::read(folder.path("copy")).unwrap());
}

#[test]
fn read_pattern_is_recorded_exactly() {
    let folder = RecordingFolder::new("pattern");
    folder.file("in", 100 * BLOCK);
    let script = "
import os
f = os.open('in', os.O_RDONLY)
for i in range(300):
    os.pread(f, 8192, (i * 37 % 100) * 8192)
os.lseek(f, 50 * 8192, os.SEEK_SET)
for i in range(60):
    os.read(f, 8192)
os.lseek(f, 4096, os.SEEK_SET)
os.read(f, 8192)
os.readv(f, [bytearray(4096), bytearray(8192)])
os.preadv(f, [bytearray(100), bytearray(9000)], 3 * 8192)
os.pread(f, 1 << 30, 98 * 8192 + 5)
g = os.dup(f)
os.lseek(g, 7 * 8192, os.SEEK_SET)
os.read(f, 1)
os.close(f)
os.read(g, 1)
";
    let Some(trace) = folder.python(script) else { return };
    let mut expected = pattern(300, 37, 100);
    expected.extend(50..100);
    expected.extend([0, 1, 1, 2, 3, 4, 98, 99, 7, 7]);
    assert_eq!(trace.blocks("in", false), expected);
}

#[test]
fn all_writes_recorded_exactly() {
    let folder = RecordingFolder::new("writes");
    folder.file("in", 10 * BLOCK);
    let script = "
import os
f = os.open('out', os.O_RDWR | os.O_CREAT)
os.write(f, bytes(3 * 8192))
os.pwrite(f, bytes(1), 9 * 8192)
os.writev(f, [bytes(8192), bytes(1)])
os.pwritev(f, [bytes(4096), bytes(4097)], 20 * 8192)
a = os.open('out', os.O_WRONLY | os.O_APPEND)
os.write(a, bytes(8192))
i = os.open('in', os.O_RDONLY)
os.lseek(f, 30 * 8192, os.SEEK_SET)
os.sendfile(f, i, 2 * 8192, 8192)
try:
    os.copy_file_range(i, f, 8192, 5 * 8192, 40 * 8192)
except OSError:
    pass
r, w = os.pipe()
os.splice(i, w, 8192, offset_src=8192)
os.splice(r, f, 8192, offset_dst=50 * 8192)
";
    let Some(trace) = folder.python(script) else { return };
    assert_eq!(trace.blocks("out", true), [0, 1, 2, 9, 3, 4, 20, 21, 21, 22, 30, 40, 50]);
    assert_eq!(trace.blocks("in", false), [2, 5, 1]);
}

/// A sort reads its input and its own temporary files.
#[test]
fn sort_reads_its_files() {
    let folder = RecordingFolder::new("sort");
    folder.file("in", 100 * BLOCK);
    let trace = folder.record(&["sort", "-S", "64k", "--parallel=1", "-T", ".", "-o", "out", "in"]);
    assert_eq!(trace.distinct("in", false), blocks(100));
    assert_eq!(trace.distinct("out", true), blocks(100));
    let temporary: Vec<_> = trace.files.iter().filter(|file| file.name.starts_with("sort")).collect();
    assert!(temporary.len() > 2, "{temporary:?}");
    for file in temporary {
        // Inodes are reused at once, but each file must count as distinct, and each is read after it was written.
        assert_eq!(trace.distinct(&file.name, false), trace.distinct(&file.name, true), "{}", file.name);
    }
}

#[test]
fn replacing_file_is_new_file() {
    let folder = RecordingFolder::new("again");
    let script = "echo a > a; cat a; rm a; echo b > a; cat a; rm a; echo c > a; cat a";
    let trace = folder.record(&["sh", "-c", script]);
    let files = trace.files.iter().filter(|file| file.name == "a").count();
    let born = fs::metadata(folder.path("a")).unwrap().created().is_ok();
    if born { assert_eq!(files, 3) } else { println!("NOT RUN: the file system does not tell when files were made") }
}

#[test]
fn children_are_own_processes() {
    let folder = RecordingFolder::new("forks");
    folder.file("a", 20 * BLOCK);
    folder.file("b", 30 * BLOCK);
    let script =
        "dd if=a of=c bs=8k status=none & dd if=b of=d bs=8k status=none & wait; exec dd if=b of=e bs=8k status=none";
    let trace = folder.record(&["sh", "-c", script]);
    assert_eq!(trace.blocks("a", false), blocks(20));
    let process_of = |name: &str| trace.processes_of(name);
    let (c, d, e) = (process_of("c"), process_of("d"), process_of("e"));
    assert!(c.len() == 1 && d.len() == 1 && e.len() == 1 && c != d, "{:?}", trace.processes);
    for number in [c[0], d[0], e[0]] {
        let process = &trace.processes[number as usize];
        assert_eq!((process.name.as_str(), process.parent), ("dd", Some(0)));
    }
    assert_eq!(trace.processes[0].name, "sh");
    // An exec keeps the process id.
    assert_eq!(trace.processes[e[0] as usize].pid, trace.processes[0].pid);
    for (name, count) in [("c", 20), ("d", 30), ("e", 30)] {
        assert_eq!(trace.blocks(name, true), blocks(count), "{name}");
    }
}

/// Children that outlive the command are recorded to their end.
#[test]
fn outliving_children_are_recorded() {
    let folder = RecordingFolder::new("daemon");
    folder.file("a", 20 * BLOCK);
    // The daemon is started by a double fork, so its parents have ended before it reads.
    let script =
        "mkfifo f; (setsid sh -c 'read x < f; dd if=a of=/dev/null bs=8k status=none' &) ; (echo > f &) ; exit 5";
    let trace = folder.record(&["sh", "-c", script]);
    assert_eq!(trace.end.map(|end| end.outcome), Some(RecordingOutcome::Exited(5)));
    assert_eq!(trace.blocks("a", false), blocks(20));
}

#[test]
fn maps_are_named_with_their_sizes() {
    let folder = RecordingFolder::new("maps");
    folder.file("in", 10 * BLOCK + 1);
    let script = "
import mmap, os
f = os.open('in', os.O_RDWR)
m = mmap.mmap(f, 0, prot=mmap.PROT_READ)
m[5 * 8192]
n = mmap.mmap(f, 8192, offset=8192)
n[0] = 1
";
    fs::write(folder.path("script.py"), script).unwrap();
    let Some(python) = support::python() else { return };
    let options = folder.options();
    let summary = record(folder.command(&[python, "-S", "-E", "script.py"]), &options, &mut |_| {}).unwrap();
    assert_eq!(RecordedTrace::read(&options.output).mapped_bytes("in"), 11 * BLOCK + 1);
    let map = summary.maps.iter().find(|map| map.name == "in").unwrap();
    let page = summary.page_bytes;
    assert_eq!((map.maps, map.pages), (2, (10 * BLOCK + 1).div_ceil(page) + BLOCK.div_ceil(page)));
    assert!(summary.maps.iter().any(|map| map.is_executable), "the interpreter itself");
}

#[test]
fn options_leave_out_what_they_say() {
    let folder = RecordingFolder::new("options");
    folder.file("in", 10 * BLOCK);
    let words = ["dd", "if=in", "of=out", "bs=4k", "status=none"];
    let twice: Vec<u64> = (0..20).map(|block| block / 2).collect();
    let mut options = folder.options();
    let trace = folder.record_with(folder.command(&words), &options);
    assert_eq!((trace.blocks("in", false), trace.blocks("out", true)), (twice.clone(), twice));
    options.is_collapsed = true;
    let trace = folder.record_with(folder.command(&words), &options);
    assert_eq!((trace.blocks("in", false), trace.blocks("out", true)), (blocks(10), blocks(10)));
    options.is_reads_only = true;
    options.block_bytes = 4096;
    let trace = folder.record_with(folder.command(&words), &options);
    assert_eq!((trace.blocks("in", false), trace.blocks("out", true)), (blocks(20), vec![]));
    for block_bytes in [0, 1, 256, 8191, 1 << 25] {
        options.block_bytes = block_bytes;
        let error = record(folder.command(&words), &options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
    }
}

#[test]
fn database_scan_reads_every_page() {
    let folder = RecordingFolder::new("sqlite");
    let sql = "create table t (a integer primary key, b text);
               with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
               insert into t select i, hex(randomblob(100)) from n;";
    match folder.command(&["sqlite3", "data", sql]).status() {
        Ok(status) if status.success() => {}
        _ => return println!("NOT RUN: sqlite3 is not installed"),
    }
    let size = fs::metadata(folder.path("data")).unwrap().len();
    let trace = folder.record(&["sqlite3", "data", "select sum(length(b)) from t"]);
    assert_eq!(trace.distinct("data", false), blocks(size.div_ceil(BLOCK)));
    assert!(trace.blocks("data", true).is_empty());
}

#[test]
fn missing_program_fails_without_file() {
    let folder = RecordingFolder::new("absent");
    let options = folder.options();
    let error = record(Command::new("./not-there"), &options, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Command { .. }) && error.remedy().is_some(), "{error}");
    assert!(!options.output.exists());
}

#[test]
fn existing_output_file_is_kept() {
    let folder = RecordingFolder::new("exists");
    let mut options = folder.options();
    options.is_overwriting = false;
    fs::write(&options.output, "mine").unwrap();
    let error = record(folder.command(&["touch", "ran"]), &options, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }) && error.remedy().is_some(), "{error}");
    assert_eq!(fs::read_to_string(&options.output).unwrap(), "mine");
    assert!(!folder.path("ran").exists());
}

#[test]
fn the_outcome_is_the_commands() {
    let folder = RecordingFolder::new("codes");
    for (script, outcome, code) in [
        ("exit 0", RecordingOutcome::Exited(0), 0),
        ("exit 7", RecordingOutcome::Exited(7), 7),
        ("kill -9 $$", RecordingOutcome::Killed(9), 137),
        ("kill -SEGV $$", RecordingOutcome::Killed(11), 139),
    ] {
        let options = folder.options();
        let summary = record(folder.command(&["sh", "-c", script]), &options, &mut |_| {}).unwrap();
        assert_eq!((summary.outcome, summary.exit_code()), (outcome, code), "{script}");
        assert_eq!(RecordedTrace::read(&options.output).end.map(|end| end.outcome), Some(outcome), "{script}");
    }
}

#[test]
fn killed_program_ends_recording() {
    let folder = RecordingFolder::new("killed");
    folder.file("in", 10 * BLOCK);
    for round in 1..=15 {
        let limit = format!("0.0{round:02}");
        let script = "while :; do dd if=in of=out bs=8k status=none; done & while :; do cat in; done";
        // The programs run in a separate session, so that all of them are killed.
        let trace = folder.record(&["timeout", "-s", "KILL", &limit, "sh", "-c", script]);
        assert!(!trace.is_truncated);
        assert!(trace.end.is_some_and(|end| end.outcome != RecordingOutcome::Stopped), "{:?}", trace.end);
        assert!(trace.blocks("in", false).iter().all(|&block| block < 10));
    }
}

#[test]
fn broken_trace_spares_program() {
    let folder = RecordingFolder::new("full");
    folder.file("in", 2000 * BLOCK);
    let path = folder.path("trace");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let opened = path.clone();
    // The reader reads the head of the trace and then closes the pipe.
    let reader = std::thread::spawn(move || fs::File::open(opened)?.read_exact(&mut [0; 64]));
    let mut options = folder.options();
    options.output = path;
    let mut command = folder.command(&["dd", "if=in", "of=out", "bs=8k", "status=none"]);
    command.stderr(Stdio::inherit());
    let error = record(command, &options, &mut |_| {}).unwrap_err();
    reader.join().unwrap().unwrap();
    assert!(matches!(error, Error::Write { .. }), "{error}");
    assert_eq!(fs::read(folder.path("in")).unwrap(), fs::read(folder.path("out")).unwrap());
    assert!(matches!(
        record(Command::new("true"), &nectary_trace::record::RecordingOptions::new("/dev/full"), &mut |_| {})
            .unwrap_err(),
        Error::Exists { .. }
    ));
}

#[test]
fn deleted_open_file_keeps_name() {
    let folder = RecordingFolder::new("deleted");
    let trace = folder.record(&["sh", "-c", "exec 3<> gone; rm gone; echo text >&3"]);
    assert_eq!(trace.blocks("gone", true), [0]);
}
