//! The names, attributes and contents of a volume as one call after another leaves them.
//!
//! Owns: the calls, their outcomes, and the effect of each. Files are known by the tags of the calls that made them, so
//! that a file that another one with the same number has replaced is not mistaken for it.

use std::collections::BTreeMap;

/// The tag of the call that made a file.
pub type Tag = u64;
/// The tag of the root.
pub const ROOT: Tag = 0;
/// The size of a file that was written to. *Units*: bytes.
pub const WRITTEN_BYTES: u64 = 8;

/// A name: its directory and its number.
pub type Place = (Tag, u8);

/// A file or a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct VolumeTreeNode {
    is_directory: bool,
    /// The directory above a directory.
    parent: Tag,
    links: u32,
    mode: u32,
    /// What was written last; 0: nothing.
    value: u64,
}

/// All names and files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelTree {
    names: BTreeMap<Place, Tag>,
    nodes: BTreeMap<Tag, VolumeTreeNode>,
}

/// A call of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamesCall {
    /// Looks a name up.
    Look(Place),
    /// Lists a directory.
    List(Tag),
    /// Returns attributes.
    Stat(Tag),
    /// Makes a file or a directory.
    Make { place: Place, tag: Tag, mode: u32, is_directory: bool },
    /// Removes a name.
    Unlink { place: Place, is_directory: bool },
    /// Adds a name.
    Link(Tag, Place),
    /// Renames, as `renameat2` does.
    Rename { from: Place, to: Place, flags: u32 },
    /// Sets the mode.
    Mode(Tag, u32),
    /// Reads a file.
    Read(Tag),
    /// Writes a file.
    Write(Tag, u64),
    /// Truncates a file to nothing.
    Cut(Tag),
}

/// What a program was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeOutcome {
    /// The call was refused, with this error.
    Refused(i32),
    /// It is done.
    Done,
    /// The file that has the name.
    Found(Option<Tag>),
    /// All names of a directory.
    Names(BTreeMap<u8, Tag>),
    /// The attributes: links, mode and size.
    Attributes { links: u32, mode: u32, size: u64 },
    /// What was written last.
    Value(u64),
}

/// The effect of a call at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEffect {
    /// It cannot have had its outcome.
    Impossible,
    /// It changed nothing.
    Seen,
    /// It changed the tree to this.
    Changed(Box<ModelTree>),
}

impl NamesCall {
    /// Whether the call changes something if it succeeds.
    pub fn is_change(&self) -> bool {
        !matches!(self, NamesCall::Look(_) | NamesCall::List(_) | NamesCall::Stat(_) | NamesCall::Read(_))
    }

    /// Returns the tag of what the call makes.
    pub fn made(&self) -> Option<Tag> {
        match self {
            NamesCall::Make { tag, .. } => Some(*tag),
            _ => None,
        }
    }

    /// Whether the call changes contents, not names or attributes.
    pub fn is_of_data(&self) -> bool {
        matches!(self, NamesCall::Write(..))
    }
}

impl Default for ModelTree {
    fn default() -> ModelTree {
        let root = VolumeTreeNode { is_directory: true, parent: ROOT, links: 2, mode: 0o755, value: 0 };
        ModelTree { names: BTreeMap::new(), nodes: BTreeMap::from([(ROOT, root)]) }
    }
}

