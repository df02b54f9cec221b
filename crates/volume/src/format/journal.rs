//! Appends of the journal: transactions of mutations.
//!
//! A mutation stores or deletes one record of a table. So replay need not know the operations, and applying a mutation
//! twice has the same effect as applying it once.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::FormatError;
use super::frame::{FrameKind, FramePosition, HEADER_BYTES, VerifiedFrame, VolumeIdentity};
use super::table::{KEY_BYTES_MAX, TableKind, VALUE_BYTES_MAX};
use super::{BLOCKS_MAX, SPACE_START};

/// The maximum number of transactions of an append.
const TRANSACTIONS_MAX: u64 = 4096;
/// The longest transaction. *Units*: bytes.
const TRANSACTION_BYTES_MAX: u64 = 1 << 20;
/// The length of a transaction's header, before the reply. *Units*: bytes.
const TRANSACTION_HEADER_BYTES: u64 = 40;
/// The maximum number of mutations of a transaction.
const MUTATIONS_MAX: u64 = 16384;
/// The longest stored reply. *Units*: bytes.
pub(super) const REPLY_BYTES_MAX: u64 = 4096;
/// The shortest encoding of a mutation. *Units*: bytes.
const MUTATION_BYTES_MIN: usize = 16;

/// The change that a mutation makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MutationAction {
    /// Stores this value in the record.
    Put(Vec<u8>),
    /// Deletes the record.
    Delete,
}

/// A change of one record; a run also stores its records in this form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// The table of the record.
    pub table: TableKind,
    /// The key of the record, as [`TableKey`](super::TableKey) encodes it.
    pub key: Vec<u8>,
    /// The change.
    pub action: MutationAction,
}

impl Mutation {
    pub(super) fn write(&self, writer: &mut BoundedWriter) -> Result<(), FormatError> {
        let (action, value) = match &self.action {
            MutationAction::Put(value) => (1, value.as_slice()),
            MutationAction::Delete => (2, [].as_slice()),
        };
        let bounds = BoundedReader::new("mutation", &[]);
        bounds.within("key_bytes", self.key.len() as u64, 1, KEY_BYTES_MAX)?;
        bounds.within("value_bytes", value.len() as u64, 0, VALUE_BYTES_MAX)?;
        writer.u8(self.table.number()).u8(action).u16(self.key.len() as u16).u32(value.len() as u32);
        writer.put(&self.key).put(value).align();
        Ok(())
    }

    pub(super) fn read(reader: &mut BoundedReader<'_>) -> Result<Mutation, FormatError> {
        let (table, action) = (reader.u8()?, reader.u8()?);
        let Some(table) = TableKind::of(table) else { return Err(reader.unknown("table", table.into())) };
        let key_bytes = u64::from(reader.u16()?);
        let key_bytes = reader.within("key_bytes", key_bytes, 1, KEY_BYTES_MAX)? as usize;
        let value_bytes = u64::from(reader.u32()?);
        let value_max = if action == 2 { 0 } else { VALUE_BYTES_MAX };
        let value_bytes = reader.within("value_bytes", value_bytes, 0, value_max)? as usize;
        let (key, value) = (reader.take(key_bytes)?.to_vec(), reader.take(value_bytes)?);
        let action = match action {
            1 => MutationAction::Put(value.to_vec()),
            2 => MutationAction::Delete,
            other => return Err(reader.unknown("action", other.into())),
        };
        reader.align()?;
        Ok(Mutation { table, key, action })
    }
}

/// The origin of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionKind {
    /// An operation of a session, which is done exactly once.
    Operation,
    /// A change by the server.
    Server,
    /// The manifest of a complete checkpoint.
    Manifest,
}

/// Mutations that are applied together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The origin.
    pub kind: TransactionKind,
    /// The session; 0 for a change by the server.
    pub session: u64,
    /// The number of the operation in its session; 0 for a change by the server.
    pub number: u64,
    /// The stored answer, which is given again if the operation is repeated.
    pub reply: Vec<u8>,
    /// The mutations, in order.
    pub mutations: Vec<Mutation>,
}

