//! Messages of other nodes that are about no object.
//!
//! Owns: their address, and their bounds. Leaves to others: what they say (the fleet).

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::Incoming;
use nectary_host::fleet::{FleetError, PeerMessage};
use tokio::time::timeout;

use super::super::reply::finish;
use super::super::request::RequestClient;
use crate::body::{BodyContent, ReplyBody};
use crate::connections::EntranceRole;
use crate::worker::ProxyWorker;

/// What the paths of messages begin with; a word follows.
const PATH: &str = "/.well-known/nectary-fleet/";
/// The longest message. *Units*: bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// How long reading a message may take.
const READ_TIME_MAX: Duration = Duration::from_secs(10);

/// Whether a request is a message of another node.
pub(in crate::service) fn is_message(client: &RequestClient, request: &Request<Incoming>) -> bool {
    let is_of_node = client.door == EntranceRole::Fleet && request.method() == Method::POST;
    is_of_node && request.uri().path().starts_with(PATH)
}

/// Answers a message of another node. It is in no figure and in no log of requests.
pub(in crate::service) async fn answer_message(
    worker: &Rc<ProxyWorker>,
    client: &Rc<RequestClient>,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let (status, kind, body) = match answer_of(worker, request).await {
        Ok(answer) => (StatusCode::OK, "application/json", Bytes::from(answer)),
        Err((status, why)) => (status, "text/plain; charset=utf-8", Bytes::from(format!("{why}\n"))),
    };
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    finish(client, status, headers, BodyContent::Whole(body), None)
}

async fn answer_of(worker: &Rc<ProxyWorker>, request: Request<Incoming>) -> Result<Vec<u8>, (StatusCode, String)> {
    let Some(seat) = worker.fleet.clone() else {
        return Err((StatusCode::NOT_FOUND, "This proxy is no node of a fleet.".to_owned()));
    };
    let word = request.uri().path().strip_prefix(PATH).unwrap_or_default().to_owned();
    let read = timeout(READ_TIME_MAX, Limited::new(request.into_body(), MESSAGE_BYTES_MAX).collect()).await;
    let Ok(Ok(body)) = read else {
        let text = format!("A message between nodes has at most {MESSAGE_BYTES_MAX} bytes, and comes as a whole.");
        return Err((StatusCode::BAD_REQUEST, text));
    };
    let message = PeerMessage { word, body: body.to_bytes().into() };
    seat.membership().on_message(message).await.map_err(|error| match error {
        FleetError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        error => (StatusCode::BAD_REQUEST, error.to_string()),
    })
}
