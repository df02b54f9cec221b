//! How requests are served in the runtime: their work, their answers, and giving them up.
//!
//! Owns: the tasks. Promises: a change that is given up is done before later changes of names and attributes by this host,
//! and before locks are released; what was found or made for a program that is gone counts no look-up and leaves no
//! handle. Leaves to others: when a request is given up (`killed_callers`), its work (`calls`).

use std::sync::Arc;

use nectary_fuse::{Errno, ReplyHandle, RequestContext};
use nectary_volume::client::WaitKind;

use super::killed_callers::is_killed;
use super::serve::{VolumeFileSystem, VolumeService};

/// Whether a request changes names or attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEffect {
    Nothing,
    Change,
}

impl VolumeService {
    /// Serves a request: `work` does it, and `answer` sends the answer.
    pub(super) fn run<T, W>(
        &self,
        reply: ReplyHandle,
        work: impl FnOnce(Arc<VolumeFileSystem>) -> W + Send + 'static,
        answer: impl FnOnce(ReplyHandle, &VolumeFileSystem, T) + Send + 'static,
    ) where
        W: Future<Output = Result<T, Errno>> + Send,
        T: Send + 'static,
    {
        let this = self.0.clone();
        let progress = reply.progress();
        self.0.spawn(progress.of(async move {
            match work(this.clone()).await {
                Ok(value) => answer(reply, &this, value),
                Err(error) => reply.error(error),
            }
        }));
    }

    /// Serves a request that changes nothing as [`run`](Self::run) does. If its program is being killed, the request is
    /// given up: it is answered with EINTR, and what `work` returns later is dropped.
    pub(super) fn ask<T, W>(
        &self,
        of: RequestContext,
        reply: ReplyHandle,
        work: impl FnOnce(Arc<VolumeFileSystem>) -> W + Send + 'static,
        answer: impl FnOnce(ReplyHandle, &VolumeFileSystem, T) + Send + 'static,
    ) where
        W: Future<Output = Result<T, Errno>> + Send + 'static,
        T: Send + 'static,
    {
        self.serve_killable(RequestEffect::Nothing, (of, reply), work, answer, |_| std::future::ready(()));
    }

    /// Serves a request that changes names or attributes as [`ask`](Self::ask) does. If it is given up, the change is done
    /// later; if it has not begun, it is not done.
    pub(super) fn change<T, W>(
        &self,
        of: RequestContext,
        reply: ReplyHandle,
        work: impl FnOnce(Arc<VolumeFileSystem>) -> W + Send + 'static,
        answer: impl FnOnce(ReplyHandle, &VolumeFileSystem, T) + Send + 'static,
    ) where
        W: Future<Output = Result<T, Errno>> + Send + 'static,
        T: Send + 'static,
    {
        self.serve_killable(RequestEffect::Change, (of, reply), work, answer, |_| std::future::ready(()));
    }

    /// Serves a request as [`ask`](Self::ask) or [`change`](Self::change) does; `end` ends what `work` returns after the request
    /// was given up.
    pub(super) fn serve_killable<T, W, E>(
        &self,
        effect: RequestEffect,
        (of, reply): (RequestContext, ReplyHandle),
        work: impl FnOnce(Arc<VolumeFileSystem>) -> W + Send + 'static,
        answer: impl FnOnce(ReplyHandle, &VolumeFileSystem, T) + Send + 'static,
        end: impl FnOnce(T) -> E + Send + 'static,
    ) where
        W: Future<Output = Result<T, Errno>> + Send + 'static,
        E: Future<Output = ()> + Send + 'static,
        T: Send + 'static,
    {
        let (this, thread) = (self.0.clone(), of.caller.thread);
        let progress = reply.progress();
        self.0.spawn(progress.of(async move {
            if effect == RequestEffect::Change && this.given_up.is_any() {
                let is_given_up = tokio::select! {
                    biased;
                    () = WaitKind::File.during(of.node, this.given_up.ended()) => false,
                    _place = this.killed_callers.killed(|| reply.is_interrupted(), || is_killed(thread)) => true,
                };
                if is_given_up {
                    return reply.errno(libc::EINTR);
                }
            }
            let mut work = std::pin::pin!(work(this.clone()));
            let done = tokio::select! {
                biased;
                done = &mut work => Ok(done),
                place = this.killed_callers.killed(|| reply.is_interrupted(), || is_killed(thread)) => Err(place),
            };
            match done {
                Ok(Ok(value)) => answer(reply, &this, value),
                Ok(Err(error)) => reply.error(error),
                Err(_place) => {
                    // Before the answer: after it the kernel lets later calls in.
                    let _change = (effect == RequestEffect::Change).then(|| this.given_up.begin());
                    reply.errno(libc::EINTR);
                    // The work goes on: half of it could leave a token or an open file that nobody gives back.
                    if let Ok(value) = work.await {
                        end(value).await;
                    }
                }
            }
        }));
    }
}
