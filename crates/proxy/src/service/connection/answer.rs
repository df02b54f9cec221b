//! The answer to one request, of whatever protocol.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;

use super::super::hit;
use super::super::request::RequestClient;
use super::super::route::{self, RequestArrival};
use crate::body::ReplyBody;
use crate::connections::EntranceRole;
use crate::wire::http2::Form;
use crate::worker::ProxyWorker;

/// A response that is ready, or is still being made. A ready response costs no allocation.
pub(super) enum ClientAnswer {
    Ready(Option<Response<ReplyBody>>),
    Pending(Pin<Box<dyn Future<Output = Response<ReplyBody>>>>),
}

/// Answers a request. `form` says why it must be refused, if it must be.
pub(super) fn answer(
    worker: &Rc<ProxyWorker>,
    client: &Rc<RequestClient>,
    mut request: Request<Incoming>,
    form: Form,
) -> ClientAnswer {
    // One of another node counts apart, once it is known which.
    worker.stats.requests.add(u64::from(client.door != EntranceRole::Fleet));
    let (started, at_ms) = worker.now();
    let wait_s = match (&worker.client_limits.requests, client.own_address()) {
        (Some(requests), Some(address)) if client.is_limited() => requests.take(address, started).err(),
        _ => None,
    };
    if form.is_ok()
        && wait_s.is_none()
        && client.gets_content()
        && let Some(response) = hit::resident(worker, client, &mut request, started, at_ms)
    {
        return ClientAnswer::Ready(Some(response));
    }
    let (worker, client) = (worker.clone(), client.clone());
    ClientAnswer::Pending(Box::pin(async move {
        let is_http1 = request.version() <= Version::HTTP_11;
        let came = RequestArrival { started, at_ms, wait_s };
        let mut response = route::route(worker.clone(), client.clone(), request, form, came).await;
        if is_http1 && worker.is_leaving.get() && client.tunnel.borrow().is_none() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        client.exchange.answered();
        response
    }))
}

impl Future for ClientAnswer {
    type Output = Result<Response<ReplyBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            ClientAnswer::Ready(response) => Poll::Ready(Ok(response.take().expect("polled once after it was ready"))),
            ClientAnswer::Pending(work) => work.as_mut().poll(context).map(Ok),
        }
    }
}
