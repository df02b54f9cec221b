//! GET and HEAD by way of the store.
//!
//! Owns: the choice among what is stored, another's fetch, a fetch of one's own that others may join, and going alone. Going
//! round again (a marker was found, somebody else finished, a variant was learned) is bounded; then a request goes alone.

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
use crate::rules::serve::{Verdict, decide};
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
            match object.decoded(|bytes| Found::read(bytes, &asked.key, &worker.default_ttl)) {
                Found::Marker(names) if variant.names.is_empty() => {
                    variant.learn(names, &asked.headers);
                    why = Forward::VaryMiss;
                    continue;
                }
                Found::Response(stored) => match decide(&stored.stored, &asked.directives, asked.at_ms) {
                    Verdict::Serve { age_s, ttl_s } => {
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
            return pass::pass(asked, None, why).await;
        }
        let Ok(role) = worker.store.begin_fill(key, stale.as_ref()) else {
            return pass::pass(asked, None, why).await;
        };
        match role {
            FillRole::Resident(_) => {}
            FillRole::Leader(fill) => {
                let reader = fill.reader();
                let plan = Plan::new(&asked, variant.names, stale);
                let (tell, told) = oneshot::channel();
                worker.tasks.spawn_local(fetch::run(plan, fill, tell));
                return lead(asked, why, reader, told).await;
            }
            FillRole::Follower(reader) => match follow(asked, why, reader).await {
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
    let read = |bytes: &_| Found::read(bytes, &asked.key, &asked.worker.default_ttl);
    let Found::Response(stored) = object.decoded(read) else {
        return failed(&asked, &FetchError::Broken("what was stored cannot be read".into()), status);
    };
    let headers = std::mem::take(&mut asked.headers);
    let question = asked.question();
    from_stored(&question, headers, stored, Source::Object(object.clone()), age_s, status.value(), outcome)
}

/// Waits for the fetch that this request began.
async fn lead(asked: Asked, why: Forward, reader: FillReader, told: oneshot::Receiver<Told>) -> Response<ReplyBody> {
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
        Ok(Told::Failed(error)) => failed(&asked, &error, forwarded(None, false)),
        Err(_) => failed(&asked, &broken(), forwarded(None, false)),
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
async fn follow(asked: Asked, why: Forward, mut reader: FillReader) -> Followed {
    let collapsed = |stored| CacheStatus::Forwarded { why, status: None, stored, collapsed: true };
    match reader.head().await {
        FillHead::Streaming { variant, metadata, .. } => {
            if !matches_variant(&variant, &asked.headers) {
                return Followed::Varies(asked, names_in(&variant));
            }
            // What must be validated for each request was validated for the other's alone.
            let found = Found::read(&metadata, &asked.key, &asked.worker.default_ttl);
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
            let found = object.decoded(|bytes| Found::read(bytes, &asked.key, &asked.worker.default_ttl));
            let Found::Response(stored) = found else { return Followed::Alone(asked) };
            match decide(&stored.stored, &asked.directives, asked.worker.now_ms()) {
                Verdict::Serve { age_s, .. } => {
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
            Followed::Answered(failed(&asked, &error, collapsed(false)))
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
    let Found::Response(stored) = Found::read(&metadata, &asked.key, &asked.worker.default_ttl) else {
        return Err(asked);
    };
    let age_s = stored.stored.age_ms(asked.worker.now_ms()) / 1000;
    let headers = std::mem::take(&mut asked.headers);
    let question = asked.question();
    let source = Source::Fill(reader, body_bytes);
    Ok(from_stored(&question, headers, &stored, source, age_s, cache_status.value(), outcome))
}

fn age_of(asked: &Asked, object: &Object) -> u64 {
    match object.decoded(|bytes| Found::read(bytes, &asked.key, &asked.worker.default_ttl)) {
        Found::Response(stored) => stored.stored.age_ms(asked.worker.now_ms()) / 1000,
        _ => 0,
    }
}
