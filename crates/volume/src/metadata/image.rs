//! The state of a volume's server.
//!
//! Owns: tables, free space, sessions, open files. Promises: an operation is done once; blocks that it frees are reused
//! only when no session's cached map has them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::change::{Result, TableChange, damaged};
use super::records::{inode, keys_of, server, spaces};
use super::reserve::{MetadataReserve, full};
use super::space::{DrainingExtents, FreeExtents};
use crate::format::{
    ExtentState, HAS_XATTRS, Inode, Mutation, MutationAction, ReplyRecord, SPACE_START, SessionRecord, SessionState,
    SpaceRecord, TableKey, TableKind, Transaction, TransactionKind, VolumeLabel, VolumeRecord,
};
use crate::planted::{Bug, planted};
use crate::protocol::{
    FileId, InodeAttributes, MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer, ServerRefusal,
};
use crate::tables::MetadataTables;

/// Inodes that are being freed and whose blocks are counted as free; the count of more would take too long.
const DYING_COUNTED_MAX: usize = 10_000;
/// Sessions of a volume.
const SESSIONS_MAX: usize = 1024;
/// The bounds of one operation: its mutations, and their bytes. They are below the bounds of a transaction, so that
/// every applied operation can be stored.
const MUTATIONS_MAX: usize = 12_000;
const MUTATION_BYTES_MAX: usize = 900 << 10;
/// The maximum number of bytes that the mutations of freed inodes may have in one round of background work. *Units*:
/// bytes.
const BACKGROUND_BYTES_MAX: usize = 1 << 20;
/// The maximum number of extents, and of extended attributes, that are freed in one transaction.
pub(super) const FREED_MAX: usize = 1024;

/// The reason of a session's end: its lease ended while another session waited for what it held.
const REASON_CONFLICT: u32 = 2;

/// When a change happens: its time, and the append that stores it.
#[derive(Debug, Clone, Copy)]
pub struct AppendStamp {
    /// *Units*: nanoseconds since 1970.
    pub now_ns: i64,
    /// The change is stored by the append of this number or an earlier one.
    pub sequence: u64,
}

/// More inodes than all sessions together may have made at an earlier server that did not store them.
const UNSTORED_MAX: u64 = 1 << 18;

/// The maximum number of inode numbers of one grant.
const NUMBERS_MAX: u32 = 512;

/// The answer to a question.
#[derive(Debug)]
pub struct QuestionAnswer {
    /// The answer for the session.
    pub answer: ServerAnswer,
    /// The transaction to be stored, if the question granted something.
    pub transaction: Option<Transaction>,
}

/// The state of a volume's metadata server.
pub struct MetadataImage {
    pub(super) tables: MetadataTables,
    pub(super) hash_key: [u8; 16],
    pub(super) volume: VolumeRecord,
    pub(super) free: FreeExtents,
    draining: DrainingExtents,
    pub(super) segment_blocks: u64,
    pub(super) epoch: u64,
    /// The number of next epochs for which a segment is set aside, if it is known.
    pub(super) starts: Option<u64>,
    /// The sessions that have an inode open, by inode.
    pub(super) opened: HashMap<u64, BTreeSet<u64>>,
    /// Sessions from before a restart that have not yet listed their open files.
    pub(super) awaited: BTreeSet<u64>,
    /// Inodes that the background work has to free.
    pub(super) dying: BTreeSet<u64>,
    /// The number of the last operation of each session.
    pub(super) numbers: HashMap<u64, u64>,
    /// For sessions with replies to forget: the number up to which replies are forgotten.
    pub(super) acknowledged: BTreeMap<u64, u64>,
    /// For each session, its last operation before this start: unacknowledged replies are counted from this number.
    pub(super) done_before: HashMap<u64, u64>,
    pub(super) drained: HashMap<u64, u64>,
    /// Whether a checkpoint would free segments of the journal.
    is_journal_long: bool,
    /// While an operation is done again that had room before.
    is_repeating: bool,
    /// The number of inode numbers for which there is room, and whether some of this room is soon free.
    pub(super) in_hand: u64,
    pub(super) is_room_passing: bool,
    /// New inodes have this number at least: sessions may still name lower ones that an earlier server gave them.
    pub(super) first_new: u64,
}

