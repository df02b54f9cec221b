//! Messages as bytes: frames of `docs/formats/volume-protocol.md`.
//!
//! Owns: the frame, and bodies that are neither operation, question nor answer (those are in `codec`). Promises: what is
//! encoded decodes to the same; no bytes lead to a panic, or to more memory than the frame itself has.

use super::codec::{
    get_answer, get_operation, get_question, get_text, kind_of_operation, kind_of_question, put_answer, put_bytes,
    put_operation, put_question,
};
use super::{Answer, Code, Failure, Operation, Question};
use crate::format::FormatError;
use crate::format::cursor::{Reader, Writer};

/// The length of a frame's header. *Units*: bytes.
pub const HEADER_BYTES: usize = 32;
/// The longest body. *Units*: bytes.
pub const BODY_BYTES_MAX: u32 = 1 << 20;
const MAGIC: [u8; 4] = *b"NVPM";
const CHECKSUM_AT: usize = 12;
const FLAG_ANSWER: u16 = 1;
const FLAG_ERROR: u16 = 2;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the body is.
    pub kind: u16,
    /// 1 answer, 2 error.
    pub flags: u16,
    /// *Units*: bytes.
    pub body_bytes: u32,
    checksum: u32,
    /// Chosen by who asks; an answer repeats it.
    pub request: u64,
    /// Of the server, as the sender knows it.
    pub epoch: u64,
}

impl Header {
    /// Decodes the first [`HEADER_BYTES`] bytes of a frame.
    pub fn decode(bytes: &[u8]) -> Result<Header, FormatError> {
        let mut reader = Reader::new("message", bytes);
        let magic: [u8; 4] = reader.array()?;
        if magic != MAGIC {
            return Err(reader.unknown("magic", u32::from_le_bytes(magic).into()));
        }
        let (kind, flags, body_bytes, checksum) = (reader.u16()?, reader.u16()?, reader.u32()?, reader.u32()?);
        reader.within("body_bytes", body_bytes.into(), 0, BODY_BYTES_MAX.into())?;
        Ok(Header { kind, flags, body_bytes, checksum, request: reader.u64()?, epoch: reader.u64()? })
    }
}

/// A greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// 1 control, 2 bulk.
    pub role: u8,
    /// The volume on the disk of the client.
    pub volume: [u8; 16],
    /// The name of the client's host.
    pub host: String,
    /// 0: none yet.
    pub session: u64,
    /// Random, of the mount.
    pub incarnation: [u8; 16],
    /// 1 FUSE mount, 2 library.
    pub kind: u8,
    /// Hash of the machine's identity.
    pub machine: u64,
    /// Hash of the machine's start.
    pub boot: u64,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Message {
    Hello(Hello),
    Welcome { session: u64, lease_ms: u32, server_ns: u64 },
    Renew { session: u64, sent_ns: u64, acknowledged: u64, drained: u64 },
    Renewed { sent_ns: u64, lease_ms: u32, server_ns: u64, durable: u64 },
    Goodbye { session: u64 },
    Evicted { session: u64, words: String },
    Operation { session: u64, number: u64, operation: Operation },
    Question { session: u64, question: Question },
    Answer(Answer),
    Failure(Failure),
}

const CODES: [Code; 16] = [
    Code::Malformed,
    Code::Version,
    Code::Feature,
    Code::OldEpoch,
    Code::NotLeader,
    Code::Ended,
    Code::Forgotten,
    Code::OutOfOrder,
    Code::Stale,
    Code::Conflict,
    Code::Full,
    Code::Limit,
    Code::Grace,
    Code::Posix,
    Code::Damaged,
    Code::WrongVolume,
];

impl Message {
    fn kind(&self) -> (u16, u16) {
        match self {
            Message::Hello(_) => (1, 0),
            Message::Welcome { .. } => (2, 0),
            Message::Renew { .. } => (3, 0),
            Message::Renewed { .. } => (4, 0),
            Message::Goodbye { .. } => (6, 0),
            Message::Evicted { .. } => (7, 0),
            Message::Operation { operation, .. } => (kind_of_operation(operation), 0),
            Message::Question { question, .. } => (kind_of_question(question), 0),
            Message::Answer(_) => (0, FLAG_ANSWER),
            Message::Failure(_) => (0, FLAG_ANSWER | FLAG_ERROR),
        }
    }

