//! A program on a host: it makes, links, renames and removes names, changes modes, writes and reads, in directories that
//! programs on other hosts use at the same time.
//!
//! Owns: the choice of calls, and what is recorded of them. Leaves to others: the calls (`mount`), programs that mostly use
//! a directory alone (`home`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nectary_volume::client::{NewInode, OpenAccess, VolumeClient};
use nectary_volume::protocol::{AttributeChanges, FileId, InodeAttributes};

use super::board::{NamesBoard, ROOT_ID, lock};
use super::history::NamesHistory;
use super::mount::{OpenHandle, SimulatedMount, SystemCallFailure};
use super::tree::{NamesCall, ROOT, Tag, TreeOutcome};
use crate::random::SimulationRandom;

/// The number of names that all programs use in a directory.
const NAMES: u64 = 4;
/// Names from this one on belong to one program each.
const OWN_NAMES: u8 = 100;
/// The longest pause between two calls. *Units*: milliseconds.
const PAUSE_MS_MAX: u64 = 60;

/// Returns the name with a number.
pub fn name(number: u8) -> Vec<u8> {
    format!("n{number}").into_bytes()
}

/// Returns how many operations of a session were answered and are not known to be durable, or are lost with it.
pub fn unstored(client: &VolumeClient) -> u64 {
    let figures = client.figures();
    figures.unstored as u64 + figures.lost
}

fn outcome_of(found: &InodeAttributes) -> TreeOutcome {
    let inode = &found.inode;
    let size = if inode.mode & libc::S_IFMT == libc::S_IFDIR { 0 } else { inode.size };
    TreeOutcome::Attributes { links: inode.links, mode: inode.mode & 0o7777, size }
}

/// A file that is open is there, also without a name.
fn of_open(fail: SystemCallFailure) -> SystemCallFailure {
    match fail {
        SystemCallFailure::Refused(errno) => SystemCallFailure::Wrong(format!("error {errno} of a file that is open")),
        other => other,
    }
}

/// What is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateKind {
    Directory,
    /// A file, which is open then.
    Open,
    /// A file.
    Closed,
}

/// A program.
pub struct NamesProgram {
    pub board: Arc<NamesBoard>,
    pub mount: Arc<SimulatedMount>,
    pub random: SimulationRandom,
    /// Tells it from all other programs.
    pub number: u64,
    open: BTreeMap<Tag, OpenHandle>,
}

impl NamesProgram {
    /// Makes a program.
    pub fn new(board: Arc<NamesBoard>, mount: Arc<SimulatedMount>, number: u64, seed: u64) -> NamesProgram {
        NamesProgram { board, mount, random: SimulationRandom::new(seed), number, open: BTreeMap::new() }
    }

    /// Makes this many calls, with pauses between them.
    pub async fn run(mut self, calls: u64) {
        for _ in 0..calls {
            let pause = if self.random.chance(30) { 0 } else { self.random.below(PAUSE_MS_MAX * 1000) };
            tokio::time::sleep(Duration::from_micros(pause)).await;
            self.mount.rested().await;
            self.call().await;
        }
        self.close_all().await;
    }

    /// Closes all files.
    pub async fn close_all(&mut self) {
        for (_, open) in std::mem::take(&mut self.open) {
            open.file.close().await;
        }
    }

    /// Records a call of the present session; returns what it returned.
    pub async fn recorded<T>(
        &self,
        call: NamesCall,
        commits: Option<Tag>,
        made: impl Future<Output = Result<(TreeOutcome, T), SystemCallFailure>>,
    ) -> Option<T> {
        self.recorded_in(self.mount.session().1, call, commits, made).await
    }

