//! The kernel of a host: pages of files that programs have mapped.
//!
//! Owns: pages and their locks. A page is locked while it is read or written back; an invalidation waits for the lock,
//! and first writes a dirty page back. The client does not notice a load from, or a store to, a page that is present.

use std::ops::Range;

use nectary_volume::tokens::TokenHolding;

use super::bugs::{VolumeModelBug, planted};
use super::client::{ModelCallFailure, MountModel};
use super::executor::MS;
use super::file::{KernelPage, ObjectLockKind};
use super::history::{ValueAccess, ValueKey};
use super::hold::DataPermission;

impl MountModel {
    fn page(&self, object: usize, block: u64) -> Option<KernelPage> {
        self.object(object).pages.borrow().get(&block).copied()
    }

    fn set_page(&self, object: usize, block: u64, page: Option<KernelPage>) {
        let mut pages = self.object(object).pages.borrow_mut();
        match page {
            Some(page) => drop(pages.insert(block, page)),
            None => drop(pages.remove(&block)),
        }
        drop(pages);
        self.touch();
    }

    async fn unlocked(&self, object: usize, block: u64) {
        self.wait(|| !self.page(object, block).is_some_and(|page| page.is_locked)).await;
    }

    /// Makes a page present and unlocked; returns false behind the end of the file.
    async fn fault(&self, object: usize, block: u64) -> Result<bool, ModelCallFailure> {
        loop {
            self.unlocked(object, block).await;
            if self.page(object, block).is_some() {
                return Ok(true);
            }
            self.set_page(object, block, Some(KernelPage { is_locked: true, ..KernelPage::default() }));
            let read = self.read_page(object, block).await;
            self.world.yields().await;
            match read {
                Ok(Some(value)) if !self.is_late() => {
                    self.set_page(object, block, Some(KernelPage { value, ..KernelPage::default() }));
                }
                read => {
                    self.set_page(object, block, None);
                    if read?.is_none() {
                        return Ok(false);
                    }
                    self.world.coverage.met("4: a page comes after its lease, and is forgotten");
                    self.world.sleep(MS).await;
                }
            }
        }
    }

    /// Whether programs may no longer see pages, because the lease is about to end or has ended.
    fn is_late(&self) -> bool {
        let may_cache = self.client.lease().may_cache(self.client.clock(&self.world));
        let is_late = self.client.is_lapsed.get() || self.client.ended.get() || !may_cache;
        is_late && !planted(VolumeModelBug::PagesPastLease)
    }

    async fn read_page(&self, object: usize, block: u64) -> Result<Option<u64>, ModelCallFailure> {
        let begin = |state: &mut TokenHolding| state.begin_page_read(block..block + 1);
        self.wait_for(object, TokenHolding::page_level, begin).await?;
        let result = self.read(object, block, DataPermission::Admitted).await;
        self.object(object).hold.borrow_mut().page_call_ended();
        self.touch();
        result
    }

    /// Loads from a mapped file, as a program does.
    pub async fn load(&self, object: usize, block: u64) -> Result<(), ModelCallFailure> {
        let deed = self.begin();
        if self.fault(object, block).await?
            && let Some(page) = self.page(object, block)
            && !self.client.is_exempt.get()
            && !self.client.is_blind()
        {
            let key = ValueKey::Block(object, block);
            self.world.history.borrow_mut().add(self.client.number, key, ValueAccess::Read(page.value), deed.invoked);
            self.world.coverage.met("a load from a map");
        }
        Ok(())
    }

    /// Reads the pages that are present again and again, as a program does with its maps; the client does not notice
    /// this.
    pub async fn gaze(self) {
        while self.world.is_working() {
            let us = MS + self.world.below(15 * MS);
            self.world.sleep(us).await;
            let object = self.world.below(self.world.files as u64) as usize;
            let deed = self.begin();
            let pages = self.object(object).pages.borrow().clone();
            for (block, page) in pages.into_iter().filter(|(_, page)| !page.is_locked) {
                if !self.client.is_exempt.get() {
                    self.saw(ValueKey::Block(object, block), ValueAccess::Read(page.value), deed.invoked);
                }
            }
        }
    }

