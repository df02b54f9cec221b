//! Tests of files that others change while programs have them open in a cached directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nectary_e2e::live::{LIMIT, LiveCache, missing};
use nectary_e2e::report::not_run;

fn mounted(fill: impl FnOnce(&Path)) -> Option<LiveCache> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("cache mount: {reason}"));
            None
        }
        None => Some(LiveCache::mounted_in_memory(&["--memory", "16M"], fill).expect("it is mounted")),
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(text.as_bytes())).expect("appended");
}

/// A program that is ended with the test.
struct TestProgram(Child);

impl Drop for TestProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tail_prints_what_others_append() {
    let Some(live) = mounted(|source| fs::write(source.join("log"), "first\n").unwrap()) else { return };
    let (output, source) = (live.scratch.join("output"), live.scratch.join("source/log"));
    let mut command = Command::new("tail");
    command.args(["-n", "+1", "-s", "0.1", "-f"]).arg(live.shown("log")).stdin(Stdio::null());
    let to = File::create(&output).expect("a file for the output");
    let _tail = TestProgram(command.stdout(to.try_clone().unwrap()).stderr(to).spawn().expect("tail starts"));
    let printed = |text: &str| fs::read_to_string(&output).is_ok_and(|output| output.ends_with(text));
    until("the first line", || printed("first\n"));
    append(&source, "second\n");
    until("what others append", || printed("first\nsecond\n"));
    append(&live.shown("log"), "third\n");
    until("what is appended through the mount", || printed("second\nthird\n"));
    fs::write(&source, "short\n").expect("it is shortened");
    until("what others leave of it", || printed("file truncated\nshort\n"));
    append(&source, "again\n");
    until("what others append to the rest", || printed("short\nagain\n"));
}

#[test]
fn open_reader_follows_growth_and_truncation() {
    let Some(live) = mounted(|source| fs::write(source.join("file"), [b'a'; 20_000]).unwrap()) else { return };
    let (file, source) = (File::open(live.shown("file")).expect("it opens"), live.scratch.join("source/file"));
    let read = || {
        let mut bytes = vec![0; 50_000];
        let count = file.read_at(&mut bytes, 0).expect("it is read");
        bytes.truncate(count);
        bytes
    };
    assert_eq!(read(), [b'a'; 20_000]);
    // A read at the end sees growth even if no program has looked at the attributes.
    append(&source, "more");
    let mut more = [0; 10];
    assert_eq!(file.read_at(&mut more, 20_000).expect("it is read"), 4);
    assert_eq!(&more[..4], b"more");
    assert_eq!(read(), [&[b'a'; 20_000][..], b"more"].concat());
    File::create(&source).and_then(|mut file| file.write_all(b"short")).expect("it is shortened");
    until("the new size", || file.metadata().expect("its attributes").len() == 5);
    assert_eq!(read(), b"short");
    fs::write(&source, [b'b'; 30_000]).expect("it grows");
    until("the new size", || file.metadata().expect("its attributes").len() == 30_000);
    assert_eq!(read(), [b'b'; 30_000]);
}

/// A change is found although size and modification time are the same.
#[test]
fn changes_found_despite_same_metadata() {
    let Some(live) = mounted(|source| fs::write(source.join("file"), [b'a'; 20_000]).unwrap()) else { return };
    let (file, source) = (File::open(live.shown("file")).expect("it opens"), live.scratch.join("source/file"));
    let first = || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 12_345).expect("it is read");
        byte[0]
    };
    assert_eq!(first(), b'a');
    let modified = fs::metadata(&source).and_then(|metadata| metadata.modified()).expect("its time");
    let other = OpenOptions::new().write(true).open(&source).expect("it opens");
    other.write_all_at(&[b'b'; 20_000], 0).and_then(|()| other.set_modified(modified)).expect("it changes");
    assert_eq!(fs::read(live.shown("file")).expect("opened again")[12_345], b'b');
    assert_eq!(first(), b'b');
    other.write_all_at(&[b'c'; 20_000], 0).and_then(|()| other.set_modified(modified)).expect("it changes");
    until("what an open reader sees", || {
        let _ = file.metadata().expect("its attributes");
        first() == b'c'
    });
}

#[test]
fn own_changes_leave_blocks_in_memory() {
    let Some(live) = mounted(|source| fs::write(source.join("file"), [b'a'; 1 << 20]).unwrap()) else { return };
    let path = live.shown("file");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("it opens");
    let reads =
        || live.run(&["cache", "stat", "--json"]).json()["caches"][0]["detail"]["cache"]["source_reads"].as_u64();
    let read_all = || assert_eq!(fs::read(&path).expect("it is read").len(), 1 << 20);
    read_all();
    let before = reads();
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).arg(&path).status().expect("it starts");
        assert!(status.success(), "{program}");
    };
    for offset in [0, 8192, 500_000] {
        file.write_all_at(b"bbbb", offset).expect("it is written");
        read_all();
    }
    run("chmod", &["600"]);
    read_all();
    run("chown", &["1:1"]);
    read_all();
    run("touch", &["-d", "2001-02-03"]);
    read_all();
    fs::hard_link(&path, live.shown("link")).expect("it is linked");
    read_all();
    fs::remove_file(live.shown("link")).expect("the link is removed");
    read_all();
    fs::rename(&path, live.shown("other"))
        .and_then(|()| fs::rename(live.shown("other"), &path))
        .expect("it is renamed");
    file.sync_all().expect("it is flushed");
    read_all();
    assert_eq!(reads(), before, "blocks were read again");
    // A change by others is noticed all the same.
    append(&live.scratch.join("source/file"), "more");
    assert_eq!(fs::read(&path).expect("it is read").len(), (1 << 20) + 4);
    assert!(reads() > before);
}
