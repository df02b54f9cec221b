//! `nectary ram`: memory of machines as a disk for others.
//!
//! Owns: the list of its commands. Leaves to others: each command, a file in `ram/`.

pub mod create;
pub mod donate;
mod simulate;

use clap::Subcommand;

use crate::arguments::TEMPLATE;
use crate::exit::{self, Failure};
use crate::runtime;

/// The commands of the network RAM disk.
#[derive(Debug, Subcommand)]
pub enum RamCommand {
    /// Lend memory of this machine to others
    #[command(help_template = TEMPLATE, before_help = donate::EXAMPLES, after_help = exit::HELP)]
    Donate(donate::DonateArguments),
    /// Make a device in the memory of donors
    #[command(help_template = TEMPLATE, before_help = create::CREATE_EXAMPLES, after_help = exit::HELP)]
    Create(create::CreateArguments),
    /// Delete a device, and give its memory back to the donors
    #[command(help_template = TEMPLATE, before_help = create::DELETE_EXAMPLES, after_help = exit::HELP)]
    Delete(create::DeleteArguments),
    /// Count the transfers of each redundancy policy for each written block, beside theory
    #[command(help_template = TEMPLATE, before_help = simulate::EXAMPLES, after_help = exit::HELP)]
    Simulate(simulate::RamSimulateArguments),
}

/// Runs the command.
pub fn run(command: &RamCommand) -> Result<u8, Failure> {
    match command {
        RamCommand::Donate(arguments) => runtime()?.block_on(donate::run(arguments)),
        RamCommand::Create(arguments) => runtime()?.block_on(create::create(arguments)),
        RamCommand::Delete(arguments) => runtime()?.block_on(create::delete(arguments)),
        RamCommand::Simulate(arguments) => simulate::run(arguments),
    }
}
