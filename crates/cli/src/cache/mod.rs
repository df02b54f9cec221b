//! `nectary cache`: the dispatch of its commands.
//!
//! Leaves to others: simulations (`simulation`, `curve`), mounts and running caches (`mounts`, `live`).

mod curve;
mod simulated;
mod simulation;

use crate::arguments::CacheCommand;
use crate::exit::CommandFailure;
use crate::live;
use crate::live::commands;
use crate::mounts::cache as cache_mount;

/// Runs a command.
pub fn run(command: &CacheCommand) -> Result<u8, CommandFailure> {
    match command {
        CacheCommand::Simulate(arguments) => simulation::run(arguments),
        CacheCommand::Curve(arguments) => curve::run(arguments),
        CacheCommand::Mount(arguments) => cache_mount::mount(arguments),
        CacheCommand::Umount(arguments) => cache_mount::umount(arguments),
        CacheCommand::Stat(arguments) => cache_mount::stat(arguments),
        CacheCommand::Flush(arguments) => commands::flush(arguments),
        CacheCommand::Set(arguments) => commands::set(arguments),
        CacheCommand::Show(arguments) => commands::show(arguments),
        CacheCommand::Drop(arguments) => commands::drop(arguments),
        CacheCommand::Pin(arguments) => commands::pin(arguments),
        CacheCommand::Unpin(arguments) => commands::unpin(arguments),
        CacheCommand::Advise(arguments) => live::advise::run(arguments),
    }
}
