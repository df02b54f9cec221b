//! Updates of the kernel's caches for files that other hosts change: pages that programs have mapped, and ends of
//! files.
//!
//! Owns: the threads that notify the kernel. The kernel may first write pages back, which is a request to this process,
//! or wait for a page that it is reading; so no code that serves requests may wait here. Ends have a separate thread:
//! an end may wait for a page whose read waits for the invalidation of another page.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nectary_fuse::KernelNotifier;
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_volume::client::HostKernel;
use tokio::sync::oneshot;

/// The queues of the threads.
pub struct PageQueues {
    ranges: PageRequestQueue<Range<u64>>,
    ends: PageRequestQueue<u64>,
}

/// A request to a thread: an inode, its argument, and the sender that reports the end.
type Asked<T> = (u64, T, oneshot::Sender<()>);

/// The queue of one thread.
struct PageRequestQueue<T>(Mutex<Option<Sender<Asked<T>>>>);

impl<T: Send + 'static> PageRequestQueue<T> {
    /// Starts a thread that does `work` for each request.
    fn start(
        name: &str,
        mut work: impl FnMut(u64, T) -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<(PageRequestQueue<T>, JoinHandle<()>)> {
        let (requests, asked) = channel::<Asked<T>>();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok((inode, what, done)) = asked.recv() {
                if let Err(error) = work(inode, what) {
                    static FAILED: LogThrottle = LogThrottle::every(std::time::Duration::from_secs(60));
                    let message = format_args!("the kernel keeps what is old of inode {inode}: {error}");
                    FAILED.write(LogLevel::Warning, "volume", message);
                }
                let _ = done.send(());
            }
        })?;
        Ok((PageRequestQueue(Mutex::new(Some(requests))), thread))
    }

    fn ask(&self, inode: u64, what: T) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        if let Some(requests) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the thread has ended, the mount has ended too.
            let _ = requests.send((inode, what, done));
        }
        is_done
    }

    fn stop(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl PageQueues {
    /// Starts the threads; they end after [`stop`](Self::stop).
    pub fn start(
        for_pages: KernelNotifier,
        for_ends: KernelNotifier,
    ) -> std::io::Result<(Arc<PageQueues>, [JoinHandle<()>; 2])> {
        let (ranges, first) = PageRequestQueue::start("nectary-pages", move |inode, range: Range<u64>| {
            // A length of 0 means up to the end of the file.
            let length = if range.end > i64::MAX as u64 { 0 } else { range.end - range.start };
            for_pages.invalidate_node(inode, range.start as i64, length as i64)
        })?;
        let (ends, second) =
            PageRequestQueue::start("nectary-ends", move |inode, size| for_ends.grow_node(inode, size))?;
        Ok((Arc::new(PageQueues { ranges, ends }), [first, second]))
    }

    /// Tells the threads to end.
    pub fn stop(&self) {
        self.ranges.stop();
        self.ends.stop();
    }
}

impl HostKernel for PageQueues {
    fn invalidate(&self, inode: u64, range: Range<u64>) -> oneshot::Receiver<()> {
        self.ranges.ask(inode, range)
    }

    fn grow(&self, inode: u64, size: u64) -> oneshot::Receiver<()> {
        self.ends.ask(inode, size)
    }
}
