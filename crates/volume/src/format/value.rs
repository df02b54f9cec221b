//! Values of the tables of files and sessions: names, extents, space, sessions, replies, grants.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::{FormatError, FormatProblem};
use super::journal::REPLY_BYTES_MAX;
use super::{BLOCKS_MAX, SPACE_START};

/// The longest name. *Units*: bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest name of a host. *Units*: bytes.
const HOST_BYTES_MAX: u64 = 253;
/// The longest extent of a file. *Units*: blocks.
const EXTENT_BLOCKS_MAX: u64 = 1 << 20;
/// The most space that a session may hold for overwriting in place: 1 GiB. *Units*: blocks.
const IN_PLACE_BLOCKS_MAX: u64 = 1 << 18;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// The inode number.
    pub inode: u64,
    /// The generation of the inode number.
    pub generation: u64,
    /// The type, as in `readdir`.
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
}

impl NameRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check(&BoundedReader::new("entry", &[]))?;
        let mut writer = BoundedWriter::default();
        writer.u64(self.inode).u64(self.generation).u8(self.kind).u8(self.name.len() as u8).put(&self.name);
        Ok(writer.bytes)
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<NameRecord, FormatError> {
        let mut reader = BoundedReader::new("entry", bytes);
        let (inode, generation, kind) = (reader.u64()?, reader.u64()?, reader.u8()?);
        let length = usize::from(reader.u8()?);
        let name = NameRecord { inode, generation, kind, name: reader.take(length)?.to_vec() };
        reader.end()?;
        name.check(&reader)?;
        Ok(name)
    }

    fn check(&self, reader: &BoundedReader<'_>) -> Result<(), FormatError> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&self.name.len())
            && !self.name.iter().any(|byte| matches!(byte, 0 | b'/'))
            && self.name != b"."
            && self.name != b"..";
        match is_name {
            true => Ok(()),
            false => Err(reader.error(FormatProblem::Text("name"))),
        }
    }
}

/// An extent of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRecord {
    /// The first block on the disk. *Units*: blocks.
    pub block: u64,
    /// The length. *Units*: blocks.
    pub blocks: u32,
    /// Whether the extent reads as zeroes.
    pub is_unwritten: bool,
    /// The epoch of the transaction that mapped the extent.
    pub epoch: u64,
}

impl ExtentRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.block).u32(self.blocks).u32(u32::from(self.is_unwritten)).u64(self.epoch);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<ExtentRecord, FormatError> {
        let mut reader = BoundedReader::new("extent", bytes);
        let (block, blocks, flags, epoch) = (reader.u64()?, reader.u32()?, reader.u32()?, reader.u64()?);
        reader.end()?;
        reader.within("blocks", blocks.into(), 1, EXTENT_BLOCKS_MAX)?;
        reader.within("block", block, SPACE_START, BLOCKS_MAX - u64::from(blocks))?;
        if flags > 1 {
            return Err(reader.unknown("flags", flags.into()));
        }
        Ok(ExtentRecord { block, blocks, is_unwritten: flags == 1, epoch })
    }
}

/// The use of an extent of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentState {
    /// It has data of an inode.
    Data,
    /// It is granted to a session, and no file maps it.
    Granted,
    /// It was granted to a session that ended and is not confirmed gone.
    Quarantined,
    /// It was freed, but cached maps may still have it.
    Draining,
    /// It has metadata of an epoch.
    Metadata,
    /// It had metadata of an epoch whose host is not confirmed gone.
    QuarantinedMetadata,
    /// It is not usable.
    Bad,
}

impl ExtentState {
    const ALL: [ExtentState; 7] = [
        ExtentState::Data,
        ExtentState::Granted,
        ExtentState::Quarantined,
        ExtentState::Draining,
        ExtentState::Metadata,
        ExtentState::QuarantinedMetadata,
        ExtentState::Bad,
    ];
}

/// A used extent of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceRecord {
    /// The length. *Units*: blocks.
    pub blocks: u64,
    /// The use of the extent.
    pub state: ExtentState,
    /// The number of an inode, session, epoch or append, depending on the state.
    pub owner: u64,
    /// The append that gave the extent this state.
    pub since: u64,
}

impl SpaceRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.blocks).u8(self.state as u8 + 1).zeroes(7).u64(self.owner).u64(self.since);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<SpaceRecord, FormatError> {
        let mut reader = BoundedReader::new("space", bytes);
        let (blocks, state) = (reader.u64()?, reader.u8()?);
        reader.skip(7)?;
        let (owner, since) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        reader.within("blocks", blocks, 1, BLOCKS_MAX)?;
        let state = usize::from(state).checked_sub(1).and_then(|index| ExtentState::ALL.get(index).copied());
        let state = state.ok_or_else(|| reader.unknown("state", u64::from(bytes[8])))?;
        Ok(SpaceRecord { blocks, state, owner, since })
    }
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The session renews its lease.
    Active,
    /// Its lease ended, and no other session needed what it held.
    Suspended,
    /// It ended, but its late writes may still reach the disk.
    Ended,
    /// No write of the session can reach the disk any more.
    ConfirmedGone,
}

