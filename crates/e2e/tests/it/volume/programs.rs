//! Programs on three mounts of a volume whose server is killed: a sample of `e2e-campaigns volume-programs`.
//!
//! `NECTARY_E2E_SEED` repeats the rounds.

use std::path::Path;

use nectary_e2e::live::missing;
use nectary_e2e::report::{not_run, seed_or_new};
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::programs::{PlannedRound, ProgramKit, ProgramScale, VolumeProgram, round};

/// Each program finds on every mount what others were told is stored, and the volume's check finds nothing.
#[test]
fn programs_of_three_mounts_agree() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume programs: {reason}"));
    }
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("seed {seed}");
    let run = || -> anyhow::Result<()> {
        let kit = ProgramKit::new(ProgramScale::Sample, Path::new(env!("CARGO_BIN_EXE_e2e-campaigns")));
        let mut volume = VolumeRig::new("1G")?;
        let mounts = [volume.mount()?, volume.mount()?, volume.mount()?];
        // Longer runs have the other programs, which take longer.
        for program in [VolumeProgram::SharedCompile, VolumeProgram::RemoveTree, VolumeProgram::Maildir] {
            if let Some(reason) = program.missing() {
                not_run(format!("volume programs: {reason}"));
                continue;
            }
            let done = round(&mut volume, &mounts, &PlannedRound { program, seed }, &kit)?;
            println!("{program:?}: {done:?}");
        }
        volume.finish_empty()
    };
    run().unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
}
