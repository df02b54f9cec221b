//! The device of a span with the deadline of its operations: reads that take longer fail, and all other operations count
//! as overdue.
//!
//! Owns: which operations have which deadline. Leaves to others: what a silent device means (`health`).

use std::sync::Arc;
use std::time::Instant;

use nectary_block::{Buffer, Context, Filter, IoFuture, Request, SharedDevice};

use super::health::Health;

/// A device whose operations are watched.
pub(crate) struct Watched {
    inner: SharedDevice,
    health: Arc<Health>,
}

impl Watched {
    /// Watches the operations on a device.
    pub fn over(inner: SharedDevice, health: &Arc<Health>) -> SharedDevice {
        Arc::new(Watched { inner, health: Arc::clone(health) })
    }
}

impl Filter for Watched {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        _: Request,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (running, health) = (operation(&self.inner), Arc::clone(&self.health));
        Box::pin(async move { health.watch(running).await })
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: Context) -> IoFuture<Vec<Buffer>> {
        let health = Arc::clone(&self.health);
        let Some(limit) = self.health.limit() else {
            // A part of the store that cannot be read now would count as damaged, so the open waits for it.
            let read = self.inner.read_at(offset, buffers, context);
            return Box::pin(async move { health.watch(read).await });
        };
        let deadline = Instant::now() + limit;
        let deadline = Some(context.deadline.map_or(deadline, |own| own.min(deadline)));
        let read = self.inner.read_at(offset, buffers, Context { deadline, ..context });
        Box::pin(async move {
            let result = read.await;
            health.note_read(&result);
            result
        })
    }
}
