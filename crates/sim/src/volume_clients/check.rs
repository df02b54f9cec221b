//! The promises about a volume after the loss of everything at any moment:
//!
//! 1. The records agree with each other; a server starts, and a client begins a session.
//! 2. Every call that changes names and had returned, or whose effect another session saw, is done; each other call is
//!    done or not, in all its directories.
//! 3. A file as a whole has one of its states, from the newest that was synced or seen by another session on. There is
//!    one exception: if a call with several steps was lost (`fallocate`, or a truncation of uncommitted data), each
//!    block has one of these states, and the size is one that a returned truncation allows.
//!    If a session is lost, a call of another session that changes the file at that moment finds one of these states,
//!    and the file then has that state with this call's change.
//! 4. So bytes that no program wrote are never shown. The disk was full of other bytes before.
//! 5. The volume can be used: files that are made and written afterwards have their data, and the records still agree.

use std::collections::BTreeSet;

use nectary_block::{Buffer, SharedDevice};
use nectary_volume::client::{NewInode, OpenAccess, VolumeClient, WritePosition};
use nectary_volume::journal::read;
use nectary_volume::metadata;
use nectary_volume::protocol::FileId;
use nectary_volume::server::MetadataServer;

use super::model::{BytesExplanation, WorkloadModel};
use super::program::{is_listing, list, read_whole};
use super::workload::{ClientWorkload, ROOT};
use super::world::{SocketFolder, connect, serve};
use crate::crash::CrashState;
use crate::random::SimulationRandom;

/// The percentage of states in which the volume is used afterwards.
const USED_PERCENT: u64 = 20;

/// The findings of a check of one state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientStateCheck {
    /// Whether the volume was complete.
    pub is_ready: bool,
    /// The number of names that were looked up.
    pub names: u64,
    /// The number of files that were read, each of which had the bytes of a state.
    pub files: u64,
    /// Files whose contents are newer than promised.
    pub newer: u64,
    /// The number of files whose blocks have several states.
    pub mixed: u64,
    /// The number of calls that had not returned and were done.
    pub done: u64,
    /// Calls that had not returned and were not done.
    pub undone: u64,
    /// Whether the volume was used afterwards.
    pub is_used: bool,
}

/// Checks a state; returns the violation in words.
pub async fn check(workload: &ClientWorkload, state: &CrashState) -> Result<ClientStateCheck, String> {
    let model = WorkloadModel::after(&workload.events[..state.marks().len()]);
    let device: SharedDevice = std::sync::Arc::new(state.device());
    if !model.is_formatted {
        return Ok(ClientStateCheck::default());
    }
    agree(&device).await?;
    let folder = SocketFolder::new().map_err(|error| error.to_string())?;
    let (server, socket) = serve(&folder, device.clone()).await.map_err(|error| format!("no server: {error}"))?;
    let client = connect(device.clone(), &socket, "after".to_owned()).await;
    let client = client.map_err(|error| format!("no session: {error}"))?;
    let mut seen = ClientStateCheck { is_ready: model.is_ready, ..ClientStateCheck::default() };
    if model.is_ready {
        compare(&model, &client, &mut seen).await?;
    }
    if SimulationRandom::new(state.hash ^ workload.seed).chance(USED_PERCENT) {
        seen.is_used = true;
        goes_on(&device, server, client).await.map_err(|what| format!("it does not go on: {what}"))?;
    }
    Ok(seen)
}

/// Checks that the records of a volume agree.
async fn agree(device: &SharedDevice) -> Result<(), String> {
    let volume = read(device).await.map_err(|error| format!("it cannot be read: {error}"))?;
    match &metadata::check(&volume.tables, &volume.label)[..] {
        [] => Ok(()),
        problems => Err(format!("check: {}", problems.join("; "))),
    }
}

async fn compare(model: &WorkloadModel, client: &VolumeClient, seen: &mut ClientStateCheck) -> Result<(), String> {
    let mut listings = Vec::new();
    for directory in &model.directories {
        listings.push(list(client, directory.id).await?);
    }
    let ids = |file: usize| model.files[file].id;
    let mut unsure = BTreeSet::new();
    for pending in &model.pending {
        let (mut done, mut undone) = (true, !pending.is_seen);
        for number in pending.directories() {
            let names = model.directories[number].names();
            undone &= is_listing(names, ids, &listings[number]);
            done &= is_listing(&pending.done(number, names), ids, &listings[number]);
            unsure.insert(number);
        }
        if !done && !undone {
            return Err(format!("names: {pending:?} is neither done nor undone: {listings:?}"));
        }
        seen.done += u64::from(done);
        seen.undone += u64::from(!done);
        for change in pending.changes.iter().filter(|change| done && change.file.is_some()) {
            if let (Some(file), Some(id)) = (change.file, listings[change.directory].get(&change.name)) {
                compare_file(model, client, file, *id, seen).await?;
            }
        }
    }
    for (number, directory) in model.directories.iter().enumerate() {
        if !unsure.contains(&number) && !is_listing(directory.names(), ids, &listings[number]) {
            return Err(format!("names: directory {number}: {:?}, not {:?}", listings[number], directory.names()));
        }
        for (name, id) in &listings[number] {
            seen.names += 1;
            if let Some(file) = directory.names().get(name).filter(|file| ids(**file) == Some(*id)) {
                compare_file(model, client, *file, *id, seen).await?;
            }
        }
    }
    Ok(())
}

async fn compare_file(
    model: &WorkloadModel,
    client: &VolumeClient,
    file: usize,
    id: FileId,
    seen: &mut ClientStateCheck,
) -> Result<(), String> {
    let failed = |error| format!("file {file}: {error}");
    let open = client.open(id, OpenAccess::Read, false).await.map_err(failed)?;
    let bytes = read_whole(&open).await.map_err(failed)?;
    let size = client.attributes(id).await.map_err(failed)?.inode.size;
    open.close().await;
    if size != bytes.len() as u64 {
        return Err(format!("file {file}: {} bytes of a size of {size}", bytes.len()));
    }
    seen.files += 1;
    match model.files[file].explain(&bytes).map_err(|what| format!("file {file}: {what}"))? {
        BytesExplanation::State(state) => seen.newer += u64::from(state > model.files[file].durable),
        BytesExplanation::Mixed => seen.mixed += 1,
    }
    Ok(())
}

/// Makes and writes a file, ends server and client, and reads the file again.
async fn goes_on(device: &SharedDevice, server: MetadataServer, client: VolumeClient) -> Result<(), String> {
    let words = |error: nectary_volume::client::Error| error.to_string();
    let bytes = [0xA5; 9000];
    let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
    let (made, open) = client.create_open(ROOT, b"after", new).await.map_err(words)?;
    open.write(WritePosition::Offset(0), vec![Buffer::copy_of(&bytes)]).await.map_err(words)?;
    open.sync().await.map_err(words)?;
    open.close().await;
    client.close().await.map_err(words)?;
    server.stop().await.map_err(|error| error.to_string())?;
    agree(device).await?;
    let folder = SocketFolder::new().map_err(|error| error.to_string())?;
    let (server, socket) = serve(&folder, device.clone()).await.map_err(|error| error.to_string())?;
    let client = connect(device.clone(), &socket, "last".to_owned()).await.map_err(words)?;
    let found = client.look_up(ROOT, b"after").await.map_err(words)?;
    let open = client.open(found.id(), OpenAccess::Read, false).await.map_err(words)?;
    let is_same = found.id() == made.id() && read_whole(&open).await.map_err(words)? == bytes;
    drop(server);
    if is_same { Ok(()) } else { Err("what was written after the crash is not there".to_owned()) }
}
