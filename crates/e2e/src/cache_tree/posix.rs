//! Runs pjdfstest and compares each test: the mount must have the same results as the source's own file system.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cache_tree::tool;
use crate::live::LiveCache;
use crate::report::not_run;

/// The tool's name.
const TOOL: &str = "pjdfstest";

/// Users that exist on every Debian, each with its group, for the tests that change users.
const SETTINGS: &str = "\
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// The tests whose results differ on every FUSE file system, each with the reason.
const EXCEPTIONS: [(&str, &str); 1] = [(
    "link::link_count_max",
    "the C library tells the limit by the kind of file system, and knows none for FUSE: skipped",
)];

/// The comparison of two runs.
#[derive(Debug, Default)]
pub struct PjdfstestComparison {
    /// The number of tests with the same result.
    pub alike: usize,
    /// The number of tests that passed in both runs.
    pub passed: usize,
    /// The tests with different results that are not in `EXCEPTIONS`: the name, the result on the source's file system,
    /// and the result on the mount.
    pub differing: Vec<String>,
    /// The number of exceptions that occurred.
    pub excepted: usize,
}

/// Runs the suite outside of the mount and in it. `None` if the tool is missing.
pub fn compare(live: &LiveCache) -> Result<Option<PjdfstestComparison>> {
    let Some(tests) = PjdfstestSuite::in_folder(live.scratch.path())? else { return Ok(None) };
    // This directory is on the source's file system but outside of the source, so that nothing in it is cached.
    let beside = live.scratch.join("beside");
    fs::create_dir_all(&beside)?;
    fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let expected = tests.outcomes(&beside, &[])?;
    let found = tests.outcomes(&live.scratch.join("shown"), &[])?;
    let mut comparison = PjdfstestComparison::default();
    for (name, ended) in &expected {
        let on_mount = found.get(name).map_or("not run", String::as_str);
        if on_mount == ended {
            comparison.alike += 1;
            comparison.passed += usize::from(ended == "ok");
        } else if EXCEPTIONS.iter().any(|(exception, _)| exception == name) {
            comparison.excepted += 1;
        } else {
            comparison.differing.push(format!("{name}: {ended} beside the mount, {on_mount} in it"));
        }
    }
    ensure!(comparison.passed > 0, "no test passed: {expected:?}");
    Ok(Some(comparison))
}

/// The suite with its settings.
pub struct PjdfstestSuite {
    tool: PathBuf,
    settings: PathBuf,
}

impl PjdfstestSuite {
    /// Writes the settings to a folder. `None` if the tool is missing.
    pub fn in_folder(folder: &Path) -> Result<Option<PjdfstestSuite>> {
        let Some(tool) = tool(TOOL) else {
            not_run(format!("{TOOL} is not installed: run `ci/setup soak`"));
            return Ok(None);
        };
        let settings = folder.join("posix.toml");
        fs::write(&settings, SETTINGS)?;
        Ok(Some(PjdfstestSuite { tool, settings }))
    }

    /// Runs all tests in a folder; returns the result of each test: `ok`, `FAILED` or `skipped`.
    pub fn outcomes(&self, folder: &Path, environment: &[(&str, &Path)]) -> Result<BTreeMap<String, String>> {
        let mut command = Command::new(&self.tool);
        command.arg("-c").arg(&self.settings).arg("-p").arg(folder).env("NO_COLOR", "1").stdin(Stdio::null());
        command.envs(environment.iter().copied());
        // The exit code is 1 if any test failed; the comparison uses the individual results.
        let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut found = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with(char::is_whitespace)) {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(ended @ ("ok" | "FAILED" | "skipped")), None) =
                (words.next(), words.next(), words.next())
            {
                found.insert(name.to_owned(), ended.to_owned());
            }
        }
        ensure!(!found.is_empty(), "{command:?} ran no test: {text}\n{}", String::from_utf8_lossy(&output.stderr));
        Ok(found)
    }
}
