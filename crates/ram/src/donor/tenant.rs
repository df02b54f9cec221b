//! The memory of one device on a donor, and the session that may use it.
//!
//! Owns: the set of written blocks, and the gate through which every request goes. Promises: a block that was never
//! written, or was trimmed or zeroed, reads as zeroes, whatever the slab held before; so no device reads data of
//! another device. A slab without a written block is returned to the pool. A device grows while it is used.
//!
//! # Damaged memory
//! A device with metadata that is changed in place has no checksums in its blocks, so its donor keeps one beside each
//! block. A whole block that is read and does not match is returned as [`damaged_bytes`]; a later write of a part of it
//! keeps it damaged.
//!
//! # The gate
//! A request passes only as part of the session that the gate names. The first request of a later epoch of the same
//! client moves the gate forward, after the requests in progress have ended. Late requests of an earlier connection are
//! then refused, so they cannot overwrite newer data. Another client moves the gate when it opens its export, and only
//! while the earlier client has no connection. For a device with metadata only an exchange of its record moves the gate
//! (`metadata`); both use the same lock, so no request passes between the comparison and the move.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use nectary_block::{Buffer, DeviceExtent, EXTENTS_MAX};
use nectary_host::Shutdown;
use xxhash_rust::xxh3::xxh3_64;

use super::BLOCK_BYTES;
use super::pool::{SLAB_BYTES, SlabPool};
use super::shelves::StableVector;
use crate::device::owner::planted::{Bug, planted};
use crate::format::{RecordStamp, damaged_bytes};

/// The number of blocks of a slab.
const BLOCKS: usize = SLAB_BYTES / BLOCK_BYTES as usize;
/// The checksum of a block that has none.
const NO_SUM: u32 = 0;
/// The checksum of a block that was damaged before a part of it was written.
const BAD_SUM: u32 = 1;

/// The session that may use a device: the client (0 for one without a session) and its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionHolder {
    pub client: u64,
    pub epoch: u64,
}

/// The gate, and the values that change together with it.
pub(super) struct TenantGate {
    /// The session that may pass.
    pub holder: SessionHolder,
    /// The record of a device with metadata; empty if there is none.
    pub record: Vec<u8>,
    /// For a device with metadata: the life of the session that may pass.
    pub owner: Weak<SessionLife>,
}

/// The life of a session; it exists as long as a connection of the session does.
#[derive(Debug, Default)]
pub(super) struct SessionLife {
    /// Ends the session's connections.
    pub ended: Shutdown,
}

/// One slab of a device.
#[derive(Default)]
struct DeviceSlab {
    memory: Option<Buffer>,
    /// One bit for each block; it is set if the block was written.
    written: [u64; BLOCKS / 64],
    /// The checksum of each block, if the device keeps them.
    sums: Option<Box<[u32; BLOCKS]>>,
}

/// The memory of one device.
pub(super) struct Tenant {
    /// It only grows; sessions keep the size that they began with.
    size_bytes: AtomicU64,
    slabs: StableVector<RwLock<DeviceSlab>>,
    pool: Arc<SlabPool>,
    gate: RwLock<TenantGate>,
    has_metadata: bool,
    keeps_sums: AtomicBool,
    written_blocks: AtomicU64,
    pub read_bytes: AtomicU64,
    pub changed_bytes: AtomicU64,
}

