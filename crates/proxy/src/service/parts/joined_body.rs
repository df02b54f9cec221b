//! A body that is joined from its parts.
//!
//! Owns: the order of the parts, the look at the next one while one is sent, and the check that all of them are of the
//! same body. A part whose facts differ is not sent: the body ends with an error, and what is stored of the URL is
//! purged at this node, once for all who read that body (`part_purges`).
//!
//! | the next part is | then |
//! |---|---|
//! | stored, with the facts of the first one | it is used, however old it is: the first one was fresh, and the same validator confirms both |
//! | stored, with the facts of the first one, and softly purged before the client's request | it is validated first, or served stale if that is allowed |
//! | stored, with other facts | the origin is asked whether it has changed; if not, the first one was out of date |
//! | not stored | it is fetched and stored |
//! | not stored, and its owner in a fleet has it with another validator | the owner asks the origin whether it has changed; if so, it also validates its parts with the validator of the first one |
//! | not stored, and cannot be at present | it is requested for this client alone: from its owner in a fleet, else from the origin with the proof that `rest` wants |
//! | lost while it is sent, or its fetch breaks off | its rest is requested in the same way, once |
//! | answered with an error that may be about the client | it is requested in the same way, and nothing is purged |
//!
//! At most one part is fetched ahead. If the client leaves, the parts under way are fetched to their ends and stored, and
//! no others. *Source*: RFC 9110, 15.3.7.3; RFC 9111, 3.4 and 4.3.4.

use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::Method;
use nectary_host::fleet::NodeStanding;
use nectary_store::{FillReader, StoredObject};
use tokio::sync::oneshot;

use super::super::cached::{self, ReachedAnswer, UsableBody};
use super::super::fetch::{purge, purge_copies};
use super::super::request::ClientRequest;
use super::super::rest::{self, StoredHead};
use super::body_verdict::{BodyVerdict, judge};
use super::facts_of;
use super::part_facts::PartFacts;
use super::part_range::PartRange;
use super::passed_part::{ask_owner, is_of_node, passed_on};
use crate::access_log::AnswerNote;
use crate::body::BodyContent;
use crate::pieces::{BodyError, LostRange, Pieces, StoredBody};
use crate::rules::cache_control::RequestDirectives;

/// Where the bytes of a part are.
pub(crate) enum PartBody {
    /// In the store.
    Object(StoredObject),
    /// In a fetch under way.
    Filling(FillReader),
    /// On its way from the node that owns it, for this client alone.
    Passed(Pieces),
    /// At its owner or at the origin.
    Elsewhere,
}

impl PartBody {
    fn of(body: UsableBody) -> PartBody {
        match body {
            UsableBody::Object(object, _) => PartBody::Object(object),
            UsableBody::Filling(filling) => PartBody::Filling(filling.reader),
        }
    }
}

/// A body of which one part is known, with the way to the others.
pub(crate) struct JoinedBody {
    /// The request for the known part.
    request: ClientRequest,
    part: PartRange,
    facts: PartFacts,
    known: PartBody,
    /// The metadata of the known part.
    metadata: Bytes,
    known_purge: u64,
}

impl JoinedBody {
    /// Makes the body of which `known` is the part that `request` is for. `known_purge` is the last purge of parts when the
    /// client's request began.
    pub fn new(
        request: ClientRequest,
        part: PartRange,
        facts: PartFacts,
        (known, metadata): (PartBody, Bytes),
        known_purge: u64,
    ) -> JoinedBody {
        let continues = Some(facts.validator().clone());
        JoinedBody { request: ClientRequest { continues, ..request }, part, facts, known, metadata, known_purge }
    }

