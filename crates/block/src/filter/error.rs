//! `error(A,rate=1%,on=read|write|flush,kind=io|full,when=FILE,seed=N)`: fails a share of the operations.
//!
//! Promises: an operation that the filter fails never reaches the device below. With the same seed and the same order
//! of operations, the same operations fail. The filter does not latch; the user of the filter decides how to react to
//! an error.

use std::path::PathBuf;

use super::{Filter, SeededChance, TriggerFile, options_text};
use crate::device::{IoFuture, SharedDevice};
use crate::error::{DeviceErrorKind, DeviceOperation};
use crate::request::{DeviceRequest, ready};
use crate::spec::quoted;

/// The kinds of operations that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailingOperations {
    /// Reads.
    pub read: bool,
    /// Writes, writes of zeroes and discards.
    pub write: bool,
    /// Flushes.
    pub flush: bool,
}

impl FailingOperations {
    /// Reads words joined by `|`, such as `read|flush`.
    pub fn parse(text: &str) -> Result<FailingOperations, String> {
        let mut on = FailingOperations { read: false, write: false, flush: false };
        for word in text.split('|') {
            match word {
                "read" => on.read = true,
                "write" => on.write = true,
                "flush" => on.flush = true,
                _ => return Err(format!("\"{word}\" is no operation; write read, write or flush, joined by |")),
            }
        }
        Ok(on)
    }

    fn text(self) -> String {
        let words = [(self.read, "read"), (self.write, "write"), (self.flush, "flush")];
        words.iter().filter_map(|&(on, word)| on.then_some(word)).collect::<Vec<_>>().join("|")
    }
}

/// The settings of the `error` filter.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorOptions {
    /// The share of operations that fail, from 0 to 1.
    pub rate: f64,
    /// The kinds of operations that can fail.
    pub on: FailingOperations,
    /// The kind of the errors: [`DeviceErrorKind::Io`] or [`DeviceErrorKind::Full`].
    pub kind: DeviceErrorKind,
    /// If set, operations fail only while this file exists.
    pub when: Option<PathBuf>,
    /// The seed that decides which operations fail.
    pub seed: u64,
}

impl Default for ErrorOptions {
    fn default() -> ErrorOptions {
        let on = FailingOperations { read: true, write: true, flush: true };
        ErrorOptions { rate: 1.0, on, kind: DeviceErrorKind::Io, when: None, seed: 0 }
    }
}

/// The `error` filter; see the comment at the head of this file.
pub struct ErrorFilter {
    inner: SharedDevice,
    options: ErrorOptions,
    chance: SeededChance,
    trigger: TriggerFile,
}

impl ErrorFilter {
    /// Makes a filter that fails some of the operations on `inner`.
    pub fn new(inner: SharedDevice, options: ErrorOptions) -> ErrorFilter {
        let chance = SeededChance::new(options.rate, options.seed);
        let trigger = TriggerFile(options.when.clone());
        ErrorFilter { inner, options, chance, trigger }
    }

    fn fails(&self, operation: DeviceOperation) -> bool {
        let FailingOperations { read, write, flush } = self.options.on;
        let is_chosen = match operation {
            DeviceOperation::Read => read,
            DeviceOperation::Write | DeviceOperation::WriteZeroes | DeviceOperation::Discard => write,
            DeviceOperation::Flush => flush,
            DeviceOperation::Open | DeviceOperation::Allocation | DeviceOperation::Grow | DeviceOperation::Close => {
                false
            }
        };
        is_chosen && self.trigger.is_on() && self.chance.draw().is_some()
    }
}

impl Filter for ErrorFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        let ErrorOptions { rate, on, kind, when, seed } = &self.options;
        let options = options_text([
            ("rate", Some(format!("{}%", rate * 100.0))),
            ("on", Some(on.text())),
            ("kind", Some(if *kind == DeviceErrorKind::Full { "full" } else { "io" }.to_owned())),
            ("when", when.as_ref().map(|path| quoted(&path.to_string_lossy()))),
            ("seed", Some(seed.to_string())),
        ]);
        format!("error({}{options})", self.inner.spec())
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if self.fails(request.operation) {
            let detail = "the error filter failed it on purpose".to_owned();
            return ready(Err(request.error(self.options.kind, || Filter::spec(self), detail)));
        }
        operation(&self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, Buffer, IoContext, OpenOptions, open, read, write};

    #[tokio::test]
    async fn chosen_operations_fail_at_rate() {
        let spec = "error(memory:1M,rate=50%,on=write,kind=full,seed=3)";
        let device = open(spec, &OpenOptions::default()).await.unwrap();
        assert_eq!(device.spec(), spec);
        let mut failed = 0;
        for _ in 0..200 {
            read(&*device, 0, 4096).await.unwrap();
            if let Err(error) = write(&*device, 0, Buffer::zeroed(4096)).await {
                assert_eq!((error.kind, error.length), (DeviceErrorKind::Full, 4096));
                failed += 1;
            }
        }
        assert!((60..140).contains(&failed), "{failed}");
    }

    #[tokio::test]
    async fn errors_need_trigger_file() {
        let when = std::env::temp_dir().join(format!("nectary-error-{}", std::process::id()));
        let memory = open("memory:1M", &OpenOptions::default()).await.unwrap();
        let options = ErrorOptions { when: Some(when.clone()), ..ErrorOptions::default() };
        let device = ErrorFilter::new(memory, options);
        BlockDevice::flush(&device, IoContext::default()).await.unwrap();
        std::fs::write(&when, "").unwrap();
        assert_eq!(BlockDevice::flush(&device, IoContext::default()).await.unwrap_err().kind, DeviceErrorKind::Io);
        std::fs::remove_file(&when).unwrap();
        BlockDevice::flush(&device, IoContext::default()).await.unwrap();
    }
}
