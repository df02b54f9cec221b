//! What may be left of the last calls of a host that was lost.
//!
//! Owns: the tree after each call of a burst, what is known to be durable, and the judgement of the tree that another
//! host sees afterwards. What must hold (`docs/volume.md`):
//!
//! 1. Names and attributes are those after some call of the burst: no call is lost without those after it, and none in
//!    part. Nothing is lost that another host has seen, or that came before an `fsync` of this host, or before a
//!    truncation or `fallocate`, which wait for the disk.
//! 2. The data of files is not in this order, and may be older or newer than the names. Each byte of a file, and its
//!    size, is that after some call of the burst, and not older than the last `fsync` of the file, a write through
//!    `O_SYNC` or `O_DSYNC`, a truncation or `fallocate` of this range, the rename with which the file replaced another
//!    one, and the first close after it was cut to nothing. No byte is zero because only its size was kept.
//! 3. The time of the last change of a file's data is set with its names, and changed with its data: it is the time after
//!    the same call as the names, or that of a later write whose data is there, or, if the last write is lost, the time
//!    that was set before it.
//!
//! The bytes of files that were not written in the burst are the same in all of its states, so they may not differ.

use std::ops::Range;
use std::sync::Arc;

use super::calls::ModifiedTime;
use super::snapshot::{TreeEntry, TreeSnapshot};

/// The range of a whole file.
pub const WHOLE: Range<u64> = 0..u64::MAX;

/// What is durable of a file after a call.
#[derive(Debug, Clone)]
pub struct DurableMark {
    /// The inode.
    pub inode: u64,
    /// The bytes that are not older than this call.
    pub range: Range<u64>,
    /// The size to which the call may have made the file longer without a write, or 0.
    pub extended_to: u64,
    /// What else is durable.
    pub order: MarkOrder,
}

/// With what the bytes of a [mark](DurableMark) are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkOrder {
    /// They are if the names after the call are.
    WithNames,
    /// They are at the return of the call, whatever names are left.
    Data,
    /// They are at the return of the call, and so are all names of before.
    All,
}

/// What is left of a burst.
#[derive(Debug, Clone, Copy, Default)]
pub struct BurstRemains {
    /// The calls that changed the tree and are lost.
    pub calls: u64,
    /// The files whose last data is lost.
    pub files: u64,
}

impl BurstRemains {
    /// Whether nothing is lost.
    pub fn is_all(&self) -> bool {
        self.calls == 0 && self.files == 0
    }
}

/// A burst: the tree before it, and after each of its calls.
#[derive(Debug)]
pub struct CallBurst {
    states: Vec<TreeSnapshot>,
    /// Everything is durable that was there after this call.
    all_floor: usize,
    /// All names are durable that were there after this call.
    names_floor: usize,
    marks: Vec<(usize, DurableMark)>,
}

impl CallBurst {
    /// A burst on a tree that is durable as a whole.
    pub fn new(first: TreeSnapshot) -> CallBurst {
        CallBurst { states: vec![first], all_floor: 0, names_floor: 0, marks: Vec::new() }
    }

    /// The number of the last state.
    pub fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// The last state.
    pub fn last_state(&self) -> &TreeSnapshot {
        &self.states[self.last()]
    }

    /// Adds the state after a call, and what this call made durable.
    pub fn add(&mut self, state: TreeSnapshot, marks: Vec<DurableMark>) {
        self.states.push(state);
        let last = self.last();
        if marks.iter().any(|mark| mark.order == MarkOrder::All) {
            self.names_floor = last;
        }
        self.marks.extend(marks.into_iter().map(|mark| (last, mark)));
    }

    /// Everything is durable, for example because another host has seen it.
    pub fn keep_all(&mut self) {
        (self.all_floor, self.names_floor) = (self.last(), self.last());
    }

    /// All names are durable that were there after a call.
    pub fn keep_names(&mut self, state: usize) {
        self.names_floor = self.names_floor.max(state);
    }

    /// Whether nothing of it may be lost.
    pub fn is_all_kept(&self) -> bool {
        self.all_floor == self.last()
    }

    /// Judges the tree that another host sees. *Errors*: the reason why it must not be.
    pub fn explain(&self, found: &TreeSnapshot) -> Result<BurstRemains, String> {
        let mut reason = None;
        for state in (self.names_floor..=self.last()).rev() {
            let judged = match found.names_differ(&self.states[state]) {
                Some(difference) => Err(format!("names after call {state} of the burst: {difference}")),
                None => self.files(found, state),
            };
            match judged {
                Ok(files) => return Ok(BurstRemains { calls: self.changes_after(state), files }),
                Err(difference) => reason = reason.or(Some(difference)),
            }
        }
        let (floor, last) = (self.names_floor, self.last());
        Err(format!("no state after call {floor} to {last} of the burst; {}", reason.unwrap_or_default()))
    }

    /// The number of calls that changed the tree after a state.
    fn changes_after(&self, state: usize) -> u64 {
        let pairs = self.states[state..].windows(2);
        pairs.filter(|pair| pair[1].names_differ(&pair[0]).is_some()).count() as u64
    }

