//! The way of the access log's lines from the workers to the file: a queue, and the thread that writes.
//!
//! Owns: the open file, reopening it, and trying again after a failed write. Promises: no worker waits for a disk or a
//! pipe; a line that the queue accepted is written once and whole, unless the proxy ends while the file cannot be
//! written; the queue has a limit, beyond which workers keep and then count their lines as lost.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nectary_host::log::{LogLevel, write};

use crate::error::Error;
use crate::options::AccessLog;
use crate::stats::StatsReader;

/// The maximum number of buffers that wait for the thread.
const BUFFERS_MAX: usize = 16;
/// The time after a failed write until the next attempt. It doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest time between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The buffers of lines that wait for the thread, and the requests to it.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    /// The path of the file, for messages.
    path: PathBuf,
    state: Mutex<LogQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogQueueState {
    buffers: VecDeque<Vec<u8>>,
    is_ending: bool,
    /// The number of requests to reopen the file, and of those that were done.
    reopens: u64,
    reopened: u64,
    /// Why the last request to reopen the file failed.
    reopen_failure: Option<String>,
    /// Why lines cannot be written at present.
    failure: Option<String>,
}

/// What the thread does next.
enum LogTask {
    /// Reopens the file; the number of requests so far.
    Reopen(u64),
    Write(Vec<u8>),
}

/// Why a pause has ended.
enum PauseEnd {
    Elapsed,
    Reopen(u64),
    Ending,
}

impl LogQueue {
    /// Takes a buffer of lines, or returns it if too many wait.
    pub fn offer(&self, lines: Vec<u8>) -> Result<(), Vec<u8>> {
        let mut state = self.lock();
        if state.buffers.len() >= BUFFERS_MAX {
            return Err(lines);
        }
        state.buffers.push_back(lines);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes the last buffer of a worker, however many wait.
    pub fn give_last(&self, lines: Vec<u8>) {
        self.lock().buffers.push_back(lines);
        self.changed.notify_all();
    }

    /// Opens the file again, and waits until that is done. A file that is written without success is tried at once.
    ///
    /// *Errors*: [`Error::AccessLog`] if it cannot be opened (the file that was open stays in use), if the thread was
    /// still busy after `patience`, or if the proxy ends.
    pub fn reopen(&self, patience: Duration) -> Result<(), Error> {
        let failed = |what: String| Error::AccessLog { path: self.path.clone(), what };
        let mut state = self.lock();
        if state.is_ending {
            return Err(failed("the proxy is stopping".to_owned()));
        }
        state.reopens += 1;
        let number = state.reopens;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.reopened < number);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.reopened < number {
            return Err(failed("an earlier write has not returned yet".to_owned()));
        }
        state.reopen_failure.clone().map_or(Ok(()), |what| Err(failed(what)))
    }

