//! Answers GET and HEAD requests with the help of the store.
//!
//! Owns: the choice whether a request is answered from the store, joins another request's fetch, begins a fetch that
//! others may join, or goes to the origin alone; and the use of the stored response if the origin fails. A request
//! looks into the store again in three cases: it found a marker, which names the headers by which the URL varies; it
//! learned these headers from another request's fetch; or another fetch has just ended. The number of lookups is
//! limited; after the last one the request goes to the origin alone. `parts` uses the same for its requests for parts:
//! `reach` finds what answers a request, and `respond` makes the response of it.

mod reached;

use std::borrow::Cow;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use nectary_host::fleet::NodeStanding;
use nectary_store::{FillHead, FillReader, FillRole, KeyRef, StoredObject};
use tokio::sync::oneshot;

pub(super) use self::reached::{FillingResponse, ReachedAnswer, UnstoredWay, UsableBody, UsableResponse};
use super::fetch::{self, FetchOutcome, FetchPlan};
use super::locality;
use super::lookup::{LookupVerdict, facts_of, look_at};
use super::partial;
use super::pass::{self, UnstoredReason};
use super::peers::{ask_alone, not_stored, stored_alone};
use super::reply::{BodySource, failed, from_stored, own};
use super::request::ClientRequest;
use super::rest::{self, StoredHead};
use crate::access_log::CacheOutcome;
use crate::body::ReplyBody;
use crate::connections::EntranceRole;
use crate::rules::cache_control::RequestDirectives;
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::rules::range::first_byte;
use crate::rules::serve::{OriginFailure, ServeVerdict, decide, decide_on_failure};
use crate::rules::vary::{PART_MARKER, PART_NAME, matches_variant, names_in, push_variant, sort_names};
use crate::stored::metadata::encode_marker;
use crate::stored::response::ObjectView;
use crate::upstream::{FetchError, OriginProbe};

/// The maximum number of times that a request looks into the store before it goes to the origin alone.
const ROUNDS_MAX: usize = 5;

/// The variant part of a request's key; empty until the headers by which the URL varies are known.
#[derive(Default)]
struct RequestVariant {
    names: Vec<HeaderName>,
    bytes: Vec<u8>,
}

impl RequestVariant {
    /// Learns the headers by which the URL varies, in addition to those by which every URL varies.
    fn learn(&mut self, names: &[HeaderName], keyed: &[HeaderName], headers: &HeaderMap) {
        self.names = names.to_vec();
        self.names.extend_from_slice(keyed);
        sort_names(&mut self.names);
        self.bytes.clear();
        push_variant(&mut self.bytes, &self.names, headers);
    }
}

/// Answers a GET or HEAD request that has no body.
pub(super) async fn serve(request: ClientRequest) -> Response<ReplyBody> {
    locality::hint(&request);
    let reached = reach(&request).await;
    respond(request, reached).await
}

/// Answers a request with what was reached for it.
pub(super) async fn respond(request: ClientRequest, reached: ReachedAnswer) -> Response<ReplyBody> {
    match reached {
        ReachedAnswer::Usable(found) => answer(request, found),
        ReachedAnswer::Unstored(unstored, why, way) => {
            let (response, lease) = *unstored;
            match way {
                UnstoredWay::Direct(size) => partial::answer(request, response, lease, why, size).await,
                UnstoredWay::Refused => pass::forward(request, response, lease, why, UnstoredReason::Any),
            }
        }
        ReachedAnswer::Alone(why, stale) => alone(request, why, stale).await,
        ReachedAnswer::NoPart => alone(request, ForwardReason::UriMiss, None).await,
        ReachedAnswer::Failed(error, status) => failed(&request, &error, status),
        ReachedAnswer::NotStored => {
            let text = "Nothing stored may be served, and the request wants nothing else.";
            own(&request, StatusCode::GATEWAY_TIMEOUT, "only-if-cached", text, false)
        }
    }
}

