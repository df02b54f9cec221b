//! `nectary volume check` and `info`.
//!
//! Owns: reading a volume without changing it. If the volume is served at the same time, the output shows its state at
//! the newest append that could be read. Leaves to others: the consistency checks (`nectary-volume`).

use std::fmt::Write as _;

use nectary_block::{OpenOptions, format_size};
use nectary_volume::format::{
    EpochRecord, EpochState, ExtentState, LeaseState, SPACE_START, SessionRecord, SessionState, SpaceRecord, TableKey,
    TableKind, VolumeRecord,
};
use nectary_volume::journal::{self, VolumeContents};
use nectary_volume::metadata::{self, FreeSpace};
use serde_json::{Value, json};

use super::serve::state_name;
use crate::arguments::VolumeReadArguments;
use crate::exit::{CommandFailure, FAILED, GOOD};
use crate::output;

/// The maximum number of problems that are shown; a damaged volume may have any number.
const SHOWN_MAX: usize = 100;
/// The maximum number of attempts to read a volume that is written at the same time.
const READS_MAX: usize = 5;

/// Reads a volume without changing it.
pub async fn read(arguments: &VolumeReadArguments) -> Result<VolumeContents, CommandFailure> {
    let options = OpenOptions { is_shared: true, is_read_only: true, ..OpenOptions::default() };
    let device = super::open_with(&arguments.disk, &arguments.engine, options).await?;
    super::label(&arguments.disk, &device).await?;
    let mut result = journal::read(&device).await;
    for _ in 1..READS_MAX {
        if result.is_ok() {
            break;
        }
        result = journal::read(&device).await;
    }
    result.map_err(|error| {
        let remedy = "if a server serves it, ask again; else the metadata is damaged: keep the disk as it is";
        CommandFailure::new(FAILED, format!("{}: {error}", arguments.disk), remedy)
    })
}

/// Checks the consistency of a volume's records.
pub async fn check(arguments: &VolumeReadArguments) -> Result<u8, CommandFailure> {
    let volume = read(arguments).await?;
    let problems = metadata::check(&volume.tables, &volume.label);
    let code = if problems.is_empty() { GOOD } else { FAILED };
    let inodes = volume.tables.table(TableKind::Inodes).len();
    let shown = &problems[..problems.len().min(SHOWN_MAX)];
    if arguments.json {
        output::json(&json!({
            "volume": super::identity(&volume.label),
            "epoch": volume.head.epoch,
            "append": volume.last_sequence,
            "inodes": inodes,
            "notes": volume.notes,
            "problem_count": problems.len(),
            "problems": shown,
        }))?;
        return Ok(code);
    }
    let mut text = String::new();
    for note in &volume.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for problem in shown {
        let _ = writeln!(text, "PROBLEM: {problem}");
    }
    let name = super::shown_name(&volume.label);
    let _ = writeln!(
        text,
        "volume {name}: {inodes} inodes, as of append {}: {} problems",
        volume.last_sequence,
        problems.len()
    );
    output::text(&text)?;
    Ok(code)
}

/// An epoch of a volume, with its server.
struct EpochServer {
    epoch: u64,
    state: &'static str,
    /// The host of the server; `None` if a later server has reused its lease sector.
    host: Option<String>,
    incarnation: String,
    /// The space that is quarantined because the host may still write there.
    quarantined_bytes: u64,
}

/// Returns the servers that a volume's records name, the oldest first.
fn servers(volume: &VolumeContents) -> Vec<EpochServer> {
    let records = volume.tables.table(TableKind::Epochs).iter();
    let epochs = records.filter_map(|(key, value)| match TableKey::decode(TableKind::Epochs, key) {
        Ok(TableKey::Epoch(epoch)) => Some((epoch, EpochRecord::decode(value).ok()?)),
        _ => None,
    });
    let served = epochs.map(|(epoch, record)| {
        let sector = volume.servers.iter().find(|sector| sector.incarnation == record.incarnation);
        let state = match (record.state, sector.map(|sector| sector.state)) {
            (EpochState::ConfirmedGone, _) => "gone",
            (_, Some(LeaseState::Resigned)) => "ended",
            (EpochState::Leads, _) => "leads",
            (EpochState::Sealed, _) => "replaced",
        };
        EpochServer {
            epoch,
            state,
            host: sector.map(|sector| sector.host.clone()),
            incarnation: record.incarnation.iter().map(|byte| format!("{byte:02x}")).collect(),
            quarantined_bytes: record.segments.saturating_mul(volume.label.segment_blocks) * super::BLOCK,
        }
    });
    served.collect()
}

/// The used space of a volume. *Units*: bytes.
#[derive(Default)]
struct VolumeSpaceUse {
    data: u64,
    metadata: u64,
    granted: u64,
    draining: u64,
    quarantined: u64,
    bad: u64,
}

