//! The model of a workload: what its programs did and saw, event by event.
//!
//! Owns: all states that each file and each directory had, and which of them are promised after a crash. Promises: the
//! events before a mark of the recording give the promises at that mark. Calls that change the same file, or the same
//! directory, are made one after another, so that states form a list; calls that only look may be made at any time.

use std::collections::BTreeMap;
use std::sync::Arc;

use nectary_block::Recorder;
use nectary_volume::protocol::FileId;

use super::shape::FileMutation;

/// The unit in which a file is stored on the disk. *Units*: bytes.
const BLOCK: usize = 4096;
/// The number of directories of a volume.
pub const DIRECTORIES: usize = 3;

/// An event.
#[derive(Debug, Clone)]
pub enum WorkloadEvent {
    /// The volume is formatted.
    Formatted,
    /// A directory is made.
    Directory(FileId),
    /// All directories are made.
    Ready,
    /// A call begins that changes names.
    NamesBegun { session: u64, call: u64, changes: Vec<DirectoryChange>, makes: Option<usize> },
    /// The call returned.
    NamesEnded { call: u64 },
    /// The identity of a file becomes known.
    Made { file: usize, id: FileId },
    /// A program saw the effect of a call that has not returned.
    NamesSeen { call: u64 },
    /// The session of a call is lost, and a program saw whether the call was done.
    NamesDecided { call: u64, is_done: bool },
    /// A call begins that changes a file.
    FileBegun { session: u64, file: usize, shape: FileMutation },
    /// The call returned.
    FileEnded { file: usize },
    /// All states up to this one are durable: the file was synced, or another session saw this state.
    FileDurable { file: usize, state: usize },
    /// A session is lost, while a call of another session changes the file: see [`ModelFile::lose`].
    FileLost { file: usize, session: u64 },
    /// Uncommitted data of a lost session is gone: this state is the newest that is left, and it is durable.
    FileCut { file: usize, state: usize },
    /// As [`WorkloadEvent::FileCut`], but a call of the lost session was done in part, so that the file has these bytes.
    FileMixed { file: usize, bytes: Arc<Vec<u8>> },
}

/// A change of a name in a directory: it now names another file, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryChange {
    /// The directory.
    pub directory: usize,
    /// The name.
    pub name: u64,
    /// The file; `None`: the name is removed.
    pub file: Option<usize>,
}

/// A state of a file.
#[derive(Debug, Clone)]
pub struct FileState {
    /// The bytes of the file.
    pub bytes: Arc<Vec<u8>>,
    /// The session that made the state.
    pub session: u64,
    /// Whether the call has several steps, so that a crash may leave it done in part.
    pub has_steps: bool,
    /// Whether the call is durable when it returns.
    pub is_durable: bool,
}

/// A call that changes a file and has not returned.
#[derive(Debug, Clone)]
pub struct PendingFileChange {
    /// The call.
    pub shape: FileMutation,
    /// The state that the call makes. If the call may find several states, its states follow in the list.
    pub first: usize,
}

/// The explanation of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BytesExplanation {
    /// They are those of a state that may be there.
    State(usize),
    /// Each block has the bytes of a state that may be there, because a call with several steps was lost.
    Mixed,
}

/// A file.
#[derive(Debug, Clone)]
pub struct ModelFile {
    /// The identity of the file in the volume, once it is known.
    pub id: Option<FileId>,
    /// All states, the oldest first.
    pub states: Vec<FileState>,
    /// The last state that a call which returned has made.
    pub ended: usize,
    /// All states up to this one are durable.
    pub durable: usize,
    /// The call that changes the file now.
    pub changing: Option<PendingFileChange>,
    /// The number of times that `states` was cut back to what survived the loss of a session ([`WorkloadEvent::FileCut`]).
    pub cuts: u64,
}

impl ModelFile {
    /// Makes an empty file.
    fn made_by(session: u64) -> ModelFile {
        let first = FileState { bytes: Arc::default(), session, has_steps: false, is_durable: true };
        ModelFile { id: None, states: vec![first], ended: 0, durable: 0, changing: None, cuts: 0 }
    }

    fn begin(&mut self, session: u64, shape: &FileMutation) {
        self.changing = Some(PendingFileChange { shape: shape.clone(), first: self.states.len() });
        let bytes = Arc::new(shape.apply(&self.states[self.newest()].bytes));
        self.states.push(FileState { bytes, session, has_steps: shape.has_steps(), is_durable: shape.is_durable() });
    }

