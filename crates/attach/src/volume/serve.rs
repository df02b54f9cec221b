//! The dispatch of each request to a volume.
//!
//! Owns: the file system. Names and attributes that the session keeps are answered at once; data is read and written by
//! the client. Leaves to the kernel: checking permissions, by mode, owner and access control list.
//!
//! *Circle*: the calls work on the file system of this file.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::AccessStream;
use nectary_buffer::stream_of;
use nectary_fuse::protocol::{decode_device, open_flags, valid};
use nectary_fuse::{
    CopyCall, Errno, FuseFileSystem, FuseRequest, LockRange, LookupEntry, NegotiationResult,
    NodeAttributes as KernelAttributes, PooledData, ReadCall, ReplyHandle, RequestCall, RequestCaller, RequestContext,
    RequestedFeatures, SetAttributes, WriteCall, features,
};
use nectary_volume::client::{Error, NewInode, OpenFile};
use nectary_volume::format::TARGET_BYTES_MAX;
use nectary_volume::protocol::{FileId, InodeAttributes};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::allowed::VolumeMountOptions;
use super::calls;
use super::contents::{CachedContents, ReadBytes};
use super::killed_callers::{GivenUpChanges, KilledCallers};
use super::lock_calls;
use super::lock_owners::LockOwners;
use super::lookups;
use super::nodes::{VALID, VolumeNodes};
use super::request_tasks::RequestEffect;
use super::sessions::MountSessions;
use super::shown::KernelCache;
use super::xattr_calls;
use crate::tree::ThreadProcesses;

/// The maximum number of requests that wait for locks.
const LOCK_WAITS_MAX: usize = 1 << 16;

/// A mounted volume.
pub struct VolumeFileSystem {
    pub(super) sessions: Arc<MountSessions>,
    pub(super) nodes: Arc<VolumeNodes>,
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    next: AtomicU64,
    /// Requests that wait for locks, by the kernel's request numbers; they are notified when their programs are
    /// interrupted.
    lock_waits: Mutex<HashMap<u64, Arc<Notify>>>,
    pub(super) killed_callers: KilledCallers,
    pub(super) given_up: Arc<GivenUpChanges>,
    pub(super) lock_owners: Arc<LockOwners>,
    runtime: Runtime,
    tasks: Mutex<JoinSet<()>>,
    pub(super) contents: Option<Arc<CachedContents>>,
    pub(super) shown: Arc<KernelCache>,
    processes: ThreadProcesses,
    has_access_times: bool,
    is_read_only: bool,
}

pub(super) fn errno(error: &Error) -> Errno {
    Errno::new(error.errno())
}

