//! Runs fsx, which reads, writes, maps, truncates, punches and reopens one file at random, and compares each read.

use std::fs;
use std::process::Command;

use anyhow::Result;

use crate::cache_tree::{run, tool};
use crate::live::LiveCache;
use crate::report::not_run;

/// The tool's name.
const TOOL: &str = "fsx";

/// The weights of the operations. The file is larger than a read-ahead and smaller than the cache, and operations cross
/// the borders of blocks and pages.
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
punch_hole = 1.0
";

/// The maximum number of operations of one process. fsx 0.3.2 keeps every map that it reads: the kernel allows a process
/// 65,530 maps, and each truncation visits all of the file's maps.
const PROCESS_OPERATIONS_MAX: u64 = 20_000;

/// Divides operations into those of processes; returns the number of operations and the seed of each.
pub fn processes(operations: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    let numbers = 0..operations.div_ceil(PROCESS_OPERATIONS_MAX);
    numbers.map(move |number| {
        let operations = (operations - number * PROCESS_OPERATIONS_MAX).min(PROCESS_OPERATIONS_MAX);
        (operations, seed.wrapping_add(number))
    })
}

/// Runs `operations` operations on a file of the mount. `None` if the tool is missing.
pub fn exercise(live: &LiveCache, operations: u64, seed: u64) -> Result<Option<()>> {
    let Some(tool) = tool(TOOL) else {
        not_run(format!("{TOOL} is not installed: run `ci/setup test`"));
        return Ok(None);
    };
    let settings = live.scratch.join("fsx.toml");
    fs::write(&settings, OPERATIONS)?;
    for (operations, seed) in processes(operations, seed) {
        let mut command = Command::new(&tool);
        command.arg("-f").arg(&settings).args(["-N", &operations.to_string(), "-S", &seed.to_string()]);
        // With `-P`, fsx writes its own files (log, expected contents) outside of the mount.
        command.arg("-P").arg(live.scratch.path()).arg(live.shown("exercised"));
        run(&mut command)?;
    }
    Ok(Some(()))
}
