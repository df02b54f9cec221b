//! Reads references from a trace into memory: all of them, or chunk after chunk.
//!
//! Owns: which references are taken (limits, writes, times to live), the columns that they fill, and the bound on the
//! references that are held at a time. Promises: a chunk of N references takes at most 24 N bytes, and 16 for each of at
//! most N deletes, whatever the length of the trace.
//!
//! *Circle*: `load` makes a workload, and a workload that is read in chunks loads them.

use std::path::Path;
use std::sync::OnceLock;

use hashbrown::HashSet;
use nectary_cache::StreamId;

use super::workload::{NAMES_MAX, ObjectLifetime, TraceWorkload, name_of};
use crate::error::{Error, Result, TracePosition};
use crate::formats::{self, ReadOptions, ReferenceReader, TraceOperation, TraceReference};

/// The default limit on the references that are held in memory; they take 1 to 3 GiB.
pub const REFERENCES_MAX: usize = 1 << 27;

/// The options for loading a trace.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// The number of references to read, from the first on. If `None`, all references are read.
    pub limit: Option<usize>,
    /// Whether writes are left out.
    pub is_reads_only: bool,
    /// The time to live of all objects, instead of that of the trace. *Units*: seconds.
    pub ttl_s: Option<u32>,
    /// The number of references that are held in memory; a longer trace is an error. [`REFERENCES_MAX`] if `None`.
    pub references_max: Option<usize>,
}

impl TraceWorkload {
    /// Reads a trace from a file. `progress` is called with the number of references so far.
    pub fn load(path: &Path, read: &ReadOptions, options: &LoadOptions) -> Result<TraceWorkload> {
        TraceWorkload::load_with(path, read, options, &|_| {})
    }

    /// Like [`TraceWorkload::load`]; `progress` is called with the number of references so far.
    pub fn load_with(
        path: &Path,
        read: &ReadOptions,
        options: &LoadOptions,
        progress: &dyn Fn(u64),
    ) -> Result<TraceWorkload> {
        let mut reader = formats::open(path, read)?;
        read_all(path, &mut *reader, options, progress)
    }

    /// Reads a trace to its end; the name of `path` becomes the name of the trace.
    ///
    /// *Errors*: those of the reader; a trace without a reference; [`Error::TooLarge`] for a trace with more references,
    /// or more deletes, than are held in memory.
    pub fn from_reader(path: &Path, reader: &mut dyn ReferenceReader, options: &LoadOptions) -> Result<TraceWorkload> {
        read_all(path, reader, options, &|_| {})
    }
}

fn read_all(
    path: &Path,
    reader: &mut dyn ReferenceReader,
    options: &LoadOptions,
    progress: &dyn Fn(u64),
) -> Result<TraceWorkload> {
    let references_max = options.limit.or(options.references_max).unwrap_or(REFERENCES_MAX);
    let mut intake = ReferenceIntake::new(reader, *options);
    let mut seen = HashSet::new();
    let mut distinct_bytes = 0;
    let mut count = |reference: &TraceReference| {
        if seen.insert(reference.block) {
            distinct_bytes += u64::from(reference.bytes.max(1));
        }
    };
    let mut workload = intake.fill(references_max, &mut count, progress)?;
    if intake.has_more()? {
        let what = format!(
            "more than {references_max} references or deletes, too many to hold in memory; read them with --stream, or \
             take the first ones with --limit"
        );
        return Err(Error::TooLarge { path: path.to_owned(), place: TracePosition::Whole, what });
    }
    intake.check(path)?;
    workload.distinct = seen.len() as u64;
    workload.distinct_bytes = if workload.bytes.is_empty() { 0 } else { distinct_bytes };
    intake.describe(path, &mut workload);
    Ok(workload)
}

/// The references that are taken from a trace.
pub(super) struct ReferenceIntake<'a> {
    reader: &'a mut dyn ReferenceReader,
    options: LoadOptions,
    has_objects: bool,
    batch: Vec<TraceReference>,
    /// The next reference of the batch.
    next: usize,
    taken: u64,
    first_s: Option<u64>,
    /// Whether a reference had another time than the first one.
    has_times: bool,
    /// Whether a life that ends was given; from then on, every write gives a new life.
    has_lives: bool,
    /// The last stream.
    last: u32,
}

