//! Responses to clients.
//!
//! Owns: making a response from a stored response, from a stream that is being stored, from stored parts of a response,
//! or from the proxy's own text.
//! The response is whole or partial, a `304` or a `416`, and has `Age` and `NameCache-Status`. This file also decides what
//! is logged about a response.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, AGE, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version};
use nectary_host::fleet::peer_headers::{FOUND, FOUND_HIT, FOUND_MISS, STALE, TAGS, TAGS_MORE};
use nectary_store::{FillReader, StoredObject};

use super::request::{ClientRequest, HeaderFeatures, RequestClient};
use crate::access_log::{AccessLogLine, AnswerNote, CacheOutcome};
use crate::admin::AdminPage;
use crate::body::{BodyContent, ReplyBody, RequestTicket};
use crate::connections::EntranceRole;
use crate::pieces::Resume;
use crate::rules::cache_status::CacheStatus;
use crate::rules::conditional::{if_range_holds, is_not_modified};
use crate::rules::invalidate::origin_of;
use crate::rules::multipart::MultipartBody;
use crate::rules::range::{RequestedRange, wanted};
use crate::rules::tags::tags_of;
use crate::sites::SiteRoute;
use crate::stored::response::StoredResponse;
use crate::upstream::{BodyFault, FetchError};
use crate::worker::ProxyWorker;

/// The name of the header `NameCache-Status`.
pub(crate) const CACHE_STATUS: HeaderName = http::header::CACHE_STATUS;
/// The longest body, in bytes, with which a response is logged when it is made, before its bytes are sent.
const LOGGED_AT_ONCE_BYTES_MAX: u64 = 64 * 1024;

/// The source of a stored response's body.
pub(crate) enum BodySource {
    /// The store, and the way to get the rest of a body that the store loses while it is read.
    Object(StoredObject, Option<Resume>),
    /// A fetch under way, with the body's length if it is known, and the way to get what the store loses of it.
    Fill(FillReader, Option<u64>, Option<Resume>),
    /// Parts of the body, of which the stored response is one: the length of the whole, and what makes the content.
    Joined(u64, JoinedContent),
}

/// Makes the content of a range of a body that is in parts, or of all.
pub(crate) type JoinedContent = Box<dyn FnOnce(Option<Range<u64>>) -> BodyContent>;

impl BodySource {
    fn body_bytes(&self) -> Option<u64> {
        match self {
            BodySource::Object(object, _) => Some(object.body_bytes()),
            BodySource::Fill(_, body_bytes, _) => *body_bytes,
            BodySource::Joined(whole_bytes, _) => Some(*whole_bytes),
        }
    }

    fn content(self, range: Option<Range<u64>>) -> BodyContent {
        match (self, range) {
            (BodySource::Object(object, resume), None) => {
                BodyContent::of_object(&object, 0..object.body_bytes(), resume)
            }
            (BodySource::Object(object, resume), Some(range)) => BodyContent::of_object(&object, range, resume),
            (BodySource::Fill(reader, length, resume), None) => BodyContent::of_fill(reader, 0, length, resume),
            (BodySource::Fill(mut reader, _, resume), Some(range)) => {
                reader.skip_to(range.start);
                BodyContent::of_fill(reader, range.start, Some(range.end - range.start), resume)
            }
            (BodySource::Joined(_, content), range) => content(range),
        }
    }
}

/// The parts of a request that are needed to answer it from a stored response.
pub(crate) struct ReplyRequest<'a> {
    pub worker: &'a Rc<ProxyWorker>,
    pub route: &'a SiteRoute,
    pub client: &'a Rc<RequestClient>,
    pub method: &'a Method,
    pub uri: &'a Uri,
    pub version: Version,
    pub key: &'a [u8],
    pub features: HeaderFeatures,
    pub started: Instant,
    pub at_ms: u64,
    /// What the log tells of the origin's answer; `None` if no origin was asked.
    pub answer: Option<&'a AnswerNote>,
}

impl ReplyRequest<'_> {
    /// The URL for the log.
    pub(super) fn logged_url(&self, headers: &HeaderMap) -> Cow<'_, [u8]> {
        let named = self.uri.authority().map(|authority| authority.as_str().as_bytes());
        let host = named.or_else(|| headers.get(HOST).map(HeaderValue::as_bytes));
        let path = self.uri.path_and_query().map_or(&b""[..], |path| path.as_str().as_bytes());
        self.route.logged_url(self.key, self.client.is_secure, host, path)
    }
}

