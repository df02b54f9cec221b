//! A body that is joined from its parts.
//!
//! Owns: the order of the parts, the look at the next one while one is sent, and the check that all of them are of the
//! same body. A part whose facts differ is not sent: the body ends with an error, and what is stored of the URL is
//! purged.
//!
//! | the next part is | then |
//! |---|---|
//! | stored, with the facts of the first one | it is used, however old it is: the first one was fresh, and the same validator confirms both |
//! | stored, with other facts | the origin is asked whether it has changed; if not, the first one was out of date |
//! | not stored | it is fetched and stored |
//! | not stored, and cannot be at present | it is fetched for this client alone, with the proof that `rest` wants |
//!
//! At most one part is fetched ahead. If the client leaves, the parts under way are fetched to their ends and stored, and
//! no others. *Source*: RFC 9110, 15.3.7.3; RFC 9111, 3.4 and 4.3.4.

use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::{Method, StatusCode};
use nectary_store::{FillReader, Object};
use tokio::sync::oneshot;

use super::super::cached::{self, FillingResponse, ReachedAnswer, UsableBody};
use super::super::fetch::purge;
use super::super::request::ClientRequest;
use super::super::rest::{self, Kept, PartPlace};
use super::facts_of;
use super::part_facts::PartFacts;
use super::part_range::PartRange;
use crate::access_log::AnswerNote;
use crate::body::Content;
use crate::pieces::{BodyError, Lost, Pieces, Resume, StoredBody};
use crate::rules::cache_control::RequestDirectives;

/// Where the bytes of a part are.
pub(crate) enum PartBody {
    /// In the store.
    Object(Object),
    /// In a fetch under way, with the metadata of what it stores.
    Filling(FillReader, Bytes),
    /// At the origin alone.
    Origin,
}

impl PartBody {
    fn of(body: UsableBody) -> PartBody {
        match body {
            UsableBody::Object(object, _) => PartBody::Object(object),
            UsableBody::Filling(filling) => {
                let FillingResponse { reader, metadata, .. } = *filling;
                PartBody::Filling(reader, metadata)
            }
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
}

impl JoinedBody {
    /// Makes the body of which `known` is the part that `request` is for.
    pub fn new(
        request: ClientRequest,
        part: PartRange,
        facts: PartFacts,
        known: PartBody,
        metadata: Bytes,
    ) -> JoinedBody {
        JoinedBody { request, part, facts, known, metadata }
    }

    /// The bytes of a range, or all. The range should begin in the known part.
    pub fn content(self, range: Option<Range<u64>>) -> Content {
        let range = range.unwrap_or(0..self.facts.whole_bytes);
        if range.is_empty() {
            return Content::Empty;
        }
        let own = self.part.within(self.facts.whole_bytes);
        if let PartBody::Object(object) = &self.known
            && own.start <= range.start
            && range.end <= own.end
        {
            let resume = resume_of(&self.request, object, own.start, self.facts.whole_bytes);
            return Content::of_object(object, range.start - own.start..range.end - own.start, resume);
        }
        let length = range.end - range.start;
        let first = PartRange::holding(range.start, self.part.part_bytes());
        let ready = (first == self.part).then_some(self.known);
        let joining = Joining {
            request: self.request,
            facts: self.facts,
            metadata: self.metadata,
            range,
            part: first,
            ready,
            ahead: None,
            sent: None,
        };
        let pieces = unfold(joining, async |mut joining| Some((joining.next().await?, joining)));
        Content::Pieces(Box::pin(pieces), Some(length))
    }
}

/// A way to get what the store loses of a part; `None` if the part is in memory as a whole.
fn resume_of(request: &ClientRequest, object: &Object, start: u64, whole_bytes: u64) -> Option<Resume> {
    if object.whole().is_some() {
        return None;
    }
    rest::of_part(request, Kept::Object(object.clone()), PartPlace { start, whole_bytes })
}

/// A joined body on its way.
struct Joining {
    request: ClientRequest,
    facts: PartFacts,
    /// The metadata of the part that was known first.
    metadata: Bytes,
    /// What is sent of the whole body.
    range: Range<u64>,
    /// The part that is sent next.
    part: PartRange,
    /// Its bytes, if they are known already.
    ready: Option<PartBody>,
    /// Who looks for it, if somebody does.
    ahead: Option<oneshot::Receiver<Result<PartBody, BodyError>>>,
    /// The bytes of the part that is being sent, and how many of them are left.
    sent: Option<(Pieces, u64)>,
}

impl Joining {
    /// The next piece; `None` at the end. *Errors*: a part is nowhere, or is of another body; nothing may be read after
    /// that.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if let Some((pieces, left)) = &mut self.sent {
                let mut piece = match pieces.next().await {
                    Some(Ok(piece)) => piece,
                    Some(Err(error)) => return Some(Err(error)),
                    None => return Some(Err(BodyError("a part of the body ended early".into()))),
                };
                piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= piece.len() as u64;
                if *left == 0 {
                    self.sent = None;
                }
                if piece.is_empty() {
                    continue;
                }
                return Some(Ok(piece));
            }
            let own = self.part.within(self.facts.whole_bytes);
            let wanted = own.start.max(self.range.start)..own.end.min(self.range.end);
            if wanted.is_empty() {
                return None;
            }
            let length = wanted.end - wanted.start;
            match self.open(&own, wanted).await {
                Ok(pieces) => self.sent = Some((pieces, length)),
                Err(error) => return Some(Err(error)),
            }
            self.part = self.part.following();
            self.look_ahead();
        }
    }

    /// Opens a range of the next part, whose bytes are `own` in the whole body.
    async fn open(&mut self, own: &Range<u64>, wanted: Range<u64>) -> Result<Pieces, BodyError> {
        let body = match (self.ready.take(), self.ahead.take()) {
            (Some(body), _) => body,
            (None, Some(ahead)) => ahead.await.unwrap_or_else(|_| Err(BodyError("the proxy ends".into())))?,
            (None, None) => find(self.request.of_part(self.part), self.part, &self.facts).await?,
        };
        let place = PartPlace { start: own.start, whole_bytes: self.facts.whole_bytes };
        let (start, end) = (wanted.start - own.start, wanted.end - own.start);
        match body {
            PartBody::Object(object) => {
                let resume = resume_of(&self.request, &object, place.start, place.whole_bytes);
                Ok(StoredBody::of_object(&object, start..end, resume).into_pieces())
            }
            PartBody::Filling(mut reader, metadata) => {
                let resume = match reader.is_kept(own.end - own.start) {
                    true => None,
                    false => rest::of_part(&self.request, Kept::Metadata(metadata), place),
                };
                reader.skip_to(start);
                Ok(StoredBody::of_fill(reader, start, Some(end - start), resume).into_pieces())
            }
            PartBody::Origin => {
                let kept = Kept::Metadata(self.metadata.clone());
                let resume = rest::of_part(&self.request, kept, place);
                let resume = resume.ok_or_else(|| BodyError("a part of the body is nowhere".into()))?;
                let why = "a part of it cannot be stored at present".to_owned();
                resume(Lost { start, end: Some(end), size_bytes: None, why }).await
            }
        }
    }

    /// Begins to look for the next part, if it is wanted. The task ends when it has found it; a fetch that it began goes on
    /// to its end.
    fn look_ahead(&mut self) {
        if self.part.start() >= self.range.end {
            return;
        }
        let (tell, told) = oneshot::channel();
        let (request, part, facts) = (self.request.of_part(self.part), self.part, self.facts.clone());
        self.request.worker.connections.tasks.spawn_local(async move {
            _ = tell.send(find(request, part, &facts).await);
        });
        self.ahead = Some(told);
    }
}

