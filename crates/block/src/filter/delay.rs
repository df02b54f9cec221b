//! `delay(A,read=12ms,write=12ms,flush=12ms,when=FILE)`: delays operations before they reach the device below.
//!
//! Promises: if the future of an operation is dropped during the wait, or its deadline passes, the operation does not
//! happen. With `when`, operations are delayed only while the file exists; so a delay of an hour is a device that hangs
//! until the file is removed.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use super::{Filter, TriggerFile, options_text, wait_until};
use crate::device::{IoFuture, SharedDevice};
use crate::error::DeviceOperation;
use crate::request::DeviceRequest;
use crate::spec::quoted;

/// How often a delayed operation looks whether the file of `when` still exists.
const STEP: Duration = Duration::from_millis(20);

/// The time for which each kind of operation waits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelayOptions {
    /// The wait before a read.
    pub read: Duration,
    /// The wait before a write, a write of zeroes or a discard.
    pub write: Duration,
    /// The wait before a flush.
    pub flush: Duration,
    /// If set, operations are delayed only while this file exists.
    pub when: Option<PathBuf>,
}

/// The `delay` filter; see the comment at the head of this file.
pub struct DelayFilter {
    inner: SharedDevice,
    options: DelayOptions,
}

impl DelayFilter {
    /// Makes a filter that delays the operations on `inner`.
    pub fn new(inner: SharedDevice, options: DelayOptions) -> DelayFilter {
        DelayFilter { inner, options }
    }

    /// The time for which an operation waits.
    fn delay(&self, operation: DeviceOperation) -> Duration {
        match operation {
            DeviceOperation::Read => self.options.read,
            DeviceOperation::Write | DeviceOperation::WriteZeroes | DeviceOperation::Discard => self.options.write,
            DeviceOperation::Flush => self.options.flush,
            DeviceOperation::Open | DeviceOperation::Allocation | DeviceOperation::Grow | DeviceOperation::Close => {
                Duration::ZERO
            }
        }
    }
}

impl Filter for DelayFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        let text = |delay: Duration| (!delay.is_zero()).then(|| format!("{}us", delay.as_micros()));
        let DelayOptions { read, write, flush, when } = &self.options;
        let options = options_text([
            ("read", text(*read)),
            ("write", text(*write)),
            ("flush", text(*flush)),
            ("when", when.as_ref().map(|path| quoted(&path.to_string_lossy()))),
        ]);
        format!("delay({}{options})", self.inner.spec())
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let delay = self.delay(request.operation);
        let trigger = TriggerFile(self.options.when.clone());
        if delay.is_zero() || !trigger.is_on() {
            return operation(&self.inner);
        }
        let (inner, spec) = (self.inner.clone(), Filter::spec(self));
        Box::pin(async move {
            let end = Instant::now() + delay;
            if trigger.0.is_some() {
                let mut step = Instant::now() + STEP;
                while step < end && trigger.is_on() {
                    wait_until(step, &request, || (spec.clone(), format!("the delay of {delay:?}"))).await?;
                    step += STEP;
                }
            } else {
                wait_until(end, &request, || (spec, format!("the delay of {delay:?}"))).await?;
            }
            operation(&inner).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{BlockDevice, DeviceErrorKind, IoContext, OpenOptions, open, read};

    #[tokio::test]
    async fn operations_take_at_least_their_delay() {
        let device = open("delay(memory:1M,read=20ms)", &OpenOptions::default()).await.unwrap();
        let began = Instant::now();
        read(&*device, 0, 4096).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(device.spec(), "delay(memory:1M,read=20000us)");
    }

    #[tokio::test]
    async fn deadline_within_delay_times_out() {
        let options = DelayOptions { flush: Duration::from_secs(3600), ..DelayOptions::default() };
        let memory = open("memory:1M", &OpenOptions::default()).await.unwrap();
        let device = DelayFilter::new(memory, options);
        let deadline = Some(Instant::now() + Duration::from_millis(5));
        let error = BlockDevice::flush(&device, IoContext { deadline, ..IoContext::default() }).await.unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::TimedOut);
    }
}