impl ClientRequest {
    /// The parts of this request that [`from_stored`] needs.
    pub fn question(&self) -> ReplyRequest<'_> {
        ReplyRequest {
            worker: &self.worker,
            route: &self.route,
            client: &self.client,
            method: &self.method,
            uri: &self.uri,
            version: self.version,
            key: &self.key,
            features: self.features,
            started: self.started,
            at_ms: self.at_ms,
            answer: Some(&self.answer),
        }
    }
}

/// Answers from a stored response. `headers` are the request's headers; their map is reused for the response's headers.
pub(crate) fn from_stored(
    question: &ReplyRequest<'_>,
    mut headers: HeaderMap,
    stored: &StoredResponse,
    source: BodySource,
    age_s: u64,
    cache_status: HeaderValue,
    outcome: CacheOutcome,
) -> Response<ReplyBody> {
    let of_node =
        (question.client.door == EntranceRole::Fleet).then(|| FactsForNode::of(question, stored, &source, outcome));
    let body_bytes = source.body_bytes();
    let features = question.features;
    let is_joined = matches!(source, BodySource::Joined(..));
    let mut status = if is_joined { StatusCode::OK } else { stored.head.status };
    let (mut range, mut parts) = (None, None);
    if features.is_conditional
        && is_not_modified(question.method, &headers, status, &stored.headers(), stored.stored.response_ms)
    {
        status = StatusCode::NOT_MODIFIED;
    } else if features.has_range
        && question.method == Method::GET
        && status == StatusCode::OK
        && let Some(size) = body_bytes
        && if_range_holds(&headers, &stored.headers())
    {
        match wanted(&headers, size) {
            RequestedRange::Whole => {}
            RequestedRange::Part(part) => {
                status = StatusCode::PARTIAL_CONTENT;
                range = Some(part);
            }
            // The body of a fetch under way can only be read once, from front to end, and so can one of parts.
            RequestedRange::Parts(several) if matches!(source, BodySource::Object(..)) => {
                status = StatusCode::PARTIAL_CONTENT;
                parts = Some(multipart(&several, stored, size));
            }
            RequestedRange::Parts(_) => {}
            RequestedRange::Unsatisfiable => status = StatusCode::RANGE_NOT_SATISFIABLE,
        }
    }
    let has_body = question.method != Method::HEAD
        && status != StatusCode::NOT_MODIFIED
        && status != StatusCode::RANGE_NOT_SATISFIABLE;
    let mut multipart_type = None;
    let content = match (&source, parts) {
        _ if !has_body => BodyContent::Empty,
        (BodySource::Object(object, resume), Some(parts)) => {
            multipart_type = Some(parts.content_type.clone());
            BodyContent::of_parts(object, *parts, resume.clone())
        }
        _ => source.content(range.clone()),
    };
    let ticket = log(question, &headers, status, &content, outcome, body_bytes);

    headers.clear();
    if status == StatusCode::NOT_MODIFIED {
        stored.write_headers_of_304(&mut headers);
        if of_node.is_some() {
            // The node that asks may have invalidated one of them.
            stored.write_groups(&mut headers);
        }
    } else {
        stored.write_headers(&mut headers);
        if is_joined {
            turn_into_whole(&mut headers);
        }
    }
    match of_node {
        // Another node makes the response of its client.
        Some(facts) => facts.say(&mut headers),
        None => question.route.response_headers.apply(&mut headers),
    }
    if question.method == Method::HEAD
        && status != StatusCode::NOT_MODIFIED
        && let Some(size) = body_bytes
    {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    if let (Some(range), Some(size)) = (&range, body_bytes) {
        headers.insert(CONTENT_RANGE, content_range(range, size));
    }
    if status == StatusCode::PARTIAL_CONTENT {
        remove_digests(&mut headers);
    }
    if let Some(multipart_type) = multipart_type {
        headers.insert(CONTENT_TYPE, multipart_type);
    }
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        headers.insert(CONTENT_RANGE, text_value(format!("bytes */{}", body_bytes.unwrap_or(0))));
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.remove(CONTENT_TYPE);
    }
    headers.insert(AGE, question.worker.rendered.borrow_mut().age(age_s));
    headers.append(CACHE_STATUS, cache_status);
    finish(question.client, status, headers, content, ticket)
}

