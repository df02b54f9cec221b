//! Runs a stock kernel's NBD client on our server, in an emulated machine: `e2e-campaigns nbd-kernel --sessions 4
//! --files 12 --seed 7`.
//!
//! Prints the numbers of written and of compared files. The exit code is 0 only if every file of earlier sessions was
//! the same after a new connection and the file system is sound; 77 if a program or a kernel is missing.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use nectary_e2e::emulated::kernel_client::{MODULES, PROGRAMS, check};
use nectary_e2e::emulated::{InstalledKernel, missing};
use nectary_e2e::report::seed_or_new;

use crate::rounds::NotRunPolicy;

/// Mounts an export of this host in an emulated machine.
#[derive(Args)]
pub struct NbdKernelArguments {
    /// How often the machine connects.
    #[arg(long, default_value_t = 4)]
    sessions: u64,
    /// Files that it writes in each session.
    #[arg(long, default_value_t = 12)]
    files: u64,
    /// The SPEC of the device; {file} stands for a new file.
    #[arg(long, default_value = "{file}")]
    device: String,
    /// The seed of the files' lengths; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the campaign.
pub fn campaign(arguments: &NbdKernelArguments) -> Result<ExitCode> {
    let NbdKernelArguments { sessions, files, ref device, seed } = *arguments;
    let (seed, began) = (seed_or_new(seed), Instant::now());
    let missing = missing(&PROGRAMS);
    if !missing.is_empty() {
        let reason = format!("there is no {} (`ci/setup soak` installs it)", missing.join(", no "));
        return Ok(NotRunPolicy::IsAllowed.exit("nbd-kernel", reason));
    }
    let Some(kernel) = InstalledKernel::find(&MODULES) else {
        let reason = "no kernel under /boot has the modules nbd, ext4 and virtio (`ci/setup soak` installs one)";
        return Ok(NotRunPolicy::IsAllowed.exit("nbd-kernel", reason));
    };
    println!("nbd-kernel: {}, seed {seed}", kernel.image.display());
    let counts = check(&kernel, device, sessions, files, seed)?;
    let [reads, writes, flushes, trims, zeroes] = counts.requests;
    println!(
        "nbd-kernel: {} sessions, {} files of {} bytes written, {} compared after a new connection; requests: \
         {reads} reads, {writes} writes, {flushes} flushes, {trims} trims, {zeroes} zeroes; {:.0} s",
        counts.sessions,
        counts.files,
        counts.bytes,
        counts.compared,
        began.elapsed().as_secs_f64()
    );
    let wanted = (sessions, sessions * files, files * sessions * sessions.saturating_sub(1) / 2);
    let is_whole = (counts.sessions, counts.files, counts.compared) == wanted;
    if !is_whole || flushes == 0 || trims == 0 {
        println!("nbd-kernel: FAILED: {wanted:?} sessions, files and comparisons were wanted, and flushes and trims");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
