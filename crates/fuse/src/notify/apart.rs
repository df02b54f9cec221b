//! A thread that writes messages to the kernel, with its own table of descriptors.
//!
//! A message may wait in the kernel for a lock that a call holds until its request is answered. Nothing ends this wait
//! early, and a killed process keeps its descriptors until the last thread that shares them has ended. With one table for
//! all threads, a process that is killed during such a wait would never end: the kernel fails a request that is not
//! answered when the descriptor from which it was read is closed. As this thread shares no descriptors, those of the
//! requests are closed when the process is killed; the calls fail, their locks become free, and this thread ends as well.
//! Calls that begin meanwhile, and hold the lock, too, are ended by the [guard](crate::AbortGuard).
//!
//! Owns: the thread, and its descriptor. It prints nothing, because it has no other descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::channel::FuseChannel;

/// The stack of the thread. *Units*: bytes.
const STACK_BYTES: usize = 128 << 10;

/// A message to the kernel.
pub(crate) struct KernelMessage {
    pub code: i32,
    pub bytes: Vec<u8>,
    /// The number of bytes at an address that cannot be read, after those of the message.
    pub nowhere: Option<u32>,
}

impl KernelMessage {
    /// Writes the message.
    pub fn write(&self, channel: &FuseChannel) -> io::Result<()> {
        match self.nowhere {
            Some(bytes) => channel.write_nowhere(self.code, &self.bytes, bytes),
            None => channel.write(0, self.code, &[IoSlice::new(&self.bytes)]),
        }
    }
}

/// The messages, and the results, in the same order.
type MessageEnds = (Sender<KernelMessage>, Receiver<io::Result<()>>);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ApartThread {
    ends: Mutex<Option<MessageEnds>>,
    thread: Option<JoinHandle<()>>,
}

impl ApartThread {
    /// Starts a thread that writes to the connection of `source`.
    pub fn start(source: &FuseChannel) -> io::Result<ApartThread> {
        let (messages, to_write) = channel::<KernelMessage>();
        let (written, results) = channel();
        let source = source.as_raw_fd();
        let thread = std::thread::Builder::new().name("nectary-notify".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || {
            let own = own_channel(source);
            let started = own.as_ref().map(drop).map_err(|error| io::Error::from(error.kind()));
            let (Ok(()), Ok(own)) = (written.send(started), own) else { return };
            // An error means that nobody waits for the result.
            while let Ok(message) = to_write.recv()
                && written.send(message.write(&own)).is_ok()
            {}
        })?;
        // Until now the thread uses the descriptor of `source`.
        results.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(ApartThread { ends: Mutex::new(Some((messages, results))), thread: Some(thread) })
    }

    /// Writes a message, and returns the result. Messages are written one after another.
    pub fn write(&self, message: KernelMessage) -> io::Result<()> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (messages, results) = ends.as_ref().ok_or_else(ended)?;
        messages.send(message).map_err(|_| ended())?;
        results.recv().unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for ApartThread {
    fn drop(&mut self) {
        drop(self.ends.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives this thread its own table of descriptors, with nothing but a new descriptor of the connection of `source`.
fn own_channel(source: RawFd) -> io::Result<FuseChannel> {
    // SAFETY: the call takes no pointers; afterwards this thread uses a copy of the table.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let own = FuseChannel::of_connection(source)?;
    let number = own.as_raw_fd() as u32;
    let others = [(0, number.checked_sub(1)), (number + 1, Some(u32::MAX))];
    for (first, last) in others.into_iter().filter_map(|(first, last)| Some((first, last?))) {
        // SAFETY: this thread alone uses the table, and nothing in it owns one of these descriptors.
        if unsafe { libc::close_range(first, last, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::pair;

    /// It writes what it is given, has one descriptor, and leaves those of the process alone.
    #[test]
    fn apart_thread_has_one_descriptor() {
        let (kernel, channel) = pair();
        let apart = ApartThread::start(&channel).expect("it starts");
        apart.write(KernelMessage { code: 3, bytes: vec![7; 8], nowhere: None }).expect("it is written");
        let told = kernel.answer().expect("a message");
        assert_eq!((told.unique, told.error, told.bytes), (0, 3, vec![7; 8]));
        let tasks = std::fs::read_dir("/proc/self/task").expect("they are read").map_while(Result::ok);
        let of_thread = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "nectary-notify")
        };
        let counts: Vec<usize> = tasks
            .filter(of_thread)
            .map(|task| std::fs::read_dir(task.path().join("fd")).map_or(0, Iterator::count))
            .collect();
        assert_eq!(counts, [1]);
        drop(apart);
        assert!(channel.answer(2, 0, &[]).is_ok() && kernel.answer().is_some_and(|answer| answer.unique == 2));
    }
}