impl Tenant {
    /// Makes a device, if memory for it can be promised. It reads as zeroes.
    pub fn new(size_bytes: u64, pool: Arc<SlabPool>, holder: SessionHolder, has_metadata: bool) -> Option<Tenant> {
        if !pool.promise(0, size_bytes) {
            return None;
        }
        let (size_bytes, slabs) = (AtomicU64::new(size_bytes), StableVector::new());
        let (read_bytes, changed_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (written_blocks, keeps_sums) = (AtomicU64::new(0), AtomicBool::new(false));
        let gate = RwLock::new(TenantGate { holder, record: Vec::new(), owner: Weak::new() });
        Some(Tenant {
            size_bytes,
            slabs,
            pool,
            gate,
            has_metadata,
            keeps_sums,
            written_blocks,
            read_bytes,
            changed_bytes,
        })
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Makes the device larger, if memory for it can be promised; the caller lets no two calls run at the same time. The
    /// new bytes read as zeroes.
    pub fn grow(&self, size_bytes: u64) -> bool {
        let is_promised = self.pool.promise(self.size_bytes(), size_bytes);
        if is_promised {
            self.size_bytes.store(size_bytes, Ordering::Release);
        }
        is_promised
    }

    /// Returns the number of bytes in all written blocks.
    pub fn written_bytes(&self) -> u64 {
        self.written_blocks.load(Ordering::Relaxed) * u64::from(BLOCK_BYTES)
    }

    /// Whether the device has a metadata area, whose record decides which client owns it.
    pub fn has_metadata(&self) -> bool {
        self.has_metadata
    }

    /// Whether checksums are kept of what is written.
    pub fn keeps_sums(&self) -> bool {
        self.keeps_sums.load(Ordering::Relaxed)
    }

    /// Keeps checksums of what is written from now on.
    pub fn keep_sums(&self) {
        self.keeps_sums.store(true, Ordering::Relaxed);
    }

    /// Whether the device has no written block and no record.
    pub fn is_empty(&self) -> bool {
        self.written_blocks.load(Ordering::Relaxed) == 0 && self.gate().record.is_empty()
    }

    /// Locks the gate for reading; it cannot move as long as the guard lives.
    pub fn gate(&self) -> RwLockReadGuard<'_, TenantGate> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the gate while no request is in progress, so that it can be moved. *Cost*: waits for the requests in
    /// progress, which only copy memory.
    pub fn gate_alone(&self) -> RwLockWriteGuard<'_, TenantGate> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client has attached the device and not detached it, connected or not. A client without a record of the
    /// device does not say so.
    pub fn is_attached(&self) -> bool {
        self.has_metadata && RecordStamp::of(&self.gate().record).client != 0
    }

    /// Returns the session that may use the device now.
    pub fn holder(&self) -> SessionHolder {
        self.gate().holder
    }

    /// Gives the device to the session of another client, after the requests in progress have ended.
    pub fn admit(&self, holder: SessionHolder) {
        self.gate_alone().holder = holder;
    }

    /// Lets one request pass, as long as the guard lives; `None` if a later session has taken over.
    pub fn pass(&self, holder: SessionHolder) -> Option<RwLockReadGuard<'_, TenantGate>> {
        loop {
            let gate = self.gate();
            match gate.holder {
                now if now == holder => return Some(gate),
                now if now.client == holder.client && now.epoch < holder.epoch && !self.has_metadata => {
                    drop(gate);
                    let mut gate = self.gate_alone();
                    if gate.holder.client == holder.client {
                        gate.holder.epoch = gate.holder.epoch.max(holder.epoch);
                    }
                }
                now if planted(Bug::OldOwnerServed) && self.has_metadata && now.client != 0 => return Some(gate),
                _ => return None,
            }
        }
    }

    /// Reads; the caller has checked the range.
    pub fn read(&self, offset: u64, mut into: &mut [u8]) {
        for (index, range) in pieces(offset, into.len() as u64) {
            let (piece, rest) = into.split_at_mut(range.len());
            into = rest;
            let slab = self.slabs.get(index).read().unwrap_or_else(PoisonError::into_inner);
            let Some(memory) = &slab.memory else {
                piece.fill(0);
                continue;
            };
            if slab.all_written(&range) {
                piece.copy_from_slice(&memory[range.clone()]);
                slab.show_damage(&range, piece);
                continue;
            }
            for block in blocks(&range) {
                let part = part_of(block, &range);
                let to = &mut piece[part.start - range.start..part.end - range.start];
                match slab.is_written(block) {
                    true => to.copy_from_slice(&memory[part]),
                    false => to.fill(0),
                }
            }
            slab.show_damage(&range, piece);
        }
    }

    /// Writes; the caller has checked the range. If a block is written in part, the rest of it keeps its bytes, or is
    /// zeroes if it was never written.
    pub fn write(&self, offset: u64, mut from: &[u8]) {
        for (index, range) in pieces(offset, from.len() as u64) {
            let (piece, rest) = from.split_at(range.len());
            from = rest;
            let mut slab = self.slabs.get(index).write().unwrap_or_else(PoisonError::into_inner);
            let DeviceSlab { memory, written, sums } = &mut *slab;
            let memory = memory.get_or_insert_with(|| self.pool.take());
            if self.keeps_sums() {
                sums.get_or_insert_with(|| Box::new([NO_SUM; BLOCKS]));
            }
            for block in edges(&range) {
                match has(written, block) {
                    true => note_damage(sums, block, memory),
                    false => {
                        memory[whole(block)].fill(0);
                        // What was damaged is gone.
                        sums.iter_mut().for_each(|sums| sums[block] = NO_SUM);
                    }
                }
            }
            memory[range.clone()].copy_from_slice(piece);
            let partial: Vec<usize> = if sums.is_some() { edges(&range).collect() } else { Vec::new() };
            blocks(&range).for_each(|block| note_written(sums, block, memory, partial.contains(&block)));
            let added = slab.mark(&range, true);
            self.written_blocks.fetch_add(added, Ordering::Relaxed);
        }
    }

    /// Makes a range read as zeroes, and returns slabs without a written block to the pool.
    pub fn zero(&self, offset: u64, length: u64) {
        for (index, range) in pieces(offset, length) {
            let mut slab = self.slabs.get(index).write().unwrap_or_else(PoisonError::into_inner);
            let DeviceSlab { memory, written, sums } = &mut *slab;
            if let Some(memory) = memory {
                for block in edges(&range).filter(|block| has(written, *block)) {
                    note_damage(sums, block, memory);
                    memory[part_of(block, &range)].fill(0);
                    note_written(sums, block, memory, true);
                }
            }
            let block_bytes = BLOCK_BYTES as usize;
            let inner = range.start.next_multiple_of(block_bytes)..range.end / block_bytes * block_bytes;
            let removed = if inner.is_empty() { 0 } else { slab.mark(&inner, false) };
            self.written_blocks.fetch_sub(removed, Ordering::Relaxed);
            if slab.written.iter().all(|&word| word == 0)
                && let Some(memory) = slab.memory.take()
            {
                slab.sums = None;
                self.pool.give_back(memory);
            }
        }
    }

    /// Returns the written and unwritten parts of a range, in order.
    pub fn extents(&self, offset: u64, length: u64) -> Vec<DeviceExtent> {
        let mut list: Vec<DeviceExtent> = Vec::new();
        let end = offset + length;
        for (index, range) in pieces(offset, length) {
            let slab = self.slabs.get(index).read().unwrap_or_else(PoisonError::into_inner);
            let base = index as u64 * SLAB_BYTES as u64;
            for block in blocks(&range) {
                let (start, mapped) = (base + (block * BLOCK_BYTES as usize) as u64, slab.is_written(block));
                let is_full = list.len() + 1 == EXTENTS_MAX;
                match list.last_mut() {
                    Some(last) if last.mapped == mapped => last.length += u64::from(BLOCK_BYTES),
                    _ if is_full => {
                        list.push(DeviceExtent { offset: start, length: end - start, mapped: true });
                        return list;
                    }
                    _ => list.push(DeviceExtent { offset: start, length: u64::from(BLOCK_BYTES), mapped }),
                }
            }
        }
        list
    }
}

#[cfg(any(test, feature = "planted"))]
impl Tenant {
    /// Flips a bit of the memory, as bad memory does.
    pub fn rot(&self, offset: u64) {
        let (index, at) = (offset as usize / SLAB_BYTES, offset as usize % SLAB_BYTES);
        let mut slab = self.slabs.get(index).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = &mut slab.memory {
            memory[at] ^= 1;
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        for slab in self.slabs.iter_mut() {
            if let Some(memory) = slab.get_mut().unwrap_or_else(PoisonError::into_inner).memory.take() {
                self.pool.give_back(memory);
            }
        }
        self.pool.release(self.size_bytes());
    }
}

impl DeviceSlab {
    fn is_written(&self, block: usize) -> bool {
        has(&self.written, block)
    }

