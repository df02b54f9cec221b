//! A program on a host: it makes and removes names, and writes, truncates, punches, syncs and reads files, including
//! those of other hosts.
//!
//! Owns: the calls, and the events that are noted about them. Promises: calls that change the same file or directory
//! are made one after another; calls that only look are made at any time, and must return a state of that time. Leaves
//! to others: the losses of hosts and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::Buffer;
use nectary_volume::client::{Error, NewInode, OpenAccess, OpenFile, VolumeClient, WritePosition};
use nectary_volume::protocol::{FileId, ListedName};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::model::{DIRECTORIES, DirectoryChange, MarkedEvents, ModelDirectory, Names, WorkloadEvent};
use super::shape::{FileMutation, PUNCH, RESERVE, RESERVE_BEHIND, ZERO};
use crate::random::SimulationRandom;

/// The maximum number of names of a directory.
const NAMES: u64 = 6;
/// The size of the largest file. *Units*: bytes.
const SIZE_MAX: u64 = 60_000;
/// The length of the longest write. *Units*: bytes.
const WRITE_MAX: u64 = 20_000;
/// The longest pause between two calls. *Units*: milliseconds.
const PAUSE_MS_MAX: u64 = 30;
/// How often a program looks at a name that another session changes at that moment, when there is one.
const PEEK_PERCENT: u64 = 50;
/// More names than a directory has.
const ENTRIES: u32 = 1000;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;

/// The state that all programs share.
pub struct WorkloadBoard {
    /// The events and the model.
    pub story: MarkedEvents,
    /// Files for which the effect of a lost session is not known yet.
    pub unsure_files: BTreeSet<usize>,
    /// Directories for which the effect of a lost session is not known yet.
    pub unsure_directories: BTreeSet<usize>,
    file_turns: BTreeMap<usize, FileTurn>,
    directory_turns: Vec<Arc<Turn<()>>>,
}

impl WorkloadBoard {
    /// Makes a board without unsure files.
    pub fn new(story: MarkedEvents) -> Shared {
        let directory_turns = (0..DIRECTORIES).map(|_| Arc::default()).collect();
        let (unsure_files, unsure_directories) = (BTreeSet::new(), BTreeSet::new());
        let file_turns = BTreeMap::new();
        Arc::new(Mutex::new(WorkloadBoard { story, unsure_files, unsure_directories, file_turns, directory_turns }))
    }
}

/// Held while a file is changed.
type FileTurn = Arc<Turn<()>>;

/// The board, shared by all programs.
pub type Shared = Arc<Mutex<WorkloadBoard>>;

/// Locks and returns the board.
pub fn lock(board: &Shared) -> MutexGuard<'_, WorkloadBoard> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no call changes a file; none does while the result exists.
pub async fn file_turn(board: &Shared, file: usize) -> OwnedMutexGuard<()> {
    let turn = lock(board).file_turns.entry(file).or_default().clone();
    turn.lock_owned().await
}