impl Transaction {
    fn write(&self, writer: &mut BoundedWriter) -> Result<(), FormatError> {
        let kind = match self.kind {
            TransactionKind::Operation => 1,
            TransactionKind::Server => 2,
            TransactionKind::Manifest => 3,
        };
        let mut rest = BoundedWriter::default();
        rest.put(&self.reply).align();
        for mutation in &self.mutations {
            mutation.write(&mut rest)?;
        }
        let bounds = BoundedReader::new("transaction", &[]);
        let bytes = TRANSACTION_HEADER_BYTES + rest.bytes.len() as u64;
        bounds.within("bytes", bytes, TRANSACTION_HEADER_BYTES, TRANSACTION_BYTES_MAX)?;
        bounds.within("mutation_count", self.mutations.len() as u64, 0, MUTATIONS_MAX)?;
        bounds.within("reply_bytes", self.reply.len() as u64, 0, REPLY_BYTES_MAX)?;
        writer.u32(bytes as u32).u16(kind).u16(self.mutations.len() as u16).u64(self.session).u64(self.number);
        writer.u64(0).u32(self.reply.len() as u32).u32(0).put(&rest.bytes);
        Ok(())
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<Transaction, FormatError> {
        let start = reader.at();
        let bytes = u64::from(reader.u32()?);
        let bytes = reader.within("bytes", bytes, TRANSACTION_HEADER_BYTES, TRANSACTION_BYTES_MAX)? as usize;
        let kind = match reader.u16()? {
            1 => TransactionKind::Operation,
            2 => TransactionKind::Server,
            3 => TransactionKind::Manifest,
            other => return Err(reader.unknown("kind", other.into())),
        };
        let count = u64::from(reader.u16()?);
        let count = reader.within("mutation_count", count, 0, MUTATIONS_MAX)? as usize;
        let (session, number) = (reader.u64()?, reader.u64()?);
        reader.skip(8)?;
        let reply_bytes = u64::from(reader.u32()?);
        let reply_bytes = reader.within("reply_bytes", reply_bytes, 0, REPLY_BYTES_MAX)? as usize;
        reader.skip(4)?;
        let reply = reader.take(reply_bytes)?.to_vec();
        reader.align()?;
        let mut mutations = Vec::with_capacity(count.min(bytes / MUTATION_BYTES_MIN));
        for _ in 0..count {
            mutations.push(Mutation::read(reader)?);
        }
        let found = (reader.at() - start) as u64;
        reader.within("bytes of its parts", found, bytes as u64, bytes as u64)?;
        Ok(Transaction { kind, session, number, reply, mutations })
    }
}

/// One write of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalAppend {
    /// The epoch of the leader that wrote it.
    pub epoch: u64,
    /// The number of the append, counted from 1 over all epochs.
    pub sequence: u64,
    /// Appends up to this one were flushed before this append was written.
    pub flushed_sequence: u64,
    /// In the last append of a segment: the first block of the next segment; otherwise 0. *Units*: blocks.
    pub next_segment: u64,
    /// The server's clock. *Units*: nanoseconds since 1970.
    pub time_ns: u64,
    /// The transactions.
    pub transactions: Vec<Transaction>,
}

impl JournalAppend {
    /// Encodes the append for this first block; returns its blocks, and the chain checksum for the next append. `chain`
    /// is the chain checksum after the previous append, or 0 before the first append.
    pub fn encode(&self, volume: VolumeIdentity, block: u64, chain: u32) -> Result<(Vec<u8>, u32), FormatError> {
        let mut body = BoundedWriter::default();
        body.u32(self.transactions.len() as u32).u64(self.flushed_sequence).u64(self.next_segment).u64(self.time_ns);
        body.zeroes(32);
        BoundedReader::new("append", &[]).within(
            "transaction_count",
            self.transactions.len() as u64,
            0,
            TRANSACTIONS_MAX,
        )?;
        for transaction in &self.transactions {
            transaction.write(&mut body)?;
        }
        let chain = chained(chain, &body.bytes);
        let mut whole = BoundedWriter::default();
        whole.u32(chain).put(&body.bytes);
        let bytes = VerifiedFrame::encode(FrameKind::Append, volume, self.epoch, block, self.sequence, &whole.bytes)?;
        Ok((bytes, chain))
    }

    /// Decodes the append at this block, if it follows an append with the chain checksum `chain`; returns the append,
    /// its length in blocks, and its own chain checksum.
    ///
    /// *Errors*: [`FormatProblem::Checksum`](super::FormatProblem::Checksum) also if the append does not follow that one.
    pub fn decode(
        volume: VolumeIdentity,
        block: u64,
        chain: u32,
        bytes: &[u8],
    ) -> Result<(JournalAppend, u64, u32), FormatError> {
        let frame =
            VerifiedFrame::decode(FrameKind::Append, FramePosition { volume: Some(volume), address: block }, bytes)?;
        let mut reader = frame.body("append")?;
        let found = reader.u32()?;
        let expected = chained(chain, frame.bytes.get(HEADER_BYTES + 4..).unwrap_or_default());
        if found != expected {
            return Err(reader.error(super::FormatProblem::Checksum { expected, found }));
        }
        let count = u64::from(reader.u32()?);
        let count = reader.within("transaction_count", count, 0, TRANSACTIONS_MAX)?;
        let flushed_sequence = reader.u64()?;
        let sequence = reader.within("sequence", frame.sequence, 1, u64::MAX - 1)?;
        reader.within("flushed_sequence", flushed_sequence, 0, sequence - 1)?;
        let next_segment = reader.u64()?;
        if next_segment != 0 {
            reader.within("next_segment", next_segment, SPACE_START, BLOCKS_MAX)?;
        }
        let time_ns = reader.u64()?;
        reader.skip(32)?;
        let mut transactions = Vec::new();
        for _ in 0..count {
            transactions.push(Transaction::read(&mut reader)?);
        }
        reader.end()?;
        let blocks = frame.bytes.len().div_ceil(super::BLOCK_BYTES) as u64;
        let append =
            JournalAppend { epoch: frame.epoch, sequence, flushed_sequence, next_segment, time_ns, transactions };
        Ok((append, blocks, expected))
    }
}

/// Extends a chain checksum by one more body.
fn chained(chain: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&chain.to_le_bytes()), body)
}
