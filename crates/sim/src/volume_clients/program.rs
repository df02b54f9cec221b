//! What a program on a host does: names come and go, files are written, cut, punched, synced and read, also those of
//! other hosts.
//!
//! Owns: the calls, and what is noted of them. Promises: calls that change the same file or directory come one after
//! another; calls that look come at any time, and what they return must be some state of that time. Leaves to others:
//! losses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::Buffer;
use nectary_volume::client::{At, Client, Error, New, OpenFile, Opening};
use nectary_volume::protocol::{FileId, Listed};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::model::{Change, DIRECTORIES, Directory, Event, Names, Story};
use crate::random::Random;

/// Names of a directory, at most.
const NAMES: u64 = 6;
/// The largest file. *Units*: bytes.
const SIZE_MAX: u64 = 60_000;
/// The longest write. *Units*: bytes.
const WRITE_MAX: u64 = 20_000;
/// The longest pause between two calls. *Units*: milliseconds.
const PAUSE_MS_MAX: u64 = 30;
/// How often a program looks at a name that another session changes at that moment, when there is one.
const PEEK_PERCENT: u64 = 50;
/// More names than a directory has.
const ENTRIES: u32 = 1000;
const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;

/// What all programs share.
pub struct Board {
    /// What happened.
    pub story: Story,
    /// Files of which it is not known what a lost session did to them.
    pub unsure_files: BTreeSet<usize>,
    /// Directories of this kind.
    pub unsure_directories: BTreeSet<usize>,
    file_turns: BTreeMap<usize, Arc<Turn<()>>>,
    directory_turns: Vec<Arc<Turn<()>>>,
}

impl Board {
    /// Nothing happened yet.
    pub fn new(story: Story) -> Shared {
        let directory_turns = (0..DIRECTORIES).map(|_| Arc::default()).collect();
        let (unsure_files, unsure_directories) = (BTreeSet::new(), BTreeSet::new());
        let file_turns = BTreeMap::new();
        Arc::new(Mutex::new(Board { story, unsure_files, unsure_directories, file_turns, directory_turns }))
    }
}

/// The board, in all programs.
pub type Shared = Arc<Mutex<Board>>;

