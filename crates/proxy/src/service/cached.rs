//! GET and HEAD by way of the store.
//!
//! Owns: the choice among what is stored, another's fetch, a fetch of one's own that others may join, and going alone; and
//! going back to what is stored where the origin fails. Going round again (a marker was found, somebody else finished, a
//! variant was learned) is bounded; then a request goes alone.

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use nectary_store::{FillHead, FillReader, FillRole, KeyRef, Object};
use tokio::sync::oneshot;

use super::asked::Asked;
use super::fetch::{self, Plan, Told};
use super::locality;
use super::pass::{self, Size};
use super::reply::{Source, failed, from_stored, own};
use crate::access_log::Outcome;
use crate::body::ReplyBody;
use crate::rules::cache_status::{CacheStatus, Forward};
use crate::rules::range::first_byte;
use crate::rules::serve::{Failure, Verdict, decide, decide_on_failure};
use crate::rules::vary::{matches_variant, names_in, push_variant};
use crate::stored::response::Found;
use crate::upstream::FetchError;

/// How often a request may look again before it goes alone.
const ROUNDS_MAX: usize = 5;

/// The variant part of a request's key, as far as it is known.
#[derive(Default)]
struct Variant {
    names: Vec<HeaderName>,
    bytes: Vec<u8>,
}

impl Variant {
    fn learn(&mut self, names: &[HeaderName], headers: &HeaderMap) {
        self.names = names.to_vec();
        self.bytes.clear();
        push_variant(&mut self.bytes, names, headers);
    }
}

/// Answers a GET or HEAD without a body.
pub(super) async fn serve(mut asked: Asked) -> Response<ReplyBody> {
    let worker = asked.worker.clone();
    let mut variant = Variant::default();
    let mut why = Forward::UriMiss;
    locality::hint(&asked);
    for _ in 0..ROUNDS_MAX {
        let key = KeyRef::new(&asked.key, &variant.bytes);
        if !key.is_bounded() {
            return pass::pass(asked, None, Forward::Bypass).await;
        }
        let mut stale = None;
        if let Some(object) = worker.store.get(key).await {
            match object.decoded(|bytes| Found::read(bytes, &asked.key, &worker.policy)) {
                Found::Marker(names) if variant.names.is_empty() => {
                    variant.learn(names, &asked.headers);
                    why = Forward::VaryMiss;
                    continue;
                }
                Found::Response(stored) => match decide(&stored.stored, &asked.directives, asked.at_ms) {
                    Verdict::Serve { age_s, ttl_s } => {
                        return answer(asked, object.clone(), age_s, CacheStatus::Hit { ttl_s }, Outcome::Hit);
                    }
                    Verdict::ServeAndValidate { age_s, ttl_s } => {
                        validate_for_later(&asked, key, &variant.names, &object);
                        return answer(asked, object.clone(), age_s, CacheStatus::Hit { ttl_s }, Outcome::Hit);
                    }
                    Verdict::Validate(reason) => {
                        why = reason;
                        stale = Some(object);
                    }
                },
                Found::Marker(_) | Found::Damaged => {}
            }
        }
        if asked.directives.only_if_cached {
            let text = "Nothing stored may be served, and the request wants nothing else.";
            return own(&asked, StatusCode::GATEWAY_TIMEOUT, "only-if-cached", text, false);
        }
        if goes_alone(&asked, stale.is_some()) {
            return alone(asked, why, stale).await;
        }
        let Ok(role) = worker.store.begin_fill(key, stale.as_ref()) else {
            return alone(asked, why, stale).await;
        };
        match role {
            FillRole::Resident(_) => {}
            FillRole::Leader(fill) => {
                let reader = fill.reader();
                let plan = Plan::new(&asked, variant.names, stale.clone());
                let (tell, told) = oneshot::channel();
                worker.tasks.spawn_local(fetch::run(plan, fill, tell));
                return lead(asked, why, reader, told, stale).await;
            }
            FillRole::Follower(reader) => match follow(asked, why, reader, stale).await {
                Followed::Answered(response) => return response,
                Followed::Varies(again, names) => {
                    variant.learn(&names, &again.headers);
                    why = Forward::VaryMiss;
                    asked = again;
                }
                Followed::Alone(alone) => return pass::pass(alone, None, why).await,
            },
        }
    }
    pass::pass(asked, None, why).await
}

/// Lets the origin validate what has just been served stale. Where that cannot be now, the next request tries again.
fn validate_for_later(asked: &Asked, key: KeyRef<'_>, names: &[HeaderName], object: &Object) {
    let worker = &asked.worker;
    if asked.directives.no_store || worker.fills.get() >= worker.options.limits.fills_max {
        return;
    }
    if let Ok(FillRole::Leader(fill)) = worker.store.begin_fill(key, Some(object)) {
        let plan = Plan::for_later(asked, names.to_vec(), object.clone());
        worker.tasks.spawn_local(fetch::run(plan, fill, oneshot::channel().0));
    }
}