impl VolumeFileSystem {
    /// Makes the file system of a volume; requests are served in `runtime`.
    pub fn new(
        sessions: Arc<MountSessions>,
        root: FileId,
        runtime: Runtime,
        (contents, shown): (Option<Arc<CachedContents>>, Arc<KernelCache>),
        allowed: VolumeMountOptions,
    ) -> VolumeFileSystem {
        let nodes = Arc::new(VolumeNodes::new(root));
        shown.set_nodes(nodes.clone());
        VolumeFileSystem {
            sessions,
            nodes,
            shown,
            files: Mutex::default(),
            next: AtomicU64::new(1),
            lock_waits: Mutex::default(),
            killed_callers: KilledCallers::default(),
            given_up: Arc::default(),
            lock_owners: Arc::default(),
            runtime,
            tasks: Mutex::new(JoinSet::new()),
            contents,
            processes: ThreadProcesses::default(),
            has_access_times: !allowed.no_access_times && !allowed.read_only,
            is_read_only: allowed.read_only,
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, Arc<OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of handles that programs have.
    pub fn handles(&self) -> usize {
        self.files().len()
    }

    /// Returns the answer to a thread's look-up of a name; counts one look-up.
    pub(super) fn entry(&self, found: &InodeAttributes, parent: u64, name: &[u8], thread: u32) -> LookupEntry {
        let entry = self.nodes.entry(found, parent, name, Some(thread));
        let (attributes, attributes_valid) = self.attributes(entry.node, found);
        let directory = self.nodes.id(parent).ok();
        let named = directory.filter(|_| !attributes_valid.is_zero() && self.nodes.is_settled(parent));
        let entry_valid =
            named.map_or(VALID, |directory| self.shown.give_name(&self.sessions.last(), directory, name, found.id()));
        LookupEntry { attributes, attributes_valid, entry_valid, ..entry }
    }

    /// Returns attributes of a node for the kernel, and for how long it may show them.
    fn attributes(&self, node: u64, found: &InodeAttributes) -> (KernelAttributes, Duration) {
        let (found, valid) = self.shown.give(&self.sessions.last(), found);
        let attributes = self.nodes.attributes(node, &found);
        // With no time, the kernel asks for the attributes of a directory that it has found at another place, which tells
        // that it has moved it.
        (attributes, if self.nodes.is_settled(node) { valid } else { VALID })
    }

    /// Returns the stream of a program's reads from a file.
    pub(super) fn stream(&self, caller: RequestCaller, file: &OpenFile) -> AccessStream {
        stream_of(self.processes.of(caller.thread).into(), file.id().inode)
    }

    /// Notes that a program read a directory or a link.
    pub(super) fn note_access(&self, attributes: &InodeAttributes) {
        if self.has_access_times {
            self.sessions.last().note_access(attributes);
        }
    }

    /// Notes that a program read from a file that is open with `flags`.
    pub(super) fn note_read(&self, file: &OpenFile, flags: i32) {
        if self.has_access_times && flags & libc::O_NOATIME == 0 {
            file.note_access();
        }
    }

    /// Returns an open file.
    pub(super) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.files().get(&handle).cloned().ok_or(Errno::new(libc::EBADF))
    }

    /// Returns an open file for pages that the kernel writes back: the kernel may name any handle of the inode, even
    /// one of a session that has ended.
    pub(super) fn file_of_pages(&self, node: u64, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        let file = self.file(handle)?;
        if !file.is_over() {
            return Ok(file);
        }
        let living = self.files().values().find(|file| file.id().inode == node && !file.is_over()).cloned();
        Ok(living.unwrap_or(file))
    }

    /// Whether a program may still have pages of the file mapped for writing through a handle of a session that has
    /// ended.
    pub(super) fn has_old_writer(&self, node: u64) -> bool {
        self.files().values().any(|file| file.id().inode == node && file.is_writable() && file.is_over())
    }

    /// Adds a handle.
    pub(super) fn add(&self, file: OpenFile) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.files().insert(handle, Arc::new(file));
        handle
    }

    /// Notes that a request waits for a lock; returns what is notified when its program is interrupted. `None`: too many
    /// wait.
    fn begin_lock_wait(&self, unique: u64) -> Option<Arc<Notify>> {
        let mut waits = self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.len() >= LOCK_WAITS_MAX {
            return None;
        }
        let given_up = Arc::new(Notify::new());
        waits.insert(unique, given_up.clone());
        Some(given_up)
    }

    fn end_lock_wait(&self, unique: u64) {
        self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner).remove(&unique);
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn_on(task, &self.runtime);
        while tasks.try_join_next().is_some() {}
    }

    /// Waits for all requests, then ends the session.
    ///
    /// *Errors*: the session cannot commit or return something, or cannot tell the server that it ends. If the session
    /// has already ended, there is no error: its losses were logged then.
    pub async fn finish(&self) -> Result<(), Error> {
        self.sessions.close();
        let waits = std::mem::take(&mut *self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner));
        waits.values().for_each(|given_up| given_up.notify_one());
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
        let files: Vec<_> = self.files().drain().collect();
        for (_, file) in files {
            file.close().await;
        }
        let last = self.sessions.last();
        if last.is_over() {
            return Ok(());
        }
        last.close().await
    }
}

/// The flags of every open file: the kernel does not cache data, because the client's cache is the only one.
pub(super) const OPEN_FLAGS: u32 = open_flags::DIRECT_IO;