/// Returns the name with a number.
pub fn name(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Lists all names of a directory, with the files that they name.
///
/// *Errors*: those of the client; a name that no program made.
pub async fn list(client: &VolumeClient, directory: FileId) -> Result<BTreeMap<u64, FileId>, String> {
    let (listed, _) = client.list(directory, 0, ENTRIES).await.map_err(|error| format!("a listing: {error}"))?;
    let mut found = BTreeMap::new();
    for ListedName { name, attributes, .. } in
        listed.into_iter().filter(|listed| !matches!(&listed.name[..], b"." | b".."))
    {
        let number = std::str::from_utf8(&name).ok().and_then(|name| name.parse().ok());
        let Some(number) = number else { return Err(format!("a listing has the name {name:?}")) };
        found.insert(number, attributes.id());
    }
    Ok(found)
}

/// Whether this listing is correct for a directory with these names. A file whose identity is not known matches any
/// identity.
pub fn is_listing(names: &Names, ids: impl Fn(usize) -> Option<FileId>, listing: &BTreeMap<u64, FileId>) -> bool {
    let same = |(name, file): (&u64, &usize)| listing.get(name).is_some_and(|id| ids(*file).is_none_or(|is| is == *id));
    names.len() == listing.len() && names.iter().all(same)
}

/// Reads all bytes of a file.
pub async fn read_whole(open: &OpenFile) -> Result<Vec<u8>, Error> {
    // This length is larger than any file.
    Ok(open.read(0, 1 << 17).await?.to_vec())
}

/// A program.
pub struct WorkloadProgram {
    board: Shared,
    client: VolumeClient,
    session: u64,
    random: SimulationRandom,
    open: BTreeMap<usize, OpenFile>,
}

/// A look at a directory: what it may show.
#[derive(Clone, Copy)]
struct DirectoryLook {
    number: usize,
    id: FileId,
    cuts: u64,
    /// The oldest state.
    from: usize,
}

impl WorkloadProgram {
    /// Makes a program.
    pub fn new(board: Shared, client: VolumeClient, session: u64, seed: u64) -> WorkloadProgram {
        WorkloadProgram { board, client, session, random: SimulationRandom::new(seed), open: BTreeMap::new() }
    }

    /// Makes this many calls, with pauses between them.
    pub async fn run(mut self, calls: u64) {
        for _ in 0..calls {
            tokio::time::sleep(Duration::from_millis(self.random.below(PAUSE_MS_MAX))).await;
            let changing = self.changing().filter(|_| self.random.chance(PEEK_PERCENT));
            let done = match changing {
                Some((directory, name)) => self.look_up(directory, name).await,
                None => self.call().await,
            };
            if let Err(what) = done {
                let session = self.session;
                return lock(&self.board).story.is_wrong(format!("session {session}: {what}"));
            }
        }
        for (_, open) in std::mem::take(&mut self.open) {
            open.close().await;
        }
    }

    /// Makes one call of any kind.
    async fn call(&mut self) -> Result<(), String> {
        match self.random.below(100) {
            0..=24 => self.change_names().await,
            25..=64 => self.change_file().await,
            65..=77 => self.sync().await,
            78..=88 => self.read().await,
            89..=93 => self.stat().await,
            94..=95 => self.look().await,
            96..=97 => {
                let directory = self.random.below(DIRECTORIES as u64) as usize;
                let name = self.random.below(NAMES);
                self.look_up(directory, name).await
            }
            _ => {
                if let Some((_, open)) = self.open.pop_first() {
                    open.close().await;
                }
                Ok(())
            }
        }
    }

    /// The turn to change directories.
    async fn directory_turns(&self, directories: &BTreeSet<usize>) -> Vec<OwnedMutexGuard<()>> {
        let turns: Vec<Arc<Turn<()>>> = {
            let board = lock(&self.board);
            directories.iter().map(|directory| board.directory_turns[*directory].clone()).collect()
        };
        let mut taken = Vec::new();
        for turn in turns {
            taken.push(turn.lock_owned().await);
        }
        taken
    }

    async fn change_names(&mut self) -> Result<(), String> {
        let (from, to) =
            (self.random.below(DIRECTORIES as u64) as usize, self.random.below(DIRECTORIES as u64) as usize);
        let (old, new) = (self.random.below(NAMES), self.random.below(NAMES));
        let kind = self.random.below(100);
        let directories: BTreeSet<usize> = if kind < 60 { [from].into() } else { [from, to].into() };
        let _turns = self.directory_turns(&directories).await;
        let (ids, here, there, first_id) = {
            let board = lock(&self.board);
            if directories.iter().any(|directory| board.unsure_directories.contains(directory)) {
                return Ok(());
            }
            let model = &board.story.model;
            let here = model.directories[from].names().get(&old).copied();
            let there = model.directories[to].names().get(&new).copied();
            let first_id = here.and_then(|file| model.files[file].id);
            ([model.directories[from].id, model.directories[to].id], here, there, first_id)
        };
        let change = |directory, name, file| DirectoryChange { directory, name, file };
        let client = self.client.clone();
        let (old_name, new_name) = (name(old), name(new));
        match (kind, here) {
            (0..=59, None) => {
                let file = lock(&self.board).story.model.files.len();
                let call = self.begin(vec![change(from, old, Some(file))], Some(file));
                let made = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
                let made = client.create_open(ids[0], &old_name, made).await;
                let (attributes, open) = made.map_err(|error| format!("create: {error}"))?;
                self.open.insert(file, open);
                lock(&self.board).story.note(WorkloadEvent::Made { file, id: attributes.id() });
                self.end(call);
            }
            (0..=59, Some(_)) if kind < 25 => {
                let call = self.begin(vec![change(from, old, None)], None);
                client.unlink(ids[0], &old_name, false).await.map_err(|error| format!("unlink: {error}"))?;
                self.end(call);
            }
            (60..=74, Some(file)) if there.is_none() => {
                let Some(id) = first_id else { return Ok(()) };
                let call = self.begin(vec![change(to, new, Some(file))], None);
                client.link(id, ids[1], &new_name).await.map_err(|error| format!("link: {error}"))?;
                self.end(call);
            }
            // Renaming a name to another name of the same file does nothing, so it is not tried.
            (60.., Some(file)) if there != Some(file) => {
                let exchanged = there.filter(|_| kind >= 90);
                let changes = vec![change(from, old, exchanged), change(to, new, Some(file))];
                let call = self.begin(changes, None);
                let flags = if exchanged.is_some() { EXCHANGE } else { 0 };
                let renamed = client.rename((ids[0], &old_name), (ids[1], &new_name), flags).await;
                renamed.map_err(|error| format!("rename: {error}"))?;
                self.end(call);
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&self, changes: Vec<DirectoryChange>, makes: Option<usize>) -> u64 {
        let mut board = lock(&self.board);
        let call = board.story.call();
        board.story.note(WorkloadEvent::NamesBegun { session: self.session, call, changes, makes });
        call
    }

    fn end(&self, call: u64) {
        lock(&self.board).story.note(WorkloadEvent::NamesEnded { call });
    }

    /// Returns a random file with a name that no lost session may have changed, if there is one.
    fn pick(&mut self) -> Option<(usize, FileId)> {
        let board = lock(&self.board);
        let named = board.story.model.named();
        let file = *named.get(self.random.below(named.len() as u64) as usize)?;
        let id = board.story.model.files[file].id.filter(|_| !board.unsure_files.contains(&file))?;
        Some((file, id))
    }

    /// Opens a file, if it still has a name.
    async fn handle(&mut self, file: usize, id: FileId) -> Result<Option<OpenFile>, String> {
        if let Some(open) = self.open.remove(&file) {
            return Ok(Some(open));
        }
        let is_direct = self.random.chance(30);
        match self.client.open(id, OpenAccess::Both, is_direct).await {
            Ok(open) => Ok(Some(open)),
            Err(_) if lock(&self.board).story.model.links(file) == 0 => Ok(None),
            Err(error) => Err(format!("open of file {file}: {error}")),
        }
    }

    async fn change_file(&mut self) -> Result<(), String> {
        let Some((file, id)) = self.pick() else { return Ok(()) };
        let _turn = file_turn(&self.board, file).await;
        let Some(open) = self.handle(file, id).await? else { return Ok(()) };
        if let Some(shape) = self.begin_change(file) {
            let (what, done) = match shape {
                FileMutation::Write(at, bytes) => {
                    ("a write", open.write(at, vec![Buffer::copy_of(&bytes)]).await.map(drop))
                }
                FileMutation::Synced(at, bytes) => {
                    let written = open.write_synced(at, vec![Buffer::copy_of(&bytes)]).await;
                    ("a synced write", written.map(drop))
                }
                FileMutation::Truncate(size) => ("a truncation", open.truncate(size).await),
                FileMutation::Allocate(offset, length, mode) => {
                    ("fallocate", open.allocate(offset, length, mode).await)
                }
            };
            done.map_err(|error| format!("{what} of file {file}: {error}"))?;
            lock(&self.board).story.note(WorkloadEvent::FileEnded { file });
        }
        self.open.insert(file, open);
        Ok(())
    }

    /// Chooses a change of a file, and notes its begin.
    fn begin_change(&mut self, file: usize) -> Option<FileMutation> {
        let mut board = lock(&self.board);
        if board.unsure_files.contains(&file) {
            return None;
        }
        let known = &board.story.model.files[file];
        let size = known.states[known.ended].bytes.len() as u64;
        let random = &mut self.random;
        // Successive writes differ with high probability, and no byte is zero.
        let fresh = (random.bits() % 255 + 1) as u8;
        let mut offset = random.below(SIZE_MAX);
        if random.chance(40) {
            offset &= !4095;
        }
        let length = 1 + random.below(WRITE_MAX.min(SIZE_MAX - offset));
        let kind = random.below(100);
        let shape = match kind {
            0..=64 => {
                let at = if kind < 12 && size + length <= SIZE_MAX {
                    WritePosition::End
                } else {
                    WritePosition::Offset(offset)
                };
                let written: Vec<u8> = (0..length).map(|at| (u64::from(fresh) + at / 64) as u8 | 1).collect();
                if kind.is_multiple_of(8) {
                    FileMutation::Synced(at, Arc::new(written))
                } else {
                    FileMutation::Write(at, Arc::new(written))
                }
            }
            65..=79 => FileMutation::Truncate(offset),
            80..=84 => FileMutation::Allocate(offset, length, RESERVE),
            85..=89 => FileMutation::Allocate(offset, length, RESERVE_BEHIND),
            _ => FileMutation::Allocate(offset, length, if kind < 95 { PUNCH } else { ZERO }),
        };
        board.story.note(WorkloadEvent::FileBegun { session: self.session, file, shape: shape.clone() });
        Some(shape)
    }

    /// Syncs a file that this program has open.
    async fn sync(&mut self) -> Result<(), String> {
        let files: Vec<usize> = self.open.keys().copied().collect();
        let Some(file) = files.get(self.random.below(files.len() as u64) as usize).copied() else { return Ok(()) };
        let (cuts, state) = {
            let board = lock(&self.board);
            let known = &board.story.model.files[file];
            let own = (1..=known.ended).rev().find(|state| known.states[*state].session == self.session);
            (known.cuts, own)
        };
        let open = &self.open[&file];
        // Closing a descriptor makes the same promise.
        let synced = if self.random.chance(70) { open.sync().await } else { open.flush().await };
        synced.map_err(|error| format!("fsync of file {file}: {error}"))?;
        let mut board = lock(&self.board);
        if let Some(state) = state.filter(|_| board.story.model.files[file].cuts == cuts) {
            board.story.note(WorkloadEvent::FileDurable { file, state });
        }
        Ok(())
    }

    /// Returns the bounds of what a later look at the file may show: the number of its cuts, and the oldest state.
    fn since_now(&self, file: usize) -> (u64, usize) {
        let board = lock(&self.board);
        let known = &board.story.model.files[file];
        (known.cuts, known.ended)
    }

    /// Checks and notes what a look at a file showed.
    fn saw(&self, file: usize, from: (u64, usize), is: impl Fn(&[u8]) -> bool, what: &str) -> Result<(), String> {
        let mut board = lock(&self.board);
        let known = &board.story.model.files[file];
        // The writes of a lost session may be gone since then.
        if known.cuts != from.0 || board.unsure_files.contains(&file) {
            return Ok(());
        }
        let states = from.1..known.states.len();
        let Some(state) = states.clone().find(|state| is(&known.states[*state].bytes)) else {
            return Err(format!("file {file}: {what} is of none of the states {states:?}"));
        };
        if let Some(state) = known.made_by_others(state, self.session) {
            board.story.note(WorkloadEvent::FileDurable { file, state });
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), String> {
        let Some((file, id)) = self.pick() else { return Ok(()) };
        let Some(open) = self.handle(file, id).await? else { return Ok(()) };
        let from = self.since_now(file);
        let bytes = read_whole(&open).await.map_err(|error| format!("a read of file {file}: {error}"))?;
        self.open.insert(file, open);
        self.saw(file, from, |state| state == bytes, "what was read")
    }

    async fn stat(&mut self) -> Result<(), String> {
        let Some((file, id)) = self.pick() else { return Ok(()) };
        let from = self.since_now(file);
        match self.client.attributes(id).await {
            Ok(found) => self.saw(file, from, |state| state.len() as u64 == found.inode.size, "the size"),
            Err(_) if lock(&self.board).story.model.links(file) == 0 => Ok(()),
            Err(error) => Err(format!("stat of file {file}: {error}")),
        }
    }

    /// A name that a call of another session changes now, if there is one.
    fn changing(&mut self) -> Option<(usize, u64)> {
        let board = lock(&self.board);
        let others = board.story.model.pending.iter().filter(|pending| pending.session != self.session);
        let changes: Vec<&DirectoryChange> = others.flat_map(|pending| &pending.changes).collect();
        let change = changes.get(self.random.below(changes.len() as u64) as usize)?;
        Some((change.directory, change.name))
    }

    /// What a look at a directory may show from now on.
    fn names_from_now(&self, number: usize) -> DirectoryLook {
        let board = lock(&self.board);
        let ModelDirectory { id, cuts, ended, .. } = board.story.model.directories[number];
        DirectoryLook { number, id, cuts, from: ended }
    }

    /// Lists a directory.
    async fn look(&mut self) -> Result<(), String> {
        let number = self.random.below(DIRECTORIES as u64) as usize;
        let look = self.names_from_now(number);
        let listing = list(&self.client, look.id).await?;
        self.saw_names(look, |names, ids| is_listing(names, ids, &listing), || format!("{listing:?}"))
    }

    /// Looks a name up.
    async fn look_up(&mut self, directory: usize, number: u64) -> Result<(), String> {
        let look = self.names_from_now(directory);
        let found = match self.client.look_up(look.id, &name(number)).await {
            Ok(found) => Some(found.id()),
            Err(error) if error.errno() == libc::ENOENT => None,
            Err(error) => return Err(format!("a look-up of {number} in directory {directory}: {error}")),
        };
        let is_found = |names: &Names, ids: &dyn Fn(usize) -> Option<FileId>| match (names.get(&number), found) {
            (Some(file), Some(found)) => ids(*file).is_none_or(|id| id == found),
            (file, found) => file.is_none() && found.is_none(),
        };
        self.saw_names(look, is_found, || format!("{number}: {found:?}"))
    }

    /// A look at a directory showed something, which some of its states have.
    fn saw_names(
        &self,
        look: DirectoryLook,
        is: impl Fn(&Names, &dyn Fn(usize) -> Option<FileId>) -> bool,
        words: impl FnOnce() -> String,
    ) -> Result<(), String> {
        let mut board = lock(&self.board);
        let (model, number) = (&board.story.model, look.number);
        let directory = &model.directories[number];
        if directory.cuts != look.cuts || board.unsure_directories.contains(&number) {
            return Ok(());
        }
        let ids = |file: usize| model.files[file].id;
        let seen = (look.from..directory.states.len()).find(|state| is(&directory.states[*state], &ids));
        let Some(seen) = seen else {
            return Err(format!("directory {number}: {} is of none of its states from {} on", words(), look.from));
        };
        if seen > directory.ended {
            let pending = model.pending.iter().find(|pending| pending.directories().contains(&number));
            let call = pending.map_or(0, |pending| pending.call);
            board.story.note(WorkloadEvent::NamesSeen { call });
        }
        Ok(())
    }
}