/// Finds what answers a request: looks into the store, joins a fetch, or begins one.
pub(super) async fn reach(request: &ClientRequest) -> ReachedAnswer {
    let worker = &request.worker;
    let keyed = keyed_names(request);
    let mut variant = first_variant(request, &keyed).await;
    let mut why = ForwardReason::UriMiss;
    for _ in 0..ROUNDS_MAX {
        let key = KeyRef::new(&request.key, &variant.bytes);
        if !key.is_bounded() {
            return ReachedAnswer::Alone(ForwardReason::Bypass, None);
        }
        let mut stale = None;
        // An object that is no response for this request is replaced.
        let mut unusable = None;
        if let Some(object) = worker.store.get(key).await {
            let directives = directives_for(request, &object, false);
            let hit = |age_s, ttl_s| {
                ReachedAnswer::Usable(UsableResponse::of_object(
                    object.clone(),
                    age_s,
                    CacheStatus::Hit { ttl_s },
                    CacheOutcome::Hit,
                ))
            };
            match look_at(&request.route.policy, &request.key, &object, &directives, request.at_ms) {
                // It was stored when these headers were not part of the key.
                found if !found.is_marker() && variant.names.is_empty() && !keyed.is_empty() => {
                    unusable = Some(object.clone());
                }
                LookupVerdict::Serve(_, age_s, ttl_s) => return hit(age_s, ttl_s),
                LookupVerdict::ServeAndValidate(age_s, ttl_s) => {
                    match failing(request) {
                        // The node that asks may be waiting for one that validates it.
                        _ if request.method == Method::GET && stored_alone(request).is_some() => {}
                        None => validate_for_later(request, key, &variant.names, &object, None),
                        Some((_, None)) => {}
                        Some((_, probe)) => validate_for_later(request, key, &variant.names, &object, probe),
                    }
                    return hit(age_s, ttl_s);
                }
                LookupVerdict::Validate(reason) => {
                    why = reason;
                    if let Some(found) = stale_at_once(request, key, &variant.names, &object) {
                        return ReachedAnswer::Usable(answer_of_stale(why, None, found));
                    }
                    stale = Some(object.clone());
                }
                LookupVerdict::Varies(names) if variant.names.is_empty() => {
                    renew_marker(request, &object, b"", names).await;
                    variant.learn(names, &keyed, &request.headers);
                    why = ForwardReason::VaryMiss;
                    continue;
                }
                LookupVerdict::Varies(_) | LookupVerdict::Damaged => unusable = Some(object.clone()),
            }
        }
        if request.directives.only_if_cached {
            return ReachedAnswer::NotStored;
        }
        if goes_alone(request, stale.is_some()) {
            return ReachedAnswer::Alone(why, stale);
        }
        let Ok(role) = worker.store.begin_fill(key, stale.as_ref().or(unusable.as_ref())) else {
            return ReachedAnswer::Alone(why, stale);
        };
        match role {
            FillRole::Resident(_) => {}
            FillRole::Leader(fill) => {
                let reader = fill.reader();
                let plan = FetchPlan::new(request, variant.names, stale.clone());
                let (tell, told) = oneshot::channel();
                worker.connections.tasks.spawn_local(fetch::run(plan, fill, tell));
                return lead(request, why, reader, told, stale).await;
            }
            FillRole::Follower(reader) => match follow(request, why, reader, stale.clone()).await {
                FollowedFetch::Reached(reached) => return reached,
                FollowedFetch::Varies(names) => {
                    variant.learn(&names, &keyed, &request.headers);
                    why = ForwardReason::VaryMiss;
                }
                FollowedFetch::Alone => return ReachedAnswer::Alone(why, stale),
            },
        }
    }
    ReachedAnswer::Alone(why, None)
}

/// The names of request headers that are part of every key of this request.
fn keyed_names(request: &ClientRequest) -> Cow<'_, [HeaderName]> {
    let names = &request.route.key_headers;
    match request.part {
        None => Cow::Borrowed(names),
        Some(_) => {
            let part = HeaderName::from_static(PART_NAME);
            Cow::Owned(names.iter().cloned().chain([part]).collect())
        }
    }
}

/// The variant under which a request is looked up first. That of a part has its range from the beginning, and what the
/// marker of the URL's parts names.
async fn first_variant(request: &ClientRequest, keyed: &[HeaderName]) -> RequestVariant {
    let mut variant = RequestVariant::default();
    if request.part.is_none() {
        return variant;
    }
    let key = KeyRef::new(&request.key, PART_MARKER);
    let marker = if key.is_bounded() { request.worker.store.get(key).await } else { None };
    let read = |bytes: &_| ObjectView::read(bytes, &request.key, &request.route.policy);
    if let Some(marker) = &marker
        && let ObjectView::Marker(names) = marker.decoded(read)
    {
        renew_marker(request, marker, PART_MARKER, names).await;
        variant.learn(names, keyed, &request.headers);
    } else {
        variant.learn(&[], keyed, &request.headers);
    }
    variant
}

