//! A seeded workload: programs on two or three hosts, while hosts and servers are lost and return.
//!
//! Owns: the losses, and the checks after each: a call that a lost session had begun is done or not done, and its
//! uncommitted data is gone. Promises: every wrong answer of a client that is not lost is reported.

use std::time::Duration;

use nectary_block::Recording;
use nectary_volume::client::{NewInode, OpenAccess, VolumeClient};
use nectary_volume::protocol::FileId;
use tokio::task::JoinHandle;

use super::model::{BytesExplanation, DIRECTORIES, DirectoryChange, MarkedEvents, PendingNameChange, WorkloadEvent};
use super::program::{Shared, WorkloadBoard, WorkloadProgram, file_turn, is_listing, list, lock, name, read_whole};
use super::world::{SessionHost, VolumeClientsWorld, WorkloadStart, make};
use crate::random::SimulationRandom;

/// The longest time of a workload.
const LIMIT: Duration = Duration::from_secs(600);
/// The time after which everything that a lost host has sent has arrived.
const ARRIVED: Duration = Duration::from_millis(50);
/// The longest wait for a moment in the middle of a call, when the loss of a host leaves more outcomes possible.
/// *Units*: milliseconds.
const MOMENT_MS_MAX: u64 = 200;
/// The longest time between two losses. *Units*: milliseconds.
const BETWEEN_MS_MAX: u64 = 500;
/// The root of a volume.
pub const ROOT: FileId = FileId { inode: 1, generation: 1 };

/// A recorded workload.
pub struct ClientWorkload {
    /// The seed of the workload.
    pub seed: u64,
    /// The disk before it.
    pub start: &'static WorkloadStart,
    /// The writes.
    pub recording: Recording,
    /// The events; a moment of the recording has as many events as marks before it.
    pub events: Vec<WorkloadEvent>,
    /// The first wrong answer.
    pub broken: Option<String>,
    /// The losses during the workload.
    pub losses: LossCounts,
}

/// The numbers of losses during a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// Losses of a host alone.
    pub hosts: u64,
    /// Losses of a server alone.
    pub servers: u64,
    /// Losses of a host and the server at the same time.
    pub both: u64,
    /// Calls of lost hosts that change names and had not returned.
    pub calls: u64,
    /// Calls of other hosts that changed a file which a lost host had written to.
    pub awaited: u64,
    /// Files with data that a lost host had not committed, or of whose commit it had not been told.
    pub files: u64,
}

/// A host with its running programs.
struct WorkingHost {
    host: SessionHost,
    program: JoinHandle<()>,
}

/// Runs a workload on a disk. Without losses a seed repeats it in all but rare cases.
pub async fn run(seed: u64, start: &'static WorkloadStart, has_losses: bool) -> ClientWorkload {
    let (mut losses, mut random) = (LossCounts::default(), SimulationRandom::new(seed));
    let world = match VolumeClientsWorld::new(seed, start) {
        Ok(world) => world,
        Err(error) => {
            let broken = Some(format!("no folder: {error}"));
            return ClientWorkload { seed, start, recording: Recording::default(), events: Vec::new(), broken, losses };
        }
    };
    let board = WorkloadBoard::new(MarkedEvents::new(world.recorder.clone()));
    let done =
        tokio::time::timeout(LIMIT, lives(&world, start.is_formatted, &board, &mut random, has_losses, &mut losses))
            .await;
    let done = done.unwrap_or_else(|_| Err(format!("it does not end within {LIMIT:?}")));
    let recording = world.recorder.take();
    let story = &mut lock(&board).story;
    if let Err(what) = done {
        story.is_wrong(what);
    }
    ClientWorkload {
        seed,
        start,
        recording,
        events: std::mem::take(&mut story.events),
        broken: story.broken.take(),
        losses,
    }
}

