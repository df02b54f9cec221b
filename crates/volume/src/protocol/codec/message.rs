//! Bodies of the messages about sessions, tokens and locks, and the number of each kind of message.

use super::answer::{NAMES_MAX, WORDS_BYTES_MAX};
use super::frame::{BODY_BYTES_MAX, Header};
use super::parts::{
    Part, read_bool, read_bytes, read_extents, read_level, read_list, read_text, write_bytes, write_list,
};
use crate::format::cursor::{Reader, Writer};
use crate::format::{FormatError, NAME_BYTES_MAX};
use crate::protocol::{
    Answer, Attributes, Code, Failure, FileId, Held, Hello, Listed, Locked, MAY_KEEP_MAX, MayKeep, Message, Operation,
    Question, Shape, Terms, Token, VERSIONS, What, common_version,
};

/// The longest name of a host. *Units*: bytes.
const HOST_BYTES_MAX: usize = 253;
/// The maximum number of tokens in a `Reclaim`.
const HELD_MAX: u64 = 4096;
const FAILURE: u16 = 143;

impl Part for Token {
    fn write(&self, writer: &mut Writer) {
        self.object.write(writer);
        writer.u8(self.what as u8);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Token, FormatError> {
        let (object, what) = (FileId::read(reader)?, reader.u8()?);
        let known = What::ALL.get(usize::from(what).wrapping_sub(1)).copied();
        Ok(Token { object, what: known.ok_or_else(|| reader.unknown("what", what.into()))? })
    }
}

impl Part for Held {
    fn write(&self, writer: &mut Writer) {
        self.token.write(writer);
        writer.u8(self.level).u64(self.sequence);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Held, FormatError> {
        Ok(Held { token: Token::read(reader)?, level: read_level(reader)?, sequence: reader.u64()? })
    }
}

impl Part for Shape {
    fn write(&self, writer: &mut Writer) {
        self.attributes.write(writer);
        writer.u64(self.answered_to);
        write_list(writer, &self.extents);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Shape, FormatError> {
        let (attributes, answered_to) = (Attributes::read(reader)?, reader.u64()?);
        Ok(Shape { attributes, answered_to, extents: read_extents(reader)? })
    }
}

impl Part for Locked {
    fn write(&self, writer: &mut Writer) {
        self.file.write(writer);
        writer.u64(self.owner).u32(self.process).u8(u8::from(self.is_flock)).u8(u8::from(self.is_exclusive));
        writer.u64(self.start).u64(self.last);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Locked, FormatError> {
        let (file, owner, process) = (FileId::read(reader)?, reader.u64()?, reader.u32()?);
        let (is_flock, is_exclusive) = (read_bool(reader, "is_flock")?, read_bool(reader, "is_exclusive")?);
        let (start, last) = (reader.u64()?, reader.u64()?);
        reader.within("last", last, start, u64::MAX)?;
        Ok(Locked { file, owner, process, is_flock, is_exclusive, start, last })
    }
}

/// Returns the start of a text, at most `max` bytes.
impl Part for Terms {
    fn write(&self, writer: &mut Writer) {
        match self {
            Terms::Durable => _ = writer.u8(0),
            Terms::Early => _ = writer.u8(1),
            Terms::Repeated { now_ns } => _ = writer.u8(2).i64(*now_ns),
            Terms::Local { now_ns } => _ = writer.u8(3).i64(*now_ns),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Terms, FormatError> {
        Ok(match reader.u8()? {
            0 => Terms::Durable,
            1 => Terms::Early,
            2 => Terms::Repeated { now_ns: reader.i64()? },
            3 => Terms::Local { now_ns: reader.i64()? },
            other => return Err(reader.unknown("terms", other.into())),
        })
    }
}

fn cut(text: &str, max: usize) -> &[u8] {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Hello(_) | Message::OtherVersion { .. } => 1,
            Message::Welcome { .. } => 2,
            Message::Renew { .. } => 3,
            Message::Renewed { .. } => 4,
            Message::Reclaim { .. } => 5,
            Message::Goodbye { .. } => 6,
            Message::Evicted { .. } => 7,
            Message::Operation { operation, .. } => operation.kind(),
            Message::Question { question, .. } => question.kind(),
            Message::Acquire { .. } => 96,
            Message::Grant { .. } => 97,
            Message::Recall { .. } => 98,
            Message::Return { .. } => 99,
            Message::Pushed { .. } => 100,
            Message::Push { .. } => 101,
            Message::Lock { .. } => 102,
            Message::Unlock { .. } => 103,
            Message::CancelLock { .. } => 104,
            Message::TestLock { .. } => 105,
            Message::LockFound { .. } => 106,
            Message::Looked { .. } => 107,
            Message::NameChange { .. } => 108,
            Message::NameDropped { .. } => 109,
            Message::Listed { .. } => 110,
            Message::Early { .. } => 111,
            Message::MayKeep(_) => 112,
            Message::Answer(answer) => answer.kind(),
            Message::Failure(_) => FAILURE,
        }
    }

