//! A strict reader of HTTP/1 framing, which sees all bytes before hyper, the parser, gets them.
//!
//! Owns: finding where heads and bodies begin and end on one connection, and refusing everything that two readers could
//! interpret differently. This reader parses nothing else. hyper parses the rest, and itself refuses names with spaces,
//! bare CR, control characters and bad numbers. This reader also refuses what hyper would accept:
//! - `BodyContent-Length` together with `Transfer-Encoding`; different `BodyContent-Length`s; a `BodyContent-Length` that is a
//!   list;
//! - transfer codings other than exactly `chunked`, once, in HTTP/1.1;
//! - in requests: lines that end in a bare LF, spaces in chunk sizes, more than one empty line before a request;
//! - folded lines; unrequested bytes after a response; a `101` that was not asked for;
//! - versions other than 1.x. A message with a later minor version is read as HTTP/1.1.
//!
//! Invariants: (1) a violation in a head is reported at an offset before the end of that head, so hyper never gets the
//! whole of a refused head; (2) after a violation all further bytes are refused; (3) memory is bounded by the limit on
//! heads.
//!
//! Cost: heads are searched once for line ends, with a few comparisons per line; bodies of known length are skipped.

use super::informational::{INFORMATIONAL_MAX, InformationalResponse};
pub use super::violation::FramingViolation;

/// The maximum number of bytes of one chunk's extensions.
const CHUNK_EXTENSION_BYTES_MAX: u32 = 256;
/// The maximum number of bytes of a body's trailers.
const TRAILER_BYTES_MAX: usize = 8 * 1024;
/// The number of refused bytes that are kept for the access log.
const REFUSED_BYTES_KEPT: usize = 2048;

/// The kind of bytes that the reader expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingPhase {
    /// The next byte begins a message.
    Between,
    /// The next bytes are the rest of a head.
    Head,
    /// The next bytes are the rest of a body.
    Body,
    /// The next bytes have no framing: they belong to a tunnel, or to a body that ends with the connection.
    Opaque,
    /// No further bytes are accepted, because earlier bytes were refused.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// The end of a message's start line has not been read yet.
    Between,
    Headers,
    Length(u64),
    ChunkSize(ChunkSizeField),
    ChunkExtension(u32, u64),
    ChunkSizeEnd(u64),
    ChunkData(u64),
    ChunkDataCr,
    ChunkDataLf,
    Trailers,
    Opaque,
    Refused(FramingViolation),
}

/// The part of a chunk's size that has been read so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ChunkSizeField {
    value: u64,
    digits: u8,
    spaced: bool,
}

/// The facts about a head that matter for framing.
#[derive(Debug, Clone, Copy, Default)]
struct FramingHead {
    length: Option<u64>,
    chunked: bool,
    http_10: bool,
    connect: bool,
    status: u16,
}

/// The reader of one direction of one connection.
#[derive(Debug)]
pub struct FramingReader {
    state: FramingState,
    head: FramingHead,
    /// The number of bytes of the head or the trailers that have been read so far.
    head_bytes: usize,
    head_bytes_max: usize,
    /// The part of the current line that has been read so far.
    partial: Vec<u8>,
    empty_lines: u8,
    /// In a reader of requests: the number of heads that have been read to their ends.
    heads: u64,
    is_response: bool,
    /// In a reader of responses: whether a response is awaited, and whether it answers a HEAD.
    awaited: bool,
    bodiless: bool,
    /// In a reader of responses: whether the request asks for another protocol.
    may_switch: bool,
    /// Informational responses to the current request: their number, the one that is being read, and those that the
    /// caller has not taken yet.
    informational_count: u32,
    informational_now: Option<InformationalResponse>,
    informational: Vec<InformationalResponse>,
    /// The beginning of the refused bytes, if they were in a head.
    refused_in_head: Option<Vec<u8>>,
    /// The positions, in the bytes accepted last, of minor versions later than 1, which hyper must read as `1`.
    later_minors: Vec<usize>,
    /// The position, in the bytes accepted last, at which the current step began.
    step_start: usize,
}

