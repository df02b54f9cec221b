//! A program that mostly uses one directory, which its host then makes and removes names in itself; sometimes it visits
//! those of other programs.
//!
//! Owns: the choice of such calls. Leaves to others: making and recording them (`program`).

use std::collections::BTreeSet;
use std::time::Duration;

use nectary_volume::protocol::FileId;

use super::board::{ROOT_ID, lock};
use super::program::{CreateKind, NamesProgram};
use super::tree::{ROOT, Tag};

/// The number of names in such a directory.
const NAMES: u64 = 6;
/// The first name of such directories in the root.
const FIRST_NAME: u8 = 20;
/// The most calls of a visit.
const VISIT_CALLS_MAX: u64 = 3;
/// The time after which a host counts as the only user of a directory, and some more.
const ALONE: Duration = Duration::from_millis(600);

/// The directory of a program.
struct ProgramHome {
    tag: Tag,
    id: FileId,
    /// The names that it has, as far as the program knows.
    names: BTreeSet<u8>,
}

impl NamesProgram {
    /// Makes this many calls, most of them in one directory, with pauses between them.
    pub async fn run_at_home(mut self, calls: u64) {
        let mut home = self.make_home().await;
        for _ in 0..calls {
            let pause = match self.random.below(100) {
                0..55 => Duration::ZERO,
                55..90 => Duration::from_micros(self.random.below(15_000)),
                90..99 => ALONE,
                _ => Duration::from_micros(self.random.below(9_000_000)),
            };
            tokio::time::sleep(pause).await;
            self.mount.rested().await;
            match (self.random.below(100), &mut home) {
                (0..80, Some(home)) => self.change_home(home).await,
                (80..90, Some(home)) => self.look_into(home.tag, home.id).await,
                (90..92, _) => self.visit().await,
                _ => self.call().await,
            }
        }
        self.close_all().await;
    }

    async fn make_home(&mut self) -> Option<ProgramHome> {
        let place = (ROOT, FIRST_NAME.saturating_add(self.number as u8));
        let (tag, id, _) = self.make_at(place, ROOT_ID, CreateKind::Directory).await?;
        lock(&self.board.homes).push((tag, id));
        tokio::time::sleep(ALONE).await;
        Some(ProgramHome { tag, id, names: BTreeSet::new() })
    }

    async fn change_home(&mut self, home: &mut ProgramHome) {
        let number = self.random.below(NAMES) as u8;
        let place = (home.tag, number);
        // Sometimes the call is refused.
        let is_there = home.names.contains(&number) != self.random.chance(4);
        if is_there {
            home.names.remove(&number);
            return self.unlink_at(place, home.id, false).await;
        }
        home.names.insert(number);
        let making = match self.random.below(20) {
            0 => CreateKind::Directory,
            1..8 => CreateKind::Closed,
            _ => CreateKind::Open,
        };
        if self.random.chance(20) {
            return self.make_and_use(place, home.id, making).await;
        }
        if let Some((_, _, Some(open))) = self.make_at(place, home.id, making).await {
            open.file.close().await;
        }
    }

    async fn look_into(&mut self, tag: Tag, id: FileId) {
        match self.random.below(10) {
            0..4 => {
                let name = self.random.below(NAMES) as u8;
                self.look_at((tag, name), id).await;
            }
            4..6 => _ = self.stat_of(tag, id).await,
            6..8 => {
                let Some((tag, file)) = self.file() else { return };
                self.stat_of(tag, file).await;
            }
            _ => _ = self.list_of(tag, id).await,
        }
    }

    /// Looks at and changes the directory of another program.
    async fn visit(&mut self) {
        let (of, from) = {
            let homes = lock(&self.board.homes);
            if homes.is_empty() {
                return;
            }
            let random = &mut self.random;
            let mut any = || homes[random.below(homes.len() as u64) as usize];
            (any(), any())
        };
        for _ in 0..1 + self.random.below(VISIT_CALLS_MAX) {
            let place = (of.0, self.random.below(NAMES) as u8);
            match self.random.below(10) {
                0..6 => self.look_into(of.0, of.1).await,
                6 => self.make_and_use(place, of.1, CreateKind::Open).await,
                7 => self.unlink_at(place, of.1, false).await,
                8 => self.link_at(place, of.1).await,
                _ => {
                    let other = (from.0, self.random.below(NAMES) as u8);
                    self.rename_to((other, from.1), (place, of.1), 0, None).await;
                }
            }
        }
    }
}