impl VolumeSpaceUse {
    fn of(volume: &VolumeContents, sessions: &[(u64, SessionRecord)]) -> VolumeSpaceUse {
        let is_active =
            |owner| sessions.iter().any(|(number, session)| *number == owner && session.state == SessionState::Active);
        // The start of the disk has the label, the leases and the heads of epochs.
        let mut used = VolumeSpaceUse { metadata: SPACE_START * super::BLOCK, ..VolumeSpaceUse::default() };
        let spaces = volume.tables.table(TableKind::Space).values().filter_map(|value| SpaceRecord::decode(value).ok());
        for space in spaces {
            let sum = match space.state {
                ExtentState::Data => &mut used.data,
                ExtentState::Metadata => &mut used.metadata,
                ExtentState::Granted if is_active(space.owner) => &mut used.granted,
                ExtentState::Draining => &mut used.draining,
                ExtentState::Granted | ExtentState::Quarantined | ExtentState::QuarantinedMetadata => {
                    &mut used.quarantined
                }
                ExtentState::Bad => &mut used.bad,
            };
            *sum = sum.saturating_add(space.blocks.saturating_mul(super::BLOCK));
        }
        used
    }
}

/// Shows the properties of a volume.
pub async fn info(arguments: &VolumeReadArguments) -> Result<u8, CommandFailure> {
    let volume = read(arguments).await?;
    let record = volume.tables.get(&TableKey::Volume).and_then(|value| VolumeRecord::decode(value).ok());
    let blocks = record.map_or(0, |record| record.blocks);
    // Where records make no sense, `check` says so.
    let free = metadata::free_space(&volume.tables, &volume.label).unwrap_or(FreeSpace { blocks: 0, reserved: 0 });
    let (free_bytes, reserved_bytes) = (free.blocks * super::BLOCK, free.reserved * super::BLOCK);
    let sessions: Vec<(u64, SessionRecord)> = volume
        .tables
        .table(TableKind::Sessions)
        .iter()
        .filter_map(|(key, value)| match TableKey::decode(TableKind::Sessions, key) {
            Ok(TableKey::Session(number)) => Some((number, SessionRecord::decode(value).ok()?)),
            _ => None,
        })
        .collect();
    let used = VolumeSpaceUse::of(&volume, &sessions);
    let servers = servers(&volume);
    let inodes = volume.tables.table(TableKind::Inodes).len();
    let size_bytes = blocks * super::BLOCK;
    if arguments.json {
        let sessions: Vec<Value> = sessions
            .iter()
            .map(|(number, session)| {
                json!({ "session": number, "host": session.host, "state": state_name(session.state) })
            })
            .collect();
        let servers: Vec<Value> = servers
            .iter()
            .map(|server| {
                json!({
                    "epoch": server.epoch,
                    "host": server.host,
                    "incarnation": server.incarnation,
                    "state": server.state,
                    "quarantined_bytes": server.quarantined_bytes,
                })
            })
            .collect();
        output::json(&json!({
            "volume": super::identity(&volume.label),
            "name": volume.label.name,
            "version": volume.label.version_made,
            "size_bytes": size_bytes,
            "free_bytes": free_bytes,
            "reserved_bytes": reserved_bytes,
            "data_bytes": used.data,
            "metadata_bytes": used.metadata,
            "granted_bytes": used.granted,
            "draining_bytes": used.draining,
            "quarantined_bytes": used.quarantined,
            "bad_bytes": used.bad,
            "inodes": inodes,
            "epoch": volume.head.epoch,
            "append": volume.last_sequence,
            "lease_ms": volume.label.lease_ms,
            "servers": servers,
            "sessions": sessions,
        }))?;
        return Ok(GOOD);
    }
    let mut text = String::new();
    let _ = writeln!(text, "volume    {}", super::identity(&volume.label));
    let _ = writeln!(text, "name      {}", volume.label.name);
    let _ = writeln!(text, "size      {}", format_size(size_bytes));
    let _ = writeln!(text, "data      {} in {inodes} inodes", format_size(used.data));
    let _ = writeln!(text, "free      {}", format_size(free_bytes));
    let lines = [
        ("reserved", reserved_bytes, "kept free for metadata, so that a full disk can be served"),
        ("metadata", used.metadata, "label, leases, journal and tables, and segments for the next starts"),
        ("granted", used.granted, "given to mounts, which write new data there"),
        ("draining", used.draining, "freed a moment ago: reused when no mount reads it any more"),
        ("held back", used.quarantined, "hosts of ended sessions or lost servers may still write there"),
        ("bad", used.bad, "not usable"),
    ];
    for (name, bytes, what) in lines.into_iter().filter(|(_, bytes, _)| *bytes > 0) {
        let _ = writeln!(text, "{name:<9} {}: {what}", format_size(bytes));
    }
    let _ = writeln!(text, "epoch     {}, append {}", volume.head.epoch, volume.last_sequence);
    for server in &servers {
        let host = server.host.as_deref().unwrap_or("a host that is not known any more");
        let _ = write!(text, "server    epoch {} on {host}, {}", server.epoch, server.state);
        if server.quarantined_bytes > 0 {
            let (held, incarnation) = (format_size(server.quarantined_bytes), &server.incarnation);
            let _ = write!(text, ", {held} are held back until it is confirmed gone (incarnation {incarnation})");
        }
        let _ = writeln!(text);
    }
    for (number, session) in &sessions {
        let _ = write!(text, "session   {number} of {}, {}", session.host, state_name(session.state));
        if session.state == SessionState::Ended {
            let _ = write!(text, ": `nectary volume release DISK {number}` once its mount is gone frees its space");
        }
        let _ = writeln!(text);
    }
    output::text(&text)?;
    Ok(GOOD)
}
