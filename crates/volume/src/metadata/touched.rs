//! What an operation changes of the names and attributes that sessions may keep.

use super::image::MetadataImage;
use super::names::find;
use crate::protocol::{FileId, MetadataOperation, Token, TokenAspect};
use crate::tokens::LookupChange;

impl MetadataImage {
    /// Returns the names of directories and the attributes that an operation changes now, in order.
    pub fn touched(&self, operation: &MetadataOperation) -> LookupChange {
        let (mut tokens, mut names) = (Vec::new(), Vec::new());
        let mut add = |file: Option<FileId>, what| tokens.extend(file.map(|object| Token { object, what }));
        let mut add_name = |directory: FileId, name: &[u8]| {
            if name.is_empty() {
                return;
            }
            let directory = self.present(directory);
            names.extend(directory.map(|directory| (directory, name.to_vec())));
            add(directory, TokenAspect::Directory);
            add(directory, TokenAspect::Attributes);
            add(directory.and_then(|directory| self.named(directory, name)), TokenAspect::Attributes);
        };
        match operation {
            MetadataOperation::Create { directory, name, .. } | MetadataOperation::Unlink { directory, name, .. } => {
                add_name(*directory, name);
            }
            MetadataOperation::Link { file, directory, name } => {
                add_name(*directory, name);
                add(self.present(*file), TokenAspect::Attributes);
            }
            MetadataOperation::Rename { directory, name, new_directory, new_name, .. } => {
                add_name(*directory, name);
                add_name(*new_directory, new_name);
            }
            MetadataOperation::SetAttributes { file, .. }
            | MetadataOperation::SetXattr { file, .. }
            | MetadataOperation::RemoveXattr { file, .. }
            | MetadataOperation::Commit { file, .. }
            | MetadataOperation::TakeReserved { file, .. }
            | MetadataOperation::Truncate { file, .. }
            | MetadataOperation::Allocate { file, .. } => add(self.present(*file), TokenAspect::Attributes),
            MetadataOperation::Access { accesses } => {
                accesses.iter().for_each(|accessed| add(self.present(accessed.file), TokenAspect::Attributes));
            }
            MetadataOperation::ReturnSpace { .. } => {}
        }
        tokens.sort_unstable();
        tokens.dedup();
        LookupChange { tokens, names }
    }

    /// Returns the inodes that an operation names by their numbers and that do not exist.
    pub fn missing(&self, operation: &MetadataOperation) -> Vec<u64> {
        let named = match operation {
            MetadataOperation::Create { directory, .. } | MetadataOperation::Unlink { directory, .. } => {
                vec![*directory]
            }
            MetadataOperation::Link { file, directory, .. } => vec![*file, *directory],
            MetadataOperation::Rename { directory, new_directory, .. } => vec![*directory, *new_directory],
            MetadataOperation::SetAttributes { file, .. }
            | MetadataOperation::SetXattr { file, .. }
            | MetadataOperation::RemoveXattr { file, .. }
            | MetadataOperation::Commit { file, .. }
            | MetadataOperation::TakeReserved { file, .. }
            | MetadataOperation::Truncate { file, .. }
            | MetadataOperation::Allocate { file, .. } => vec![*file],
            MetadataOperation::Access { .. } | MetadataOperation::ReturnSpace { .. } => Vec::new(),
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
    pub fn moves_directory(&self, operation: &MetadataOperation) -> bool {
        let MetadataOperation::Rename { directory, name, new_directory, new_name, .. } = operation else {
            return false;
        };
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