/// Stores a marker again that was softly purged. What a marker says is no response that could be stale; and what is softly
/// purged is not written again when its segment is reclaimed, so the responses that are validated would be lost with it.
async fn renew_marker(request: &ClientRequest, marker: &StoredObject, variant: &[u8], names: &[HeaderName]) {
    if marker.stale_since_s().is_some()
        && !request.worker.is_leaving.get()
        && let Some(metadata) = encode_marker(names)
    {
        // If it cannot be stored, it is found for a while all the same.
        _ = request.worker.store.put(KeyRef::new(&request.key, variant), metadata, Bytes::new()).await;
    }
}

/// Returns what is stored for a request for a part, whether it may be served or not.
pub(super) async fn stored_part(request: &ClientRequest) -> Option<StoredObject> {
    let variant = first_variant(request, &keyed_names(request)).await;
    let key = KeyRef::new(&request.key, &variant.bytes);
    if key.is_bounded() { request.worker.store.get(key).await } else { None }
}

/// Whether a whole response is stored that answers a request, at once or after a validation.
pub(super) async fn has_whole(request: &ClientRequest) -> bool {
    let keyed = &request.route.key_headers;
    let mut variant = RequestVariant::default();
    for _ in 0..2 {
        let key = KeyRef::new(&request.key, &variant.bytes);
        if !key.is_bounded() {
            return false;
        }
        let Some(object) = request.worker.store.get(key).await else { return false };
        match look_at(&request.route.policy, &request.key, &object, &request.directives, request.at_ms) {
            LookupVerdict::Varies(names) if variant.names.is_empty() => variant.learn(names, keyed, &request.headers),
            LookupVerdict::Varies(_) | LookupVerdict::Damaged => return false,
            _ if variant.names.is_empty() && !keyed.is_empty() => return false,
            LookupVerdict::Serve(..) | LookupVerdict::ServeAndValidate(..) => return true,
            // An error that is over may have been followed by a long body.
            LookupVerdict::Validate(_) => {
                let read = |bytes: &_| ObjectView::read(bytes, &request.key, &request.route.policy);
                let found = object.decoded(read);
                return matches!(found, ObjectView::Response(stored) if stored.head.status == StatusCode::OK);
            }
        }
    }
    false
}

/// Begins a fetch that validates a response that has just been served stale. If no fetch can begin now, the next
/// request tries to begin one. If the fetch is the `probe` of a failing origin, the next probe begins after it.
fn validate_for_later(
    request: &ClientRequest,
    key: KeyRef<'_>,
    names: &[HeaderName],
    object: &StoredObject,
    probe: Option<OriginProbe>,
) {
    let worker = &request.worker;
    if request.directives.no_store || worker.fills.get() >= worker.options.limits.fills_max || !may_fill(request) {
        return;
    }
    if let Ok(FillRole::Leader(fill)) = worker.store.begin_fill(key, Some(object)) {
        let plan = FetchPlan::for_later(request, names.to_vec(), object.clone());
        worker.connections.tasks.spawn_local(async move {
            fetch::run(plan, fill, oneshot::channel().0).await;
            drop(probe);
        });
    }
}

/// The kind of failure if the request's origin is failing, and the right to probe it if nobody does.
fn failing(request: &ClientRequest) -> Option<(OriginFailure, Option<OriginProbe>)> {
    let upstream = &request.worker.upstream;
    if !upstream.has_failing() {
        return None;
    }
    upstream.failing(&request.destination()?)
}

/// Returns a stale object that may be served because its origin is failing, without asking the origin again. If nobody
/// probes the origin at present, a fetch of this object does.
fn stale_at_once(
    request: &ClientRequest,
    key: KeyRef<'_>,
    names: &[HeaderName],
    object: &StoredObject,
) -> Option<(StoredObject, u64, i64)> {
    let (failure, probe) = failing(request)?;
    let found = stale_on(request, Some(object.clone()), failure)?;
    if probe.is_some() {
        validate_for_later(request, key, names, object, probe);
    }
    Some(found)
}

