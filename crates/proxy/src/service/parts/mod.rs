//! Long bodies out of stored parts.
//!
//! Owns: the answers to GET and HEAD on routes with `part-size`. A body is divided into parts of that size, each of which
//! is one object of the store, under the key of the URL and a variant that has the part's range. A request for a part
//! takes the way of every other request (`cached`): it is looked up, validated, fetched with a `Range` of the proxy's own
//! by the first of those who want it, and served stale if that is allowed. `part_range` knows where parts are,
//! `part_facts` which parts belong together, and `joined_body` sends one after the other.
//!
//! The head of the answer is made of that part which has the first byte of the answer. The client's conditions and its
//! `Range` are evaluated with it, as with a whole response. So nothing has been sent before that part is there, and
//! what it says counts for all others.
//!
//! | there is, or the origin answers | the request is answered |
//! |---|---|
//! | a whole response in the store | from that, or after its validation |
//! | `206` with the part, a strong validator and the length of the whole | out of parts |
//! | `206` with something else, or `200` with a longer body | as on a route without parts; for 30 s no part of the URL is requested |
//! | `200` with a short body, an error, a redirect | with that, which is stored as a whole |
//! | `416` | with that, if the client's own range begins there; else as on a route without parts |
//!
//! In a fleet all parts of a URL have the owner of its key. A node that has not stored a part asks the owner for that part's
//! range ([`serve_part`]), keeps it in memory alone, and joins as ever: what differs is not sent, from whichever node it is.
//! `body_verdict` decides which stored part may be of a former body.
//!
//! *Source*: RFC 9110, 14 and 15.3.7; RFC 9111, 3.3 and 3.4.

mod body_verdict;
mod joined_body;
pub(super) mod part_facts;
mod part_purges;
pub(super) mod part_range;
mod passed_part;

use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use nectary_host::fleet::peer_headers::VALIDATOR;

use self::body_verdict::{doubt, note_body};
use self::joined_body::{JoinedBody, PartBody};
use self::part_facts::PartFacts;
pub(crate) use self::part_purges::PartPurges;
use self::part_range::PartRange;
use super::cached::{self, FillingResponse, ReachedAnswer, UsableBody, UsableResponse};
use super::reply::{BodySource, CACHE_STATUS, failed, from_stored};
use super::request::ClientRequest;
use crate::body::ReplyBody;
use crate::hit_for_miss::HitForMissReason;
use crate::rules::cache_status::ForwardReason;
use crate::rules::conditional::{if_range_holds, is_not_modified};
use crate::rules::range::{RequestedRange, first_byte, wanted};
use crate::stored::response::{ObjectView, StoredResponse};
use crate::upstream::FetchError;

/// The maximum number of parts that are looked at for the head of an answer. More than one is needed if a range counts
/// from the end, if an `If-Range` does not hold, or if the body changes meanwhile.
const HEADS_MAX: usize = 4;

/// What is appended to `NameCache-Status` if the origin gives no parts.
const NO_PARTS: &str = "; detail=no-parts";

/// Answers a GET or HEAD request that has no body, out of parts of `part_bytes` if that is possible.
pub(super) async fn serve(request: ClientRequest, part_bytes: u64) -> Response<ReplyBody> {
    if !may_be_joined(&request, part_bytes) || cached::has_whole(&request).await {
        return cached::serve(request).await;
    }
    if has_no_parts(&request) {
        return serve_whole(request).await;
    }
    let has_range = request.features.has_range && request.method == Method::GET;
    let mut position = if has_range { first_byte(&request.headers) } else { 0 };
    for _ in 0..HEADS_MAX {
        let part = PartRange::holding(position, part_bytes);
        let mut of_part = request.of_part(part);
        let known_purge = request.worker.part_purges.last();
        doubt(&mut of_part, part, None).await;
        let reached = cached::reach(&of_part).await;
        note_body(&of_part, part, None, &reached);
        let found = match reached {
            ReachedAnswer::Usable(found) => found,
            other => return otherwise(request, part, other).await,
        };
        let Some(facts) = facts_of(&of_part, part, &found.body) else {
            return not_a_part(request, found).await;
        };
        match read(&of_part, &found.body, |stored| first_sent(&request, stored, facts.whole_bytes)).flatten() {
            Some(first) if PartRange::holding(first, part_bytes) != part => position = first,
            _ => return answer(request, of_part, (part, facts, known_purge), found),
        }
    }
    // The body changes faster than it can be looked at.
    cached::respond(request, ReachedAnswer::Alone(ForwardReason::UriMiss, None)).await
}