/// Whether a call changes something, or opens a file for changes.
fn is_change(call: &RequestCall<'_>) -> bool {
    match call {
        RequestCall::Open { flags, .. } => flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0,
        RequestCall::SetAttributes(_)
        | RequestCall::SymbolicLink { .. }
        | RequestCall::MakeNode { .. }
        | RequestCall::MakeDirectory { .. }
        | RequestCall::Unlink { .. }
        | RequestCall::RemoveDirectory { .. }
        | RequestCall::Rename { .. }
        | RequestCall::Link { .. }
        | RequestCall::Create { .. }
        | RequestCall::TemporaryFile { .. }
        | RequestCall::Write(_)
        | RequestCall::SetXattr { .. }
        | RequestCall::RemoveXattr { .. }
        | RequestCall::Allocate { .. }
        | RequestCall::Copy(_) => true,
        _ => false,
    }
}

/// A new inode of the caller.
fn new_inode(of: RequestContext, mode: u32, umask: u32) -> NewInode {
    NewInode { mode, umask, owner: of.caller.user, group: of.caller.group, ..NewInode::default() }
}

/// A mounted volume as the threads of the connection see it.
pub struct VolumeService(pub Arc<VolumeFileSystem>);

impl FuseFileSystem for VolumeService {
    fn wishes(&self) -> RequestedFeatures {
        let features = features::PARALLEL_DIRECTORY
            | features::DIRECT_IO_ALLOW_MMAP
            | features::READ_DIRECTORY_PLUS
            | features::READ_DIRECTORY_PLUS_AUTO
            | features::POSIX_LOCKS
            | features::FLOCK
            | features::POSIX_ACL
            | features::DO_NOT_MASK
            | features::EXPORT;
        RequestedFeatures { features, ..RequestedFeatures::default() }
    }

    fn started(&self, agreed: &NegotiationResult) {
        self.0.shown.negotiated(agreed.minor);
    }

    fn admit(&self, request: &FuseRequest<'_>) -> Result<(), Errno> {
        // The kernel refuses changes before they get here, unless an administrator made it forget that the volume is
        // mounted read-only (`mount -i -o remount,rw`).
        if self.0.is_read_only && is_change(&request.call) {
            return Err(Errno::new(libc::EROFS));
        }
        let is_look = matches!(
            request.call,
            RequestCall::LookUp { .. }
                | RequestCall::GetAttributes { .. }
                | RequestCall::StatX { .. }
                | RequestCall::GetXattr { .. }
                | RequestCall::ReadLink
        );
        self.0.nodes.used(request.caller.thread, request.node, is_look);
        Ok(())
    }

    fn look_up(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        let (node, thread) = (of.node, of.caller.thread);
        match lookups::kept_entry(&self.0, node, name.to_bytes(), thread) {
            Some(Ok(entry)) => return reply.entry(&entry),
            Some(Err(error)) => return reply.error(error),
            None => {}
        }
        let name = name.to_bytes().to_vec();
        let found = move |this| lookups::look_up(this, node, name, thread);
        self.ask(of, reply, found, move |reply, this, found: calls::FoundInode| {
            reply.entry(&found.entry(this, thread));
        });
    }

    fn get_attributes(&self, of: RequestContext, reply: ReplyHandle) {
        self.stat(of, reply, move |reply, this, found| {
            let (attributes, valid) = this.attributes(of.node, &found);
            reply.attributes(&attributes, valid);
        });
    }

    fn stat_x(&self, of: RequestContext, reply: ReplyHandle) {
        self.stat(of, reply, move |reply, this, found| {
            let (attributes, valid) = this.attributes(of.node, &found);
            reply.statx(&attributes, valid);
        });
    }

    fn set_attributes(&self, of: RequestContext, change: SetAttributes, reply: ReplyHandle) {
        let set = move |this| calls::set(this, of.node, change, of.caller);
        let answer = move |reply: ReplyHandle, this: &VolumeFileSystem, found: InodeAttributes| {
            reply.attributes(&this.nodes.attributes(of.node, &found), VALID);
        };
        // The kernel drops cached pages when a truncation is answered.
        match change.valid & valid::SIZE != 0 {
            true => self.run(reply, set, answer),
            false => self.change(of, reply, set, answer),
        }
    }

    fn read_link(&self, of: RequestContext, reply: ReplyHandle) {
        let target = move |this| calls::read_link(this, of.node);
        self.ask(of, reply, target, |reply, _, target: Vec<u8>| reply.bytes(&target));
    }