/// Sends the request to the owner of its key or to the origin without filling the store, and falls back to the stored
/// response if the origin fails. Another node may want nothing but what is stored.
async fn alone(request: ClientRequest, why: ForwardReason, stale: Option<StoredObject>) -> Response<ReplyBody> {
    if let Some(failure) = stored_alone(&request) {
        return match failure.and_then(|failure| stale_on(&request, stale, failure)) {
            Some(found) => answer(request, answer_of_stale(why, None, found)),
            None => not_stored(&request),
        };
    }
    match ask_alone(&request).await {
        Ok((response, lease)) => {
            let status = response.status();
            match OriginFailure::of(status).and_then(|failure| stale_on(&request, stale, failure)) {
                Some(found) => answer(request, answer_of_stale(why, Some(status), found)),
                None => pass::forward(request, response, lease, why, UnstoredReason::Any),
            }
        }
        Err(error) => match stale_on(&request, stale, error.failure()) {
            Some(found) => answer(request, answer_of_stale(why, None, found)),
            None => {
                let status = CacheStatus::Forwarded { why, status: None, stored: false, collapsed: false };
                failed(&request, &error, status)
            }
        },
    }
}

/// Whether a request that is not answered from the store goes to the origin without filling the store. If a stored
/// response can be validated, only a request for a range does so because of what is remembered: a range validates nothing.
fn goes_alone(request: &ClientRequest, is_stale: bool) -> bool {
    request.method == Method::HEAD
        || stored_alone(request).is_some()
        || !may_fill(request)
        || request.directives.no_store
        || request.worker.fills.get() >= request.worker.options.limits.fills_max
        || ((!is_stale || request.features.has_range) && is_remembered(request))
        || (request.features.has_range
            && first_byte(&request.headers) > request.worker.options.limits.range_fill_start_bytes_max)
}

/// Whether a fetch that begins now may fill the store. A request may have waited until its node is cut off from its fleet,
/// or has other rules.
fn may_fill(request: &ClientRequest) -> bool {
    request.standing() != NodeStanding::ValidateOnly
}

/// Whether the response to such a request could recently not be stored.
fn is_remembered(request: &ClientRequest) -> bool {
    request.worker.hit_for_miss.borrow().contains(&request.key, &request.headers, request.at_ms)
}

/// Answers a request.
fn answer(mut request: ClientRequest, found: UsableResponse) -> Response<ReplyBody> {
    let UsableResponse { body, status, outcome, cookies } = found;
    let response = match body {
        UsableBody::Object(object, age_s) => {
            let read = |bytes: &_| ObjectView::read(bytes, &request.key, &request.route.policy);
            let ObjectView::Response(stored) = object.decoded(read) else {
                return failed(&request, &FetchError::Broken("what was stored cannot be read".into()), status);
            };
            // An object that is one record is whole in memory already.
            let resume =
                if object.whole().is_none() { rest::of(&request, StoredHead::Object(object.clone())) } else { None };
            let headers = std::mem::take(&mut request.headers);
            let question = request.question();
            let source = BodySource::Object(object.clone(), resume);
            from_stored(&question, headers, stored, source, age_s, status.value(), outcome)
        }
        UsableBody::Filling(filling) => {
            let FillingResponse { reader, stored, metadata, body_bytes } = *filling;
            let age_s = stored.stored.age_ms(request.worker.now_ms()) / 1000;
            let is_kept = body_bytes.is_some_and(|bytes| reader.is_kept(bytes));
            let resume = if is_kept { None } else { rest::of(&request, StoredHead::Metadata(metadata)) };
            let headers = std::mem::take(&mut request.headers);
            let question = request.question();
            let source = BodySource::Fill(reader, body_bytes, resume);
            from_stored(&question, headers, &stored, source, age_s, status.value(), outcome)
        }
    };
    with_cookies(response, cookies)
}

/// Returns the object with its age and its remaining lifetime in seconds, if it may be served although the origin
/// failed.
fn stale_on(
    request: &ClientRequest,
    stale: Option<StoredObject>,
    failure: OriginFailure,
) -> Option<(StoredObject, u64, i64)> {
    let (object, policy) = (stale?, &request.route.policy);
    let ObjectView::Response(stored) = object.decoded(|bytes| ObjectView::read(bytes, &request.key, policy)) else {
        return None;
    };
    let (now_ms, unreachable_s) = (request.worker.now_ms(), policy.stale_unreachable_s);
    let facts = facts_of(policy, &request.key, &object, stored, now_ms);
    let (age_s, ttl_s) = decide_on_failure(&facts, &request.directives, now_ms, failure, unreachable_s)?;
    Some((object.clone(), age_s, ttl_s))
}