/// What another node must know of a stored response beside its headers.
struct FactsForNode {
    /// Whether it has tags that its headers do not name, or may have: a response that was confirmed keeps tags that the last
    /// one no longer names.
    has_more_tags: bool,
    /// Whether it was softly purged. By its age it may be fresh.
    is_purged: bool,
    /// Whether it came from no origin.
    is_hit: bool,
}

impl FactsForNode {
    #[cold]
    fn of(
        question: &ReplyRequest<'_>,
        stored: &StoredResponse,
        source: &BodySource,
        outcome: CacheOutcome,
    ) -> FactsForNode {
        let is_hit = outcome == CacheOutcome::Hit;
        let BodySource::Object(object, _) = source else {
            // The tags of parts but the first one are not known.
            let has_more_tags = question.route.strips_tags || matches!(source, BodySource::Joined(..));
            return FactsForNode { has_more_tags, is_purged: false, is_hit };
        };
        let named = tags_of(&stored.headers(), origin_of(question.key));
        let named = named.iter().chain(&question.route.tags).map(Vec::as_slice);
        let has_more_tags = !question.worker.store.has_only_tags(question.key, object, named);
        FactsForNode { has_more_tags, is_purged: object.stale_since_s().is_some(), is_hit }
    }

    fn say(&self, headers: &mut HeaderMap) {
        let mut say = |name, value| _ = headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        if self.has_more_tags {
            say(TAGS, TAGS_MORE);
        }
        if self.is_purged {
            say(STALE, "1");
        }
        say(FOUND, if self.is_hit { FOUND_HIT } else { FOUND_MISS });
    }
}

/// The multipart body with several parts of a stored response. It is rare, so its code is kept out of the common path.
#[cold]
fn multipart(parts: &[Range<u64>], stored: &StoredResponse, size_bytes: u64) -> Box<MultipartBody> {
    Box::new(MultipartBody::new(parts, stored.headers().get(CONTENT_TYPE), size_bytes))
}

/// Logs a response with a short body at once. For a longer body, makes the ticket that logs it later.
fn log(
    question: &ReplyRequest<'_>,
    headers: &HeaderMap,
    status: StatusCode,
    content: &BodyContent,
    outcome: CacheOutcome,
    object_bytes: Option<u64>,
) -> Option<Box<RequestTicket>> {
    let worker = question.worker;
    let sent_bytes = match content {
        BodyContent::Empty => 0,
        BodyContent::Whole(bytes) if bytes.len() as u64 <= LOGGED_AT_ONCE_BYTES_MAX => bytes.len() as u64,
        _ => {
            return Some(Box::new(RequestTicket {
                log: worker.log.clone(),
                node: question.client.node.clone(),
                client: question.client.own_address(),
                at_ms: question.at_ms,
                started: question.started,
                method: question.method.clone(),
                url: question.logged_url(headers).into_owned(),
                version: question.version,
                status: status.as_u16(),
                referrer: headers.get(REFERER).cloned(),
                user_agent: headers.get(USER_AGENT).cloned(),
                outcome,
                object_bytes,
                tls: question.client.tls,
                route: worker.log.is_detailed().then(|| question.route.name.clone()).flatten(),
                answer: question.answer.cloned().unwrap_or_default(),
                sent_bytes: 0,
            }));
        }
    };
    if let Some(node) = &question.client.node {
        node.note_answer(outcome, sent_bytes);
        return None;
    }
    worker.stats.body_bytes_sent.add(sent_bytes);
    if !worker.log.is_on() {
        worker.log.count(outcome, status.as_u16(), question.started.elapsed());
        return None;
    }
    let answer = question.answer.and_then(AnswerNote::take);
    worker.log.note(&AccessLogLine {
        client: question.client.own_address(),
        at_ms: question.at_ms,
        method: question.method,
        url: &question.logged_url(headers),
        version: question.version,
        status: status.as_u16(),
        body_bytes: sent_bytes,
        referrer: headers.get(REFERER).map(HeaderValue::as_bytes),
        user_agent: headers.get(USER_AGENT).map(HeaderValue::as_bytes),
        outcome,
        duration: question.started.elapsed(),
        object_bytes,
        tls: question.client.tls,
        route: question.route.name.as_deref(),
        answer: answer.as_ref(),
    });
    None
}

