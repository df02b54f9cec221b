//! Bodies of the messages about sessions, tokens and locks, and the number of each kind of message.

use super::answer::{NAMES_MAX, WORDS_BYTES_MAX};
use super::frame::{BODY_BYTES_MAX, MessageHeader};
use super::parts::{
    BodyPart, read_bool, read_bytes, read_extents, read_level, read_list, read_text, write_bytes, write_list,
};
use crate::format::cursor::{BoundedReader, BoundedWriter};
use crate::format::{FormatError, NAME_BYTES_MAX};
use crate::protocol::{
    AnswerTerms, FileId, FileLockRange, FileShape, HelloMessage, InodeAttributes, ListedName, MAY_KEEP_MAX, MayKeep,
    MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer, ServerRefusal, Token, TokenAspect, TokenGrant,
    VERSIONS, VolumeMessage, common_version,
};

/// The longest name of a host. *Units*: bytes.
const HOST_BYTES_MAX: usize = 253;
/// The maximum number of tokens in a `Reclaim`.
const HELD_MAX: u64 = 4096;
const FAILURE: u16 = 143;

impl BodyPart for Token {
    fn write(&self, writer: &mut BoundedWriter) {
        self.object.write(writer);
        writer.u8(self.what as u8);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<Token, FormatError> {
        let (object, what) = (FileId::read(reader)?, reader.u8()?);
        let known = TokenAspect::ALL.get(usize::from(what).wrapping_sub(1)).copied();
        Ok(Token { object, what: known.ok_or_else(|| reader.unknown("what", what.into()))? })
    }
}

impl BodyPart for TokenGrant {
    fn write(&self, writer: &mut BoundedWriter) {
        self.token.write(writer);
        writer.u8(self.level).u64(self.sequence);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<TokenGrant, FormatError> {
        Ok(TokenGrant { token: Token::read(reader)?, level: read_level(reader)?, sequence: reader.u64()? })
    }
}

impl BodyPart for FileShape {
    fn write(&self, writer: &mut BoundedWriter) {
        self.attributes.write(writer);
        writer.u64(self.answered_to);
        write_list(writer, &self.extents);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<FileShape, FormatError> {
        let (attributes, answered_to) = (InodeAttributes::read(reader)?, reader.u64()?);
        Ok(FileShape { attributes, answered_to, extents: read_extents(reader)? })
    }
}

impl BodyPart for FileLockRange {
    fn write(&self, writer: &mut BoundedWriter) {
        self.file.write(writer);
        writer.u64(self.owner).u32(self.process).u8(u8::from(self.is_flock)).u8(u8::from(self.is_exclusive));
        writer.u64(self.start).u64(self.last);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<FileLockRange, FormatError> {
        let (file, owner, process) = (FileId::read(reader)?, reader.u64()?, reader.u32()?);
        let (is_flock, is_exclusive) = (read_bool(reader, "is_flock")?, read_bool(reader, "is_exclusive")?);
        let (start, last) = (reader.u64()?, reader.u64()?);
        reader.within("last", last, start, u64::MAX)?;
        Ok(FileLockRange { file, owner, process, is_flock, is_exclusive, start, last })
    }
}

/// Returns the start of a text, at most `max` bytes.
impl BodyPart for AnswerTerms {
    fn write(&self, writer: &mut BoundedWriter) {
        match self {
            AnswerTerms::Durable => _ = writer.u8(0),
            AnswerTerms::Early => _ = writer.u8(1),
            AnswerTerms::Repeated { now_ns } => _ = writer.u8(2).i64(*now_ns),
            AnswerTerms::Local { now_ns } => _ = writer.u8(3).i64(*now_ns),
        }
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<AnswerTerms, FormatError> {
        Ok(match reader.u8()? {
            0 => AnswerTerms::Durable,
            1 => AnswerTerms::Early,
            2 => AnswerTerms::Repeated { now_ns: reader.i64()? },
            3 => AnswerTerms::Local { now_ns: reader.i64()? },
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

impl VolumeMessage {
    fn kind(&self) -> u16 {
        match self {
            VolumeMessage::Hello(_) | VolumeMessage::OtherVersion { .. } => 1,
            VolumeMessage::Welcome { .. } => 2,
            VolumeMessage::Renew { .. } => 3,
            VolumeMessage::Renewed { .. } => 4,
            VolumeMessage::Reclaim { .. } => 5,
            VolumeMessage::Goodbye { .. } => 6,
            VolumeMessage::Evicted { .. } => 7,
            VolumeMessage::Operation { operation, .. } => operation.kind(),
            VolumeMessage::Question { question, .. } => question.kind(),
            VolumeMessage::Acquire { .. } => 96,
            VolumeMessage::Grant { .. } => 97,
            VolumeMessage::Recall { .. } => 98,
            VolumeMessage::Return { .. } => 99,
            VolumeMessage::Pushed { .. } => 100,
            VolumeMessage::Push { .. } => 101,
            VolumeMessage::Lock { .. } => 102,
            VolumeMessage::Unlock { .. } => 103,
            VolumeMessage::CancelLock { .. } => 104,
            VolumeMessage::TestLock { .. } => 105,
            VolumeMessage::LockFound { .. } => 106,
            VolumeMessage::Looked { .. } => 107,
            VolumeMessage::NameChange { .. } => 108,
            VolumeMessage::NameDropped { .. } => 109,
            VolumeMessage::Listed { .. } => 110,
            VolumeMessage::Early { .. } => 111,
            VolumeMessage::MayKeep(_) => 112,
            VolumeMessage::Answer(answer) => answer.kind(),
            VolumeMessage::Failure(_) => FAILURE,
        }
    }

    /// Encodes the whole message. The sender of a request chooses `request`, and the answer repeats it. `epoch` is that
    /// of the server. An answer that is too long is replaced by a refusal with that reason.
    pub fn encode(&self, request: u64, epoch: u64) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        self.write(&mut writer);
        if writer.bytes.len() <= BODY_BYTES_MAX {
            return MessageHeader::seal(self.kind(), request, epoch, &writer.bytes);
        }
        let words = format!("a message of {} bytes, {BODY_BYTES_MAX} are allowed", writer.bytes.len());
        let mut writer = BoundedWriter::default();
        ServerRefusal { code: RefusalCode::Limit, errno: libc::EIO, words }.write(&mut writer);
        MessageHeader::seal(FAILURE, request, epoch, &writer.bytes)
    }

    /// Decodes a whole message: header and body.
    pub fn decode(bytes: &[u8]) -> Result<(MessageHeader, VolumeMessage), FormatError> {
        let (header, body) = MessageHeader::open(bytes)?;
        let mut reader = BoundedReader::new("message", body);
        let message = VolumeMessage::read(header.kind, &mut reader)?;
        reader.end()?;
        Ok((header, message))
    }

    fn write(&self, writer: &mut BoundedWriter) {
        match self {
            VolumeMessage::Hello(HelloMessage {
                role,
                volume,
                host,
                session,
                incarnation,
                kind,
                machine,
                boot,
                connection,
            }) => {
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
            VolumeMessage::OtherVersion { least, most } => _ = writer.u16(*least).u16(*most),
            VolumeMessage::Welcome { session, lease_ms, server_ns } => {
                writer.u16(*VERSIONS.end()).u64(0).u64(*session).u32(*lease_ms).u64(*server_ns);
            }
            VolumeMessage::Renew { session, sent_ns, acknowledged, drained } => {
                writer.u64(*session).u64(*sent_ns).u64(*acknowledged).u64(*drained);
            }
            VolumeMessage::Renewed { sent_ns, lease_ms, server_ns, sequence, stored } => {
                writer.u64(*sent_ns).u32(*lease_ms).u64(*server_ns).u64(*sequence).u64(*stored);
            }
            VolumeMessage::Reclaim { session, held, is_last } => {
                writer.u64(*session).u8(u8::from(*is_last));
                write_list(writer, held);
            }
            VolumeMessage::Goodbye { session } => _ = writer.u64(*session),
            VolumeMessage::Evicted { session, words } => {
                writer.u64(*session);
                write_bytes(writer, cut(words, WORDS_BYTES_MAX));
            }
            VolumeMessage::Operation { session, number, terms, operation } => {
                writer.u64(*session).u64(*number);
                terms.write(writer);
                operation.write(writer);
            }
            VolumeMessage::Question { session, question } => {
                writer.u64(*session);
                question.write(writer);
            }
            VolumeMessage::Answer(answer) => answer.write(writer),
            VolumeMessage::Failure(failure) => failure.write(writer),
            VolumeMessage::Acquire { token, level, waits } => {
                token.write(writer);
                writer.u8(*level).u8(u8::from(*waits));
            }
            VolumeMessage::Grant { held, minimum_ms, is_watched, shape } => {
                held.write(writer);
                writer.u32(*minimum_ms).u8(u8::from(*is_watched));
                write_list(writer, shape.as_slice());
            }
            VolumeMessage::Recall { held, why } => {
                held.write(writer);
                writer.u8(*why);
            }
            VolumeMessage::Return { held, is_lost } => {
                held.write(writer);
                writer.u8(u8::from(*is_lost));
            }
            VolumeMessage::Lock { lock, waits } => {
                lock.write(writer);
                writer.u8(u8::from(*waits));
            }
            VolumeMessage::Unlock { lock } | VolumeMessage::TestLock { lock } => lock.write(writer),
            VolumeMessage::CancelLock { request } => _ = writer.u64(*request),
            VolumeMessage::Pushed { number } | VolumeMessage::NameDropped { number } => _ = writer.u64(*number),
            VolumeMessage::Push { file, size, number } => {
                file.write(writer);
                writer.u64(*size).u64(*number);
            }
            VolumeMessage::NameChange { directory, number, name } => {
                directory.write(writer);
                write_bytes(writer.u64(*number), name);
            }
            VolumeMessage::Early { now_ns, stored } => _ = writer.i64(*now_ns).u64(*stored),
            VolumeMessage::MayKeep(MayKeep { directories, attributes }) => {
                write_list(writer, directories);
                write_list(writer, attributes);
            }
            VolumeMessage::LockFound { lock } => write_list(writer, lock.as_slice()),
            VolumeMessage::Listed { grant, names, are_kept, is_end } => {
                writer.u64(*grant).u8(u8::from(*is_end));
                write_list(writer, names);
                are_kept.iter().for_each(|is_kept| _ = writer.u8(u8::from(*is_kept)));
            }
            VolumeMessage::Looked { names, attributes, found } => {
                writer.u64(*names).u64(*attributes);
                write_list(writer, found.as_slice());
            }
        }
    }

    fn read(kind: u16, reader: &mut BoundedReader<'_>) -> Result<VolumeMessage, FormatError> {
        Ok(match kind {
            1 => return VolumeMessage::read_hello(reader),
            2 => {
                let version = reader.u16()?;
                if !VERSIONS.contains(&version) {
                    return Ok(VolumeMessage::other_version(version, version, reader));
                }
                reader.skip(8)?;
                VolumeMessage::Welcome { session: reader.u64()?, lease_ms: reader.u32()?, server_ns: reader.u64()? }
            }
            3 => {
                let (session, sent_ns) = (reader.u64()?, reader.u64()?);
                VolumeMessage::Renew { session, sent_ns, acknowledged: reader.u64()?, drained: reader.u64()? }
            }
            4 => {
                let (sent_ns, lease_ms, server_ns) = (reader.u64()?, reader.u32()?, reader.u64()?);
                VolumeMessage::Renewed { sent_ns, lease_ms, server_ns, sequence: reader.u64()?, stored: reader.u64()? }
            }
            5 => {
                let (session, is_last) = (reader.u64()?, read_bool(reader, "is_last")?);
                VolumeMessage::Reclaim { session, held: read_list(reader, "tokens", HELD_MAX)?, is_last }
            }
            6 => VolumeMessage::Goodbye { session: reader.u64()? },
            7 => {
                let session = reader.u64()?;
                VolumeMessage::Evicted { session, words: read_text(reader, "words", WORDS_BYTES_MAX as u64)? }
            }
            32..64 => {
                let (session, number) = (reader.u64()?, reader.u64()?);
                let terms = AnswerTerms::read(reader)?;
                VolumeMessage::Operation { session, number, terms, operation: MetadataOperation::read(kind, reader)? }
            }
            64..96 => {
                let session = reader.u64()?;
                VolumeMessage::Question { session, question: MetadataQuestion::read(kind, reader)? }
            }
            96 => {
                let (token, level) = (Token::read(reader)?, read_level(reader)?);
                VolumeMessage::Acquire { token, level, waits: read_bool(reader, "waits")? }
            }
            97 => {
                let (held, minimum_ms) = (TokenGrant::read(reader)?, reader.u32()?);
                let is_watched = read_bool(reader, "is_watched")?;
                VolumeMessage::Grant { held, minimum_ms, is_watched, shape: read_list(reader, "shapes", 1)?.pop() }
            }
            98 => {
                let (held, why) = (TokenGrant::read(reader)?, reader.u8()?);
                reader.within("why", why.into(), 1, 3)?;
                VolumeMessage::Recall { held, why }
            }
            99 => VolumeMessage::Return { held: TokenGrant::read(reader)?, is_lost: read_bool(reader, "is_lost")? },
            100 => VolumeMessage::Pushed { number: reader.u64()? },
            101 => VolumeMessage::Push { file: FileId::read(reader)?, size: reader.u64()?, number: reader.u64()? },
            102 => VolumeMessage::Lock { lock: FileLockRange::read(reader)?, waits: read_bool(reader, "waits")? },
            103 => VolumeMessage::Unlock { lock: FileLockRange::read(reader)? },
            104 => VolumeMessage::CancelLock { request: reader.u64()? },
            105 => VolumeMessage::TestLock { lock: FileLockRange::read(reader)? },
            106 => VolumeMessage::LockFound { lock: read_list(reader, "locks", 1)?.pop() },
            107 => {
                let (names, attributes) = (reader.u64()?, reader.u64()?);
                VolumeMessage::Looked { names, attributes, found: read_list(reader, "found", 1)?.pop() }
            }
            108 => VolumeMessage::NameChange {
                directory: FileId::read(reader)?,
                number: reader.u64()?,
                name: read_bytes(reader, "name", NAME_BYTES_MAX as u64)?,
            },
            109 => VolumeMessage::NameDropped { number: reader.u64()? },
            110 => {
                let (grant, is_end) = (reader.u64()?, read_bool(reader, "is_end")?);
                let names: Vec<ListedName> = read_list(reader, "names", NAMES_MAX)?;
                let are_kept = names.iter().map(|_| read_bool(reader, "is_kept")).collect::<Result<_, _>>()?;
                VolumeMessage::Listed { grant, names, are_kept, is_end }
            }
            111 => VolumeMessage::Early { now_ns: reader.i64()?, stored: reader.u64()? },
            112 => {
                let most = MAY_KEEP_MAX as u64;
                let directories = read_list(reader, "directories", most)?;
                VolumeMessage::MayKeep(MayKeep { directories, attributes: read_list(reader, "attributes", most)? })
            }
            FAILURE => VolumeMessage::Failure(ServerRefusal::read(reader)?),
            _ => VolumeMessage::Answer(ServerAnswer::read(kind, reader)?),
        })
    }

    /// Reads a greeting of another version: what follows the two versions depends on them, so it is skipped.
    fn other_version(least: u16, most: u16, reader: &mut BoundedReader<'_>) -> VolumeMessage {
        reader.rest();
        VolumeMessage::OtherVersion { least, most }
    }

    fn read_hello(reader: &mut BoundedReader<'_>) -> Result<VolumeMessage, FormatError> {
        let (least, most) = (reader.u16()?, reader.u16()?);
        if common_version(&(least..=most)).is_none() {
            return Ok(VolumeMessage::other_version(least, most, reader));
        }
        // The next field names features that the other side supports; no feature changes the messages yet.
        reader.skip(8)?;
        let (role, kind) = (reader.u8()?, reader.u8()?);
        reader.within("role", role.into(), 1, 2)?;
        reader.within("kind", kind.into(), 1, 2)?;
        let (volume, incarnation) = (reader.array()?, reader.array()?);
        let (session, machine, boot, connection) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let host = read_text(reader, "host", HOST_BYTES_MAX as u64)?;
        Ok(VolumeMessage::Hello(HelloMessage {
            role,
            volume,
            host,
            session,
            incarnation,
            kind,
            machine,
            boot,
            connection,
        }))
    }
}