    /// Why lines cannot be written at present; `None` if they can be.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Takes what waits.
    #[cfg(test)]
    pub fn take_all(&self) -> Vec<Vec<u8>> {
        self.lock().buffers.drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, LogQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task; `None` if all lines are written and no more will come.
    fn next(&self) -> Option<LogTask> {
        let mut state = self.lock();
        loop {
            if state.reopens > state.reopened {
                return Some(LogTask::Reopen(state.reopens));
            }
            if let Some(lines) = state.buffers.pop_front() {
                return Some(LogTask::Write(lines));
            }
            if state.is_ending {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pause(&self, length: Duration) -> PauseEnd {
        let is_quiet = |state: &mut LogQueueState| !state.is_ending && state.reopens == state.reopened;
        let waited = self.changed.wait_timeout_while(self.lock(), length, is_quiet);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.reopens > state.reopened {
            PauseEnd::Reopen(state.reopens)
        } else if state.is_ending {
            PauseEnd::Ending
        } else {
            PauseEnd::Elapsed
        }
    }

    fn note_reopened(&self, number: u64, failure: Option<String>) {
        let mut state = self.lock();
        (state.reopened, state.reopen_failure) = (number, failure);
        drop(state);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }
}

/// The open access log, before its thread is started.
#[derive(Debug)]
pub(crate) struct OpenLog {
    target: AccessLog,
    file: File,
}

impl OpenLog {
    /// Opens the log; `None` if `target` is [`AccessLog::None`].
    pub fn open(target: &AccessLog) -> Result<Option<OpenLog>, Error> {
        let file = match target {
            AccessLog::None => return Ok(None),
            AccessLog::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            AccessLog::File(path) => append_to(path),
        };
        let path = target_name(target).into();
        let file = file.map_err(|error| Error::AccessLog { path, what: error.to_string() })?;
        Ok(Some(OpenLog { target: target.clone(), file }))
    }
}

/// The thread that writes the lines of all workers. It ends when it is told to and all lines are written.
#[derive(Debug)]
pub(crate) struct LogWriter {
    queue: Arc<LogQueue>,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Starts the thread; `stats` counts the lines that workers lose.
    pub fn start(log: OpenLog, stats: StatsReader) -> Result<LogWriter, Error> {
        let OpenLog { target, file } = log;
        let queue = Arc::new(LogQueue { path: target_name(&target).into(), ..LogQueue::default() });
        let mut thread = LogThread { target, file, queue: queue.clone(), stats, lost_before: None };
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || thread.run())
            .map_err(|error| Error::Worker { worker: 0, what: format!("cannot start its log's thread: {error}") })?;
        Ok(LogWriter { queue, thread: Some(thread) })
    }

    /// The queue to which workers give their lines.
    pub fn queue(&self) -> Arc<LogQueue> {
        self.queue.clone()
    }

    /// Waits until all lines are written. Workers must have given their last lines.
    pub fn finish(mut self) {
        self.queue.end();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there is nothing left to do here.
            _ = thread.join();
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.queue.end();
    }
}

struct LogThread {
    target: AccessLog,
    file: File,
    queue: Arc<LogQueue>,
    stats: StatsReader,
    /// While lines cannot be written: the number of lines that were lost before.
    lost_before: Option<u64>,
}

impl LogThread {
    fn run(&mut self) {
        while let Some(task) = self.queue.next() {
            match task {
                LogTask::Reopen(number) => {
                    let failure = self.open_again(&[], &mut 0).err();
                    self.queue.note_reopened(number, failure.map(|error| error.to_string()));
                }
                LogTask::Write(lines) => {
                    if let Err(error) = self.write(&lines) {
                        return self.give_up(&error);
                    }
                }
            }
        }
    }

    /// Writes lines, and tries until all are written. *Errors*: the last failure, if the proxy ends meanwhile; the
    /// lines that are not written are then counted as waiting again.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let (mut at, mut pause, mut is_last) = (0, PAUSE_MIN, false);
        loop {
            let Err(error) = write_from(&self.file, lines, &mut at) else {
                self.note_success();
                return Ok(());
            };
            self.note_failure(&error);
            if is_last {
                self.queue.lock().buffers.push_front(lines.get(at..).unwrap_or_default().to_vec());
                return Err(error);
            }
            match self.queue.pause(pause) {
                PauseEnd::Elapsed => {
                    pause = (pause * 2).min(PAUSE_MAX);
                    // If it cannot be opened, the next write probably fails, too, and says why.
                    _ = self.open_again(lines, &mut at);
                }
                PauseEnd::Reopen(number) => {
                    pause = PAUSE_MIN;
                    let failure = self.open_again(lines, &mut at).err();
                    self.queue.note_reopened(number, failure.map(|error| error.to_string()));
                }
                PauseEnd::Ending => is_last = true,
            }
        }
    }

    /// Opens the file by its name. If that is another file than before, a line of which a part is written is written
    /// whole to the new file. A pipe or a device stays open, as opening it again could block.
    fn open_again(&mut self, lines: &[u8], at: &mut usize) -> io::Result<()> {
        let AccessLog::File(path) = &self.target else { return Ok(()) };
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Ok(());
        }
        let file = append_to(path)?;
        let (old, new) = (self.file.metadata()?, file.metadata()?);
        if (old.dev(), old.ino()) != (new.dev(), new.ino()) {
            let written = lines.get(..*at).unwrap_or_default();
            *at = memchr::memrchr(b'\n', written).map_or(0, |end| end + 1);
        }
        self.file = file;
        Ok(())
    }

    fn note_failure(&mut self, error: &io::Error) {
        self.queue.lock().failure = Some(error.to_string());
        if self.lost_before.is_none() {
            self.lost_before = Some(self.stats.snapshot().log_lines_lost);
            write(
                LogLevel::Error,
                "proxy",
                format_args!(
                    "cannot write the access log {}: {error}; lines are kept in memory while there is room, and writing \
                     is tried again, at once after SIGUSR1",
                    target_name(&self.target).display()
                ),
            );
        }
    }

    fn note_success(&mut self) {
        let Some(before) = self.lost_before.take() else { return };
        self.queue.lock().failure = None;
        let lost = self.stats.snapshot().log_lines_lost.saturating_sub(before);
        let path = target_name(&self.target).display();
        write(LogLevel::Note, "proxy", format_args!("the access log {path} is written again; {lost} lines were lost"));
    }

    /// Says how many lines are lost because the proxy ends.
    fn give_up(&mut self, error: &io::Error) {
        let lines = |buffer: &Vec<u8>| memchr::memchr_iter(b'\n', buffer).count();
        let waiting: usize = self.queue.lock().buffers.drain(..).map(|buffer| lines(&buffer)).sum();
        let before = self.lost_before.unwrap_or(0);
        let lost = self.stats.snapshot().log_lines_lost.saturating_sub(before) + waiting as u64;
        let path = target_name(&self.target).display();
        write(LogLevel::Error, "proxy", format_args!("the access log {path} lacks its last {lost} lines: {error}"));
    }
}

/// The name of a log in messages.
fn target_name(target: &AccessLog) -> &Path {
    match target {
        AccessLog::File(path) => path,
        AccessLog::Stdout | AccessLog::None => Path::new("(standard output)"),
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Writes what is behind `at`, and moves `at` on by what is written.
fn write_from(mut file: &File, lines: &[u8], at: &mut usize) -> io::Result<()> {
    while let Some(rest) = lines.get(*at..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => *at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nectary-proxy-writer-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    fn start(target: &AccessLog) -> LogWriter {
        let log = OpenLog::open(target).expect("opened").expect("a log");
        LogWriter::start(log, StatsReader::new(Vec::new())).expect("a thread")
    }

    /// Waits until the condition holds; if it never does, the test fails.
    fn wait_until(is_so: impl Fn() -> bool) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn renamed_log_gets_new_file() {
        let folder = folder("rename");
        let (path, old) = (folder.join("log"), folder.join("log.1"));
        let writer = start(&AccessLog::File(path.clone()));
        let queue = writer.queue();
        queue.offer(b"a\n".to_vec()).expect("room");
        wait_until(|| std::fs::read(&path).expect("a log") == b"a\n");
        std::fs::rename(&path, &old).expect("renamed");
        queue.reopen(PATIENCE).expect("reopened");
        queue.offer(b"b\n".to_vec()).expect("room");
        // A log that cannot be opened again is written where it was.
        wait_until(|| std::fs::read(&path).expect("a log") == b"b\n");
        let moved = folder.with_extension("moved");
        std::fs::rename(&folder, &moved).expect("renamed");
        let error = queue.reopen(PATIENCE).expect_err("no folder");
        assert!(error.to_string().contains("log: No such file"), "{error}");
        queue.offer(b"c\n".to_vec()).expect("room");
        writer.finish();
        let read = |name: &str| std::fs::read_to_string(moved.join(name)).expect("a log");
        assert_eq!((read("log").as_str(), read("log.1").as_str()), ("b\nc\n", "a\n"));
        std::fs::remove_dir_all(&moved).expect("removed");
    }

    #[test]
    fn failed_log_is_written_again() {
        let folder = folder("full");
        let path = folder.join("log");
        // Every write to this device fails with "no space left".
        std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
        let writer = start(&AccessLog::File(path.clone()));
        let queue = writer.queue();
        queue.offer(b"a\nb\n".to_vec()).expect("room");
        wait_until(|| queue.failure().is_some_and(|failure| failure.contains("No space left")));
        (0..BUFFERS_MAX).for_each(|_| queue.offer(b"c\n".to_vec()).expect("room"));
        assert_eq!(queue.offer(b"d\n".to_vec()), Err(b"d\n".to_vec()), "the queue has a limit");
        std::fs::remove_file(&path).expect("removed");
        queue.reopen(PATIENCE).expect("reopened");
        wait_until(|| queue.failure().is_none());
        writer.finish();
        assert_eq!(std::fs::read_to_string(&path).expect("a log"), format!("a\nb\n{}", "c\n".repeat(BUFFERS_MAX)));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    /// The retries do not delay the end of the process.
    #[test]
    fn failed_log_retries_without_signal() {
        let folder = folder("again");
        let path = folder.join("log");
        let link = || std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
        link();
        let writer = start(&AccessLog::File(path.clone()));
        writer.queue().offer(b"a\n".to_vec()).expect("room");
        wait_until(|| writer.queue().failure().is_some());
        std::fs::remove_file(&path).expect("removed");
        wait_until(|| std::fs::read(&path).is_ok_and(|text| text == b"a\n"));
        std::fs::remove_file(&path).expect("removed");
        link();
        let writer = start(&AccessLog::File(path.clone()));
        writer.queue().offer(b"a\n".to_vec()).expect("room");
        let began = std::time::Instant::now();
        writer.finish();
        assert!(began.elapsed() < Duration::from_secs(10));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    /// In a new file the line is written from its start; in the same file it continues.
    #[test]
    fn torn_line_resumes_or_restarts() {
        let folder = folder("torn");
        let path = folder.join("log");
        let (target, queue) = (AccessLog::File(path.clone()), Arc::new(LogQueue::default()));
        let stats = StatsReader::new(Vec::new());
        let file = append_to(&path).expect("a file");
        let mut thread = LogThread { target, file, queue, stats, lost_before: None };
        let mut at = 6;
        thread.open_again(b"one\ntwo\n", &mut at).expect("opened");
        assert_eq!(at, 6, "the same file");
        std::fs::rename(&path, folder.join("log.1")).expect("renamed");
        thread.open_again(b"one\ntwo\n", &mut at).expect("opened");
        assert_eq!(at, 4, "another file");
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
