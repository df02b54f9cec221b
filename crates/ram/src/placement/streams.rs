//! Chooses the cache for a write: detects streams, and decides which stale stream gives its cache to a new one.
//!
//! Owns: the block at which each stream is expected to continue, and when it last continued. Leaves to others: the
//! caches themselves.
//!
//! A write continues a stream if it begins directly after the stream's last write, or at the last block of that write
//! (a file may grow by parts of a block). Every other write is a **newcomer**. Blocks of newcomers that get no cache go
//! to the **victim cache**, and so do the blocks that a stale stream leaves behind. Decision 0044 has figures for these
//! rules.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The rule that decides which stream loses its cache to a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StaleRule {
    /// No stream: the first streams keep their caches for ever.
    Never,
    /// Every newcomer takes the cache of the least recently used stream.
    Lru,
    /// A newcomer takes the cache of the least recently used stream, if that had no write during the last P requests,
    /// where P is the number of caches.
    Idle,
    /// A newcomer takes the cache of the least recently used stream if it has been continued once, or if its first
    /// write fills a group.
    #[default]
    Proven,
}

impl StaleRule {
    /// All rules.
    pub const ALL: [StaleRule; 4] = [StaleRule::Never, StaleRule::Lru, StaleRule::Idle, StaleRule::Proven];

    /// Returns the name of the rule on command lines.
    pub fn name(self) -> &'static str {
        match self {
            StaleRule::Never => "never",
            StaleRule::Lru => "lru",
            StaleRule::Idle => "idle",
            StaleRule::Proven => "proven",
        }
    }
}

impl fmt::Display for StaleRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for StaleRule {
    type Err = String;

    fn from_str(text: &str) -> Result<StaleRule, String> {
        let found = StaleRule::ALL.into_iter().find(|rule| rule.name() == text);
        found.ok_or_else(|| {
            format!("no rule is called \"{text}\"; there are: {}", StaleRule::ALL.map(StaleRule::name).join(", "))
        })
    }
}

/// The decision about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheChoice {
    /// The write continues this stream.
    Continue(usize),
    /// The write begins a stream in this cache, and the cache's former stream ends.
    Replace(usize),
    /// The write gets no cache, and goes to the victim cache.
    Victims,
}

#[derive(Debug, Clone, Copy)]
struct WriteStream {
    /// The block after the stream's last write.
    next: u32,
    /// The number of the stream's last request; 0 if it has had none.
    last: u64,
}

/// The streams of `adaptive`.
#[derive(Debug)]
pub(super) struct WriteStreams {
    rule: StaleRule,
    /// A newcomer whose first write has at least this many blocks counts as proven.
    members: u32,
    streams: Vec<WriteStream>,
    requests: u64,
    /// The blocks after the last writes of newcomers without a cache, and of streams that lost their cache; at most
    /// twice as many as there are caches.
    ended: VecDeque<u32>,
}

impl WriteStreams {
    pub fn new(rule: StaleRule, members: u8, count: usize) -> WriteStreams {
        let streams = vec![WriteStream { next: 0, last: 0 }; count];
        WriteStreams {
            rule,
            members: u32::from(members),
            streams,
            requests: 0,
            ended: VecDeque::with_capacity(2 * count + 1),
        }
    }

    /// Decides about a request, and remembers it.
    pub fn choose(&mut self, blocks: &Range<u32>) -> CacheChoice {
        self.requests += 1;
        let continues = |stream: &WriteStream| {
            stream.last > 0 && (stream.next == blocks.start || stream.next == blocks.start.saturating_add(1))
        };
        if let Some(index) = self.streams.iter().position(continues) {
            self.note(index, blocks);
            return CacheChoice::Continue(index);
        }
        let has_gone_on = self.ended.iter().position(|&end| end == blocks.start);
        let Some(index) = self.stale(blocks, has_gone_on.is_some()) else {
            self.remember(blocks.end);
            return CacheChoice::Victims;
        };
        if let Some(at) = has_gone_on {
            self.ended.remove(at);
        }
        if self.streams[index].last > 0 {
            self.remember(self.streams[index].next);
        }
        self.note(index, blocks);
        CacheChoice::Replace(index)
    }

    /// Returns the stream cache that a new stream may take over, if any: the one that was used least recently.
    fn stale(&self, blocks: &Range<u32>, has_gone_on: bool) -> Option<usize> {
        let (index, oldest) = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.last)?;
        let is_stale = match self.rule {
            StaleRule::Never => oldest.last == 0,
            StaleRule::Lru => true,
            StaleRule::Idle => oldest.last == 0 || self.requests - oldest.last > self.streams.len() as u64,
            StaleRule::Proven => has_gone_on || blocks.end - blocks.start >= self.members,
        };
        is_stale.then_some(index)
    }

    fn note(&mut self, index: usize, blocks: &Range<u32>) {
        self.streams[index] = WriteStream { next: blocks.end, last: self.requests };
    }

    fn remember(&mut self, end: u32) {
        if self.ended.len() >= 2 * self.streams.len() {
            self.ended.pop_front();
        }
        self.ended.push_back(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(rule: StaleRule, writes: &[Range<u32>]) -> Vec<CacheChoice> {
        let mut streams = WriteStreams::new(rule, 4, 2);
        writes.iter().map(|blocks| streams.choose(blocks)).collect()
    }

    #[test]
    fn stale_rules_choose_documented_caches() {
        use CacheChoice::{Continue, Replace, Victims};
        let writes = [10..11, 20..21, 30..31, 11..12, 31..32];
        let found = |rule| choices(rule, &writes);
        assert_eq!(found(StaleRule::Never), [Replace(0), Replace(1), Victims, Continue(0), Victims]);
        assert_eq!(found(StaleRule::Lru), [Replace(0), Replace(1), Replace(0), Replace(1), Continue(0)]);
        assert_eq!(found(StaleRule::Idle), [Replace(0), Replace(1), Victims, Continue(0), Replace(1)]);
        assert_eq!(found(StaleRule::Proven), [Victims, Victims, Victims, Replace(0), Replace(1)]);
        assert_eq!(choices(StaleRule::Proven, &[10..14, 13..15]), [Replace(0), Continue(0)]);
    }
}
