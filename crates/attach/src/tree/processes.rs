//! Which process a thread belongs to.
//!
//! Owns: a bounded memory of it. The kernel names the thread that reads; the stream of a reference is its process and the file.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long an answer is believed: numbers of threads are used again much later.
const VALID: Duration = Duration::from_secs(1);

/// The number of processes that are remembered; then all are forgotten.
const THREADS_MAX: usize = 4096;

/// The processes of threads.
#[derive(Default)]
pub struct Processes {
    known: Mutex<HashMap<u32, (u32, Instant)>>,
}

impl Processes {
    /// The process of a thread; the thread's own number if it is not to be seen here.
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
        let process = read(thread).unwrap_or(thread);
        if known.len() >= THREADS_MAX {
            known.clear();
        }
        known.insert(thread, (process, now));
        process
    }
}

fn read(thread: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:")).and_then(|number| number.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_belong_to_processes_and_the_memory_of_them_is_bounded() {
        let processes = Processes::default();
        let own = std::process::id();
        let found = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: the call takes nothing.
                let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
                (thread, processes.of(thread), processes.of(thread))
            });
            thread.join().unwrap()
        });
        assert!(found.0 != own && (found.1, found.2) == (own, own), "{found:?}");
        {
            let mut known = processes.known.lock().unwrap();
            known.extend((0..THREADS_MAX as u32).map(|thread| (u32::MAX - thread, (1, Instant::now()))));
        }
        // A process that is not visible here counts as itself.
        assert_eq!((processes.of(u32::MAX / 2), processes.of(0)), (u32::MAX / 2, 0));
        assert_eq!(processes.known.lock().unwrap().len(), 1);
    }
}
