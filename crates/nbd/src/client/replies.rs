//! Replies on the client's side, as a plain state machine that takes bytes and returns their meaning.
//!
//! Owns: the expected answer of each request, and all checks of replies: the cookie belongs to a request in flight, the
//! kind of reply was agreed on and fits the request, and each byte of requested data arrives exactly once. Promises: a
//! length is bounded before it is used. A reply that breaks a rule is an error, after which the connection cannot be
//! used.

use std::collections::HashMap;

use crate::limits::{ERROR_CHUNK_BYTES_MAX, EXTENTS_MAX, PIECES_MAX};
use crate::wire::bytes::{WireReader, message};
use crate::wire::{CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, HeaderFormat, SIMPLE_REPLY_MAGIC, reply};

/// The kind of answer that a request expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedReply {
    /// The data of a range.
    Data { offset: u64, length: u32 },
    /// The extents of a range.
    Status,
    /// Only success or an error.
    Nothing,
}

/// The result of a request that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    Done,
    /// The lengths and flags of extents, from the requested offset on.
    Status(Vec<(u64, u32)>),
    /// The server's error value and message.
    Refused(u32, String),
}

/// The next step of the caller, after some bytes were processed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReplyStep {
    /// Read more bytes.
    More,
    /// The next `length` bytes are data for the requested range from `at` on; call [`ReplyDecoder::data_taken`] after
    /// reading them.
    Data { cookie: u64, at: u32, length: u32 },
    /// The next `length` bytes of the requested range from `at` on are zeroes; call [`ReplyDecoder::data_taken`] after
    /// writing zeroes into the buffers.
    Hole { cookie: u64, at: u32, length: u32 },
    /// A request has ended.
    Done(u64, CommandOutcome),
}

enum ReplyState {
    Magic,
    Simple,
    Chunk,
    /// The reader expects the offset at the start of a chunk of data.
    Offset,
    Hole,
    Status,
    StatusExtended,
    Error,
    /// The caller must read data or write zeroes.
    Taking,
}

/// The chunk that is being read.
#[derive(Default, Clone, Copy)]
struct ReplyChunk {
    is_last: bool,
    kind: u16,
    cookie: u64,
    length: u32,
}

struct PendingReply {
    /// The offset of the request, which extended headers repeat.
    offset: u64,
    expected: ExpectedReply,
    /// The ranges of the request's data that have arrived. They are sorted, and adjacent ranges are joined.
    pieces: Vec<(u32, u32)>,
    status: Option<Vec<(u64, u32)>>,
    error: Option<(u32, String)>,
}

/// The replies of one connection.
pub(crate) struct ReplyDecoder {
    headers: HeaderFormat,
    allocation: Option<u32>,
    pending: HashMap<u64, PendingReply>,
    state: ReplyState,
    chunk: ReplyChunk,
}

impl ReplyDecoder {
    pub fn new(headers: HeaderFormat, allocation: Option<u32>) -> ReplyDecoder {
        ReplyDecoder {
            headers,
            allocation,
            pending: HashMap::new(),
            state: ReplyState::Magic,
            chunk: ReplyChunk::default(),
        }
    }

    /// Records that a request is being sent. Its cookie must not be in flight.
    pub fn expect(&mut self, cookie: u64, offset: u64, expected: ExpectedReply) {
        self.pending.insert(cookie, PendingReply { offset, expected, pieces: Vec::new(), status: None, error: None });
    }

    /// The number of bytes that the caller must read next.
    pub fn wants(&self) -> usize {
        match self.state {
            ReplyState::Magic => 4,
            ReplyState::Simple => reply::SIMPLE_BYTES - 4,
            ReplyState::Chunk if self.headers.is_extended() => reply::EXTENDED_CHUNK_BYTES - 4,
            ReplyState::Chunk => reply::CHUNK_BYTES - 4,
            ReplyState::Offset => 8,
            ReplyState::Hole => 12,
            ReplyState::Status | ReplyState::StatusExtended | ReplyState::Error => self.chunk.length as usize,
            ReplyState::Taking => 0,
        }
    }