    /// Records a call of a session; returns what it returned.
    async fn recorded_in<T>(
        &self,
        session: usize,
        call: NamesCall,
        commits: Option<Tag>,
        made: impl Future<Output = Result<(TreeOutcome, T), SystemCallFailure>>,
    ) -> Option<T> {
        self.board.tell(|| format!("program {}, session {session}: {call:?}", self.number));
        let number = self.board.history(|history| history.begin(session, call, commits));
        let made = made.await;
        self.board.tell(|| {
            let said = match &made {
                Ok((outcome, _)) => format!("{outcome:?}"),
                Err(fail) => format!("{fail:?}"),
            };
            format!("program {}: call {number}: {said}", self.number)
        });
        let (outcome, found) = match made {
            Ok((outcome, found)) => (outcome, Some(found)),
            Err(SystemCallFailure::Refused(errno)) => (TreeOutcome::Refused(errno), None),
            Err(SystemCallFailure::Over) => return None,
            Err(SystemCallFailure::Void) => {
                self.board.history(|history| history.void(number));
                return None;
            }
            Err(SystemCallFailure::Wrong(what)) => {
                self.board.history(|history| history.is_broken(format!("program {}: {what}", self.number)));
                return None;
            }
        };
        let (client, now) = self.mount.session();
        let unstored = (now == session && self.board.is_recorded()).then(|| unstored(&client));
        self.board.end((session, number), outcome, unstored);
        found
    }

    fn directory(&mut self) -> (Tag, FileId) {
        let directories = lock(&self.board.directories);
        // The first ones are used most, so that programs meet.
        let most = if self.random.chance(80) { 4 } else { directories.len() as u64 };
        let at = self.random.below(most.min(directories.len() as u64)) as usize;
        directories.iter().nth(at).map_or((ROOT, ROOT_ID), |(tag, id)| (*tag, *id))
    }

    /// Returns a file, a new one rather than an old one.
    pub fn file(&mut self) -> Option<(Tag, FileId)> {
        let files = lock(&self.board.files);
        let newest = files.len() as u64;
        // The newest ones are used most: older ones have often lost their names.
        let back = self.random.below(newest.min(6));
        files.iter().nth_back(back as usize).map(|(tag, id)| (*tag, *id))
    }

    fn place(&mut self) -> ((Tag, u8), FileId) {
        let (directory, id) = self.directory();
        // The names of the first directories are below the root; programs leave them there, mostly.
        let name = self.random.below(NAMES) as u8 + if directory == ROOT && self.random.chance(80) { 10 } else { 0 };
        ((directory, name), id)
    }

    /// Makes a call of any kind.
    pub async fn call(&mut self) {
        match self.random.below(100) {
            0..22 => self.look().await,
            22..34 => self.stat().await,
            34..38 => self.list().await,
            38..52 => self.make().await,
            52..62 => self.unlink().await,
            62..67 => self.link().await,
            67..77 => self.rename().await,
            77..83 => self.set_mode().await,
            83..87 => self.read().await,
            87..93 => self.write().await,
            93..95 => self.cut().await,
            95..97 => self.sync().await,
            _ => self.save().await,
        }
    }

    async fn look(&mut self) {
        let (place, directory) = self.place();
        self.look_at(place, directory).await;
    }

    pub async fn look_at(&self, place: (Tag, u8), directory: FileId) {
        let looked = async {
            let found = self.mount.calls().look(directory, &name(place.1)).await?;
            let tag = found.as_ref().map(|found| self.board.learn(found));
            Ok((TreeOutcome::Found(tag), ()))
        };
        self.recorded(NamesCall::Look(place), None, looked).await;
    }

    async fn stat(&mut self) {
        let found = if self.random.chance(50) { self.file() } else { Some(self.directory()) };
        if let Some((tag, file)) = found {
            self.stat_of(tag, file).await;
        }
    }

    /// Looks at attributes; returns the number of links.
    pub async fn stat_of(&self, tag: Tag, file: FileId) -> Option<u32> {
        let looked = async {
            let found = self.mount.calls().stat(file).await?;
            match found.inode.links {
                // It is as good as removed: it may still be there because it is open.
                0 => Err(SystemCallFailure::Refused(libc::ESTALE)),
                links => {
                    self.board.learn(&found);
                    Ok((outcome_of(&found), links))
                }
            }
        };
        self.recorded(NamesCall::Stat(tag), None, looked).await
    }