/// The answer with an object that [`stale_on`] found.
fn answer_of_stale(
    why: ForwardReason,
    status: Option<StatusCode>,
    (object, age_s, ttl_s): (StoredObject, u64, i64),
) -> UsableResponse {
    let cache_status = CacheStatus::Stale { why, status: status.map(|status| status.as_u16()), ttl_s };
    UsableResponse::of_object(object, age_s, cache_status, CacheOutcome::Stale)
}

/// What answers a request whose fetch failed.
fn fail(
    request: &ClientRequest,
    why: ForwardReason,
    stale: Option<StoredObject>,
    error: FetchError,
    collapsed: bool,
) -> ReachedAnswer {
    match stale_on(request, stale, error.failure()) {
        Some(found) => ReachedAnswer::Usable(answer_of_stale(why, None, found)),
        None => ReachedAnswer::Failed(error, CacheStatus::Forwarded { why, status: None, stored: false, collapsed }),
    }
}

/// Waits for the fetch that this request began.
async fn lead(
    request: &ClientRequest,
    why: ForwardReason,
    reader: FillReader,
    told: oneshot::Receiver<FetchOutcome>,
    stale: Option<StoredObject>,
) -> ReachedAnswer {
    let forwarded = |status, stored| CacheStatus::Forwarded { why, status, stored, collapsed: false };
    let broken = || FetchError::Broken("the fetch was given up".into());
    match told.await {
        Ok(FetchOutcome::Streaming(status, cookies)) => {
            let cache_status = forwarded(Some(status), reader.is_promised());
            match running(request, reader, cache_status, CacheOutcome::Miss).await {
                Some(found) => ReachedAnswer::Usable(UsableResponse { cookies, ..found }),
                None => ReachedAnswer::Failed(broken(), forwarded(None, false)),
            }
        }
        Ok(FetchOutcome::Refreshed(object, cookies)) => {
            let age_s = age_of(request, &object);
            let cache_status = forwarded(Some(304), object.is_admitted());
            let found = UsableResponse::of_object(object, age_s, cache_status, CacheOutcome::Revalidated);
            ReachedAnswer::Usable(UsableResponse { cookies, ..found })
        }
        Ok(FetchOutcome::Direct(response, lease)) => {
            ReachedAnswer::Unstored(Box::new((response, lease)), why, UnstoredWay::Direct(UnstoredReason::Any))
        }
        Ok(FetchOutcome::Refused(response, lease)) => {
            ReachedAnswer::Unstored(Box::new((response, lease)), why, UnstoredWay::Refused)
        }
        Ok(FetchOutcome::TooLarge(response, lease)) => {
            ReachedAnswer::Unstored(Box::new((response, lease)), why, UnstoredWay::Direct(UnstoredReason::TooLarge))
        }
        Ok(FetchOutcome::NoPart) => ReachedAnswer::NoPart,
        Ok(FetchOutcome::Stale(status)) => match stale_on(request, stale, OriginFailure::Error) {
            Some(found) => ReachedAnswer::Usable(answer_of_stale(why, Some(status), found)),
            None => {
                let error = FetchError::Broken(format!("it answered {status}"));
                ReachedAnswer::Failed(error, forwarded(Some(status.as_u16()), false))
            }
        },
        Ok(FetchOutcome::Failed(error)) => fail(request, why, stale, error, false),
        Err(_) => fail(request, why, stale, broken(), false),
    }
}

/// Adds the cookies that are only for the requesting client and that are not stored.
pub(super) fn with_cookies(mut response: Response<ReplyBody>, cookies: Vec<HeaderValue>) -> Response<ReplyBody> {
    cookies.into_iter().for_each(|cookie| _ = response.headers_mut().append(SET_COOKIE, cookie));
    response
}

/// The outcome of another request's fetch, for a request that waited for it.
enum FollowedFetch {
    Reached(ReachedAnswer),
    /// The URL varies by these headers, and this request is for another variant.
    Varies(Vec<HeaderName>),
    /// The response cannot answer this request, which goes to the origin alone.
    Alone,
}

/// Whether an origin's response to another request was received after `request` had arrived. Then it meets every demand of
/// `request` for validation, as the response to a fetch of its own would. `has_waited` says that the response was not
/// there when `request` began to wait for it; this decides if both times are the same. What another node of the fleet sends
/// may have been in its store long before.
fn came_after(request: &ClientRequest, response_ms: u64, has_waited: bool) -> bool {
    // A time in the future is from before the clock was set back.
    let is_of_node =
        request.client.door != EntranceRole::Fleet && request.standing() == NodeStanding::Member && request.is_copy();
    !is_of_node
        && (response_ms > request.at_ms || (has_waited && response_ms == request.at_ms))
        && response_ms <= request.worker.now_ms()
}

