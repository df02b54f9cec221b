//! The two sides of the comparison: the volume with its mounts, and a directory beside it.
//!
//! Owns: the open files of both sides and the mounts to which they belong, a call on both sides, and the comparison of
//! the results. Leaves to others: the comparison of trees (`snapshot`, `burst`).

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::burst::{DurableMark, MarkOrder, WHOLE};
use super::calls::{ComparedSide, DrawChoice, DrawnCall, Given, ModifiedTime, OPEN_MAX, TreeCall, draw};
use super::hosts::CallBeat;
use super::{PlantedMistake, TreeCallCounts};
use crate::rng::SeededRng;

/// An open file.
#[derive(Debug, Clone, Copy)]
struct OpenedFile {
    host: usize,
    flags: i32,
}

/// What happened to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// It returned, and both sides gave the same.
    Returned,
    /// It was interrupted by a signal to the mount or the server: it is done on the volume, or not.
    Interrupted,
}

/// What must be known of a file before a call.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileBefore {
    /// The inode whose bytes the call may change or make durable.
    inode: Option<u64>,
    /// The size of this inode.
    size: u64,
    /// The inode that replaces a file.
    replaces: Option<u64>,
    flags: i32,
}

/// The two sides.
pub struct TreeSides {
    volume: ComparedSide,
    beside: ComparedSide,
    files: Vec<OpenedFile>,
    /// The inodes that a host has cut to nothing since a burst began, and not closed since.
    emptied: HashSet<u64>,
    /// The directory of the tree on each mount.
    pub roots: Vec<PathBuf>,
    /// The directory beside the volume.
    pub model: PathBuf,
    /// The counts.
    pub counts: TreeCallCounts,
    /// Whether writes to the volume have a wrong byte from now on.
    pub is_wrong: bool,
    beat: CallBeat,
}

impl TreeSides {
    /// The sides of a run, whose directories exist.
    pub fn new(roots: Vec<PathBuf>, model: PathBuf, beat: CallBeat) -> TreeSides {
        TreeSides {
            volume: ComparedSide::default(),
            beside: ComparedSide::default(),
            files: Vec::new(),
            emptied: HashSet::new(),
            roots,
            model,
            counts: TreeCallCounts::default(),
            is_wrong: false,
            beat,
        }
    }

    /// Draws a call for a host; with `alone`, only on files that it alone uses.
    pub fn draw(&self, rng: &mut SeededRng, host: usize, alone: bool, known: &[PathBuf]) -> DrawnCall {
        let is_usable = |file: &usize| !alone || self.files[*file].host == host;
        let files: Vec<usize> = (0..self.files.len()).filter(is_usable).collect();
        draw(rng, DrawChoice { files: &files, may_open: self.files.len() < OPEN_MAX, known })
    }

    /// Makes a call on both sides. *Errors*: the results differ.
    pub fn make(&mut self, drawn: &DrawnCall, host: usize, may_be_interrupted: bool) -> Result<CallEnd> {
        let mut made = drawn.clone();
        if let (true, TreeCall::Write(_, _, fill, _)) = (self.is_wrong, &mut made.call) {
            *fill ^= 1;
        }
        let found = self.volume.call(&made, &self.roots[host]);
        self.beat.beat();
        let expected = self.beside.call(drawn, &self.model);
        self.counts.calls += 1;
        let (is_there, is_expected) = (found.is_ok(), expected.is_ok());
        if may_be_interrupted && found != expected && is_interruption(&found) {
            self.counts.interrupted += 1;
            if let TreeCall::Open(..) = drawn.call {
                self.beside.open.truncate(self.files.len());
            }
            return Ok(CallEnd::Interrupted);
        }
        match drawn.call {
            TreeCall::Open(flags, _) if is_there && is_expected => self.files.push(OpenedFile { host, flags }),
            TreeCall::Open(..) => {
                self.volume.open.truncate(self.files.len());
                self.beside.open.truncate(self.files.len());
            }
            TreeCall::Close(file) => drop(self.files.remove(file)),
            _ => {}
        }
        if self.is_pipe_elsewhere(drawn, &found, &expected) {
            return Ok(CallEnd::Returned);
        }
        match (&found, &expected) {
            _ if found != expected => bail!(
                "call {}: {:?} of {} and {} on host {host}: {} on the volume, {} beside it",
                self.counts.calls,
                drawn.call,
                drawn.path.display(),
                drawn.second.display(),
                said(&found),
                said(&expected)
            ),
            (Ok(_), _) => *self.counts.succeeded.entry(drawn.call.name()).or_default() += 1,
            (Err(_), _) => self.counts.failed += 1,
        }
        Ok(CallEnd::Returned)
    }

    /// A pipe connects the programs of one host.
    fn is_pipe_elsewhere(&self, drawn: &DrawnCall, found: &Given, expected: &Given) -> bool {
        let is_pipe = || fs::metadata(self.model.join(&drawn.path)).is_ok_and(|file| file.file_type().is_fifo());
        matches!(drawn.call, TreeCall::Open(..)) && *found == Err(libc::ENXIO) && expected.is_ok() && is_pipe()
    }

    /// A burst begins.
    pub fn begin_burst(&mut self) {
        self.emptied.clear();
    }

