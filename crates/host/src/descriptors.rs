//! The open file descriptors that this process may have, their division among its connections, and what was refused for
//! lack of them.
//!
//! Owns: raising the soft limit to the hard one, the number of descriptors that connections may use, and the count of
//! refused connections, which every part shows in its status. Leaves to others: refusing (each server answers in its
//! protocol). The usual soft limit of 1,024 is meant for programs that use `select`; no part of the house does.

use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit};

use crate::clock::since_boot;
use crate::status::{PartHealth, PartStatus};

/// The descriptors that are kept back for what is no connection of a client: devices, logs, the control socket and its
/// clients, timers, and reading a directory or a file now and then.
pub const KEPT_BACK: u64 = 64;

/// The time for which refused connections are shown as a problem after the last one.
const SHOWN: Duration = Duration::from_secs(600);

/// The limits on the open descriptors of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The number of descriptors that may be open (the soft limit).
    pub soft: u64,
    /// The number to which this process may raise the soft limit (the hard limit).
    pub hard: u64,
}

/// Raises the soft limit to the hard one; returns the limits that then hold. Programs that this process starts inherit
/// the raised limit.
pub fn raise() -> DescriptorLimit {
    let limit = limit();
    // The kernel's "no limit" is the largest number.
    let hard = Some(limit.hard).filter(|hard| *hard != u64::MAX);
    let wanted = Rlimit { current: hard, maximum: hard };
    if limit.soft < limit.hard && rustix::process::setrlimit(Resource::Nofile, wanted).is_ok() {
        return DescriptorLimit { soft: limit.hard, ..limit };
    }
    limit
}

/// The limits that hold now; the smallest usual one if they are not known. `rustix` relies on a kernel that tells them,
/// but a filter of system calls may refuse to.
#[allow(unsafe_code)]
pub fn limit() -> DescriptorLimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer has the layout that the call writes.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => DescriptorLimit { soft: limit.rlim_cur, hard: limit.rlim_max },
        _ => DescriptorLimit { soft: 1024, hard: 1024 },
    }
}

/// The number of descriptors that are open now; 0 if that is not known. *Cost*: reads a directory.
pub fn open_now() -> u64 {
    // Reading the directory opens it, so it is counted too.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| (entries.count() as u64).saturating_sub(1))
}

/// The number of descriptors that connections may use beside those that are open now, [`KEPT_BACK`] and `more`.
pub fn for_connections(more: u64) -> u64 {
    room(limit().soft, open_now(), more)
}

fn room(limit: u64, open: u64, more: u64) -> u64 {
    limit.saturating_sub(open).saturating_sub(KEPT_BACK).saturating_sub(more)
}

/// Reduces the number of connections that a server may have to what the limit allows, but to no less than 1.
pub fn connections_max(wanted: usize) -> usize {
    let allowed = for_connections(0);
    if allowed >= wanted as u64 { wanted } else { (allowed as usize).max(1) }
}

/// Whether an error says that no descriptor was free, in this process or on the machine.
pub fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// What was refused since the start of the process.
static REFUSED: AtomicU64 = AtomicU64::new(0);
static LAST: Mutex<Option<(Duration, String)>> = Mutex::new(None);

/// Counts a connection that was refused or could not be accepted, for the status of this process. `why` ends the
/// sentence "connections were refused, the last because …".
pub fn note_refused(why: impl Into<String>) {
    REFUSED.fetch_add(1, Ordering::Relaxed);
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some((since_boot(), why.into()));
}

/// Counts a failed `accept`, for the status of this process.
pub fn note_failed_accept(error: &io::Error) {
    note_refused(match is_lack(error) {
        true => format!("no file descriptor was free ({} may be open)", limit().soft),
        false => format!("accepting failed: {error}"),
    });
}

/// The number of connections that were refused since the start of the process.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Adds a problem to the status of a part of this process if connections were refused lately.
pub(crate) fn with_refused(status: PartStatus) -> PartStatus {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match last {
        Some((at, why)) if since_boot().saturating_sub(at) < SHOWN => {
            let what = format!("{} connections were refused, the last because {why}", refused());
            let remedy = "let clients use fewer connections, or raise the limit: `ulimit -Hn`, LimitNOFILE= of \
                          systemd; this goes ten minutes after the last one";
            status.with_problem(PartHealth::Degraded, what, remedy)
        }
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_what_is_not_kept() {
        assert_eq!(room(1024, 20, 16), 1024 - 20 - KEPT_BACK - 16);
        assert_eq!(room(50, 20, 0), 0);
        assert!(connections_max(usize::MAX) >= 1 && connections_max(1) == 1);
        assert!(open_now() >= 3);
    }

    #[test]
    fn refused_connections_are_a_problem() {
        let fresh = || PartStatus::healthy("proxy", "a");
        note_failed_accept(&io::Error::from_raw_os_error(libc::EMFILE));
        let status = with_refused(fresh());
        assert!(
            status.state == PartHealth::Degraded && status.problems[0].what.contains("no file descriptor"),
            "{status:?}"
        );
        *LAST.lock().unwrap() = Some((Duration::ZERO, "long ago".to_owned()));
        let expected = if since_boot() < SHOWN { PartHealth::Degraded } else { PartHealth::Healthy };
        assert_eq!(with_refused(fresh()).state, expected);
    }
}