    fn symbolic_link(&self, of: RequestContext, name: &CStr, target: &CStr, reply: ReplyHandle) {
        let target = target.to_bytes().to_vec();
        if target.len() > TARGET_BYTES_MAX {
            return reply.errno(libc::ENAMETOOLONG);
        }
        self.make(of, reply, name, NewInode { target, ..new_inode(of, libc::S_IFLNK | 0o777, 0) });
    }

    fn make_node(&self, of: RequestContext, name: &CStr, mode: u32, device: u32, umask: u32, reply: ReplyHandle) {
        let new = NewInode { device: decode_device(device), ..new_inode(of, mode, umask) };
        self.make(of, reply, name, new);
    }

    fn make_directory(&self, of: RequestContext, name: &CStr, mode: u32, umask: u32, reply: ReplyHandle) {
        self.make(of, reply, name, new_inode(of, libc::S_IFDIR | mode & 0o7777, umask));
    }

    fn unlink(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        match calls::unlink_now(&self.0, of.node, name.to_bytes()) {
            Some(Ok(forgetting)) => self.answer_after(reply, forgetting, ReplyHandle::ok),
            Some(Err(error)) => reply.error(error),
            None => self.remove_name(of, reply, name, false),
        }
    }

    fn remove_directory(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        self.remove_name(of, reply, name, true);
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
        let (from, to) = ((of.node, name.to_bytes().to_vec()), (new_parent, new_name.to_bytes().to_vec()));
        let (old, new) = (from.clone(), to.clone());
        self.0.shown.end_call(of.caller.thread);
        let rename = move |this| calls::rename(this, from, to, flags);
        self.change(of, reply, rename, move |reply, this, ()| {
            this.nodes.rename((old.0, &old.1), (new.0, &new.1), flags & libc::RENAME_EXCHANGE != 0);
            reply.ok();
        });
    }

    fn link(&self, of: RequestContext, node: u64, new_name: &CStr, reply: ReplyHandle) {
        let name = new_name.to_bytes().to_vec();
        let link = move |this| calls::link(this, node, of.node, name);
        self.change(of, reply, link, |reply, this, linked: calls::FoundInode| reply.entry(&linked.changed(this)));
    }

    fn open(&self, of: RequestContext, flags: i32, reply: ReplyHandle) {
        let open = move |this| calls::open(this, of.node, flags);
        let answer = |reply: ReplyHandle, this: &VolumeFileSystem, file| reply.opened(this.add(file), OPEN_FLAGS);
        let end = |file: OpenFile| async move { file.close().await };
        self.serve_killable(RequestEffect::Nothing, (of, reply), open, answer, end);
    }

    fn create(&self, of: RequestContext, name: &CStr, mode: u32, umask: u32, flags: i32, reply: ReplyHandle) {
        let new = new_inode(of, libc::S_IFREG | mode & 0o7777, umask);
        match calls::create_now(&self.0, (of.node, name.to_bytes()), &new, flags) {
            Some(Ok((entry, handle, forgetting))) => {
                return self.answer_after(reply, forgetting, move |reply| reply.created(&entry, handle, OPEN_FLAGS));
            }
            Some(Err(error)) => return reply.error(error),
            None => {}
        }
        let name = name.to_bytes().to_vec();
        self.create_open(of, reply, move |this| calls::create(this, of.node, name, new, flags));
    }

    fn temporary_file(&self, of: RequestContext, mode: u32, umask: u32, flags: i32, reply: ReplyHandle) {
        let new = new_inode(of, libc::S_IFREG | mode & 0o7777, umask);
        self.create_open(of, reply, move |this| calls::create_nameless(this, of.node, new, flags));
    }

    fn read(&self, of: RequestContext, read: ReadCall, reply: ReplyHandle) {
        let bytes = move |this| calls::read(this, read, of.caller);
        self.ask(of, reply, bytes, |reply, _, contents: ReadBytes| {
            let parts: Vec<_> = contents.slices().into_iter().map(std::io::IoSlice::new).collect();
            reply.parts(&parts);
        });
    }

    fn write(&self, of: RequestContext, write: WriteCall, data: PooledData, reply: ReplyHandle) {
        let work = move |this| calls::write(this, of.node, write, data);
        self.run(reply, work, |reply, _, count| reply.written(count));
    }

