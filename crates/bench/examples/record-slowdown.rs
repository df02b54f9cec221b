//! Measures how much slower programs run while they are recorded, in pairs of runs with and without recording.
//!
//! `cargo run --release -p nectary-bench --example record-slowdown [FOLDER] [ROUNDS]`. FOLDER (default: the temporary
//! directory) should be on the disk to measure. If the example runs as root, it drops the page cache before each run,
//! and the rows say `cold`; otherwise they say `warm`, and only `dd` with O_DIRECT reads the disk. The last rows are
//! the recorder's worst case: programs that only make calls on cached files. `least` is the ratio of the shortest runs,
//! which are least disturbed by other load on the machine; `median` is the median of the pairs' ratios.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use nectary_trace::record::{RecordingOptions, record};

const FILE_BYTES: usize = 64 << 20;
const TREE_FILES: usize = 3000;

/// A program to measure.
struct MeasuredProgram {
    name: &'static str,
    words: Vec<String>,
    is_cold: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let rounds: usize = arguments.next().map_or(Ok(9), |rounds| rounds.parse())?;
    let folder = parent.join("record-slowdown");
    fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let result = measure(&folder, rounds.max(1));
    fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &Path, rounds: usize) -> Result<(), Box<dyn Error>> {
    eprintln!("making files in {}", folder.display());
    make_files(folder)?;
    let can_drop = drop_caches().is_ok();
    if !can_drop {
        println!("not root: the page cache is not dropped");
    }
    println!("shortest runs in ms, ratios of recorded to alone");
    println!("| program | cache | alone | recorded | least | median | references |\n|---|---|---|---|---|---|---|");
    for workload in workloads(folder) {
        let is_cold = workload.is_cold && can_drop;
        let (mut alone, mut recorded, mut ratios, mut references) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for round in 0..rounds {
            let mut times = [0.0; 2];
            // The run with and the run without recording each go first in half of the rounds.
            for turn in 0..2 {
                let is_recorded = (round + turn) % 2 == 1;
                if is_cold {
                    drop_caches()?;
                }
                let begun = Instant::now();
                if is_recorded {
                    references = recording(folder, &workload.words)?;
                } else {
                    command(folder, &workload.words)?.status()?;
                }
                times[usize::from(is_recorded)] = begun.elapsed().as_secs_f64() * 1000.0;
            }
            alone.push(times[0]);
            recorded.push(times[1]);
            ratios.push(times[1] / times[0]);
        }
        let cache = if is_cold { "cold" } else { "warm" };
        let (alone, recorded) = (least(&alone), least(&recorded));
        let (name, ratio, median) = (workload.name, recorded / alone, median(&mut ratios));
        println!("| {name} | {cache} | {alone:.0} | {recorded:.0} | {ratio:.2} | {median:.2} | {references} |");
    }
    Ok(())
}

fn workloads(folder: &Path) -> Vec<MeasuredProgram> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut list = Vec::new();
    let mut add = |name, words: Vec<String>, is_cold| list.push(MeasuredProgram { name, words, is_cold });
    add("dd bs=8k iflag=direct", words("dd if=large of=/dev/null bs=8k iflag=direct status=none"), false);
    add("dd bs=8k", words("dd if=large of=/dev/null bs=8k status=none"), true);
    add("cat", words("cat large"), true);
    add("grep -r in 3000 files", words("grep -r zebra tree"), true);
    add("sort", words("sort -S 16M -T . -o sorted text"), true);
    if folder.join("data.sqlite").exists() {
        let scan = ["sqlite3", "data.sqlite", "select sum(length(b)) from t"].map(str::to_owned).to_vec();
        add("sqlite3 scan", scan, true);
        let query = "select count(*) from t x join t y on y.a = x.c";
        add("sqlite3 join by index", ["sqlite3", "data.sqlite", query].map(str::to_owned).to_vec(), true);
    }
    add("grep -r in 3000 files", words("grep -r zebra tree"), false);
    add("dd bs=8k", words("dd if=large of=/dev/null bs=8k status=none"), false);
    add("dd bs=512 (worst case)", words("dd if=large of=/dev/null bs=512 count=50000 status=none"), false);
    list
}

/// A command whose output goes to a file that nobody reads.
fn command(folder: &Path, words: &[String]) -> Result<Command, Box<dyn Error>> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(folder).stdin(Stdio::null());
    command.stdout(File::create(folder.join("out"))?);
    Ok(command)
}

fn recording(folder: &Path, words: &[String]) -> Result<u64, Box<dyn Error>> {
    let mut options = RecordingOptions::new(folder.join("slowdown.trace.gz"));
    options.is_overwriting = true;
    Ok(record(command(folder, words)?, &options, &mut |_| {})?.totals.references)
}

fn make_files(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let line = |random: &mut dyn FnMut() -> u64| format!("{:016x} {:016x} {:016x}\n", random(), random(), random());
    let mut large = Vec::with_capacity(FILE_BYTES);
    while large.len() < FILE_BYTES {
        large.extend_from_slice(line(&mut random).as_bytes());
    }
    write(&folder.join("large"), &large[..FILE_BYTES])?;
    write(&folder.join("text"), &large[..FILE_BYTES / 4])?;
    for index in 0..TREE_FILES {
        let below = folder.join(format!("tree/{:02}", index % 100));
        fs::create_dir_all(&below)?;
        let start = random() as usize % (FILE_BYTES / 2);
        write(&below.join(format!("{index}.txt")), &large[start..start + 2000 + random() as usize % 30_000])?;
    }
    let sql = "create table t (a integer primary key, c integer, b text);\n\
               with recursive n(i) as (select 1 union all select i + 1 from n where i < 40000)\n\
               insert into t select i, (i * 7919) % 40000 + 1, hex(randomblob(300)) from n;\n";
    let made = Command::new("sqlite3").arg("data.sqlite").arg(sql).current_dir(folder).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("NOT RUN: sqlite3 is not installed");
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn drop_caches() -> std::io::Result<()> {
    Command::new("sync").status()?;
    fs::write("/proc/sys/vm/drop_caches", "3")
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