impl MetadataImage {
    /// Builds the state that the tables define, for the leader of `epoch`.
    pub fn load(tables: MetadataTables, label: &VolumeLabel, epoch: u64) -> Result<MetadataImage> {
        let volume = tables.get(&TableKey::Volume).ok_or_else(|| damaged("there is no record of the volume"))?;
        let volume = VolumeRecord::decode(volume).map_err(damaged)?;
        if let Some(words) = volume.refusal() {
            return Err(ServerRefusal { code: RefusalCode::Feature, errno: libc::EOPNOTSUPP, words });
        }
        let mut image = MetadataImage {
            free: FreeExtents::load(&tables, volume.blocks, label.segment_blocks.max(1))?,
            draining: DrainingExtents::load(&tables)?,
            tables,
            hash_key: label.hash_key,
            volume,
            segment_blocks: label.segment_blocks.max(1),
            epoch,
            starts: None,
            opened: HashMap::new(),
            awaited: BTreeSet::new(),
            dying: BTreeSet::new(),
            numbers: HashMap::new(),
            acknowledged: BTreeMap::new(),
            done_before: HashMap::new(),
            drained: HashMap::new(),
            is_journal_long: false,
            is_repeating: false,
            in_hand: 0,
            is_room_passing: false,
            first_new: volume.next_inode,
        };
        for (number, session) in image.sessions() {
            image.numbers.insert(number, session.acknowledged);
            if session.state == SessionState::Active {
                image.first_new = volume.next_inode + if planted(Bug::NumberUsedTwice) { 0 } else { UNSTORED_MAX };
                image.awaited.insert(number);
            }
        }
        for key in image.tables.table(TableKind::Replies).keys() {
            if let Ok(TableKey::Reply(session, number)) = TableKey::decode(TableKind::Replies, key) {
                let last = image.numbers.entry(session).or_default();
                *last = (*last).max(number);
            }
        }
        image.done_before = image.numbers.clone();
        image.collect_orphans();
        Ok(image)
    }

    /// Returns all records.
    pub fn tables(&self) -> &MetadataTables {
        &self.tables
    }

    /// Returns all sessions.
    pub fn sessions(&self) -> Vec<(u64, SessionRecord)> {
        let table = self.tables.table(TableKind::Sessions);
        let decoded = table.iter().filter_map(|(key, value)| match TableKey::decode(TableKind::Sessions, key) {
            Ok(TableKey::Session(number)) => Some((number, SessionRecord::decode(value).ok()?)),
            _ => None,
        });
        decoded.collect()
    }

    pub(super) fn session(&self, session: u64) -> Result<SessionRecord> {
        let ended = |words| ServerRefusal { code: RefusalCode::Ended, errno: libc::EIO, words };
        let found = self.tables.get(&TableKey::Session(session));
        let found = found.ok_or_else(|| ended(format!("session {session} is over: it was ended or released")))?;
        let found = SessionRecord::decode(found).map_err(damaged)?;
        if found.state == SessionState::Active {
            return Ok(found);
        }
        let host = &found.host;
        Err(ended(format!(
            "session {session} of host {host} was ended: others needed what it held, and its lease was over"
        )))
    }