    /// Encodes the whole message. The sender of a request chooses `request`, and the answer repeats it. `epoch` is that
    /// of the server. An answer that is too long is replaced by a refusal with that reason.
    pub fn encode(&self, request: u64, epoch: u64) -> Vec<u8> {
        let mut writer = Writer::default();
        self.write(&mut writer);
        if writer.bytes.len() <= BODY_BYTES_MAX {
            return Header::seal(self.kind(), request, epoch, &writer.bytes);
        }
        let words = format!("a message of {} bytes, {BODY_BYTES_MAX} are allowed", writer.bytes.len());
        let mut writer = Writer::default();
        Failure { code: Code::Limit, errno: libc::EIO, words }.write(&mut writer);
        Header::seal(FAILURE, request, epoch, &writer.bytes)
    }

    /// Decodes a whole message: header and body.
    pub fn decode(bytes: &[u8]) -> Result<(Header, Message), FormatError> {
        let (header, body) = Header::open(bytes)?;
        let mut reader = Reader::new("message", body);
        let message = Message::read(header.kind, &mut reader)?;
        reader.end()?;
        Ok((header, message))
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            Message::Hello(Hello { role, volume, host, session, incarnation, kind, machine, boot, connection }) => {
                writer
                    .u16(*VERSIONS.start())
                    .u16(*VERSIONS.end())
                    .u64(0)
                    .u8(*role)
                    .u8(*kind)
                    .put(volume)
                    .put(incarnation);
                writer.u64(*session).u64(*machine).u64(*boot).u64(*connection);
                write_bytes(writer, cut(host, HOST_BYTES_MAX));
            }
            Message::OtherVersion { least, most } => _ = writer.u16(*least).u16(*most),
            Message::Welcome { session, lease_ms, server_ns } => {
                writer.u16(*VERSIONS.end()).u64(0).u64(*session).u32(*lease_ms).u64(*server_ns);
            }
            Message::Renew { session, sent_ns, acknowledged, drained } => {
                writer.u64(*session).u64(*sent_ns).u64(*acknowledged).u64(*drained);
            }
            Message::Renewed { sent_ns, lease_ms, server_ns, sequence, stored } => {
                writer.u64(*sent_ns).u32(*lease_ms).u64(*server_ns).u64(*sequence).u64(*stored);
            }
            Message::Reclaim { session, held, is_last } => {
                writer.u64(*session).u8(u8::from(*is_last));
                write_list(writer, held);
            }
            Message::Goodbye { session } => _ = writer.u64(*session),
            Message::Evicted { session, words } => {
                writer.u64(*session);
                write_bytes(writer, cut(words, WORDS_BYTES_MAX));
            }
            Message::Operation { session, number, terms, operation } => {
                writer.u64(*session).u64(*number);
                terms.write(writer);
                operation.write(writer);
            }
            Message::Question { session, question } => {
                writer.u64(*session);
                question.write(writer);
            }
            Message::Answer(answer) => answer.write(writer),
            Message::Failure(failure) => failure.write(writer),
            Message::Acquire { token, level, waits } => {
                token.write(writer);
                writer.u8(*level).u8(u8::from(*waits));
            }
            Message::Grant { held, minimum_ms, is_watched, shape } => {
                held.write(writer);
                writer.u32(*minimum_ms).u8(u8::from(*is_watched));
                write_list(writer, shape.as_slice());
            }
            Message::Recall { held, why } => {
                held.write(writer);
                writer.u8(*why);
            }
            Message::Return { held, is_lost } => {
                held.write(writer);
                writer.u8(u8::from(*is_lost));
            }
            Message::Lock { lock, waits } => {
                lock.write(writer);
                writer.u8(u8::from(*waits));
            }
            Message::Unlock { lock } | Message::TestLock { lock } => lock.write(writer),
            Message::CancelLock { request } => _ = writer.u64(*request),
            Message::Pushed { number } | Message::NameDropped { number } => _ = writer.u64(*number),
            Message::Push { file, size, number } => {
                file.write(writer);
                writer.u64(*size).u64(*number);
            }
            Message::NameChange { directory, number, name } => {
                directory.write(writer);
                write_bytes(writer.u64(*number), name);
            }
            Message::Early { now_ns, stored } => _ = writer.i64(*now_ns).u64(*stored),
            Message::MayKeep(MayKeep { directories, attributes }) => {
                write_list(writer, directories);
                write_list(writer, attributes);
            }
            Message::LockFound { lock } => write_list(writer, lock.as_slice()),
            Message::Listed { grant, names, are_kept, is_end } => {
                writer.u64(*grant).u8(u8::from(*is_end));
                write_list(writer, names);
                are_kept.iter().for_each(|is_kept| _ = writer.u8(u8::from(*is_kept)));
            }
            Message::Looked { names, attributes, found } => {
                writer.u64(*names).u64(*attributes);
                write_list(writer, found.as_slice());
            }
        }
    }

