//! Handles signals while a command is recorded, and adopts the command's orphans.
//!
//! Owns: receiving signals as events, passing them on, and adopting orphans. Promises: a keystroke (Ctrl-C, Ctrl-\)
//! reaches the command once, from the terminal; a signal sent only to the recorder is passed on.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions};

/// The signals that usually end a program, and the one for ended children.
const TAKEN: [i32; 7] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCHLD];

/// A signal that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceivedSignal {
    pub(super) number: i32,
    /// Whether the terminal or the kernel sent the signal, and so sent it to all processes in the foreground.
    pub(super) is_for_all: bool,
}

/// Receives signals as events, in the calling thread and in threads that it creates later. Dropping this value restores
/// the former mask.
#[derive(Debug)]
pub(super) struct SignalReceiver {
    fd: OwnedFd,
    former: SignalMask,
}

/// A mask of signals.
#[derive(Clone, Copy)]
pub(super) struct SignalMask(libc::sigset_t);

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl SignalMask {
    /// Makes the command start with this mask; otherwise it would inherit the mask of the recorder.
    pub(super) fn give(self, command: &mut Command) {
        // SAFETY: after the fork only one call is made, which is safe after a fork and uses only copied memory.
        unsafe { command.pre_exec(move || change(libc::SIG_SETMASK, Some(&self)).map(drop)) };
    }
}

/// Changes the calling thread's mask; returns the former mask.
fn change(how: i32, mask: Option<&SignalMask>) -> io::Result<SignalMask> {
    // SAFETY: all zeroes is a valid value of this struct of bits.
    let mut former: libc::sigset_t = unsafe { std::mem::zeroed() };
    let new = mask.map_or(std::ptr::null(), |mask| &raw const mask.0);
    // SAFETY: `new` is null or points to a mask that outlives the call, and `former` outlives it too.
    match unsafe { libc::pthread_sigmask(how, new, &raw mut former) } {
        0 => Ok(SignalMask(former)),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

impl SignalReceiver {
    /// Receives signals from now on. This must be called before the process creates other threads.
    pub(super) fn take() -> io::Result<SignalReceiver> {
        // SAFETY: all zeroes is a valid value of this struct of bits, and each function only changes it.
        let mask = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in TAKEN {
                libc::sigaddset(&raw mut set, signal);
            }
            SignalMask(set)
        };
        let former = change(libc::SIG_BLOCK, Some(&mask))?;
        // SAFETY: the mask outlives the call.
        let fd = unsafe { libc::signalfd(-1, &raw const mask.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so nothing else owns it.
        Ok(SignalReceiver { fd: unsafe { OwnedFd::from_raw_fd(fd) }, former })
    }

    /// The mask that the thread had before [`SignalReceiver::take`].
    pub(super) fn former(&self) -> SignalMask {
        self.former
    }

    /// The next signal that arrived, if there is one.
    pub(super) fn next(&self) -> Option<ReceivedSignal> {
        // SAFETY: all zeroes is a valid value of this struct of numbers.
        let mut raw: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes to the struct, which outlives the call.
        let count = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut raw).cast(), size) };
        let is_for_all = raw.ssi_code > 0;
        (count == size as isize).then_some(ReceivedSignal { number: raw.ssi_signo as i32, is_for_all })
    }
}

impl AsRawFd for SignalReceiver {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for SignalReceiver {
    fn drop(&mut self) {
        // Signals that arrived during the recording were meant for the recording, so they are discarded.
        while self.next().is_some() {}
        let _ = change(libc::SIG_SETMASK, Some(&self.former));
    }
}

/// Sends a signal to a child that has not been reaped.
pub(super) fn send(child: u32, signal: i32) {
    if let (Some(child), Some(signal)) = (Pid::from_raw(child as i32), Signal::from_named_raw(signal)) {
        let _ = rustix::process::kill_process(child, signal);
    }
}

/// Sets whether this process becomes the parent of descendants whose own parents have ended.
pub(super) fn adopt_orphans(is_wanted: bool) -> io::Result<()> {
    // To the kernel, any process means "yes".
    Ok(rustix::process::set_child_subreaper(is_wanted.then_some(Pid::INIT))?)
}

/// Reaps an ended child: `child`, or any child if `child` is 0. Returns its process id and its status as `wait` reports
/// it.
pub(super) fn reap(child: u32) -> Option<(u32, i32)> {
    let ended = match Pid::from_raw(child as i32) {
        Some(child) => rustix::process::waitpid(Some(child), WaitOptions::NOHANG),
        None => rustix::process::wait(WaitOptions::NOHANG),
    };
    let (pid, status) = ended.ok()??;
    Some((pid.as_raw_nonzero().get() as u32, status.as_raw()))
}