/// The directives of a request, without the demands that an object meets because it [came after](came_after) the
/// request.
fn directives_for(request: &ClientRequest, object: &StoredObject, has_waited: bool) -> RequestDirectives {
    if !request.features.has_directives {
        return request.directives;
    }
    match object.decoded(|bytes| ObjectView::read(bytes, &request.key, &request.route.policy)) {
        ObjectView::Response(stored) if came_after(request, stored.stored.response_ms, has_waited) => {
            request.directives.without_demands()
        }
        _ => request.directives,
    }
}

/// Waits for the fetch that another request began.
async fn follow(
    request: &ClientRequest,
    why: ForwardReason,
    mut reader: FillReader,
    stale: Option<StoredObject>,
) -> FollowedFetch {
    let collapsed = |stored| CacheStatus::Forwarded { why, status: None, stored, collapsed: true };
    let known = reader.head().now_or_never();
    let has_waited = known.is_none();
    let head = match known {
        Some(head) => head,
        None => reader.head().await,
    };
    match head {
        FillHead::Streaming { variant, metadata, .. } => {
            if !matches_variant(&variant, &request.headers) {
                return FollowedFetch::Varies(names_in(&variant));
            }
            // The fetch has validated the response for the other request. This request may need its own validation, if
            // the response was there before this request, or must never be used for another request.
            let found = ObjectView::read(&metadata, &request.key, &request.route.policy);
            let ObjectView::Response(stored) = found else { return FollowedFetch::Alone };
            let directives = match came_after(request, stored.stored.response_ms, has_waited) {
                true => request.directives.without_demands(),
                false => request.directives,
            };
            if let ServeVerdict::Validate(_) = decide(&stored.stored, &directives, request.worker.now_ms()) {
                return FollowedFetch::Alone;
            }
            let stored = reader.is_promised();
            match running(request, reader, collapsed(stored), CacheOutcome::Collapsed).await {
                Some(found) => FollowedFetch::Reached(ReachedAnswer::Usable(found)),
                None => FollowedFetch::Alone,
            }
        }
        FillHead::Object(object) => {
            let (directives, now_ms) = (directives_for(request, &object, has_waited), request.worker.now_ms());
            match look_at(&request.route.policy, &request.key, &object, &directives, now_ms) {
                LookupVerdict::Serve(_, age_s, _) | LookupVerdict::ServeAndValidate(age_s, _) => {
                    let (object, status) = (object.clone(), collapsed(object.is_admitted()));
                    let found = UsableResponse::of_object(object, age_s, status, CacheOutcome::Collapsed);
                    FollowedFetch::Reached(ReachedAnswer::Usable(found))
                }
                LookupVerdict::Validate(_) | LookupVerdict::Varies(_) | LookupVerdict::Damaged => FollowedFetch::Alone,
            }
        }
        FillHead::Declined => FollowedFetch::Alone,
        FillHead::Failed => {
            let error = FetchError::Broken("the fetch of another request for this URL failed".into());
            FollowedFetch::Reached(fail(request, why, stale, error, true))
        }
    }
}

/// The answer from a fetch under way; `None` if the fetch has failed already.
async fn running(
    request: &ClientRequest,
    mut reader: FillReader,
    status: CacheStatus,
    outcome: CacheOutcome,
) -> Option<UsableResponse> {
    let (metadata, body_bytes) = match reader.head().await {
        FillHead::Streaming { metadata, body_bytes, .. } => (metadata, body_bytes),
        FillHead::Object(object) => {
            let age_s = age_of(request, &object);
            return Some(UsableResponse::of_object(object, age_s, status, outcome));
        }
        FillHead::Declined | FillHead::Failed => return None,
    };
    let ObjectView::Response(stored) = ObjectView::read(&metadata, &request.key, &request.route.policy) else {
        return None;
    };
    let body = UsableBody::Filling(Box::new(FillingResponse { reader, stored, metadata, body_bytes }));
    Some(UsableResponse { body, status, outcome, cookies: Vec::new() })
}

fn age_of(request: &ClientRequest, object: &StoredObject) -> u64 {
    match object.decoded(|bytes| ObjectView::read(bytes, &request.key, &request.route.policy)) {
        ObjectView::Response(stored) => stored.stored.age_ms(request.worker.now_ms()) / 1000,
        _ => 0,
    }
}
