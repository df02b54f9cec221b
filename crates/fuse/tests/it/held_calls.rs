//! Tests calls that the server holds back while it notifies the kernel about the same names and nodes. The kernel keeps
//! the directory locked during a change of its names, and pages while they are read, and needs these locks for some of the
//! messages.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::holding::{HoldingProcess, KernelNotice, NoticeSubject, serve_as_process, waits_in_kernel};

/// The longest time in which everything ends after the answer, or after the death of the process.
const END_MAX: Duration = Duration::from_secs(5);
/// The longest time in which a call begins to wait.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The number of cells that run at the same time.
const THREADS: usize = 4;
const PAUSE: Duration = Duration::from_micros(200);

/// A call that changes names, or reads a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldCall {
    Create,
    Unlink,
    Rename,
    MakeDirectory,
    RemoveDirectory,
    Link,
    ReadPage,
}

impl HeldCall {
    const ALL: [HeldCall; 7] = [
        HeldCall::Create,
        HeldCall::Unlink,
        HeldCall::Rename,
        HeldCall::MakeDirectory,
        HeldCall::RemoveDirectory,
        HeldCall::Link,
        HeldCall::ReadPage,
    ];

    /// Whether a message waits for the end of this call.
    fn delays(self, notice: KernelNotice) -> bool {
        match self {
            HeldCall::ReadPage => notice.locks_pages(),
            _ => notice.locks_directory(),
        }
    }

    /// Makes what the call needs; returns what the messages are about: the directories and names of the call, the nodes
    /// of these names, and another name of the directory. The kernel has cached all names that exist.
    fn prepare(self, root: &Path) -> io::Result<Vec<NoticeSubject>> {
        let node = |path: &str| fs::metadata(root.join(path)).map(|found| found.ino());
        fs::create_dir(root.join("from")).and_then(|()| fs::create_dir(root.join("to")))?;
        let mut named = vec!["from/other"];
        match self {
            HeldCall::Create | HeldCall::MakeDirectory | HeldCall::Link | HeldCall::ReadPage => {}
            HeldCall::Unlink => named.push("from/name"),
            HeldCall::Rename => named.extend(["from/name", "to/name"]),
            HeldCall::RemoveDirectory => fs::create_dir(root.join("from/name"))?,
        }
        named.iter().try_for_each(|path| fs::write(root.join(path), b"contents"))?;
        let about = |path: &str, node: u64, is_file: bool| {
            let (directory, name) = path.split_once('/').expect("a directory and a name");
            let directory = fs::metadata(root.join(directory))?.ino();
            io::Result::Ok(NoticeSubject { directory, node, name: name.to_owned(), is_file })
        };
        let mut subjects = vec![about("from/name", node("from")?, false)?];
        if self == HeldCall::RemoveDirectory {
            subjects.push(about("from/name", node("from/name")?, false)?);
        }
        for path in named {
            subjects.push(about(path, node(path)?, true)?);
        }
        Ok(subjects)
    }

    /// A call of another program that needs the same lock.
    fn call_behind(self, root: &Path) -> io::Result<()> {
        match self {
            HeldCall::ReadPage => self.call(root),
            _ => File::create(root.join("from/behind")).map(drop),
        }
    }

    fn call(self, root: &Path) -> io::Result<()> {
        let name = root.join("from/name");
        match self {
            HeldCall::Create => File::options().write(true).create_new(true).open(&name).map(drop),
            HeldCall::Unlink => fs::remove_file(&name),
            HeldCall::Rename => fs::rename(&name, root.join("to/name")),
            HeldCall::MakeDirectory => fs::create_dir(&name),
            HeldCall::RemoveDirectory => fs::remove_dir(&name),
            HeldCall::Link => fs::hard_link(root.join("from/other"), &name),
            HeldCall::ReadPage => File::open(root.join("from/other")).and_then(|file| read_page(&file)),
        }
    }
}

/// A thread that makes a call.
struct CallerThread {
    thread: JoinHandle<io::Result<()>>,
    id: i32,
}

impl CallerThread {
    fn start(root: &Path, call: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) -> CallerThread {
        let (root, (tell, told)) = (root.to_owned(), channel());
        let thread = std::thread::spawn(move || {
            // SAFETY: the call takes no arguments.
            _ = tell.send(unsafe { libc::gettid() });
            call(&root)
        });
        CallerThread { thread, id: told.recv().expect("it begins") }
    }

