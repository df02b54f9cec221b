//! Many small files in a cached directory, whose process may open few.
//!
//! Owns: the files, and the programs that visit all of them: `ls`, `grep`, `find`, `mv`, `rm`, and the commands
//! `status` and `umount`. Each must end well and find exactly what there is. Leaves to others: the mount (`live`).

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::guard::raise_files;
use crate::live::{LIMIT, LiveCache};
use crate::unmounting::{UnmountAttempt, when_free};

/// The hard limit of open files of the mount's process.
pub const DESCRIPTORS: u64 = 1024;
/// The memory that the mount may use for each node that the kernel knows. *Units*: bytes.
pub const NODE_BYTES_MAX: u64 = 400;

/// The files of one folder.
const FOLDER_FILES: u64 = 1000;
/// One file in so many contains the word that `grep` looks for.
const NEEDLES: u64 = 100;
/// The descriptors that must stay free for the control socket.
const FREE_MIN: usize = 64;

fn path_of(root: &Path, file: u64) -> PathBuf {
    root.join(format!("d{}/f{file}", file / FOLDER_FILES))
}

fn contents_of(file: u64) -> String {
    let word = if file.is_multiple_of(NEEDLES) { "needle" } else { "straw" };
    format!("{word} {file}\n")
}

fn fill(root: &Path, files: u64) -> Result<()> {
    for file in 0..files {
        let path = path_of(root, file);
        if file.is_multiple_of(FOLDER_FILES) {
            fs::create_dir(path.parent().context("it is in a folder")?)?;
        }
        fs::write(path, contents_of(file))?;
    }
    Ok(())
}

/// Runs a program in the mounted directory; it must say nothing of errors. Returns its output.
fn run(shown: &Path, program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).current_dir(shown).stdin(Stdio::null()).env("LC_ALL", "C");
    let output = command.output().with_context(|| format!("{program} cannot start"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let first = errors.lines().next().unwrap_or_default();
    let what = format!("{program} {}", arguments.join(" "));
    ensure!(output.status.success() && errors.is_empty(), "{what}: {}: {first}", output.status);
    println!("  {what}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(output.stdout)
}

fn lines(output: &[u8]) -> usize {
    output.iter().filter(|&&byte| byte == b'\n').count()
}

/// Mounts a directory with this many files under the limit, with these options of `cache mount`, visits all its files
/// with programs, and removes them. `many` files are opened at once. With `in_memory` the files are in memory.
pub fn visit(files: u64, many: u64, in_memory: bool, options: &[&str]) -> Result<()> {
    let mut filled = Ok(());
    let live = LiveCache::mounted_under(DESCRIPTORS, in_memory, options, |source| filled = fill(source, files))?;
    filled?;
    let shown = live.scratch.join("shown");
    let listed = run(&shown, "ls", &["-lR"])?;
    let listed = listed.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"-rw")).count();
    ensure!(listed as u64 == files, "ls shows {listed} files");
    is_healthy(&live)?;
    let found = run(&shown, "grep", &["-rh", "needle", "."])?;
    let mut found: Vec<&str> = std::str::from_utf8(&found)?.lines().collect();
    found.sort_unstable();
    let mut expected: Vec<String> =
        (0..files).step_by(NEEDLES as usize).map(|file| contents_of(file).trim().to_owned()).collect();
    expected.sort_unstable();
    ensure!(found == expected, "grep finds {} lines", found.len());
    is_healthy(&live)?;
    let sized = run(&shown, "find", &[".", "-type", "f", "-newermt", "2000-01-01", "-size", "-9"])?;
    ensure!(lines(&sized) as u64 == files, "find finds {} files", lines(&sized));
    open_many(&live, many.min(files))?;
    move_folders(&live)?;
    run(&shown, "find", &[".", "-mindepth", "1", "-maxdepth", "1", "-exec", "rm", "-rf", "{}", "+"])?;
    let left = fs::read_dir(live.scratch.join("source"))?.count();
    ensure!(left == 0, "rm has left {left} folders in the source");
    is_healthy(&live)?;
    ends(live)
}