impl FramingReader {
    /// Makes a reader of requests.
    pub fn of_requests(head_bytes_max: usize) -> FramingReader {
        FramingReader {
            state: FramingState::Between,
            head: FramingHead::default(),
            head_bytes: 0,
            head_bytes_max,
            partial: Vec::new(),
            empty_lines: 0,
            heads: 0,
            is_response: false,
            awaited: true,
            bodiless: false,
            may_switch: false,
            informational_count: 0,
            informational_now: None,
            informational: Vec::new(),
            refused_in_head: None,
            later_minors: Vec::new(),
            step_start: 0,
        }
    }

    /// Makes a reader of responses. Each response must be announced by [`FramingReader::await_response`].
    pub fn of_responses(head_bytes_max: usize) -> FramingReader {
        FramingReader { is_response: true, awaited: false, ..FramingReader::of_requests(head_bytes_max) }
    }

    /// Records that a request is being sent. One response may come; it has no body if the request is a HEAD.
    pub fn await_response(&mut self, to_head: bool) {
        self.awaited = true;
        self.bodiless = to_head;
        self.may_switch = false;
        self.informational_count = 0;
    }

    /// Records that the request that is being sent asks for another protocol: a `101` may come, after which the bytes
    /// have no framing.
    pub fn await_switch(&mut self) {
        self.may_switch = true;
    }

    /// Records that the next byte has no framing, after `requests` requests. False, and nothing changes, if bytes of
    /// another message have come.
    pub fn switch(&mut self, requests: u64) -> bool {
        let is_between = self.phase() == FramingPhase::Between && self.empty_lines == 0 && self.heads == requests;
        if is_between {
            self.state = FramingState::Opaque;
        }
        is_between
    }

    /// Whether the head of a final response, or the rest of that head, is still to come.
    pub fn is_head_awaited(&self) -> bool {
        self.is_response && self.awaited && matches!(self.state, FramingState::Between | FramingState::Headers)
    }

    /// Whether informational responses have arrived that the caller has not taken yet.
    pub fn has_informational(&self) -> bool {
        !self.informational.is_empty()
    }

    /// Takes the informational responses that have arrived.
    pub fn take_informational(&mut self) -> Vec<InformationalResponse> {
        std::mem::take(&mut self.informational)
    }

    /// The kind of bytes that the reader expects next.
    pub fn phase(&self) -> FramingPhase {
        match self.state {
            FramingState::Between if self.partial.is_empty() => FramingPhase::Between,
            FramingState::Between | FramingState::Headers => FramingPhase::Head,
            FramingState::Opaque => FramingPhase::Opaque,
            FramingState::Refused(_) => FramingPhase::Refused,
            _ => FramingPhase::Body,
        }
    }

    /// The beginning of the refused bytes, which the parser does not get, if they were in a head.
    pub fn refused_in_head(&self) -> Option<&[u8]> {
        self.refused_in_head.as_deref()
    }

    /// The positions, in the bytes accepted last, of minor versions later than 1, which the parser must read as `1`.
    /// *Source*: RFC 9110, 2.5.
    pub fn later_minors(&self) -> &[usize] {
        &self.later_minors
    }

    /// Reads received bytes. *Errors*: the violation, and the number of bytes before it that may still be passed to
    /// hyper.
    pub fn accept(&mut self, bytes: &[u8]) -> Result<(), (usize, FramingViolation)> {
        self.later_minors.clear();
        let mut at = 0;
        while at < bytes.len() {
            self.step_start = at;
            match self.step(&bytes[at..]) {
                Ok(taken) => at += taken,
                Err((taken, violation)) => {
                    let refused = bytes[at + taken..].iter().take(REFUSED_BYTES_KEPT).copied();
                    let is_head = matches!(self.state, FramingState::Between | FramingState::Headers);
                    self.refused_in_head = is_head.then(|| refused.collect());
                    self.state = FramingState::Refused(violation);
                    self.partial = Vec::new();
                    return Err((at + taken, violation));
                }
            }
        }
        Ok(())
    }