    fn stat_fs(&self, of: RequestContext, reply: ReplyHandle) {
        self.ask(of, reply, calls::sizes, |reply, _, sizes| reply.statfs(&sizes));
    }

    fn release(&self, of: RequestContext, handle: u64, _owner: u64, unlock: bool, reply: ReplyHandle) {
        let file = self.0.files().remove(&handle);
        let ended = self.0.lock_owners.ended(of.node, handle, unlock);
        let (this, progress) = (self.0.clone(), reply.progress());
        self.0.spawn(progress.of(async move {
            if let Some(file) = file {
                if let Some(release) = ended {
                    this.given_up.ended().await;
                    // An error means that the session has ended, and the lock with it.
                    let _ = lock_calls::release_locks(&file, &release, &[]).await;
                }
                file.close().await;
            }
            reply.ok();
        }));
    }

    fn open_directory(&self, _of: RequestContext, reply: ReplyHandle) {
        reply.opened(self.0.sessions.told(), 0);
    }

    fn release_directory(&self, _of: RequestContext, _handle: u64, reply: ReplyHandle) {
        reply.ok();
    }

    fn sync_directory(&self, of: RequestContext, handle: u64, reply: ReplyHandle) {
        self.ask(of, reply, move |this| calls::sync_names(this, handle), |reply, _, ()| reply.ok());
    }

    fn sync(&self, of: RequestContext, handle: u64, reply: ReplyHandle) {
        let sync = move |this: Arc<VolumeFileSystem>| async move {
            this.file(handle)?.sync().await.map_err(|error| errno(&error))
        };
        self.ask(of, reply, sync, |reply, _, ()| reply.ok());
    }

    fn flush(&self, of: RequestContext, handle: u64, owner: u64, reply: ReplyHandle) {
        let ended = self.0.lock_owners.closed(of.node, owner);
        if ended.is_none() && self.0.file(handle).is_ok_and(|file| file.is_flushed()) {
            return reply.ok();
        }
        self.run(reply, move |this| lock_calls::flush(this, handle, ended), |reply, _, ()| reply.ok());
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
        let (name, value) = (name.to_bytes().to_vec(), value.to_vec());
        let set = move |this| xattr_calls::set_xattr(this, of.node, name, value, flags, kill_group_id);
        self.change(of, reply, set, |reply, _, ()| reply.ok());
    }

    fn get_xattr(&self, of: RequestContext, name: &CStr, _size: u32, reply: ReplyHandle) {
        if xattr_calls::has_no_xattrs(&self.0, of.node, name.to_bytes()) {
            return reply.errno(libc::ENODATA);
        }
        let name = name.to_bytes().to_vec();
        let value = move |this| xattr_calls::xattr(this, of.node, name);
        self.ask(of, reply, value, |reply, _, value: Vec<u8>| reply.xattr(&value));
    }

    fn list_xattr(&self, of: RequestContext, _size: u32, reply: ReplyHandle) {
        if xattr_calls::has_no_xattrs(&self.0, of.node, b"") {
            return reply.xattr(&[]);
        }
        self.ask(
            of,
            reply,
            move |this| xattr_calls::xattrs(this, of.node),
            |reply, _, names: Vec<u8>| reply.xattr(&names),
        );
    }

    fn remove_xattr(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        let name = name.to_bytes().to_vec();
        self.change(of, reply, move |this| xattr_calls::remove_xattr(this, of.node, name), |reply, _, ()| reply.ok());
    }

    fn read_directory(&self, of: RequestContext, _handle: u64, offset: u64, size: u32, plus: bool, reply: ReplyHandle) {
        let list = move |this| calls::list(this, of.node, offset, size, plus);
        self.ask(of, reply, list, move |reply, this, found: calls::FoundNames| {
            reply.listing(&found.listing(this, of.node));
        });
    }

    fn seek(&self, of: RequestContext, handle: u64, offset: u64, whence: i32, reply: ReplyHandle) {
        let seek = move |this| calls::seek(this, handle, offset, whence);
        self.ask(of, reply, seek, |reply, _, offset| reply.position(offset));
    }