/// Answers another node, which keeps a copy of the part that its `Range` names: with that as it is stored. What an origin
/// without parts gives is answered whole, as that origin does.
pub(super) async fn serve_part(mut request: ClientRequest, part_bytes: u64) -> Response<ReplyBody> {
    let part = PartRange::holding(first_byte(&request.headers), part_bytes);
    let mut of_part = request.of_part(part);
    request.headers.remove(RANGE);
    request.features.has_range = false;
    if !may_be_joined(&request, part_bytes) || cached::has_whole(&request).await || has_no_parts(&request) {
        return cached::serve(request).await;
    }
    let continued = request.headers.get(VALIDATOR);
    doubt(&mut of_part, part, continued).await;
    let reached = cached::reach(&of_part).await;
    note_body(&of_part, part, continued, &reached);
    match reached {
        ReachedAnswer::NoPart => cached::serve(request).await,
        ReachedAnswer::Alone(..) if has_no_parts(&request) => cached::serve(request).await,
        reached => cached::respond(of_part, reached).await,
    }
}

/// Whether a request may be answered out of parts of this size.
fn may_be_joined(request: &ClientRequest, part_bytes: u64) -> bool {
    let object_bytes_max = request.worker.store.object_bytes_max(&request.key);
    !request.directives.no_store
        && !request.directives.only_if_cached
        && object_bytes_max.is_some_and(|most| part_bytes <= most)
        && first_byte(&request.headers) <= i64::MAX as u64
}

/// Whether the origin recently gave no part of the response to such a request.
fn has_no_parts(request: &ClientRequest) -> bool {
    request.worker.hit_for_miss.borrow().has_no_parts(&request.key, &request.headers, request.worker.now_ms())
}

/// Answers as on a route without parts, and says in `NameCache-Status` that the origin gives none.
async fn serve_whole(request: ClientRequest) -> Response<ReplyBody> {
    let mut response = cached::serve(request).await;
    let mut members: Vec<HeaderValue> = response.headers().get_all(CACHE_STATUS).iter().cloned().collect();
    // The last member is the proxy's own.
    let Some(own) = members.pop() else { return response };
    let has_more = |text: &str| text.contains("; fwd=") && !text.contains("; detail=");
    let told = own.to_str().ok().filter(|text| has_more(text)).map(|text| format!("{text}{NO_PARTS}"));
    if let Some(told) = told.and_then(|text| HeaderValue::try_from(text).ok()) {
        let headers = response.headers_mut();
        headers.remove(CACHE_STATUS);
        members.into_iter().chain([told]).for_each(|member| _ = headers.append(CACHE_STATUS, member));
    }
    response
}

/// Answers a request for whose part no usable response was reached.
async fn otherwise(request: ClientRequest, part: PartRange, reached: ReachedAnswer) -> Response<ReplyBody> {
    match reached {
        ReachedAnswer::NoPart => serve_whole(request).await,
        // The fetch that this request waited for may have found that.
        ReachedAnswer::Alone(..) if has_no_parts(&request) => serve_whole(request).await,
        // A stale part is no answer to the client's request.
        ReachedAnswer::Alone(why, _) => cached::respond(request, ReachedAnswer::Alone(why, None)).await,
        ReachedAnswer::Unstored(unstored, why, way) => match unstored.0.status() {
            StatusCode::PARTIAL_CONTENT => {
                // It is the range that the proxy requested. The client gets its own.
                drop(unstored);
                cached::respond(request, ReachedAnswer::Alone(why, None)).await
            }
            StatusCode::RANGE_NOT_SATISFIABLE if part.is_first() => {
                // The body is empty.
                drop(unstored);
                cached::serve(request).await
            }
            StatusCode::RANGE_NOT_SATISFIABLE if !is_of_client(&request, part) => {
                drop(unstored);
                cached::respond(request, ReachedAnswer::Alone(why, None)).await
            }
            _ => cached::respond(request, ReachedAnswer::Unstored(unstored, why, way)).await,
        },
        other => cached::respond(request, other).await,
    }
}

