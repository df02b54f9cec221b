//! A device that fails, or stops answering, exactly where a test says: at the read or write that has a chosen text.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use memchr::memmem;
use nectary_block::{
    Buffer, DeviceErrorKind, DeviceOperation, Error, Filter, IoContext, IoFuture, SharedDevice, WriteFlags,
};

/// What happens at a read or write that has the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MineFault {
    /// This read, and all later ones, are never answered.
    Hang,
    /// This read, and each later one that has the text, is an error, as of an unreadable sector.
    Unreadable,
    /// This write, and all later ones, are never answered.
    HangWrites,
    /// This write, and all later ones, are errors, as of a disk that has become read-only.
    Unwritable,
}

/// The state of the device, which the test shares with it.
#[derive(Clone, Default)]
pub struct DeviceMine {
    charge: Option<(MineFault, Arc<[u8]>)>,
    is_silent: Arc<AtomicBool>,
    is_armed: Arc<AtomicBool>,
    /// Why nothing can be written any more, if that is so.
    writes_end: Arc<Mutex<Option<MineFault>>>,
}

impl DeviceMine {
    /// A mine at the reads that have this text.
    pub fn at(fault: MineFault, text: &[u8]) -> DeviceMine {
        DeviceMine { charge: Some((fault, text.into())), ..DeviceMine::default() }
    }

    /// Arms the mine. Before that nothing happens, so an open may read what it likes.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Whether the device will become silent.
    pub fn hangs(&self) -> bool {
        matches!(self.charge, Some((MineFault::Hang | MineFault::HangWrites, _)))
    }

    /// Whether these bytes have the text of a fault, and the mine is armed.
    fn is_hit(&self, buffers: &[Buffer], faults: [MineFault; 2]) -> Option<MineFault> {
        let (fault, text) = self.charge.as_ref().filter(|(fault, _)| faults.contains(fault))?;
        if !self.is_armed.load(Ordering::SeqCst) {
            return None;
        }
        let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        memmem::find(&bytes, text).map(|_| *fault)
    }

    /// Puts the mine under a device.
    pub fn under(&self, inner: SharedDevice) -> SharedDevice {
        Arc::new(MinedDevice { inner, mine: self.clone() })
    }
}

struct MinedDevice {
    inner: SharedDevice,
    mine: DeviceMine,
}

impl Filter for MinedDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        "mined".into()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        // A read that has begun is answered although the device becomes silent.
        let (mine, is_silent) = (self.mine.clone(), self.mine.is_silent.load(Ordering::SeqCst));
        let read = self.inner.read_at(offset, buffers, context);
        Box::pin(async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            let buffers = read.await?;
            match mine.is_hit(&buffers, [MineFault::Hang, MineFault::Unreadable]) {
                None => Ok(buffers),
                Some(MineFault::Hang) => {
                    mine.is_silent.store(true, Ordering::SeqCst);
                    std::future::pending().await
                }
                Some(_) => Err(Error::new(DeviceErrorKind::Io, "mined", DeviceOperation::Read, "an unreadable sector")),
            }
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        if let Some(fault) = self.mine.is_hit(&buffers, [MineFault::HangWrites, MineFault::Unwritable]) {
            *self.mine.writes_end.lock().expect("a lock") = Some(fault);
        }
        match *self.mine.writes_end.lock().expect("a lock") {
            None => self.inner.write_at(offset, buffers, flags, context),
            Some(MineFault::HangWrites) => Box::pin(std::future::pending()),
            Some(_) => {
                let error = Error::new(DeviceErrorKind::Io, "mined", DeviceOperation::Write, "nothing can be written");
                Box::pin(std::future::ready(Err(error)))
            }
        }
    }
}