impl ModelTree {
    /// Returns the effect of a call with this outcome; `None`: nobody knows the outcome.
    pub fn effect(&self, call: &NamesCall, outcome: Option<&TreeOutcome>) -> TreeEffect {
        let is = |is: bool| if is { TreeEffect::Seen } else { TreeEffect::Impossible };
        match (call, outcome) {
            (NamesCall::Look(place), Some(TreeOutcome::Found(found))) => is(self.names.get(place) == found.as_ref()),
            (NamesCall::List(directory), Some(TreeOutcome::Names(names))) => is(self.names_of(*directory) == *names),
            (NamesCall::Look((directory, _)) | NamesCall::List(directory), _) => is(!self.is_alive(*directory)),
            (NamesCall::Stat(file), Some(TreeOutcome::Attributes { links, mode, size })) => {
                let is_it = |node: &VolumeTreeNode| {
                    let is_written = if node.value == 0 { 0 } else { WRITTEN_BYTES };
                    (node.links, node.mode) == (*links, *mode) && (node.is_directory || is_written == *size)
                };
                is(self.nodes.get(file).is_some_and(is_it))
            }
            (NamesCall::Read(file), Some(TreeOutcome::Value(value))) => {
                is(self.nodes.get(file).is_some_and(|node| node.value == *value))
            }
            (NamesCall::Stat(file) | NamesCall::Read(file), _) => is(!self.is_alive(*file)),
            // What has lost its last name may be there as long as it is open.
            (
                NamesCall::Mode(file, _) | NamesCall::Write(file, _) | NamesCall::Cut(file),
                Some(TreeOutcome::Refused(_)),
            ) => is(!self.is_alive(*file)),
            (call, outcome) => {
                let mut after = self.clone();
                match (after.change(call), outcome) {
                    (Some(()), Some(TreeOutcome::Done) | None) if after == *self => TreeEffect::Seen,
                    (Some(()), Some(TreeOutcome::Done) | None) => TreeEffect::Changed(Box::new(after)),
                    (None, Some(TreeOutcome::Refused(_))) => TreeEffect::Seen,
                    _ => TreeEffect::Impossible,
                }
            }
        }
    }

    fn is_alive(&self, file: Tag) -> bool {
        self.nodes.get(&file).is_some_and(|node| node.links > 0)
    }

    fn is_directory(&self, file: Tag) -> bool {
        self.nodes.get(&file).is_some_and(|node| node.is_directory)
    }

    fn names_of(&self, directory: Tag) -> BTreeMap<u8, Tag> {
        let names = self.names.range((directory, 0)..=(directory, u8::MAX));
        names.map(|((_, name), file)| (*name, *file)).collect()
    }

    fn is_below(&self, below: Tag, above: Tag) -> bool {
        let mut at = below;
        while at != above && at != ROOT {
            at = self.nodes.get(&at).map_or(ROOT, |node| node.parent);
        }
        at == above
    }

    /// Adds a name; of a directory, the number of links above it grows.
    fn add(&mut self, place: Place, file: Tag) {
        self.names.insert(place, file);
        if self.is_directory(file) {
            self.nodes.entry(file).and_modify(|node| node.parent = place.0);
            self.nodes.entry(place.0).and_modify(|node| node.links += 1);
        }
    }

    fn remove(&mut self, place: Place, file: Tag) {
        self.names.remove(&place);
        if self.is_directory(file) {
            self.nodes.entry(place.0).and_modify(|node| node.links -= 1);
        }
    }

    fn lose_link(&mut self, file: Tag) {
        let is_directory = self.is_directory(file);
        self.nodes.entry(file).and_modify(|node| node.links = if is_directory { 0 } else { node.links - 1 });
    }

    /// Makes a change; `None`: it is refused.
    fn change(&mut self, call: &NamesCall) -> Option<()> {
        match call {
            NamesCall::Make { place, tag, mode, is_directory } => {
                if !self.is_alive(place.0) || self.names.contains_key(place) {
                    return None;
                }
                let links = if *is_directory { 2 } else { 1 };
                let made =
                    VolumeTreeNode { is_directory: *is_directory, parent: place.0, links, mode: *mode, value: 0 };
                self.nodes.insert(*tag, made);
                self.add(*place, *tag);
            }
            NamesCall::Unlink { place, is_directory } => {
                let file = *self.names.get(place)?;
                if self.is_directory(file) != *is_directory || *is_directory && !self.names_of(file).is_empty() {
                    return None;
                }
                self.remove(*place, file);
                self.lose_link(file);
            }
            NamesCall::Link(file, place) => {
                let is_possible = self.is_alive(*file) && !self.is_directory(*file) && self.is_alive(place.0);
                if !is_possible || self.names.contains_key(place) {
                    return None;
                }
                self.nodes.entry(*file).and_modify(|node| node.links += 1);
                self.add(*place, *file);
            }
            NamesCall::Rename { from, to, flags } => self.rename(*from, *to, *flags)?,
            NamesCall::Mode(file, mode) => self.nodes.get_mut(file)?.mode = *mode,
            NamesCall::Write(file, value) => self.nodes.get_mut(file)?.value = *value,
            NamesCall::Cut(file) => self.nodes.get_mut(file)?.value = 0,
            NamesCall::Look(_) | NamesCall::List(_) | NamesCall::Stat(_) | NamesCall::Read(_) => {}
        }
        Some(())
    }

