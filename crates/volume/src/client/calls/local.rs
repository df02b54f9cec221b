//! Names that the session makes and removes itself, under a directory's token at level *write*.
//!
//! Owns: which directories the session holds, which inodes go along with them, inode numbers in hand, and when an
//! operation may be answered without the server. Promises:
//! 1. Such an operation is sent at once, in the order of the operations, and kept until it is durable: a new server gets
//!    it again like one that was answered early.
//! 2. It is answered only if no operation of the session is without an answer: so what is kept always comes before what is
//!    not answered, also at a new server.
//! 3. A return is sent behind all operations that were answered under the token, and none is answered under it after that.
//! 4. The data of what the session has made there may be written before its token is granted
//!    ([`SharedSession::acquire_ahead`]): the request for the token, too, is sent before the return.
//!
//! All this happens under the lock of the session's state, and waits for nothing. Leaves to others: the effect of the
//! operations (`metadata::effects`), and what is kept of it (`looks`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;

use tokio::sync::oneshot;

use super::{CallAnswer, CallShare, PendingCall, ServerEvent, SessionCalls, SharedSession, wall_ns};
use crate::format::{HAS_XATTRS, Inode, LOST_TO_OTHERS};
use crate::metadata::effects::{self, MadeInode};
use crate::planted::{Bug, planted};
use crate::protocol::{
    AnswerTerms, FileId, InodeAttributes, MayKeep, MetadataOperation, MetadataQuestion, ServerRefusal, Token,
    TokenAspect, TokenGrant, VolumeMessage,
};
use crate::tokens::{WRITE, level};

use super::super::looks::{CachedLookup, LookupCache};
use super::super::names::NewInode;

/// The maximum number of operations that are answered and not known to be durable, of any kind, and of messages without
/// an answer which say that a file is open. With the calls they stay within the protocol's bound for a connection.
const UNSTORED_MAX: usize = 512;
/// A link with a longer target is made at the server: the room for what a session makes itself is kept beforehand.
/// *Units*: bytes.
const TARGET_BYTES_MAX: usize = crate::metadata::LOCAL_TARGET_BYTES_MAX;
/// If one of them is not durable after this time, no more are answered. *Units*: nanoseconds.
const UNSTORED_NS_MAX: u64 = 1_000_000_000;
/// More inode numbers are requested when fewer are left.
const NUMBERS_MIN: u64 = 256;
/// The number that is requested.
pub(in crate::client) const NUMBERS_WANTED: u32 = 512;
/// The maximum number of inodes that go along with one directory here.
const MADE_MAX: usize = 1 << 16;
/// The maximum number of files that are open here and of which the server is not told.
const UNTOLD_MAX: usize = 64;
/// By how much the server's clock may seem to be ahead of what this host knows of it. *Units*: nanoseconds.
const AHEAD_NS_MAX: i64 = 1_000_000_000;

/// A directory that the session holds.
#[derive(Debug)]
struct HeldDirectory {
    sequence: u64,
    /// The inodes that the session has made there itself: nobody else knows them.
    made: HashSet<u64>,
}

/// What the session may do itself.
#[derive(Debug, Default)]
pub(in crate::client) struct LocalNames {
    held: HashMap<FileId, HeldDirectory>,
    numbers: VecDeque<Range<u64>>,
    /// Whether more numbers are requested.
    is_asking: bool,
    /// The newest time that the server gave for a change. *Units*: nanoseconds since 1970.
    newest_ns: i64,
    /// Returns without an answer, by request.
    returning: BTreeMap<u64, TokenGrant>,
    /// Files that the session has made and has open, with their directories: nobody else can remove their names, so the
    /// server need not know that they are open.
    untold: HashMap<u64, (FileId, FileId)>,
    /// The messages that tell it nevertheless and have no answer, by request.
    telling: BTreeMap<u64, FileId>,
}

impl LocalNames {
    /// Notes a time that the server has shown.
    pub fn note_time(&mut self, now_ns: i64) {
        self.newest_ns = self.newest_ns.max(now_ns);
    }

