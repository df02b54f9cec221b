//! How much free space a client holds: it grows while the client writes, and what is not used goes back.
//!
//! Owns: the free blocks that the session holds, the amount of the next request, and the use of the last seconds.
//! Promises: a client that writes fast asks rarely, up to [`SPACE_BLOCKS_MAX`] at once; a client that writes nothing
//! for [`WINDOW`] seconds holds nothing, and one that writes slowly holds little more than it uses. Leaves to others:
//! requests and returns (`client`).

use std::collections::VecDeque;

use super::FreeBlocks;
use crate::protocol::GrantedSpace;

/// The first request. *Units*: blocks.
pub const SPACE_BLOCKS_MIN: u64 = 1 << 8;
/// The most that one request asks for. *Units*: blocks.
pub const SPACE_BLOCKS_MAX: u64 = 1 << 16;
/// Each request asks for this many times what the one before asked for.
const GROWTH: u64 = 4;
/// The number of seconds whose use decides how much is kept.
const WINDOW: usize = 3;

/// The free blocks of a session.
pub struct SpacePool {
    pub space: FreeBlocks,
    wanted: u64,
    /// Blocks of `space` that only overwriting may use. *Units*: blocks.
    pub kept: u64,
    /// The blocks taken in this second and in those before. *Units*: blocks.
    used: VecDeque<u64>,
}

impl SpacePool {
    /// Makes a pool without blocks.
    pub fn new() -> SpacePool {
        SpacePool { space: FreeBlocks::default(), wanted: SPACE_BLOCKS_MIN, kept: 0, used: VecDeque::from([0]) }
    }

    /// Returns how much to ask for if `blocks` are needed now.
    pub fn next_request(&self, blocks: u64) -> u64 {
        blocks.max(self.wanted).min(SPACE_BLOCKS_MAX)
    }

    /// Adds what the server granted to a request.
    pub fn granted(&mut self, asked: u64, granted: Vec<GrantedSpace>) {
        self.wanted = (asked * GROWTH).min(SPACE_BLOCKS_MAX);
        granted.into_iter().for_each(|granted| self.space.add(granted));
    }

    /// Notes that the server has no free space.
    pub fn refused(&mut self) {
        self.wanted = SPACE_BLOCKS_MIN;
    }

    /// Takes blocks in one piece, as [`FreeBlocks::take`] does.
    pub fn take(&mut self, after: Option<u64>, blocks: u64) -> Option<GrantedSpace> {
        let taken = self.space.take(after, blocks)?;
        if let Some(now) = self.used.back_mut() {
            *now += taken.blocks;
        }
        Some(taken)
    }

    /// Takes all blocks but those that are kept for overwriting.
    pub fn all_but_kept(&mut self) -> Vec<GrantedSpace> {
        self.all_but(self.kept)
    }

    fn all_but(&mut self, stays: u64) -> Vec<GrantedSpace> {
        let mut back = Vec::new();
        while self.space.blocks() > stays
            && let Some(piece) = self.space.take_last(self.space.blocks() - stays)
        {
            back.push(piece);
        }
        back
    }

    /// Ends a second; returns the blocks that are to go back.
    pub fn unused(&mut self) -> Vec<GrantedSpace> {
        let used: u64 = self.used.iter().sum();
        self.used.push_back(0);
        if self.used.len() > WINDOW {
            self.used.pop_front();
        }
        let stays = if used == 0 { 0 } else { (GROWTH * used).max(SPACE_BLOCKS_MIN) };
        let stays = stays.max(self.kept);
        if self.space.blocks() <= stays {
            return Vec::new();
        }
        self.wanted = self.wanted.min(stays.max(SPACE_BLOCKS_MIN));
        self.all_but(stays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes blocks, asking for more when there are too few; returns the number of requests.
    fn write(pool: &mut SpacePool, blocks: u64, disk: &mut u64) -> u64 {
        let mut requests = 0;
        if pool.space.blocks() < blocks {
            let asked = pool.next_request(blocks);
            pool.granted(asked, vec![GrantedSpace { block: *disk, blocks: asked }]);
            *disk += asked;
            requests = 1;
        }
        let mut left = blocks;
        while left > 0 {
            left -= pool.take(None, left).expect("there are some").blocks;
        }
        requests
    }

    #[test]
    fn grants_grow_while_a_client_writes() {
        let (mut pool, mut disk) = (SpacePool::new(), 1000);
        assert_eq!(pool.next_request(1), 256);
        // A stream of 1 GiB in pieces of 1 MiB.
        let requests: u64 = (0..1024).map(|_| write(&mut pool, 256, &mut disk)).sum();
        assert!(requests <= 8, "{requests}");
        assert_eq!(pool.next_request(1), SPACE_BLOCKS_MAX);
        pool.refused();
        assert_eq!((pool.next_request(1), pool.next_request(1000)), (256, 1000));
    }

    #[test]
    fn unused_blocks_return_after_window() {
        let (mut pool, mut disk) = (SpacePool::new(), 1000);
        (0..100).for_each(|_| _ = write(&mut pool, 256, &mut disk));
        let held = pool.space.blocks();
        assert!(held > 10_000, "{held}");
        // Much was used in the last seconds, so it stays.
        assert_eq!(pool.unused().len(), 0);
        for _ in 1..WINDOW {
            assert_eq!(pool.unused().len(), 0);
        }
        let back: u64 = pool.unused().iter().map(|granted| granted.blocks).sum();
        assert_eq!((back, pool.space.blocks(), pool.next_request(1)), (held, 0, SPACE_BLOCKS_MIN));
        assert_eq!(pool.unused().len(), 0);
    }

    #[test]
    fn slow_writer_keeps_little() {
        let (mut pool, mut disk) = (SpacePool::new(), 1000);
        (0..100).for_each(|_| _ = write(&mut pool, 256, &mut disk));
        for _ in 0..2 * WINDOW {
            write(&mut pool, 1, &mut disk);
            pool.unused();
        }
        let held = pool.space.blocks();
        assert!((SPACE_BLOCKS_MIN - 2 * WINDOW as u64..=SPACE_BLOCKS_MIN).contains(&held), "{held}");
        let requests: u64 = (0..200).map(|_| write(&mut pool, 1, &mut disk)).sum();
        assert_eq!(requests, 0, "and goes on without a request");
    }
}
