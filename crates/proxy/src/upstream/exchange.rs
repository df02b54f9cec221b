//! One request to an origin and its response.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;

use futures_util::stream::unfold;
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::connect::connect;
use super::error::FetchError;
use super::{Destination, Idle, RequestBody, RequestHead, Upstream};
use crate::body::{BodyError, Pieces};
use crate::wire::framing::Violation;
use crate::wire::informational::Informational;

/// A connection in use for one exchange.
///
/// After the response has been read to its end, [`Lease::finish`] returns the connection. Dropping the lease without it
/// closes the connection.
pub(crate) struct Lease {
    upstream: Rc<Upstream>,
    to: Destination,
    connection: Option<Idle>,
    /// Whether the request is certainly complete when its response ends. Only then can the connection be used again.
    is_reusable: bool,
}

impl Lease {
    /// The lease of a connection that is not used again.
    pub(super) fn of_one(upstream: &Rc<Upstream>, to: &Destination, connection: Idle) -> Lease {
        Lease { upstream: upstream.clone(), to: to.clone(), connection: Some(connection), is_reusable: false }
    }

    /// Returns the connection to the worker's idle connections, for the next exchange.
    pub fn finish(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.watch.end();
            if self.is_reusable {
                self.upstream.keep(&self.to, connection);
            }
        }
    }

    /// The error of an exchange that failed in hyper. The connection's watch may know a more exact cause.
    pub(super) fn explain(&self, error: &hyper::Error) -> FetchError {
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

/// A callback that receives each informational response.
pub(crate) type Hear<'a> = &'a dyn Fn(&Informational);

/// Sends a request and waits for the head of the final response. `hear` is called for each informational response that
/// arrives before the final one.
pub(crate) async fn exchange(
    upstream: &Rc<Upstream>,
    to: &Destination,
    head: RequestHead,
    body: RequestBody,
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, Lease), FetchError> {
    let may_repeat = body.is_empty() && [Method::GET, Method::HEAD, Method::OPTIONS].contains(&head.method);
    if may_repeat {
        while let Some(mut kept) = upstream.take(to) {
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match send(upstream, to, kept, head.clone(), RequestBody::Empty, hear).await {
                // The origin had probably closed this kept connection before the request was sent, or had sent bytes
                // that do not answer the request. Try a new connection.
                Err(FetchError::Broken(_) | FetchError::Refused(Violation::Unexpected)) => break,
                result => return result,
            }
        }
    }
    let place = upstream.place().await?;
    let fresh = connect(upstream, to, place, false).await;
    if let Some(origin) = &upstream.origin {
        origin.note(fresh.as_ref().err());
    }
    let fresh = fresh?;
    send(upstream, to, fresh, head, body, hear).await
}

async fn send(
    upstream: &Rc<Upstream>,
    to: &Destination,
    mut connection: Idle,
    head: RequestHead,
    body: RequestBody,
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, Lease), FetchError> {
    upstream.stats.origin_requests.add(1);
    connection.watch.begin(head.method == Method::HEAD);
    let is_reusable = body.is_empty();
    let fault = body.fault();
    let mut response = pin!(connection.sender.send_request(head.with_body(body)));
    let watch = connection.watch.clone();
    let lease = Lease { upstream: upstream.clone(), to: to.clone(), connection: Some(connection), is_reusable };
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

/// The pieces of a response's body. After the last piece the connection is kept for the next exchange.
pub(crate) fn pieces(body: Incoming, lease: Lease) -> Pieces {
    Box::pin(unfold(Some((body, lease)), async |state| {
        let (mut body, lease) = state?;
        loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    // Trailers are not forwarded.
                    let Ok(data) = frame.into_data() else { continue };
                    if data.is_empty() {
                        continue;
                    }
                    if body.is_end_stream() {
                        // A reader that knows the body's length does not poll after the last byte, so the lease is
                        // finished now.
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
