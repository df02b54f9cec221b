//! Whom a request is sent to that does not fill the store.
//!
//! Owns: the choice between the nodes that own its key, which may have the response in their stores, and the origin. They are
//! asked in the client's words: for a range, or for the head alone. If the origin fails, they are asked again. Leaves to others:
//! what becomes of the answer.

use std::rc::Rc;

use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use nectary_host::fleet::peer_headers::{STORED, STORED_ON_ERROR, STORED_UNREACHABLE};

use super::super::pass;
use super::super::reply::{LackingResponse, own_with};
use super::super::request::ClientRequest;
use super::asking::{PeerAnswer, PeerQuestion};
use super::body::AskedOfNode;
use crate::access_log::CacheOutcome;
use crate::body::ReplyBody;
use crate::connections::EntranceRole;
use crate::hit_for_miss::HitForMissReason;
use crate::rules::cache_status::CacheStatus;
use crate::rules::serve::OriginFailure;
use crate::upstream::{ConnectionLease, FetchError};

/// The question to the nodes that own the key of a request which does not fill the store, unless no node can store the
/// response to it.
fn question_of(request: &ClientRequest) -> Option<Rc<PeerQuestion>> {
    let question = request.peer_question(AskedOfNode::ByClient)?;
    let remembered = request.worker.hit_for_miss.borrow();
    (!remembered.is_of_no_node(&request.key, &request.headers, request.at_ms)).then_some(question)
}

/// Takes the answer of a node, and remembers if no node keeps it.
fn take(request: &ClientRequest, answer: PeerAnswer) -> (Response<Incoming>, ConnectionLease) {
    let (key, headers, at_ms) = (&request.key, &request.headers, request.at_ms);
    let remembered = &request.worker.hit_for_miss;
    let PeerAnswer { mut response, lease, is_kept, .. } = answer;
    let is_whole = request.method == Method::GET && response.status() == StatusCode::OK;
    if !is_kept && is_whole && remembered.borrow().is_too_long(key, headers, at_ms) {
        // Its body need not go through two nodes the next time.
        remembered.borrow_mut().insert(key, headers, HitForMissReason::NoNode, at_ms);
    }
    request.answer.set(|| lease.answer());
    response.extensions_mut().insert(AskedOfNode::ByClient);
    (response, lease)
}

/// Sends the request to the owner of its key, or else to the origin, without filling the store.
pub(in crate::service) async fn ask_alone(
    request: &ClientRequest,
) -> Result<(Response<Incoming>, ConnectionLease), FetchError> {
    let Some(question) = question_of(request) else { return pass::ask(request, None).await };
    if let Some(answer) = question.ask(&request.worker).await {
        return Ok(take(request, answer));
    }
    let found = pass::ask(request, None).await;
    match question.ask_again(&request.worker, &found).await {
        Some(answer) => Ok(take(request, answer)),
        None => found,
    }
}

/// Whether a request is answered by the store alone, as the node that asks goes to the origin itself, or waits for another
/// node; and how the origin has failed, if it has.
pub(in crate::service) fn stored_alone(request: &ClientRequest) -> Option<Option<OriginFailure>> {
    if request.client.door != EntranceRole::Fleet {
        return None;
    }
    let wanted = request.headers.get(STORED)?;
    Some(match wanted.as_bytes() {
        found if found == STORED_ON_ERROR.as_bytes() => Some(OriginFailure::Error),
        found if found == STORED_UNREACHABLE.as_bytes() => Some(OriginFailure::Unreachable),
        _ => None,
    })
}

/// The answer if nothing is stored that may be served to another node.
pub(in crate::service) fn not_stored(request: &ClientRequest) -> Response<ReplyBody> {
    let (status, outcome) = (CacheStatus::Own { detail: "not-stored" }, CacheOutcome::Miss);
    let (kind, text) = ("text/plain; charset=utf-8", "This node has nothing stored that may be served.");
    let mut response = own_with(request, StatusCode::GATEWAY_TIMEOUT, status, outcome, kind, text, false);
    response.extensions_mut().insert(LackingResponse::NotStored);
    response
}