    /// Replaces whole blocks of a piece that was read by [`damaged_bytes`], if they do not match their checksums.
    fn show_damage(&self, range: &Range<usize>, piece: &mut [u8]) {
        let Some(sums) = &self.sums else { return };
        for block in blocks(range).filter(|block| part_of(*block, range) == whole(*block)) {
            let of = whole(block);
            let bytes = &mut piece[of.start - range.start..of.end - range.start];
            if self.is_written(block) && sums[block] != NO_SUM && sums[block] != sum(bytes) {
                bytes.copy_from_slice(damaged_bytes());
            }
        }
    }

    fn all_written(&self, range: &Range<usize>) -> bool {
        blocks(range).all(|block| self.is_written(block))
    }

    /// Marks the blocks of a range as written or not; returns how many changed.
    fn mark(&mut self, range: &Range<usize>, written: bool) -> u64 {
        let mut changed = 0;
        for block in blocks(range) {
            changed += u64::from(self.is_written(block) != written);
            let bit = 1 << (block % 64);
            match written {
                true => self.written[block / 64] |= bit,
                false => self.written[block / 64] &= !bit,
            }
        }
        changed
    }
}

/// Returns the checksum of a block; never [`NO_SUM`] or [`BAD_SUM`].
fn sum(block: &[u8]) -> u32 {
    let hash = xxh3_64(block);
    ((hash ^ (hash >> 32)) as u32).max(BAD_SUM + 1)
}

/// Before a part of a block is changed: notes whether the block is damaged.
fn note_damage(sums: &mut Option<Box<[u32; BLOCKS]>>, block: usize, memory: &[u8]) {
    if let Some(sums) = sums
        && sums[block] != NO_SUM
        && sums[block] != sum(&memory[whole(block)])
    {
        sums[block] = BAD_SUM;
    }
}

/// After a block was changed: computes its checksum. One that was damaged stays so if only a part was written.
fn note_written(sums: &mut Option<Box<[u32; BLOCKS]>>, block: usize, memory: &[u8], is_partial: bool) {
    if let Some(sums) = sums
        && !(is_partial && sums[block] == BAD_SUM)
    {
        sums[block] = sum(&memory[whole(block)]);
    }
}

fn has(written: &[u64], block: usize) -> bool {
    written[block / 64] >> (block % 64) & 1 == 1
}

/// Returns the blocks of a range inside a slab; the first and the last may be covered only in part.
fn blocks(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK_BYTES as usize..range.end.div_ceil(BLOCK_BYTES as usize)
}

fn whole(block: usize) -> Range<usize> {
    block * BLOCK_BYTES as usize..(block + 1) * BLOCK_BYTES as usize
}

/// Returns the part of a block that a range covers.
fn part_of(block: usize, range: &Range<usize>) -> Range<usize> {
    let whole = whole(block);
    whole.start.max(range.start)..whole.end.min(range.end)
}

/// Returns the blocks that a range covers only in part.
fn edges(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    let (all, range) = (blocks(range), range.clone());
    let first = all.clone().next();
    let last = all.last().filter(|last| Some(*last) != first);
    first.into_iter().chain(last).filter(move |block| part_of(*block, &range) != whole(*block))
}

/// Returns the parts of a range in each slab: the index of the slab, and the range inside it.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (slab, end) = (SLAB_BYTES as u64, offset + length);
    (offset / slab..end.div_ceil(slab)).map(move |index| {
        let base = index * slab;
        let (start, stop) = (offset.max(base) - base, end.min(base + slab) - base);
        (index as usize, start as usize..stop as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: SessionHolder = SessionHolder { client: 0, epoch: 0 };

    fn tenant(pool: &Arc<SlabPool>, slabs: u64) -> Option<Tenant> {
        Tenant::new(slabs * SLAB_BYTES as u64, pool.clone(), NOBODY, false)
    }

    #[test]
    fn memory_is_zero_for_next_device() {
        let pool = Arc::new(SlabPool::new(2 * SLAB_BYTES as u64, false).unwrap());
        let first = tenant(&pool, 2).unwrap();
        first.write(SLAB_BYTES as u64 - 4096, &[7; 8192]);
        assert_eq!((first.written_bytes(), pool.bytes().2), (8192, 2 * SLAB_BYTES as u64));
        assert!(tenant(&pool, 1).is_none(), "memory is promised once");
        drop(first);
        let second = tenant(&pool, 2).unwrap();
        second.write(SLAB_BYTES as u64 - 8192, &[9; 4096]);
        second.write(SLAB_BYTES as u64 + 4096, &[9; 4096]);
        let mut found = vec![1; 16384];
        second.read(SLAB_BYTES as u64 - 8192, &mut found);
        let expected = [vec![9; 4096], vec![0; 8192], vec![9; 4096]].concat();
        assert!(found == expected, "the first device shows through");
    }

    /// Zeroed slabs return to the pool, and the extents say which blocks are written.
    #[test]
    fn zeroed_slabs_return_to_pool() {
        let pool = Arc::new(SlabPool::new(2 * SLAB_BYTES as u64, true).unwrap());
        let tenant = tenant(&pool, 2).unwrap();
        tenant.write(4096, &[1; 8192]);
        tenant.write(SLAB_BYTES as u64, &[1; 4096]);
        tenant.zero(4096, 4096);
        let found: Vec<_> = tenant.extents(0, 16384).iter().map(|e| (e.offset, e.length, e.mapped)).collect();
        assert_eq!(found, [(0, 8192, false), (8192, 4096, true), (12288, 4096, false)]);
        tenant.zero(0, SLAB_BYTES as u64);
        assert_eq!((tenant.written_bytes(), pool.bytes().2), (4096, SLAB_BYTES as u64));
    }

    /// A damaged block reads as damaged bytes until the whole block is written; parts of it are not checked.
    #[test]
    fn damaged_block_reads_until_rewritten() {
        let pool = Arc::new(SlabPool::new(SLAB_BYTES as u64, true).unwrap());
        let tenant = tenant(&pool, 1).unwrap();
        tenant.keep_sums();
        tenant.write(4096, &[5; 8192]);
        tenant.write(5000, &[6; 100]);
        let read = |at: u64| {
            let mut found = vec![1; 4096];
            tenant.read(at, &mut found);
            found
        };
        assert!(read(4096)[904..1004] == [6; 100] && read(8192) == [5; 4096] && read(0) == [0; 4096]);
        tenant.rot(8192 + 777);
        assert!(read(8192) == damaged_bytes() && read(4096)[..904] == [5; 904]);
        let mut part = vec![0; 100];
        tenant.read(8192, &mut part);
        assert!(part == [5; 100], "parts of blocks are not checked");
        tenant.write(8192, &[7; 100]);
        tenant.zero(8292, 100);
        assert!(read(8192) == damaged_bytes(), "the rest of the block is still wrong");
        tenant.write(8192, &[7; 4096]);
        assert_eq!(read(8192), [7; 4096]);
        tenant.rot(8192);
        tenant.zero(8192, 4096);
        tenant.write(8292, &[8; 10]);
        assert!(read(8192)[..100] == [0; 100] && read(8192)[100] == 8);
        tenant.rot(8192);
        tenant.write(8292, &[9; 10]);
        assert!(read(8192) == damaged_bytes());
        tenant.zero(8192, 4096);
        tenant.write(8292, &[8; 10]);
        assert!(read(8192)[..100] == [0; 100] && read(8192)[100] == 8, "a trimmed block is not damaged");
    }

    #[test]
    fn partial_blocks_match_model() {
        let pool = Arc::new(SlabPool::new(2 * SLAB_BYTES as u64, false).unwrap());
        let before = tenant(&pool, 2).unwrap();
        before.write(0, &vec![7; 2 * SLAB_BYTES]);
        drop(before);
        let tenant = tenant(&pool, 2).unwrap();
        let mut expected = vec![0; 2 * SLAB_BYTES];
        let mut state = 5u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..2000u64 {
            // The range is around the boundary of two slabs.
            let at = SLAB_BYTES as u64 - 20_000 + next(5000) * 8;
            let range = at as usize..at as usize + next(1200) as usize * 8;
            match next(4) {
                0 => {
                    tenant.zero(at, range.len() as u64);
                    expected[range].fill(0);
                }
                _ => {
                    tenant.write(at, &vec![round as u8; range.len()]);
                    expected[range].fill(round as u8);
                }
            }
            let at = SLAB_BYTES as u64 - 24_000 + next(5000) * 8;
            let mut found = vec![1; next(1000) as usize * 8];
            tenant.read(at, &mut found);
            assert!(found == expected[at as usize..at as usize + found.len()], "round {round}");
        }
    }

    /// An earlier session of the client is refused after a later one, and so is another client.
    #[test]
    fn later_session_fences_earlier() {
        let pool = Arc::new(SlabPool::new(SLAB_BYTES as u64, true).unwrap());
        let tenant = tenant(&pool, 1).unwrap();
        let session = |client, epoch| SessionHolder { client, epoch };
        assert!(tenant.pass(NOBODY).is_some() && tenant.pass(session(1, 1)).is_none());
        tenant.admit(session(1, 1));
        assert!(tenant.pass(NOBODY).is_none() && tenant.pass(session(1, 1)).is_some());
        assert!(tenant.pass(session(1, 3)).is_some());
        assert!(tenant.pass(session(1, 1)).is_none() && tenant.pass(session(1, 2)).is_none());
        assert!(tenant.pass(session(2, 9)).is_none());
        assert_eq!(tenant.holder(), session(1, 3));
    }
}
