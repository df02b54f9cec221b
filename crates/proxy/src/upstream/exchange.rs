//! One request to an origin and its response.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;

use futures_util::stream::unfold;
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::connect::connect;
use super::{BodyFault, Destination, Idle, RequestBody, RequestHead};
use crate::body::{BodyError, Pieces};
use crate::rules::serve::Failure;
use crate::wire::framing::Violation;
use crate::wire::informational::Informational;
use crate::worker::{Mode, Worker};

/// Why there is no response.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FetchError {
    /// No connection.
    #[error("cannot connect to the origin: {0}")]
    Connect(String),
    /// It took too long.
    #[error("the origin took too long: {0}")]
    TimedOut(&'static str),
    /// The client's request has no good body, so the origin could not answer it.
    #[error("{0}")]
    Client(BodyFault),
    /// The origin's bytes are ambiguous or no HTTP.
    #[error("the origin's response is refused: {0}")]
    Refused(Violation),
    /// The connection broke, or the bytes are no response.
    #[error("the origin broke the exchange: {0}")]
    Broken(String),
}

impl FetchError {
    /// The consequence for the stored response.
    pub fn failure(&self) -> Failure {
        match self {
            FetchError::Connect(_) | FetchError::TimedOut(_) | FetchError::Broken(_) => Failure::Unreachable,
            FetchError::Client(_) | FetchError::Refused(_) => Failure::Error,
        }
    }
}

/// A connection in use for one exchange.
///
/// Given back by [`Lease::finish`] once the response is read to its end; dropped otherwise, which ends the connection.
pub(crate) struct Lease {
    worker: Rc<Worker>,
    to: Destination,
    connection: Option<Idle>,
    /// Whether nothing of the request can still be under way when the response has ended.
    is_reusable: bool,
}

impl Lease {
    /// Gives the connection back for the next exchange.
    pub fn finish(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.watch.end();
            let connections_max = self.worker.options.limits.origin_idle_connections_max;
            if self.is_reusable && !self.worker.is_stopping() {
                self.worker.upstream.keep(&self.to, connection, connections_max);
            }
        }
    }

    /// The error, as far as the connection's watch knows it better than hyper.
    fn explain(&self, error: &hyper::Error) -> FetchError {
        let Some(connection) = &self.connection else { return FetchError::Broken(error.to_string()) };
        if let Some(violation) = connection.watch.violation() {
            return FetchError::Refused(violation);
        }
        if connection.watch.is_killed() {
            return FetchError::TimedOut("responding");
        }
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            text = format!("{text}: {source}");
        }
        FetchError::Broken(text)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.watch.end();
        }
    }
}

/// The callback for each informational response.
pub(crate) type Hear<'a> = &'a dyn Fn(&Informational);

/// Sends a request and waits for the head of the final response; `hear` receives the informational ones before it.
pub(crate) async fn exchange(
    worker: &Rc<Worker>,
    to: &Destination,
    head: RequestHead,
    body: RequestBody,
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, Lease), FetchError> {
    let may_repeat = body.is_empty() && [Method::GET, Method::HEAD, Method::OPTIONS].contains(&head.method);
    if may_repeat {
        while let Some(mut kept) = worker.upstream.take(to) {
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match send(worker, to, kept, head.clone(), RequestBody::Empty, hear).await {
                // A kept connection that broke had probably ended before the request was sent; bytes that came before it
                // are no response to it.
                Err(FetchError::Broken(_) | FetchError::Refused(Violation::Unexpected)) => break,
                result => return result,
            }
        }
    }
    let fresh = connect(worker, to).await;
    if matches!(worker.mode, Mode::Reverse { .. }) {
        worker.origin.note(fresh.as_ref().err());
    }
    let fresh = fresh?;
    send(worker, to, fresh, head, body, hear).await
}

async fn send(
    worker: &Rc<Worker>,
    to: &Destination,
    mut connection: Idle,
    head: RequestHead,
    body: RequestBody,
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, Lease), FetchError> {
    worker.stats.origin_requests.add(1);
    connection.watch.begin(head.method == Method::HEAD);
    let is_reusable = body.is_empty();
    let fault = body.fault();
    let mut response = pin!(connection.sender.send_request(head.with_body(body)));
    let watch = connection.watch.clone();
    let lease = Lease { worker: worker.clone(), to: to.clone(), connection: Some(connection), is_reusable };
    let result = poll_fn(|context| {
        let polled = response.as_mut().poll(context);
        watch.poll_informational(context).iter().for_each(hear);
        polled
    })
    .await;
    match result {
        Ok(response) => Ok((response, lease)),
        Err(error) => match fault.and_then(|fault| fault.get()) {
            Some(fault) => Err(FetchError::Client(fault)),
            None => Err(lease.explain(&error)),
        },
    }
}

/// The pieces of a response's body. The connection is given back at its end.
pub(crate) fn pieces(body: Incoming, lease: Lease) -> Pieces {
    Box::pin(unfold(Some((body, lease)), async |state| {
        let (mut body, lease) = state?;
        loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    // Trailers go no further.
                    let Ok(data) = frame.into_data() else { continue };
                    if data.is_empty() {
                        continue;
                    }
                    if body.is_end_stream() {
                        // A reader that knows the length asks for nothing behind the last byte.
                        lease.finish();
                        return Some((Ok(data), None));
                    }
                    return Some((Ok(data), Some((body, lease))));
                }
                Some(Err(error)) => return Some((Err(BodyError(lease.explain(&error).to_string())), None)),
                None => {
                    lease.finish();
                    return None;
                }
            }
        }
    }))
}
