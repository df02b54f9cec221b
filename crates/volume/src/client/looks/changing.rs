//! Changes by this session that have no answer yet, and what is kept of their answers.
//!
//! Owns: what an operation may change of what the session keeps. Promises: nothing that is being changed is kept,
//! except as the newest operation has left it. Leaves to others: the tables (`looks`).
//!
//! The server does the operations of a session in the order in which they begin here. So what the answer to one shows
//! includes all that began before it, also those without an answer; and if none began after it, it is what the server
//! has.

use std::sync::Arc;

use super::LookupCache;
use crate::protocol::{FileId, MayKeep, MetadataOperation};

/// What an operation makes of the names that it changes, if it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameFate {
    /// They are names of the inode that the answer shows.
    Made,
    /// They are absent.
    Removed,
    /// That depends.
    Unsure,
}

impl NameFate {
    /// Whether the inodes that have the names change, too.
    fn is_by_name(self) -> bool {
        self != NameFate::Made
    }
}

/// A change by this session that has no answer yet: nothing that it may change is kept until this is dropped.
#[derive(Debug)]
pub(in crate::client) struct PendingChange {
    looks: Arc<LookupCache>,
    /// The directories in which it changes names; one may be there twice.
    directories: Vec<FileId>,
    names: Vec<(FileId, Vec<u8>)>,
    fate: NameFate,
    /// Other inodes that it changes.
    objects: Vec<FileId>,
    is_of_unknown: bool,
    pub(super) begun: u64,
    /// What may be kept, and the inode that the answer shows.
    kept: Option<(MayKeep, Option<FileId>)>,
}

impl PendingChange {
    /// Ends the change, which succeeded: keeps what the server lets the session keep. `shown` is the inode in the
    /// answer.
    pub fn end_with(mut self, may_keep: MayKeep, shown: Option<FileId>) {
        self.kept = Some((may_keep, shown));
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        let (may_keep, shown) = self.kept.take().unwrap_or_default();
        let begun = self.begun;
        let mut table = self.looks.table();
        let is_by_name = self.fate.is_by_name();
        let mut is_of_others = false;
        for directory in &self.directories {
            table.end_names_of(*directory, is_by_name);
            is_of_others |= table.stamp(*directory).names_changed > begun;
        }
        self.objects.iter().for_each(|object| table.end(*object));
        // Another session has changed names meanwhile: the change may be of other inodes than those that had the names.
        if is_by_name && is_of_others {
            table.drop_all();
        }
        if self.is_of_unknown {
            table.of_all.changing -= 1;
            table.drop_all();
        }
        for directory in &may_keep.directories {
            if table.has_same_names(*directory, begun) {
                table.directories.insert(*directory);
            }
        }
        for (directory, name) in &self.names {
            let is_kept = may_keep.directories.contains(directory) && table.has_same_names(*directory, begun);
            let inode = match self.fate {
                NameFate::Made => shown.map(Some),
                NameFate::Removed => Some(None),
                NameFate::Unsure => None,
            };
            table.end_name((*directory, name.as_slice()), inode.filter(|_| is_kept), begun);
        }
        // A new directory has no names.
        if let Some(made) = shown
            && self.fate == NameFate::Made
            && !self.directories.contains(&made)
            && may_keep.directories.contains(&made)
            && table.has_same_names(made, begun)
            && table.is_undisturbed(made, begun)
        {
            table.with_names(made, |names, _| names.complete());
        }
        for found in may_keep.attributes {
            if table.is_undisturbed(found.id(), begun) {
                table.insert_attributes(found);
            }
        }
    }
}

impl LookupCache {
    /// Begins a change by this session.
    pub fn changing(self: &Arc<LookupCache>, operation: &MetadataOperation) -> PendingChange {
        let (mut directories, mut names, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        // The names, and whether the inode that has the name changes, too.
        let mut named: Vec<(FileId, &[u8], bool)> = Vec::new();
        let mut fate = NameFate::Unsure;
        match operation {
            MetadataOperation::Create { directory, name, .. } => {
                named.push((*directory, name.as_slice(), false));
                fate = NameFate::Made;
            }
            MetadataOperation::Link { file, directory, name } => {
                objects.push(*file);
                named.push((*directory, name.as_slice(), false));
                fate = NameFate::Made;
            }
            MetadataOperation::Unlink { directory, name, .. } => {
                named.push((*directory, name.as_slice(), true));
                fate = NameFate::Removed;
            }
            MetadataOperation::Rename { directory, name, new_directory, new_name, .. } => {
                named.push((*directory, name.as_slice(), true));
                named.push((*new_directory, new_name.as_slice(), true));
            }
            MetadataOperation::SetAttributes { file, .. }
            | MetadataOperation::SetXattr { file, .. }
            | MetadataOperation::RemoveXattr { file, .. }
            | MetadataOperation::Commit { file, .. }
            | MetadataOperation::TakeReserved { file, .. }
            | MetadataOperation::Truncate { file, .. }
            | MetadataOperation::Allocate { file, .. } => objects.push(*file),
            MetadataOperation::Access { accesses } => objects.extend(accesses.iter().map(|accessed| accessed.file)),
            MetadataOperation::ReturnSpace { .. } => {}
        }
        let (mut table, mut is_of_unknown) = (self.table(), false);
        for (directory, name, is_inode_changed) in named {
            directories.push(directory);
            // A file that is made without a name changes none.
            if name.is_empty() {
                continue;
            }
            names.push((directory, name.to_vec()));
            if is_inode_changed {
                match table.inode_of(directory, name) {
                    Some(inode) => objects.extend(inode),
                    None => is_of_unknown = true,
                }
            }
        }
        is_of_unknown |= directories.iter().chain(&objects).any(|object| object.generation == 0);
        directories.iter().for_each(|directory| table.begin_names_of(*directory, fate.is_by_name()));
        objects.iter().for_each(|object| table.begin(*object, fate.is_by_name() && !names.is_empty()));
        if is_of_unknown {
            table.of_all.changing += 1;
            table.drop_all();
        }
        let begun = table.tick();
        for (directory, name) in &names {
            table.with_names(*directory, |of, _| of.begin(name, begun));
        }
        drop(table);
        let looks = self.clone();
        PendingChange { looks, directories, names, fate, objects, is_of_unknown, begun, kept: None }
    }
}