async fn lives(
    world: &VolumeClientsWorld,
    is_formatted: bool,
    board: &Shared,
    random: &mut SimulationRandom,
    has_losses: bool,
    losses: &mut LossCounts,
) -> Result<(), String> {
    if !is_formatted {
        make(&world.device()).await?;
    }
    lock(board).story.note(WorkloadEvent::Formatted);
    world.serve().await.map_err(|error| format!("the first server: {error}"))?;
    let count = 2 + random.below(2) as usize;
    let mut hosts = Vec::new();
    for number in 0..count {
        hosts.push(world.host(number).await?);
    }
    for directory in 0..DIRECTORIES {
        let made = NewInode { mode: libc::S_IFDIR | 0o755, ..NewInode::default() };
        let made = hosts[0].client.create(ROOT, &name(directory as u64), made).await;
        let made = made.map_err(|error| format!("mkdir: {error}"))?;
        lock(board).story.note(WorkloadEvent::Directory(made.id()));
    }
    lock(board).story.note(WorkloadEvent::Ready);
    let calls = 15 + random.below(25);
    let start = |host: SessionHost, random: &mut SimulationRandom| {
        let program = WorkloadProgram::new(board.clone(), host.client.clone(), host.session, random.bits());
        WorkingHost { host, program: tokio::spawn(program.run(calls)) }
    };
    let mut working: Vec<WorkingHost> = hosts.into_iter().map(|host| start(host, random)).collect();
    for _ in 0..if has_losses { 1 + random.below(3) } else { 0 } {
        tokio::time::sleep(Duration::from_millis(random.below(BETWEEN_MS_MAX))).await;
        let kind = random.below(3);
        let lost = (kind != 0).then(|| random.below(count as u64) as usize);
        if let Some(number) = lost {
            await_moment(board, working[number].host.session, random.below(3)).await;
        }
        let gone = lost.map(|number| {
            let gone = working.remove(number);
            gone.program.abort();
            gone.host.cut();
            let pending = unsure(board, gone.host.session, losses);
            (number, gone.host, pending)
        });
        if kind != 1 {
            world.lose_server().await;
            tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        }
        if let Some((_, host, _)) = &gone {
            host.settle(world.seed()).await;
        }
        if kind != 1 {
            world.serve().await.map_err(|error| format!("a server after a loss: {error}"))?;
        }
        match kind {
            0 => losses.servers += 1,
            1 => losses.hosts += 1,
            _ => losses.both += 1,
        }
        if let Some((number, host, pending)) = gone {
            drop(host);
            tokio::time::sleep(ARRIVED).await;
            let client = working[0].host.client.clone();
            decide(board, &client, pending).await?;
            find_out(board, &client).await?;
            let host = world.host(number).await?;
            working.insert(number, start(host, random));
        }
    }
    for worker in &mut working {
        let _ = (&mut worker.program).await;
    }
    if random.chance(50) {
        for worker in &working {
            let ended = worker.host.client.close().await;
            ended.map_err(|error| format!("the end of a session: {error}"))?;
        }
        world.stop_server().await.map_err(|error| format!("the end of the server: {error}"))?;
    }
    Ok(())
}

