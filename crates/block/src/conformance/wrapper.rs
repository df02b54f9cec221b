//! Clauses about devices on top of another one: the end of the use reaches the device below.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Verdict, ensure, succeed};
use crate::buffer::Buffer;
use crate::device::{IoContext, IoFuture, SharedDevice, write};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::filter::Filter;
use crate::memory::MemoryDevice;
use crate::request::ready;

type Run = fn(SharedDevice, Arc<CloseCountingDevice>) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// The name of each clause, whether the device below fails to end, and the check.
pub(super) const CLAUSES: &[(&str, bool, Run)] = &[
    ("the end of the use reaches the device below", false, |device, below| Box::pin(passed_on(device, below))),
    ("a failed end is reported", true, |device, below| Box::pin(reported(device, below))),
];

/// Memory that counts how often its use ended.
pub(super) struct CloseCountingDevice {
    memory: SharedDevice,
    is_failing: bool,
    ends: AtomicUsize,
}

impl CloseCountingDevice {
    pub fn new(size_bytes: u64, is_failing: bool) -> Arc<CloseCountingDevice> {
        let memory = Arc::new(MemoryDevice::new(size_bytes));
        Arc::new(CloseCountingDevice { memory, is_failing, ends: AtomicUsize::new(0) })
    }

    fn ends(&self) -> usize {
        self.ends.load(Ordering::Relaxed)
    }
}

impl Filter for CloseCountingDevice {
    fn inner(&self) -> &SharedDevice {
        &self.memory
    }

    fn spec(&self) -> String {
        self.memory.spec()
    }

    fn close(&self) -> IoFuture<()> {
        self.ends.fetch_add(1, Ordering::Relaxed);
        ready(match self.is_failing {
            false => Ok(()),
            true => {
                Err(Error::new(DeviceErrorKind::Io, &self.memory.spec(), DeviceOperation::Close, "it cannot be told"))
            }
        })
    }
}

/// Uses a device, so that the end is not its first operation.
async fn used(device: &SharedDevice) -> Verdict {
    let block = device.geometry().block_bytes as usize;
    succeed(write(&**device, 0, Buffer::zeroed(block)).await, "a write")?;
    succeed(device.flush(IoContext::default()).await, "a flush")
}

async fn passed_on(device: SharedDevice, below: Arc<CloseCountingDevice>) -> Verdict {
    used(&device).await?;
    ensure(below.ends() == 0, || "the use below ended before the use of the device".to_owned())?;
    succeed(device.close().await, "the end of the use")?;
    ensure(below.ends() > 0, || "the use of the device ended, and that of the device below did not".to_owned())?;
    succeed(device.close().await, "a second end")
}

async fn reported(device: SharedDevice, below: Arc<CloseCountingDevice>) -> Verdict {
    used(&device).await?;
    let ended = device.close().await;
    ensure(below.ends() > 0, || "the use below did not end".to_owned())?;
    ensure(ended.is_err(), || "the end failed below, and nothing was reported".to_owned())
}
