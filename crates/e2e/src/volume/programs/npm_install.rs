//! `npm install` of many packages on one mount of a volume, compared with the same on a local disk.
//!
//! The packages come from a registry on loopback. Promises: on the other mounts every file has the bytes, modes and
//! links of the local installation, and `npm ls` finds the same packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use super::{ProgramCounts, ProgramRound, RoundFolders, RoundPace, list, run, tool};

/// Prints the kind, mode and target of everything in a folder, and the checksum of each file.
const DESCRIBE: &str = "set -e; find . -printf '%y %m %n %l %p\\n' | grep -v '^d' | sort; \
    find . -type d -printf 'd %m %p\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum";

/// A round of an installation.
pub(super) struct NpmInstallRound;

impl ProgramRound for NpmInstallRound {
    fn pace(&self) -> RoundPace {
        // A listing of everything takes the names back from the mount that makes them.
        RoundPace { before_ms_max: 2500, kills_max: 6, look_every_ms: 3000 }
    }

    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        run(tool("mkdir").arg(project(&folders.here)))?;
        install(folders, &project(&folders.here))?;
        stored.store(folders.kit.registry()?.packages, Ordering::Release);
        Ok(0)
    }

    /// While it installs, the other mounts list what there is.
    fn look(&self, folders: &RoundFolders, _before: u64) -> Result<bool> {
        list(tool("find").arg(&folders.there).args(["-printf", "%m %s %p\\n"]))?;
        list(tool("ls").arg("-lR").arg(&folders.third))?;
        Ok(true)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        let tool_link = project(&folders.there).join("node_modules/.bin/nectary-tool-004");
        run(tool("chmod").arg("700").arg(tool_link)).map(drop)
    }

    fn check(&self, folders: &RoundFolders, done: &ProgramCounts) -> Result<()> {
        let stored = done.stored;
        let local = folders.beside.join("project");
        fs::create_dir_all(&local)?;
        install(folders, &local)?;
        let (expected, packages) = (describe(&local)?, packages(folders, &local)?);
        let modules = packages.lines().count() as u64;
        ensure!(modules >= stored, "npm lists {modules} packages of {stored}");
        let files = expected.lines().filter(|line| line.starts_with("f ")).count() as u64;
        ensure!(files > stored * folders.kit.scale.of(10, 50), "{files} files of {stored} packages");
        for mount in [&folders.there, &folders.third] {
            let found = describe(&project(mount))?;
            if found != expected {
                let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
                anyhow::bail!("{}: found and expected: {differs:?}", mount.display());
            }
        }
        let found = self::packages(folders, &project(&folders.there))?;
        ensure!(found == packages, "npm ls: {found}, not {packages}");
        let version = run(&mut Command::new(project(&folders.there).join("node_modules/.bin/nectary-tool-004")))?;
        ensure!(version.trim() == "1.0.0", "an installed program prints {version}");
        Ok(())
    }
}

/// The project on a mount.
fn project(mount: &Path) -> PathBuf {
    mount.join("project")
}

fn npm(folders: &RoundFolders, project: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = tool("npm");
    command.args(arguments).current_dir(project).env("HOME", &folders.beside);
    command.args(["--registry", &folders.kit.registry()?.url, "--cache"]).arg(folders.beside.join("cache"));
    command.arg("--userconfig").arg(folders.beside.join("npmrc"));
    command.args(["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--logs-max=0"]);
    // The registry is on this machine: no proxy is between.
    for variable in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(variable).env_remove(variable.to_ascii_uppercase());
    }
    Ok(command)
}

/// Installs the first package, which depends on all others.
fn install(folders: &RoundFolders, project: &Path) -> Result<()> {
    let registry = folders.kit.registry()?;
    let manifest = serde_json::json!({ "name": "installation", "version": "1.0.0" }).to_string();
    run(tool("sh").args(["-c", "printf '%s\\n' \"$0\" > package.json", &manifest]).current_dir(project))?;
    run(&mut npm(folders, project, &["install", &registry.first])?).map(drop)
}

/// The packages that npm finds, without the path of the project.
fn packages(folders: &RoundFolders, project: &Path) -> Result<String> {
    let text = run(&mut npm(folders, project, &["ls", "--all", "--parseable"])?)?;
    Ok(text.replace(&project.display().to_string(), ""))
}

fn describe(folder: &Path) -> Result<String> {
    run(tool("sh").args(["-c", DESCRIBE]).current_dir(folder))
}
