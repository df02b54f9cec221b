//! What a directory costs that is mounted through the cache, if all its files fit into memory, and what it saves, if they
//! do not.
//!
//! Owns: the files, the programs that read them, and the tables. The programs take turns on the source and on the mounts,
//! so that a disturbance affects all of them; the first turn reads the files into memory and does not count.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use nectary_attach::{MountedTree, TreeOptions};
use nectary_bench::group::MemoryGroup;
use nectary_bench::machine;
use nectary_bench::random::SeededRandom;
use nectary_buffer::CacheOptions;

use super::page;

const HELP: &str = "\
Usage: research mounted-files [--folder DIR] [--turns N] [--write FILE]

  --folder DIR  where 140 MB of files are made, on a disk [default: /var/tmp]
  --turns N     how often each program runs [default: 15]
  --write FILE  the page into which the tables go

Exit codes: 0 the cache saves reads and passthrough saves time, 1 one does not, or nothing could be measured, 2 the
command line is wrong, 77 this machine cannot mount";

/// The exit code if this machine cannot mount.
const NOT_RUN: u8 = 77;
/// The small files: directories, files in each, and lines in each file.
const SMALL: (u64, u64, u64) = (40, 100, 250);
/// The size of the large file. *Units*: bytes.
const LARGE_BYTES: usize = 39_000_000;
/// The files that are read in a loop: their number, the size of each, and the number of passes. *Units*: bytes.
const LOOP: (u64, usize, u64) = (60, 1_600 << 10, 6);
/// The memory of a cache that holds all files, and of one that does not hold the loop. *Units*: bytes.
const MEMORY: (u64, u64) = (256 << 20, 64 << 20);
const MIB: f64 = 1_048_576.0;

/// The places where programs read, after the source: the name, the size of files that are passed through, and whether
/// nobody else changes the source.
const MOUNTS: [(&str, u64, bool); 4] = [
    ("mount", 0, false),
    ("`--exclusive`", 0, true),
    ("`--passthrough 64K`", 64 << 10, false),
    ("`--passthrough 1G`", 1 << 30, false),
];
/// The places in a row of the table whose times are compared: the mount, and the one that passes small files through.
const COMPARED: [usize; 2] = [1, 3];
/// The programs: the name, and the script in the directory.
const PROGRAMS: [(&str, &str); 3] = [
    ("`grep -r` in 4,000 files of 10 KB", "grep -r nothing small; true"),
    ("`cat` of a file of 39 MB", "cat large"),
    ("`dd bs=1M` of the same file", "dd if=large of=/dev/null bs=1M status=none"),
];

type Failure = String;

fn failed(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| format!("{what}: {error}")
}

struct MountedFilesOptions {
    folder: PathBuf,
    turns: usize,
    write: Option<PathBuf>,
}

