//! Mixes several traces into one.
//!
//! Owns: the order of the references of a mix. Promises: blocks and streams of different traces stay different in a mix;
//! the same traces in the same order give the same mix. Times, times to live and deletes are left out.

use std::sync::OnceLock;

use hashbrown::HashMap;
use nectary_cache::StreamId;

use super::workload::{NAMES_MAX, TraceWorkload};
use crate::error::{Error, Result};

/// The maximum number of traces that can be mixed; the number of a trace is in the upper 16 bits of its blocks.
pub const TRACES_MAX: usize = 1 << 16;

const TRACE_SHIFT: u32 = 48;

impl TraceWorkload {
    /// Mixes traces into one, in proportion to their lengths: the next reference comes from the trace of which the
    /// smallest share has been used. If the shares are equal, the first such trace is next. Each trace keeps its own
    /// streams in the mix.
    ///
    /// *Errors*: there are more than [`TRACES_MAX`] traces.
    pub fn mix(parts: &[&TraceWorkload]) -> Result<TraceWorkload> {
        if parts.len() > TRACES_MAX {
            return Err(Error::Usage(format!("{} traces to mix; {TRACES_MAX} are the most", parts.len())));
        }
        let total = parts.iter().map(|part| part.blocks.len()).sum();
        let mut blocks = Vec::with_capacity(total);
        let mut streams = Vec::with_capacity(total);
        let has_sizes = parts.iter().all(|part| part.has_sizes());
        let mut bytes = Vec::with_capacity(if has_sizes { total } else { 0 });
        let mut renamed: Vec<MixedTrace<'_>> = Vec::new();
        let mut names = Vec::new();
        let mut stream_base: u32 = 0;
        for (number, part) in parts.iter().enumerate() {
            renamed.push(MixedTrace::new(part, number as u64, stream_base));
            let in_mix = |stream: StreamId| StreamId(stream_base.saturating_add(stream.0));
            let own = part.names.iter().map(|(stream, name)| (in_mix(*stream), format!("{}: {name}", part.name)));
            match part.names.is_empty() && part.streams.is_empty() {
                true => names.push((in_mix(StreamId(0)), part.name.clone())),
                false => names.extend(own),
            }
            stream_base = stream_base.saturating_add(part.last_stream().0).saturating_add(1);
        }
        for _ in 0..total {
            let mut next: Option<usize> = None;
            for (index, part) in renamed.iter().enumerate() {
                if part.share_is_below(next.map(|best| &renamed[best])) {
                    next = Some(index);
                }
            }
            let Some(next) = next else { break };
            if has_sizes {
                bytes.push(parts[next].bytes(renamed[next].taken));
            }
            let (block, stream) = renamed[next].take();
            blocks.push(block);
            streams.push(stream);
        }
        let name = parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join("+");
        if stream_base == 1 {
            streams = Vec::new();
        }
        names.truncate(NAMES_MAX);
        let distinct = parts.iter().map(|part| part.distinct).sum();
        let block_bytes = parts.first().and_then(|part| part.block_bytes);
        let block_bytes = block_bytes.filter(|bytes| parts.iter().all(|part| part.block_bytes == Some(*bytes)));
        let distinct_bytes = if has_sizes { parts.iter().map(|part| part.distinct_bytes).sum() } else { 0 };
        Ok(TraceWorkload {
            name,
            blocks,
            streams,
            bytes,
            times: Vec::new(),
            lives: Vec::new(),
            deletes: Vec::new(),
            distinct,
            distinct_bytes,
            names,
            warning: None,
            block_bytes,
            future: OnceLock::new(),
        })
    }
}

/// A trace that is being mixed.
struct MixedTrace<'a> {
    part: &'a TraceWorkload,
    taken: usize,
    trace: u64,
    stream_base: u32,
    /// The new numbers of blocks, in the order in which the blocks appear, for traces whose own block numbers leave no
    /// room for the trace's number.
    numbers: Option<HashMap<u64, u64>>,
}

impl<'a> MixedTrace<'a> {
    fn new(part: &'a TraceWorkload, trace: u64, stream_base: u32) -> MixedTrace<'a> {
        let is_wide = part.blocks.iter().any(|&block| block >> TRACE_SHIFT != 0);
        MixedTrace { part, taken: 0, trace, stream_base, numbers: is_wide.then(HashMap::new) }
    }

    /// Whether the trace has references left and a smaller share of it was used than of `other`.
    fn share_is_below(&self, other: Option<&MixedTrace<'_>>) -> bool {
        let length = self.part.blocks.len();
        let Some(other) = other else { return self.taken < length };
        let share = |taken: usize, of: usize| taken as u128 * of as u128;
        self.taken < length && share(self.taken, other.part.blocks.len()) < share(other.taken, length)
    }

    fn take(&mut self) -> (u64, StreamId) {
        let block = self.part.blocks[self.taken];
        let stream = self.part.streams.get(self.taken).map_or(0, |stream| stream.0);
        self.taken += 1;
        let number = match &mut self.numbers {
            None => block,
            Some(numbers) => {
                let next = numbers.len() as u64;
                *numbers.entry(block).or_insert(next)
            }
        };
        (number | self.trace << TRACE_SHIFT, StreamId(self.stream_base.saturating_add(stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str, blocks: &[u64]) -> TraceWorkload {
        TraceWorkload::new(name, blocks.iter().map(|&block| (block, StreamId(0))))
    }

    #[test]
    fn mix_takes_proportional_to_length() {
        let (long, short) = (workload("a", &[1, 2, 3, 4]), workload("b", &[1, 2]));
        let mix = TraceWorkload::mix(&[&long, &short]).expect("two traces");
        let tag = 1 << TRACE_SHIFT;
        assert_eq!(mix.blocks(), [1, tag | 1, 2, 3, tag | 2, 4]);
        assert_eq!(mix.streams().iter().map(|stream| stream.0).collect::<Vec<_>>(), [0, 1, 0, 0, 1, 0]);
        assert_eq!((mix.name(), mix.distinct()), ("a+b", 6));
    }

    /// Blocks of all 64 bits stay disjoint in a mix.
    #[test]
    fn mixed_blocks_stay_disjoint() {
        let wide = workload("a", &[u64::MAX, 7, u64::MAX]);
        let mix = TraceWorkload::mix(&[&wide, &wide]).expect("two traces");
        let tag = 1 << TRACE_SHIFT;
        assert_eq!(mix.blocks(), [0, tag, 1, tag | 1, 0, tag]);
    }
}
