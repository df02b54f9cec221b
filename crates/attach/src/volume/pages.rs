//! The kernel's cached pages of files that other hosts change: those that programs have mapped.
//!
//! Owns: the thread that tells the kernel. The kernel may first write pages back, which is a request to this process, so
//! nothing that serves requests waits here.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nectary_fuse::Notifier;
use nectary_host::log::{Level, Throttle};
use nectary_volume::client::Kernel;
use tokio::sync::oneshot;

/// The way to the thread.
pub struct Pages {
    requests: Mutex<Option<Sender<Asked>>>,
}

/// An inode, a range of bytes, and who waits until it is done.
type Asked = (u64, Range<u64>, oneshot::Sender<()>);

impl Pages {
    /// Starts the thread; it ends after [`stop`](Self::stop).
    pub fn start(notifier: Notifier) -> std::io::Result<(Arc<Pages>, JoinHandle<()>)> {
        let (requests, asked) = channel::<Asked>();
        let thread = std::thread::Builder::new().name("nectary-pages".to_owned()).spawn(move || {
            while let Ok((inode, range, done)) = asked.recv() {
                // To the end is 0 here.
                let length = if range.end > i64::MAX as u64 { 0 } else { range.end - range.start };
                if let Err(error) = notifier.invalidate_node(inode, range.start as i64, length as i64) {
                    static FAILED: Throttle = Throttle::every(std::time::Duration::from_secs(60));
                    let message = format_args!("the kernel keeps old pages of inode {inode}: {error}");
                    FAILED.write(Level::Warning, "volume", message);
                }
                let _ = done.send(());
            }
        })?;
        Ok((Arc::new(Pages { requests: Mutex::new(Some(requests)) }), thread))
    }

    /// Lets the thread end.
    pub fn stop(&self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Kernel for Pages {
    fn invalidate(&self, inode: u64, range: Range<u64>) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        if let Some(requests) = &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the thread has ended, so has the mount.
            let _ = requests.send((inode, range, done));
        }
        is_done
    }
}
