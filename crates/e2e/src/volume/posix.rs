//! Runs pjdfstest on a volume, on one mount and with calls that go to two mounts in turn, and compares each test with
//! its result on this machine's file system.
//!
//! Owns: the library that is preloaded so that every second call with a path goes to the other mount, and its counts.
//! Leaves to others: running the suite (`cache_tree`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::VolumeRig;
use crate::cache_tree::PjdfstestSuite;

/// The library's source.
const SOURCE: &str = include_str!("alternate.c");

/// Tests with different results, each with the reason.
const EXCEPTIONS: [(&str, &str); 2] = [
    (
        "link::link_count_max",
        "the C library tells the limit by the kind of file system, and knows none for FUSE: skipped",
    ),
    ("open::etxtbsy", "a kernel knows of the programs that run from its own mount; here the other one was opened"),
];

/// The comparison of a run with this machine's file system.
#[derive(Debug, Default)]
pub struct VolumePosixComparison {
    /// The number of tests that passed on both.
    pub passed: usize,
    /// The number of tests that were skipped on both, or failed on both.
    pub alike: usize,
    /// Tests with different results, and the reason if there is a known one.
    pub differing: Vec<(String, Option<&'static str>)>,
    /// The number of calls with a path of the volume, and the number of those that went to the second mount.
    pub calls: Option<(u64, u64)>,
}

/// Returns the name of the file system of a directory.
pub fn kind_of(folder: &Path) -> Result<String> {
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(folder).stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs the suite beside the volume, on the first mount, and on both mounts in turn. `None` if the tool is missing.
pub fn compare(volume: &VolumeRig, mounts: [&Path; 2]) -> Result<Option<[VolumePosixComparison; 2]>> {
    let Some(tests) = PjdfstestSuite::in_folder(volume.scratch.path())? else { return Ok(None) };
    let beside = volume.scratch.join("beside");
    fs::create_dir_all(&beside)?;
    fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let expected = tests.outcomes(&beside, &[])?;
    let single = compared(&expected, &tests.outcomes(mounts[0], &[])?, false)?;
    let (library, counts) = (volume.scratch.join("alternate.so"), volume.scratch.join("alternate.counts"));
    build(volume, &library)?;
    fs::write(&counts, [0; 16])?;
    // Some of the tests run as other users.
    fs::set_permissions(&counts, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    let environment: [(&str, &Path); 4] = [
        ("LD_PRELOAD", &library),
        ("ALTERNATE_FROM", mounts[0]),
        ("ALTERNATE_TO", mounts[1]),
        ("ALTERNATE_COUNT", &counts),
    ];
    let mut both = compared(&expected, &tests.outcomes(mounts[0], &environment)?, true)?;
    let counted = fs::read(&counts)?;
    let number =
        |at: usize| counted.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    both.calls = Some((number(0), number(8)));
    Ok(Some([single, both]))
}

fn build(volume: &VolumeRig, library: &Path) -> Result<()> {
    let source = volume.scratch.join("alternate.c");
    fs::write(&source, SOURCE)?;
    let mut command = Command::new("cc");
    command.args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-w", "-o"]).arg(library).arg(source).arg("-ldl");
    let output = command.stdin(Stdio::null()).output().context("cannot start cc")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn compared(
    expected: &BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
    is_in_turn: bool,
) -> Result<VolumePosixComparison> {
    let mut compared = VolumePosixComparison::default();
    for (name, ended) in expected {
        let on_mount = found.get(name).map_or("not run", String::as_str);
        if on_mount == ended {
            compared.passed += usize::from(ended == "ok");
            compared.alike += usize::from(ended != "ok");
        } else {
            let is_excepted =
                |exception: &&(&str, &str)| exception.0 == name && (exception.0 != "open::etxtbsy" || is_in_turn);
            let reason = EXCEPTIONS.iter().find(is_excepted).map(|(_, reason)| *reason);
            compared.differing.push((format!("{name}: {ended} beside the volume, {on_mount} on it"), reason));
        }
    }
    ensure!(compared.passed > 0, "no test passed: {expected:?}");
    Ok(compared)
}