    /// Adds inode numbers that the server has granted.
    pub fn add_numbers(&mut self, first: u64, count: u32) {
        self.numbers.push_back(first..first.saturating_add(count.into()));
    }

    fn numbers_left(&self) -> u64 {
        self.numbers.iter().map(|range| range.end - range.start).sum()
    }

    fn take_number(&mut self) -> Option<u64> {
        let range = self.numbers.front_mut()?;
        let number = range.start;
        // A planted bug: the number is used again.
        range.start += u64::from(!planted(Bug::NumberTwice));
        if range.is_empty() {
            self.numbers.pop_front();
        }
        Some(number)
    }

    /// Whether more numbers should be requested; if so, they count as requested until [`asked`](Self::asked).
    fn wants_numbers(&mut self) -> bool {
        let wants = !self.is_asking && self.numbers_left() < NUMBERS_MIN;
        self.is_asking |= wants;
        wants
    }

    /// Notes that the request for numbers has ended.
    pub fn asked(&mut self) {
        self.is_asking = false;
    }

    /// Drops everything: a new server does not know of it.
    pub fn clear(&mut self) {
        self.held.clear();
        self.numbers.clear();
        self.returning.clear();
        // A new server is told of all open files.
        self.untold.clear();
        self.telling.clear();
    }

    /// Notes the answer to a return, or to the message that a file is open. Returns whether it is one.
    pub fn has_ended(&mut self, request: u64) -> bool {
        self.returning.remove(&request).is_some() || self.telling.remove(&request).is_some()
    }

    /// Notes that a file is closed. Returns whether the server was not told that it was open.
    pub fn close(&mut self, file: FileId) -> bool {
        self.untold.remove(&file.inode).is_some()
    }

    /// Returns the number of directories that the session holds.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// The outcome of an attempt to answer an operation without the server.
#[derive(Debug)]
pub(in crate::client) enum LocalOutcome<T> {
    Done(T),
    /// It may be possible soon: once operations have their answers, or are durable.
    Later,
    /// The server must do it.
    AtServer,
}

/// A new time for what is done now, which is not before any that the server has shown.
fn time_of(state: &SessionCalls, before_ns: i64) -> i64 {
    let now_ns = wall_ns().saturating_add(state.clock_offset_ns);
    let shown_ns = before_ns.max(state.local.newest_ns);
    if shown_ns.saturating_sub(now_ns) > AHEAD_NS_MAX { now_ns } else { now_ns.max(shown_ns) }
}

impl SessionCalls {
    /// Whether an operation in a directory may be answered without the server, and if not, whether it may be soon.
    fn may_answer(&self, directory: FileId, elapsed_ns: u64) -> LocalOutcome<()> {
        let is_connected = self.bulk.is_some() && !self.refusals.is_careful() && self.figures.ended.is_none();
        if !is_connected || self.is_leaving || !self.local.held.contains_key(&directory) {
            return LocalOutcome::AtServer;
        }
        let is_waiting = self.waiting.values().any(|waiting| waiting.number.is_some());
        let is_old = self.unstored.oldest_local_ns().is_some_and(|at| elapsed_ns.saturating_sub(at) > UNSTORED_NS_MAX);
        let is_full = self.unstored.count() + self.local.telling.len() >= UNSTORED_MAX;
        if is_waiting || is_old || is_full || !self.has_room() {
            return LocalOutcome::Later;
        }
        LocalOutcome::Done(())
    }

    /// Returns what a new connection to the same server gets first, by request: what the session did itself or was answered
    /// early, which files are open, returns, and requests for tokens that are used ahead. A new server gets the first and the
    /// last of these.
    pub fn first_again(&self) -> BTreeMap<u64, VolumeMessage> {
        let open = |file: &FileId| VolumeMessage::Question {
            session: self.session,
            question: MetadataQuestion::Open { file: *file, level: level::NONE, is_direct: false },
        };
        let back = |held: &TokenGrant| VolumeMessage::Return { held: *held, is_lost: false };
        let telling = self.local.telling.iter().map(|(request, file)| (*request, open(file)));
        let returning = self.local.returning.iter().map(|(request, held)| (*request, back(held)));
        let ahead = self.waiting.iter().filter(|(_, waiting)| waiting.is_ahead);
        let ahead = ahead.map(|(request, waiting)| (*request, waiting.message.clone()));
        self.unstored.messages(self.epoch).into_iter().chain(telling).chain(returning).chain(ahead).collect()
    }

