//! The process with the cache of one execution: it shows a directory through the cache.
//!
//! Owns: the messages between this process and its parent (a line of text each; the setup and all answers are JSON),
//! the memory size with which a policy's cache has the required number of blocks, and the recording of steps. Each
//! execution starts this process again, so its cache is cold; the paper's authors rebooted instead. The process's
//! processor time is part of the response time.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nectary_attach::{MountedTree, TreeOptions};
use nectary_buffer::{BufferCache, CacheOptions};
use serde::{Deserialize, Serialize};

use super::replay::{self, RecordStep, RecordedReference};
use crate::{Error, ExperimentErrorKind, sys};

/// The longest time that the process may take to unmount and end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest number of steps in a record. An execution with more steps fails.
const STEPS_MAX: usize = 1 << 26;
/// The line that ends the recording. The programs have ended then; what reads their files later is not recorded.
const END_OF_RECORD: &str = "end of record";
/// The range of memory sizes in which [`memory_for`] searches. *Units*: bytes.
const MEMORY_BYTES: (u64, u64) = (1 << 20, 1 << 34);

/// The settings of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheProcessSetup {
    /// The directory whose files it shows.
    pub source: PathBuf,
    /// The directory at which it shows them.
    pub directory: PathBuf,
    /// The policy.
    pub policy: String,
    /// The number of blocks that the policy may hold.
    pub blocks: u64,
    /// Whether all processes of a session are one stream.
    pub by_session: bool,
    /// The file to which the recorded references are written at the end, if any.
    pub record: Option<PathBuf>,
}

/// The figures of the cache.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CacheProcessFigures {
    /// The number of blocks that the policy may hold.
    pub blocks: u64,
    /// The hits of the policy.
    pub hits: u64,
    /// The misses of the policy.
    pub misses: u64,
    /// The hits that an LRU would have missed.
    pub saved: u64,
    /// The misses that an LRU would have hit.
    pub lost: u64,
    /// The number of blocks that the cache read.
    pub block_reads: u64,
    /// The number of requests with which the cache read them.
    pub read_requests: u64,
    /// The number of blocks in writes, which all go to the file system below at once.
    pub written_blocks: u64,
    /// The number of reads that failed.
    pub errors: u64,
    /// The processor time of the process in user mode. *Units*: seconds.
    pub user_s: f64,
    /// The processor time of the process in the kernel. *Units*: seconds.
    pub system_s: f64,
}

/// The answer of the process. After the end of the input it answers only if something failed.
#[derive(Debug, Serialize, Deserialize)]
enum CacheProcessAnswer {
    Figures(CacheProcessFigures),
    Failed(String),
}

/// Returns the memory size with which a cache of this policy has `blocks` blocks. *Units*: bytes.
///
/// Call it inside a runtime. *Errors*: [`ExperimentErrorKind::ResourceUsage`] if there is no such memory size.
pub fn memory_for(policy: &str, blocks: u64) -> Result<u64, Error> {
    let capacity = |memory_bytes| {
        let cache = BufferCache::new(options(policy, memory_bytes));
        cache.map_or(0, |cache| cache.stats().capacity_blocks)
    };
    let (mut low, mut high) = MEMORY_BYTES;
    while low < high {
        let middle = low + (high - low) / 2;
        (low, high) = if capacity(middle) < blocks { (middle + 1, high) } else { (low, middle) };
    }
    match capacity(low) == blocks {
        true => Ok(low),
        false => Err(Error::new(ExperimentErrorKind::Usage, format!("no cache under {policy} has {blocks} blocks"))),
    }
}

/// The options of a cache without readahead.
pub fn options(policy: &str, memory_bytes: u64) -> CacheOptions {
    CacheOptions { memory_bytes, policy: policy.to_owned(), readahead_bytes: 0, ..CacheOptions::default() }
}