    /// The frame of a message.
    pub fn encode(&self, request: u64, epoch: u64) -> Vec<u8> {
        let (kind, flags) = self.kind();
        let mut writer = Writer::default();
        writer.put(&MAGIC).u16(kind).u16(flags).u32(0).u32(0).u64(request).u64(epoch);
        match self {
            Message::Hello(hello) => {
                writer.u16(1).u16(1).u8(hello.role).u8(hello.kind).put(&hello.volume).u64(hello.session);
                writer.put(&hello.incarnation).u64(hello.machine).u64(hello.boot);
                put_bytes(&mut writer, hello.host.as_bytes());
            }
            Message::Welcome { session, lease_ms, server_ns } => {
                writer.u64(*session).u32(*lease_ms).u64(*server_ns);
            }
            Message::Renew { session, sent_ns, acknowledged, drained } => {
                writer.u64(*session).u64(*sent_ns).u64(*acknowledged).u64(*drained);
            }
            Message::Renewed { sent_ns, lease_ms, server_ns, durable } => {
                writer.u64(*sent_ns).u32(*lease_ms).u64(*server_ns).u64(*durable);
            }
            Message::Goodbye { session } => {
                writer.u64(*session);
            }
            Message::Evicted { session, words } => {
                writer.u64(*session);
                put_bytes(&mut writer, words.as_bytes());
            }
            Message::Operation { session, number, operation } => {
                writer.u64(*session).u64(*number);
                put_operation(&mut writer, operation);
            }
            Message::Question { session, question } => {
                writer.u64(*session);
                put_question(&mut writer, question);
            }
            Message::Answer(answer) => put_answer(&mut writer, answer),
            Message::Failure(failure) => {
                writer.u32(failure.code as u32).u32(failure.errno as u32);
                put_bytes(&mut writer, failure.words.as_bytes());
            }
        }
        let mut bytes = writer.bytes;
        let body_bytes = (bytes.len() - HEADER_BYTES) as u32;
        bytes[8..12].copy_from_slice(&body_bytes.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a whole frame.
    pub fn decode(bytes: &[u8]) -> Result<(Header, Message), FormatError> {
        let header = Header::decode(bytes)?;
        let mut reader = Reader::new("message", bytes);
        reader.skip(HEADER_BYTES)?;
        let mut unsigned = bytes.to_vec();
        unsigned[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        if crc32c::crc32c(&unsigned) != header.checksum {
            return Err(reader.unknown("checksum", header.checksum.into()));
        }
        let message = if header.flags & FLAG_ERROR != 0 {
            let code = reader.u32()?;
            let found = (code as usize).checked_sub(1).and_then(|index| CODES.get(index).copied());
            let code = found.ok_or_else(|| reader.unknown("code", code.into()))?;
            let errno = reader.u32()? as i32;
            Message::Failure(Failure { code, errno, words: get_text(&mut reader)? })
        } else if header.flags & FLAG_ANSWER != 0 {
            Message::Answer(get_answer(&mut reader)?)
        } else {
            Message::request(header.kind, &mut reader)?
        };
        reader.end()?;
        Ok((header, message))
    }

    fn request(kind: u16, reader: &mut Reader<'_>) -> Result<Message, FormatError> {
        Ok(match kind {
            1 => {
                let (min, _max) = (reader.u16()?, reader.u16()?);
                reader.within("version", min.into(), 1, 1)?;
                Message::Hello(Hello {
                    role: reader.u8()?,
                    kind: reader.u8()?,
                    volume: reader.array()?,
                    session: reader.u64()?,
                    incarnation: reader.array()?,
                    machine: reader.u64()?,
                    boot: reader.u64()?,
                    host: get_text(reader)?,
                })
            }
            2 => Message::Welcome { session: reader.u64()?, lease_ms: reader.u32()?, server_ns: reader.u64()? },
            3 => Message::Renew {
                session: reader.u64()?,
                sent_ns: reader.u64()?,
                acknowledged: reader.u64()?,
                drained: reader.u64()?,
            },
            4 => Message::Renewed {
                sent_ns: reader.u64()?,
                lease_ms: reader.u32()?,
                server_ns: reader.u64()?,
                durable: reader.u64()?,
            },
            6 => Message::Goodbye { session: reader.u64()? },
            7 => Message::Evicted { session: reader.u64()?, words: get_text(reader)? },
            32..=63 => Message::Operation {
                session: reader.u64()?,
                number: reader.u64()?,
                operation: get_operation(kind, reader)?,
            },
            64..=95 => Message::Question { session: reader.u64()?, question: get_question(kind, reader)? },
            other => return Err(reader.unknown("kind", other.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FileId, Mapped, TimeChange};

    fn messages() -> Vec<Message> {
        let file = FileId { inode: 17, generation: 3 };
        let extents = vec![Mapped { file_block: 1, blocks: 2, block: 3000, is_unwritten: false }];
        let commit = Operation::Commit {
            file,
            truncate_generation: 4,
            size: 5,
            modified_ns: -6,
            changed_ns: 7,
            extents: extents.clone(),
        };
        let changes = crate::protocol::Changes {
            mode: Some(0o644),
            accessed: Some(TimeChange::Now),
            modified: Some(TimeChange::At(-1)),
            ..Default::default()
        };
        let operation = |operation| Message::Operation { session: 1, number: 2, operation };
        vec![
            Message::Renew { session: 1, sent_ns: 2, acknowledged: 3, drained: 4 },
            Message::Goodbye { session: 9 },
            operation(commit),
            operation(Operation::SetAttributes { file, changes }),
            operation(Operation::Unlink { directory: file, name: vec![0xff, 1], is_directory: true, expected: 0 }),
            Message::Question { session: 1, question: Question::ReadMap { file, start: 1, end: u64::MAX } },
            Message::Answer(Answer::Map { extents, answered_to: 9 }),
            Message::Answer(Answer::Names(vec![b"user.a".to_vec(), Vec::new()])),
            Message::Failure(Failure { code: Code::Full, errno: 28, words: "full".to_owned() }),
        ]
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        for message in messages() {
            let bytes = message.encode(7, 8);
            let (header, decoded) = Message::decode(&bytes).unwrap();
            assert_eq!((header.request, header.epoch, decoded), (7, 8, message));
        }
    }

    #[test]
    fn a_changed_or_cut_frame_is_refused() {
        for message in messages() {
            let bytes = message.encode(7, 8);
            for at in 0..bytes.len() {
                assert!(Message::decode(&bytes[..at]).is_err(), "{message:?} cut at {at}");
                let mut changed = bytes.clone();
                changed[at] ^= 0x40;
                assert!(Message::decode(&changed).is_err(), "{message:?} changed at {at}");
            }
        }
    }
}