    /// Judges the bytes of all files, if names are those of a state; returns the number of files whose last data is lost.
    fn files(&self, found: &TreeSnapshot, state: usize) -> Result<u64, String> {
        let mut lost = 0;
        for (path, entry) in &found.entries {
            let expected = self.states[state].entries.get(path);
            let (Some(bytes), Some(inode)) = (entry.bytes(), expected.map(|entry| entry.inode)) else { continue };
            let reason = |reason: String| format!("{} after call {state} of the burst: {reason}", path.display());
            self.time(entry.modified, inode, state).map_err(reason)?;
            let contents = self.contents(inode);
            if contents.last().is_some_and(|(_, last)| *last == bytes) {
                continue;
            }
            lost += 1;
            self.file(bytes, inode, state, &contents).map_err(reason)?;
        }
        Ok(lost)
    }

    /// The bytes of an inode that it had after calls, with the last call until which it had them.
    fn contents(&self, inode: u64) -> Vec<(usize, &Arc<Vec<u8>>)> {
        let mut contents: Vec<(usize, &Arc<Vec<u8>>)> = Vec::new();
        for number in self.all_floor..=self.last() {
            let Some(bytes) = self.bytes_after(number, inode) else { continue };
            match contents.last_mut() {
                Some((until, last)) if Arc::ptr_eq(last, bytes) => *until = number,
                _ => contents.push((number, bytes)),
            }
        }
        contents
    }

    /// The bytes of an inode after a call, if it had a name then.
    fn bytes_after(&self, call: usize, inode: u64) -> Option<&Arc<Vec<u8>>> {
        self.entry_after(call, inode)?.bytes()
    }

    fn entry_after(&self, call: usize, inode: u64) -> Option<&TreeEntry> {
        self.states[call].entries.values().find(|entry| entry.inode == inode)
    }

    /// Judges the time of the last change of a file, if names are those of a state.
    fn time(&self, found: ModifiedTime, inode: u64, state: usize) -> Result<(), String> {
        let after = |call: usize| self.entry_after(call, inode).map(|entry| entry.modified);
        let expected = after(state);
        let is_right = match found {
            _ if expected == Some(found) => true,
            // The data of a later write is there.
            ModifiedTime::Clock => (state..=self.last()).any(|call| after(call) == Some(found)),
            // The data of all writes since is lost.
            _ => {
                let of_file = self.marks.iter().filter(|(at, mark)| *at <= state && mark.inode == inode);
                let durable = of_file.filter(|(_, mark)| mark.order != MarkOrder::Data).map(|(at, _)| *at).max();
                let floor = durable.unwrap_or(0).max(self.all_floor);
                let set = (floor..state).rev().filter_map(after).find(|time| *time != ModifiedTime::Clock);
                expected == Some(ModifiedTime::Clock) && set == Some(found)
            }
        };
        let shown = || expected.map_or_else(String::new, |time| time.to_string());
        if is_right { Ok(()) } else { Err(format!("{found}, and {} after that call", shown())) }
    }

    /// Judges the bytes of a file that are not its last ones.
    fn file(&self, bytes: &[u8], inode: u64, state: usize, contents: &[(usize, &Arc<Vec<u8>>)]) -> Result<(), String> {
        let of_file = self.marks.iter().filter(|(_, mark)| mark.inode == inode);
        let extended_to = of_file.clone().map(|(_, mark)| mark.extended_to).max().unwrap_or(0);
        // What is written to a file without a name may be dropped.
        let is_data = |at: usize, order: MarkOrder| order == MarkOrder::Data && self.bytes_after(at, inode).is_some();
        let marks: Vec<&(usize, DurableMark)> =
            of_file.filter(|(at, mark)| *at <= state || is_data(*at, mark.order)).collect();
        let size_floor = marks.iter().map(|(at, _)| *at).max().unwrap_or(0);
        let mut sizes = contents.iter().filter(|(until, _)| *until >= size_floor);
        if !sizes.any(|(_, content)| content.len() == bytes.len()) {
            let sizes: Vec<_> = contents.iter().map(|(until, content)| (until, content.len())).collect();
            return Err(format!("{} bytes; after calls: {sizes:?}, at least {size_floor}", bytes.len()));
        }
        for (offset, byte) in bytes.iter().enumerate() {
            let covers = |mark: &DurableMark| mark.range.contains(&(offset as u64));
            let floor = marks.iter().filter(|(_, mark)| covers(mark)).map(|(at, _)| *at).max().unwrap_or(0);
            let is_of = |content: &Arc<Vec<u8>>| match content.get(offset) {
                Some(written) => written == byte,
                None => (offset as u64) < extended_to && *byte == 0,
            };
            if !contents.iter().any(|(until, content)| *until >= floor && is_of(content)) {
                return Err(format!("byte {byte} at {offset} of {} is of no call from {floor} on", bytes.len()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
