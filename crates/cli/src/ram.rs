//! `nectary ram`: the network RAM disk.
//!
//! Leaves to others: each command, a file in `ram/`.

mod simulate;

use crate::arguments::RamCommand;
use crate::exit::Failure;

/// Runs a command.
pub fn run(command: &RamCommand) -> Result<u8, Failure> {
    match command {
        RamCommand::Simulate(arguments) => simulate::run(arguments),
    }
}