    fn end(&mut self) {
        self.ended = self.changing.take().map_or(self.newest(), |changing| changing.first);
        if self.states[self.ended].is_durable {
            self.durable = self.ended;
        }
    }

    /// Notes the loss of a session while a call of another session changes the file.
    ///
    /// The call may have waited for the file's token. Then the server ends the lost session, and the call finds the
    /// file without the lost session's uncommitted data: any state since the newest that is promised, or that another
    /// session made. So the call may make one of as many states. Even if this call is durable when it returns,
    /// the lost session's data are not.
    fn lose(&mut self, session: u64) {
        let Some(PendingFileChange { shape, first }) = &self.changing else { return };
        let is_kept = |state: &usize| *state <= self.durable || self.states[*state].session != session;
        let Some(kept) = (0..*first).rev().find(is_kept) else { return };
        let is_partly_lost = self.states[kept + 1..*first].iter().any(|state| state.has_steps);
        let made = self.states[*first].clone();
        self.states.truncate(*first);
        for found in (kept..*first).rev() {
            let bytes = Arc::new(shape.apply(&self.states[found].bytes));
            // The call's own steps are over when it returns. A lost call that it found done in part stays so.
            let has_steps = if found + 1 == *first { made.has_steps } else { is_partly_lost };
            self.states.push(FileState { bytes, has_steps, ..made.clone() });
        }
    }

    fn cut(&mut self, state: usize) {
        self.states.truncate(state + 1);
        (self.ended, self.durable, self.changing) = (state, state, None);
        self.cuts += 1;
    }

    /// Whether a session made a state that is not promised, so that its loss makes the file uncertain.
    pub fn may_lose(&self, session: u64) -> bool {
        self.states[self.durable + 1..].iter().any(|state| state.session == session)
    }

    /// Whether a call of another session changes the file, which may lose what this session wrote.
    pub fn is_awaited(&self, session: u64) -> bool {
        let of = self.changing.as_ref().map(|changing| self.states[changing.first].session);
        of.is_some_and(|of| of != session) && self.may_lose(session)
    }

    /// Returns the newest state.
    pub fn newest(&self) -> usize {
        self.states.len() - 1
    }

    /// Returns the first state, from `from` on, that has these bytes.
    pub fn find(&self, from: usize, bytes: &[u8]) -> Option<usize> {
        (from..self.states.len()).find(|state| *self.states[*state].bytes == bytes)
    }

    /// Returns the newest state up to `state` that another session made.
    pub fn made_by_others(&self, state: usize, session: u64) -> Option<usize> {
        (1..=state).rev().find(|state| self.states[*state].session != session)
    }

    /// Explains these bytes after the loss of everything, or of all sessions that changed the file.
    pub fn explain(&self, bytes: &[u8]) -> Result<BytesExplanation, String> {
        if let Some(state) = self.find(self.durable, bytes) {
            return Ok(BytesExplanation::State(state));
        }
        let window = &self.states[self.durable..];
        if !window[1..].iter().any(|state| state.has_steps) {
            return Err(match self.find(0, bytes) {
                Some(state) => format!("it has state {state}, and {} was promised", self.durable),
                None => self.difference(bytes),
            });
        }
        if !window.iter().any(|state| state.bytes.len() == bytes.len()) {
            return Err(format!("no state has its {} bytes; {}", bytes.len(), self.difference(bytes)));
        }
        for (block, found) in bytes.chunks(BLOCK).enumerate() {
            let has = |state: &FileState| {
                let part = state.bytes.get(block * BLOCK..).unwrap_or_default();
                found.iter().enumerate().all(|(at, byte)| part.get(at).copied().unwrap_or(0) == *byte)
            };
            if !window.iter().any(has) {
                return Err(format!("no state has what is in its block {block}; {}", self.difference(bytes)));
            }
        }
        Ok(BytesExplanation::Mixed)
    }

    fn difference(&self, bytes: &[u8]) -> String {
        let promised = &self.states[self.durable].bytes;
        let longest = promised.len().max(bytes.len());
        let at = (0..longest).find(|at| promised.get(*at) != bytes.get(*at)).unwrap_or(longest);
        format!(
            "none of the states {} to {} is there: {} bytes instead of the {} of the first, which differ from byte {at} \
             on, where {:?} is instead of {:?}",
            self.durable,
            self.newest(),
            bytes.len(),
            promised.len(),
            bytes.get(at),
            promised.get(at)
        )
    }
}

