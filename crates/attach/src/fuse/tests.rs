//! The FUSE file itself, without a loop device on it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_block::{OpenOptions, Registry, StatsFilter};
use tokio::sync::oneshot;

use super::serve::SLOTS;
use super::{Mount, Server, open_channel};
use crate::counters::Counters;

/// A served file; its thread ends with it, also where requests are under way.
struct Served {
    file: Option<File>,
    counters: Arc<Counters>,
    device: Arc<StatsFilter>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    /// Serves a device; `None`, with the reason printed, where this machine cannot.
    fn new(test: &str, spec: &str) -> Option<Served> {
        let mounted = open_channel().and_then(|channel| Mount::new(&channel).map(|mount| (channel, mount)));
        let (channel, mount) = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                println!("NOT RUN: {test}: {error}");
                return None;
            }
        };
        let (stop, stopped) = oneshot::channel();
        let counters = Arc::new(Counters::default());
        let (of_thread, spec) = (counters.clone(), spec.to_owned());
        let (opened, is_opened) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let device = Registry::with_builtins().open(&spec, &OpenOptions::default()).await.unwrap();
                let device = Arc::new(StatsFilter::new(device));
                opened.send(device.clone()).unwrap();
                let server = Arc::new(Server::new(channel, device, false, of_thread).unwrap());
                tokio::select! {
                    served = server.run() => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let device = is_opened.recv().unwrap();
        let file = mount.open("a-file", false).unwrap();
        Some(Served { file: Some(file), counters, device, stop: Some(stop), thread: Some(thread) })
    }

    fn file(&self) -> &File {
        self.file.as_ref().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.take();
        }
        // The last user of the file ends the mount, and the mount's end ends the thread.
        self.file.take();
        let stop = self.stop.take();
        if self.counters.read().interrupted > 0 {
            drop(stop);
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_read_whose_waiter_is_interrupted_is_answered_at_once() {
    let Some(served) = Served::new("interrupt", "delay(memory:1M,read=1h)") else { return };
    let began = Instant::now();
    let mut reader =
        Command::new("cat").stdin(served.file().try_clone().unwrap()).stdout(Stdio::null()).spawn().unwrap();
    // SAFETY: a plain system call; the child is not reaped yet, so its number is still its own.
    // Not SIGINT: what another shell runs in the background ignores it.
    let interrupt = || unsafe { libc::kill(reader.id() as i32, libc::SIGTERM) };
    // A read that the device does not have yet ends with its process, and nobody hears of an interrupt.
    while served.device.snapshot().reads.begun == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "cat does not read");
        std::thread::yield_now();
    }
    assert_eq!(interrupt(), 0);
    reader.wait().unwrap();
    while served.counters.read().interrupted == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the interrupt does not arrive");
        std::thread::yield_now();
    }
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn requests_at_the_limit_of_slots_and_one_past_it_are_all_answered() {
    let Some(served) = Served::new("slots", "delay(memory:1M,read=30ms)") else { return };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for index in 0..=u64::from(SLOTS) {
            let file = served.file();
            scope.spawn(move || {
                let mut bytes = [0xee; 4096];
                file.read_exact_at(&mut bytes, index * 4096).unwrap();
                assert!(bytes.iter().all(|&byte| byte == 0));
            });
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    assert_eq!(served.counters.read().reads, u64::from(SLOTS) + 1);
}

#[test]
fn what_the_device_refuses_is_an_error_and_the_next_request_is_served() {
    let Some(served) = Served::new("refusals", "memory:1M") else { return };
    let number = |result: io::Result<usize>| result.err().and_then(|error| error.raw_os_error());
    assert_eq!(number(served.file().read_at(&mut [0; 100], 0)), Some(libc::EINVAL));
    assert_eq!(number(served.file().write_at(&[0; 100], 0)), Some(libc::EINVAL));
    assert_eq!(served.file().write_at(&[7; 8192], 4096).unwrap(), 8192);
    let mut bytes = [0; 8192];
    assert_eq!(served.file().read_at(&mut bytes, 4096).unwrap(), 8192);
    assert_eq!(bytes, [7; 8192]);
    served.file().sync_all().unwrap();
    assert_eq!(served.file().metadata().unwrap().len(), 1 << 20);
    // The end of the device is the end of the file.
    assert_eq!(served.file().read_at(&mut bytes, (1 << 20) - 4096).unwrap(), 4096);
}
