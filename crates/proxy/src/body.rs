//! Bodies on their way to a client.
//!
//! Owns: giving the bytes of a response to hyper, and ending the exchange after the last byte or when the client has
//! disconnected. At its end the [`ClientExchange`] is told and the request is logged. A body that
//! cannot be completed ends with an error, on which hyper aborts the connection: a partial body never looks complete.

use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::{HeaderValue, Method, Version};
use http_body::{Body, Frame, SizeHint};
use nectary_store::{FillReader, StoredObject};

use crate::access_log::{AccessLogLine, AnswerNote, CacheOutcome, RequestLog};
use crate::fleet::PeerCounters;
use crate::pieces::{BodyError, Pieces, Resume, StoredBody};
use crate::rules::multipart::{MultipartBody, MultipartSection};
use crate::sites::RouteName;
use crate::wire::exchange::ClientExchange;
use crate::wire::http2::{BodyPiece, PIECE_BYTES_MAX};

/// The bytes of a response.
pub(crate) enum BodyContent {
    /// No bytes.
    Empty,
    /// All bytes in one piece.
    Whole(Bytes),
    /// A stream of pieces, and the number of bytes still to come, if it is known.
    Pieces(Pieces, Option<u64>),
}

impl BodyContent {
    /// The bytes of a range of a stored object. If the store loses some of them meanwhile, `resume` gets the rest; it is
    /// needed only for objects that are not in one piece.
    pub fn of_object(object: &StoredObject, range: Range<u64>, resume: Option<Resume>) -> BodyContent {
        let length = range.end - range.start;
        if length == 0 {
            return BodyContent::Empty;
        }
        match object.whole() {
            Some(whole) if length == object.body_bytes() => BodyContent::Whole(whole.clone()),
            Some(whole) => BodyContent::Whole(whole.slice(range.start as usize..range.end as usize)),
            None => BodyContent::Pieces(StoredBody::of_object(object, range, resume).into_pieces(), Some(length)),
        }
    }

    /// Several ranges of a stored object, with the text that `multipart/byteranges` needs around each range. If the store
    /// loses a range meanwhile, `resume` gets the rest of it, and all of the later ones.
    pub fn of_parts(object: &StoredObject, multipart: MultipartBody, resume: Option<Resume>) -> BodyContent {
        let length = multipart.body_bytes();
        let state = MultipartStream {
            object: object.clone(),
            sections: multipart.sections.into_iter(),
            resume,
            running: None,
            why: None,
        };
        let pieces = unfold(state, async |mut parts| Some((parts.next().await?, parts)));
        BodyContent::Pieces(Box::pin(pieces), Some(length))
    }

    /// A range of a body that arrives in pieces. No bytes after the range are read.
    pub fn of_part(pieces: Pieces, range: Range<u64>) -> BodyContent {
        let length = range.end.saturating_sub(range.start);
        let pieces = unfold((pieces, range.start), async |(mut pieces, mut skipped_bytes)| {
            loop {
                let mut piece = match pieces.next().await? {
                    Ok(piece) => piece,
                    Err(error) => return Some((Err(error), (pieces, skipped_bytes))),
                };
                let skipped = usize::try_from(skipped_bytes).unwrap_or(usize::MAX).min(piece.len());
                piece.advance(skipped);
                skipped_bytes -= skipped as u64;
                if !piece.is_empty() {
                    return Some((Ok(piece), (pieces, skipped_bytes)));
                }
            }
        });
        BodyContent::Pieces(Box::pin(pieces), Some(length))
    }

    /// The bytes of a fill from `start` on: `length` bytes, or all if `length` is `None`. If the store loses some of them
    /// meanwhile, `resume` gets the rest.
    pub fn of_fill(reader: FillReader, start: u64, length: Option<u64>, resume: Option<Resume>) -> BodyContent {
        if length == Some(0) {
            return BodyContent::Empty;
        }
        BodyContent::Pieces(StoredBody::of_fill(reader, start, length, resume).into_pieces(), length)
    }
}

/// Several ranges of a stored object on their way.
struct MultipartStream {
    object: StoredObject,
    sections: std::vec::IntoIter<MultipartSection>,
    resume: Option<Resume>,
    running: Option<StoredBody>,
    /// Why the store lost an earlier range, if it did. Then it is not tried again: its device may be silent.
    why: Option<String>,
}

impl MultipartStream {
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if let Some(mut body) = self.running.take() {
                match body.next().await {
                    Some(piece) => {
                        self.running = Some(body);
                        return Some(piece);
                    }
                    None => self.why = body.into_loss().or(self.why.take()),
                }
            }
            match self.sections.next()? {
                MultipartSection::Text(text) => return Some(Ok(text)),
                MultipartSection::Object(range) => {
                    let resume = self.resume.clone();
                    self.running = Some(match &self.why {
                        Some(why) => StoredBody::of_lost(&self.object, range, resume, why.clone()),
                        None => StoredBody::of_object(&self.object, range, resume),
                    });
                }
            }
        }
    }
}

