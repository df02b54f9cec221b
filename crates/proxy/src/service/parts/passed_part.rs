//! A part that a node cannot keep, from the node that owns it.
//!
//! Owns: the question for it, and the proof that the answer is exactly this part of the same body. It goes to one client
//! alone, and if its owner breaks it off, it goes on at the origin. Leaves to others: requesting it from the origin if no node
//! gives it (`joined_body`).

use http::Response;
use http::header::RANGE;
use hyper::body::{Body, Incoming};

use super::super::peers::{AskedOfNode, NodeBody, PeerAnswer};
use super::super::request::ClientRequest;
use super::super::rest::unconditional;
use super::part_facts::{PartAnswer, PartFacts};
use super::part_range::PartRange;
use crate::pieces::{Pieces, exactly};
use crate::upstream::ConnectionLease;

/// Asks the nodes that own the part which this request is for. *Returns*: its bytes; `None` if there are no such nodes, or if
/// none of them gives this part of the body that has these facts.
pub(super) async fn ask_owner(request: &ClientRequest, part: PartRange, facts: &PartFacts) -> Option<Pieces> {
    let worker = &request.worker;
    let is_of_no_node = worker.hit_for_miss.borrow().is_of_no_node(&request.key, &request.headers, worker.now_ms());
    if is_of_no_node || worker.is_leaving.get() {
        return None;
    }
    let question = request.peer_question(AskedOfNode::Whole)?;
    let PeerAnswer { response, lease, .. } = question.ask(worker).await?;
    passed_on(request, part, facts, (response, lease))
}

/// Whether a response is the answer of another node.
pub(super) fn is_of_node(response: &Response<Incoming>) -> bool {
    response.extensions().get::<AskedOfNode>().is_some()
}

/// The bytes of a part that another node sends; `None` if the response is something else than this part of the body that has
/// these facts.
pub(super) fn passed_on(
    request: &ClientRequest,
    part: PartRange,
    facts: &PartFacts,
    (response, lease): (Response<Incoming>, ConnectionLease),
) -> Option<Pieces> {
    let announced_bytes = response.body().size_hint().exact();
    let answer = PartAnswer::of(part, response.status(), response.headers(), announced_bytes);
    let PartAnswer::Part(bytes) = answer else { return None };
    if PartFacts::of(part, response.headers()).as_ref() != Some(facts) {
        return None;
    }
    let (to, mut head) = unconditional(request)?;
    head.headers.insert(RANGE, part.requested());
    let node = NodeBody::new(&request.worker, (&to, &head), &response, request.asked());
    Some(exactly(node.pieces(response.into_body(), lease), bytes))
}