    /// Tells the server which of these files are open, before their names may be removed.
    pub fn tell_open(&mut self, is_meant: impl Fn(FileId, FileId) -> bool) {
        let untold = &self.local.untold;
        let meant: Vec<FileId> =
            untold.values().filter(|(file, directory)| is_meant(*file, *directory)).map(|(file, _)| *file).collect();
        for file in meant {
            self.local.untold.remove(&file.inode);
            let request = self.next_request;
            self.next_request += 1;
            self.local.telling.insert(request, file);
            if let Some(bulk) = &self.bulk {
                let question = MetadataQuestion::Open { file, level: level::NONE, is_direct: false };
                let _ =
                    bulk.send(VolumeMessage::Question { session: self.session, question }.encode(request, self.epoch));
            }
        }
    }

    /// Sends an operation that is answered here, and keeps it until it is durable.
    fn send_local(&mut self, operation: &MetadataOperation, now_ns: i64, elapsed_ns: u64) {
        let (number, request) = (self.next_number, self.next_request);
        (self.next_number, self.next_request) = (number + 1, request + 1);
        self.open_numbers.insert(number);
        let (session, operation) = (self.session, operation.clone());
        let message = VolumeMessage::Operation { session, number, terms: AnswerTerms::Local { now_ns }, operation };
        if let Some(bulk) = &self.bulk {
            let _ = bulk.send(message.encode(request, self.epoch));
        }
        self.unstored.keep_local(request, number, message, (self.epoch, elapsed_ns));
        self.figures.operations += 1;
        self.figures.local += 1;
    }
}

impl SharedSession {
    /// Whether an operation in a directory may be answered without the server.
    fn may_be_local(&self, state: &SessionCalls, directory: FileId) -> LocalOutcome<()> {
        let is_leased = self.may_begin() || planted(Bug::LocalUnleased);
        if self.options.are_names_synced || !self.options.are_names_local || !is_leased || !self.is_newest(state.epoch)
        {
            return LocalOutcome::AtServer;
        }
        if !state.has_room() {
            // The control connection tells the server what is acknowledged.
            self.nudge.notify_one();
        }
        state.may_answer(directory, self.elapsed_ns())
    }

    /// Makes an inode with a name. The caller must check afterwards that the lease still holds.
    pub fn create_locally(
        &self,
        directory: FileId,
        name: &[u8],
        new: &NewInode,
        open: bool,
    ) -> LocalOutcome<InodeAttributes> {
        let mut state = self.state();
        match self.may_be_local(&state, directory) {
            LocalOutcome::Done(()) => {}
            LocalOutcome::Later => return LocalOutcome::Later,
            LocalOutcome::AtServer => return LocalOutcome::AtServer,
        }
        let kind = new.mode & libc::S_IFMT;
        let (Some(parent), Some(CachedLookup::Absent)) =
            (self.looks.attributes(directory), self.looks.name(directory, name))
        else {
            return LocalOutcome::AtServer;
        };
        // A default access control list is an extended attribute of the directory.
        let is_plain = parent.inode.links > 0 && parent.inode.flags & HAS_XATTRS == 0;
        // The server refuses these names.
        let is_name = !name.iter().any(|byte| matches!(byte, 0 | b'/'));
        if kind == libc::S_IFDIR || !is_plain || !is_name || new.target.len() > TARGET_BYTES_MAX {
            return LocalOutcome::AtServer;
        }
        let number = state.local.take_number();
        if state.local.wants_numbers() {
            let _ = self.events.send(ServerEvent::NumbersWanted);
        }
        let Some(number) = number else { return LocalOutcome::AtServer };
        let now_ns = time_of(&state, parent.inode.times_ns[2]);
        let (mode, owner, group, device) = (masked(new), new.owner, new.group, new.device);
        let (is_inline, is_nameless) = (true, false);
        let made = MadeInode { mode, owner, group, device, target: &new.target, is_inline, is_nameless };
        let mut made = effects::made(made, (directory.inode, &parent.inode), now_ns);
        effects::stored(&mut made);
        let made = InodeAttributes { number, inode: made };
        let is_untold = open && state.local.untold.len() < UNTOLD_MAX;
        let mut operation = new.clone().operation(directory, name, open && !is_untold);
        if let MetadataOperation::Create { inode, .. } = &mut operation {
            *inode = number;
        }
        state.send_local(&operation, now_ns, self.elapsed_ns());
        if is_untold {
            state.local.untold.insert(number, (made.id(), directory));
        }
        if let Some(held) = state.local.held.get_mut(&directory).filter(|held| held.made.len() < MADE_MAX) {
            held.made.insert(number);
        }
        self.keep_local(&operation, (parent, 1), now_ns, Some(&made));
        LocalOutcome::Done(made)
    }