    async fn list(&mut self) {
        let (tag, directory) = self.directory();
        if self.random.chance(50) {
            let mut cookie = 0;
            while let Ok((_, last, false)) = self.mount.calls().list(directory, cookie, false).await {
                cookie = last;
            }
            return;
        }
        self.list_of(tag, directory).await;
    }

    pub async fn list_of(&self, tag: Tag, directory: FileId) -> Option<BTreeMap<u8, Tag>> {
        let listed = async {
            let (names, ..) = self.mount.calls().list(directory, 0, true).await?;
            let mut found = BTreeMap::new();
            for (listed, attributes) in names.iter().filter(|(listed, _)| !matches!(&listed[..], b"." | b"..")) {
                let number = std::str::from_utf8(listed).ok().and_then(|text| text.get(1..)?.parse().ok());
                let number = number.ok_or(SystemCallFailure::Wrong(format!("a listing has the name {listed:?}")))?;
                found.insert(number, self.board.learn(attributes));
            }
            Ok((TreeOutcome::Names(found.clone()), found))
        };
        self.recorded(NamesCall::List(tag), None, listed).await
    }

    /// Makes a file or a directory; returns its tag, its identity, and the open file.
    pub async fn make_at(
        &self,
        place: (Tag, u8),
        directory: FileId,
        making: CreateKind,
    ) -> Option<(Tag, FileId, Option<OpenHandle>)> {
        let tag = self.board.tags.fetch_add(1, Ordering::Relaxed);
        let mode = 0o600 + (tag as u32 % 64);
        let is_directory = making == CreateKind::Directory;
        let kind = if is_directory { libc::S_IFDIR } else { libc::S_IFREG };
        let new = NewInode { mode: kind | mode, owner: tag as u32, ..NewInode::default() };
        let made = async {
            let (made, open) =
                self.mount.calls().make(directory, &name(place.1), new, making == CreateKind::Open).await?;
            self.board.learn(&made);
            Ok((TreeOutcome::Done, (tag, made.id(), open)))
        };
        self.recorded(NamesCall::Make { place, tag, mode, is_directory }, None, made).await
    }

    async fn make(&mut self) {
        let (place, directory) = self.place();
        let making = match self.random.below(10) {
            0..2 => CreateKind::Directory,
            2..4 => CreateKind::Closed,
            _ => CreateKind::Open,
        };
        self.make_and_use(place, directory, making).await;
    }

    /// Makes a file, and may write to it, leave it open and look at it.
    pub async fn make_and_use(&mut self, place: (Tag, u8), directory: FileId, making: CreateKind) {
        let Some((tag, file, open)) = self.make_at(place, directory, making).await else { return };
        let Some(open) = open else { return };
        if self.random.chance(40) {
            self.write_to(tag, &open).await;
        }
        match self.random.chance(30) && !self.open.contains_key(&tag) {
            true => drop(self.open.insert(tag, open)),
            false => open.file.close().await,
        }
        if self.random.chance(30) {
            self.stat_of(tag, file).await;
        }
    }

    async fn unlink(&mut self) {
        let (place, directory) = self.place();
        let is_directory = self.random.chance(20);
        self.unlink_at(place, directory, is_directory).await;
    }

    /// Removes a name.
    pub async fn unlink_at(&self, place: (Tag, u8), directory: FileId, is_directory: bool) {
        let removed = async {
            self.mount.calls().unlink(directory, &name(place.1), is_directory).await?;
            Ok((TreeOutcome::Done, ()))
        };
        self.recorded(NamesCall::Unlink { place, is_directory }, None, removed).await;
    }

    async fn link(&mut self) {
        let (place, directory) = self.place();
        self.link_at(place, directory).await;
    }

