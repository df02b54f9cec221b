//! `nectary trace record` as users run it: exit codes, signals, and a program that outlives its recorder.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nectary_trace::formats::TraceOperation;
use nectary_trace::formats::nectary::{BLOCKS_MAX, NectaryReader, RecordingOutcome};

use crate::common::CommandScratch;

/// A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(20);
const BLOCK: u64 = 8192;
const BLOCKS: u64 = 200;

/// Makes a scratch directory with a file `in` and three named pipes.
fn scratch(name: &str) -> CommandScratch {
    let scratch = CommandScratch::new(name);
    fs::write(scratch.file("in"), vec![b'a'; (BLOCKS * BLOCK) as usize]).unwrap();
    for pipe in ["one", "two", "three"] {
        assert!(Command::new("mkfifo").arg(scratch.file(pipe)).status().unwrap().success());
    }
    scratch
}

/// Begins to record a shell script into `out.nectrace`.
fn begin(scratch: &CommandScratch, script: &str) -> Child {
    let mut command = scratch.command("trace record -o out.nectrace --force -- sh -c");
    command.arg(script).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Returns the line that a process writes to a pipe; empty if none does.
fn line(scratch: &CommandScratch, pipe: &str) -> String {
    let mut command = Command::new("timeout");
    command.arg(LIMIT.as_secs().to_string()).args(["sh", "-c", "read line < \"$0\"; echo \"$line\""]);
    let output = command.arg(scratch.file(pipe)).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn tell(scratch: &CommandScratch, pipe: &str) {
    fs::write(scratch.file(pipe), "go\n").unwrap();
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// Returns the blocks of `in` that were read, and how the trace ended.
fn read(path: &Path) -> (Vec<u64>, Option<RecordingOutcome>) {
    let bytes = fs::read(path).unwrap();
    let mut reader = NectaryReader::new(path, bytes.as_slice()).unwrap();
    let mut blocks = Vec::new();
    while let Some(reference) = reader.next_reference().unwrap() {
        if reader.files()[(reference.block / BLOCKS_MAX) as usize].name == "in"
            && reference.operation == TraceOperation::Read
        {
            blocks.push(reference.block % BLOCKS_MAX);
        }
    }
    assert_eq!(reader.is_truncated(), reader.end().is_none());
    (blocks, reader.end().map(|end| end.outcome))
}

fn all_blocks() -> Vec<u64> {
    (0..BLOCKS).collect()
}

#[test]
fn recorder_keeps_code_and_output() {
    let scratch = scratch("record-codes");
    let ran = scratch.run("trace record -- cat in");
    assert_eq!((ran.code, ran.output.len() as u64), (Some(0), BLOCKS * BLOCK));
    assert!(ran.errors.contains("cat.nectrace.gz: exit code 0"), "{}", ran.errors);
    assert!(ran.errors.contains("distinct blocks") && ran.errors.contains("unseen maps"), "{}", ran.errors);
    assert!(scratch.file("cat.nectrace.gz").exists());
    // An existing trace is not overwritten without `--force`.
    let ran = scratch.run("trace record -- cat in");
    assert!(ran.code == Some(2) && ran.errors.contains("--force"), "{}", ran.errors);
    for (words, code) in [
        ("trace record --force --json -- false", 1),
        ("trace record --force -- ./not-there", 127),
        ("trace record --force -- ./in", 126),
        ("trace record --force", 2),
        ("trace record --block 5K -- true", 2),
    ] {
        assert_eq!(scratch.run(words).code, Some(code), "{words}");
    }
    let mut killed = begin(&scratch, "kill -9 $$");
    assert_eq!(killed.wait().unwrap().code(), Some(137));
    let ran = scratch.run("trace record --json --only-reads -o a.nectrace -- dd if=in of=/dev/null bs=8k status=none");
    let figures: serde_json::Value = serde_json::from_str(ran.errors.lines().last().unwrap()).unwrap();
    assert_eq!((figures["exit_code"].as_u64(), figures["processes"].as_u64()), (Some(0), Some(1)));
    assert!(figures["references"].as_u64() >= Some(BLOCKS) && figures["maps"][0]["pages"].is_u64(), "{figures}");
    assert_eq!(read(&scratch.file("a.nectrace")), (all_blocks(), Some(RecordingOutcome::Exited(0))));
}

#[test]
fn killed_recorder_spares_program_and_trace() {
    let scratch = scratch("record-killed");
    let script = "dd if=in of=/dev/null bs=8k status=none; echo > one; read x < two; cat in > copy; echo done > three";
    let mut recorder = begin(&scratch, script);
    line(&scratch, "one");
    // Accesses are written to the trace within about a second.
    let (trace, begun) = (scratch.file("out.nectrace"), Instant::now());
    while fs::metadata(&trace).unwrap().len() <= 64 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    tell(&scratch, "two");
    assert_eq!(line(&scratch, "three"), "done");
    assert_eq!(fs::read(scratch.file("copy")).unwrap(), fs::read(scratch.file("in")).unwrap());
    assert_eq!(read(&trace), (all_blocks(), None));
}

/// The recorder is killed while it looks at a call of the program.
#[test]
fn inspected_call_survives_recorder_kill() {
    let scratch = scratch("record-midway");
    for round in 0..8_u64 {
        let script = "echo > one; dd if=/dev/zero of=/dev/null bs=512 count=20000 status=none; echo $? > three";
        let mut recorder = begin(&scratch, script);
        line(&scratch, "one");
        // This sleep waits for nothing; it makes each round kill at another moment.
        std::thread::sleep(Duration::from_micros(round * 3_700));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        assert_eq!(line(&scratch, "three"), "0", "round {round}");
    }
}

#[test]
fn recorder_forwards_signals_to_program() {
    let scratch = scratch("record-signals");
    for name in ["TERM", "INT", "HUP", "USR1"] {
        let script = format!("trap 'kill -KILL $!; exit 9' {name}; sleep 60 & echo > one; wait; exit 1");
        // A shell cannot trap a signal that was ignored when it started, and background jobs of another shell start
        // with SIGINT ignored.
        let mut command = scratch.command("trace record -o out.nectrace --force -- env --default-signal sh -c");
        let mut recorder = command.arg(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        line(&scratch, "one");
        signal(&recorder, name);
        assert_eq!(recorder.wait().unwrap().code(), Some(9), "{name}");
    }
}

#[test]
fn stopped_recording_leaves_running_children() {
    let scratch = scratch("record-stopped");
    let script = "(read x < two; cat in > copy; echo done > three) & exit 3";
    let mut recorder = begin(&scratch, script);
    let mut errors = BufReader::new(recorder.stderr.take().unwrap());
    let mut told = String::new();
    errors.read_line(&mut told).unwrap();
    assert!(told.contains("its children go on"), "{told}");
    signal(&recorder, "TERM");
    assert_eq!(recorder.wait().unwrap().code(), Some(3));
    tell(&scratch, "two");
    assert_eq!(line(&scratch, "three"), "done");
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("exit code 3") && rest.contains("stopped before its children ended"), "{rest}");
    assert_eq!(fs::read(scratch.file("copy")).unwrap(), fs::read(scratch.file("in")).unwrap());
    assert_eq!(read(&scratch.file("out.nectrace")).1, Some(RecordingOutcome::Stopped));
}

#[test]
fn nested_recording_is_refused() {
    let scratch = scratch("record-nested");
    let mut command = scratch.command("trace record -o outer.nectrace --");
    command.arg(env!("CARGO_BIN_EXE_nectary")).args(["trace", "record", "-o", "inner.nectrace", "--", "true"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("another program watches"), "{errors}");
    assert!(!scratch.file("inner.nectrace").exists() && scratch.file("outer.nectrace").exists());
}

/// Only without root does the program give up the right to gain privileges.
#[test]
fn recording_works_without_root() {
    let program = env!("CARGO_BIN_EXE_nectary");
    let folder = std::env::temp_dir().join(format!("nectary-record-nobody-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let copy = folder.join("nectary");
    fs::copy(program, &copy).unwrap();
    fs::write(folder.join("in"), vec![b'a'; (BLOCKS * BLOCK) as usize]).unwrap();
    let script = "grep NoNewPrivs /proc/self/status; dd if=in of=/dev/null bs=8k status=none";
    let recorded = |before: &[&str]| {
        let mut words = before.to_vec();
        words.extend([copy.to_str().unwrap(), "trace", "record", "--force", "-o", "out.nectrace", "--", "sh", "-c"]);
        let output = Command::new(words[0]).args(&words[1..]).arg(script).current_dir(&folder).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(read(&folder.join("out.nectrace")), (all_blocks(), Some(RecordingOutcome::Exited(0))));
        fs::remove_file(folder.join("out.nectrace")).unwrap();
        String::from_utf8_lossy(&output.stdout).split_whitespace().last().map(str::to_owned)
    };
    let id = Command::new("id").arg("-u").output().unwrap().stdout;
    if id.trim_ascii() == b"0" {
        assert_eq!(recorded(&["env"]).as_deref(), Some("0"));
        assert_eq!(
            recorded(&["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]).as_deref(),
            Some("1")
        );
    } else {
        assert_eq!(recorded(&["env"]).as_deref(), Some("1"));
    }
    fs::remove_dir_all(&folder).unwrap();
}
