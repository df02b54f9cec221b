//! Tests of the FUSE file itself, without a loop device on it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_block::{Buffer, DeviceRegistry, OpenOptions, StatsFilter};
use nectary_fuse::{FuseChannel, request_bytes_allowed};
use tokio::sync::oneshot;

use super::serve::{REQUEST_BYTES, UNITS};
use super::{KernelDeviceServer, mount, open};
use crate::counters::AttachmentCounters;
use crate::error::Error;

/// A served file. Dropping it ends its thread, even with requests in flight.
struct ServedFile {
    file: Option<File>,
    counters: Arc<AttachmentCounters>,
    device: Arc<StatsFilter>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ServedFile {
    /// Serves a device; if this machine cannot, prints the reason and returns `None`.
    fn new(test: &str, spec: &str) -> Option<ServedFile> {
        let mounted = FuseChannel::open(false).map_err(Error::from);
        let mounted = mounted.and_then(|channel| mount(&channel).map(|mount| (channel, mount)));
        let (channel, mount) = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                println!("NOT RUN: {test}: {error}");
                return None;
            }
        };
        let (stop, stopped) = oneshot::channel();
        let counters = Arc::new(AttachmentCounters::default());
        let (of_thread, spec) = (counters.clone(), spec.to_owned());
        let (opened, is_opened) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let device = DeviceRegistry::with_builtins().open(&spec, &OpenOptions::default()).await.unwrap();
                let device = Arc::new(StatsFilter::new(device));
                opened.send(device.clone()).unwrap();
                let server = KernelDeviceServer::new(channel, device, false, of_thread).unwrap();
                tokio::select! {
                    served = server.run() => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let device = is_opened.recv().unwrap();
        let file = open(&mount, "a-file", false).unwrap();
        Some(ServedFile { file: Some(file), counters, device, stop: Some(stop), thread: Some(thread) })
    }

    fn file(&self) -> &File {
        self.file.as_ref().unwrap()
    }
}

impl Drop for ServedFile {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.take();
        }
        // Closing the file ends the mount, which ends the thread.
        self.file.take();
        let stop = self.stop.take();
        if self.counters.read().interrupted > 0 {
            drop(stop);
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn interrupted_read_answers_at_once() {
    let Some(served) = ServedFile::new("interrupt", "delay(memory:1M,read=1h)") else { return };
    let began = Instant::now();
    let mut reader =
        Command::new("cat").stdin(served.file().try_clone().unwrap()).stdout(Stdio::null()).spawn().unwrap();
    // SAFETY: a plain system call; the child is not reaped yet, so its number is not reused. The signal is not SIGINT,
    // because background processes of a shell ignore SIGINT.
    let interrupt = || unsafe { libc::kill(reader.id() as i32, libc::SIGTERM) };
    // Waits until the read has reached the device; before that, the read would end without an interrupt.
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

/// An interrupt is handled even while all memory for reads is in use.
#[test]
fn interrupt_passes_without_read_memory() {
    let Some(served) = ServedFile::new("interrupt without memory", "delay(memory:16M,read=1h)") else { return };
    let began = Instant::now();
    let read = |bytes: usize| {
        let mut command = Command::new("dd");
        // Each reader opens the file again: reads of one open file wait for each other.
        let path = format!("/proc/{}/fd/{}", std::process::id(), served.file().as_raw_fd());
        command.args([format!("if={path}"), format!("bs={bytes}"), "count=1".to_owned()]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    // The test starts as many of the largest reads as fit in all memory, and one more, which waits for memory.
    let bytes = REQUEST_BYTES.min(request_bytes_allowed());
    let count = UNITS * (64 << 10) / bytes;
    let mut readers: Vec<_> = (0..count).map(|_| read(bytes)).collect();
    while served.device.snapshot().reads.begun < count as u64 {
        assert!(began.elapsed() < Duration::from_secs(20), "dd does not read");
        std::thread::yield_now();
    }
    readers.push(read(4096));
    let last = format!("/proc/{}/syscall", readers[count].id());
    // Waits until `dd` has been in `read` of descriptor 0 for some time: it may wait elsewhere for a moment before it sends
    // its request, and a request that no worker has taken yet would end without an interrupt.
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(100) {
        if !std::fs::read_to_string(&last).unwrap_or_default().starts_with("0 0x0 ") {
            since = Instant::now();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the last dd does not read");
        std::thread::yield_now();
    }
    for (index, mut reader) in readers.into_iter().rev().enumerate() {
        // SAFETY: a plain system call; the child is not reaped yet, so its number is not reused.
        assert_eq!(unsafe { libc::kill(reader.id() as i32, libc::SIGTERM) }, 0);
        reader.wait().unwrap();
        while served.counters.read().interrupted <= index as u64 {
            assert!(began.elapsed() < Duration::from_secs(20), "interrupt {index} does not arrive");
            std::thread::yield_now();
        }
    }
    assert_eq!(served.device.snapshot().reads.begun, count as u64, "the last one got no memory");
}

/// Requests at the limit of memory and one past it are all answered.
#[test]
fn requests_around_memory_limit_succeed() {
    let Some(served) = ServedFile::new("memory", "delay(memory:1M,read=30ms)") else { return };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for index in 0..=UNITS as u64 {
            let file = served.file();
            scope.spawn(move || {
                let mut bytes = [0xee; 4096];
                file.read_exact_at(&mut bytes, index % 256 * 4096).unwrap();
                assert!(bytes.iter().all(|&byte| byte == 0));
            });
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    assert_eq!(served.counters.read().reads, UNITS as u64 + 1);
}

/// Writes beyond all memory, and a flush among them, are all answered.
#[test]
fn writes_beyond_memory_complete() {
    let Some(served) = ServedFile::new("writes", "delay(memory:16M,write=5ms,flush=5ms)") else { return };
    std::thread::scope(|scope| {
        for index in 0..32u64 {
            let file = served.file();
            scope.spawn(move || {
                // The memory must be page-aligned: for other memory the kernel makes requests that are no multiple of a
                // page.
                let mut bytes = Buffer::zeroed(1 << 20);
                bytes.fill(index as u8 + 1);
                file.write_all_at(&bytes, (index % 16) << 20).unwrap();
                file.sync_all().unwrap();
            });
        }
    });
    let figures = served.counters.read();
    assert_eq!((figures.bytes_written, figures.flushes, figures.failed), (32 << 20, 32, 0));
    let largest = (32 << 20) / figures.writes;
    assert_eq!(
        largest,
        REQUEST_BYTES.min(request_bytes_allowed()) as u64,
        "requests are as large as the kernel allows"
    );
}

#[test]
fn device_error_spares_next_request() {
    let Some(served) = ServedFile::new("refusals", "memory:1M") else { return };
    let number = |result: io::Result<usize>| result.err().and_then(|error| error.raw_os_error());
    assert_eq!(number(served.file().read_at(&mut [0; 100], 0)), Some(libc::EINVAL));
    assert_eq!(number(served.file().write_at(&[0; 100], 0)), Some(libc::EINVAL));
    assert_eq!(served.file().write_at(&[7; 8192], 4096).unwrap(), 8192);
    let mut bytes = [0; 8192];
    assert_eq!(served.file().read_at(&mut bytes, 4096).unwrap(), 8192);
    assert_eq!(bytes, [7; 8192]);
    served.file().sync_all().unwrap();
    assert_eq!(served.file().metadata().unwrap().len(), 1 << 20);
    // A read over the end of the device ends there.
    assert_eq!(served.file().read_at(&mut bytes, (1 << 20) - 4096).unwrap(), 4096);
}