/// Makes a response from its status, headers and content.
pub(crate) fn finish(
    client: &Rc<RequestClient>,
    status: StatusCode,
    headers: HeaderMap,
    content: BodyContent,
    ticket: Option<Box<RequestTicket>>,
) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::new(content, client.exchange.clone(), ticket));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// A response with the proxy's own text; `close` says that the connection ends after it.
pub(crate) fn own(
    request: &ClientRequest,
    status: StatusCode,
    detail: &'static str,
    text: &str,
    close: bool,
) -> Response<ReplyBody> {
    own_with(request, status, CacheStatus::Own { detail }, CacheOutcome::Own, "text/plain; charset=utf-8", text, close)
}

/// Like [`own`], but with all parts of the response as arguments.
pub(crate) fn own_with(
    request: &ClientRequest,
    status: StatusCode,
    cache_status: CacheStatus,
    outcome: CacheOutcome,
    content_type: &'static str,
    text: &str,
    close: bool,
) -> Response<ReplyBody> {
    own_bytes(request, status, cache_status, outcome, content_type, Bytes::from(format!("{text}\n")), close)
}

/// Like [`own_with`], with exactly these bytes as the body.
pub(crate) fn own_bytes(
    request: &ClientRequest,
    status: StatusCode,
    cache_status: CacheStatus,
    outcome: CacheOutcome,
    content_type: &'static str,
    body: Bytes,
    close: bool,
) -> Response<ReplyBody> {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_STATUS, cache_status.value());
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, allowed(request));
    }
    if close {
        headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    }
    let mut ticket = request.ticket(status.as_u16(), outcome, None);
    let content = if request.method == Method::HEAD {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        BodyContent::Empty
    } else {
        ticket.sent_bytes = body.len() as u64;
        BodyContent::Whole(body)
    };
    drop(ticket);
    finish(&request.client, status, headers, content, None)
}

/// The methods that are served at the address to which a request was sent.
fn allowed(request: &ClientRequest) -> HeaderValue {
    if request.client.is_admin() {
        let is_page = request.worker.options.admin.pages.is_some() && AdminPage::of(request.uri.path()).is_some();
        return HeaderValue::from_static(if is_page { "GET, HEAD, PURGE" } else { "PURGE" });
    }
    let mut methods = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE".to_owned();
    if request.route.is_forward() {
        methods.push_str(", CONNECT");
    }
    if request.worker.options.admin.token.is_some() {
        methods.push_str(", PURGE");
    }
    text_value(methods)
}

/// In the extensions of an answer that is no response of the origin: why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LackingResponse {
    /// The origin gave none.
    Failed,
    /// None is stored that may be served, and the origin was not asked.
    NotStored,
}

/// The answer to a client if there is no response of the origin, because the origin or the client failed.
pub(crate) fn failed(request: &ClientRequest, error: &FetchError, cache_status: CacheStatus) -> Response<ReplyBody> {
    let status = match error {
        FetchError::Client(fault) => return at_fault(request, *fault),
        FetchError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        FetchError::Crowded | FetchError::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    let (outcome, kind) = (CacheOutcome::Failed, "text/plain; charset=utf-8");
    let mut response = own_with(request, status, cache_status, outcome, kind, &error.to_string(), false);
    response.extensions_mut().insert(LackingResponse::Failed);
    response
}

/// The answer to a request with a bad body; the connection ends after it.
fn at_fault(request: &ClientRequest, fault: BodyFault) -> Response<ReplyBody> {
    request.client.is_at_fault.set(true);
    let (status, detail) = match fault {
        BodyFault::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"),
        BodyFault::Framing(_) | BodyFault::EndedEarly => (StatusCode::BAD_REQUEST, "bad-body"),
    };
    own(request, status, detail, &format!("The request is refused: {fault}."), true)
}

/// Turns the headers of a stored part into those of the whole.
fn turn_into_whole(headers: &mut HeaderMap) {
    headers.remove(CONTENT_RANGE);
    // They are of the part.
    remove_digests(headers);
    headers.entry(ACCEPT_RANGES).or_insert(HeaderValue::from_static("bytes"));
}

/// Removes the digests of the whole body from the headers of a part. *Source*: RFC 9530, 2.
pub(super) fn remove_digests(headers: &mut HeaderMap) {
    for name in ["content-digest", "content-md5"] {
        headers.remove(name);
    }
}

/// The value of `BodyContent-Range` for a range, which is not empty, of a body of `size_bytes`.
pub(crate) fn content_range(range: &Range<u64>, size_bytes: u64) -> HeaderValue {
    text_value(format!("bytes {}-{}/{size_bytes}", range.start, range.end.saturating_sub(1)))
}

fn text_value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits and punctuation")
}