    /// Runs a change; undoes it if it fails.
    pub(super) fn attempt<T>(
        &mut self,
        work: impl FnOnce(&mut TableChange<'_>, &mut ImageParts<'_>) -> Result<T>,
    ) -> Result<(T, Vec<Mutation>)> {
        let (mut volume, mut reserve, is_freeing) = (self.volume, self.reserve(), self.is_freeing());
        if self.is_repeating {
            reserve.growth = 0;
        }
        let mut change = TableChange::new(&mut self.tables);
        let mut parts = ImageParts {
            volume: &mut volume,
            free: &mut self.free,
            reserve,
            opened: &self.opened,
            is_grace: !self.awaited.is_empty(),
            is_freeing,
            first_new: self.first_new,
            hash_key: &self.hash_key,
            dying: Vec::new(),
        };
        let done = work(&mut change, &mut parts);
        let bounded = done.and_then(|value| if is_bounded(&change.mutations) { Ok(value) } else { Err(too_large()) });
        match bounded {
            Ok(value) => {
                let dying = std::mem::take(&mut parts.dying);
                self.free.keep();
                volume.used_blocks = volume.blocks.saturating_sub(SPACE_START).saturating_sub(self.free.blocks());
                if volume != self.volume {
                    change.put(&TableKey::Volume, volume.encode());
                }
                let mutations = std::mem::take(&mut change.mutations);
                self.draining.learn_all(&mutations);
                self.volume = volume;
                self.dying.extend(dying);
                Ok((value, mutations))
            }
            Err(failure) => {
                change.undo();
                self.free.undo();
                Err(failure)
            }
        }
    }

    /// Returns the number of a session's next operation.
    pub fn next_number(&self, session: u64) -> u64 {
        self.numbers.get(&session).copied().unwrap_or(0) + 1
    }