/// The board, now.
pub fn lock(board: &Shared) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a number.
pub fn name(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// All names of a directory, and what they name.
///
/// *Errors*: those of the client; a name that no program made.
pub async fn list(client: &Client, directory: FileId) -> Result<BTreeMap<u64, FileId>, String> {
    let (listed, _) = client.list(directory, 0, ENTRIES).await.map_err(|error| format!("a listing: {error}"))?;
    let mut found = BTreeMap::new();
    for Listed { name, attributes, .. } in listed.into_iter().filter(|listed| !matches!(&listed.name[..], b"." | b".."))
    {
        let number = std::str::from_utf8(&name).ok().and_then(|name| name.parse().ok());
        let Some(number) = number else { return Err(format!("a listing has the name {name:?}")) };
        found.insert(number, attributes.id());
    }
    Ok(found)
}

/// Whether a directory with these names was listed so. A file whose identity is not known may be any.
pub fn is_listing(names: &Names, ids: impl Fn(usize) -> Option<FileId>, listing: &BTreeMap<u64, FileId>) -> bool {
    let same = |(name, file): (&u64, &usize)| listing.get(name).is_some_and(|id| ids(*file).is_none_or(|is| is == *id));
    names.len() == listing.len() && names.iter().all(same)
}

/// All bytes of a file.
pub async fn read_whole(open: &OpenFile) -> Result<Vec<u8>, Error> {
    // Longer than any file.
    Ok(open.read(0, 1 << 17).await?.to_vec())
}

/// A program.
pub struct Program {
    board: Shared,
    client: Client,
    session: u64,
    random: Random,
    open: BTreeMap<usize, OpenFile>,
}

/// A look at a directory: what it may show.
#[derive(Clone, Copy)]
struct Look {
    number: usize,
    id: FileId,
    cuts: u64,
    /// The oldest state.
    from: usize,
}

/// A call that changes a file.
enum Shape {
    Write(At, Vec<u8>),
    Truncate(u64),
    Allocate(u64, u64, u32),
}

impl Program {
    /// One that has done nothing yet.
    pub fn new(board: Shared, client: Client, session: u64, seed: u64) -> Program {
        Program { board, client, session, random: Random::new(seed), open: BTreeMap::new() }
    }

    /// Makes calls, with pauses between them.
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
        let change = |directory, name, file| Change { directory, name, file };
        let client = self.client.clone();
        let (old_name, new_name) = (name(old), name(new));
        match (kind, here) {
            (0..=59, None) => {
                let file = lock(&self.board).story.model.files.len();
                let call = self.begin(vec![change(from, old, Some(file))], Some(file));
                let made = New { mode: libc::S_IFREG | 0o644, ..New::default() };
                let made = client.create_open(ids[0], &old_name, made).await;
                let (attributes, open) = made.map_err(|error| format!("create: {error}"))?;
                self.open.insert(file, open);
                lock(&self.board).story.note(Event::Made { file, id: attributes.id() });
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
            // A rename of a name to another name of the same file does nothing.
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

    fn begin(&self, changes: Vec<Change>, makes: Option<usize>) -> u64 {
        let mut board = lock(&self.board);
        let call = board.story.call();
        board.story.note(Event::NamesBegun { session: self.session, call, changes, makes });
        call
    }

    fn end(&self, call: u64) {
        lock(&self.board).story.note(Event::NamesEnded { call });
    }

    /// A file with a name, if there is one of which everything is known.
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
        match self.client.open(id, Opening::Both, is_direct).await {
            Ok(open) => Ok(Some(open)),
            Err(_) if lock(&self.board).story.model.links(file) == 0 => Ok(None),
            Err(error) => Err(format!("open of file {file}: {error}")),
        }
    }

    async fn change_file(&mut self) -> Result<(), String> {
        let Some((file, id)) = self.pick() else { return Ok(()) };
        let turn = lock(&self.board).file_turns.entry(file).or_default().clone();
        let _turn = turn.lock_owned().await;
        let Some(open) = self.handle(file, id).await? else { return Ok(()) };
        if let Some(shape) = self.begin_change(file) {
            let (what, done) = match shape {
                Shape::Write(at, bytes) => ("a write", open.write(at, vec![Buffer::copy_of(&bytes)]).await.map(drop)),
                Shape::Truncate(size) => ("a truncation", open.truncate(size).await),
                Shape::Allocate(offset, length, mode) => ("fallocate", open.allocate(offset, length, mode).await),
            };
            done.map_err(|error| format!("{what} of file {file}: {error}"))?;
            lock(&self.board).story.note(Event::FileEnded { file });
        }
        self.open.insert(file, open);
        Ok(())
    }

    /// Notes a call that changes a file.
    fn begin_change(&mut self, file: usize) -> Option<Shape> {
        let mut board = lock(&self.board);
        if board.unsure_files.contains(&file) {
            return None;
        }
        let known = &board.story.model.files[file];
        let mut bytes = (*known.states[known.ended].bytes).clone();
        let size = bytes.len() as u64;
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
            0..=69 => {
                let at = if kind < 12 && size + length <= SIZE_MAX { At::End } else { At::Offset(offset) };
                let start = if at == At::End { size } else { offset } as usize;
                let written: Vec<u8> = (0..length).map(|at| (u64::from(fresh) + at / 64) as u8 | 1).collect();
                let end = start + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(&written);
                Shape::Write(at, written)
            }
            70..=84 => {
                bytes.resize(offset as usize, 0);
                Shape::Truncate(offset)
            }
            _ => {
                let mode = if kind < 94 { PUNCH } else { ZERO };
                let end = offset + length;
                if mode == ZERO {
                    bytes.resize(bytes.len().max(end as usize), 0);
                }
                let size = bytes.len();
                bytes[(offset as usize).min(size)..(end as usize).min(size)].fill(0);
                Shape::Allocate(offset, length, mode)
            }
        };
        // The server makes a file's shape durable, and with it everything that was written before.
        let changes_shape = !matches!(shape, Shape::Write(..));
        let (has_steps, is_durable) = (changes_shape, changes_shape);
        let (session, bytes) = (self.session, Arc::new(bytes));
        board.story.note(Event::FileBegun { session, file, bytes, has_steps, is_durable });
        Some(shape)
    }

    /// Syncs a file that is open here.
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
        // Closing a descriptor promises the same.
        let synced = if self.random.chance(70) { open.sync().await } else { open.flush().await };
        synced.map_err(|error| format!("fsync of file {file}: {error}"))?;
        let mut board = lock(&self.board);
        if let Some(state) = state.filter(|_| board.story.model.files[file].cuts == cuts) {
            board.story.note(Event::FileDurable { file, state });
        }
        Ok(())
    }

    /// What a look at a file may show from now on: the number of its cuts, and the oldest state.
    fn since_now(&self, file: usize) -> (u64, usize) {
        let board = lock(&self.board);
        let known = &board.story.model.files[file];
        (known.cuts, known.ended)
    }

    /// A look at a file showed something.
    fn saw(&self, file: usize, from: (u64, usize), is: impl Fn(&[u8]) -> bool, what: &str) -> Result<(), String> {
        let mut board = lock(&self.board);
        let known = &board.story.model.files[file];
        // A lost session's writes may be gone meanwhile.
        if known.cuts != from.0 || board.unsure_files.contains(&file) {
            return Ok(());
        }
        let states = from.1..known.states.len();
        let Some(state) = states.clone().find(|state| is(&known.states[*state].bytes)) else {
            return Err(format!("file {file}: {what} is of none of the states {states:?}"));
        };
        if let Some(state) = known.made_by_others(state, self.session) {
            board.story.note(Event::FileDurable { file, state });
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
        let changes: Vec<&Change> = others.flat_map(|pending| &pending.changes).collect();
        let change = changes.get(self.random.below(changes.len() as u64) as usize)?;
        Some((change.directory, change.name))
    }

    /// What a look at a directory may show from now on.
    fn names_from_now(&self, number: usize) -> Look {
        let board = lock(&self.board);
        let Directory { id, cuts, ended, .. } = board.story.model.directories[number];
        Look { number, id, cuts, from: ended }
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
        look: Look,
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
            board.story.note(Event::NamesSeen { call });
        }
        Ok(())
    }
}