    fn read(kind: u16, reader: &mut Reader<'_>) -> Result<Message, FormatError> {
        Ok(match kind {
            1 => return Message::read_hello(reader),
            2 => {
                let version = reader.u16()?;
                if !VERSIONS.contains(&version) {
                    return Ok(Message::other_version(version, version, reader));
                }
                reader.skip(8)?;
                Message::Welcome { session: reader.u64()?, lease_ms: reader.u32()?, server_ns: reader.u64()? }
            }
            3 => {
                let (session, sent_ns) = (reader.u64()?, reader.u64()?);
                Message::Renew { session, sent_ns, acknowledged: reader.u64()?, drained: reader.u64()? }
            }
            4 => {
                let (sent_ns, lease_ms, server_ns) = (reader.u64()?, reader.u32()?, reader.u64()?);
                Message::Renewed { sent_ns, lease_ms, server_ns, sequence: reader.u64()?, stored: reader.u64()? }
            }
            5 => {
                let (session, is_last) = (reader.u64()?, read_bool(reader, "is_last")?);
                Message::Reclaim { session, held: read_list(reader, "tokens", HELD_MAX)?, is_last }
            }
            6 => Message::Goodbye { session: reader.u64()? },
            7 => {
                let session = reader.u64()?;
                Message::Evicted { session, words: read_text(reader, "words", WORDS_BYTES_MAX as u64)? }
            }
            32..64 => {
                let (session, number) = (reader.u64()?, reader.u64()?);
                let terms = Terms::read(reader)?;
                Message::Operation { session, number, terms, operation: Operation::read(kind, reader)? }
            }
            64..96 => {
                let session = reader.u64()?;
                Message::Question { session, question: Question::read(kind, reader)? }
            }
            96 => {
                let (token, level) = (Token::read(reader)?, read_level(reader)?);
                Message::Acquire { token, level, waits: read_bool(reader, "waits")? }
            }
            97 => {
                let (held, minimum_ms) = (Held::read(reader)?, reader.u32()?);
                let is_watched = read_bool(reader, "is_watched")?;
                Message::Grant { held, minimum_ms, is_watched, shape: read_list(reader, "shapes", 1)?.pop() }
            }
            98 => {
                let (held, why) = (Held::read(reader)?, reader.u8()?);
                reader.within("why", why.into(), 1, 3)?;
                Message::Recall { held, why }
            }
            99 => Message::Return { held: Held::read(reader)?, is_lost: read_bool(reader, "is_lost")? },
            100 => Message::Pushed { number: reader.u64()? },
            101 => Message::Push { file: FileId::read(reader)?, size: reader.u64()?, number: reader.u64()? },
            102 => Message::Lock { lock: Locked::read(reader)?, waits: read_bool(reader, "waits")? },
            103 => Message::Unlock { lock: Locked::read(reader)? },
            104 => Message::CancelLock { request: reader.u64()? },
            105 => Message::TestLock { lock: Locked::read(reader)? },
            106 => Message::LockFound { lock: read_list(reader, "locks", 1)?.pop() },
            107 => {
                let (names, attributes) = (reader.u64()?, reader.u64()?);
                Message::Looked { names, attributes, found: read_list(reader, "found", 1)?.pop() }
            }
            108 => Message::NameChange {
                directory: FileId::read(reader)?,
                number: reader.u64()?,
                name: read_bytes(reader, "name", NAME_BYTES_MAX as u64)?,
            },
            109 => Message::NameDropped { number: reader.u64()? },
            110 => {
                let (grant, is_end) = (reader.u64()?, read_bool(reader, "is_end")?);
                let names: Vec<Listed> = read_list(reader, "names", NAMES_MAX)?;
                let are_kept = names.iter().map(|_| read_bool(reader, "is_kept")).collect::<Result<_, _>>()?;
                Message::Listed { grant, names, are_kept, is_end }
            }
            111 => Message::Early { now_ns: reader.i64()?, stored: reader.u64()? },
            112 => {
                let most = MAY_KEEP_MAX as u64;
                let directories = read_list(reader, "directories", most)?;
                Message::MayKeep(MayKeep { directories, attributes: read_list(reader, "attributes", most)? })
            }
            FAILURE => Message::Failure(Failure::read(reader)?),
            _ => Message::Answer(Answer::read(kind, reader)?),
        })
    }

    /// Reads a greeting of another version: what follows the two versions depends on them, so it is skipped.
    fn other_version(least: u16, most: u16, reader: &mut Reader<'_>) -> Message {
        reader.rest();
        Message::OtherVersion { least, most }
    }

    fn read_hello(reader: &mut Reader<'_>) -> Result<Message, FormatError> {
        let (least, most) = (reader.u16()?, reader.u16()?);
        if common_version(&(least..=most)).is_none() {
            return Ok(Message::other_version(least, most, reader));
        }
        // The next field names features that the other side supports; no feature changes the messages yet.
        reader.skip(8)?;
        let (role, kind) = (reader.u8()?, reader.u8()?);
        reader.within("role", role.into(), 1, 2)?;
        reader.within("kind", kind.into(), 1, 2)?;
        let (volume, incarnation) = (reader.array()?, reader.array()?);
        let (session, machine, boot, connection) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let host = read_text(reader, "host", HOST_BYTES_MAX as u64)?;
        Ok(Message::Hello(Hello { role, volume, host, session, incarnation, kind, machine, boot, connection }))
    }
}
