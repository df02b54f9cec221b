//! The start of a server: it becomes leader and reads all metadata.
//!
//! Owns: the first append of an epoch, which records its leader, the state of earlier epochs, and the segments of the
//! next ones.

use nectary_block::SharedDevice;
use nectary_host::log::{LogLevel, write as log_line};

use super::request::wall_ns;
use super::{ServerError, ServerOptions};
use crate::identity::random_id;
use crate::journal::{LeaderJournal, StartOptions};
use crate::metadata::{MetadataImage, SET_ASIDE};
use crate::origin::ProcessOrigin;

/// The state of a new leader.
pub(super) struct NewLeader {
    pub log: LeaderJournal,
    pub image: MetadataImage,
    /// The number of the first append.
    pub sequence: u64,
}

/// Becomes leader.
pub(super) async fn lead(device: SharedDevice, options: &ServerOptions) -> Result<NewLeader, ServerError> {
    let incarnation = random_id();
    let start = StartOptions {
        server: options.number,
        host: options.host.clone(),
        incarnation,
        confirmed_gone: Vec::new(),
        said_gone: options.said_gone.clone(),
        previous_gone: options.previous_gone,
        origin: ProcessOrigin::of(&device),
        created_s: wall_ns() / 1_000_000_000,
        fixed_ns: None,
    };
    let (mut log, tables) = LeaderJournal::start(device, start).await?;
    for note in log.notes() {
        log_line(LogLevel::Note, "volume", format_args!("{note}"));
    }
    let mut image = MetadataImage::load(tables, log.label(), log.epoch())?;
    let free = image.free_segments();
    let mut first = image.begin_epoch(incarnation, log.gone())?;
    let freed = image.free_segments().saturating_sub(free);
    if freed > 0 {
        log_line(
            LogLevel::Note,
            "volume",
            format_args!("{freed} segments of earlier servers, which are gone, are free"),
        );
    }
    first.extend(image.set_aside()?);
    first.extend(image.skip_numbers()?);
    if let Some(starts) = image.starts().filter(|starts| *starts < SET_ASIDE) {
        let words = format!("the disk is full: there is room for {starts} more starts, usually for {SET_ASIDE}");
        log_line(LogLevel::Warning, "volume", format_args!("{words}"));
    }
    let sequence = log.append(first).await?;
    Ok(NewLeader { log, image, sequence })
}
