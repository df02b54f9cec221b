//! `nectary ram`: the memory of some machines as a disk for others.
//!
//! Leaves to others: the commands, one file each in `ram/`.

pub mod attached;
pub mod check;
pub mod create;
pub mod donate;
pub mod drain;
pub mod grow;
pub mod mirror;
pub mod replace;
pub mod scrub;
mod simulate;

use nectary_host::ControlMethods;
use nectary_ram::device::OpenDevices;

use crate::arguments::RamCommand;
use crate::exit::CommandFailure;
use crate::runtime;

/// Adds the methods of network RAM disks to a process that has devices open.
pub fn register(disks: &OpenDevices, methods: &mut ControlMethods) {
    replace::register(disks.clone(), methods);
    drain::register(disks.clone(), methods);
    scrub::register(disks.clone(), methods);
}

/// Runs the command.
pub fn run(command: &RamCommand) -> Result<u8, CommandFailure> {
    match command {
        RamCommand::Donate(arguments) => runtime()?.block_on(donate::run(arguments)),
        RamCommand::Create(arguments) => runtime()?.block_on(create::create(arguments)),
        RamCommand::Delete(arguments) => runtime()?.block_on(create::delete(arguments)),
        RamCommand::Grow(arguments) => runtime()?.block_on(grow::run(arguments)),
        RamCommand::Replace(arguments) => replace::run(arguments),
        RamCommand::Drain(arguments) => drain::run(arguments),
        RamCommand::Scrub(arguments) => scrub::run(arguments),
        RamCommand::Check(arguments) => runtime()?.block_on(check::run(arguments)),
        RamCommand::Simulate(arguments) => simulate::run(arguments),
    }
}