    /// Removes a name, of an inode that goes along with the directory; returns the inode. The caller must check afterwards
    /// that the lease still holds.
    pub fn unlink_locally(&self, directory: FileId, name: &[u8]) -> LocalOutcome<InodeAttributes> {
        let mut state = self.state();
        match self.may_be_local(&state, directory) {
            LocalOutcome::Done(()) => {}
            LocalOutcome::Later => return LocalOutcome::Later,
            LocalOutcome::AtServer => return LocalOutcome::AtServer,
        }
        let (Some(parent), Some(CachedLookup::Present(found))) =
            (self.looks.attributes(directory), self.looks.name(directory, name))
        else {
            return LocalOutcome::AtServer;
        };
        let (mut removed, is_directory) = (*found, |inode: &Inode| inode.mode & libc::S_IFMT == libc::S_IFDIR);
        let goes_along = state.local.held.get(&directory).is_some_and(|held| held.made.contains(&removed.number));
        let is_own = goes_along || planted(Bug::OthersUnlinked);
        if is_directory(&removed.inode) || removed.inode.links != 1 || !is_own || parent.inode.links == 0 {
            return LocalOutcome::AtServer;
        }
        let now_ns = time_of(&state, parent.inode.times_ns[2].max(removed.inode.times_ns[2]));
        effects::lose_name(&mut removed.inode, now_ns);
        effects::stored(&mut removed.inode);
        // It goes along with the directory, so nobody else knows it.
        removed.inode.flags |= LOST_TO_OTHERS;
        let expected = removed.number;
        state.tell_open(|file, _| file.inode == expected);
        let operation = MetadataOperation::Unlink { directory, name: name.to_vec(), is_directory: false, expected };
        state.send_local(&operation, now_ns, self.elapsed_ns());
        if let Some(held) = state.local.held.get_mut(&directory) {
            held.made.remove(&removed.number);
        }
        self.keep_local(&operation, (parent, -1), now_ns, None);
        LocalOutcome::Done(removed)
    }

