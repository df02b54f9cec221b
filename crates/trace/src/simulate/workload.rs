//! Holds a trace in memory, and mixes several traces.
//!
//! Owns: the form of a trace in memory (8 bytes per reference, 12 with streams), the bound on its length, and the
//! mixing. Promises: blocks and streams of different traces stay different in a mix; the same traces in the same order
//! give the same mix.

use std::path::Path;
use std::sync::OnceLock;

use hashbrown::{HashMap, HashSet};
use nectary_cache::{Future, Stream};

use crate::error::{Error, Place, Result};
use crate::formats::{self, ReadOptions, Reader};

/// The default limit on the references of a run, which take 1 GiB.
pub const REFERENCES_MAX: usize = 1 << 27;

/// The maximum number of traces that can be mixed; the number of a trace is in the upper 16 bits of its blocks.
pub const TRACES_MAX: usize = 1 << 16;

const TRACE_SHIFT: u32 = 48;

/// The references of one run.
#[derive(Debug, Clone)]
pub struct Workload {
    name: String,
    blocks: Vec<u64>,
    /// The stream of each reference; empty if there is only one stream.
    streams: Vec<Stream>,
    distinct: u64,
    /// The names of streams, sorted by stream; only the first [`NAMES_MAX`] streams that have a name are listed.
    names: Vec<(Stream, String)>,
    warning: Option<String>,
    block_bytes: Option<u64>,
    future: OnceLock<Option<Future>>,
}

/// The maximum number of streams whose names are kept.
pub const NAMES_MAX: usize = 1024;

/// The options for loading a trace.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// The number of references to read, from the first on. If `None`, all references are read, and a trace with more
    /// than [`REFERENCES_MAX`] is an error.
    pub limit: Option<usize>,
}

impl Workload {
    /// Reads a trace from a file.
    pub fn load(path: &Path, read: &ReadOptions, options: &LoadOptions) -> Result<Workload> {
        let mut reader = formats::open(path, read)?;
        Workload::from_reader(path, &mut *reader, options)
    }

    /// Reads a trace to its end; the name of `path` becomes the name of the trace.
    ///
    /// *Errors*: those of the reader; a trace without a reference; a trace with more references than the bound.
    pub fn from_reader(path: &Path, reader: &mut dyn Reader, options: &LoadOptions) -> Result<Workload> {
        let references_max = options.limit.unwrap_or(REFERENCES_MAX);
        let mut builder = Builder::default();
        let mut batch = Vec::new();
        while builder.blocks.len() < references_max || options.limit.is_none() {
            batch.clear();
            if !reader.read(&mut batch)? {
                break;
            }
            let room = references_max - builder.blocks.len();
            if batch.len() > room && options.limit.is_none() {
                let what = format!("more than {REFERENCES_MAX} references; take the first ones with --limit");
                return Err(Error::TooLarge { path: path.to_owned(), place: Place::Whole, what });
            }
            for reference in batch.iter().take(room) {
                builder.push(reference.block, reference.stream);
            }
        }
        if builder.blocks.is_empty() {
            return Err(Error::malformed(&path.into(), Place::Whole, "at least one reference", "none"));
        }
        let mut workload = builder.finish(name_of(path));
        workload.warning = reader.warning();
        workload.block_bytes = reader.block_bytes();
        let last = workload.last_stream().0.min(NAMES_MAX as u32 - 1);
        let named = (0..=last).filter_map(|number| Some((Stream(number), reader.stream_name(Stream(number))?)));
        workload.names = named.collect();
        Ok(workload)
    }

    /// A workload from references in memory.
    pub fn new(name: impl Into<String>, references: impl IntoIterator<Item = (u64, Stream)>) -> Workload {
        let mut builder = Builder::default();
        for (block, stream) in references {
            builder.push(block, stream);
        }
        builder.finish(name.into())
    }