    /// Whether the last reply is complete and no other reply has begun.
    pub fn is_between(&self) -> bool {
        matches!(self.state, ReplyState::Magic)
    }

    /// Processes the bytes that [`wants`](Self::wants) requested. *Errors*: if the server broke a rule, that rule.
    pub fn take(&mut self, bytes: &[u8]) -> Result<ReplyStep, String> {
        let mut reader = WireReader::new(bytes);
        match self.state {
            ReplyState::Magic => {
                self.state = match reader.u32() {
                    Some(SIMPLE_REPLY_MAGIC) if !self.headers.is_extended() => ReplyState::Simple,
                    Some(CHUNK_MAGIC) if self.headers == HeaderFormat::Structured => ReplyState::Chunk,
                    Some(EXTENDED_CHUNK_MAGIC) if self.headers.is_extended() => ReplyState::Chunk,
                    magic => {
                        return Err(format!(
                            "a reply begins with {:#010x} in place of a magic number",
                            magic.unwrap_or(0)
                        ));
                    }
                };
                Ok(ReplyStep::More)
            }
            ReplyState::Simple => match (reader.u32(), reader.u64()) {
                (Some(error), Some(cookie)) => self.simple(error, cookie),
                _ => Err(short()),
            },
            ReplyState::Chunk => {
                let (Some(flags), Some(kind), Some(cookie)) = (reader.u16(), reader.u16(), reader.u64()) else {
                    return Err(short());
                };
                let length = match self.headers.is_extended() {
                    true => self.extended(cookie, &mut reader)?,
                    false => reader.u32().ok_or_else(short)?,
                };
                self.chunk = ReplyChunk { is_last: flags & reply::DONE != 0, kind, cookie, length };
                self.chunk()
            }
            ReplyState::Offset => {
                let offset = reader.u64().ok_or_else(short)?;
                let length = self.chunk.length - 8;
                let at = self.piece(offset, length)?;
                self.state = ReplyState::Taking;
                Ok(ReplyStep::Data { cookie: self.chunk.cookie, at, length })
            }
            ReplyState::Hole => {
                let (Some(offset), Some(length)) = (reader.u64(), reader.u32()) else { return Err(short()) };
                let at = self.piece(offset, length)?;
                self.state = ReplyState::Taking;
                Ok(ReplyStep::Hole { cookie: self.chunk.cookie, at, length })
            }
            ReplyState::Status => self.status(reader),
            ReplyState::StatusExtended => self.status_extended(reader),
            ReplyState::Error => self.error(reader),
            ReplyState::Taking => Err("data were not taken".to_owned()),
        }
    }

    /// Records that the caller has read the data that the last step announced, or has written its zeroes.
    pub fn data_taken(&mut self) -> Result<ReplyStep, String> {
        self.end_of_chunk()
    }

    /// Reads the rest of an extended header; returns the length of the chunk.
    fn extended(&mut self, cookie: u64, reader: &mut WireReader<'_>) -> Result<u32, String> {
        let (Some(offset), Some(length)) = (reader.u64(), reader.u64()) else { return Err(short()) };
        let expected = self.known(cookie)?.offset;
        if offset != expected {
            return Err(format!("a reply at {offset} to a request at {expected}"));
        }
        u32::try_from(length).map_err(|_| format!("a chunk of {length} bytes"))
    }

    fn simple(&mut self, error: u32, cookie: u64) -> Result<ReplyStep, String> {
        let expected = self.known(cookie)?.expected;
        self.chunk = ReplyChunk { is_last: true, kind: 0, cookie, length: 0 };
        match expected {
            ExpectedReply::Data { .. } | ExpectedReply::Status if self.headers.is_structured() && error == 0 => {
                Err("a simple reply to a request that is answered with data".to_owned())
            }
            ExpectedReply::Data { .. } if self.headers.is_structured() => {
                Err("a simple reply to a read, though structured ones were agreed on".to_owned())
            }
            ExpectedReply::Data { length, .. } if error == 0 => {
                self.known(cookie)?.pieces = vec![(0, length)];
                self.state = ReplyState::Taking;
                Ok(ReplyStep::Data { cookie, at: 0, length })
            }
            _ => {
                if error != 0 {
                    self.known(cookie)?.error = Some((error, String::new()));
                }
                self.end_of_chunk()
            }
        }
    }