    /// Does the next operation of a session. A refusal is stored like any answer and uses up the number. But if the
    /// session has ended, or has too many unacknowledged replies, nothing is stored.
    pub fn operate(
        &mut self,
        stamp: AppendStamp,
        session: u64,
        number: u64,
        operation: &MetadataOperation,
    ) -> (std::result::Result<ServerAnswer, ServerRefusal>, Option<Transaction>) {
        if let Err(failure) = self.session(session).and_then(|record| self.has_room(session, number, &record)) {
            return (Err(failure), None);
        }
        let (answer, mutations) = match self.change(stamp, session, operation) {
            Ok((answer, mutations)) => (Ok(answer), mutations),
            // When space is being freed, the same operation can succeed soon.
            Err(failure) if failure.code == RefusalCode::Full && self.is_freeing() => {
                (Err(ServerRefusal { errno: libc::EAGAIN, ..failure }), Vec::new())
            }
            Err(failure) => (Err(failure), Vec::new()),
        };
        let reply = match &answer {
            Ok(answer) => [&[0][..], &answer.encode_stored()].concat(),
            Err(failure) => [&[1][..], &failure.errno.to_le_bytes(), &[failure.code as u8]].concat(),
        };
        self.numbers.insert(session, number);
        let transaction = Transaction { kind: TransactionKind::Operation, session, number, reply, mutations };
        // The bounds include the reply, which is put together with the mutations.
        let key = TableKey::Reply(session, number);
        if let Ok(value) = (ReplyRecord { status: 0, body: transaction.reply.clone() }).encode() {
            self.tables.apply(&Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(value) });
        }
        (answer, Some(transaction))
    }

    /// Sets the flag in attributes that says whether the inode has extended attributes.
    pub fn flag_xattrs(&self, attributes: &mut InodeAttributes) {
        let first = self.tables.from(&TableKey::Xattr(attributes.number, vec![1])).next();
        let key = first.and_then(|(key, _)| TableKey::decode(TableKind::Xattrs, key).ok());
        if matches!(key, Some(TableKey::Xattr(of, _)) if of == attributes.number) {
            attributes.inode.flags |= HAS_XATTRS;
        }
    }

    /// Whether an operation is refused now, for what the names and attributes are. It changes nothing.
    pub fn refuses(&mut self, stamp: AppendStamp, session: u64, operation: &MetadataOperation) -> bool {
        let mut is_refused = false;
        let undone: Result<((), _)> = self.attempt(|change, parts| {
            is_refused =
                matches!(parts.operate(change, stamp, session, operation), Err(failure) if failure.code == RefusalCode::Posix);
            Err(ServerRefusal { code: RefusalCode::Posix, errno: 0, words: String::new() })
        });
        drop(undone);
        is_refused
    }

    /// Does the next operation of a session again, which another server did and did not store. There was room for it.
    pub fn operate_again(
        &mut self,
        stamp: AppendStamp,
        session: u64,
        number: u64,
        operation: &MetadataOperation,
    ) -> (std::result::Result<ServerAnswer, ServerRefusal>, Option<Transaction>) {
        self.is_repeating = true;
        let done = self.operate(stamp, session, number, operation);
        self.is_repeating = false;
        done
    }

    /// Does the next operation of a session, which has answered it itself. Room for it is reserved.
    pub fn operate_local(
        &mut self,
        stamp: AppendStamp,
        session: u64,
        number: u64,
        operation: &MetadataOperation,
    ) -> (std::result::Result<ServerAnswer, ServerRefusal>, Option<Transaction>) {
        let done = self.operate_again(stamp, session, number, operation);
        if let (MetadataOperation::Create { open: true, .. }, Ok(ServerAnswer::Attributes(made))) = (operation, &done.0)
        {
            self.open(session, made.number);
        }
        done
    }

    /// Gives a session numbers for inodes that it makes itself; nobody else gets them, whatever happens to the session.
    pub(super) fn grant_numbers(&mut self, count: u32) -> Result<QuestionAnswer> {
        let count = count.clamp(1, NUMBERS_MAX);
        let in_hand = self.in_hand + u64::from(count);
        // What the sessions make with their numbers is done also when the disk is full by then.
        let more = self.room_for_numbers(in_hand) - self.kept_for_numbers();
        let (first, mutations) = self.attempt(|_, parts| {
            if parts.free.segments() < parts.reserve.growth + more + 1 {
                return Err(full(parts.is_freeing));
            }
            let first = parts.volume.next_inode.max(parts.first_new);
            let taken = if planted(Bug::NumbersNotTaken) { 0 } else { u64::from(count) };
            parts.volume.next_inode = first + taken;
            Ok(first)
        })?;
        self.in_hand = in_hand;
        Ok(QuestionAnswer { answer: ServerAnswer::Numbers { first, count }, transaction: Some(server(mutations)) })
    }

    fn change(
        &mut self,
        stamp: AppendStamp,
        session: u64,
        operation: &MetadataOperation,
    ) -> Result<(ServerAnswer, Vec<Mutation>)> {
        let ((answer, opened), mutations) = self.attempt(|change, parts| {
            let answer = parts.operate(change, stamp, session, operation)?;
            let opened = match (operation, &answer) {
                (MetadataOperation::Create { open: true, .. }, ServerAnswer::Attributes(made)) => Some(made.number),
                _ => None,
            };
            Ok((answer, opened))
        })?;
        // After a restart the client names the files that it still has open.
        if let Some(inode) = opened.filter(|_| !self.is_repeating) {
            self.open(session, inode);
        }
        Ok((answer, mutations))
    }

    /// Stores that the numbers which sessions may have been given by the earlier server, and not have stored, are used: the
    /// server after this one would give them again.
    pub fn skip_numbers(&mut self) -> Result<Option<Transaction>> {
        let ((), mutations) = self.attempt(|_, parts| {
            parts.volume.next_inode = parts.volume.next_inode.max(parts.first_new);
            Ok(())
        })?;
        Ok((!mutations.is_empty()).then(|| server(mutations)))
    }

    /// Begins a session.
    pub fn begin_session(&mut self, session: &SessionRecord) -> Result<(u64, Transaction)> {
        if self.tables.table(TableKind::Sessions).len() >= SESSIONS_MAX {
            let words = format!("the volume has {SESSIONS_MAX} sessions, one more is not served");
            return Err(ServerRefusal { code: RefusalCode::Limit, errno: libc::EUSERS, words });
        }
        let session = session.clone();
        let (number, mutations) = self.attempt(|change, parts| {
            let number = parts.volume.next_session;
            parts.volume.next_session += 1;
            change.put(&TableKey::Session(number), session.encode().map_err(damaged)?);
            Ok(number)
        })?;
        Ok((number, server(mutations)))
    }

    /// Checks that a session which connects again may continue.
    pub fn resume(&self, session: u64, incarnation: [u8; 16]) -> Result<()> {
        match self.session(session)?.incarnation == incarnation {
            true => Ok(()),
            false => Err(ServerRefusal {
                code: RefusalCode::Ended,
                errno: libc::EIO,
                words: "another mount has this session".to_owned(),
            }),
        }
    }

    /// Checks that a session has not ended.
    ///
    /// *Errors*: `Ended`.
    pub fn is_active(&self, session: u64) -> Result<()> {
        self.session(session).map(drop)
    }

    /// Ends a session because others wait for it: its operations are refused from now on. Its host may still write to
    /// the space that the session was granted, so this space is not reused until [`end_session`](Self::end_session).
    pub fn evict_session(&mut self, session: u64, now_ns: u64) -> Result<Transaction> {
        let mut record = self.session(session)?;
        (record.state, record.ended_ns, record.reason) = (SessionState::Ended, now_ns, REASON_CONFLICT);
        let ((), mutations) = self.attempt(|change, _| {
            change.put(&TableKey::Session(session), record.encode().map_err(damaged)?);
            Ok(())
        })?;
        self.acknowledged.remove(&session);
        self.drained.remove(&session);
        self.close_all(session);
        Ok(server(mutations))
    }

    /// Notes that no lock proves the end of a session any more.
    pub fn set_unproven(&mut self, session: u64) -> Result<Transaction> {
        let record = SessionRecord { boot: 0, ..self.session(session)? };
        let ((), mutations) = self.attempt(|change, _| {
            change.put(&TableKey::Session(session), record.encode().map_err(damaged)?);
            Ok(())
        })?;
        Ok(server(mutations))
    }

    /// Returns the sessions that must say that their cached maps are drained before freed blocks can be used again.
    pub fn holding_back(&self) -> Vec<u64> {
        let Some(newest) = self.draining.newest() else { return Vec::new() };
        let sessions = self.sessions().into_iter().filter(|(_, session)| session.state == SessionState::Active);
        let numbers = sessions.map(|(number, _)| number);
        numbers.filter(|number| self.drained.get(number).copied().unwrap_or(0) < newest).collect()
    }

    /// Ends a session whose host cannot write any more: its space becomes free.
    pub fn end_session(&mut self, session: u64) -> Result<Transaction> {
        if self.tables.get(&TableKey::Session(session)).is_none() {
            let words = format!("there is no session {session}");
            return Err(ServerRefusal { code: RefusalCode::Ended, errno: libc::ENOENT, words });
        }
        let ((), mutations) = self.attempt(|change, parts| {
            change.delete(&TableKey::Session(session));
            let replies: Vec<TableKey> = keys_of(
                change.tables,
                TableKind::Replies,
                &TableKey::Reply(session, 0),
                |key| matches!(key, TableKey::Reply(of, _) if *of == session),
            );
            replies.iter().for_each(|key| change.delete(key));
            for (start, space) in spaces(change.tables)? {
                if space.state == ExtentState::Granted && space.owner == session {
                    change.delete(&TableKey::Space(start));
                    parts.free.add(start, space.blocks);
                }
            }
            Ok(())
        })?;
        self.numbers.remove(&session);
        self.acknowledged.remove(&session);
        self.done_before.remove(&session);
        self.drained.remove(&session);
        self.close_all(session);
        Ok(server(mutations))
    }

    /// Whether space is being freed, or will be by a checkpoint: a request that finds none is repeated.
    pub(super) fn is_freeing(&self) -> bool {
        !self.draining.is_empty() || !self.dying.is_empty() || self.is_journal_long || self.is_room_passing
    }

    /// Notes whether a checkpoint would free segments of the journal.
    pub fn set_journal_long(&mut self, is_long: bool) {
        self.is_journal_long = is_long;
    }

    /// Returns how many blocks are being freed: whoever needs space waits for them. *Units*: blocks.
    pub(super) fn freeing(&self) -> u64 {
        let of_inode =
            |inode: &u64| self.tables.get(&TableKey::Inode(*inode)).and_then(|value| Inode::decode(value).ok());
        let dying = self.dying.iter().take(DYING_COUNTED_MAX).filter_map(of_inode);
        self.draining.blocks() + dying.map(|inode| inode.blocks).sum::<u64>()
    }

    /// Does background work: forgets replies, frees inodes, and frees drained extents.
    pub fn background(&mut self, stamp: AppendStamp) -> Result<Vec<Transaction>> {
        let (mut transactions, mut bytes) = (self.forget()?, 0);
        while let Some(inode) = self.dying.first().copied() {
            let (is_gone, mutations) = self.attempt(|change, parts| parts.free_inode(change, inode, stamp))?;
            if is_gone {
                self.dying.remove(&inode);
            }
            bytes += bytes_of(&mutations);
            transactions.push(server(mutations));
            if bytes >= BACKGROUND_BYTES_MAX || transactions.len() >= 64 {
                break;
            }
        }
        let sessions = self.sessions();
        // A session that has ended cannot commit data any more.
        let active = sessions.iter().filter(|(_, session)| session.state == SessionState::Active);
        let drained = active.map(|(number, _)| self.drained.get(number).copied().unwrap_or(0)).min();
        let drained = drained.unwrap_or(u64::MAX);
        let ready = self.draining.ready(drained, FREED_MAX);
        let ((), mutations) = self.attempt(|change, parts| {
            for start in ready {
                let space =
                    change.tables.get(&TableKey::Space(start)).ok_or_else(|| damaged("a draining extent is gone"))?;
                let space = SpaceRecord::decode(space).map_err(damaged)?;
                change.delete(&TableKey::Space(start));
                parts.free.add(start, space.blocks);
            }
            Ok(())
        })?;
        if !mutations.is_empty() {
            transactions.push(server(mutations));
        }
        Ok(transactions)
    }

    /// Answers a question.
    pub fn ask(&mut self, stamp: AppendStamp, session: u64, question: &MetadataQuestion) -> Result<QuestionAnswer> {
        self.session(session)?;
        self.answer(stamp, session, question)
    }

    /// Returns the attributes of an inode for an answer.
    pub fn attributes(&self, file: FileId) -> Result<InodeAttributes> {
        inode(&self.tables, file).map(|inode| InodeAttributes { number: file.inode, inode })
    }

    /// Returns the numbers of free blocks and of all blocks of the disk.
    pub fn room(&self) -> (u64, u64) {
        (self.free.blocks(), self.volume.blocks)
    }
}

