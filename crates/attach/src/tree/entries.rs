//! Changes of names: making, linking, renaming and removing nodes.
//!
//! Owns: what these requests do in the source, and what the known nodes learn from it: their names, and that a change of
//! a file's attributes is this mount's own. Promises: a file that is removed while a program has it open can still be
//! read and written; if too many such files are kept, the removal fails with `EMFILE`.

use std::ffi::CStr;
use std::fs::File;
use std::sync::Arc;

use nectary_fuse::{FuseFileSystem, LookupEntry, RequestCaller, RequestContext};

use super::access_lists;
use super::nodes::TreeNode;
use super::serve::{NewHandle, Result, TreeFileSystem};
use super::source::OwnChange;
use super::sys;

impl TreeFileSystem {
    /// Sets the owner of a new node to the caller, and the group too, unless the directory's set-group-id bit
    /// determines it.
    fn give(parent: &File, descriptor: &File, caller: RequestCaller, mode: u32) -> Result<()> {
        let parent = sys::stat(parent)?;
        let group = (parent.st_mode & libc::S_ISGID == 0).then_some(caller.group);
        sys::set_owner(descriptor, Some(caller.user), group)?;
        // The change of owner cleared these bits, so they are set again. The other bits may come from the directory's
        // default list.
        let bits = if mode & libc::S_IFMT == libc::S_IFREG { mode & 0o6000 } else { 0 };
        if bits == 0 { Ok(()) } else { sys::set_mode(descriptor, sys::stat(descriptor)?.st_mode & 0o777 | bits) }
    }

    /// Makes a named node with `make`, which gets the final mode; `mode` is the mode and the umask of the request.
    pub(super) fn make(
        &self,
        of: RequestContext,
        name: &CStr,
        mode: (u32, u32),
        make: impl FnOnce(&File, u32) -> Result<()>,
    ) -> Result<LookupEntry> {
        self.changes()?;
        let parent = self.nodes.descriptor(&*self.nodes.get(of.node)?)?;
        let mode = access_lists::mode_of_new(&parent, mode);
        make(&parent, mode)?;
        let descriptor = self.nodes.opening(|| sys::look_up(&parent, name))?;
        TreeFileSystem::give(&parent, &descriptor, of.caller, mode)?;
        Ok(self.nodes.know(descriptor, Some((of.node, name)))?.1)
    }

    /// Creates and opens a file, with or without a name.
    pub(super) fn create_file(
        &self,
        of: RequestContext,
        name: Option<&CStr>,
        mode: (u32, u32),
        flags: i32,
    ) -> Result<(LookupEntry, NewHandle)> {
        self.changes()?;
        let parent = self.nodes.descriptor(&*self.nodes.get(of.node)?)?;
        let mode = access_lists::mode_of_new(&parent, mode) & 0o7777;
        let look_up = |name| self.nodes.opening(|| sys::look_up(&parent, name));
        let descriptor = match name {
            Some(name) => match self.nodes.opening(|| sys::create(&parent, name, mode)) {
                Ok(_) => {
                    let descriptor = look_up(name)?;
                    TreeFileSystem::give(&parent, &descriptor, of.caller, mode | libc::S_IFREG)?;
                    descriptor
                }
                // The file exists already; that is an error only with `O_EXCL`.
                Err(error) if error.number() == libc::EEXIST && flags & libc::O_EXCL == 0 => look_up(name)?,
                Err(error) => return Err(error),
            },
            None => {
                let created = self.nodes.opening(|| sys::create_nameless(&parent, mode))?;
                TreeFileSystem::give(&parent, &created, of.caller, mode | libc::S_IFREG)?;
                created
            }
        };
        let (node, mut entry) = self.nodes.know(descriptor, name.map(|name| (of.node, name)))?;
        let kept = if name.is_none() { self.nodes.keep_nameless(&node) } else { Ok(()) };
        let opened = kept.and_then(|()| self.cached_file(&node)).and_then(|file| {
            file.source.writer()?;
            entry.attributes = self.nodes.attributes(&node)?;
            Ok((entry, self.add_file(&node, file, flags)?))
        });
        if opened.is_err() {
            self.forget(node.number, 1);
        }
        opened
    }

    /// Adds a name for a node in the directory `parent`.
    pub(super) fn add_name(&self, parent: u64, node: u64, new_name: &CStr) -> Result<LookupEntry> {
        self.changes()?;
        let (node, parent) = (self.nodes.get(node)?, self.nodes.get(parent)?);
        let change = OwnChange::of(&node);
        sys::link(&*self.nodes.descriptor(&node)?, &*self.nodes.descriptor(&parent)?, new_name)?;
        drop(change);
        Ok(self.nodes.look_up(&parent, new_name)?.1)
    }

    pub(super) fn remove_name(&self, parent: u64, name: &CStr, is_directory: bool) -> Result<()> {
        self.changes()?;
        let above = self.nodes.descriptor(&*self.nodes.get(parent)?)?;
        let removal = match self.nodes.named(&above, name) {
            Some(node) => Some(self.nodes.removing(node, parent, name, is_directory)?),
            None => None,
        };
        let removed = sys::unlink(&above, name, is_directory);
        if let Some(removal) = removal {
            self.nodes.removed(removal, parent, name, removed.is_ok());
        }
        removed
    }

    /// Renames an entry of the directory `above`.
    pub(super) fn move_name(&self, above: u64, name: &CStr, parent: u64, new_name: &CStr, flags: u32) -> Result<()> {
        self.changes()?;
        let from = self.nodes.descriptor(&*self.nodes.get(above)?)?;
        let to = self.nodes.descriptor(&*self.nodes.get(parent)?)?;
        let moved = self.nodes.named(&from, name);
        let is_moved = |node: &Arc<TreeNode>| moved.as_ref().is_some_and(|moved| Arc::ptr_eq(moved, node));
        // If both are names of one file, nothing happens.
        let replaced = self.nodes.named(&to, new_name).filter(|node| !is_moved(node));
        let own = moved.as_deref().and_then(OwnChange::of);
        if flags & libc::RENAME_EXCHANGE != 0 {
            let other = replaced.as_deref().and_then(OwnChange::of);
            sys::rename(&from, name, &to, new_name, flags)?;
            drop(other);
            if let Some(node) = &replaced {
                self.nodes.rename(node, above, name);
            }
        } else {
            let removal = match replaced {
                Some(node) => {
                    let is_directory = self.nodes.attributes(&node)?.mode & libc::S_IFMT == libc::S_IFDIR;
                    Some(self.nodes.removing(node, parent, new_name, is_directory)?)
                }
                None => None,
            };
            let renamed = sys::rename(&from, name, &to, new_name, flags);
            if let Some(removal) = removal {
                self.nodes.removed(removal, parent, new_name, renamed.is_ok());
            }
            renamed?;
        }
        drop(own);
        if let Some(node) = &moved {
            self.nodes.rename(node, parent, new_name);
        }
        Ok(())
    }
}
