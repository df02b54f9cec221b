//! `log(A,file=FILE)`: writes a line for each operation when it ends.
//!
//! A line has six words: the time at which the operation began, in seconds since 1970 with microseconds; the operation,
//! which is `write-fua` for a forced write; the offset; the length; the result, which is `ok`, `dropped` or the kind of
//! error; and the duration with its unit. Promises: lines are never mixed, and are in the order in which operations
//! end. Operations still work if the file cannot be written; lost lines are counted in [`LogFilter::lines_lost`]. The
//! filter writes from the calling thread, so it is for finding errors, not for measuring speed.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Filter;
use crate::device::{IoFuture, SharedDevice};
use crate::error::{DeviceOperation, Error};
use crate::figures::DeviceCounters;
use crate::request::DeviceRequest;
use crate::spec::quoted;

/// The `log` filter; see the comment at the head of this file.
pub struct LogFilter {
    inner: SharedDevice,
    log: Arc<OperationLog>,
}

struct OperationLog {
    file: File,
    path: PathBuf,
    lost: AtomicU64,
}

impl LogFilter {
    /// Makes a filter that writes a line for each operation on `inner` to the end of a file, which is created if it is
    /// absent.
    pub fn new(inner: SharedDevice, path: PathBuf) -> Result<LogFilter, Error> {
        let name = quoted(&path.to_string_lossy());
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|error| Error::from_os(&error, &name, DeviceOperation::Open))?;
        Ok(LogFilter { inner, log: Arc::new(OperationLog { file, path, lost: AtomicU64::new(0) }) })
    }

    /// The number of lines that could not be written.
    pub fn lines_lost(&self) -> u64 {
        self.log.lost.load(Ordering::Relaxed)
    }
}

/// An operation in progress; dropping this value writes the line of the operation.
struct LoggedOperation {
    log: Arc<OperationLog>,
    request: DeviceRequest,
    at: SystemTime,
    began: Instant,
    ended: String,
}

impl Drop for LoggedOperation {
    fn drop(&mut self) {
        let at_us = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let DeviceRequest { operation, offset, length, fua, .. } = self.request;
        let line = format!(
            "{}.{:06} {}{} {offset} {length} {} {}us\n",
            at_us / 1_000_000,
            at_us % 1_000_000,
            operation.as_str().replace(' ', "-"),
            if fua { "-fua" } else { "" },
            self.ended,
            self.began.elapsed().as_micros(),
        );
        // The line is written in one call to a file that is open for appending, so lines do not mix.
        let written = (&self.log.file).write(line.as_bytes());
        if !written.is_ok_and(|bytes| bytes == line.len()) {
            self.log.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Filter for LogFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        format!("log({},file={})", self.inner.spec(), quoted(&self.log.path.to_string_lossy()))
    }
    fn own_figures(&self) -> Option<DeviceCounters> {
        Some(DeviceCounters { device: "log", values: vec![("lines_lost", self.lines_lost())] })
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (at, began) = (SystemTime::now(), Instant::now());
        let mut pending = LoggedOperation { log: self.log.clone(), request, at, began, ended: "dropped".to_owned() };
        let operation = operation(&self.inner);
        Box::pin(async move {
            let result = operation.await;
            pending.ended = match &result {
                Ok(_) => "ok".to_owned(),
                Err(error) => error.kind.as_str().replace([' ', '/'], "-"),
            };
            drop(pending);
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, Buffer, IoContext, MemoryDevice, WriteFlags, read, write};

    struct TemporaryLogFile(PathBuf);

    impl Drop for TemporaryLogFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[tokio::test]
    async fn log_has_line_per_operation() {
        let file = TemporaryLogFile(std::env::temp_dir().join(format!("nectary-log-{}.log", std::process::id())));
        let device = LogFilter::new(Arc::new(MemoryDevice::new(1 << 20)), file.0.clone()).unwrap();
        write(&device, 8192, Buffer::zeroed(4096)).await.unwrap();
        let flags = WriteFlags { fua: true };
        BlockDevice::write_at(&device, 0, vec![Buffer::zeroed(4096)], flags, IoContext::default()).await.unwrap();
        assert!(read(&device, 1, 4096).await.is_err());
        drop(BlockDevice::flush(&device, IoContext::default()));
        BlockDevice::write_zeroes(&device, 0, 8192, IoContext::default()).await.unwrap();
        let text = std::fs::read_to_string(&file.0).unwrap();
        let words = |line: &str| line.split(' ').skip(1).take(4).map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(
            text.lines().map(words).collect::<Vec<_>>(),
            [
                "write 8192 4096 ok",
                "write-fua 0 4096 ok",
                "read 1 4096 invalid-request",
                "flush 0 0 dropped",
                "write-zeroes 0 8192 ok"
            ]
        );
        assert!(text.lines().all(|line| line.split(' ').count() == 6 && line.ends_with("us")), "{text}");
        assert_eq!(device.lines_lost(), 0);
    }

    #[tokio::test]
    async fn uncreatable_log_file_is_refused() {
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        let error = LogFilter::new(memory, PathBuf::from("/nowhere/at/all.log")).err().unwrap();
        assert_eq!(error.kind, crate::DeviceErrorKind::Absent, "{error}");
    }
}
