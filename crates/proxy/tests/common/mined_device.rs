//! A device that fails, or stops answering, exactly where a test says: at the read that has a chosen text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem;
use nectary_block::{Buffer, Context, Error, ErrorKind, Filter, IoFuture, Operation, SharedDevice};

/// What happens at a read that has the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This read, and all later ones, are never answered.
    Hang,
    /// This read, and each later one that has the text, is an error, as of an unreadable sector.
    Unreadable,
}

/// The state of the device, which the test shares with it.
#[derive(Clone, Default)]
pub struct Mine {
    charge: Option<(Fault, Arc<[u8]>)>,
    is_silent: Arc<AtomicBool>,
    is_armed: Arc<AtomicBool>,
}

impl Mine {
    /// A mine at the reads that have this text.
    pub fn at(fault: Fault, text: &[u8]) -> Mine {
        Mine { charge: Some((fault, text.into())), ..Mine::default() }
    }

    /// Arms the mine. Before that nothing happens, so an open may read what it likes.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Whether the device will become silent.
    pub fn hangs(&self) -> bool {
        matches!(self.charge, Some((Fault::Hang, _)))
    }

    /// Puts the mine under a device.
    pub fn under(&self, inner: SharedDevice) -> SharedDevice {
        Arc::new(MinedDevice { inner, mine: self.clone() })
    }
}

struct MinedDevice {
    inner: SharedDevice,
    mine: Mine,
}

impl Filter for MinedDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        "mined".into()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: Context) -> IoFuture<Vec<Buffer>> {
        // A read that has begun is answered although the device becomes silent.
        let (mine, is_silent) = (self.mine.clone(), self.mine.is_silent.load(Ordering::SeqCst));
        let read = self.inner.read_at(offset, buffers, context);
        Box::pin(async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            let buffers = read.await?;
            let Some((fault, text)) = &mine.charge else { return Ok(buffers) };
            if !mine.is_armed.load(Ordering::SeqCst) {
                return Ok(buffers);
            }
            let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
            if memmem::find(&bytes, text).is_none() {
                return Ok(buffers);
            }
            match fault {
                Fault::Hang => {
                    mine.is_silent.store(true, Ordering::SeqCst);
                    std::future::pending().await
                }
                Fault::Unreadable => Err(Error::new(ErrorKind::Io, "mined", Operation::Read, "an unreadable sector")),
            }
        })
    }
}