/// Whether a body that ends before this part has nothing of what the client requests, whatever else the client says.
fn is_of_client(request: &ClientRequest, part: PartRange) -> bool {
    let first = PartRange::holding(first_byte(&request.headers), part.part_bytes());
    request.features.has_range
        && first == part
        && !request.features.is_conditional
        && !request.headers.contains_key(IF_RANGE)
}

/// Answers with a response that is no part.
async fn not_a_part(request: ClientRequest, found: UsableResponse) -> Response<ReplyBody> {
    let status = read(&request, &found.body, |stored| stored.head.status);
    if status != Some(StatusCode::PARTIAL_CONTENT) {
        return cached::respond(request, ReachedAnswer::Usable(found)).await;
    }
    // A part that was stored under other rules, or whose validator became weak.
    drop(found);
    let now_ms = request.worker.now_ms();
    request.worker.hit_for_miss.borrow_mut().insert(&request.key, &request.headers, HitForMissReason::NoParts, now_ms);
    serve_whole(request).await
}

/// Reads what was stored, or is being stored; `None` if it cannot be read.
fn read<T>(request: &ClientRequest, body: &UsableBody, read: impl FnOnce(&StoredResponse) -> T) -> Option<T> {
    match body {
        UsableBody::Object(object, _) => {
            match object.decoded(|bytes| ObjectView::read(bytes, &request.key, &request.route.policy)) {
                ObjectView::Response(stored) => Some(read(stored)),
                _ => None,
            }
        }
        UsableBody::Filling(filling) => Some(read(&filling.stored)),
    }
}

/// The facts of a part; `None` if this is no such part.
fn facts_of(request: &ClientRequest, part: PartRange, body: &UsableBody) -> Option<PartFacts> {
    let body_bytes = match body {
        UsableBody::Object(object, _) => Some(object.body_bytes()),
        UsableBody::Filling(filling) => filling.body_bytes,
    };
    read(request, body, |stored| PartFacts::of_stored(part, stored, body_bytes)).flatten()
}

/// The first byte that the answer to a client's request has of a body of this length; `None` if it has none.
fn first_sent(request: &ClientRequest, stored: &StoredResponse, whole_bytes: u64) -> Option<u64> {
    let (features, headers): (_, HeaderMap) = (request.features, stored.headers());
    let response_ms = stored.stored.response_ms;
    let is_known = features.is_conditional
        && is_not_modified(&request.method, &request.headers, StatusCode::OK, &headers, response_ms);
    if is_known || request.method != Method::GET {
        return None;
    }
    if !features.has_range || !if_range_holds(&request.headers, &headers) {
        return Some(0);
    }
    match wanted(&request.headers, whole_bytes) {
        RequestedRange::Part(range) => Some(range.start),
        RequestedRange::Unsatisfiable => None,
        RequestedRange::Whole | RequestedRange::Parts(_) => Some(0),
    }
}

/// Answers a client's request out of parts, of which the one with the first byte of the answer was found. Before that, the
/// number was that of the last purge of parts.
fn answer(
    mut request: ClientRequest,
    of_part: ClientRequest,
    (part, facts, known_purge): (PartRange, PartFacts, u64),
    found: UsableResponse,
) -> Response<ReplyBody> {
    let UsableResponse { body, status, outcome, cookies } = found;
    let headers = std::mem::take(&mut request.headers);
    let joined = |known, metadata| {
        let whole_bytes = facts.whole_bytes;
        let joined = JoinedBody::new(of_part, part, facts, (known, metadata), known_purge);
        BodySource::Joined(whole_bytes, Box::new(move |range| joined.content(range)))
    };
    let response = match body {
        UsableBody::Object(object, age_s) => {
            let read = |bytes: &_| ObjectView::read(bytes, &request.key, &request.route.policy);
            let ObjectView::Response(stored) = object.decoded(read) else {
                return failed(&request, &FetchError::Broken("what was stored cannot be read".into()), status);
            };
            let source = joined(PartBody::Object(object.clone()), object.metadata().clone());
            from_stored(&request.question(), headers, stored, source, age_s, status.value(), outcome)
        }
        UsableBody::Filling(filling) => {
            let FillingResponse { reader, stored, metadata, .. } = *filling;
            let age_s = stored.stored.age_ms(request.worker.now_ms()) / 1000;
            let source = joined(PartBody::Filling(reader), metadata);
            from_stored(&request.question(), headers, &stored, source, age_s, status.value(), outcome)
        }
    };
    cached::with_cookies(response, cookies)
}