/// Checks the status of the mount, its descriptors, and its memory of nodes.
fn is_healthy(live: &LiveCache) -> Result<()> {
    let status = live.run(&["status", "--json"]);
    ensure!(status.code == 0 && status.text.contains(&live.name), "status: {status:?}");
    let parts: serde_json::Value = serde_json::from_str(&status.text)?;
    let detail = &parts[0]["status"]["detail"];
    let number = |name: &str| detail[name].as_u64().with_context(|| format!("status has no {name}: {detail}"));
    let open = fs::read_dir(format!("/proc/{}/fd", live.process.id()))?.count();
    ensure!(open + FREE_MIN <= DESCRIPTORS as usize, "{open} descriptors are open: {detail}");
    ensure!(number("descriptors")? <= number("descriptors_max")?, "{detail}");
    let (nodes, bytes) = (number("nodes")?, number("node_bytes")?);
    let passed = number("passed_opens")?;
    println!("  {nodes} nodes, {} bytes each; {open} descriptors; {passed} opens passed through", bytes / nodes.max(1));
    // The tables of few nodes have room for more, because more were known before.
    ensure!(nodes < 10_000 || bytes <= nodes * NODE_BYTES_MAX, "{nodes} nodes use {bytes} bytes");
    Ok(())
}

/// Opens many files at once, deletes some of them below and through the mount, and reads and writes all of them.
fn open_many(live: &LiveCache, many: u64) -> Result<()> {
    let shown = live.scratch.join("shown");
    raise_files();
    let open = |file| File::options().read(true).write(true).open(path_of(&shown, file));
    let mut opened = (0..many).map(open).collect::<std::io::Result<Vec<File>>>()?;
    for file in (0..many).step_by(50) {
        fs::remove_file(path_of(&shown, file))?;
    }
    for (file, opened) in opened.iter_mut().enumerate() {
        let file = file as u64;
        let mut text = String::new();
        opened.read_to_string(&mut text).with_context(|| format!("open file {file}"))?;
        ensure!(text == contents_of(file), "open file {file} has {text:?}");
        opened.write_all(b"more").with_context(|| format!("open file {file}"))?;
    }
    for (file, opened) in opened.iter_mut().enumerate() {
        let mut text = String::new();
        opened.seek(SeekFrom::Start(0))?;
        opened.read_to_string(&mut text).with_context(|| format!("open file {file} again"))?;
        ensure!(text == contents_of(file as u64) + "more", "open file {file} has {text:?}");
        ensure!(opened.metadata()?.len() == text.len() as u64, "open file {file} has another size");
    }
    println!("  {many} files are open at once, one in 50 deleted");
    Ok(())
}

/// Renames folders above known and open files, also below the mount.
fn move_folders(live: &LiveCache) -> Result<()> {
    let (shown, source) = (live.scratch.join("shown"), live.scratch.join("source"));
    let file = 7;
    let opened = File::open(path_of(&shown, file))?;
    let known = fs::metadata(path_of(&shown, 9))?;
    fs::rename(shown.join("d0"), shown.join("moved"))?;
    fs::create_dir(shown.join("d0"))?;
    fs::rename(shown.join("moved"), shown.join("d0/deep"))?;
    // So many others are looked up that all closed descriptors are reopened.
    run(&shown, "ls", &["-lR"])?;
    let mut text = [0; 5];
    opened.read_exact_at(&mut text, 0).context("a file below a renamed folder")?;
    ensure!(&text == b"straw", "{text:?}");
    let again = fs::metadata(shown.join("d0/deep/f9")).context("a file below a renamed folder")?;
    ensure!(again.len() >= known.len(), "another file");
    // What others rename is found once it is looked up again.
    fs::rename(source.join("d0"), source.join("elsewhere"))?;
    let began = Instant::now();
    while fs::read(shown.join("elsewhere/deep/f9")).ok().is_none_or(|text| !text.starts_with(b"straw 9\n")) {
        ensure!(began.elapsed() < LIMIT, "what others renamed is not found");
    }
    Ok(())
}

fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sock")
}

/// Unmounts the directory; its process must end well.
fn ends(mut live: LiveCache) -> Result<()> {
    when_free(Path::new(&live.name), LIMIT, || {
        let ran = live.run(&["cache", "umount", &live.name]);
        UnmountAttempt::of_command((Some(ran.code), ran.text + &ran.errors))
    })?;
    let status = live.process.wait(LIMIT)?;
    ensure!(status.success(), "{status}\n{}", live.process.log_tail());
    let has_parts = fs::read_dir(live.scratch.join("run"))?.flatten().any(|entry| is_socket(&entry.path()));
    ensure!(!has_parts, "its socket is left");
    Ok(())
}