/// Names, and the files that they name.
pub type Names = BTreeMap<u64, usize>;

/// A directory.
#[derive(Debug, Clone, Default)]
pub struct ModelDirectory {
    /// The identity of the directory in the volume.
    pub id: FileId,
    /// The states that the directory had, the oldest first.
    pub states: Vec<Names>,
    /// The last state that a call which returned has made.
    pub ended: usize,
    /// The number of calls that were found not to be done.
    pub cuts: u64,
}

impl ModelDirectory {
    /// Returns the names after all calls that returned.
    pub fn names(&self) -> &Names {
        &self.states[self.ended]
    }
}

/// A call that changes names and has not returned.
#[derive(Debug, Clone)]
pub struct PendingNameChange {
    /// The number of the call.
    pub call: u64,
    /// The session of the call.
    pub session: u64,
    /// The changes that the call makes.
    pub changes: Vec<DirectoryChange>,
    /// Whether a program saw the effect of the call.
    pub is_seen: bool,
}

impl PendingNameChange {
    /// Returns the directories that the call changes.
    pub fn directories(&self) -> Vec<usize> {
        let mut found: Vec<usize> = self.changes.iter().map(|change| change.directory).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the names of a directory after the call.
    pub fn done(&self, directory: usize, names: &Names) -> Names {
        let mut names = names.clone();
        for change in self.changes.iter().filter(|change| change.directory == directory) {
            match change.file {
                Some(file) => drop(names.insert(change.name, file)),
                None => drop(names.remove(&change.name)),
            }
        }
        names
    }
}

/// The state of the whole workload.
#[derive(Debug, Clone, Default)]
pub struct WorkloadModel {
    /// Whether the volume is formatted.
    pub is_formatted: bool,
    /// Whether all directories are made.
    pub is_ready: bool,
    /// The files.
    pub files: Vec<ModelFile>,
    /// The directories.
    pub directories: Vec<ModelDirectory>,
    /// Calls that have not returned.
    pub pending: Vec<PendingNameChange>,
}

impl WorkloadModel {
    /// Returns the model after these events.
    pub fn after(events: &[WorkloadEvent]) -> WorkloadModel {
        let mut model = WorkloadModel::default();
        events.iter().for_each(|event| model.apply(event));
        model
    }

    fn end(&mut self, call: u64, is_done: bool) {
        let Some(at) = self.pending.iter().position(|pending| pending.call == call) else { return };
        for number in self.pending.remove(at).directories() {
            let directory = &mut self.directories[number];
            if is_done {
                directory.ended = directory.states.len() - 1;
            } else {
                directory.states.pop();
                directory.cuts += 1;
            }
        }
    }

    fn apply(&mut self, event: &WorkloadEvent) {
        match event {
            WorkloadEvent::Formatted => self.is_formatted = true,
            WorkloadEvent::Directory(id) => {
                let states = vec![Names::new()];
                self.directories.push(ModelDirectory { id: *id, states, ..ModelDirectory::default() });
            }
            WorkloadEvent::Ready => self.is_ready = true,
            WorkloadEvent::NamesBegun { session, call, changes, makes } => {
                let pending =
                    PendingNameChange { call: *call, session: *session, changes: changes.clone(), is_seen: false };
                for number in pending.directories() {
                    let done = pending.done(number, self.directories[number].names());
                    self.directories[number].states.push(done);
                }
                self.pending.push(pending);
                if let Some(file) = makes {
                    debug_assert_eq!(*file, self.files.len());
                    self.files.push(ModelFile::made_by(*session));
                }
            }
            WorkloadEvent::NamesEnded { call } => self.end(*call, true),
            WorkloadEvent::Made { file, id } => self.files[*file].id = Some(*id),
            WorkloadEvent::NamesSeen { call } => {
                for pending in self.pending.iter_mut().filter(|pending| pending.call == *call) {
                    pending.is_seen = true;
                }
            }
            WorkloadEvent::NamesDecided { call, is_done } => self.end(*call, *is_done),
            WorkloadEvent::FileBegun { session, file, shape } => self.files[*file].begin(*session, shape),
            WorkloadEvent::FileEnded { file } => self.files[*file].end(),
            WorkloadEvent::FileDurable { file, state } => {
                let file = &mut self.files[*file];
                file.durable = file.durable.max(*state);
            }
            WorkloadEvent::FileLost { file, session } => self.files[*file].lose(*session),
            WorkloadEvent::FileCut { file, state } => self.files[*file].cut(*state),
            WorkloadEvent::FileMixed { file, bytes } => {
                let file = &mut self.files[*file];
                let durable = file.durable;
                let found = FileState { bytes: bytes.clone(), has_steps: false, ..file.states[durable].clone() };
                file.states.insert(durable + 1, found);
                file.cut(durable + 1);
            }
        }
    }