    /// Adds a name to a file.
    pub async fn link_at(&mut self, place: (Tag, u8), directory: FileId) {
        if let Some(file) = self.file() {
            self.link_to(file, place, directory).await;
        }
    }

    /// Adds a name to this file.
    pub async fn link_to(&self, (tag, file): (Tag, FileId), place: (Tag, u8), directory: FileId) {
        let linked = async {
            self.mount.calls().link(file, directory, &name(place.1)).await?;
            Ok((TreeOutcome::Done, ()))
        };
        self.recorded(NamesCall::Link(tag, place), None, linked).await;
    }

    async fn rename(&mut self) {
        let ((from, of), (to, new_of)) = if self.random.chance(25) {
            // Directories, which may be moved into each other.
            let (at, into) = (self.random.below(3) as u8, self.directory());
            (((ROOT, at), ROOT_ID), ((into.0, self.random.below(NAMES) as u8), into.1))
        } else {
            (self.place(), self.place())
        };
        let flags = match self.random.below(10) {
            0 => libc::RENAME_NOREPLACE,
            1..3 => libc::RENAME_EXCHANGE,
            _ => 0,
        };
        self.rename_to((from, of), (to, new_of), flags, None).await;
    }

    pub async fn rename_to(
        &self,
        (from, of): ((Tag, u8), FileId),
        (to, new_of): ((Tag, u8), FileId),
        flags: u32,
        commits: Option<Tag>,
    ) {
        let renamed = async {
            self.mount.calls().rename((of, &name(from.1)), (new_of, &name(to.1)), flags).await?;
            Ok((TreeOutcome::Done, ()))
        };
        self.recorded(NamesCall::Rename { from, to, flags }, commits, renamed).await;
    }

    async fn set_mode(&mut self) {
        let found = if self.random.chance(50) { self.file() } else { Some(self.directory()) };
        let Some((tag, file)) = found else { return };
        let mode = self.random.below(0o1000) as u32;
        self.set_mode_of(tag, file, mode).await;
    }

    /// Sets the mode of a file or a directory.
    pub async fn set_mode_of(&self, tag: Tag, file: FileId, mode: u32) {
        let set = async {
            self.mount.calls().set(file, AttributeChanges { mode: Some(mode), ..AttributeChanges::default() }).await?;
            Ok((TreeOutcome::Done, ()))
        };
        self.recorded(NamesCall::Mode(tag, mode), None, set).await;
    }

    /// Whether a file is open in the present session, which is not over.
    fn is_living(&self, open: &OpenHandle) -> bool {
        open.session == self.mount.session().1 && !open.file.is_over()
    }

    /// Uses a file that is open, or opens it.
    async fn handle(&mut self) -> Option<(Tag, OpenHandle, bool)> {
        let living = self.open.iter().find(|(_, open)| self.is_living(open)).map(|(tag, _)| *tag);
        if let Some(tag) = living.filter(|_| self.random.chance(50)) {
            let open = self.open.remove(&tag)?;
            return Some((tag, open, true));
        }
        let (tag, file) = self.file()?;
        let open = self.mount.calls().open(file, OpenAccess::Both).await.ok()?;
        Some((tag, open, false))
    }

    async fn put(&mut self, tag: Tag, open: OpenHandle, stays: bool) {
        match stays && !self.open.contains_key(&tag) {
            true => drop(self.open.insert(tag, open)),
            false => open.file.close().await,
        }
    }

    async fn read(&mut self) {
        let Some((tag, open, stays)) = self.handle().await else { return };
        self.read_from(tag, &open).await;
        self.put(tag, open, stays).await;
    }

    async fn read_from(&self, tag: Tag, open: &OpenHandle) {
        let read = async { Ok((TreeOutcome::Value(self.mount.calls().read(open).await.map_err(of_open)?), ())) };
        self.recorded_in(open.session, NamesCall::Read(tag), None, read).await;
    }

