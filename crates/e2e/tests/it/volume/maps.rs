//! Programs with memory maps and locks on a shared volume: no call hangs.

use std::path::Path;

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::maps::MapProgram;

/// Runs a program on the first of two mounts, and checks that no session was ended and the volume is whole.
fn run(program: impl FnOnce(std::path::PathBuf, std::path::PathBuf) -> MapProgram) {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let run = || -> anyhow::Result<()> {
        let mut volume = VolumeRig::new("512M")?;
        let (directory, other) = (volume.mount()?, volume.mount()?);
        let line = program(directory, other).run(&mut volume, Path::new(env!("CARGO_BIN_EXE_e2e-campaigns")))?;
        println!("{line}");
        let logs = [volume.log("m0"), volume.log("m1")];
        assert!(logs.iter().all(|log| !log.contains("is ended")), "{logs:?}");
        let check = volume.finish()?;
        assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Programs write to mapped holes while the files are removed.
#[test]
fn mapped_holes_survive_file_removal() {
    run(|directory, _| MapProgram::Holes { directory, rounds: 24 });
}

/// The kernel writes no page back while it truncates, and the other mount waits for these pages.
#[test]
fn truncating_a_mapped_file_ends() {
    run(|directory, other| MapProgram::Truncations { directory, other, seconds: 3 });
}

/// The other mount gets the file although its pages are read again as soon as they are dropped.
#[test]
fn map_stores_admit_other_mount() {
    run(|directory, other| MapProgram::Stores { directory, other, seconds: 3 });
}

#[test]
fn lock_waiters_leave_mount_usable() {
    run(|directory, _| MapProgram::Locks { directory, waiters: 1100 });
}