    /// Returns the number of names that a file has, or may have.
    pub fn links(&self, file: usize) -> usize {
        let newest = self.directories.iter().filter_map(|directory| directory.states.last());
        newest.map(|names| names.values().filter(|named| **named == file).count()).sum()
    }

    /// Returns the files that have a name.
    pub fn named(&self) -> Vec<usize> {
        let all = self.directories.iter().flat_map(|directory| directory.names().values().copied());
        let mut found: Vec<usize> = all.collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The events so far, which are also marks of a recording.
pub struct MarkedEvents {
    recorder: Recorder,
    /// All events.
    pub events: Vec<WorkloadEvent>,
    /// The model after these events.
    pub model: WorkloadModel,
    /// The first wrong answer of a client.
    pub broken: Option<String>,
    next_call: u64,
}

impl MarkedEvents {
    /// Makes a story without events.
    pub fn new(recorder: Recorder) -> MarkedEvents {
        MarkedEvents { recorder, events: Vec::new(), model: WorkloadModel::default(), broken: None, next_call: 1 }
    }

    /// Adds an event.
    pub fn note(&mut self, event: WorkloadEvent) {
        self.model.apply(&event);
        self.events.push(event);
        self.recorder.mark(self.events.len() as u64);
    }

    /// Returns a new number for a call.
    pub fn call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call
    }

    /// Notes a wrong answer of a client, which no promise allows.
    pub fn is_wrong(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_volume::client::WritePosition;

    const LOST: u64 = 1;
    const LEFT: u64 = 2;

    fn write(at: WritePosition, byte: u8) -> FileMutation {
        FileMutation::Write(at, Arc::new(vec![byte; 10]))
    }

    /// A file with what a session synced and then wrote, while a call of another session changes it.
    fn file(shape: &FileMutation) -> ModelFile {
        let mut file = ModelFile::made_by(LOST);
        for (byte, is_synced) in [(1, true), (2, false)] {
            file.begin(LOST, &write(WritePosition::End, byte));
            file.end();
            file.durable = if is_synced { file.ended } else { file.durable };
        }
        file.begin(LEFT, shape);
        file
    }

    fn bytes(bytes: &[u8]) -> Vec<u8> {
        bytes.iter().flat_map(|byte| [*byte; 10]).collect()
    }

    /// A call that waited for a lost session may find any state that the session may leave.
    #[test]
    fn waiting_call_accepts_remaining_states() {
        let mut file = file(&write(WritePosition::End, 3));
        assert!(file.explain(&bytes(&[1, 3])).is_err(), "nothing is lost yet");
        file.lose(LOST);
        file.end();
        for left in [&[1, 2, 3][..], &[1, 3], &[1, 2], &[1]] {
            assert!(file.explain(&bytes(left)).is_ok(), "{left:?}");
        }
        for wrong in [&[3][..], &[2, 3], &[1, 3, 3], &[]] {
            assert!(file.explain(&bytes(wrong)).is_err(), "{wrong:?}");
        }
    }

    /// A durable call that waited for a lost session promises only the state that it found.
    #[test]
    fn durable_waiting_call_promises_result() {
        let mut file = file(&FileMutation::Truncate(30));
        file.lose(LOST);
        file.end();
        assert!(file.explain(&bytes(&[1, 2, 0])).is_ok() && file.explain(&bytes(&[1, 0, 0])).is_ok());
        assert!(file.explain(&bytes(&[1, 2])).is_err() && file.explain(&bytes(&[0, 0, 0])).is_err());
    }

    /// What another session changed later is not lost with the session.
    #[test]
    fn later_change_outlives_lost_session() {
        let mut file = file(&write(WritePosition::End, 3));
        file.end();
        file.begin(LEFT, &write(WritePosition::End, 4));
        file.lose(LOST);
        file.end();
        assert!(file.explain(&bytes(&[1, 2, 3, 4])).is_ok() && file.explain(&bytes(&[1, 3, 4])).is_err());
    }
}