    fn chunk(&mut self) -> Result<ReplyStep, String> {
        let ReplyChunk { kind, length, cookie, is_last, .. } = self.chunk;
        let expected = self.known(cookie)?.expected;
        match (kind, expected) {
            (reply::NONE, _) if length == 0 && is_last => return self.end_of_chunk(),
            (reply::OFFSET_DATA, ExpectedReply::Data { length: whole, .. }) if length > 8 && length - 8 <= whole => {
                self.state = ReplyState::Offset;
            }
            (reply::OFFSET_HOLE, ExpectedReply::Data { .. }) if length == 12 => self.state = ReplyState::Hole,
            (reply::BLOCK_STATUS_EXT, ExpectedReply::Status)
                if self.headers.is_extended()
                    && length >= 24
                    && (length - 8).is_multiple_of(16)
                    && (length - 8) / 16 <= EXTENTS_MAX =>
            {
                self.state = ReplyState::StatusExtended;
            }
            (reply::BLOCK_STATUS, ExpectedReply::Status)
                if !self.headers.is_extended()
                    && length >= 12
                    && (length - 4).is_multiple_of(8)
                    && (length - 4) / 8 <= EXTENTS_MAX =>
            {
                self.state = ReplyState::Status;
            }
            (kind, _) if kind & reply::IS_ERROR != 0 && (6..=ERROR_CHUNK_BYTES_MAX).contains(&length) => {
                self.state = ReplyState::Error;
            }
            _ => return Err(format!("a chunk of type {kind} with {length} bytes, which does not fit its request")),
        }
        Ok(ReplyStep::More)
    }

    fn known(&mut self, cookie: u64) -> Result<&mut PendingReply, String> {
        let unknown = || format!("a reply with cookie {cookie:#x}, which no request in flight has");
        self.pending.get_mut(&cookie).ok_or_else(unknown)
    }

    /// Records that a range of data arrives. Returns its position in the requested range.
    fn piece(&mut self, offset: u64, length: u32) -> Result<u32, String> {
        let pending = self.known(self.chunk.cookie)?;
        let ExpectedReply::Data { offset: first, length: whole } = pending.expected else { return Err(short()) };
        let at = offset.checked_sub(first).and_then(|at| u32::try_from(at).ok());
        let range = at.and_then(|at| Some((at, at.checked_add(length).filter(|&end| end <= whole)?)));
        let Some((start, end)) = range.filter(|_| length > 0) else {
            return Err(format!("{length} bytes of data at {offset}, outside the read of {whole} bytes at {first}"));
        };
        let pieces = &mut pending.pieces;
        let index = pieces.partition_point(|piece| piece.1 <= start);
        if pieces.get(index).is_some_and(|next| next.0 < end) {
            return Err(format!("data at {offset} have come twice"));
        }
        let joins_next = pieces.get(index).is_some_and(|next| next.0 == end);
        match index.checked_sub(1).filter(|&before| pieces[before].1 == start) {
            Some(before) if joins_next => {
                pieces[before].1 = pieces[index].1;
                pieces.remove(index);
            }
            Some(before) => pieces[before].1 = end,
            None if joins_next => pieces[index].0 = start,
            None if pieces.len() == PIECES_MAX => return Err(format!("a read in more than {PIECES_MAX} pieces")),
            None => pieces.insert(index, (start, end)),
        }
        Ok(start)
    }

    fn status(&mut self, mut reader: WireReader<'_>) -> Result<ReplyStep, String> {
        self.check_context(reader.u32())?;
        let mut list = Vec::new();
        while let (Some(length), Some(flags)) = (reader.u32(), reader.u32()) {
            list.push((u64::from(length), flags));
        }
        self.extents(list)
    }