    fn rename(&mut self, from: Place, to: Place, flags: u32) -> Option<()> {
        if !self.is_alive(from.0) || !self.is_alive(to.0) {
            return None;
        }
        let moved = *self.names.get(&from)?;
        if self.is_directory(moved) && self.is_below(to.0, moved) {
            return None;
        }
        let replaced = self.names.get(&to).copied();
        if flags & libc::RENAME_EXCHANGE != 0 {
            let other = replaced?;
            if other == moved {
                return Some(());
            }
            if self.is_directory(other) && self.is_below(from.0, other) {
                return None;
            }
            self.remove(from, moved);
            self.remove(to, other);
            self.add(to, moved);
            self.add(from, other);
            return Some(());
        }
        if let Some(other) = replaced {
            if flags & libc::RENAME_NOREPLACE != 0 {
                return None;
            }
            if other == moved {
                return Some(());
            }
            if self.is_directory(other) != self.is_directory(moved) || !self.names_of(other).is_empty() {
                return None;
            }
            self.remove(to, other);
            self.lose_link(other);
        }
        self.remove(from, moved);
        self.add(to, moved);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(tree: &ModelTree, call: NamesCall) -> ModelTree {
        match tree.effect(&call, Some(&TreeOutcome::Done)) {
            TreeEffect::Changed(tree) => *tree,
            other => panic!("{call:?}: {other:?}"),
        }
    }

    #[test]
    fn directories_never_go_below_themselves() {
        let make = |place, tag| NamesCall::Make { place, tag, mode: 0, is_directory: true };
        let tree = after(&ModelTree::default(), make((ROOT, 1), 1));
        let tree = after(&tree, make((ROOT, 2), 2));
        let tree = after(&tree, NamesCall::Rename { from: (ROOT, 2), to: (1, 2), flags: 0 });
        let back = NamesCall::Rename { from: (ROOT, 1), to: (2, 1), flags: 0 };
        assert_eq!(tree.effect(&back, Some(&TreeOutcome::Refused(libc::EINVAL))), TreeEffect::Seen);
        assert_eq!(tree.effect(&back, Some(&TreeOutcome::Done)), TreeEffect::Impossible);
        let stat = |links| TreeOutcome::Attributes { links, mode: 0o755, size: 0 };
        assert_eq!(tree.effect(&NamesCall::Stat(ROOT), Some(&stat(3))), TreeEffect::Seen);
        assert_eq!(tree.effect(&NamesCall::Stat(ROOT), Some(&stat(4))), TreeEffect::Impossible);
    }

    #[test]
    fn replaced_files_lose_a_link() {
        let make = |name, tag| NamesCall::Make { place: (ROOT, name), tag, mode: 0o600, is_directory: false };
        let tree = after(&after(&ModelTree::default(), make(1, 1)), make(2, 2));
        let tree = after(&tree, NamesCall::Rename { from: (ROOT, 1), to: (ROOT, 2), flags: 0 });
        assert_eq!(tree.effect(&NamesCall::Look((ROOT, 2)), Some(&TreeOutcome::Found(Some(1)))), TreeEffect::Seen);
        assert_eq!(tree.effect(&NamesCall::Stat(2), Some(&TreeOutcome::Refused(libc::ESTALE))), TreeEffect::Seen);
        assert_eq!(tree.effect(&NamesCall::Stat(1), Some(&TreeOutcome::Refused(libc::ESTALE))), TreeEffect::Impossible);
        let same = after(&tree, NamesCall::Link(1, (ROOT, 5)));
        let renamed = NamesCall::Rename { from: (ROOT, 5), to: (ROOT, 2), flags: 0 };
        assert_eq!(same.effect(&renamed, Some(&TreeOutcome::Done)), TreeEffect::Seen, "two names of one file");
    }
}
