//! What an operation changes of the names and attributes that sessions may keep.

use super::image::Image;
use super::names::find;
use crate::protocol::{FileId, Operation, Token, What};
use crate::tokens::Change;

impl Image {
    /// Returns the names of directories and the attributes that an operation changes now, in order.
    pub fn touched(&self, operation: &Operation) -> Change {
        let (mut tokens, mut names) = (Vec::new(), Vec::new());
        let mut add = |file: Option<FileId>, what| tokens.extend(file.map(|object| Token { object, what }));
        let mut add_name = |directory: FileId, name: &[u8]| {
            if name.is_empty() {
                return;
            }
            let directory = self.present(directory);
            names.extend(directory.map(|directory| (directory, name.to_vec())));
            add(directory, What::Directory);
            add(directory, What::Attributes);
            add(directory.and_then(|directory| self.named(directory, name)), What::Attributes);
        };
        match operation {
            Operation::Create { directory, name, .. } | Operation::Unlink { directory, name, .. } => {
                add_name(*directory, name);
            }
            Operation::Link { file, directory, name } => {
                add_name(*directory, name);
                add(self.present(*file), What::Attributes);
            }
            Operation::Rename { directory, name, new_directory, new_name, .. } => {
                add_name(*directory, name);
                add_name(*new_directory, new_name);
            }
            Operation::SetAttributes { file, .. }
            | Operation::SetXattr { file, .. }
            | Operation::RemoveXattr { file, .. }
            | Operation::Commit { file, .. }
            | Operation::TakeReserved { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Allocate { file, .. } => add(self.present(*file), What::Attributes),
            Operation::Access { accesses } => {
                accesses.iter().for_each(|accessed| add(self.present(accessed.file), What::Attributes));
            }
            Operation::ReturnSpace { .. } => {}
        }
        tokens.sort_unstable();
        tokens.dedup();
        Change { tokens, names }
    }

    /// Returns the inodes that an operation names by their numbers and that do not exist.
    pub fn missing(&self, operation: &Operation) -> Vec<u64> {
        let named = match operation {
            Operation::Create { directory, .. } | Operation::Unlink { directory, .. } => vec![*directory],
            Operation::Link { file, directory, .. } => vec![*file, *directory],
            Operation::Rename { directory, new_directory, .. } => vec![*directory, *new_directory],
            Operation::SetAttributes { file, .. }
            | Operation::SetXattr { file, .. }
            | Operation::RemoveXattr { file, .. }
            | Operation::Commit { file, .. }
            | Operation::TakeReserved { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Allocate { file, .. } => vec![*file],
            Operation::Access { .. } | Operation::ReturnSpace { .. } => Vec::new(),
        };
        let is_missing = |file: &FileId| self.present(FileId { generation: 0, ..*file }).is_none();
        named.into_iter().filter(is_missing).map(|file| file.inode).collect()
    }

    /// Returns the number that the next inode gets.
    pub fn next_inode(&self) -> u64 {
        self.volume.next_inode.max(self.first_new)
    }

    /// Whether an operation moves a directory to another parent: whether that makes a circle depends on directories that
    /// the operation does not name.
    pub fn moves_directory(&self, operation: &Operation) -> bool {
        let Operation::Rename { directory, name, new_directory, new_name, .. } = operation else { return false };
        let is_directory = |directory: &FileId, name: &[u8]| {
            let named = self.present(*directory).and_then(|directory| self.named(directory, name));
            let found = named.and_then(|named| self.attributes(named).ok());
            found.is_some_and(|found| found.inode.mode & libc::S_IFMT == libc::S_IFDIR)
        };
        directory != new_directory && (is_directory(directory, name) || is_directory(new_directory, new_name))
    }

    /// Returns a file with its present generation, if it exists.
    pub fn present(&self, file: FileId) -> Option<FileId> {
        self.attributes(file).ok().map(|attributes| attributes.id())
    }

    fn named(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        let (_, named) = find(&self.tables, &self.hash_key, directory.inode, name).ok()??;
        self.present(FileId { inode: named.inode, generation: 0 })
    }
}