impl<'a> ReferenceIntake<'a> {
    pub(super) fn new(reader: &'a mut dyn ReferenceReader, options: LoadOptions) -> ReferenceIntake<'a> {
        let has_objects = reader.has_objects();
        ReferenceIntake {
            reader,
            options,
            has_objects,
            batch: Vec::new(),
            next: 0,
            taken: 0,
            first_s: None,
            has_times: false,
            has_lives: false,
            last: 0,
        }
    }

    /// The number of references that were taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether the trace has objects with sizes.
    pub(super) fn has_objects(&self) -> bool {
        self.has_objects
    }

    /// Whether there is another reference to take.
    pub(super) fn has_more(&mut self) -> Result<bool> {
        loop {
            if self.options.limit.is_some_and(|limit| self.taken >= limit as u64) {
                return Ok(false);
            }
            while let Some(reference) = self.batch.get(self.next) {
                if reference.operation != TraceOperation::Write || !self.options.is_reads_only {
                    return Ok(true);
                }
                self.next += 1;
            }
            self.batch.clear();
            self.next = 0;
            if !self.reader.read(&mut self.batch)? {
                return Ok(false);
            }
        }
    }

    /// Takes up to `references_max` references, and at most as many deletes. Calls `each` with each reference.
    pub(super) fn fill(
        &mut self,
        references_max: usize,
        each: &mut dyn FnMut(&TraceReference),
        progress: &dyn Fn(u64),
    ) -> Result<TraceWorkload> {
        let mut to = empty();
        while to.blocks.len() < references_max && to.deletes.len() < references_max && self.has_more()? {
            let reference = self.batch[self.next];
            self.next += 1;
            if reference.operation == TraceOperation::Delete {
                to.deletes.push((to.blocks.len(), reference.block));
                continue;
            }
            let bytes = if self.has_objects { reference.bytes } else { 0 };
            let ttl_s = self.options.ttl_s.unwrap_or(reference.ttl_s);
            let reference = TraceReference { bytes, ttl_s, ..reference };
            each(&reference);
            self.push(&reference, &mut to);
            self.taken += 1;
            if self.next == self.batch.len() {
                progress(self.taken);
            }
        }
        Ok(to)
    }

    fn push(&mut self, reference: &TraceReference, to: &mut TraceWorkload) {
        let count = to.blocks.len();
        let first_s = *self.first_s.get_or_insert(reference.time_s);
        let time_s = u32::try_from(reference.time_s.saturating_sub(first_s)).unwrap_or(u32::MAX);
        self.has_times |= time_s > 0;
        self.has_lives |= reference.ttl_s > 0;
        self.last = self.last.max(reference.stream.0);
        to.blocks.push(reference.block);
        push(&mut to.streams, count, reference.stream);
        push(&mut to.bytes, count, reference.bytes);
        push(&mut to.times, count, time_s);
        if self.has_lives {
            to.lives.resize(count, ObjectLifetime::default());
            to.lives.push(ObjectLifetime::new(reference.ttl_s, reference.operation == TraceOperation::Write));
        }
    }

    /// Checks what can be known only at the end.
    ///
    /// *Errors*: the trace has no reference; there is a time to live, and the trace has no times.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        if self.taken == 0 {
            return Err(Error::malformed(&path.into(), TracePosition::Whole, "at least one reference", "none"));
        }
        if self.options.ttl_s.is_some() && !self.has_times {
            let what = "a time to live needs times, and this trace has none; name their column with --columns";
            return Err(Error::Usage(format!("{}: {what}", path.display())));
        }
        Ok(())
    }

    /// Whether references had different times so far.
    pub(super) fn has_times(&self) -> bool {
        self.has_times
    }

    /// Gives `workload` what only the reader of the whole trace knows: its name, a warning, the names of streams.
    pub(super) fn describe(&self, path: &Path, workload: &mut TraceWorkload) {
        workload.name = name_of(path);
        workload.warning = self.reader.warning();
        workload.block_bytes = self.reader.block_bytes();
        workload.names = self.names();
    }

    /// The names of the first streams.
    pub(super) fn names(&self) -> Vec<(StreamId, String)> {
        let last = self.last.min(NAMES_MAX as u32 - 1);
        (0..=last).filter_map(|number| Some((StreamId(number), self.reader.stream_name(StreamId(number))?))).collect()
    }

    /// The warning of the reader about the trace, if there is one.
    pub(super) fn warning(&self) -> Option<String> {
        self.reader.warning()
    }
}

/// A workload without references.
pub(super) fn empty() -> TraceWorkload {
    TraceWorkload {
        name: String::new(),
        blocks: Vec::new(),
        streams: Vec::new(),
        bytes: Vec::new(),
        times: Vec::new(),
        lives: Vec::new(),
        deletes: Vec::new(),
        distinct: 0,
        distinct_bytes: 0,
        names: Vec::new(),
        warning: None,
        block_bytes: None,
        future: OnceLock::new(),
    }
}

/// Adds the value of the next reference to a column, which stays empty as long as all values are the default. `count`
/// references came before.
fn push<T: Copy + Default + PartialEq>(column: &mut Vec<T>, count: usize, value: T) {
    if column.is_empty() && value == T::default() {
        return;
    }
    if column.is_empty() {
        column.resize(count, T::default());
    }
    column.push(value);
}
