//! Runs file systems on network RAM disks whose donors are killed, stand still or are cut off: `e2e-campaigns
//! ram-donors --redundancy mirror --fs ext4,xfs,btrfs --rounds 50 --seed 7 --shard 0/1`.
//!
//! A round has its own donors, device and file system; its seed decides how many donors there are, and the order of
//! faults. Prints one line per round. Exit code 0 only if every round of the shard ran without an error or a wrong
//! byte.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use nectary_e2e::attach::{TestFileSystem, missing};
use nectary_e2e::mirror::{DonorFault, round};
use nectary_e2e::report::seed_or_new;
use nectary_e2e::rng::SeededRng;

use crate::rounds::{NotRunPolicy, shard};

/// A longer gap between operations is counted.
const GAP_MAX: Duration = Duration::from_secs(1);

/// Breaks the donors of network RAM disks under file systems.
#[derive(Args)]
pub struct RamDonorsArguments {
    /// The redundancy: mirror, parity, parity-log, parity-cache or adaptive.
    #[arg(long, default_value = "mirror")]
    redundancy: String,
    /// Which file systems, joined by commas.
    #[arg(long, default_value = "ext4,xfs,btrfs", value_delimiter = ',')]
    fs: Vec<String>,
    /// Rounds of each file system.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// The seed of the first round; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Only every N-th round, as K/N, counted from 0.
    #[arg(long, default_value = "0/1")]
    shard: String,
}

/// Runs the campaign.
pub fn campaign(arguments: &RamDonorsArguments) -> Result<ExitCode> {
    let seed = seed_or_new(arguments.seed);
    let (at, of) = shard(&arguments.shard)?;
    let named = |name: &String| TestFileSystem::by_name(name).with_context(|| format!("{name} is not known"));
    let systems = arguments.fs.iter().map(named).collect::<Result<Vec<_>>>()?;
    let (mut ran, mut failed, mut late, mut faults, mut wanted) = (0u64, 0u64, 0u64, 0u64, 0u64);
    for number in (0..arguments.rounds).filter(|number| number % of == at) {
        for system in &systems {
            wanted += 1;
            if let Some(reason) = missing(*system) {
                println!("NOT RUN: {}: {reason}", system.name());
                continue;
            }
            let round_seed = seed.wrapping_add(number);
            let mut rng = SeededRng::new(round_seed);
            let least = if arguments.redundancy == "mirror" { 2 } else { 3 };
            let donors = least + rng.below(2) as u32;
            let mut order = DonorFault::ALL;
            order.rotate_left(rng.below(3) as usize);
            let began = Instant::now();
            let done = round("ram-donors", *system, &arguments.redundancy, donors, &order, round_seed);
            ran += 1;
            let (name, took) = (system.name(), began.elapsed().as_secs_f64());
            match done {
                Ok(done) => {
                    faults += u64::from(done.faults);
                    late += u64::from(done.account.gap > GAP_MAX);
                    let (operations, gap) = (done.account.operations, done.account.gap);
                    println!(
                        "ok {name}, {donors} donors, {order:?}: {operations} operations, longest gap {gap:?}, \
                         {took:.1} s, seed {round_seed}"
                    );
                }
                Err(error) => {
                    failed += 1;
                    println!("FAILED {name}, {donors} donors, {order:?}, seed {round_seed}: {error:#}");
                }
            }
        }
    }
    println!("ram-donors: {ran} of {wanted} rounds, {faults} faults, {failed} failed, {late} gaps over {GAP_MAX:?}");
    if ran == 0 && wanted > 0 {
        return Ok(NotRunPolicy::IsAllowed.code());
    }
    Ok(ExitCode::from(u8::from(failed > 0 || ran < wanted || ran == 0)))
}
