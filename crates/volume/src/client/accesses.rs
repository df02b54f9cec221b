//! Times of access, by the rule of `relatime`.
//!
//! Owns: accesses that the server does not know yet. Promises: this client shows an access at once, other clients show
//! it after the next commit interval; a lost access has no other effect. Leaves to others: which reads count (the
//! mount), and storing (the server).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::VolumeClient;
use super::file::ActiveFile;
use super::open::OpenFile;
use crate::protocol::{FileAccess, FileId, InodeAttributes, MetadataOperation};

/// The most accesses of one operation, far below the limits of a transaction.
const ACCESSES_MAX: usize = 256;
/// The most accesses that wait for the server. Later ones are forgotten.
const WAITING_MAX: usize = 1 << 16;

/// Accesses that the server does not know yet.
#[derive(Default)]
pub(super) struct UnreportedAccesses {
    waiting: Mutex<BTreeMap<FileId, FileAccess>>,
}

impl UnreportedAccesses {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<FileId, FileAccess>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, accessed: FileAccess) {
        let mut waiting = self.waiting();
        if waiting.len() < WAITING_MAX || waiting.contains_key(&accessed.file) {
            waiting.insert(accessed.file, accessed);
        }
    }

    /// Updates attributes of the server by an access that it does not know yet.
    pub fn overlay(&self, attributes: &mut InodeAttributes) {
        let waiting = self.waiting();
        let Some(accessed) = waiting.get(&attributes.id()) else { return };
        let inode = &mut attributes.inode;
        if accessed.counts(inode.times_ns, inode.time_generation) {
            inode.times_ns[0] = accessed.at_ns;
        }
    }
}

impl VolumeClient {
    /// Notes that a program read a directory or a link with these attributes.
    pub fn note_access(&self, attributes: &InodeAttributes) {
        let inode = &attributes.inode;
        let time_generation = inode.time_generation;
        let accessed = FileAccess { file: attributes.id(), at_ns: self.now_ns(), time_generation };
        if accessed.counts(inode.times_ns, time_generation) {
            self.shared.accesses.add(accessed);
        }
    }

    fn note_read(&self, file: &ActiveFile) {
        // A writer holds the lock: then one of the next reads notes the access.
        let Ok(content) = file.content.try_read() else { return };
        if !content.is_known {
            return;
        }
        let (mut times_ns, time_generation) = (content.inode.times_ns, content.inode.time_generation);
        times_ns[1] = times_ns[1].max(content.modified_ns.unwrap_or(i64::MIN));
        drop(content);
        // The server may not know the last access, also one before the file was closed and opened again.
        let waiting = self.shared.accesses.waiting().get(&file.id).copied();
        let mut last = file.accessed();
        for known in [waiting, *last].into_iter().flatten() {
            if known.counts(times_ns, time_generation) {
                times_ns[0] = known.at_ns;
            }
        }
        let accessed = FileAccess { file: file.id, at_ns: self.now_ns(), time_generation };
        if accessed.counts(times_ns, time_generation) {
            *last = Some(accessed);
            self.shared.accesses.add(accessed);
        }
    }

    /// Tells the server about accesses. An access that it refuses, for example on a full disk, is forgotten.
    pub(super) async fn report_accesses(&self) {
        let waiting: Vec<FileAccess> = self.shared.accesses.waiting().values().copied().collect();
        for part in waiting.chunks(ACCESSES_MAX) {
            let told = self.operate(MetadataOperation::Access { accesses: part.to_vec() }).await;
            let mut waiting = self.shared.accesses.waiting();
            for accessed in part {
                if waiting.get(&accessed.file) == Some(accessed) {
                    waiting.remove(&accessed.file);
                }
            }
            if told.is_err_and(|error| error.is_end()) {
                return;
            }
        }
    }
}

impl OpenFile {
    /// Notes that a program read from the file, after the read.
    pub fn note_access(&self) {
        let (client, file) = self.parts();
        client.note_read(file);
    }
}
