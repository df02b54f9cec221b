//! `nectary ram`: the network RAM disk.
//!
//! Owns: the list of its commands. Leaves to others: each command, a file in `ram/`.

mod simulate;

use clap::Subcommand;

use crate::arguments::TEMPLATE;
use crate::exit::{self, Failure};

/// The commands on network RAM disks.
#[derive(Debug, Subcommand)]
pub enum RamCommand {
    /// Count the transfers of each redundancy policy for each written block, beside theory
    #[command(help_template = TEMPLATE, before_help = simulate::EXAMPLES, after_help = exit::HELP)]
    Simulate(simulate::RamSimulateArguments),
}

/// Runs a command.
pub fn run(command: &RamCommand) -> Result<u8, Failure> {
    match command {
        RamCommand::Simulate(arguments) => simulate::run(arguments),
    }
}
