//! The process, or the session, of each thread that makes requests.
//!
//! Owns: a bounded table of processes by thread. The kernel reports only the thread of a request. The stream of a
//! reference is the pair of process and file, or the session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an entry is valid. The kernel reuses thread numbers only much later.
const VALID: Duration = Duration::from_secs(1);

/// The largest number of stored threads; at this limit all are deleted.
const THREADS_MAX: usize = 4096;

/// The processes of threads.
#[derive(Default)]
pub struct ThreadProcesses {
    known: Mutex<HashMap<u32, (u32, Instant)>>,
    by_session: AtomicBool,
}

impl ThreadProcesses {
    /// Makes [`of`](Self::of) return sessions from now on, or processes again.
    pub fn set_by_session(&self, by_session: bool) {
        self.by_session.store(by_session, Ordering::Relaxed);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether [`of`](Self::of) returns sessions.
    pub fn is_by_session(&self) -> bool {
        self.by_session.load(Ordering::Relaxed)
    }

    /// The process or session of a thread; the thread's own number if `/proc` does not have the thread.
    pub fn of(&self, thread: u32) -> u32 {
        if thread == 0 {
            return 0;
        }
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((process, since)) = known.get(&thread)
            && now.duration_since(*since) < VALID
        {
            return *process;
        }
        let field = if self.is_by_session() { "NSsid:" } else { "Tgid:" };
        let process = read(thread, field).unwrap_or(thread);
        if known.len() >= THREADS_MAX {
            known.clear();
        }
        known.insert(thread, (process, now));
        process
    }
}

/// Reads the first number of a field of the thread's status. The numbers after it are those in nested namespaces.
fn read(thread: u32, field: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let numbers = text.lines().find_map(|line| line.strip_prefix(field))?;
    numbers.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads belong to processes, and the memory of the table is bounded.
    #[test]
    fn thread_table_is_bounded() {
        let processes = ThreadProcesses::default();
        let own = std::process::id();
        let found = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                (thread, processes.of(thread), processes.of(thread))
            });
            thread.join().unwrap()
        });
        assert!(found.0 != own && (found.1, found.2) == (own, own), "{found:?}");
        {
            let mut known = processes.known.lock().unwrap();
            known.extend((0..THREADS_MAX as u32).map(|thread| (u32::MAX - thread, (1, Instant::now()))));
        }
        // A thread that is not in `/proc` counts as its own process.
        assert_eq!((processes.of(u32::MAX / 2), processes.of(0)), (u32::MAX / 2, 0));
        assert_eq!(processes.known.lock().unwrap().len(), 1);
    }

    #[test]
    fn processes_of_a_session_are_one() {
        let processes = ThreadProcesses::default();
        processes.set_by_session(true);
        let own = std::process::id();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (of_child, of_own) = (processes.of(child.id()), processes.of(own));
        drop(child.stdin.take());
        child.wait().unwrap();
        // A session that began outside the namespace of this process has the number 0, which `rustix` does not expect.
        // SAFETY: the call takes a number.
        let session = unsafe { libc::getsid(0) } as u32;
        assert!(processes.is_by_session() && of_child == of_own && (session == 0 || of_own == session), "{of_own}");
    }
}