    /// Reads at least one byte of `bytes`, which is not empty.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, (usize, FramingViolation)> {
        let refuse = |violation| Err((0, violation));
        match self.state {
            FramingState::Between if !self.awaited => refuse(FramingViolation::Unexpected),
            FramingState::Between | FramingState::Headers | FramingState::Trailers => self.step_line(bytes),
            FramingState::Length(left) | FramingState::ChunkData(left) => {
                let taken = left.min(bytes.len() as u64);
                self.state = match (self.state, left - taken) {
                    (FramingState::Length(_), 0) => self.between(),
                    (FramingState::Length(_), left) => FramingState::Length(left),
                    (_, 0) => FramingState::ChunkDataCr,
                    (_, left) => FramingState::ChunkData(left),
                };
                Ok(taken as usize)
            }
            FramingState::ChunkSize(size) => match self.after_size_byte(size, bytes[0]) {
                Some(state) => self.goto(state),
                None => refuse(FramingViolation::Chunk),
            },
            FramingState::ChunkExtension(length, size) => match bytes[0] {
                b'\r' => self.goto(FramingState::ChunkSizeEnd(size)),
                b'\t' | b' '..=b'~' if length < CHUNK_EXTENSION_BYTES_MAX => {
                    self.goto(FramingState::ChunkExtension(length + 1, size))
                }
                _ if length >= CHUNK_EXTENSION_BYTES_MAX => refuse(FramingViolation::TooLong),
                _ => refuse(FramingViolation::Chunk),
            },
            FramingState::ChunkSizeEnd(size) => match (bytes[0], size) {
                (b'\n', 0) => {
                    self.head_bytes = 0;
                    self.goto(FramingState::Trailers)
                }
                (b'\n', size) => self.goto(FramingState::ChunkData(size)),
                _ => refuse(FramingViolation::Chunk),
            },
            FramingState::ChunkDataCr if bytes[0] == b'\r' => self.goto(FramingState::ChunkDataLf),
            FramingState::ChunkDataLf if bytes[0] == b'\n' => {
                self.goto(FramingState::ChunkSize(ChunkSizeField::default()))
            }
            FramingState::ChunkDataCr | FramingState::ChunkDataLf => refuse(FramingViolation::Chunk),
            FramingState::Opaque => Ok(bytes.len()),
            FramingState::Refused(violation) => refuse(violation),
        }
    }

    fn goto(&mut self, state: FramingState) -> Result<usize, (usize, FramingViolation)> {
        self.state = state;
        Ok(1)
    }

    fn between(&mut self) -> FramingState {
        self.head = FramingHead::default();
        self.head_bytes = 0;
        self.empty_lines = 0;
        self.awaited = !self.is_response;
        FramingState::Between
    }

    fn after_size_byte(&self, size: ChunkSizeField, byte: u8) -> Option<FramingState> {
        match byte {
            _ if byte.is_ascii_hexdigit() && !size.spaced && size.digits < 16 => {
                let digit = (byte as char).to_digit(16)?;
                let value = size.value.checked_mul(16)?.checked_add(u64::from(digit))?;
                Some(FramingState::ChunkSize(ChunkSizeField { value, digits: size.digits + 1, spaced: false }))
            }
            _ if size.digits == 0 => None,
            b'\r' => Some(FramingState::ChunkSizeEnd(size.value)),
            b';' => Some(FramingState::ChunkExtension(0, size.value)),
            // Some old servers pad chunk sizes with spaces.
            b' ' if self.is_response => Some(FramingState::ChunkSize(ChunkSizeField { spaced: true, ..size })),
            _ => None,
        }
    }

    /// Reads to the end of one line. An incomplete line is kept until more bytes arrive.
    fn step_line(&mut self, bytes: &[u8]) -> Result<usize, (usize, FramingViolation)> {
        let limit = if self.state == FramingState::Trailers { TRAILER_BYTES_MAX } else { self.head_bytes_max };
        let end = memchr::memchr(b'\n', bytes);
        let taken = end.map_or(bytes.len(), |end| end + 1);
        if self.head_bytes + taken > limit {
            let accepted = &bytes[..limit - self.head_bytes];
            return Err((accepted.len(), self.too_long(accepted)));
        }
        self.head_bytes += taken;
        let Some(end) = end else {
            self.partial.extend_from_slice(bytes);
            let line = std::mem::take(&mut self.partial);
            self.note_later_minor(&line, taken);
            let is_other = self.state == FramingState::Between && self.is_other_version(&line);
            self.partial = line;
            // Refuse another version at once. Otherwise hyper would refuse the line for a different reason.
            return if is_other { Err((0, FramingViolation::Version)) } else { Ok(taken) };
        };
        let result = if self.partial.is_empty() {
            self.note_later_minor(&bytes[..end], end);
            self.line(&bytes[..end])
        } else {
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(&bytes[..end]);
            self.note_later_minor(&line, end);
            let result = self.line(&line);
            line.clear();
            self.partial = line;
            result
        };
        match result {
            Ok(state) => {
                self.state = state;
                Ok(taken)
            }
            // hyper gets no more bytes of a refused line. It may already have earlier bytes of the line.
            Err(violation) => Err((0, violation)),
        }
    }

    /// The error for a line that exceeds the limit. The part of the line within the limit is `partial` followed by
    /// `accepted`.
    fn too_long(&self, accepted: &[u8]) -> FramingViolation {
        let is_target = self.state == FramingState::Between && !self.is_response;
        let has_target = self.partial.contains(&b' ') || accepted.contains(&b' ');
        if is_target && has_target { FramingViolation::TargetTooLong } else { FramingViolation::TooLong }
    }

    /// Records the position of a minor version later than 1 in a start line, which may be incomplete. Only the last
    /// `came` bytes of the line are new; the others have been searched before.
    fn note_later_minor(&mut self, line: &[u8], came: usize) {
        if self.state != FramingState::Between {
            return;
        }
        let at = if self.is_response { later_minor_of_response(line) } else { later_minor_of_request(line) };
        let known_bytes = line.len() - came;
        if let Some(at) = at.filter(|at| *at >= known_bytes) {
            self.later_minors.push(self.step_start + at - known_bytes);
        }
    }

    /// Reads one line without its LF.
    fn line(&mut self, line: &[u8]) -> Result<FramingState, FramingViolation> {
        let text = match line.strip_suffix(b"\r") {
            Some(text) => text,
            None if self.is_response && self.state != FramingState::Trailers => line,
            None => return Err(FramingViolation::BareLineFeed),
        };
        match self.state {
            FramingState::Between if text.is_empty() => {
                self.empty_lines += 1;
                if self.empty_lines > 1 || self.is_response {
                    return Err(FramingViolation::Unexpected);
                }
                Ok(FramingState::Between)
            }
            FramingState::Between => self.start_line(text),
            FramingState::Trailers if text.is_empty() => Ok(self.between()),
            _ if text.is_empty() => self.end_of_head(),
            _ if text[0] == b' ' || text[0] == b'\t' => Err(FramingViolation::FoldedLine),
            FramingState::Trailers => Ok(FramingState::Trailers),
            _ => {
                if let Some(now) = &mut self.informational_now {
                    now.lines.push(text.to_vec());
                }
                self.header_line(text)?;
                Ok(FramingState::Headers)
            }
        }
    }

    fn start_line(&mut self, text: &[u8]) -> Result<FramingState, FramingViolation> {
        self.head = FramingHead::default();
        if self.is_other_version(text) {
            return Err(FramingViolation::Version);
        }
        if self.is_response {
            self.head.http_10 = text.starts_with(b"HTTP/1.0");
            self.head.status = text
                .get(9..12)
                .filter(|digits| digits.iter().all(u8::is_ascii_digit))
                .map(|digits| digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')))
                .ok_or(FramingViolation::StatusLine)?;
            let is_informational = (100..=199).contains(&self.head.status);
            self.informational_now =
                is_informational.then(|| InformationalResponse { status: self.head.status, lines: Vec::new() });
        } else {
            self.head.http_10 = text.ends_with(b"HTTP/1.0");
            self.head.connect = text.starts_with(b"CONNECT ");
        }
        Ok(FramingState::Headers)
    }

    /// Whether a start line, which may be incomplete, has a major version other than 1.
    fn is_other_version(&self, line: &[u8]) -> bool {
        let word = if self.is_response { Some(line) } else { line.split(|byte| *byte == b' ').nth(2) };
        let major = word.and_then(|word| word.strip_prefix(b"HTTP/")).and_then(|version| version.first());
        major.is_some_and(|major| major.is_ascii_digit() && *major != b'1')
    }

    fn header_line(&mut self, text: &[u8]) -> Result<(), FramingViolation> {
        match text[0] | 0x20 {
            b'c' => {
                if let Some(value) = value_of(text, b"content-length")? {
                    let length = parse_length(value).ok_or(FramingViolation::ContentLength)?;
                    if self.head.length.is_some_and(|earlier| earlier != length) {
                        return Err(FramingViolation::ContentLength);
                    }
                    self.head.length = Some(length);
                }
            }
            b't' => {
                if let Some(value) = value_of(text, b"transfer-encoding")? {
                    if self.head.chunked || self.head.http_10 {
                        return Err(FramingViolation::TransferCoding);
                    }
                    if !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(wrong_coding(value));
                    }
                    self.head.chunked = true;
                }
            }
            _ => return Ok(()),
        }
        if self.head.chunked && self.head.length.is_some() {
            return Err(FramingViolation::BothLengths);
        }
        Ok(())
    }

    fn end_of_head(&mut self) -> Result<FramingState, FramingViolation> {
        let head = self.head;
        if !self.is_response {
            self.heads += 1;
            return Ok(match (head.connect, head.chunked, head.length) {
                (true, _, _) => FramingState::Opaque,
                (_, true, _) => FramingState::ChunkSize(ChunkSizeField::default()),
                (_, _, Some(length)) if length > 0 => FramingState::Length(length),
                _ => self.between(),
            });
        }
        match head.status {
            101 if self.may_switch => {
                self.informational_now = None;
                return Ok(FramingState::Opaque);
            }
            101 => return Err(FramingViolation::Switching),
            100..=199 => {
                self.informational_count += 1;
                if self.informational_count > INFORMATIONAL_MAX {
                    return Err(FramingViolation::TooManyInformational);
                }
                self.informational.extend(self.informational_now.take());
                return Ok(FramingState::Between);
            }
            _ => {}
        }
        Ok(match (self.bodiless || head.status == 204 || head.status == 304, head.chunked, head.length) {
            (true, _, _) | (_, false, Some(0)) => self.between(),
            (_, true, _) => FramingState::ChunkSize(ChunkSizeField::default()),
            (_, _, Some(length)) => FramingState::Length(length),
            _ => FramingState::Opaque,
        })
    }
}