    async fn write(&mut self) {
        let Some((tag, open, stays)) = self.handle().await else { return };
        self.write_to(tag, &open).await;
        self.put(tag, open, stays).await;
    }

    async fn write_to(&self, tag: Tag, open: &OpenHandle) {
        let value = self.board.values.fetch_add(1, Ordering::Relaxed);
        let written = async {
            self.mount.calls().write(open, value).await.map_err(of_open)?;
            Ok((TreeOutcome::Done, ()))
        };
        self.recorded_in(open.session, NamesCall::Write(tag, value), None, written).await;
    }

    async fn cut(&mut self) {
        let Some((tag, open, stays)) = self.handle().await else { return };
        let file = open.file.id();
        let cut = async {
            let nothing = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
            self.mount.calls().set(file, nothing).await.map_err(of_open)?;
            Ok((TreeOutcome::Done, ()))
        };
        self.recorded(NamesCall::Cut(tag), None, cut).await;
        self.put(tag, open, stays).await;
    }

    /// Makes changes of names durable, or these and the data of an open file.
    async fn sync(&mut self) {
        let (client, session) = self.mount.session();
        let tick = self.board.history(NamesHistory::tick);
        let (file, synced) = match self.open.iter().find(|(_, open)| self.is_living(open)) {
            Some((tag, open)) => (Some(*tag), open.file.sync().await),
            None => (None, client.stored().await),
        };
        if synced.is_ok() {
            self.board.history(|history| history.synced(session, tick, file));
        }
    }

    /// Saves as an editor does: writes a new file, and renames it over the old one.
    async fn save(&mut self) {
        let (directory, id) = self.directory();
        let first = OWN_NAMES + 2 * self.number as u8;
        let (new, old) = ((directory, first), (directory, first + 1));
        match self.make_at(old, id, CreateKind::Open).await {
            Some((_, _, Some(open))) => open.file.close().await,
            _ if matches!(self.mount.calls().look(id, &name(old.1)).await, Ok(Some(_))) => {}
            _ => return,
        }
        self.replace(new, old, id).await;
    }

    async fn replace(&self, new: (Tag, u8), old: (Tag, u8), directory: FileId) {
        let Some((tag, _, Some(open))) = self.make_at(new, directory, CreateKind::Open).await else { return };
        self.write_to(tag, &open).await;
        open.file.close().await;
        self.rename_to((new, directory), (old, directory), 0, Some(tag)).await;
        self.look_at(old, directory).await;
    }

    /// Makes the first directories.
    pub async fn make_first(self) {
        for number in 0..3 {
            self.make_at((ROOT, number), ROOT_ID, CreateKind::Directory).await;
        }
    }

    /// Makes a file, writes it, and reads it again.
    pub async fn use_it(&self) {
        let Some((tag, _, Some(open))) = self.make_at((ROOT, OWN_NAMES), ROOT_ID, CreateKind::Open).await else {
            return self.board.history(|history| history.is_broken("no file can be made".to_owned()));
        };
        self.write_to(tag, &open).await;
        if let Err(error) = open.file.sync().await {
            self.board.history(|history| history.is_broken(format!("a new file cannot be synced: {error}")));
        }
        self.read_from(tag, &open).await;
        open.file.close().await;
    }

    /// Looks at all directories, or at everything.
    pub async fn look_at_all(&self, is_everything: bool) {
        let directories = lock(&self.board.directories).clone();
        for (tag, directory) in directories {
            let names = self.list_of(tag, directory).await.unwrap_or_default();
            for number in names.into_keys().filter(|_| is_everything) {
                self.look_at((tag, number), directory).await;
            }
            self.stat_of(tag, directory).await;
        }
        let files = lock(&self.board.files).clone();
        for (tag, file) in files.into_iter().filter(|_| is_everything) {
            self.stat_of(tag, file).await;
            let Ok(open) = self.mount.calls().open(file, OpenAccess::Read).await else { continue };
            self.read_from(tag, &open).await;
            open.file.close().await;
        }
    }
}
