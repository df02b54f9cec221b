//! Whom a request is sent to that does not fill the store.
//!
//! Owns: the choice between the nodes that own its key, which may have the response in their stores, and the origin. They are
//! asked in the client's words: for a range, or for the head alone. Leaves to others: what becomes of the answer.

use http::{Method, Response, StatusCode};
use hyper::body::Incoming;

use super::super::pass;
use super::super::request::ClientRequest;
use super::asking::PeerAnswer;
use super::body::AskedOfNode;
use crate::hit_for_miss::HitForMissReason;
use crate::upstream::{ConnectionLease, FetchError};

/// Asks the nodes that own the key of a request which does not fill the store, unless no node can store the response to it.
async fn answer_of_peer(request: &ClientRequest) -> Option<(Response<Incoming>, ConnectionLease)> {
    let (key, headers, at_ms) = (&request.key, &request.headers, request.at_ms);
    let remembered = &request.worker.hit_for_miss;
    let question = request.peer_question(AskedOfNode::ByClient)?;
    if remembered.borrow().is_of_no_node(key, headers, at_ms) {
        return None;
    }
    let PeerAnswer { mut response, lease, is_kept, .. } = question.ask(&request.worker).await?;
    let is_whole = request.method == Method::GET && response.status() == StatusCode::OK;
    if !is_kept && is_whole && remembered.borrow().is_too_long(key, headers, at_ms) {
        // Its body need not go through two nodes the next time.
        remembered.borrow_mut().insert(key, headers, HitForMissReason::NoNode, at_ms);
    }
    request.answer.set(|| lease.answer());
    response.extensions_mut().insert(AskedOfNode::ByClient);
    Some((response, lease))
}

/// Sends the request to the owner of its key, or else to the origin, without filling the store.
pub(in crate::service) async fn ask_alone(
    request: &ClientRequest,
) -> Result<(Response<Incoming>, ConnectionLease), FetchError> {
    match answer_of_peer(request).await {
        Some(answer) => Ok(answer),
        None => pass::ask(request, None).await,
    }
}