/// Finds a part of the body that has these facts. *Errors*: there is none.
async fn find(mut request: ClientRequest, part: PartRange, facts: &PartFacts) -> Result<PartBody, BodyError> {
    let worker = request.worker.clone();
    if worker.is_leaving.get() {
        // Another process may have opened the store.
        return Ok(PartBody::Origin);
    }
    request.method = Method::GET;
    request.answer = AnswerNote::default();
    request.at_ms = worker.now_ms();
    // What the client demands was met by the first part.
    request.directives = RequestDirectives::default();
    request.features.has_directives = false;
    request.continues = true;
    if let Some(object) = cached::stored_part(&request).await {
        let body = UsableBody::Object(object, 0);
        if facts_of(&request, part, &body).as_ref() == Some(facts) {
            return Ok(PartBody::of(body));
        }
        request.directives.no_cache = true;
    }
    match cached::reach(&request).await {
        ReachedAnswer::Usable(found) if facts_of(&request, part, &found.body).as_ref() == Some(facts) => {
            return Ok(PartBody::of(found.body));
        }
        ReachedAnswer::Alone(..) => return Ok(PartBody::Origin),
        ReachedAnswer::Unstored(unstored, ..) => {
            let status = unstored.0.status();
            if status == StatusCode::PARTIAL_CONTENT {
                return Ok(PartBody::Origin);
            }
            if status.as_u16() >= 500 {
                return Err(BodyError(format!("the origin answered {status} to the request for a part")));
            }
        }
        ReachedAnswer::Failed(error, _) => return Err(BodyError(error.to_string())),
        ReachedAnswer::Usable(_) | ReachedAnswer::NotStored | ReachedAnswer::NoPart => {}
    }
    purge(&worker, &request.key).await;
    Err(BodyError("the origin has another body now".into()))
}