/// Serves a parent until its pipe ends; the main function of the process.
///
/// Call it before the process has other threads.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<(), Error> {
    sys::become_worker();
    let pipe = |error| Error::failed("the pipe of the cache's process", error);
    let mut lines = input.lines();
    let Some(line) = lines.next() else { return Ok(()) };
    let setup: CacheProcessSetup =
        serde_json::from_str(&line.map_err(pipe)?).map_err(|error| Error::failed("a setup", error))?;
    let shown = show(&setup);
    let mut tell = |answer: &CacheProcessAnswer| -> Result<(), Error> {
        let text = serde_json::to_string(answer).map_err(|error| Error::failed("an answer", error))?;
        writeln!(output, "{text}").and_then(|()| output.flush()).map_err(pipe)
    };
    let (tree, record) = match shown {
        Ok(shown) => shown,
        Err(error) => return tell(&CacheProcessAnswer::Failed(error.message)),
    };
    tell(&CacheProcessAnswer::Figures(figures(&tree)))?;
    for line in lines {
        if line.map_err(pipe)? == END_OF_RECORD {
            end_record(&tree);
        }
        tell(&CacheProcessAnswer::Figures(figures(&tree)))?;
    }
    end_record(&tree);
    if tree.unmount(false).is_err() {
        tree.unmount(true)?;
    }
    tree.finish()?;
    let Some(path) = &setup.record else { return Ok(()) };
    let record = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
    match record.left_out {
        0 => replay::write(path, &record.steps),
        left_out => tell(&CacheProcessAnswer::Failed(format!(
            "the program made {left_out} references more than the {} that a record can hold",
            record.steps.len()
        ))),
    }
}

/// The steps of an execution.
#[derive(Default)]
struct RecordedSteps {
    steps: Vec<RecordStep>,
    /// The number of steps that were not recorded, because the record was full.
    left_out: u64,
}

impl RecordedSteps {
    fn add(&mut self, step: RecordStep, steps_max: usize) {
        match self.steps.len() < steps_max {
            true => self.steps.push(step),
            false => self.left_out += 1,
        }
    }
}

type Recorded = Arc<Mutex<RecordedSteps>>;

fn end_record(tree: &MountedTree) {
    tree.record(None);
    tree.record_drops(None);
}

fn show(setup: &CacheProcessSetup) -> Result<(MountedTree, Recorded), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let memory_bytes = {
        let runtime = runtime.map_err(|error| Error::failed("a runtime", error))?;
        let _inside = runtime.enter();
        memory_for(&setup.policy, setup.blocks)?
    };
    let cache = options(&setup.policy, memory_bytes);
    let tree = MountedTree::start(TreeOptions {
        source: setup.source.clone(),
        directory: setup.directory.clone(),
        cache,
        is_exclusive: false,
        uses_handles: true,
        passthrough_bytes: 0,
    })?;
    tree.set_streams_by_session(setup.by_session);
    let record = Recorded::default();
    if setup.record.is_some() {
        let add = |to: &Recorded, step| to.lock().unwrap_or_else(PoisonError::into_inner).add(step, STEPS_MAX);
        let to = record.clone();
        tree.record(Some(Box::new(move |reference| {
            let (id, stream) = (reference.id, reference.stream.0);
            add(&to, RecordStep::Refer(RecordedReference { id, stream, is_write: reference.is_write }));
        })));
        let to = record.clone();
        tree.record_drops(Some(Box::new(move |ids| add(&to, RecordStep::Drop { first: ids.start, end: ids.end }))));
    }
    Ok((tree, record))
}

fn figures(tree: &MountedTree) -> CacheProcessFigures {
    let (stats, usage) = (tree.figures().cache, sys::own_usage());
    CacheProcessFigures {
        blocks: stats.capacity_blocks,
        hits: stats.hits,
        misses: stats.misses,
        saved: stats.saved,
        lost: stats.lost,
        block_reads: stats.source_read_blocks,
        read_requests: stats.source_reads,
        written_blocks: stats.written_through,
        errors: stats.read_errors,
        user_s: usage.user.as_secs_f64(),
        system_s: usage.system.as_secs_f64(),
    }
}

/// The parent's handle to the process; dropping it kills the process.
pub struct CacheProcessHandle {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    is_reaped: bool,
}