/// The position of the minor version in a request's start line, which may be incomplete, if the version is later than
/// 1.1.
fn later_minor_of_request(line: &[u8]) -> Option<usize> {
    match line.strip_suffix(b"\r").unwrap_or(line) {
        [start @ .., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Some(start.len() + 8),
        _ => None,
    }
}

/// Like [`later_minor_of_request`], for a response's start line.
fn later_minor_of_response(line: &[u8]) -> Option<usize> {
    matches!(line, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9', ..]).then_some(7)
}

/// Returns the violation of a `Transfer-Encoding` whose value is not exactly `chunked`.
fn wrong_coding(value: &[u8]) -> FramingViolation {
    let mut codings = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let last = codings.next_back().unwrap_or_default();
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    if last.is_empty() || codings.any(is_chunked) {
        FramingViolation::TransferCoding
    } else {
        FramingViolation::UnknownCoding
    }
}

/// The trimmed value of a header line; `None` if the header's name is not `name`, which is in lower case.
fn value_of<'a>(text: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, FramingViolation> {
    let Some((found, rest)) = text.split_at_checked(name.len()) else { return Ok(None) };
    if !found.eq_ignore_ascii_case(name) {
        return Ok(None);
    }
    match rest.split_first() {
        Some((b':', value)) => Ok(Some(value.trim_ascii())),
        Some((b' ' | b'\t', _)) => Err(FramingViolation::SpaceBeforeColon),
        _ => Ok(None),
    }
}

fn parse_length(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
