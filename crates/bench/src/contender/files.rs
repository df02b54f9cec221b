//! One file per object, as in Squid, with the behaviour of wg-Squid.
//!
//! Owns: the directories (16 of 256 each), file numbers, the proxy's own memory cache, and the replacement in memory
//! and on disk. Behaviour: an object in the proxy's memory is a hit without using the file system; otherwise its file
//! is opened, read whole and closed, and the object is kept in memory. A miss writes a new file. The least recently
//! used objects are deleted when the files fill the disk's share. Nothing is synced, as in Squid. With several disks,
//! each is a separate cache root. If the disk's clock is virtual or faster than real time, `syncfs` is called after 30
//! s on that clock, because the kernel's flusher would write dirty pages only after 30 s of real time. The kernel's
//! limit of dirty pages is a share of the machine's memory, not of a memory group's. So `syncfs` is also called when
//! more than `dirty_percent` of the buffer cache is dirty; the best share for each file system is determined before the
//! comparison.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nectary_cache::{Lru, Policy, StreamId};
use serde_json::json;

use super::{ContenderResources, ContenderStorage, ObjectHit};
use crate::Error;
use crate::workload::ProxyRequest;

mod system;

pub use system::ContenderFileSystem;

/// Squid's usual numbers of directories.
const FIRST_LEVEL: u64 = 16;
const SECOND_LEVEL: u64 = 256;
/// The unit of file sizes, and the smallest size of a file, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// The share of the disk that files may fill. Squid deletes aggressively above it (`cache_swap_high`).
const FULL_SHARE: f64 = 0.95;
/// The time for which the kernel leaves pages dirty (`dirty_expire_centisecs`).
const DIRTY_MAX: Duration = Duration::from_secs(30);
/// The default share of the buffer cache that may be dirty, in percent (`dirty_ratio`).
pub const DIRTY_PERCENT: u64 = 20;
/// The largest number of retries of a put on a full file system; before each, the least recently used files are
/// deleted.
const FULL_ATTEMPTS_MAX: usize = 20;

/// The settings of a contender that stores objects in files.
#[derive(Debug, Clone)]
pub struct FilesOptions {
    /// The file system.
    pub system: ContenderFileSystem,
    /// The memory of the proxy's own cache, in bytes.
    pub proxy_bytes: u64,
    /// The memory that is left to the kernel's buffer cache, in bytes.
    pub buffer_bytes: u64,
    /// The share of the buffer cache that may be dirty before it is written, in percent.
    pub dirty_percent: u64,
    /// Its devices and directories.
    pub place: ContenderResources,
}

impl FilesOptions {
    /// The mount point of a device's file system.
    fn root(&self, index: usize) -> PathBuf {
        self.place.folder.join(format!("root-{index}"))
    }
}

/// Makes the file systems and Squid's directories, and unmounts the file systems, so that caches are cold.
pub(super) fn prepare(options: &FilesOptions) -> Result<(), Error> {
    for (index, device) in options.place.devices.iter().enumerate() {
        let root = options.root(index);
        fs::create_dir_all(&root).map_err(|error| Error::failed(root.display(), error))?;
        options.system.make(device)?;
        options.system.mount(device, &root, false)?;
        for folder in 0..FIRST_LEVEL * SECOND_LEVEL {
            let path = root.join(folder_name(folder));
            fs::create_dir_all(&path).map_err(|error| Error::failed(path.display(), error))?;
        }
        system::unmount(&root)?;
    }
    Ok(())
}

fn folder_name(folder: u64) -> String {
    format!("{:02X}/{:02X}", folder / SECOND_LEVEL % FIRST_LEVEL, folder % SECOND_LEVEL)
}

/// A proxy's cache in files.
pub struct SquidContender {
    options: FilesOptions,
    roots: Vec<PathBuf>,
    /// The open directory of each cache root, which `syncfs` needs.
    handles: Vec<File>,
    state: Mutex<SquidState>,
}

