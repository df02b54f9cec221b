//! Waiting for several futures at the same time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs all futures concurrently to their ends; the results are in the order of the futures.
pub(crate) async fn together<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut all = ConcurrentFutures {
        results: futures.iter().map(|_| None).collect(),
        pending: futures.into_iter().map(|future| Some(Box::pin(future))).collect(),
    };
    std::future::poll_fn(|context| all.poll(context)).await
}

struct ConcurrentFutures<F: Future> {
    pending: Vec<Option<Pin<Box<F>>>>,
    results: Vec<Option<F::Output>>,
}

impl<F: Future> ConcurrentFutures<F> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        for (pending, result) in self.pending.iter_mut().zip(&mut self.results) {
            if let Some(future) = pending
                && let Poll::Ready(done) = future.as_mut().poll(context)
            {
                (*pending, *result) = (None, Some(done));
            }
        }
        match self.pending.iter().all(Option::is_none) {
            true => Poll::Ready(self.results.iter_mut().filter_map(Option::take).collect()),
            false => Poll::Pending,
        }
    }
}
