//! Finds the process and the program of a thread, and a handle for inspecting them.
//!
//! Owns: the tables of threads and processes. Promises: a reused process id counts as a new process, because handles of
//! ended threads fail and are opened again, and a process is identified by its id and its start time. An exec makes a
//! new program.
//!
//! Cost: a table look-up for a known thread; reading a few files of `/proc` for a new thread, and after an exec.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::sys;

/// The maximum number of handles that are open at once. It is small, because the limit on descriptors may be low.
const HANDLES_MAX: usize = 256;

/// A thread that makes calls.
#[derive(Debug, Clone)]
pub(super) struct TracedThread {
    /// The id of the thread's process.
    pub(super) pid: u32,
    handle: Rc<OwnedFd>,
    /// Whether the handle fails once the thread has ended; if not, the table does not keep the handle.
    is_exact: bool,
}

impl TracedThread {
    /// The handle through which the recorder borrows descriptors of the thread's process.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The state of a process.
#[derive(Debug, Default)]
struct TracedProcess {
    /// The start time of the process, in clock ticks since boot.
    start: u64,
    /// The number of the process's program in the trace, if the trace already has the program.
    number: Option<u32>,
    /// The number in the trace of the nearest ancestor that the trace has, or of the program before an exec.
    ancestor: Option<u32>,
    /// Whether an exec during the recording started the program of the process.
    is_fresh: bool,
    /// If the process called exec (which may have failed), the start of its stack before the call.
    exec_from: Option<u64>,
}

/// A program that the trace does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewProgram {
    pub(super) parent: Option<u32>,
    pub(super) name: String,
    /// Whether an exec started the program; the kernel then mapped the program's file.
    pub(super) is_fresh: bool,
}

/// The tables of threads and processes.
#[derive(Debug, Default)]
pub(super) struct TracedProcesses {
    threads: HashMap<u32, TracedThread>,
    processes: HashMap<u32, TracedProcess>,
}

impl TracedProcesses {
    /// The thread with the id `thread`, from the table or, if the table does not have it, from `/proc`.
    pub(super) fn thread(&mut self, thread: u32) -> io::Result<TracedThread> {
        match self.threads.get(&thread) {
            Some(known) => Ok(known.clone()),
            None => self.look_up(thread),
        }
    }

    /// Looks up the thread in `/proc`, even if the table has it.
    pub(super) fn look_up(&mut self, thread: u32) -> io::Result<TracedThread> {
        self.threads.remove(&thread);
        let pid = process_of(thread)?;
        let (handle, is_exact) = if pid == thread {
            (sys::open_process(pid)?, true)
        } else {
            match sys::open_thread(thread) {
                Ok(handle) => (handle, true),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (sys::open_process(pid)?, false),
                Err(error) => return Err(error),
            }
        };
        let found = TracedThread { pid, handle: Rc::new(handle), is_exact };
        let start = ProcessStat::read(pid)?;
        if self.processes.get(&pid).is_none_or(|process| process.start != start.start) {
            let parent = self.processes.get(&start.parent);
            let ancestor = parent.and_then(|parent| parent.number.or(parent.ancestor));
            self.processes.insert(pid, TracedProcess { start: start.start, ancestor, ..TracedProcess::default() });
        }
        if self.threads.len() >= HANDLES_MAX {
            self.threads.clear();
        }
        if found.is_exact {
            self.threads.insert(thread, found.clone());
        }
        Ok(found)
    }

    /// Notes that the process of `thread` is about to call exec.
    pub(super) fn exec_begins(&mut self, thread: u32) -> io::Result<()> {
        let pid = self.look_up(thread)?.pid;
        // The exec ends all threads except one, which gets the id of the process.
        self.threads.retain(|_, known| known.pid != pid);
        if let Some(process) = self.processes.get_mut(&pid)
            && process.exec_from.is_none()
        {
            process.exec_from = Some(ProcessStat::read(pid)?.stack);
        }
        Ok(())
    }

    /// The number of a process's program in the trace, or the program itself if the trace does not have it yet.
    pub(super) fn program(&mut self, pid: u32) -> io::Result<std::result::Result<u32, NewProgram>> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Err(io::Error::other("a process that was not looked up"));
        };
        if let Some(before) = process.exec_from
            && ProcessStat::read(pid)?.stack != before
        {
            process.exec_from = None;
            process.ancestor = process.number.take().or(process.ancestor);
            process.is_fresh = true;
        }
        Ok(match process.number {
            Some(number) => Ok(number),
            None => Err(NewProgram { parent: process.ancestor, name: name(pid), is_fresh: process.is_fresh }),
        })
    }

    /// Stores the number that the trace gave to a process's program.
    pub(super) fn named(&mut self, pid: u32, number: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.number = Some(number);
        }
    }
}

/// The fields of `/proc/PID/stat` that the recorder needs.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    parent: u32,
    start: u64,
    /// The start address of the stack, which is random for each exec; 0 if the recorder may not see it.
    stack: u64,
}

impl ProcessStat {
    fn read(pid: u32) -> io::Result<ProcessStat> {
        ProcessStat::parse(&fs::read(format!("/proc/{pid}/stat"))?)
            .ok_or_else(|| io::Error::other("/proc/PID/stat: unknown form"))
    }

    fn parse(text: &[u8]) -> Option<ProcessStat> {
        // The name, in parentheses, may contain any byte; the first field after the name is the third field.
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let fields = std::str::from_utf8(&text[end + 1..]).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(ProcessStat { parent: u32::try_from(field(4)?).ok()?, start: field(22)?, stack: field(28)? })
    }
}

/// The process of a thread.
fn process_of(thread: u32) -> io::Result<u32> {
    let text = fs::read_to_string(format!("/proc/{thread}/status"))?;
    let found = text.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    found.ok_or_else(|| io::Error::other("/proc/PID/status: no Tgid"))
}

/// The name of a process's program. For a script this is the name of the script, not of its interpreter.
fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with spaces and parentheses does not confuse the fields.
    #[test]
    fn stat_parses_name_with_parentheses() {
        let fields: Vec<String> = (4..60).map(|number| number.to_string()).collect();
        let text = format!("77 (a) b (c)) S {}", fields.join(" "));
        assert_eq!(ProcessStat::parse(text.as_bytes()), Some(ProcessStat { parent: 4, start: 22, stack: 28 }));
        for wrong in ["", "77", "77 (a", "77 (a) S 1", "77 (a) S x y"] {
            assert_eq!(ProcessStat::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn own_threads_name_the_process() {
        let pid = std::process::id();
        let mut processes = TracedProcesses::default();
        assert_eq!(processes.thread(pid).unwrap().pid, pid);
        let unnamed = processes.program(pid).unwrap().unwrap_err();
        assert!(!unnamed.is_fresh && unnamed.parent.is_none() && !unnamed.name.is_empty(), "{unnamed:?}");
        processes.named(pid, 5);
        assert_eq!(processes.program(pid).unwrap(), Ok(5));
        assert!(processes.thread(u32::MAX).is_err());
    }
}