impl CacheProcessHandle {
    /// Starts `command`, which has to call [`serve`], and waits until the directory is shown.
    ///
    /// The calling thread has to live as long as the process, because the kernel kills the process when the thread
    /// ends.
    pub fn start(mut command: Command, setup: &CacheProcessSetup) -> Result<CacheProcessHandle, Error> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| Error::failed("starting a cache", error))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut client = CacheProcessHandle { child, input, output, is_reaped: false };
        let text = serde_json::to_string(setup).map_err(|error| Error::failed("a setup", error))?;
        client.ask(&text)?;
        Ok(client)
    }

    /// The figures of the cache so far.
    pub fn figures(&mut self) -> Result<CacheProcessFigures, Error> {
        self.ask("figures")
    }

    /// Ends the recording of references, and returns the figures of the cache so far.
    pub fn end_record(&mut self) -> Result<CacheProcessFigures, Error> {
        self.ask(END_OF_RECORD)
    }

    fn ask(&mut self, line: &str) -> Result<CacheProcessFigures, Error> {
        if let Some(input) = &mut self.input {
            let sent = writeln!(input, "{line}").and_then(|()| input.flush());
            sent.map_err(|error| Error::failed("the cache's process", error))?;
        }
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|error| Error::failed("the cache's process", error))?;
        match serde_json::from_str(&answer) {
            Ok(CacheProcessAnswer::Figures(figures)) => Ok(figures),
            Ok(CacheProcessAnswer::Failed(message)) => Err(Error::failed("the cache's process", message)),
            Err(error) => Err(Error::failed("the cache's process", format!("it ended, or said {answer:?}: {error}"))),
        }
    }

    /// Makes the process unmount and write the record, and waits for its end.
    ///
    /// *Errors*: [`ExperimentErrorKind::Failed`] if it could not, or if there were more references than a record can hold.
    pub fn finish(mut self) -> Result<(), Error> {
        drop(self.input.take());
        let ended = sys::wait_for(self.child.id(), PATIENCE)?;
        self.is_reaped = ended.is_some();
        let mut answer = String::new();
        if self.is_reaped {
            let read = self.output.read_line(&mut answer);
            read.map_err(|error| Error::failed("the cache's process", error))?;
        }
        if let Ok(CacheProcessAnswer::Failed(message)) = serde_json::from_str(&answer) {
            return Err(Error::failed("the cache's process", message));
        }
        match ended {
            Some((0, _)) => Ok(()),
            Some((code, _)) => Err(Error::failed("the cache's process", format!("exit code {code}"))),
            None => Err(Error::failed("the cache's process", format!("it did not end within {PATIENCE:?}"))),
        }
    }
}

impl Drop for CacheProcessHandle {
    fn drop(&mut self) {
        // After a process is reaped, its number may belong to another process.
        if !self.is_reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_counts_references_beyond_bound() {
        let mut record = RecordedSteps::default();
        (0..5).for_each(|id| record.add(RecordStep::Refer(RecordedReference { id, stream: 0, is_write: false }), 3));
        assert_eq!((record.steps.len(), record.left_out), (3, 2));
    }

    #[tokio::test]
    async fn policies_get_same_block_count() {
        for policy in ["lru", "dear", "adaptive", "lirs"] {
            let memory = memory_for(policy, super::super::BLOCKS).unwrap();
            assert!((6 << 20..40 << 20).contains(&memory), "{policy}: {memory}");
        }
        for lane in super::super::LANES.iter().filter(|lane| lane.is_at_large_sizes) {
            let Some(policy) = lane.policy else { continue };
            let memory = memory_for(policy, super::super::LARGE_BLOCKS).unwrap();
            assert!((512 << 20..720 << 20).contains(&memory), "{policy}: {memory}");
        }
        for policy in ["lru", "dear", "adaptive"] {
            for blocks in [super::super::cost::BLOCKS, super::super::through_fuse::WHOLE.blocks] {
                memory_for(policy, blocks).unwrap();
            }
        }
        assert_eq!(memory_for("lru", 10).unwrap_err().kind, ExperimentErrorKind::Usage);
    }
}
