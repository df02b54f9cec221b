//! Lets callers wait: for a task that continues even if the caller is dropped, and at most until a deadline.

use std::time::Instant;

use nectary_block::{DeviceErrorKind, DeviceOperation, Error, IoFuture};
use tokio::task::JoinHandle;

use crate::source::ByteSource;

/// A future that is ready at once.
pub(crate) fn ready<T: Send + 'static>(result: Result<T, Error>) -> IoFuture<T> {
    Box::pin(std::future::ready(result))
}

/// Makes the error of an operation whose deadline passed.
pub(crate) fn late(
    source: &dyn ByteSource,
    operation: DeviceOperation,
    offset: u64,
    length: u64,
) -> impl FnOnce() -> Error + Send + use<> {
    let name = source.name();
    move || {
        let detail = "the deadline passed before it ended; it may still happen";
        Error::new(DeviceErrorKind::TimedOut, &name, operation, detail).at(offset, length)
    }
}

/// Waits for `work`, but not beyond a deadline.
pub(crate) fn within<T: Send + 'static>(
    deadline: Option<Instant>,
    late: impl FnOnce() -> Error + Send + 'static,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> IoFuture<T> {
    match deadline {
        None => Box::pin(work),
        Some(deadline) => Box::pin(async move {
            match tokio::time::timeout_at(deadline.into(), work).await {
                Ok(result) => result,
                Err(_) => Err(late()),
            }
        }),
    }
}

/// Waits for the end of a task.
pub(crate) async fn ended<T>(task: JoinHandle<Result<T, Error>>) -> Result<T, Error> {
    match task.await {
        Ok(result) => result,
        Err(error) => {
            let detail = format!("the task that did it ended early: {error}");
            Err(Error::new(DeviceErrorKind::Io, "cache", DeviceOperation::Open, detail))
        }
    }
}