    fn status_extended(&mut self, mut reader: WireReader<'_>) -> Result<ReplyStep, String> {
        self.check_context(reader.u32())?;
        let count = reader.u32().unwrap_or_default() as usize;
        let mut list = Vec::new();
        while let (Some(length), Some(flags)) = (reader.u64(), reader.u64()) {
            let flags = u32::try_from(flags).map_err(|_| format!("an extent with the unknown flags {flags:#x}"))?;
            list.push((length, flags));
        }
        if list.len() != count {
            return Err(format!("{} extents in place of {count}", list.len()));
        }
        self.extents(list)
    }

    fn check_context(&self, id: Option<u32>) -> Result<(), String> {
        match id == self.allocation {
            true => Ok(()),
            false => Err(format!("extents of the metadata context {id:?}, which was not chosen")),
        }
    }

    fn extents(&mut self, list: Vec<(u64, u32)>) -> Result<ReplyStep, String> {
        if list.iter().any(|extent| extent.0 == 0) {
            return Err("an extent of no length".to_owned());
        }
        if self.known(self.chunk.cookie)?.status.replace(list).is_some() {
            return Err("extents have come twice".to_owned());
        }
        self.end_of_chunk()
    }

    fn error(&mut self, mut reader: WireReader<'_>) -> Result<ReplyStep, String> {
        let (Some(error), Some(length)) = (reader.u32(), reader.u16()) else { return Err(short()) };
        let Some(text) = reader.bytes(usize::from(length)) else {
            return Err("the message of an error is longer than its chunk".to_owned());
        };
        if error == 0 {
            return Err("an error chunk without an error".to_owned());
        }
        let text = message(text);
        let pending = self.known(self.chunk.cookie)?;
        pending.error.get_or_insert((error, text));
        self.end_of_chunk()
    }

    fn end_of_chunk(&mut self) -> Result<ReplyStep, String> {
        self.state = ReplyState::Magic;
        if !self.chunk.is_last {
            return Ok(ReplyStep::More);
        }
        let cookie = self.chunk.cookie;
        let Some(pending) = self.pending.remove(&cookie) else { return Err(short()) };
        let outcome = match (pending.error, pending.expected, pending.status) {
            (Some((error, message)), _, _) => CommandOutcome::Refused(error, message),
            (None, ExpectedReply::Data { length, .. }, _) if length > 0 && pending.pieces != [(0, length)] => {
                return Err("a read ended without all of its data".to_owned());
            }
            (None, ExpectedReply::Status, None) => return Err("a question for extents ended without any".to_owned()),
            (None, _, Some(list)) => CommandOutcome::Status(list),
            (None, _, None) => CommandOutcome::Done,
        };
        Ok(ReplyStep::Done(cookie, outcome))
    }
}

fn short() -> String {
    "a reply is shorter than it must be".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::reply::ChunkTarget;

    /// Feeds one reply without data; returns how it ends.
    fn fed(offset: u64, bytes_cut: usize) -> Result<ReplyStep, String> {
        let mut replies = ReplyDecoder::new(HeaderFormat::Extended, None);
        replies.expect(7, 4096, ExpectedReply::Nothing);
        let mut bytes = Vec::new();
        let to = ChunkTarget { headers: HeaderFormat::Extended, cookie: 7, offset };
        reply::chunk(&mut bytes, to, reply::DONE, reply::NONE, 0);
        bytes.truncate(bytes.len() - bytes_cut);
        let (magic, rest) = bytes.split_at(replies.wants());
        assert_eq!(replies.take(magic), Ok(ReplyStep::More));
        replies.take(rest)
    }

    #[test]
    fn reply_to_another_offset_is_refused() {
        assert_eq!(fed(4096, 0), Ok(ReplyStep::Done(7, CommandOutcome::Done)));
        assert!(fed(0, 0).is_err_and(|rule| rule.contains("a reply at 0 to a request at 4096")));
        assert!(fed(4096, 1).is_err());
    }
}