    /// Mixes traces into one, in proportion to their lengths: the next reference comes from the trace of which the
    /// smallest share has been used. If the shares are equal, the first such trace is next. Each trace keeps its own
    /// streams in the mix.
    ///
    /// *Errors*: there are more than [`TRACES_MAX`] traces.
    pub fn mix(parts: &[&Workload]) -> Result<Workload> {
        if parts.len() > TRACES_MAX {
            return Err(Error::Usage(format!("{} traces to mix; {TRACES_MAX} are the most", parts.len())));
        }
        let total = parts.iter().map(|part| part.blocks.len()).sum();
        let mut blocks = Vec::with_capacity(total);
        let mut streams = Vec::with_capacity(total);
        let mut renamed: Vec<Renamed<'_>> = Vec::new();
        let mut names = Vec::new();
        let mut stream_base: u32 = 0;
        for (number, part) in parts.iter().enumerate() {
            renamed.push(Renamed::new(part, number as u64, stream_base));
            let in_mix = |stream: Stream| Stream(stream_base.saturating_add(stream.0));
            let own = part.names.iter().map(|(stream, name)| (in_mix(*stream), format!("{}: {name}", part.name)));
            match part.names.is_empty() && part.streams.is_empty() {
                true => names.push((in_mix(Stream(0)), part.name.clone())),
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
        let (warning, future) = (None, OnceLock::new());
        Ok(Workload { name, blocks, streams, distinct, names, warning, block_bytes, future })
    }

    /// The name of the workload: the name of its file without endings; for a mix, the names of its traces joined by
    /// `+`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the workload another name.
    pub fn rename(&mut self, name: &str) {
        self.name = name.to_owned();
    }

    /// The blocks in the order of their references.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// The stream of each reference; empty if all are of stream 0.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// A stream's name.
    pub fn stream_name(&self, stream: Stream) -> Option<&str> {
        let index = self.names.binary_search_by_key(&stream.0, |(known, _)| known.0).ok()?;
        Some(&self.names[index].1)
    }

    /// The warning of the reader about the trace, if there is one.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The size of a block, in bytes, if the trace has it; that of a mix if all its traces have the same.
    pub fn block_bytes(&self) -> Option<u64> {
        self.block_bytes
    }

    fn last_stream(&self) -> Stream {
        Stream(self.streams.iter().map(|stream| stream.0).max().unwrap_or(0))
    }

    /// The number of references.
    pub fn references(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The number of distinct blocks.
    pub fn distinct(&self) -> u64 {
        self.distinct
    }

    /// The next reference to each block, for MIN; it is computed at the first call. *Returns* `None` if there are 2^32
    /// references or more.
    pub fn future(&self) -> Option<&Future> {
        self.future.get_or_init(|| Future::of(&self.blocks)).as_ref()
    }
}

#[derive(Default)]
struct Builder {
    blocks: Vec<u64>,
    streams: Vec<Stream>,
    seen: HashSet<u64>,
}

impl Builder {
    fn push(&mut self, block: u64, stream: Stream) {
        if stream != Stream(0) && self.streams.is_empty() {
            self.streams = vec![Stream(0); self.blocks.len()];
            self.streams.push(stream);
        } else if !self.streams.is_empty() {
            self.streams.push(stream);
        }
        self.blocks.push(block);
        self.seen.insert(block);
    }

    fn finish(self, name: String) -> Workload {
        let distinct = self.seen.len() as u64;
        Workload {
            name,
            blocks: self.blocks,
            streams: self.streams,
            distinct,
            names: Vec::new(),
            warning: None,
            block_bytes: None,
            future: OnceLock::new(),
        }
    }
}

/// A trace that is being mixed.
struct Renamed<'a> {
    part: &'a Workload,
    taken: usize,
    trace: u64,
    stream_base: u32,
    /// The new numbers of blocks, in the order in which the blocks appear, for traces whose own block numbers leave no
    /// room for the trace's number.
    numbers: Option<HashMap<u64, u64>>,
}

impl<'a> Renamed<'a> {
    fn new(part: &'a Workload, trace: u64, stream_base: u32) -> Renamed<'a> {
        let is_wide = part.blocks.iter().any(|&block| block >> TRACE_SHIFT != 0);
        Renamed { part, taken: 0, trace, stream_base, numbers: is_wide.then(HashMap::new) }
    }

    /// Whether the trace has references left and a smaller share of it was used than of `other`.
    fn share_is_below(&self, other: Option<&Renamed<'_>>) -> bool {
        let length = self.part.blocks.len();
        let Some(other) = other else { return self.taken < length };
        let share = |taken: usize, of: usize| taken as u128 * of as u128;
        self.taken < length && share(self.taken, other.part.blocks.len()) < share(other.taken, length)
    }

    fn take(&mut self) -> (u64, Stream) {
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
        (number | self.trace << TRACE_SHIFT, Stream(self.stream_base.saturating_add(stream)))
    }
}

/// The name of a trace: its file's name without the endings of formats and compression.
fn name_of(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "-".into(), |name| name.to_string_lossy());
    let lower = name.to_ascii_lowercase();
    let mut end = [".gz", ".zst", ".zstd"].iter().find_map(|end| lower.strip_suffix(end)).map_or(name.len(), str::len);
    let endings = formats::FORMATS.iter().flat_map(|entry| entry.endings);
    let format_end = endings.filter(|ending| lower[..end].ends_with(*ending)).map(|ending| ending.len()).max();
    end -= format_end.unwrap_or(0);
    if end == 0 { name.into_owned() } else { name[..end].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str, blocks: &[u64]) -> Workload {
        Workload::new(name, blocks.iter().map(|&block| (block, Stream(0))))
    }

    #[test]
    fn a_mix_takes_from_each_trace_in_proportion_to_its_length() {
        let (long, short) = (workload("a", &[1, 2, 3, 4]), workload("b", &[1, 2]));
        let mix = Workload::mix(&[&long, &short]).expect("two traces");
        let tag = 1 << TRACE_SHIFT;
        assert_eq!(mix.blocks(), [1, tag | 1, 2, 3, tag | 2, 4]);
        assert_eq!(mix.streams().iter().map(|stream| stream.0).collect::<Vec<_>>(), [0, 1, 0, 0, 1, 0]);
        assert_eq!((mix.name(), mix.distinct()), ("a+b", 6));
    }

    #[test]
    fn blocks_of_all_64_bits_stay_disjoint_in_a_mix() {
        let wide = workload("a", &[u64::MAX, 7, u64::MAX]);
        let mix = Workload::mix(&[&wide, &wide]).expect("two traces");
        let tag = 1 << TRACE_SHIFT;
        assert_eq!(mix.blocks(), [0, tag, 1, tag | 1, 0, tag]);
    }

    #[test]
    fn a_trace_is_called_by_its_file_without_endings() {
        for (path, name) in [("/x/cs.trace.gz", "cs"), ("w.oracleGeneral.bin.zst", "w"), ("a.csv", "a"), (".gz", ".gz")]
        {
            assert_eq!(name_of(Path::new(path)), name);
        }
    }
}