/// Runs the subcommand with the arguments after its name.
pub fn main(words: &[String]) -> ExitCode {
    let options = match options(words) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => return usage(&error),
    };
    if let Err(error) = machine::check() {
        println!("NOT RUN: {error}");
        return NOT_RUN.into();
    }
    let scratch = options.folder.join(format!("nectary-mounted-files-{}", std::process::id()));
    let measured = measure(&scratch, &options);
    _ = fs::remove_dir_all(&scratch);
    match measured {
        Ok(short) if short.is_empty() => ExitCode::SUCCESS,
        Ok(short) => {
            short.iter().for_each(|line| println!("SHORT {line}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("mounted-files: error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(error: &str) -> ExitCode {
    eprintln!("mounted-files: error: {error}");
    ExitCode::from(2)
}

fn options(words: &[String]) -> Result<Option<MountedFilesOptions>, Failure> {
    let mut options = MountedFilesOptions { folder: "/var/tmp".into(), turns: 15, write: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value\n\n{HELP}"));
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--folder" => options.folder = value()?.into(),
            "--turns" => options.turns = value()?.parse().map_err(|_| "--turns needs a number".to_owned())?,
            "--write" => options.write = Some(value()?.into()),
            _ => return Err(format!("{word} is not understood\n\n{HELP}")),
        }
    }
    if options.turns == 0 {
        return Err("--turns: 1 at least".to_owned());
    }
    Ok(Some(options))
}

/// Measures and prints both tables. *Returns* a line for each expectation that is not met.
fn measure(scratch: &Path, options: &MountedFilesOptions) -> Result<Vec<String>, Failure> {
    let source = scratch.join("source");
    fill(&source)?;
    let (times, mut short) = times(scratch, &source, options.turns)?;
    let (reads, more) = reads(scratch, &source)?;
    short.extend(more);
    let tables = format!("{times}\n{reads}");
    println!("{}\n\n{tables}", machine::describe());
    if let Some(page) = &options.write {
        page::write(page, "mounted-files", tables.trim_end())?;
    }
    Ok(short)
}

/// Makes the files.
fn fill(source: &Path) -> Result<(), Failure> {
    let mut random = SeededRandom::new(41);
    let (folders, files, lines) = SMALL;
    for folder in 0..folders {
        let folder = source.join(format!("small/d{folder}"));
        fs::create_dir_all(&folder).map_err(failed(folder.display()))?;
        for file in 0..files {
            let mut text = String::new();
            (0..lines).for_each(|line| _ = writeln!(text, "line {line} of file {file}: {:016x}", random.next_u64()));
            fs::write(folder.join(format!("f{file}")), text).map_err(failed(folder.display()))?;
        }
    }
    let mut bytes = |length: usize| -> Vec<u8> {
        let words = length.div_ceil(8);
        (0..words).flat_map(|_| random.next_u64().to_le_bytes()).take(length).collect()
    };
    fs::write(source.join("large"), bytes(LARGE_BYTES)).map_err(failed("large"))?;
    let folder = source.join("loop");
    fs::create_dir_all(&folder).map_err(failed(folder.display()))?;
    for file in 0..LOOP.0 {
        let mut opened = File::create(folder.join(format!("f{file:02}"))).map_err(failed("loop"))?;
        opened.write_all(&bytes(LOOP.1)).and_then(|()| opened.sync_all()).map_err(failed("loop"))?;
    }
    Ok(())
}

/// A mounted directory, which is unmounted when dropped.
struct MountedDirectory(MountedTree);

impl MountedDirectory {
    fn new(
        scratch: &Path,
        source: &Path,
        name: &str,
        change: impl FnOnce(&mut TreeOptions),
    ) -> Result<MountedDirectory, Failure> {
        let directory = scratch.join(name);
        fs::create_dir_all(&directory).map_err(failed(directory.display()))?;
        let mut options = TreeOptions {
            source: source.to_owned(),
            directory,
            cache: CacheOptions::default(),
            is_exclusive: false,
            uses_handles: true,
            passthrough_bytes: 0,
        };
        change(&mut options);
        MountedTree::start(options).map(MountedDirectory).map_err(|error| error.to_string())
    }
}

impl Drop for MountedDirectory {
    fn drop(&mut self) {
        if self.0.unmount(false).or_else(|_| self.0.unmount(true)).is_ok() {
            _ = self.0.finish();
        }
    }
}

/// Runs a script in a directory. *Returns* its time. *Units*: milliseconds.
fn run(directory: &Path, script: &str) -> Result<f64, Failure> {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    let status = command.status().map_err(failed(script))?;
    match status.success() {
        true => Ok(began.elapsed().as_secs_f64() * 1000.0),
        false => Err(format!("{script} in {}: {status}", directory.display())),
    }
}

/// The lower quartile, the median, and the upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values.get(values.len() * quarter / 4).copied().unwrap_or(f64::NAN))
}

/// Whether the kernel reads files of the last mount itself.
fn passes(mounts: &[MountedDirectory]) -> bool {
    mounts.last().is_some_and(|mount| mount.0.figures().passed_opens > 0)
}

/// The table of times where all fits.
fn times(scratch: &Path, source: &Path, turns: usize) -> Result<(String, Vec<String>), Failure> {
    let mut mounts = Vec::new();
    for (number, (_, passthrough_bytes, is_exclusive)) in MOUNTS.into_iter().enumerate() {
        mounts.push(MountedDirectory::new(scratch, source, &format!("shown{number}"), |options| {
            options.cache.memory_bytes = MEMORY.0;
            (options.passthrough_bytes, options.is_exclusive) = (passthrough_bytes, is_exclusive);
        })?);
    }
    let places: Vec<PathBuf> = std::iter::once(source.to_owned())
        .chain((0..MOUNTS.len()).map(|it| scratch.join(format!("shown{it}"))))
        .collect();
    let mut table = String::from("| ms: median (quartiles) | SOURCE |");
    MOUNTS.iter().for_each(|(name, ..)| _ = write!(table, " {name} |"));
    table = format!("{table}\n|---|---|{}\n", "---|".repeat(MOUNTS.len()));
    let mut short = Vec::new();
    for (name, script) in PROGRAMS {
        let mut found: Vec<Vec<f64>> = vec![Vec::new(); places.len()];
        for turn in 0..=turns {
            for (place, of) in places.iter().zip(&mut found) {
                let ms = run(place, script)?;
                if turn > 0 {
                    of.push(ms);
                }
            }
        }
        let each: Vec<[f64; 3]> = found.into_iter().map(quartiles).collect();
        _ = write!(table, "| {name} |");
        each.iter().for_each(|[low, middle, high]| _ = write!(table, " {middle:.0} ({low:.0} to {high:.0}) |"));
        table.push('\n');
        let [cached, passed] = COMPARED.map(|place| each[place][1]);
        if script.starts_with("grep") && passes(&mounts) && passed > cached {
            short.push("small files that the kernel reads itself take longer than those of the cache".to_owned());
        }
    }
    if !passes(&mounts) {
        table += "\nThis kernel, or this source, passes no file through.\n";
    }
    Ok((table, short))
}

/// The table of reads where not all fits.
fn reads(scratch: &Path, source: &Path) -> Result<(String, Vec<String>), Failure> {
    let (files, bytes, passes) = LOOP;
    let whole = (files * bytes as u64) as f64 / MIB;
    let script = "cat loop/*";
    let mut table = format!(
        "| {passes} passes over {whole:.0} MiB, with {} MiB | MiB read from SOURCE |\n|---|---|\n",
        MEMORY.1 >> 20
    );
    let mut found = Vec::new();
    for policy in ["adaptive", "lru"] {
        let mounted = MountedDirectory::new(scratch, source, policy, |options| {
            (options.cache.memory_bytes, options.cache.policy) = (MEMORY.1, policy.to_owned());
        })?;
        for _ in 0..passes {
            run(&scratch.join(policy), script)?;
        }
        let block_bytes = f64::from(mounted.0.options().cache.block_bytes);
        found.push((
            format!("mount, `{policy}`"),
            mounted.0.figures().cache.source_read_blocks as f64 * block_bytes / MIB,
        ));
    }
    for file in 0..files {
        forget(&source.join(format!("loop/f{file:02}")))?;
    }
    let group = MemoryGroup::new(&format!("nectary-bench-{}", std::process::id()), MEMORY.1);
    let group = group.map_err(|error| error.to_string())?;
    let script = format!("echo $$ > {}/cgroup.procs && exec {script}", group.path().display());
    let before = read_by_children();
    for _ in 0..passes {
        run(source, &script)?;
    }
    found.push(("page cache, in a memory group".to_owned(), (read_by_children() - before) as f64 / MIB));
    found.iter().for_each(|(name, mib)| _ = writeln!(table, "| {name} | {mib:.0} |"));
    let [(_, adaptive), (_, lru), (_, pages)] = &found[..] else { return Err("not all was measured".to_owned()) };
    let mut short = Vec::new();
    if adaptive >= lru || adaptive >= pages {
        short.push(format!("adaptive reads {adaptive:.0} MiB, LRU {lru:.0} and the page cache {pages:.0}"));
    }
    Ok((table, short))
}

/// Drops the pages of a file from the page cache.
fn forget(path: &Path) -> Result<(), Failure> {
    let file = File::open(path).map_err(failed(path.display()))?;
    // SAFETY: the call takes an open descriptor and numbers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        number => Err(format!("{}: {}", path.display(), std::io::Error::from_raw_os_error(number))),
    }
}

/// What ended children have read from disks. *Units*: bytes.
fn read_by_children() -> u64 {
    // SAFETY: the structure is plain numbers, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    // The kernel counts in units of 512 bytes.
    usage.ru_inblock as u64 * 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_in_order() {
        assert_eq!(quartiles(vec![9.0, 1.0, 5.0, 3.0, 7.0]), [3.0, 5.0, 7.0]);
        assert_eq!(quartiles(vec![2.0]), [2.0; 3]);
    }
}
