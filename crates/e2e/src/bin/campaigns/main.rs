//! `e2e-campaigns`: long runs of whole systems, and benchmarks of them. Each is a subcommand with its own options.
//!
//! | arguments | what it does |
//! |---|---|
//! | `list` | lists the campaigns |
//! | `NAME --help` | shows the options of a campaign |
//! | `volume-kills --rounds 50 --seed 7` | runs a campaign |
//!
//! Owns: the command line. Leaves to others: the campaigns, one file each, and the harness (`nectary_e2e`). They are
//! one program, because each program is linked with all dependencies.

mod attach_filesystems;
mod bench;
mod cache_files;
mod cache_tests;
mod cache_tree;
mod disk_faults;
mod edge;
mod nbd_kernel;
mod origin;
mod packages;
mod proxy_origins;
mod ram;
mod restarts;
mod rounds;
mod sigkill;
mod volume_databases;
mod volume_kills;
mod volume_maps;
mod volume_programs;
mod volume_takeover;
mod volume_tree;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use self::edge::{acme, admin_page, configurations, fleet, fleet_figures, http2_spec};

/// Runs a whole system for long, and checks or measures it.
#[derive(Parser)]
#[command(name = "e2e-campaigns")]
struct Arguments {
    #[command(subcommand)]
    campaign: Campaign,
}

/// The campaigns; the descriptions are those of their arguments.
#[derive(Subcommand)]
enum Campaign {
    Acme(acme::Arguments),
    AdminPage(admin_page::Arguments),
    AttachFilesystems(attach_filesystems::Arguments),
    BenchBefore(bench::before::Arguments),
    BenchEdge(bench::edge::Arguments),
    BenchLarge(bench::large::Arguments),
    BenchMemory(bench::memory::Arguments),
    BenchPressure(bench::pressure::Arguments),
    CacheFiles(cache_files::Arguments),
    CacheTests(cache_tests::Arguments),
    CacheTree(cache_tree::Arguments),
    Configurations(configurations::Arguments),
    DiskFaults(disk_faults::Arguments),
    Fleet(fleet::Arguments),
    FleetFigures(fleet_figures::Arguments),
    Http2Spec(http2_spec::Arguments),
    NbdKernel(nbd_kernel::Arguments),
    Origin(origin::Arguments),
    PackageClients(packages::clients::Arguments),
    Packages(packages::installed::Arguments),
    ProxyOrigins(proxy_origins::Arguments),
    RamDonors(ram::donors::Arguments),
    RamSecondFailure(ram::second_failure::Arguments),
    Restarts(restarts::Arguments),
    Sigkill(sigkill::Arguments),
    VolumeDatabases(volume_databases::Arguments),
    VolumeKills(volume_kills::Arguments),
    VolumeMaps(volume_maps::Arguments),
    VolumePrograms(volume_programs::Arguments),
    VolumeTakeover(volume_takeover::Arguments),
    VolumeTree(volume_tree::Arguments),
    /// Lists the campaigns.
    List,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().campaign {
        Campaign::Acme(arguments) => acme::campaign(&arguments),
        Campaign::AdminPage(arguments) => admin_page::campaign(&arguments),
        Campaign::AttachFilesystems(arguments) => attach_filesystems::campaign(&arguments),
        Campaign::BenchBefore(arguments) => bench::before::campaign(&arguments),
        Campaign::BenchEdge(arguments) => bench::edge::campaign(&arguments),
        Campaign::BenchLarge(arguments) => bench::large::campaign(&arguments),
        Campaign::BenchMemory(arguments) => bench::memory::campaign(arguments),
        Campaign::BenchPressure(arguments) => bench::pressure::campaign(arguments),
        Campaign::CacheFiles(arguments) => Ok(cache_files::campaign(&arguments)),
        Campaign::CacheTests(arguments) => cache_tests::campaign(&arguments),
        Campaign::CacheTree(arguments) => cache_tree::campaign(&arguments),
        Campaign::Configurations(arguments) => configurations::campaign(&arguments),
        Campaign::DiskFaults(arguments) => disk_faults::campaign(&arguments),
        Campaign::Fleet(arguments) => fleet::campaign(&arguments),
        Campaign::FleetFigures(arguments) => fleet_figures::campaign(&arguments),
        Campaign::Http2Spec(arguments) => http2_spec::campaign(&arguments),
        Campaign::NbdKernel(arguments) => nbd_kernel::campaign(&arguments),
        Campaign::Origin(arguments) => origin::campaign(&arguments),
        Campaign::PackageClients(arguments) => packages::clients::campaign(&arguments),
        Campaign::Packages(arguments) => packages::installed::campaign(&arguments),
        Campaign::ProxyOrigins(arguments) => proxy_origins::campaign(&arguments),
        Campaign::RamDonors(arguments) => ram::donors::campaign(&arguments),
        Campaign::RamSecondFailure(arguments) => ram::second_failure::campaign(&arguments),
        Campaign::Restarts(arguments) => restarts::campaign(&arguments),
        Campaign::Sigkill(arguments) => sigkill::campaign(arguments),
        Campaign::VolumeDatabases(arguments) => volume_databases::campaign(&arguments),
        Campaign::VolumeKills(arguments) => volume_kills::campaign(&arguments),
        Campaign::VolumeMaps(arguments) => Ok(volume_maps::campaign(&arguments)),
        Campaign::VolumePrograms(arguments) => volume_programs::campaign(&arguments),
        Campaign::VolumeTakeover(arguments) => Ok(volume_takeover::campaign(&arguments)),
        Campaign::VolumeTree(arguments) => volume_tree::campaign(&arguments),
        Campaign::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints each campaign with its description.
fn list() {
    let command = Arguments::command();
    for campaign in command.get_subcommands().filter(|campaign| campaign.get_name() != "list") {
        let about = campaign.get_about().map(ToString::to_string).unwrap_or_default();
        println!("{:18}  {about}", campaign.get_name());
    }
}