/// Goes to the origin alone, and back to what is stored where that fails.
async fn alone(asked: Asked, why: Forward, stale: Option<Object>) -> Response<ReplyBody> {
    if stale.is_none() {
        return pass::pass(asked, None, why).await;
    }
    match pass::ask(&asked, None).await {
        Ok((response, lease)) => {
            let status = response.status();
            match Failure::of(status).and_then(|failure| stale_on(&asked, stale, failure)) {
                Some(found) => answer_stale(asked, why, Some(status), found),
                None => pass::forward(asked, response, lease, why, Size::Any),
            }
        }
        Err(error) => fail(asked, why, stale, &error, false),
    }
}

/// Whether a request that is not answered from the store should not fill it either.
fn goes_alone(asked: &Asked, is_stale: bool) -> bool {
    asked.method == Method::HEAD
        || asked.directives.no_store
        || asked.worker.fills.get() >= asked.worker.options.limits.fills_max
        || (!is_stale && asked.worker.memo.borrow().contains(&asked.key, asked.at_ms))
        || (asked.features.has_range
            && first_byte(&asked.headers) > asked.worker.options.limits.range_fill_start_bytes_max)
}

/// Answers from a stored object.
fn answer(mut asked: Asked, object: Object, age_s: u64, status: CacheStatus, outcome: Outcome) -> Response<ReplyBody> {
    let read = |bytes: &_| Found::read(bytes, &asked.key, &asked.worker.policy);
    let Found::Response(stored) = object.decoded(read) else {
        return failed(&asked, &FetchError::Broken("what was stored cannot be read".into()), status);
    };
    let headers = std::mem::take(&mut asked.headers);
    let question = asked.question();
    from_stored(&question, headers, stored, Source::Object(object.clone()), age_s, status.value(), outcome)
}

/// What may be served although the origin failed, with its age and its remaining lifetime in seconds.
fn stale_on(asked: &Asked, stale: Option<Object>, failure: Failure) -> Option<(Object, u64, i64)> {
    let (object, policy) = (stale?, &asked.worker.policy);
    let Found::Response(stored) = object.decoded(|bytes| Found::read(bytes, &asked.key, policy)) else { return None };
    let (now_ms, unreachable_s) = (asked.worker.now_ms(), policy.stale_unreachable_s);
    let (age_s, ttl_s) = decide_on_failure(&stored.stored, &asked.directives, now_ms, failure, unreachable_s)?;
    Some((object.clone(), age_s, ttl_s))
}

/// Answers with that.
fn answer_stale(
    asked: Asked,
    why: Forward,
    status: Option<StatusCode>,
    (object, age_s, ttl_s): (Object, u64, i64),
) -> Response<ReplyBody> {
    let cache_status = CacheStatus::Stale { why, status: status.map(|status| status.as_u16()), ttl_s };
    answer(asked, object, age_s, cache_status, Outcome::Stale)
}

/// What becomes of a request whose fetch failed.
fn fail(asked: Asked, why: Forward, stale: Option<Object>, error: &FetchError, collapsed: bool) -> Response<ReplyBody> {
    match stale_on(&asked, stale, error.failure()) {
        Some(found) => answer_stale(asked, why, None, found),
        None => failed(&asked, error, CacheStatus::Forwarded { why, status: None, stored: false, collapsed }),
    }
}

/// Waits for the fetch that this request began.
async fn lead(
    asked: Asked,
    why: Forward,
    reader: FillReader,
    told: oneshot::Receiver<Told>,
    stale: Option<Object>,
) -> Response<ReplyBody> {
    let forwarded = |status, stored| CacheStatus::Forwarded { why, status, stored, collapsed: false };
    let broken = || FetchError::Broken("the fetch was given up".into());
    match told.await {
        Ok(Told::Streaming(status, cookies)) => {
            let cache_status = forwarded(Some(status), reader.is_promised());
            match stream(asked, reader, cache_status, Outcome::Miss).await {
                Ok(response) => with_cookies(response, cookies),
                Err(asked) => failed(&asked, &broken(), forwarded(None, false)),
            }
        }
        Ok(Told::Refreshed(object, cookies)) => {
            let age_s = age_of(&asked, &object);
            let stored = object.is_admitted();
            let response = answer(asked, object, age_s, forwarded(Some(304), stored), Outcome::Revalidated);
            with_cookies(response, cookies)
        }
        Ok(Told::Direct(response, lease)) => pass::forward(asked, response, lease, why, Size::Any),
        Ok(Told::TooLarge(response, lease)) => pass::forward(asked, response, lease, why, Size::TooLarge),
        Ok(Told::Stale(status)) => match stale_on(&asked, stale, Failure::Error) {
            Some(found) => answer_stale(asked, why, Some(status), found),
            None => {
                let error = FetchError::Broken(format!("it answered {status}"));
                failed(&asked, &error, forwarded(Some(status.as_u16()), false))
            }
        },
        Ok(Told::Failed(error)) => fail(asked, why, stale, &error, false),
        Err(_) => fail(asked, why, stale, &broken(), false),
    }
}