/// A session of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The random number of the mount.
    pub incarnation: [u8; 16],
    /// The state of the session.
    pub state: SessionState,
    /// The kind of client: 1 FUSE mount, 2 library.
    pub kind: u8,
    /// Flags of the transport: 1 a lock can confirm that the client is gone, 2 it may be unable to.
    pub flags: u16,
    /// The length of the lease. *Units*: milliseconds.
    pub lease_ms: u32,
    /// Replies up to this number are forgotten.
    pub acknowledged: u64,
    /// A hash of the machine's identity.
    pub machine: u64,
    /// A hash of the machine's boot identifier.
    pub boot: u64,
    /// The time at which the session began. *Units*: nanoseconds since 1970.
    pub created_ns: u64,
    /// The time at which the session ended; 0 while it is active. *Units*: nanoseconds since 1970.
    pub ended_ns: u64,
    /// The number of the reason why it ended.
    pub reason: u32,
    /// The name of the session's host.
    pub host: String,
}

impl SessionRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let state = match self.state {
            SessionState::Active => 1,
            SessionState::Suspended => 2,
            SessionState::Ended => 3,
            SessionState::ConfirmedGone => 4,
        };
        BoundedReader::new("session", &[]).within("host_bytes", self.host.len() as u64, 0, HOST_BYTES_MAX)?;
        let mut writer = BoundedWriter::default();
        writer.put(&self.incarnation).u8(state).u8(self.kind).u16(self.flags).u32(self.lease_ms);
        writer.u64(self.acknowledged).u64(self.machine).u64(self.boot).u64(self.created_ns).u64(self.ended_ns);
        writer.u32(self.reason).u16(self.host.len() as u16).put(self.host.as_bytes());
        Ok(writer.bytes)
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<SessionRecord, FormatError> {
        let mut reader = BoundedReader::new("session", bytes);
        let incarnation = reader.array()?;
        let state = match reader.u8()? {
            1 => SessionState::Active,
            2 => SessionState::Suspended,
            3 => SessionState::Ended,
            4 => SessionState::ConfirmedGone,
            other => return Err(reader.unknown("state", other.into())),
        };
        let (kind, flags, lease_ms) = (reader.u8()?, reader.u16()?, reader.u32()?);
        reader.within("kind", kind.into(), 1, 2)?;
        let (acknowledged, machine, boot) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (created_ns, ended_ns, reason) = (reader.u64()?, reader.u64()?, reader.u32()?);
        reader.within("reason", reason.into(), 0, 4)?;
        let length = u64::from(reader.u16()?);
        let length = reader.within("host_bytes", length, 0, HOST_BYTES_MAX)? as usize;
        let Ok(host) = std::str::from_utf8(reader.take(length)?) else {
            return Err(reader.error(FormatProblem::Text("host")));
        };
        reader.end()?;
        let host = host.to_owned();
        Ok(SessionRecord {
            incarnation,
            state,
            kind,
            flags,
            lease_ms,
            acknowledged,
            machine,
            boot,
            created_ns,
            ended_ns,
            reason,
            host,
        })
    }
}

/// A stored answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyRecord {
    /// 0 for success, otherwise an errno.
    pub status: u32,
    /// The answer.
    pub body: Vec<u8>,
}

impl ReplyRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        BoundedReader::new("reply", &[]).within("reply_bytes", self.body.len() as u64, 0, REPLY_BYTES_MAX)?;
        let mut writer = BoundedWriter::default();
        writer.u32(self.status).u32(self.body.len() as u32).put(&self.body);
        Ok(writer.bytes)
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<ReplyRecord, FormatError> {
        let mut reader = BoundedReader::new("reply", bytes);
        let (status, length) = (reader.u32()?, u64::from(reader.u32()?));
        let length = reader.within("reply_bytes", length, 0, REPLY_BYTES_MAX)? as usize;
        let body = reader.take(length)?.to_vec();
        reader.end()?;
        Ok(ReplyRecord { status, body })
    }
}

/// Blocks or inode numbers that a session may use before a commit makes the result visible; kind and start are in the
/// key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantRecord {
    /// The number of blocks or of inode numbers.
    pub length: u64,
    /// The inode, if the grant is for overwriting in place.
    pub inode: u64,
    /// The number of blocks that might have to be copied. *Units*: blocks.
    pub reserved_blocks: u64,
    /// The number of the grant.
    pub sequence: u64,
    /// The truncate generation of the inode at the grant.
    pub generation: u64,
}

impl GrantRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.length).u64(self.inode).u64(self.reserved_blocks).u64(self.sequence).u64(self.generation);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<GrantRecord, FormatError> {
        let mut reader = BoundedReader::new("grant", bytes);
        let (length, inode, reserved_blocks) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (sequence, generation) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        reader.within("length", length, 1, BLOCKS_MAX)?;
        reader.within("reserved_blocks", reserved_blocks, 0, IN_PLACE_BLOCKS_MAX)?;
        Ok(GrantRecord { length, inode, reserved_blocks, sequence, generation })
    }
}