    /// What must be known before a call, to say afterwards what it [made durable](TreeSides::marks).
    pub fn before(&self, drawn: &DrawnCall) -> FileBefore {
        let (path, second) = (self.model.join(&drawn.path), self.model.join(&drawn.second));
        let regular = |file: io::Result<Metadata>| file.ok().filter(Metadata::is_file);
        let of = |file: Option<Metadata>, flags: i32| {
            let (inode, size) = file.map(|file| (file.ino(), file.len())).unzip();
            FileBefore { inode, size: size.unwrap_or(0), flags, replaces: None }
        };
        match drawn.call {
            TreeCall::Truncate(_) | TreeCall::Open(..) | TreeCall::ReadWhole => of(regular(fs::metadata(path)), 0),
            TreeCall::Rename(0) => {
                let inode = |path: &Path| regular(fs::symlink_metadata(path)).map(|file| file.ino());
                let target = inode(&second);
                let replaces = inode(&path).filter(|source| target.is_some_and(|target| target != *source));
                FileBefore { replaces, ..FileBefore::default() }
            }
            TreeCall::Write(file, ..)
            | TreeCall::Cut(file, _)
            | TreeCall::Allocate(file, ..)
            | TreeCall::Sync(file)
            | TreeCall::Close(file) => of(regular(self.beside.open[file].metadata()), self.files[file].flags),
            _ => FileBefore::default(),
        }
    }

    /// The inode whose bytes a call may have changed.
    pub fn changed(&self, drawn: &DrawnCall, before: FileBefore) -> Option<u64> {
        match drawn.call {
            TreeCall::Open(flags, _) if flags & libc::O_TRUNC != 0 => before.inode,
            TreeCall::Truncate(_) | TreeCall::Write(..) | TreeCall::Cut(..) | TreeCall::Allocate(..) => before.inode,
            _ => None,
        }
    }

    /// What a call that succeeded has made durable.
    pub fn marks(&mut self, drawn: &DrawnCall, before: FileBefore) -> Vec<DurableMark> {
        let is_emptying = match drawn.call {
            TreeCall::Open(flags, _) => flags & libc::O_TRUNC != 0,
            TreeCall::Truncate(size) | TreeCall::Cut(_, size) => size == 0,
            _ => false,
        };
        // A file that was empty is not cut: it has no old contents.
        self.emptied.extend(before.inode.filter(|_| is_emptying && before.size > 0));
        let Some(inode) = before.inode.or(before.replaces) else { return Vec::new() };
        let mark = |range, extended_to, order| vec![DurableMark { inode, range, extended_to, order }];
        let end = |offset: u64, length: u64| offset.saturating_add(length);
        match drawn.call {
            TreeCall::Open(flags, _) if flags & libc::O_TRUNC != 0 => mark(WHOLE, 0, MarkOrder::All),
            TreeCall::Truncate(size) | TreeCall::Cut(_, size) => {
                mark(size as u64..u64::MAX, size as u64, MarkOrder::All)
            }
            TreeCall::Allocate(_, mode, offset, length) => {
                let zeroes = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
                let (offset, length) = (offset as u64, length as u64);
                let is_longer = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
                let zeroed = if zeroes { length } else { 0 };
                let extended_to = if is_longer { end(offset, length) } else { 0 };
                mark(offset..end(offset, zeroed), extended_to, MarkOrder::All)
            }
            TreeCall::Sync(_) => mark(WHOLE, 0, MarkOrder::All),
            // Where an append has written is not known.
            TreeCall::Write(_, offset, _, length) if length > 0 && before.flags & libc::O_DSYNC != 0 => {
                let is_append = before.flags & libc::O_APPEND != 0;
                let length = if is_append { 0 } else { length as u64 };
                mark(offset..end(offset, length), 0, MarkOrder::Data)
            }
            TreeCall::Rename(_) => mark(WHOLE, 0, MarkOrder::WithNames),
            TreeCall::Close(_) | TreeCall::ReadWhole if self.emptied.remove(&inode) => {
                mark(WHOLE, 0, MarkOrder::WithNames)
            }
            _ => Vec::new(),
        }
    }

    /// Closes the open files of a host.
    pub fn close(&mut self, host: usize) {
        for file in (0..self.files.len()).rev().filter(|file| self.files[*file].host == host).collect::<Vec<_>>() {
            self.files.remove(file);
            drop(self.volume.open.remove(file));
            drop(self.beside.open.remove(file));
        }
    }

    /// Closes all open files.
    pub fn close_all(&mut self) {
        (0..self.roots.len()).for_each(|host| self.close(host));
    }

    /// *Errors*: a call took too long.
    pub fn check_beat(&self) -> Result<()> {
        self.beat.beat();
        self.beat.check()
    }

    /// Makes a file or gives it a time on one side only, with which a mistake is planted.
    pub fn plant(&self, mistake: PlantedMistake, host: usize, number: u64) -> Result<()> {
        let roots = match mistake {
            PlantedMistake::SkippedBeside => vec![&self.roots[host]],
            PlantedMistake::SkippedOnVolume => vec![&self.model],
            PlantedMistake::SkippedTime => vec![&self.roots[host], &self.model],
            PlantedMistake::WrongByte => return Ok(()),
        };
        let name = format!("planted-{number}");
        for root in roots {
            fs::write(root.join(&name), b"").context("planting")?;
        }
        match mistake {
            PlantedMistake::SkippedTime => ModifiedTime::Set(1).set(&self.model.join(name)).context("planting"),
            _ => Ok(()),
        }
    }
}

/// Whether a call ended as calls on a mount end whose process is killed.
fn is_interruption(given: &Given) -> bool {
    matches!(given, Err(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO))
}

fn said(given: &Given) -> String {
    match given {
        Ok(words) => format!("done {words}"),
        Err(errno) => io::Error::from_raw_os_error(*errno).to_string(),
    }
}