    /// The bytes of a range, or all. The range should begin in the known part.
    pub fn content(self, range: Option<Range<u64>>) -> BodyContent {
        let range = range.unwrap_or(0..self.facts.whole_bytes);
        if range.is_empty() {
            return BodyContent::Empty;
        }
        let own = self.part.within(self.facts.whole_bytes);
        if let PartBody::Object(object) = &self.known
            && object.whole().is_some()
            && own.start <= range.start
            && range.end <= own.end
        {
            return BodyContent::of_object(object, range.start - own.start..range.end - own.start, None);
        }
        let length = range.end - range.start;
        let first = PartRange::holding(range.start, self.part.part_bytes());
        let ready = (first == self.part).then_some(self.known);
        let joining = JoinedBodyStream {
            request: self.request,
            facts: self.facts,
            metadata: self.metadata,
            known_purge: self.known_purge,
            range,
            part: first,
            ready,
            ahead: None,
            sent: None,
        };
        let pieces = unfold(joining, async |mut joining| Some((joining.next().await?, joining)));
        BodyContent::Pieces(Box::pin(pieces), Some(length))
    }
}

/// A joined body on its way.
struct JoinedBodyStream {
    request: ClientRequest,
    facts: PartFacts,
    /// The metadata of the part that was known first.
    metadata: Bytes,
    /// The last purge of parts when the client's request began.
    known_purge: u64,
    /// What is sent of the whole body.
    range: Range<u64>,
    /// The part that is sent next.
    part: PartRange,
    /// Its bytes, if they are known already.
    ready: Option<PartBody>,
    /// Who looks for it, if somebody does.
    ahead: Option<oneshot::Receiver<Result<PartBody, BodyError>>>,
    /// The part that is being sent.
    sent: Option<SentPart>,
}

/// A part that is being sent.
struct SentPart {
    pieces: Pieces,
    /// The bytes that come before those that are to be sent.
    skipped: u64,
    /// What is still to be sent of it, as a range of the whole body; not empty.
    left: Range<u64>,
    /// Whether it was requested for this client alone. Then nobody else has its rest.
    is_alone: bool,
}

impl JoinedBodyStream {
    /// The next piece; `None` at the end. *Errors*: a part is nowhere, or is of another body; nothing may be read after
    /// that.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if self.sent.is_none() {
                match self.open().await {
                    Ok(Some(part)) => self.sent = Some(part),
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                }
                self.part = self.part.following();
                self.look_ahead();
            }
            let sent = self.sent.as_mut()?;
            let error = match sent.pieces.next().await {
                Some(Ok(mut piece)) => {
                    let skipped = usize::try_from(sent.skipped).unwrap_or(usize::MAX).min(piece.len());
                    drop(piece.split_to(skipped));
                    sent.skipped -= skipped as u64;
                    piece.truncate(usize::try_from(sent.left.end - sent.left.start).unwrap_or(usize::MAX));
                    sent.left.start += piece.len() as u64;
                    if sent.left.is_empty() {
                        self.sent = None;
                    }
                    if piece.is_empty() {
                        continue;
                    }
                    return Some(Ok(piece));
                }
                Some(Err(error)) => error,
                None => BodyError("a part of the body ended early".into()),
            };
            if sent.is_alone {
                return Some(Err(error));
            }
            let left = sent.left.clone();
            match self.alone(left, error.to_string()).await {
                Ok(part) => self.sent = Some(part),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Opens what is wanted of the next part; `None` behind the last one.
    async fn open(&mut self) -> Result<Option<SentPart>, BodyError> {
        let own = self.part.within(self.facts.whole_bytes);
        let left = own.start.max(self.range.start)..own.end.min(self.range.end);
        if left.is_empty() {
            return Ok(None);
        }
        let body = match (self.ready.take(), self.ahead.take()) {
            (Some(body), _) => body,
            (None, Some(ahead)) => ahead.await.unwrap_or_else(|_| Err(BodyError("the proxy ends".into())))?,
            (None, None) => find(self.request.of_part(self.part), self.part, &self.facts, self.known_purge).await?,
        };
        let (start, end) = (left.start - own.start, left.end - own.start);
        let pieces = match body {
            PartBody::Object(object) => StoredBody::of_object(&object, start..end, None).into_pieces(),
            PartBody::Filling(mut reader) => {
                reader.skip_to(start);
                StoredBody::of_fill(reader, start, Some(end - start), None).into_pieces()
            }
            PartBody::Passed(pieces) => return Ok(Some(SentPart { pieces, skipped: start, left, is_alone: true })),
            PartBody::Elsewhere => {
                let why = "a part of it cannot be stored at present".to_owned();
                return self.alone(left, why).await.map(Some);
            }
        };
        Ok(Some(SentPart { pieces, skipped: 0, left, is_alone: false }))
    }

    /// Requests a range of the whole body, which is in one part, for this client alone: from the part's owner, or else from
    /// the origin.
    async fn alone(&self, left: Range<u64>, why: String) -> Result<SentPart, BodyError> {
        let part = PartRange::holding(left.start, self.part.part_bytes());
        if let Some(pieces) = ask_owner(&self.request.of_part(part), part, &self.facts).await {
            let skipped = left.start.saturating_sub(part.start());
            return Ok(SentPart { pieces, skipped, left, is_alone: true });
        }
        let kept = StoredHead::Metadata(self.metadata.clone());
        let resume = rest::of_parts(&self.request, kept, self.facts.whole_bytes);
        let resume = resume.ok_or_else(|| BodyError("a part of the body is nowhere".into()))?;
        let pieces = resume(LostRange { start: left.start, end: Some(left.end), size_bytes: None, why }).await?;
        Ok(SentPart { pieces, skipped: 0, left, is_alone: true })
    }

    /// Begins to look for the next part, if it is wanted. The task ends when it has found it; a fetch that it began goes on
    /// to its end.
    fn look_ahead(&mut self) {
        if self.part.start() >= self.range.end {
            return;
        }
        let (tell, told) = oneshot::channel();
        let (request, part, facts) = (self.request.of_part(self.part), self.part, self.facts.clone());
        let known_purge = self.known_purge;
        self.request.worker.connections.tasks.spawn_local(async move {
            _ = tell.send(find(request, part, &facts, known_purge).await);
        });
        self.ahead = Some(told);
    }
}