    /// Requests the token of a file's data at level *write* if the server will grant it before anybody else can have it: the
    /// session has made the file in a directory that it still holds, so nobody else knows the file, and the request comes
    /// before the return of the directory. The token may be used from now on. *Returns*: the receiver of the grant.
    pub fn acquire_ahead(&self, file: FileId) -> Option<oneshot::Receiver<Result<CallAnswer, ServerRefusal>>> {
        let turn = self.turns[CallShare::Tokens as usize].clone().try_acquire_owned().ok()?;
        let mut state = self.state();
        let is_connected = state.bulk.is_some() && !state.refusals.is_careful() && state.figures.ended.is_none();
        if !is_connected || state.is_leaving || !self.may_begin() || !self.is_newest(state.epoch) {
            return None;
        }
        if !state.local.held.values().any(|held| held.made.contains(&file.inode)) {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        if planted(Bug::AheadUnsaid) {
            std::mem::forget(reply);
            return Some(answer);
        }
        let token = Token { object: file, what: TokenAspect::Data };
        let message = VolumeMessage::Acquire { token, level: level::WRITE, waits: true };
        let request = state.next_request;
        state.next_request += 1;
        if let Some(bulk) = &state.bulk {
            let _ = bulk.send(message.encode(request, state.epoch));
        }
        let call = PendingCall { is_ahead: true, ..PendingCall::new(message, CallShare::Tokens, reply, turn) };
        state.waiting.insert(request, call);
        Some(answer)
    }

    /// Keeps what an operation has left, which was answered here. The caller holds the lock of the state, so no other
    /// operation of the session begins meanwhile.
    fn keep_local(
        &self,
        operation: &MetadataOperation,
        (mut parent, names): (InodeAttributes, i64),
        now_ns: i64,
        made: Option<&InodeAttributes>,
    ) {
        effects::touch(&mut parent.inode, (names, 0), now_ns);
        effects::stored(&mut parent.inode);
        let directories = vec![parent.id()];
        let attributes = std::iter::once(parent).chain(made.cloned()).collect();
        let changing = LookupCache::changing(&self.looks, operation);
        changing.end_with(MayKeep { directories, attributes }, made.map(InodeAttributes::id));
    }

    /// Requests the first inode numbers from a server: a session without numbers gets no directories.
    pub fn want_numbers(&self) {
        let is_local = self.options.are_names_local && !self.options.are_names_synced;
        if is_local && self.state().local.wants_numbers() {
            let _ = self.events.send(ServerEvent::NumbersWanted);
        }
    }

    /// Handles a directory that the server gives to the session at level *write*.
    pub fn got_directory(&self, held: TokenGrant, epoch: u64) {
        let mut state = self.state();
        if held.level != WRITE || held.token.what != TokenAspect::Directory || state.epoch != epoch {
            return;
        }
        let known = state
            .local
            .held
            .entry(held.token.object)
            .or_insert_with(|| HeldDirectory { sequence: held.sequence, made: HashSet::new() });
        if known.sequence < held.sequence {
            *known = HeldDirectory { sequence: held.sequence, made: HashSet::new() };
        }
        if state.local.wants_numbers() {
            let _ = self.events.send(ServerEvent::NumbersWanted);
        }
    }

    /// Handles the recall of a directory: it is returned behind everything that was answered under it. Waits for nothing.
    pub fn return_directory(&self, recalled: TokenGrant) {
        let mut state = self.state();
        let object = recalled.token.object;
        if state.local.held.get(&object).is_some_and(|held| held.sequence <= recalled.sequence) {
            state.local.held.remove(&object);
        }
        let held = TokenGrant { level: level::READ, ..recalled };
        // A recall that is repeated needs no second return.
        if state.local.returning.values().any(|returning| *returning == held) {
            return;
        }
        state.tell_open(|_, directory| directory == object);
        let request = state.next_request;
        state.next_request += 1;
        state.local.returning.insert(request, held);
        let message = VolumeMessage::Return { held, is_lost: false };
        let way = if planted(Bug::ReturnOvertakes) { &state.control } else { &state.bulk };
        if let Some(way) = way {
            let _ = way.send(message.encode(request, state.epoch));
        }
        drop(state);
        self.progressed.notify_waiters();
    }
}

/// Whether a recall is of a directory at level *write*.
pub(in crate::client) fn is_of_write(recalled: &TokenGrant) -> bool {
    matches!(recalled, TokenGrant { token: Token { what: TokenAspect::Directory, .. }, level: level::READ, .. })
}

/// The mode of a new inode whose directory has no default access control list.
fn masked(new: &NewInode) -> u32 {
    match new.mode & libc::S_IFMT {
        libc::S_IFLNK => new.mode,
        _ => new.mode & !(new.umask & 0o777),
    }
}

#[cfg(test)]
mod tests;