    /// Stores to a mapped file, as a program does.
    pub async fn store(&self, object: usize, block: u64) -> Result<(), ModelCallFailure> {
        let mut deed = self.begin();
        let reserved = self.take_space().await?;
        let is_there = self.fault(object, block).await;
        let page = self.page(object, block).filter(|page| !page.is_locked && !self.client.is_exempt.get());
        let Some(page) = page.filter(|_| is_there == Ok(true)) else {
            self.client.space.borrow_mut().push(reserved);
            return is_there.map(drop);
        };
        let mut reserved = Some(reserved);
        if page.reserved.is_some() {
            self.client.space.borrow_mut().extend(std::mem::replace(&mut reserved, page.reserved));
        }
        let value = self.world.next_value();
        self.did(&mut deed, ValueKey::Block(object, block), ValueAccess::Write(value));
        self.set_page(object, block, Some(KernelPage { value, is_dirty: true, reserved, ..page }));
        self.world.coverage.met("a store to a map");
        self.end(deed);
        Ok(())
    }

    /// Writes dirty pages back.
    pub async fn write_back(&self, object: usize, range: Range<u64>) {
        self.pages_of(object, range, false).await;
    }

    /// Forgets pages, after they are written back.
    pub async fn invalidate(&self, object: usize, range: Range<u64>) {
        self.pages_of(object, range, true).await;
    }

    async fn pages_of(&self, object: usize, range: Range<u64>, forgets: bool) {
        let mut at = range.start;
        loop {
            let next = self.object(object).pages.borrow().range(at..range.end).next().map(|(block, _)| *block);
            let Some(block) = next else { return };
            self.unlocked(object, block).await;
            if let Some(page) = self.page(object, block) {
                self.write_back_page(object, block, page, forgets).await;
            }
            at = block + 1;
            self.world.yields().await;
        }
    }

    async fn write_back_page(&self, object: usize, block: u64, page: KernelPage, forgets: bool) {
        if page.is_dirty && !planted(VolumeModelBug::DirtyPagesDropped) {
            self.set_page(object, block, Some(KernelPage { is_locked: true, ..page }));
            // An error means that the session is over, so the page is lost with it.
            let _ = self.write_page(object, block, (page.value, page.reserved)).await;
        }
        self.world.tell(|| format!("client {}: {block} of {object} {page:?}, {forgets}", self.client.number));
        let left = KernelPage { value: page.value, ..KernelPage::default() };
        self.set_page(object, block, (!forgets && !self.is_late()).then_some(left));
    }

    /// Forgets pages when the lease is not renewed. Does not wait for locked pages, because programs cannot see them.
    pub async fn watch_lease(self) {
        let client = &self.client;
        loop {
            self.world.sleep(4 * MS).await;
            let lease = client.lease();
            let now = client.clock(&self.world);
            if lease.may_begin(now) && !client.ended.get() {
                client.is_lapsed.set(false);
                client.is_exempt.set(false);
            }
            if lease.may_cache(now) && !client.ended.get() || planted(VolumeModelBug::PagesPastLease) {
                continue;
            }
            client.is_lapsed.set(true);
            for object in 0..self.world.files {
                let blocks: Vec<u64> = self.object(object).pages.borrow().keys().copied().collect();
                for block in blocks {
                    if let Some(page) = self.page(object, block).filter(|page| !page.is_locked) {
                        self.world.coverage.met("4: a page is forgotten as the lease ends");
                        self.write_back_page(object, block, page, true).await;
                    }
                }
            }
            client.is_exempt.set(false);
        }
    }

    /// Maps a file, loads from its blocks or stores to them, and unmaps it. Meanwhile other programs of the host may
    /// map the file, but not write to it without a map.
    pub async fn map(&self, object: usize, is_writer: bool, blocks: &[u64]) -> Result<(), ModelCallFailure> {
        let _mapped = self.lock(object, ObjectLockKind::Mapped).await;
        if is_writer {
            self.add_writer(object).await;
        }
        let mut result = Ok(());
        for block in blocks {
            result = match is_writer && self.world.chance(60) {
                true => self.store(object, *block).await,
                false => self.load(object, *block).await,
            };
            if result.is_err() {
                break;
            }
            let us = self.world.below(3 * MS);
            self.world.sleep(us).await;
            if self.world.chance(20) {
                self.write_back(object, *block..block + 1).await;
            }
        }
        if is_writer {
            self.write_back(object, 0..u64::MAX).await;
            self.object(object).hold.borrow_mut().remove_writer();
        }
        result
    }

    /// Prepares a call without a map: writes mapped pages back. With `forgets`, it also invalidates the pages, and the
    /// returned guard keeps programs of the host from mapping the file.
    pub async fn unmapped(&self, object: usize, forgets: bool) -> Option<super::file::ObjectLockGuard> {
        let guard = if forgets { Some(self.lock(object, ObjectLockKind::Unmapped).await) } else { None };
        self.pages_of(object, 0..u64::MAX, forgets).await;
        guard
    }
}
