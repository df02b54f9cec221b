//! `nectary volume`: a file system on a disk that several hosts share.
//!
//! Owns: the check which disks can be used, and which labels are supported. Leaves to others: the commands, one file
//! each.

mod check;
mod extents;
mod format;
mod mount;
mod serve;

pub use mount::umount;

use nectary_block::{DeviceSpec, OpenOptions, SharedDevice, SurvivalLevel};
use nectary_volume::format::VolumeLabel;

use crate::arguments::{EngineArguments, VolumeCommand};
use crate::device::{engine, registry};
use crate::exit::{BUSY, CommandFailure, FAILED, NOT_FOUND, USAGE};
use crate::runtime;

/// The name of a server's component in its status.
pub const SERVER: &str = "volume server";
/// The name of a mount's component in its status.
pub const MOUNT: &str = "volume mount";

/// Runs the command.
pub fn run(command: &VolumeCommand) -> Result<u8, CommandFailure> {
    match command {
        VolumeCommand::Format(arguments) => runtime()?.block_on(format::run(arguments)),
        VolumeCommand::Serve(arguments) => runtime()?.block_on(serve::run(arguments)),
        VolumeCommand::Mount(arguments) => mount::mount(arguments),
        VolumeCommand::Umount(arguments) => mount::umount(arguments),
        VolumeCommand::Check(arguments) => runtime()?.block_on(check::check(arguments)),
        VolumeCommand::Info(arguments) => match &arguments.file {
            Some(file) => runtime()?.block_on(extents::show(&arguments.read, file)),
            None => runtime()?.block_on(check::info(&arguments.read)),
        },
        VolumeCommand::Release(arguments) => serve::release(arguments),
        VolumeCommand::Cert(command) => crate::cert::run(command),
    }
}

/// Opens a disk that other processes may also have open; [`OpenOptions`] explains `create_bytes` and `is_shared`.
async fn open(
    disk: &str,
    arguments: &EngineArguments,
    create_bytes: Option<u64>,
    is_shared: bool,
) -> Result<SharedDevice, CommandFailure> {
    open_with(disk, arguments, OpenOptions { create_bytes, is_shared, ..OpenOptions::default() }).await
}

/// Opens a disk with these options, except the engine.
async fn open_with(
    disk: &str,
    arguments: &EngineArguments,
    options: OpenOptions,
) -> Result<SharedDevice, CommandFailure> {
    check_spec(disk)?;
    let options = OpenOptions { engine: engine(arguments), ..options };
    let device = registry().open(disk, &options).await.map_err(|error| match error.kind {
        nectary_block::DeviceErrorKind::Absent => CommandFailure::new(
            NOT_FOUND,
            error.to_string(),
            "check the SPEC; `nectary volume format DISK --size 10G` makes a file",
        ),
        nectary_block::DeviceErrorKind::Busy => CommandFailure::new(
            BUSY,
            error.to_string(),
            "`nectary status` shows its server and its mounts on this host: stop and unmount them, or name another disk",
        ),
        _ => error.into(),
    })?;
    if device.geometry().write_survives == SurvivalLevel::Nothing {
        return Err(no_disk(disk, "it is in the memory of one process, which no other host can reach"));
    }
    Ok(device)
}

/// Refuses devices of which two processes would not see the same contents.
fn check_spec(disk: &str) -> Result<(), CommandFailure> {
    let Ok(spec) = DeviceSpec::parse(disk) else { return Ok(()) };
    let text = spec.to_string();
    for (name, why) in [
        ("memory:", "it is in the memory of one process, which no other host can reach"),
        ("cache(", "hosts would not see each other's writes behind a cache"),
        ("ram(", "the memory of donors has one client at a time"),
    ] {
        if text.contains(name) {
            return Err(no_disk(disk, why));
        }
    }
    Ok(())
}

fn no_disk(disk: &str, why: &str) -> CommandFailure {
    CommandFailure::new(
        USAGE,
        format!("{disk}: {why}"),
        "name a disk that every host can open: `disk:/dev/sdb`, a file, an NBD export",
    )
}

/// Reads the label of a volume, from either copy.
async fn label(disk: &str, device: &SharedDevice) -> Result<VolumeLabel, CommandFailure> {
    let mut problem = String::new();
    for copy in 0..2 {
        let bytes = nectary_block::read(&**device, copy * BLOCK, BLOCK as usize).await?;
        match VolumeLabel::decode(copy, &bytes) {
            Ok(label) => {
                check_label(disk, &label)?;
                return Ok(label);
            }
            Err(error) => problem = error.to_string(),
        }
    }
    Err(CommandFailure::new(
        NOT_FOUND,
        format!("{disk}: there is no volume on it ({problem})"),
        "check the SPEC, or make one with `nectary volume format DISK`",
    ))
}

const BLOCK: u64 = nectary_volume::format::BLOCK_BYTES as u64;

/// Refuses volumes that this version does not support.
fn check_label(disk: &str, label: &VolumeLabel) -> Result<(), CommandFailure> {
    let unknown = label.incompat | label.ro_compat;
    if label.version_min > nectary_volume::format::VERSION || unknown != 0 {
        let needs = format!("version {} and features {unknown:#x}", label.version_min);
        return Err(CommandFailure::new(
            FAILED,
            format!(
                "{disk}: the volume needs a program of {needs}, this one has version {}",
                nectary_volume::format::VERSION
            ),
            "use a newer nectary",
        ));
    }
    Ok(())
}

/// Returns the name of a volume for people.
fn shown_name(label: &VolumeLabel) -> String {
    if label.name.is_empty() { identity(label) } else { label.name.clone() }
}

/// Returns the identity of a volume as text.
fn identity(label: &VolumeLabel) -> String {
    label.volume.0.iter().map(|byte| format!("{byte:02x}")).collect()
}
