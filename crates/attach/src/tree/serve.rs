//! The translation of the kernel's requests to calls on the source directory.
//!
//! Owns: the file system. Names and attributes are those of the source, read at each request; file contents go through
//! the cache. Leaves to the kernel: permissions, which it checks by mode, owner and access control list; and locks,
//! which work between programs that use the mount.

use std::ffi::CStr;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nectary_block::IoContext;
use nectary_fuse::protocol::{decode_device, open_flags, valid};
use nectary_fuse::{
    CopyCall, DirectoryListing, Errno, FuseFileSystem, LookupEntry, NegotiationResult, PooledData, ReadCall,
    ReplyHandle, RequestContext, RequestedFeatures, SetAttributes, WriteCall, features,
};
use nectary_host::log::{self, LogLevel};
use tokio::runtime::Handle as Runtime;
use tokio::task::JoinSet;

use super::access_lists;
use super::data::DataPath;
use super::descriptors::DescriptorTicket;
use super::handles::{HandleTable, OpenDirectory, OpenFile, OpenHandle};
use super::nodes::{TreeNode, TreeNodes};
use super::passed::PassedFiles;
use super::source::{CachedFile, FileSource, FileSourceHandle, OwnChange, errno};
use super::sys::{self, SetTime};

/// The result of a request.
pub(super) type Result<T> = std::result::Result<T, Errno>;

/// The size of the buffer for reading a directory. *Units*: bytes.
const DIRECTORY_BYTES: usize = 32 << 10;

/// The flags of files whose bytes go through the cache.
const CACHED: u32 = open_flags::DIRECT_IO | open_flags::NO_FLUSH;
/// The flags of files that the kernel reads itself.
const PASSED: u32 = open_flags::PASSTHROUGH | open_flags::NO_FLUSH;

/// A new handle: its number, and the number of the file that the kernel reads itself, or 0.
pub(super) type NewHandle = (u64, u32);

/// A source directory behind a cache, as a FUSE file system.
pub struct TreeFileSystem {
    pub(super) nodes: Arc<TreeNodes>,
    handles: HandleTable,
    /// The files that the kernel reads itself.
    pub(super) passed: PassedFiles,
    pub(super) bytes: Arc<DataPath>,
    /// Whether changes are refused.
    pub(super) read_only: AtomicBool,
    runtime: Runtime,
    tasks: Mutex<JoinSet<()>>,
}

impl TreeFileSystem {
    /// Makes the file system of the source of `nodes`. File contents go through `bytes`, unless they are `passed`;
    /// requests that wait run in `runtime`.
    pub fn new(
        nodes: Arc<TreeNodes>,
        bytes: Arc<DataPath>,
        passed: PassedFiles,
        read_only: bool,
        runtime: Runtime,
    ) -> Result<TreeFileSystem> {
        let (handles, read_only) = (HandleTable::default(), AtomicBool::new(read_only));
        Ok(TreeFileSystem { nodes, handles, passed, bytes, read_only, runtime, tasks: Mutex::new(JoinSet::new()) })
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn_on(task, &self.runtime);
        while tasks.try_join_next().is_some() {}
    }

    /// Waits for all tasks, and closes the cache.
    pub async fn finish(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
        let _ = self.bytes.cache.close().await;
    }

    pub(super) fn changes(&self) -> Result<()> {
        if self.read_only.load(Ordering::Acquire) { Err(Errno::new(libc::EROFS)) } else { Ok(()) }
    }

