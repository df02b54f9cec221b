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

use crate::contender::{self, Kind, Opener, Place, Prepared, Storage};
use crate::disk::{DiskClock, SharedClock, Timekeeping};
use crate::group::{Allowance, Keeper, Keeping};
use crate::workload::TraceReader;
use crate::{Error, sys};

pub use client::Client;
pub use replay::{Piece, Player};
pub use timeline::Timeline;

/// The first message to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The contender.
    pub kind: Kind,
    /// Its devices and directories.
    pub place: Place,
    /// How its disks' time passes.
    pub time: Timekeeping,
    /// The shared clock and the slots of its disks; `None` without disks.
    pub clock: Option<(PathBuf, Vec<usize>)>,
    /// The workload's file.
    pub trace: PathBuf,
    /// The number of threads that replay the workload.
    pub threads: usize,
    /// Its memory group.
    pub memory: Option<Allowance>,
}

/// A request to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Ask {
    /// Make file systems and directories.
    Prepare(Box<Setup>),
    /// Begin to serve, with cold caches.
    Start,
    /// Replay `count` requests from the `first` one on.
    Replay { first: u64, count: u64 },
    /// Return the contender's counters.
    Counters,
}

/// The answer of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Answer {
    Done,
    Piece(Piece),
    Counters(serde_json::Value, Keeping),
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
    let mut worker = Worker { opener, ..Worker::default() };
    for line in input.lines() {
        let line = line.map_err(|error| Error::failed("the worker's pipe", error))?;
        let asked = serde_json::from_str(&line).map_err(|error| Error::failed("the worker's pipe", error));
        let answer = asked.and_then(|ask| worker.answer(ask)).unwrap_or_else(|error| Answer::Failed {
            is_void: error.kind == crate::ErrorKind::Void,
            is_missing: error.kind == crate::ErrorKind::Missing,
            message: error.message,
        });
        let text = serde_json::to_string(&answer).map_err(|error| Error::failed("the worker's answer", error))?;
        writeln!(output, "{text}").and_then(|()| output.flush()).map_err(|error| Error::failed("the pipe", error))?;
    }
    Ok(())
}

#[derive(Default)]
struct Worker {
    opener: Option<Opener>,
    setup: Option<(Setup, TraceReader)>,
    prepared: Option<Prepared>,
    running: Option<(Box<dyn Storage>, Player)>,
}

impl Worker {
    fn answer(&mut self, ask: Ask) -> Result<Answer, Error> {
        let early = || Error::failed("the worker", "it was asked in a wrong order");
        match ask {
            Ask::Prepare(setup) => {
                sys::own_mounts(&setup.trace)?;
                self.prepared = Some(contender::prepare(&setup.kind, &setup.place)?);
                let trace = TraceReader::open(&setup.trace)?;
                self.setup = Some((*setup, trace));
                sys::give_back_memory();
            }
            Ask::Start => {
                let (setup, _) = self.setup.as_ref().ok_or_else(early)?;
                let clock = match &setup.clock {
                    None => DiskClock::new(setup.time, None, Vec::new()),
                    Some((path, slots)) => {
                        DiskClock::new(setup.time, Some(Arc::new(SharedClock::open(path)?)), slots.clone())
                    }
                };
                let keeper = setup.memory.clone().map(Keeper::new).transpose()?;
                let storage = self.prepared.take().ok_or_else(early)?.start(self.opener)?;
                self.running = Some((storage, Player::new(clock, setup.threads, keeper)));
            }
            Ask::Replay { first, count } => {
                let (_, trace) = self.setup.as_mut().ok_or_else(early)?;
                let (storage, player) = self.running.as_mut().ok_or_else(early)?;
                let requests = trace.read(first, count)?;
                return Ok(Answer::Piece(player.replay(&**storage, &requests)?));
            }
            Ask::Counters => {
                let (storage, player) = self.running.as_ref().ok_or_else(early)?;
                let keeping = player.keeper().map(Keeper::record).unwrap_or_default();
                return Ok(Answer::Counters(storage.counters(), keeping));
            }
        }
        Ok(Answer::Done)
    }
}
