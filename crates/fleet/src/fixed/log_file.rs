//! The file of a node: the purges that it knows, durably.
//!
//! Owns: reading it, appending, rewriting it, and its lock. Lines that a crash left unfinished at the end are cut off, as
//! nobody was told of them. A file with other damage, or of another node, is put aside, and the node begins a new one; one
//! that does not fit to its store begins again with what it had. Then everything is purged once. Leaves to others: what the lines mean
//! (`messages`, `machine`).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nectary_host::fleet::{AppliedMark, NodeName};
use nectary_host::log::{self, LogLevel};

use super::known_logs::{FixedStep, KnownLogs, LogExtents};
use super::messages::{PurgeLogHead, read_head, read_step, write_head, write_step};
use crate::etcd::random_u64;

/// How long a file that another process has is waited for, and the time from one look to the next.
const LOCK_TIME_MAX: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What a file had when it was opened.
#[derive(Debug)]
pub(super) struct LoadedLog {
    /// Its first line.
    pub head: PurgeLogHead,
    /// Its steps; the first one has the place after `head.base`.
    pub steps: Vec<FixedStep>,
    /// Whether it was made just now.
    pub is_new: bool,
}

impl LoadedLog {
    /// Whether a store with this mark has made the steps up to one of the file's, or has never had a fleet.
    pub fn fits(&self, mark: AppliedMark) -> bool {
        let last = self.head.base + self.steps.len() as u64;
        let is_of_file = mark.fleet == self.head.identity && (self.head.base..=last).contains(&mark.revision);
        is_of_file || (mark == AppliedMark::NONE && self.head.extents.values().all(|extent| extent.through == 0))
    }

    /// A file with another identity that begins where this one ends. The log of this node is a new one, too: how far the
    /// others have the former one is not known.
    pub fn renewed(self, identity: u128) -> LoadedLog {
        let mut known = KnownLogs::new(self.head.extents.clone());
        self.steps.iter().for_each(|step| known.take(step));
        let head = PurgeLogHead { identity, base: 1, extents: known.extents().clone(), ..self.head };
        LoadedLog { head, steps: Vec::new(), is_new: false }
    }
}

/// An open file. Another process cannot open it.
#[derive(Debug)]
pub(super) struct FixedLogFile {
    path: PathBuf,
    /// Stays locked while this is open, also when the file is rewritten.
    _lock: File,
    file: File,
    head: PurgeLogHead,
    /// The place of its last step.
    last: u64,
    /// The bytes that are whole.
    bytes: u64,
    /// Whether the file was put into its place, and that may not be durable.
    must_sync_folder: bool,
}

