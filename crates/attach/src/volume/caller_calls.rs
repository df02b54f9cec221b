//! The system call in which a thread waits for an answer, as `/proc` shows it.
//!
//! Owns: which threads were told to begin their rename once more. Promises: a rename is told so once. Leaves to others: what to do if it is not known, as for a thread of another PID namespace, a request of io_uring, or a
//! mount that may not trace the thread.

use std::collections::HashMap;

/// The maximum number of threads whose renames begin once more.
const RENAMES_MAX: usize = 1 << 10;

/// A system call of a thread.
#[derive(Debug, PartialEq, Eq)]
pub enum CallerCall {
    /// A rename, with what tells it from most others: its arguments, and where the program is.
    Rename(String),
    /// A call that looks names up, and renames nothing.
    Other,
    /// It is not known.
    Unknown,
}

impl CallerCall {
    /// Returns the call in which a thread is.
    pub fn of(thread: u32) -> CallerCall {
        // For the thread 0, which is not visible here, there is no such file.
        std::fs::read_to_string(format!("/proc/{thread}/syscall")).map_or(CallerCall::Unknown, CallerCall::shown)
    }

    /// Returns the call that `/proc` shows: its number, and then its arguments.
    fn shown(line: String) -> CallerCall {
        match line.split(' ').next().and_then(|number| number.parse::<i64>().ok()) {
            Some(number) if RENAMES.contains(&number) => CallerCall::Rename(line),
            Some(number) if LOOKS.contains(&number) => CallerCall::Other,
            _ => CallerCall::Unknown,
        }
    }
}

/// The renames that the kernel was told to begin once more, by thread.
#[derive(Default)]
pub struct RepeatedRenames(HashMap<u32, CallerCall>);

impl RepeatedRenames {
    /// Notes that a thread is told to begin its call once more; only a rename is remembered.
    pub fn note(&mut self, thread: u32, call: CallerCall) {
        self.0.remove(&thread);
        if let CallerCall::Rename(_) = call {
            // Threads that ended are not known.
            if self.0.len() >= RENAMES_MAX {
                self.0.clear();
            }
            self.0.insert(thread, call);
        }
    }

    /// Whether a thread was told to begin this call once more.
    pub fn has(&self, thread: u32, call: &CallerCall) -> bool {
        self.0.get(&thread) == Some(call)
    }

    /// Notes that the rename of a thread has looked up all of its names.
    pub fn end(&mut self, thread: u32) {
        self.0.remove(&thread);
    }
}

/// The numbers of renames; the last three are those of 32-bit programs.
#[cfg(target_arch = "x86_64")]
const RENAMES: &[i64] = &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2, 38, 302, 353];
#[cfg(not(target_arch = "x86_64"))]
const RENAMES: &[i64] = &[];

/// The numbers of calls that look names up. None is the number of a rename in a 32-bit program.
#[cfg(target_arch = "x86_64")]
const LOOKS: &[i64] = &[
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_chdir,
    libc::SYS_execve,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rmdir,
    libc::SYS_chmod,
    libc::SYS_fchmodat,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_chroot,
    libc::SYS_execveat,
    libc::SYS_name_to_handle_at,
    libc::SYS_inotify_add_watch,
];
#[cfg(not(target_arch = "x86_64"))]
const LOOKS: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_are_told_by_their_number() {
        let shown = |line: &str| CallerCall::shown(line.to_owned());
        assert_eq!(shown("83 0x7ffd 0x1ff 0x0\n"), CallerCall::Other);
        assert_eq!(
            shown("264 0xffffff9c 0x1 0xffffff9c\n"),
            CallerCall::Rename("264 0xffffff9c 0x1 0xffffff9c\n".into())
        );
        // Also `renameat2`, and those of 32-bit programs.
        for number in [82, 264, 316, 38, 302, 353] {
            let line = format!("{number} 0x1 0x2\n");
            assert_eq!(shown(&line), CallerCall::Rename(line.clone()));
            assert!(!LOOKS.contains(&number));
        }
        for unknown in ["running\n", "-1 0x7ffd 0x0\n", "426 0x4 0x1\n", ""] {
            assert_eq!(shown(unknown), CallerCall::Unknown);
        }
    }

    #[test]
    fn thread_elsewhere_has_no_known_call() {
        assert_eq!(CallerCall::of(0), CallerCall::Unknown);
    }

    /// A rename is told once to begin again, until it has looked up its names, or another one begins.
    #[test]
    fn rename_begins_again_once() {
        let rename = |arguments: &str| CallerCall::Rename(arguments.to_owned());
        let mut renames = RepeatedRenames::default();
        assert!(!renames.has(1, &rename("a")));
        renames.note(1, rename("a"));
        assert!(renames.has(1, &rename("a")) && !renames.has(1, &rename("b")) && !renames.has(2, &rename("a")));
        renames.end(1);
        assert!(!renames.has(1, &rename("a")));
        renames.note(1, CallerCall::Unknown);
        assert!(!renames.has(1, &CallerCall::Unknown), "it may be another call");
        (0..2 * RENAMES_MAX as u32).for_each(|thread| renames.note(thread, rename("a")));
        assert!(renames.0.len() <= RENAMES_MAX);
    }
}
