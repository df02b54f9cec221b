//! A thread with a separate table of descriptors. Processes are started from it.
//!
//! A process that is started inherits the descriptors of the thread that starts it, and closes them when its program
//! begins. Closing a file on a FUSE mount is a flush, which waits for the mount's process. So a test that has written
//! to an open file of a mount would wait for ever when it starts the server of its volume. This thread has no such
//! file.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

type Work = Box<dyn FnOnce() + Send>;

/// The first descriptor after standard input, standard output and standard error.
const FIRST_DESCRIPTOR: u32 = 3;

static WORK: OnceLock<Mutex<Sender<Work>>> = OnceLock::new();

fn start() -> Mutex<Sender<Work>> {
    let (sender, works) = channel::<Work>();
    std::thread::spawn(move || {
        // SAFETY: plain system calls. After the first call the table of descriptors belongs to this thread alone, and
        // the thread owns none of the descriptors that the second call closes.
        let is_alone =
            unsafe { libc::unshare(libc::CLONE_FILES) == 0 && libc::close_range(FIRST_DESCRIPTOR, u32::MAX, 0) == 0 };
        assert!(is_alone, "a separate table of descriptors: {}", std::io::Error::last_os_error());
        works.into_iter().for_each(|work| work());
    });
    Mutex::new(sender)
}

/// Does `work` in the separate thread, which lives as long as this process.
pub fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    let work: Work = Box::new(move || drop(done.send(work())));
    let sender = WORK.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner).clone();
    sender.send(work).ok().and_then(|()| result.recv().ok()).expect("the thread with the separate table has ended")
}