/// Finds a part of the body that has these facts. *Errors*: the origin has another body.
///
/// `known_purge` is the last purge of parts when the client's request began.
async fn find(
    mut request: ClientRequest,
    part: PartRange,
    facts: &PartFacts,
    known_purge: u64,
) -> Result<PartBody, BodyError> {
    let worker = request.worker.clone();
    if worker.is_leaving.get() || request.standing() == NodeStanding::ValidateOnly {
        // Another process may have opened the store, or another node may have purged what is in it.
        return Ok(PartBody::Elsewhere);
    }
    request.method = Method::GET;
    request.answer = AnswerNote::default();
    let asked_ms = request.at_ms;
    request.at_ms = worker.now_ms();
    // What the client demands was met by the first part.
    request.directives = RequestDirectives::default();
    request.features.has_directives = false;
    request.continues = Some(facts.validator().clone());
    if let Some(object) = cached::stored_part(&request).await {
        // An answer that began before a soft purge ends as it began, like one that has a single object.
        let is_purged = object.stale_since_s().is_some_and(|since_s| u64::from(since_s) * 1000 <= asked_ms);
        let body = UsableBody::Object(object, 0);
        let is_same = facts_of(&request, part, &body).as_ref() == Some(facts);
        if is_same && !is_purged {
            return Ok(PartBody::of(body));
        }
        request.directives.no_cache = !is_same;
    }
    let reached = cached::reach(&request).await;
    match (judge(&request, part, &reached, |found| found == facts), reached) {
        (BodyVerdict::Same, ReachedAnswer::Usable(found)) => return Ok(PartBody::of(found.body)),
        (BodyVerdict::Other, _) => {}
        (BodyVerdict::Unknown, ReachedAnswer::Unstored(unstored, ..)) if is_of_node(&unstored.0) => {
            let passed = passed_on(&request, part, facts, *unstored);
            return Ok(passed.map_or(PartBody::Elsewhere, PartBody::Passed));
        }
        // It is requested again when the part is sent.
        (BodyVerdict::Same | BodyVerdict::Unknown, _) => return Ok(PartBody::Elsewhere),
    }
    if worker.part_purges.begin(&request.key, known_purge) {
        // The owner of the key has judged by the same validator what it has.
        match request.is_copy() {
            true => purge_copies(&worker, &request.key).await,
            false => purge(&worker, &request.key).await,
        }
        worker.part_purges.end(&request.key);
    }
    Err(BodyError("the origin has another body now".into()))
}
