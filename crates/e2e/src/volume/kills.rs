//! Kills a mount of a volume while it writes, mounts again, and rewrites a file: the killed mount keeps nothing.
//!
//! Owns: the rounds, a loop device of the volume's file, and the questions to the server about its sessions. Promises:
//! a loop device is detached when it is dropped.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{LIMIT, VolumeRig};
use crate::rng::SeededRng;

/// The size of the volume's disk in these tests.
pub const DISK: &str = "512M";
/// The lease of the volume's server: the disk is busy with whole rewrites, and a server does not outlive a disk that
/// does not answer for this long.
pub const SERVER_LEASE: &str = "20s";
/// The size of the file that is rewritten: a tenth of the disk.
const FILE_MIB: u64 = 51;
/// The lease of a session, which nobody has to wait for: a call that takes longer has waited for a dead mount.
const LEASE: Duration = Duration::from_secs(5);

/// What happened in the rounds.
#[derive(Debug, Clone, Copy, Default)]
pub struct KillTotals {
    /// Mounts that were killed while they wrote.
    pub kills: u64,
    /// Times that the whole file was written and synced.
    pub rewrites: u64,
    /// The longest time from a mount until the file was rewritten.
    pub longest: Duration,
}

/// A loop device over a file.
pub struct FileLoopDevice(pub String);

impl FileLoopDevice {
    /// Attaches a free loop device to a file.
    pub fn of(file: &str) -> Result<FileLoopDevice> {
        let output = Command::new("losetup").args(["--find", "--show", "--direct-io=on", file]).output()?;
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(output.status.success() && !device.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(FileLoopDevice(device))
    }
}

impl Drop for FileLoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Writes and syncs the whole file.
fn rewrite(path: &Path, fill: u8) -> std::io::Result<()> {
    let (mut file, piece) = (File::create(path)?, vec![fill; 1 << 20]);
    for _ in 0..FILE_MIB {
        file.write_all(&piece)?;
    }
    file.sync_all()
}

/// Kills a mount and mounts again, `rounds` times: each new mount rewrites the file, and is killed while it rewrites it
/// once more. `beside` is a mount that lives, and rewrites the file after each kill, too.
pub fn rounds(volume: &mut VolumeRig, rounds: u64, seed: u64, beside: Option<&Path>) -> Result<KillTotals> {
    let (mut done, mut rng) = (KillTotals::default(), SeededRng::new(seed));
    for round in 0..rounds {
        let directory = volume.mount()?;
        let (index, path) = (volume.mounts.len() - 1, directory.join("file"));
        let began = Instant::now();
        rewrite(&path, round as u8).with_context(|| format!("round {round}: the new mount cannot write"))?;
        done.longest = done.longest.max(began.elapsed());
        done.rewrites += 1;
        let pause = Duration::from_millis(rng.below(200));
        let written = std::thread::scope(|scope| {
            // It ends when the mount is killed.
            let writer = scope.spawn(|| (0..).map(|fill| rewrite(&path, fill as u8)).find_map(Result::err));
            std::thread::sleep(pause);
            volume.kill_mount(index);
            writer.join().expect("the writer does not panic")
        });
        match written {
            Some(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                bail!("round {round}: {error} before the kill")
            }
            _ => done.kills += 1,
        }
        if let Some(beside) = beside {
            let began = Instant::now();
            rewrite(&beside.join("file"), round as u8)
                .with_context(|| format!("round {round}: the mount beside it cannot write"))?;
            done.longest = done.longest.max(began.elapsed());
            done.rewrites += 1;
        }
    }
    ensure!(done.longest < LEASE, "a rewrite took {:?}: it waited for a killed mount", done.longest);
    Ok(done)
}

/// Returns the sessions of the volume and their states, as the disk has them.
pub fn sessions(volume: &VolumeRig) -> Result<Vec<(u64, String)>> {
    let info: Value = serde_json::from_str(&volume.run(&["volume", "info", &volume.disk(), "--json"])?)?;
    let all = info["sessions"].as_array().context("they are a list")?;
    let read = |session: &Value| {
        let state = session["state"].as_str().context("a state")?;
        Ok((session["session"].as_u64().context("a number")?, state.to_owned()))
    };
    all.iter().map(read).collect()
}

/// Waits until the sessions are as wanted.
pub fn until(volume: &VolumeRig, what: &str, is_so: impl Fn(&[(u64, String)]) -> bool) -> Result<()> {
    let began = Instant::now();
    loop {
        let found = sessions(volume)?;
        if is_so(&found) {
            return Ok(());
        }
        ensure!(began.elapsed() < LIMIT, "{what}: {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
