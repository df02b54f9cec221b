//! Runs fsx on one mount of a volume, and compares its file with the same file on another mount, during pauses and at
//! the end.
//!
//! Owns: the pauses, and the comparison of the file's bytes on both mounts. Promises: the file is compared only while
//! fsx is paused or has ended. Leaves to fsx: the expected bytes; fsx compares each of its reads and maps with them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::VolumeRig;
use crate::cache_tree::exerciser::processes;
use crate::cache_tree::tool;
use crate::report::not_run;
use crate::rng::SeededRng;

/// The tool's name.
const TOOL: &str = "fsx";
/// The longest time between two comparisons with the other mount. *Units*: milliseconds.
const BETWEEN_MS_MAX: u64 = 400;
/// The time limit of a run, and of the wait until fsx has paused.
const LIMIT: Duration = Duration::from_secs(1800);

/// The weights of the operations, which cross the borders of blocks and pages.
const OPERATIONS: &str = "\
flen = 262144
[opsize]
min = 1
max = 16384
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 3.0
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 1.0
punch_hole = 2.0
copy_file_range = 3.0
";

/// A running fsx, which is killed when this is dropped.
struct RunningFsx(Child);

impl Drop for RunningFsx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RunningFsx {
    fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is not reaped yet, so its id is not reused.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    /// Pauses fsx between two of its system calls; returns false if fsx has ended.
    fn pause(&mut self) -> Result<bool> {
        self.signal(libc::SIGSTOP);
        let began = Instant::now();
        loop {
            if self.0.try_wait()?.is_some() {
                return Ok(false);
            }
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
            if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                return Ok(true);
            }
            ensure!(began.elapsed() < LIMIT, "fsx does not stop: {stat}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs `operations` operations of fsx on the first mount; returns the number of comparisons with the second mount.
/// With `planted`, the file is overwritten on the second mount meanwhile, and fsx must then fail. `None` if the tool is
/// missing.
pub fn exercise(
    volume: &VolumeRig,
    mounts: [&Path; 2],
    operations: u64,
    seed: u64,
    planted: bool,
) -> Result<Option<u64>> {
    let Some(tool) = tool(TOOL) else {
        not_run(format!("{TOOL} is not installed: run `ci/setup test`"));
        return Ok(None);
    };
    let mut looks = 0;
    for (operations, seed) in processes(operations, seed) {
        looks += run(&tool, volume, mounts, operations, seed, planted)?;
    }
    Ok(Some(looks))
}

/// Runs one process of fsx; returns the number of comparisons.
fn run(tool: &Path, volume: &VolumeRig, mounts: [&Path; 2], operations: u64, seed: u64, planted: bool) -> Result<u64> {
    let (settings, log) = (volume.scratch.join("fsx.toml"), volume.scratch.join("fsx.log"));
    fs::write(&settings, OPERATIONS)?;
    let [here, there] = mounts.map(|mount| mount.join("exercised"));
    let mut command = Command::new(tool);
    command.arg("-f").arg(&settings).args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-P"]);
    command.arg(volume.scratch.path()).arg(&here).stdin(Stdio::null());
    let out = fs::File::create(&log)?;
    command.stdout(out.try_clone()?).stderr(out);
    let mut running = RunningFsx(command.spawn()?);
    let (mut rng, mut looks) = (SeededRng::new(seed), 0);
    let began = Instant::now();
    let status = loop {
        std::thread::sleep(Duration::from_millis(rng.below(BETWEEN_MS_MAX)));
        ensure!(began.elapsed() < LIMIT, "fsx does not end within {LIMIT:?}");
        if running.pause()? && fs::metadata(&there).is_ok() {
            looks += compare(&here, &there)?;
            if planted {
                // Write bytes that differ from those of fsx, even if the file was empty.
                fs::write(&there, [255; 4096])?;
            }
        }
        running.signal(libc::SIGCONT);
        if let Some(status) = running.0.try_wait()? {
            break status;
        }
    };
    if !status.success() {
        let text = fs::read(&log)?;
        bail!("fsx ended with {status}: {}", String::from_utf8_lossy(&text[text.len().saturating_sub(3000)..]));
    }
    Ok(looks + compare(&here, &there)?)
}

/// Compares the file on both mounts; returns 1, the number of comparisons.
fn compare(here: &Path, there: &Path) -> Result<u64> {
    let (second, first) = (fs::read(there)?, fs::read(here)?);
    let size = fs::metadata(there)?.len();
    ensure!(
        first == second && size == first.len() as u64,
        "the mounts differ: {} bytes on one, {} on the other, which says {size}; the first difference is at {:?}",
        first.len(),
        second.len(),
        first.iter().zip(&second).position(|(first, second)| first != second)
    );
    Ok(1)
}
