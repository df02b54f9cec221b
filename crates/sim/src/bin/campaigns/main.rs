//! `sim-campaigns`: long runs of the simulations with random seeds, one subcommand each.
//!
//! Owns: the list of campaigns. Leaves to others: each campaign (one file each), what all of them share (`shared`), and
//! what campaigns with many concurrent clients share (`concurrent`).
//!
//! The exit code is 0 if no promise was broken, enough was done, and each planted bug was caught by a case that catches
//! it again; it is 1 if not, and 2 if the command line is wrong. With `--bug NAME --replay SEED` (and `--state N`) a
//! campaign runs only that case with that bug planted, and exits with 0 if the bug is caught.

mod cache_concurrent;
mod concurrent;
mod fleet;
mod ram_moves;
mod ram_simulation;
mod shared;
mod store_concurrent;
mod store_crash_chains;
mod store_crash_states;
mod store_directed;
mod store_faults;
mod store_model;
mod store_moments;
mod store_spans;
mod store_unreadable;
mod volume_crash_states;
mod volume_journal;
mod volume_names;
mod volume_simulation;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use cache_concurrent::CacheConcurrent;
use store_concurrent::StoreConcurrent;

/// Runs the simulations with random seeds, and plants bugs that they must catch
#[derive(Parser)]
#[command(name = shared::PROGRAM)]
struct SimCampaignArguments {
    #[command(subcommand)]
    campaign: SimCampaignCommand,
}

#[derive(Subcommand)]
enum SimCampaignCommand {
    /// Many concurrent clients on one cached device, and crash states of such devices
    CacheConcurrent(concurrent::ConcurrentOptions),
    /// Nodes of a fleet, and a model of etcd, under faults, with purges in flight
    Fleet(fleet::FleetCampaignOptions),
    /// Replace, drain, sparing, growth and take-over of a network RAM disk, with a fault at any step
    RamMoves(ram_moves::RamMovesOptions),
    /// A network RAM disk under faults, with its invariants checked after every step
    RamSimulation(ram_simulation::RamSimulationOptions),
    /// Many concurrent clients on one store, and crash states of such stores
    StoreConcurrent(concurrent::ConcurrentOptions),
    /// A store that crashes several times in a row, with work between the crashes
    StoreCrashChains(store_crash_chains::CrashChainsOptions),
    /// A store that is opened after a crash at any moment
    StoreCrashStates(store_crash_states::StoreCrashOptions),
    /// Directed scenarios of a store: crashes in a row, losses of spans, and readers
    StoreDirected(store_directed::StoreDirectedOptions),
    /// A store on a device with a place that cannot be read, or on one that is silent at times
    StoreFaults(store_faults::StoreFaultsOptions),
    /// Operations on a store against a model, with restarts and damage
    StoreModel(store_model::StoreModelOptions),
    /// Purges of objects that wait to be written, and gets while an index is loaded
    StoreMoments(store_moments::StoreMomentsOptions),
    /// Stores of several spans that are lost and return, against a model
    StoreSpans(store_spans::StoreSpansOptions),
    /// A store of which each block in turn cannot be read
    StoreUnreadable(store_unreadable::StoreUnreadableOptions),
    /// A shared volume with real clients and a real server after a crash at any moment
    VolumeCrashStates(volume_crash_states::VolumeCrashOptions),
    /// A volume that is opened after a crash at any moment, and servers that contend for one
    VolumeJournal(volume_journal::VolumeJournalOptions),
    /// Names and attributes of a shared volume, with real clients, a real server and models of kernels
    VolumeNames(volume_names::VolumeNamesOptions),
    /// Tokens, leases and sessions of a shared volume under faults
    VolumeSimulation(volume_simulation::VolumeSimulationOptions),
    /// Prints the names of the campaigns
    List,
}

fn main() -> ExitCode {
    match SimCampaignArguments::parse().campaign {
        SimCampaignCommand::CacheConcurrent(options) => concurrent::run::<CacheConcurrent>(&options),
        SimCampaignCommand::Fleet(options) => fleet::run(&options),
        SimCampaignCommand::RamMoves(options) => ram_moves::run(&options),
        SimCampaignCommand::RamSimulation(options) => ram_simulation::run(&options),
        SimCampaignCommand::StoreConcurrent(options) => concurrent::run::<StoreConcurrent>(&options),
        SimCampaignCommand::StoreCrashChains(options) => store_crash_chains::run(&options),
        SimCampaignCommand::StoreCrashStates(options) => store_crash_states::run(&options),
        SimCampaignCommand::StoreDirected(options) => store_directed::run(&options),
        SimCampaignCommand::StoreFaults(options) => store_faults::run(&options),
        SimCampaignCommand::StoreModel(options) => store_model::run(&options),
        SimCampaignCommand::StoreMoments(options) => store_moments::run(&options),
        SimCampaignCommand::StoreSpans(options) => store_spans::run(&options),
        SimCampaignCommand::StoreUnreadable(options) => store_unreadable::run(&options),
        SimCampaignCommand::VolumeCrashStates(options) => volume_crash_states::run(&options),
        SimCampaignCommand::VolumeJournal(options) => volume_journal::run(&options),
        SimCampaignCommand::VolumeNames(options) => volume_names::run(&options),
        SimCampaignCommand::VolumeSimulation(options) => volume_simulation::run(&options),
        SimCampaignCommand::List => list(),
    }
}

/// Prints the name and the description of each campaign, one a line.
fn list() -> ExitCode {
    let command = SimCampaignArguments::command();
    for campaign in command.get_subcommands().filter(|campaign| campaign.get_name() != "list") {
        println!("{:<20} {}", campaign.get_name(), campaign.get_about().cloned().unwrap_or_default());
    }
    ExitCode::SUCCESS
}
