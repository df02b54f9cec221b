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
struct CampaignArguments {
    #[command(subcommand)]
    campaign: CampaignCommand,
}

/// The campaigns; the descriptions are those of their arguments.
#[derive(Subcommand)]
enum CampaignCommand {
    Acme(acme::AcmeArguments),
    AdminPage(admin_page::AdminPageArguments),
    AttachFilesystems(attach_filesystems::AttachFilesystemsArguments),
    BenchBefore(bench::before::BenchBeforeArguments),
    BenchEdge(bench::edge::BenchEdgeArguments),
    BenchLarge(bench::large::BenchLargeArguments),
    BenchMemory(bench::memory::BenchMemoryArguments),
    BenchPressure(bench::pressure::BenchPressureArguments),
    CacheFiles(cache_files::CacheFilesArguments),
    CacheTests(cache_tests::CacheTestsArguments),
    CacheTree(cache_tree::CacheTreeArguments),
    Configurations(configurations::ConfigurationsArguments),
    DiskFaults(disk_faults::DiskFaultsArguments),
    Fleet(fleet::FleetArguments),
    FleetFigures(fleet_figures::Arguments),
    Http2Spec(http2_spec::Http2SpecArguments),
    NbdKernel(nbd_kernel::NbdKernelArguments),
    Origin(origin::OriginProgramArguments),
    PackageClients(packages::clients::PackageClientsArguments),
    Packages(packages::installed::PackagesArguments),
    ProxyOrigins(proxy_origins::ProxyOriginsArguments),
    RamDonors(ram::donors::RamDonorsArguments),
    RamSecondFailure(ram::second_failure::SecondFailureArguments),
    Restarts(restarts::RestartsArguments),
    Sigkill(sigkill::SigkillArguments),
    VolumeDatabases(volume_databases::VolumeDatabasesArguments),
    VolumeKills(volume_kills::VolumeKillsArguments),
    VolumeMaps(volume_maps::VolumeMapsArguments),
    VolumePrograms(volume_programs::VolumeProgramsArguments),
    VolumeTakeover(volume_takeover::VolumeTakeoverArguments),
    VolumeTree(volume_tree::VolumeTreeArguments),
    /// Lists the campaigns.
    List,
}

fn main() -> Result<ExitCode> {
    match CampaignArguments::parse().campaign {
        CampaignCommand::Acme(arguments) => acme::campaign(&arguments),
        CampaignCommand::AdminPage(arguments) => admin_page::campaign(&arguments),
        CampaignCommand::AttachFilesystems(arguments) => attach_filesystems::campaign(&arguments),
        CampaignCommand::BenchBefore(arguments) => bench::before::campaign(&arguments),
        CampaignCommand::BenchEdge(arguments) => bench::edge::campaign(&arguments),
        CampaignCommand::BenchLarge(arguments) => bench::large::campaign(&arguments),
        CampaignCommand::BenchMemory(arguments) => bench::memory::campaign(arguments),
        CampaignCommand::BenchPressure(arguments) => bench::pressure::campaign(arguments),
        CampaignCommand::CacheFiles(arguments) => Ok(cache_files::campaign(&arguments)),
        CampaignCommand::CacheTests(arguments) => cache_tests::campaign(&arguments),
        CampaignCommand::CacheTree(arguments) => cache_tree::campaign(&arguments),
        CampaignCommand::Configurations(arguments) => configurations::campaign(&arguments),
        CampaignCommand::DiskFaults(arguments) => disk_faults::campaign(&arguments),
        CampaignCommand::Fleet(arguments) => fleet::campaign(&arguments),
        CampaignCommand::FleetFigures(arguments) => fleet_figures::campaign(&arguments),
        CampaignCommand::Http2Spec(arguments) => http2_spec::campaign(&arguments),
        CampaignCommand::NbdKernel(arguments) => nbd_kernel::campaign(&arguments),
        CampaignCommand::Origin(arguments) => origin::campaign(&arguments),
        CampaignCommand::PackageClients(arguments) => packages::clients::campaign(&arguments),
        CampaignCommand::Packages(arguments) => packages::installed::campaign(&arguments),
        CampaignCommand::ProxyOrigins(arguments) => proxy_origins::campaign(&arguments),
        CampaignCommand::RamDonors(arguments) => ram::donors::campaign(&arguments),
        CampaignCommand::RamSecondFailure(arguments) => ram::second_failure::campaign(&arguments),
        CampaignCommand::Restarts(arguments) => restarts::campaign(&arguments),
        CampaignCommand::Sigkill(arguments) => sigkill::campaign(arguments),
        CampaignCommand::VolumeDatabases(arguments) => volume_databases::campaign(&arguments),
        CampaignCommand::VolumeKills(arguments) => volume_kills::campaign(&arguments),
        CampaignCommand::VolumeMaps(arguments) => Ok(volume_maps::campaign(&arguments)),
        CampaignCommand::VolumePrograms(arguments) => volume_programs::campaign(&arguments),
        CampaignCommand::VolumeTakeover(arguments) => Ok(volume_takeover::campaign(&arguments)),
        CampaignCommand::VolumeTree(arguments) => volume_tree::campaign(&arguments),
        CampaignCommand::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints each campaign with its description.
fn list() {
    let command = CampaignArguments::command();
    for campaign in command.get_subcommands().filter(|campaign| campaign.get_name() != "list") {
        let about = campaign.get_about().map(ToString::to_string).unwrap_or_default();
        println!("{:18}  {about}", campaign.get_name());
    }
}