#[derive(Debug, Clone, Copy)]
struct CacheFileLocation {
    number: u64,
    root: usize,
}

struct SquidState {
    index: HashMap<u32, CacheFileLocation>,
    /// For each disk, its objects in LRU order, weighted by blocks.
    disks: Vec<Lru>,
    memory: HashMap<u32, Bytes>,
    memory_order: Lru,
    next_number: u64,
    next_root: usize,
    synced: Duration,
    dirty_bytes: u64,
    files_deleted: u64,
    times_full: u64,
}

impl SquidContender {
    /// Mounts the prepared file systems.
    pub fn start(options: FilesOptions) -> Result<SquidContender, Error> {
        let mut handles = Vec::new();
        let roots: Vec<PathBuf> = (0..options.place.devices.len()).map(|index| options.root(index)).collect();
        for (device, root) in options.place.devices.iter().zip(&roots) {
            options.system.mount(device, root, true)?;
            handles.push(File::open(root).map_err(|error| Error::failed(root.display(), error))?);
        }
        let blocks = (options.place.disk_bytes as f64 * FULL_SHARE) as u64 / BLOCK_BYTES / roots.len() as u64;
        let state = SquidState {
            index: HashMap::new(),
            disks: roots.iter().map(|_| Lru::new(blocks)).collect(),
            memory: HashMap::new(),
            memory_order: Lru::new(options.proxy_bytes),
            next_number: 0,
            next_root: 0,
            synced: Duration::ZERO,
            dirty_bytes: 0,
            files_deleted: 0,
            times_full: 0,
        };
        Ok(SquidContender { options, roots, handles, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, SquidState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, entry: CacheFileLocation) -> PathBuf {
        let folder = folder_name(entry.number / SECOND_LEVEL % (FIRST_LEVEL * SECOND_LEVEL));
        self.roots[entry.root].join(format!("{folder}/{:08X}", entry.number))
    }

    fn unlink(&self, entries: &[CacheFileLocation]) -> Result<(), Error> {
        for entry in entries {
            let path = self.path(*entry);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::failed(path.display(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Deletes the least recently used hundredth of a disk's blocks, because the disk is full earlier than expected.
    fn make_room(&self, root: usize) -> Result<(), Error> {
        let mut victims = Vec::new();
        {
            let mut state = self.state();
            state.times_full += 1;
            let capacity = state.disks[root].used() / 100 * 99;
            state.disks[root].set_capacity(capacity, &mut |victim| {
                victims.push(victim as u32);
                true
            });
            let entries: Vec<CacheFileLocation> = victims.iter().filter_map(|object| state.forget(*object)).collect();
            drop(state);
            self.unlink(&entries)
        }
    }
}

impl SquidState {
    fn forget(&mut self, object: u32) -> Option<CacheFileLocation> {
        self.memory.remove(&object);
        self.memory_order.remove(u64::from(object));
        let entry = self.index.remove(&object)?;
        self.disks[entry.root].remove(u64::from(object));
        self.files_deleted += 1;
        Some(entry)
    }

    fn remember(&mut self, object: u32, body: &Bytes) {
        let SquidState { memory, memory_order, .. } = self;
        let weight = body.len() as u64;
        let access = memory_order.reference(u64::from(object), weight, StreamId::default(), &mut |victim| {
            memory.remove(&(victim as u32));
            true
        });
        if access != nectary_cache::AccessResult::Bypassed {
            memory.insert(object, body.clone());
        }
    }
}

impl ContenderStorage for SquidContender {
    fn get(&self, request: &ProxyRequest) -> Result<Option<ObjectHit>, Error> {
        let object = request.object;
        let entry = {
            let mut state = self.state();
            let Some(&entry) = state.index.get(&object) else { return Ok(None) };
            state.disks[entry.root].reference(u64::from(object), blocks(request), StreamId::default(), &mut |_| false);
            if let Some(body) = state.memory.get(&object).cloned() {
                let weight = body.len() as u64;
                state.memory_order.reference(u64::from(object), weight, StreamId::default(), &mut |_| false);
                return Ok(Some(ObjectHit { pieces: vec![body], in_memory: true }));
            }
            entry
        };
        let path = self.path(entry);
        match read(&path, request.bytes) {
            Ok(body) => {
                let body = Bytes::from(body);
                let mut state = self.state();
                if state.index.contains_key(&object) {
                    state.remember(object, &body);
                }
                Ok(Some(ObjectHit { pieces: vec![body], in_memory: false }))
            }
            // Another thread has deleted the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::failed(path.display(), error)),
        }
    }

    fn put(&self, request: &ProxyRequest, body: Bytes) -> Result<(), Error> {
        let entry = {
            let mut state = self.state();
            let root = state.next_root;
            state.next_root = (root + 1) % self.roots.len();
            state.next_number += 1;
            CacheFileLocation { number: state.next_number - 1, root }
        };
        let path = self.path(entry);
        for attempt in 0.. {
            match write(&path, &body) {
                Ok(()) => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && attempt < FULL_ATTEMPTS_MAX => {
                    self.make_room(entry.root)?;
                }
                Err(error) => return Err(Error::failed(path.display(), error)),
            }
        }
        let mut victims = Vec::new();
        let mut leaving = Vec::new();
        {
            let mut state = self.state();
            state.dirty_bytes += blocks(request) * BLOCK_BYTES;
            leaving.extend(state.forget(request.object));
            let access = state.disks[entry.root].reference(
                request.object.into(),
                blocks(request),
                StreamId::default(),
                &mut |id| {
                    victims.push(id as u32);
                    true
                },
            );
            leaving.extend(victims.iter().filter_map(|victim| state.forget(*victim)));
            match access {
                nectary_cache::AccessResult::Bypassed => leaving.push(entry),
                _ => {
                    state.index.insert(request.object, entry);
                    state.remember(request.object, &body);
                }
            }
        }
        self.unlink(&leaving)
    }

    fn delete(&self, request: &ProxyRequest) -> Result<(), Error> {
        let entry = self.state().forget(request.object);
        self.unlink(entry.as_slice())
    }

    fn tick(&self, now: Duration) -> Result<(), Error> {
        {
            let mut state = self.state();
            let ContenderResources { is_virtual, speed, .. } = self.options.place;
            let is_late = (is_virtual || speed > 1.0) && now.saturating_sub(state.synced) >= DIRTY_MAX;
            if !is_late && state.dirty_bytes <= self.options.buffer_bytes * self.options.dirty_percent / 100 {
                return Ok(());
            }
            state.synced = now;
            state.dirty_bytes = 0;
        }
        self.settle()
    }

    fn settle(&self) -> Result<(), Error> {
        self.handles.iter().try_for_each(crate::sys::sync_file_system)
    }

    fn counters(&self) -> serde_json::Value {
        let state = self.state();
        json!({
            "files": state.index.len(),
            "files_deleted": state.files_deleted,
            "times_full": state.times_full,
            "disk_used_bytes": state.disks.iter().map(|disk| disk.used() * BLOCK_BYTES).sum::<u64>(),
            "memory_used_bytes": state.memory_order.used(),
        })
    }
}

impl Drop for SquidContender {
    fn drop(&mut self) {
        self.handles.clear();
        for root in &self.roots {
            let _ = system::unmount(root);
        }
    }
}

fn blocks(request: &ProxyRequest) -> u64 {
    u64::from(request.bytes).div_ceil(BLOCK_BYTES).max(1)
}

fn read(path: &Path, bytes: u32) -> io::Result<Vec<u8>> {
    // The buffer has room for one byte more than expected, so that reading the end of the file does not enlarge it.
    let mut body = Vec::with_capacity(bytes as usize + 1);
    File::open(path)?.read_to_end(&mut body)?;
    Ok(body)
}

fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    File::create(path)?.write_all(body)
}
