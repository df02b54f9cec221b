//! Calls that have been in progress for long, with what they wait for, for a status.
//!
//! Owns: when a call is long, how many are listed, and what a status shows of each. Leaves to others: the requests in
//! flight (`nectary-fuse`), and the words for a wait, which depend on what is mounted.

use std::time::Duration;

use nectary_fuse::{FuseConnection, LongCall};

/// A status lists calls that have been in progress for longer than this.
pub const WAIT_SHOWN: Duration = Duration::from_secs(30);
/// The most calls that a status lists.
const LISTED_MAX: usize = 16;

/// A call that has been in progress for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingCall {
    /// The call, as the name of a system call.
    pub call: &'static str,
    /// The number of the inode; if the call has a name, of the directory.
    pub inode: u64,
    /// The name that the call is about, if it has one.
    pub name: Option<String>,
    /// The path of the inode below the mount, if it is known.
    pub path: Option<String>,
    /// The process (or thread) that waits, if it is known.
    pub process: Option<u32>,
    /// The name of the program, if it is known.
    pub program: Option<String>,
    /// The time for which it has been in progress.
    pub age: Duration,
    /// What it waits for.
    pub why: WaitReason,
}

/// What a call waits for, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitReason {
    /// What it waits for, after "it".
    pub what: String,
    /// What the operator can do.
    pub remedy: String,
    /// Whether it waits for a lock of a program, which may take any time.
    pub is_lock: bool,
}

/// The calls of a mount that have been in progress for long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LongWaits {
    /// Those in progress for the longest time, the longest first.
    pub longest: Vec<WaitingCall>,
    /// The number of calls, without those that wait for locks.
    pub calls: usize,
    /// The number of calls that wait for locks.
    pub locks: usize,
}

impl LongWaits {
    /// Lists the long calls of a connection. `why` interprets what a call waits for, and `path` finds the path of a node
    /// and its inode.
    pub fn of(
        connection: &FuseConnection,
        longer_than: Duration,
        lock: Option<u8>,
        why: impl Fn(&LongCall) -> WaitReason,
        place: impl Fn(u64) -> (u64, Option<String>),
    ) -> LongWaits {
        let long = connection.long_calls(longer_than, LISTED_MAX);
        let all: usize = long.counts.values().sum();
        let locks = lock.and_then(|kind| long.counts.get(&kind)).copied().unwrap_or(0);
        let longest = long.longest.into_iter().map(|call| {
            let (inode, path) = place(call.node);
            let process = Some(call.thread).filter(|thread| *thread != 0);
            WaitingCall {
                call: call.operation,
                inode,
                name: call.name.as_deref().map(|name| String::from_utf8_lossy(name).into_owned()),
                path,
                process,
                program: process.and_then(program_of),
                age: call.age,
                why: why(&call),
            }
        });
        LongWaits { longest: longest.collect(), calls: all - locks, locks }
    }
}

/// Returns the name of a thread's program, if the thread exists.
fn program_of(thread: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}