    /// Returns the file of a node in the cache. Checks first whether others changed the source file.
    pub(super) fn cached_file(&self, node: &Arc<TreeNode>) -> Result<Arc<CachedFile>> {
        let mut file = node.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            if !self.nodes.is_exclusive {
                file.source.look(None)?;
            }
            return Ok(file.clone());
        }
        let source = Arc::new(FileSource::open(&self.nodes, node)?);
        let id = self.bytes.cache.add(Arc::new(FileSourceHandle(source.clone()))).map_err(|error| errno(&error))?;
        source.cached_as(id);
        let cached = Arc::new(CachedFile { id, source });
        *file = Some(cached.clone());
        Ok(cached)
    }

    /// Adds an open file.
    pub(super) fn add_file(&self, node: &Arc<TreeNode>, file: Arc<CachedFile>, flags: i32) -> Result<NewHandle> {
        self.nodes.add_open(node)?;
        let size = file.source.sight.size();
        let backing = self.passed.begin(node.number, size, flags, || self.nodes.descriptor(node));
        Ok((self.handles.add_file(node.clone(), file, flags), backing))
    }

    fn open_handle(&self, node: u64, flags: i32) -> Result<NewHandle> {
        let node = self.nodes.get(node)?;
        let file = self.cached_file(&node)?;
        let is_writing = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if is_writing {
            self.changes()?;
            file.source.writer()?;
        }
        let opened = self.add_file(&node, file, flags)?;
        // The tree may have become read-only before the handle was counted.
        if is_writing && let Err(error) = self.changes() {
            self.close(opened.0);
            return Err(error);
        }
        Ok(opened)
    }

    fn directory_handle(&self, node: u64) -> Result<u64> {
        let node = self.nodes.get(node)?;
        let directory = OpenDirectory { node, ticket: DescriptorTicket::default(), reading: Mutex::default() };
        self.directory(&directory)?;
        self.nodes.add_open(&directory.node)?;
        Ok(self.handles.add_directory(directory))
    }

    /// An open directory, open for reading.
    fn directory(&self, directory: &OpenDirectory) -> Result<Arc<File>> {
        if let Some(opened) = self.nodes.descriptors.get(&directory.ticket) {
            return Ok(opened);
        }
        let descriptor = self.nodes.descriptor(&directory.node)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let opened = Arc::new(self.nodes.opening(|| sys::open(&descriptor, flags))?);
        self.nodes.descriptors.put(&directory.ticket, opened.clone());
        Ok(opened)
    }

    fn close(&self, handle: u64) {
        match self.handles.remove(handle) {
            Some(OpenHandle::File(file)) => {
                while !self.passed.end(file.node.number) {
                    if let Some(mut change) = OwnChange::of(&file.node) {
                        change.bytes(0, u64::MAX);
                    }
                }
                self.nodes.remove_open(&file.node);
            }
            Some(OpenHandle::Directory(directory)) => {
                self.nodes.descriptors.close(&directory.ticket);
                self.nodes.remove_open(&directory.node);
            }
            None => {}
        }
    }

    /// The descriptor of a node, by the node's number.
    fn at(&self, number: u64) -> Result<Arc<File>> {
        self.nodes.descriptor(&*self.nodes.get(number)?)
    }

    fn set(&self, number: u64, change: SetAttributes) -> Result<nectary_fuse::NodeAttributes> {
        self.changes()?;
        let node = self.nodes.get(number)?;
        let descriptor = self.nodes.descriptor(&node)?;
        let mut own = OwnChange::of(&node);
        let has = |bit| change.valid & bit != 0;
        if has(valid::MODE) {
            sys::set_mode(&descriptor, change.mode)?;
        }
        if has(valid::USER | valid::GROUP) {
            let user = has(valid::USER).then_some(change.user);
            sys::set_owner(&*descriptor, user, has(valid::GROUP).then_some(change.group))?;
        }
        if has(valid::SIZE) {
            let before = sys::stat(&*descriptor)?.st_size as u64;
            // Drops the blocks from the shorter size on: the last block in memory may have bytes that the file no
            // longer has.
            if let Some(own) = &mut own {
                own.bytes(change.size.min(before), u64::MAX);
            }
            self.nodes.opening(|| sys::open(&descriptor, libc::O_WRONLY))?.set_len(change.size)?;
        }
        let time = |is_set, is_now, (seconds, ns)| match (has(is_now), has(is_set)) {
            (true, _) => SetTime::Now,
            (false, true) => SetTime::To(seconds, ns),
            (false, false) => SetTime::Keep,
        };
        if has(valid::ACCESSED | valid::MODIFIED | valid::ACCESSED_NOW | valid::MODIFIED_NOW) {
            let accessed = time(valid::ACCESSED, valid::ACCESSED_NOW, change.accessed);
            let modified = time(valid::MODIFIED, valid::MODIFIED_NOW, change.modified);
            sys::set_times(&descriptor, accessed, modified)?;
        }
        drop(own);
        self.nodes.attributes(&node)
    }

    /// Lists a directory; with `plus` each entry counts as a look-up.
    fn list(&self, number: u64, handle: u64, offset: u64, size: u32, plus: bool) -> Result<DirectoryListing> {
        let parent = self.nodes.get(number)?;
        let open = self.handles.directory(handle)?;
        let _reading = open.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.directory(&open)?;
        let mut listing = DirectoryListing::new(size, plus);
        let bytes_max = DIRECTORY_BYTES.min((size as usize).max(4096));
        sys::read_directory(&directory, offset, bytes_max, |entry| {
            let known = if plus { self.entry_of(&parent, entry.name) } else { LookupEntry::default() };
            let is_added = listing.add(entry.name.to_bytes(), entry.inode, entry.kind, entry.next, &known);
            if !is_added && known.node != 0 {
                self.forget(known.node, 1);
            }
            is_added
        })?;
        Ok(listing)
    }

    /// The entry of a name in a listing; an empty entry for `.`, `..` and names that were just deleted.
    fn entry_of(&self, parent: &TreeNode, name: &CStr) -> LookupEntry {
        if matches!(name.to_bytes(), b"." | b"..") {
            return LookupEntry::default();
        }
        let found = self.nodes.look_up(parent, name).ok();
        found.map_or_else(LookupEntry::default, |(_, entry)| entry)
    }

    fn copy_range(&self, copy: CopyCall) -> Result<u64> {
        self.changes()?;
        let (from, to) = (self.handles.file(copy.handle)?, self.handles.file(copy.to_handle)?);
        // This does not use the descriptor with direct I/O, because a copy may begin at any offset.
        let descriptor = self.nodes.descriptor(&from.node)?;
        let reader = self.nodes.opening(|| sys::open(&descriptor, libc::O_RDONLY))?;
        let writer = to.file.source.writer()?;
        let mut own = OwnChange::of(&to.node);
        if let Some(own) = &mut own {
            own.bytes(copy.to_offset, copy.length);
        }
        sys::copy(&reader, copy.offset, &writer, copy.to_offset, copy.length)
    }

    fn allocate_range(&self, handle: u64, offset: u64, length: u64, mode: i32) -> Result<()> {
        self.changes()?;
        let open = self.handles.file(handle)?;
        let writer = open.file.source.writer()?;
        // Some modes move the bytes after the range.
        let moves = mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0;
        let mut own = OwnChange::of(&open.node);
        if let Some(own) = &mut own {
            own.bytes(offset, if moves { u64::MAX } else { length });
        }
        sys::allocate(&writer, mode, offset, length)
    }

    /// Removes the file of a node from the cache after the kernel has forgotten the node.
    fn retire(&self, node: &TreeNode) {
        let file = node.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(file) = file {
            file.source.retire();
            let bytes = self.bytes.clone();
            self.spawn(async move {
                let _ = bytes.cache.remove(file.id).await;
            });
        }
    }
}