fn bytes_of(mutations: &[Mutation]) -> usize {
    let bytes = |mutation: &Mutation| {
        let value = match &mutation.action {
            MutationAction::Put(value) => value.len(),
            MutationAction::Delete => 0,
        };
        16 + mutation.key.len() + value
    };
    mutations.iter().map(bytes).sum()
}

fn is_bounded(mutations: &[Mutation]) -> bool {
    mutations.len() <= MUTATIONS_MAX && bytes_of(mutations) <= MUTATION_BYTES_MAX
}

fn too_large() -> ServerRefusal {
    let words = "one operation would change too many extents: it is to be done in parts".to_owned();
    ServerRefusal { code: RefusalCode::Limit, errno: libc::EFBIG, words }
}

/// The parts of the state, besides the tables, that an operation changes.
pub(super) struct ImageParts<'a> {
    pub volume: &'a mut VolumeRecord,
    pub free: &'a mut FreeExtents,
    pub reserve: MetadataReserve,
    pub opened: &'a HashMap<u64, BTreeSet<u64>>,
    /// Whether sessions from before a restart may have more inodes open than the server knows.
    pub is_grace: bool,
    pub is_freeing: bool,
    pub first_new: u64,
    pub hash_key: &'a [u8; 16],
    pub dying: Vec<u64>,
}