impl FixedLogFile {
    /// Opens the file of a node, or makes it. One that does not fit to the mark of the store begins again. *Errors*: a text
    /// that names it.
    pub fn open(path: &Path, node: &NodeName, mark: AppliedMark) -> Result<(FixedLogFile, LoadedLog), String> {
        let failed = |what: &str, error: io::Error| format!("`purge-log` {}: {what}: {error}", path.display());
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(|error| failed("its directory cannot be made", error))?;
        }
        let lock = locked(&with_ending(path, "lock")).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => format!("`purge-log` {}: another process uses it", path.display()),
            _ => failed("it cannot be locked", error),
        })?;
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("it cannot be read", error)),
        };
        let new_identity = || (u128::from(random_u64()) << 64 | u128::from(random_u64())).max(1);
        let made = |error| failed("it cannot be made", error);
        let (loaded, file, whole) = match read_file(&bytes, node, mark) {
            Some((loaded, whole)) if loaded.fits(mark) => {
                let file = OpenOptions::new().write(true).open(path);
                (loaded, file.map_err(|error| failed("it cannot be opened", error))?, whole)
            }
            Some((loaded, _)) => {
                let loaded = loaded.renewed(new_identity());
                let (file, whole) = write_new(path, &loaded.head, &[]).map_err(made)?;
                (loaded, file, whole)
            }
            None => {
                if !bytes.is_empty() {
                    let aside = with_ending(path, "damaged");
                    std::fs::rename(path, &aside).map_err(|error| failed("it cannot be put aside", error))?;
                    let text = format_args!(
                        "fleet: {} is damaged, or of another node; it is {} now, and this node begins a new one",
                        path.display(),
                        aside.display()
                    );
                    log::write(LogLevel::Warning, "proxy", text);
                }
                let identity = new_identity();
                // A revision of 0 would be none.
                let head = PurgeLogHead { identity, node: node.clone(), base: 1, extents: LogExtents::new() };
                let (file, whole) = write_new(path, &head, &[]).map_err(made)?;
                (LoadedLog { head, steps: Vec::new(), is_new: true }, file, whole)
            }
        };
        sync_folder(path).map_err(made)?;
        file.set_len(whole).map_err(|error| failed("its end cannot be cut off", error))?;
        let last = loaded.head.base + loaded.steps.len() as u64;
        let head = loaded.head.clone();
        Ok((
            FixedLogFile {
                path: path.to_owned(),
                _lock: lock,
                file,
                head,
                last,
                bytes: whole,
                must_sync_folder: false,
            },
            loaded,
        ))
    }

    /// Appends steps, of which the first has this place; those that are there already are passed over.
    ///
    /// *Durability*: they are durable. *Errors*: perhaps some of them are, and the caller appends all of them again.
    pub fn append(&mut self, first: u64, steps: &[FixedStep]) -> io::Result<()> {
        let known = usize::try_from((self.last + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let Some(new) = steps.get(known..).filter(|new| !new.is_empty()) else { return Ok(()) };
        if self.must_sync_folder {
            sync_folder(&self.path)?;
            self.must_sync_folder = false;
        }
        let lines = new.iter().flat_map(write_step).collect::<Vec<u8>>();
        // What an earlier attempt has left is written over, or cut off.
        self.file.seek(SeekFrom::Start(self.bytes))?;
        self.file.write_all(&lines)?;
        self.file.set_len(self.bytes + lines.len() as u64)?;
        self.file.sync_data()?;
        self.bytes += lines.len() as u64;
        self.last += new.len() as u64;
        Ok(())
    }

    /// Rewrites the file with these steps up to the last place.
    ///
    /// *Durability*: that of the former one, until the next append. *Errors*: the former one stays.
    pub fn rewrite(&mut self, extents: LogExtents, steps: &[FixedStep]) -> io::Result<()> {
        let base = self.last.saturating_sub(steps.len() as u64);
        let head = PurgeLogHead { base, extents, ..self.head.clone() };
        (self.file, self.bytes) = write_new(&self.path, &head, steps)?;
        (self.head, self.must_sync_folder) = (head, true);
        Ok(())
    }
}

/// Locks a file, which is made if it is absent. *Errors*: `WouldBlock` if another process has it.
fn locked(path: &Path) -> io::Result<File> {
    let (file, begun) = (OpenOptions::new().create(true).append(true).open(path)?, Instant::now());
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // A process whose place this one takes may be about to end.
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_TIME_MAX => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads a file, and how many of its bytes are whole; `None` if it is damaged, or of another node. What a crash has left
/// unfinished is above the mark of the store, as nobody was told of it: lines from the first bad one on are cut off there.
fn read_file(bytes: &[u8], node: &NodeName, mark: AppliedMark) -> Option<(LoadedLog, u64)> {
    let mut whole = 0;
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    let first = lines.next()?;
    let head = read_head(first).filter(|head| head.node == *node)?;
    whole += first.len() + 1;
    let mut steps = Vec::new();
    for line in lines {
        match read_step(line) {
            Some(step) => steps.push(step),
            None if mark.fleet != head.identity || head.base + steps.len() as u64 >= mark.revision => break,
            None => return None,
        }
        whole += line.len() + 1;
    }
    Some((LoadedLog { head, steps, is_new: false }, whole as u64))
}

/// Writes a file beside its place, and then puts it there; returns it and its length. Its place is not durable yet.
fn write_new(path: &Path, head: &PurgeLogHead, steps: &[FixedStep]) -> io::Result<(File, u64)> {
    let beside = with_ending(path, "new");
    let mut bytes = write_head(head);
    steps.iter().for_each(|step| bytes.extend_from_slice(&write_step(step)));
    let mut file = File::create(&beside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    Ok((file, bytes.len() as u64))
}

/// Makes the place of a file durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// A path with one more ending.
fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}