fn flags_of(backing: u32) -> u32 {
    if backing == 0 { CACHED } else { PASSED }
}

fn entry(reply: ReplyHandle, result: Result<LookupEntry>) {
    answer(reply, result, |reply, entry| reply.entry(entry));
}

/// Answers with a value, or with the error.
fn answer<T>(reply: ReplyHandle, result: Result<T>, with: impl FnOnce(ReplyHandle, &T)) {
    match result {
        Ok(value) => with(reply, &value),
        Err(error) => reply.error(error),
    }
}

impl FuseFileSystem for TreeFileSystem {
    fn wishes(&self) -> RequestedFeatures {
        let features = features::PARALLEL_DIRECTORY
            | features::DIRECT_IO_ALLOW_MMAP
            | features::AUTO_INVALIDATE
            | features::EXPIRE_ONLY
            | features::READ_DIRECTORY_PLUS
            | features::READ_DIRECTORY_PLUS_AUTO
            | features::POSIX_ACL
            | features::DO_NOT_MASK;
        let passthrough = if self.passed.is_wanted() { features::PASSTHROUGH } else { 0 };
        RequestedFeatures { features: features | passthrough, ..RequestedFeatures::default() }
    }

    fn started(&self, agreed: &NegotiationResult) {
        self.passed.agree(agreed.has(features::PASSTHROUGH));
        if self.passed.is_wanted() && !agreed.has(features::PASSTHROUGH) {
            let what = "this kernel cannot read small files itself (it takes Linux 6.9)";
            log::write(LogLevel::Warning, "cache", format_args!("{what}; they go through the cache"));
        }
    }

