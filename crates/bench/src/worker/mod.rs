//! The process of one contender.
//!
//! Owns: the messages between parent and worker (a line of JSON each way), and the phases of a worker: it prepares
//! outside the memory group, starts the contender inside it, replays the pieces of the workload, and ends. Each
//! contender is a separate process with private mounts, so its memory is counted separately and its mounts end with it.

mod client;
mod replay;
mod timeline;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::contender::{self, ContenderKind, ContenderResources, ContenderStorage, Opener, PreparedContender};
use crate::disk::{DiskClock, DiskTimekeeping, SharedClock};
use crate::group::{GroupMemoryUsage, MemoryAllowance, MemoryKeeper};
use crate::workload::TraceReader;
use crate::{Error, sys};

pub use client::WorkerClient;
pub use replay::{PieceResult, WorkloadPlayer};
pub use timeline::ThreadTimeline;

/// The first message to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// The contender.
    pub kind: ContenderKind,
    /// Its devices and directories.
    pub place: ContenderResources,
    /// How its disks' time passes.
    pub time: DiskTimekeeping,
    /// The shared clock and the slots of its disks; `None` without disks.
    pub clock: Option<(PathBuf, Vec<usize>)>,
    /// The workload's file.
    pub trace: PathBuf,
    /// The number of threads that replay the workload.
    pub threads: usize,
    /// Its memory group.
    pub memory: Option<MemoryAllowance>,
}

/// A request to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum WorkerCommand {
    /// Make file systems and directories.
    Prepare(Box<WorkerSetup>),
    /// Begin to serve, with cold caches.
    Start,
    /// Replay `count` requests from the `first` one on.
    Replay { first: u64, count: u64 },
    /// Return the contender's counters.
    Counters,
}

/// The answer of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum WorkerAnswer {
    Done,
    Piece(PieceResult),
    Counters(serde_json::Value, GroupMemoryUsage),
    Failed { is_void: bool, is_missing: bool, message: String },
}

/// Serves a parent until its pipe ends; the main function of the worker's process.
///
/// Call it before the process has other threads.
pub fn serve(input: impl BufRead, output: impl Write) -> Result<(), Error> {
    serve_with(input, output, None)
}

/// Serves like [`serve`]; `opener` opens contenders that this crate does not implement.
pub fn serve_with(input: impl BufRead, mut output: impl Write, opener: Option<Opener>) -> Result<(), Error> {
    sys::become_worker();
    let mut worker = ContenderWorker { opener, ..ContenderWorker::default() };
    for line in input.lines() {
        let line = line.map_err(|error| Error::failed("the worker's pipe", error))?;
        let asked = serde_json::from_str(&line).map_err(|error| Error::failed("the worker's pipe", error));
        let answer = asked.and_then(|ask| worker.answer(ask)).unwrap_or_else(|error| WorkerAnswer::Failed {
            is_void: error.kind == crate::ExperimentErrorKind::Void,
            is_missing: error.kind == crate::ExperimentErrorKind::Missing,
            message: error.message,
        });
        let text = serde_json::to_string(&answer).map_err(|error| Error::failed("the worker's answer", error))?;
        writeln!(output, "{text}").and_then(|()| output.flush()).map_err(|error| Error::failed("the pipe", error))?;
    }
    Ok(())
}

#[derive(Default)]
struct ContenderWorker {
    opener: Option<Opener>,
    setup: Option<(WorkerSetup, TraceReader)>,
    prepared: Option<PreparedContender>,
    running: Option<(Box<dyn ContenderStorage>, WorkloadPlayer)>,
}

impl ContenderWorker {
    fn answer(&mut self, ask: WorkerCommand) -> Result<WorkerAnswer, Error> {
        let early = || Error::failed("the worker", "it was asked in a wrong order");
        match ask {
            WorkerCommand::Prepare(setup) => {
                sys::own_mounts(&setup.trace)?;
                self.prepared = Some(contender::prepare(&setup.kind, &setup.place)?);
                let trace = TraceReader::open(&setup.trace)?;
                self.setup = Some((*setup, trace));
                sys::give_back_memory();
            }
            WorkerCommand::Start => {
                let (setup, _) = self.setup.as_ref().ok_or_else(early)?;
                let clock = match &setup.clock {
                    None => DiskClock::new(setup.time, None, Vec::new()),
                    Some((path, slots)) => {
                        DiskClock::new(setup.time, Some(Arc::new(SharedClock::open(path)?)), slots.clone())
                    }
                };
                let keeper = setup.memory.clone().map(MemoryKeeper::new).transpose()?;
                let storage = self.prepared.take().ok_or_else(early)?.start(self.opener)?;
                self.running = Some((storage, WorkloadPlayer::new(clock, setup.threads, keeper)));
            }
            WorkerCommand::Replay { first, count } => {
                let (_, trace) = self.setup.as_mut().ok_or_else(early)?;
                let (storage, player) = self.running.as_mut().ok_or_else(early)?;
                let requests = trace.read(first, count)?;
                return Ok(WorkerAnswer::Piece(player.replay(&**storage, &requests)?));
            }
            WorkerCommand::Counters => {
                let (storage, player) = self.running.as_ref().ok_or_else(early)?;
                let keeping = player.keeper().map(MemoryKeeper::record).unwrap_or_default();
                return Ok(WorkerAnswer::Counters(storage.counters(), keeping));
            }
        }
        Ok(WorkerAnswer::Done)
    }
}