/// Adds the cookies that are for the one who asked, and not stored.
fn with_cookies(mut response: Response<ReplyBody>, cookies: Vec<HeaderValue>) -> Response<ReplyBody> {
    cookies.into_iter().for_each(|cookie| _ = response.headers_mut().append(SET_COOKIE, cookie));
    response
}

/// What came of another's fetch.
enum Followed {
    Answered(Response<ReplyBody>),
    /// The URL varies by these headers, and this request is for another variant.
    Varies(Asked, Vec<HeaderName>),
    /// The response is not for this request.
    Alone(Asked),
}

/// Waits for the fetch that another request began.
async fn follow(asked: Asked, why: Forward, mut reader: FillReader, stale: Option<Object>) -> Followed {
    let collapsed = |stored| CacheStatus::Forwarded { why, status: None, stored, collapsed: true };
    match reader.head().await {
        FillHead::Streaming { variant, metadata, .. } => {
            if !matches_variant(&variant, &asked.headers) {
                return Followed::Varies(asked, names_in(&variant));
            }
            // What must be validated for each request was validated for the other's alone.
            let found = Found::read(&metadata, &asked.key, &asked.worker.policy);
            let Found::Response(stored) = found else { return Followed::Alone(asked) };
            if let Verdict::Validate(_) = decide(&stored.stored, &asked.directives, asked.worker.now_ms()) {
                return Followed::Alone(asked);
            }
            let stored = reader.is_promised();
            match stream(asked, reader, collapsed(stored), Outcome::Collapsed).await {
                Ok(response) => Followed::Answered(response),
                Err(asked) => Followed::Alone(asked),
            }
        }
        FillHead::Object(object) => {
            let found = object.decoded(|bytes| Found::read(bytes, &asked.key, &asked.worker.policy));
            let Found::Response(stored) = found else { return Followed::Alone(asked) };
            match decide(&stored.stored, &asked.directives, asked.worker.now_ms()) {
                Verdict::Serve { age_s, .. } | Verdict::ServeAndValidate { age_s, .. } => {
                    let object = object.clone();
                    let stored = object.is_admitted();
                    Followed::Answered(answer(asked, object, age_s, collapsed(stored), Outcome::Collapsed))
                }
                Verdict::Validate(_) => Followed::Alone(asked),
            }
        }
        FillHead::Declined => Followed::Alone(asked),
        FillHead::Failed => {
            let error = FetchError::Broken("the fetch of another request for this URL failed".into());
            Followed::Answered(fail(asked, why, stale, &error, true))
        }
    }
}

/// Answers from a fetch under way; gives the request back where that has failed already.
async fn stream(
    mut asked: Asked,
    mut reader: FillReader,
    cache_status: CacheStatus,
    outcome: Outcome,
) -> Result<Response<ReplyBody>, Asked> {
    let (metadata, body_bytes) = match reader.head().await {
        FillHead::Streaming { metadata, body_bytes, .. } => (metadata, body_bytes),
        FillHead::Object(object) => {
            let age_s = age_of(&asked, &object);
            return Ok(answer(asked, object, age_s, cache_status, outcome));
        }
        FillHead::Declined | FillHead::Failed => return Err(asked),
    };
    let Found::Response(stored) = Found::read(&metadata, &asked.key, &asked.worker.policy) else {
        return Err(asked);
    };
    let age_s = stored.stored.age_ms(asked.worker.now_ms()) / 1000;
    let headers = std::mem::take(&mut asked.headers);
    let question = asked.question();
    let source = Source::Fill(reader, body_bytes);
    Ok(from_stored(&question, headers, &stored, source, age_s, cache_status.value(), outcome))
}

fn age_of(asked: &Asked, object: &Object) -> u64 {
    match object.decoded(|bytes| Found::read(bytes, &asked.key, &asked.worker.policy)) {
        Found::Response(stored) => stored.stored.age_ms(asked.worker.now_ms()) / 1000,
        _ => 0,
    }
}