/// Waits until a session is in a call that changes names, or until another session's call changes a file that it wrote
/// to, if this happens soon.
async fn await_moment(board: &Shared, session: u64, kind: u64) {
    for _ in 0..MOMENT_MS_MAX {
        let is_there = {
            let board = lock(board);
            let model = &board.story.model;
            match kind {
                0 => model.pending.iter().any(|pending| pending.session == session),
                1 => model.files.iter().any(|file| file.is_awaited(session)),
                _ => true,
            }
        };
        if is_there {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Marks as unsure everything that a lost session may have changed; returns its calls that change names.
fn unsure(board: &Shared, session: u64, losses: &mut LossCounts) -> Vec<PendingNameChange> {
    let mut board = lock(board);
    let model = &board.story.model;
    let calls: Vec<PendingNameChange> =
        model.pending.iter().filter(|pending| pending.session == session).cloned().collect();
    let directories: Vec<usize> = calls.iter().flat_map(PendingNameChange::directories).collect();
    let all = 0..model.files.len();
    let files: Vec<usize> = all.filter(|file| model.files[*file].may_lose(session)).collect();
    let awaited: Vec<usize> = files.iter().filter(|file| model.files[**file].is_awaited(session)).copied().collect();
    losses.calls += calls.len() as u64;
    losses.awaited += awaited.len() as u64;
    losses.files += files.len() as u64;
    awaited.into_iter().for_each(|file| board.story.note(WorkloadEvent::FileLost { file, session }));
    board.unsure_directories.extend(directories);
    board.unsure_files.extend(files);
    calls
}

/// Finds out whether calls of a lost session were done.
async fn decide(board: &Shared, client: &VolumeClient, calls: Vec<PendingNameChange>) -> Result<(), String> {
    for pending in calls {
        let mut done = Vec::new();
        for number in pending.directories() {
            let id = lock(board).story.model.directories[number].id;
            let listing = list(client, id).await?;
            let mut board = lock(board);
            let model = &board.story.model;
            let directory = &model.directories[number];
            let ids = |file: usize| model.files[file].id;
            let is_done = directory.states.last().is_some_and(|state| is_listing(state, ids, &listing));
            if !is_done && (pending.is_seen || !is_listing(directory.names(), ids, &listing)) {
                return Err(format!("directory {number} after a loss: {listing:?}, of {:?}", directory.states));
            }
            done.push(is_done);
            let makes = pending
                .changes
                .iter()
                .find(|change| is_done && change.file.is_some_and(|file| model.files[file].id.is_none()));
            if let Some(DirectoryChange { name, file: Some(file), .. }) = makes.cloned()
                && let Some(id) = listing.get(&name)
            {
                board.story.note(WorkloadEvent::Made { file, id: *id });
            }
        }
        let is_done = done.iter().all(|is_done| *is_done);
        if !is_done && done.contains(&true) {
            return Err(format!("{pending:?} is done in one of its directories"));
        }
        lock(board).story.note(WorkloadEvent::NamesDecided { call: pending.call, is_done });
    }
    lock(board).unsure_directories.clear();
    Ok(())
}

/// Finds out what is left of the files that a lost session changed.
async fn find_out(board: &Shared, client: &VolumeClient) -> Result<(), String> {
    let files = lock(board).unsure_files.clone();
    for file in files {
        // A call that another session began before the loss may still change the file.
        let _turn = file_turn(board, file).await;
        let id = {
            let board = lock(board);
            let model = &board.story.model;
            model.files[file].id.filter(|_| model.links(file) > 0)
        };
        // A file without a name is not read any more.
        let Some(id) = id else { continue };
        let open = match client.open(id, OpenAccess::Read, false).await {
            Ok(open) => open,
            Err(_) if lock(board).story.model.links(file) == 0 => continue,
            Err(error) => return Err(format!("open of file {file} after a loss: {error}")),
        };
        let bytes = read_whole(&open).await.map_err(|error| format!("file {file} after a loss: {error}"))?;
        // What this session itself wrote to the file need not be durable yet.
        open.sync().await.map_err(|error| format!("fsync of file {file} after a loss: {error}"))?;
        open.close().await;
        let mut board = lock(board);
        let known = &board.story.model.files[file];
        let explained = known.explain(&bytes).map_err(|what| format!("file {file} after a loss: {what}"))?;
        match explained {
            BytesExplanation::State(state) => board.story.note(WorkloadEvent::FileCut { file, state }),
            BytesExplanation::Mixed => {
                let bytes = std::sync::Arc::new(bytes);
                board.story.note(WorkloadEvent::FileMixed { file, bytes });
            }
        }
        board.unsure_files.remove(&file);
    }
    Ok(())
}