    fn waits(&self) -> bool {
        waits_in_kernel(&PathBuf::from(format!("/proc/self/task/{}", self.id)))
    }
}

/// Reads the first page of a file for a map, without a signal if that fails.
fn read_page(file: &File) -> io::Result<()> {
    // SAFETY: the calls make, fill and end a new map, which no other code uses.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let read = match libc::madvise(map, 1, libc::MADV_POPULATE_READ) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        libc::munmap(map, 1);
        read
    }
}

/// What becomes of a call that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldEnd {
    Answered,
    Killed,
}

/// Waits until `is_so`, and returns whether that took no longer than until `deadline`.
fn in_time(deadline: Instant, mut is_so: impl FnMut() -> bool) -> bool {
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Runs one cell of the table in its own process. Returns what was wrong, and how many messages waited for the call.
/// `None`: this machine cannot mount.
fn run(test: &str, call: HeldCall, notice: KernelNotice, end: HeldEnd) -> Option<(Vec<String>, usize)> {
    let mut process = HoldingProcess::start(test)?;
    let mut problems = Vec::new();
    let subjects = call.prepare(&process.directory).unwrap();
    process.hold();
    let mut callers = vec![CallerThread::start(&process.directory, move |root| call.call(root))];
    process.wait_for_held();
    callers.push(CallerThread::start(&process.directory, move |root| call.call_behind(root)));
    assert!(in_time(Instant::now() + WAIT_MAX, || callers[1].waits()), "no call waits behind the first one");
    subjects.iter().filter(|about| notice.fits(about)).for_each(|about| process.notify(notice, about));
    let waited = process.standing();
    if waited > 0 && !call.delays(notice) {
        problems.push("a message waits, although the call holds no lock that it needs".to_owned());
    }
    let deadline = Instant::now() + END_MAX;
    match end {
        HeldEnd::Answered => process.answer(),
        HeldEnd::Killed => process.kill(),
    }
    if !in_time(deadline, || callers.iter().all(|caller| caller.thread.is_finished())) {
        problems.push("a call stands".to_owned());
    }
    if end == HeldEnd::Answered {
        if !in_time(deadline, || process.standing() == 0) {
            problems.push("a message stands".to_owned());
        }
        process.end();
    }
    if !in_time(deadline, || process.status().is_some()) {
        problems.push("the process does not end".to_owned());
    }
    if !problems.is_empty() {
        // Nothing may stand for ever.
        process.abort();
    }
    for caller in callers {
        let result = caller.thread.join().expect("it does not panic");
        if result.is_ok() != (end == HeldEnd::Answered) {
            problems.push(format!("a call returns {result:?}"));
        }
    }
    problems.extend(process.failures());
    Some((problems, waited))
}

/// Each message to the kernel, during each call and before another one that waits for the same lock: all end when the
/// server answers, or when it is killed.
#[test]
fn held_calls_and_notices_end() {
    if serve_as_process() {
        return;
    }
    let cells: Vec<_> = [HeldEnd::Answered, HeldEnd::Killed]
        .into_iter()
        .flat_map(|end| HeldCall::ALL.map(|call| (call, end)))
        .flat_map(|(call, end)| KernelNotice::ALL.map(|notice| (call, notice, end)))
        .collect();
    // Most of the time of a cell is that of starting its process.
    let found: Vec<_> = std::thread::scope(|scope| {
        let run_each = |cells: &[(HeldCall, KernelNotice, HeldEnd)]| {
            let run = |&(call, notice, end): &_| {
                let (found, waits) = run("held_calls::held_calls_and_notices_end", call, notice, end)?;
                let words = found.into_iter().map(|problem| format!("{call:?}, {notice:?}, {end:?}: {problem}"));
                Some((words.collect::<Vec<_>>(), waits))
            };
            cells.iter().map_while(run).collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            cells.chunks(cells.len().div_ceil(THREADS)).map(|cells| scope.spawn(move || run_each(cells))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    if found.len() < cells.len() {
        return;
    }
    let waited = found.iter().filter(|(_, waits)| *waits > 0).count();
    let problems: Vec<String> = found.into_iter().flat_map(|(words, _)| words).collect();
    println!("in {waited} cells messages waited for the call");
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(waited > 0, "no message waits for a call: this proves nothing");
}