    fn look_up(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        let found = self.nodes.get(of.node).and_then(|parent| Ok(self.nodes.look_up(&parent, name)?.1));
        match found {
            // The kernel may also cache that a name is absent, because names are created only through this mount.
            Err(error) if self.nodes.is_exclusive && error.number() == libc::ENOENT => {
                reply.entry(&LookupEntry { entry_valid: self.nodes.valid(), ..LookupEntry::default() });
            }
            found => entry(reply, found),
        }
    }

    fn get_attributes(&self, of: RequestContext, reply: ReplyHandle) {
        let found = self.nodes.get(of.node).and_then(|node| self.nodes.attributes(&node));
        answer(reply, found, |reply, attributes| reply.attributes(attributes, self.nodes.valid()));
    }

    fn set_attributes(&self, of: RequestContext, change: SetAttributes, reply: ReplyHandle) {
        let handle = change.handle.filter(|_| change.valid & valid::SIZE != 0);
        let (set, valid_for) = (self.set(of.node, change), self.nodes.valid());
        self.changed_by(handle, reply, set, move |reply, attributes| reply.attributes(&attributes, valid_for));
    }

    fn read_link(&self, of: RequestContext, reply: ReplyHandle) {
        let target = self.at(of.node).and_then(|node| sys::read_link(&node));
        answer(reply, target, |reply, target| reply.bytes(target));
    }

    fn symbolic_link(&self, of: RequestContext, name: &CStr, target: &CStr, reply: ReplyHandle) {
        entry(reply, self.make(of, name, (0, 0), |parent, _| sys::make_link(parent, name, target)));
    }

    fn make_node(&self, of: RequestContext, name: &CStr, mode: u32, device: u32, umask: u32, reply: ReplyHandle) {
        let make = |parent: &File, mode| sys::make_node(parent, name, mode, decode_device(device));
        entry(reply, self.make(of, name, (mode, umask), make));
    }

    fn make_directory(&self, of: RequestContext, name: &CStr, mode: u32, umask: u32, reply: ReplyHandle) {
        let make = |parent: &File, mode| sys::make_directory(parent, name, mode);
        entry(reply, self.make(of, name, (mode & 0o7777, umask), make));
    }

    fn unlink(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        reply.done(self.remove_name(of.node, name, false));
    }

    fn remove_directory(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        reply.done(self.remove_name(of.node, name, true));
    }

    fn rename(
        &self,
        of: RequestContext,
        name: &CStr,
        new_parent: u64,
        new_name: &CStr,
        flags: u32,
        reply: ReplyHandle,
    ) {
        reply.done(self.move_name(of.node, name, new_parent, new_name, flags));
    }