    fn allocate(&self, _of: RequestContext, handle: u64, offset: u64, length: u64, mode: i32, reply: ReplyHandle) {
        let allocate = move |this| calls::allocate(this, handle, offset, length, mode);
        self.run(reply, allocate, |reply, _, ()| reply.ok());
    }

    fn get_lock(&self, of: RequestContext, lock: LockRange, reply: ReplyHandle) {
        let found = move |this| lock_calls::test_lock(this, of.node, lock);
        self.ask(of, reply, found, |reply, _, found: LockRange| reply.lock(&found));
    }

    fn set_lock(&self, of: RequestContext, lock: LockRange, waits: bool, mut reply: ReplyHandle) {
        if waits {
            reply.waits_for_program();
        }
        let given_up = match waits.then(|| self.0.begin_lock_wait(of.unique)) {
            Some(None) => return reply.errno(libc::ENOLCK),
            given_up => given_up.flatten(),
        };
        if reply.is_interrupted()
            && let Some(given_up) = &given_up
        {
            given_up.notify_one();
        }
        let set = move |this: Arc<VolumeFileSystem>| async move {
            let done = lock_calls::set_lock(this.clone(), of.node, lock, given_up).await;
            this.end_lock_wait(of.unique);
            done
        };
        self.run(reply, set, |reply, _, ()| reply.ok());
    }

    fn copy(&self, _of: RequestContext, copy: CopyCall, reply: ReplyHandle) {
        self.run(reply, move |this| calls::copy(this, copy), |reply, _, count| reply.copied(count));
    }

    fn interrupted(&self, unique: u64, _is_answered: bool) {
        self.0.killed_callers.note_signal();
        let waits = self.0.lock_waits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(given_up) = waits.get(&unique) {
            given_up.notify_one();
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.0.nodes.forget(node, lookups);
    }
}

impl VolumeService {
    /// Answers with attributes: at once with those that the session keeps.
    fn stat(
        &self,
        of: RequestContext,
        reply: ReplyHandle,
        answer: impl FnOnce(ReplyHandle, &VolumeFileSystem, InodeAttributes) + Send + 'static,
    ) {
        match lookups::kept_attributes(&self.0, of.node) {
            Some(found) => answer(reply, &self.0, found),
            None => self.ask(of, reply, move |this| calls::stat(this, of.node), answer),
        }
    }

    /// Answers at once, or when the kernel has forgotten what it must.
    fn answer_after(
        &self,
        reply: ReplyHandle,
        forgetting: calls::Forgetting,
        answer: impl FnOnce(ReplyHandle) + Send + 'static,
    ) {
        if forgetting.is_empty() {
            return answer(reply);
        }
        let progress = reply.progress();
        self.0.spawn(progress.of(async move {
            for forgotten in forgetting {
                let _ = forgotten.await;
            }
            answer(reply);
        }));
    }

    fn make(&self, of: RequestContext, reply: ReplyHandle, name: &CStr, new: NewInode) {
        let name = name.to_bytes().to_vec();
        let make = move |this| calls::make(this, of.node, name, new);
        self.change(of, reply, make, |reply, this, made: calls::FoundInode| reply.entry(&made.changed(this)));
    }

    /// Makes a file and opens it. If its program is being killed, it is closed again.
    fn create_open<W>(
        &self,
        of: RequestContext,
        reply: ReplyHandle,
        create: impl FnOnce(Arc<VolumeFileSystem>) -> W + Send + 'static,
    ) where
        W: Future<Output = Result<(calls::FoundInode, OpenFile), Errno>> + Send + 'static,
    {
        let answer = |reply: ReplyHandle, this: &VolumeFileSystem, (made, file): (calls::FoundInode, OpenFile)| {
            reply.created(&made.changed(this), this.add(file), OPEN_FLAGS);
        };
        let end = |(_, file): (calls::FoundInode, OpenFile)| async move { file.close().await };
        self.serve_killable(RequestEffect::Change, (of, reply), create, answer, end);
    }

    fn remove_name(&self, of: RequestContext, reply: ReplyHandle, name: &CStr, is_directory: bool) {
        let name = name.to_bytes().to_vec();
        let unlink = move |this| calls::unlink(this, of.node, name, is_directory);
        self.change(of, reply, unlink, |reply, _, ()| reply.ok());
    }
}
