//! `delay(A,read=12ms,write=12ms,flush=12ms)`: lets operations wait before they reach the device below.
//!
//! Promises: an operation whose future is dropped, or whose deadline passes, while it waits does not happen.

use std::time::Duration;

use super::{Filter, options_text, total};
use crate::buffer::Buffer;
use crate::device::{Context, IoFuture, SharedDevice, WriteFlags};
use crate::error::{Error, ErrorKind, Operation};

/// How long each kind of operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DelayOptions {
    /// Before a read.
    pub read: Duration,
    /// Before a write, a write of zeroes or a discard.
    pub write: Duration,
    /// Before a flush.
    pub flush: Duration,
}

/// The `delay` filter; see the file's head.
pub struct DelayFilter {
    inner: SharedDevice,
    options: DelayOptions,
}

impl DelayFilter {
    /// Lets what passes to `inner` wait.
    pub fn new(inner: SharedDevice, options: DelayOptions) -> DelayFilter {
        DelayFilter { inner, options }
    }

    fn later<T: Send + 'static>(
        &self,
        delay: Duration,
        context: Context,
        place: (Operation, u64, u64),
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if delay.is_zero() {
            return operation(&self.inner);
        }
        let inner = self.inner.clone();
        let spec = Filter::spec(self);
        Box::pin(async move {
            let end = tokio::time::Instant::now() + delay;
            match context.deadline {
                Some(deadline) if end > deadline.into() => {
                    tokio::time::sleep_until(deadline.into()).await;
                    let (name, offset, length) = place;
                    let detail = format!("the deadline passed during the delay of {delay:?}; it did not happen");
                    Err(Error::new(ErrorKind::TimedOut, &spec, name, detail).at(offset, length))
                }
                _ => {
                    tokio::time::sleep_until(end).await;
                    operation(&inner).await
                }
            }
        })
    }
}

impl Filter for DelayFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        let text = |delay: Duration| (!delay.is_zero()).then(|| format!("{}us", delay.as_micros()));
        let DelayOptions { read, write, flush } = self.options;
        let options = options_text([("read", text(read)), ("write", text(write)), ("flush", text(flush))]);
        format!("delay({}{options})", self.inner.spec())
    }
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: Context) -> IoFuture<Vec<Buffer>> {
        let place = (Operation::Read, offset, total(&buffers));
        self.later(self.options.read, context, place, move |inner| inner.read_at(offset, buffers, context))
    }
    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: Context,
    ) -> IoFuture<Vec<Buffer>> {
        let place = (Operation::Write, offset, total(&buffers));
        self.later(self.options.write, context, place, move |inner| inner.write_at(offset, buffers, flags, context))
    }
    fn flush(&self, context: Context) -> IoFuture<()> {
        self.later(self.options.flush, context, (Operation::Flush, 0, 0), move |inner| inner.flush(context))
    }
    fn discard(&self, offset: u64, length: u64, context: Context) -> IoFuture<()> {
        let place = (Operation::Discard, offset, length);
        self.later(self.options.write, context, place, move |inner| inner.discard(offset, length, context))
    }
    fn write_zeroes(&self, offset: u64, length: u64, context: Context) -> IoFuture<()> {
        let place = (Operation::WriteZeroes, offset, length);
        self.later(self.options.write, context, place, move |inner| inner.write_zeroes(offset, length, context))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{BlockDevice, OpenOptions, open, read};

    #[tokio::test]
    async fn operations_take_at_least_their_delay() {
        let device = open("delay(memory:1M,read=20ms)", &OpenOptions::default()).await.unwrap();
        let began = Instant::now();
        read(&*device, 0, 4096).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(device.spec(), "delay(memory:1M,read=20000us)");
    }

    #[tokio::test]
    async fn deadline_inside_the_delay_is_a_time_out() {
        let options = DelayOptions { flush: Duration::from_secs(3600), ..DelayOptions::default() };
        let memory = open("memory:1M", &OpenOptions::default()).await.unwrap();
        let device = DelayFilter::new(memory, options);
        let deadline = Some(Instant::now() + Duration::from_millis(5));
        let error = BlockDevice::flush(&device, Context { deadline, ..Context::default() }).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::TimedOut);
    }
}