/// A response's body.
pub(crate) struct ReplyBody {
    content: BodyContent,
    /// The rest of a piece that is longer than a stream of HTTP/2 gets at once.
    rest: Bytes,
    exchange: ClientExchange,
    ticket: Option<Box<RequestTicket>>,
}

impl ReplyBody {
    /// Makes the body of an exchange that has begun. The exchange ends when the body is dropped.
    pub fn new(content: BodyContent, exchange: ClientExchange, ticket: Option<Box<RequestTicket>>) -> ReplyBody {
        ReplyBody { content, rest: Bytes::new(), exchange, ticket }
    }
}

impl ReplyBody {
    /// The next part of the rest. It is copied, so that a client that takes nothing does not keep the whole in memory.
    fn next_of_rest(&mut self) -> BodyPiece {
        let part = self.rest.split_to(self.rest.len().min(PIECE_BYTES_MAX));
        self.given(Bytes::copy_from_slice(&part))
    }

    fn given(&mut self, piece: Bytes) -> BodyPiece {
        if let Some(ticket) = &mut self.ticket {
            ticket.sent_bytes += piece.len() as u64;
        }
        BodyPiece::new(piece, self.exchange.stream())
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.exchange.end();
    }
}

impl Body for ReplyBody {
    type Data = BodyPiece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPiece>, BodyError>>> {
        let this = &mut *self;
        if !this.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.next_of_rest()))));
        }
        let piece = match &mut this.content {
            BodyContent::Empty => return Poll::Ready(None),
            BodyContent::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                this.content = BodyContent::Empty;
                bytes
            }
            BodyContent::Pieces(_, Some(0)) => return Poll::Ready(None),
            BodyContent::Pieces(pieces, left) => match std::task::ready!(pieces.as_mut().poll_next(context)) {
                Some(Ok(mut piece)) => {
                    if let Some(left) = left {
                        piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                        *left -= piece.len() as u64;
                    }
                    piece
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if left.is_some() => {
                    return Poll::Ready(Some(Err(BodyError("the body ended before its length".into()))));
                }
                None => {
                    this.content = BodyContent::Empty;
                    return Poll::Ready(None);
                }
            },
        };
        if this.exchange.stream().is_some() && piece.len() > PIECE_BYTES_MAX {
            this.rest = piece;
            return Poll::Ready(Some(Ok(Frame::data(this.next_of_rest()))));
        }
        Poll::Ready(Some(Ok(Frame::data(this.given(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && matches!(self.content, BodyContent::Empty | BodyContent::Pieces(_, Some(0)))
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        match &self.content {
            BodyContent::Empty => SizeHint::with_exact(rest),
            BodyContent::Whole(bytes) => SizeHint::with_exact(rest + bytes.len() as u64),
            BodyContent::Pieces(_, Some(left)) => SizeHint::with_exact(rest + *left),
            BodyContent::Pieces(_, None) => SizeHint::default(),
        }
    }
}

/// A request that is logged and counted when its response's body is dropped. One of another node is only counted, apart from
/// those of clients: it is in the log of that node.
pub(crate) struct RequestTicket {
    pub log: Rc<RequestLog>,
    /// The node of the fleet that has asked, if it was one.
    pub node: Option<Arc<PeerCounters>>,
    /// The client's address, if it has one.
    pub client: Option<std::net::IpAddr>,
    pub at_ms: u64,
    pub started: Instant,
    pub method: Method,
    pub url: Vec<u8>,
    pub version: Version,
    pub status: u16,
    pub referrer: Option<HeaderValue>,
    pub user_agent: Option<HeaderValue>,
    pub outcome: CacheOutcome,
    pub object_bytes: Option<u64>,
    pub tls: Option<&'static str>,
    /// The route's name, if the log tells it.
    pub route: Option<Arc<RouteName>>,
    pub answer: AnswerNote,
    pub sent_bytes: u64,
}

impl Drop for RequestTicket {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            return node.note_answer(self.outcome, self.sent_bytes);
        }
        self.log.stats.body_bytes_sent.add(self.sent_bytes);
        let answer = self.answer.take();
        self.log.note(&AccessLogLine {
            client: self.client,
            at_ms: self.at_ms,
            method: &self.method,
            url: &self.url,
            version: self.version,
            status: self.status,
            body_bytes: self.sent_bytes,
            referrer: self.referrer.as_ref().map(HeaderValue::as_bytes),
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            outcome: self.outcome,
            duration: self.started.elapsed(),
            object_bytes: self.object_bytes,
            tls: self.tls,
            route: self.route.as_deref(),
            answer: answer.as_ref(),
        });
    }
}