    fn link(&self, of: RequestContext, node: u64, new_name: &CStr, reply: ReplyHandle) {
        entry(reply, self.add_name(of.node, node, new_name));
    }

    fn open(&self, of: RequestContext, flags: i32, reply: ReplyHandle) {
        let opened = self.open_handle(of.node, flags);
        answer(reply, opened, |reply, (handle, backing)| reply.opened_backed(*handle, flags_of(*backing), *backing));
    }

    fn create(&self, of: RequestContext, name: &CStr, mode: u32, umask: u32, flags: i32, reply: ReplyHandle) {
        self.created(self.create_file(of, Some(name), (mode, umask), flags), reply);
    }

    fn temporary_file(&self, of: RequestContext, mode: u32, umask: u32, flags: i32, reply: ReplyHandle) {
        self.created(self.create_file(of, None, (mode, umask), flags), reply);
    }

    fn read(&self, of: RequestContext, read: ReadCall, reply: ReplyHandle) {
        match self.handles.file(read.handle) {
            Ok(file) => {
                // Enters the runtime, because readahead starts tasks in it.
                let _inside = self.runtime.enter();
                self.bytes.read(&file, read, of.caller, reply, |task| self.spawn(task));
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(&self, of: RequestContext, write: WriteCall, data: PooledData, reply: ReplyHandle) {
        match self.written_to(write, of.node) {
            Ok(file) => {
                let bytes = self.bytes.clone();
                self.spawn(async move { bytes.write(file, write, of.caller, data, reply).await });
            }
            Err(error) => reply.error(error),
        }
    }

    fn stat_fs(&self, of: RequestContext, reply: ReplyHandle) {
        let sizes = self.at(of.node).and_then(|node| sys::sizes(&node));
        answer(reply, sizes, |reply, sizes| reply.statfs(sizes));
    }

    fn release(&self, _of: RequestContext, handle: u64, _owner: u64, _unlock: bool, reply: ReplyHandle) {
        self.close(handle);
        reply.ok();
    }

    fn release_directory(&self, _of: RequestContext, handle: u64, reply: ReplyHandle) {
        self.close(handle);
        reply.ok();
    }

    fn sync(&self, _of: RequestContext, handle: u64, reply: ReplyHandle) {
        match self.handles.file(handle) {
            Ok(file) => {
                let bytes = self.bytes.clone();
                self.spawn(async move {
                    let flushed = bytes.cache.flush(file.file.id, IoContext::default()).await;
                    reply.done(flushed.map_err(|error| errno(&error)));
                });
            }
            Err(error) => reply.error(error),
        }
    }

    fn sync_directory(&self, _of: RequestContext, handle: u64, reply: ReplyHandle) {
        let directory = self.handles.directory(handle).and_then(|open| self.directory(&open));
        reply.done(directory.and_then(|directory| Ok(directory.sync_all()?)));
    }

    fn sync_file_system(&self, _of: RequestContext, reply: ReplyHandle) {
        reply.done(self.at(super::nodes::ROOT).and_then(|root| sys::sync_file_system(&root)));
    }

    fn set_xattr(
        &self,
        of: RequestContext,
        name: &CStr,
        value: &[u8],
        flags: u32,
        kill_group_id: bool,
        reply: ReplyHandle,
    ) {
        let set = |descriptor: &File| {
            sys::set_xattr(descriptor, name, value, flags)?;
            if kill_group_id { access_lists::clear_group_bit(descriptor) } else { Ok(()) }
        };
        reply.done(self.change_xattrs(of.node, set));
    }

    fn get_xattr(&self, of: RequestContext, name: &CStr, size: u32, reply: ReplyHandle) {
        let value = self.at(of.node).and_then(|node| access_lists::xattr(&node, name, size as usize));
        answer(reply, value, |reply, value| reply.xattr(value));
    }

    fn list_xattr(&self, of: RequestContext, size: u32, reply: ReplyHandle) {
        let names = self.at(of.node).and_then(|node| sys::xattr_names(&node, size as usize));
        answer(reply, names, |reply, names| reply.xattr(names));
    }

    fn remove_xattr(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        reply.done(self.change_xattrs(of.node, |descriptor| sys::remove_xattr(descriptor, name)));
    }

    fn open_directory(&self, of: RequestContext, reply: ReplyHandle) {
        answer(reply, self.directory_handle(of.node), |reply, handle| reply.opened(*handle, 0));
    }

    fn read_directory(&self, of: RequestContext, handle: u64, offset: u64, size: u32, plus: bool, reply: ReplyHandle) {
        let listing = self.list(of.node, handle, offset, size, plus);
        answer(reply, listing, |reply, listing| reply.listing(listing));
    }

    fn access(&self, of: RequestContext, mask: u32, reply: ReplyHandle) {
        reply.done(self.at(of.node).and_then(|node| sys::access(&node, mask)));
    }

    fn seek(&self, of: RequestContext, _handle: u64, offset: u64, whence: i32, reply: ReplyHandle) {
        let opened = self.at(of.node).and_then(|node| self.nodes.opening(|| sys::open(&node, libc::O_RDONLY)));
        let found = opened.and_then(|file| sys::seek(&file, offset, whence));
        answer(reply, found, |reply, offset| reply.position(*offset));
    }

    fn allocate(&self, _of: RequestContext, handle: u64, offset: u64, length: u64, mode: i32, reply: ReplyHandle) {
        let allocated = self.allocate_range(handle, offset, length, mode);
        self.changed_by(Some(handle), reply, allocated, |reply, ()| reply.ok());
    }

    fn copy(&self, _of: RequestContext, copy: CopyCall, reply: ReplyHandle) {
        let copied = self.copy_range(copy);
        self.changed_by(Some(copy.to_handle), reply, copied, |reply, bytes| reply.copied(bytes));
    }

    fn forget(&self, node: u64, lookups: u64) {
        if let Some(node) = self.nodes.forget(node, lookups) {
            self.retire(&node);
        }
    }
}

impl TreeFileSystem {
    /// Returns the file that a program is about to write to.
    fn written_to(&self, write: WriteCall, node: u64) -> Result<Arc<OpenFile>> {
        self.changes()?;
        let file = self.handles.file(write.handle)?;
        if write.kill_privileges {
            let node = self.nodes.get(node)?;
            let descriptor = self.nodes.descriptor(&node)?;
            let _own = OwnChange::of(&node);
            sys::drop_rights(&descriptor)?;
        }
        Ok(file)
    }

    /// Changes the extended attributes of a node.
    fn change_xattrs(&self, node: u64, change: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        self.changes()?;
        let node = self.nodes.get(node)?;
        let descriptor = self.nodes.descriptor(&node)?;
        let _own = OwnChange::of(&node);
        change(&descriptor)
    }

    /// Answers a call that changed a file through a handle. If the handle was opened with `O_SYNC` or `O_DSYNC`, the
    /// change is made durable first.
    fn changed_by<T: Send + 'static>(
        &self,
        handle: Option<u64>,
        reply: ReplyHandle,
        changed: Result<T>,
        answer: impl FnOnce(ReplyHandle, T) + Send + 'static,
    ) {
        let value = match changed {
            Ok(value) => value,
            Err(error) => return reply.error(error),
        };
        let synced = handle.and_then(|handle| self.handles.file(handle).ok()).filter(|file| file.is_synced);
        let Some(file) = synced else { return answer(reply, value) };
        let bytes = self.bytes.clone();
        self.spawn(async move {
            match bytes.cache.flush(file.file.id, IoContext::default()).await {
                Ok(()) => answer(reply, value),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn created(&self, result: Result<(LookupEntry, NewHandle)>, reply: ReplyHandle) {
        answer(reply, result, |reply, (entry, (handle, backing))| {
            reply.created_backed(entry, *handle, flags_of(*backing), *backing);
        });
    }
}
