//! The build of all programs and test programs, in one cargo run.
//!
//! Owns: the build, and the paths of its results. One cargo run for the whole workspace has one set of features per
//! dependency, so each dependency is built once. The test programs are then run directly, so that their time does not
//! include the build. The `nectary` program is then built again alone: the common build gives it features that other
//! crates need only in tests, but the tests must use the program that users run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::metadata::{Package, Workspace, cargo};
use crate::process;

/// The longest time of a build; one that takes longer is assumed to hang.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// One built program.
#[derive(Debug)]
pub struct Binary {
    /// Cargo's id of its package.
    package_id: String,
    /// The name of its cargo target.
    pub name: String,
    /// Whether it is a test program.
    pub is_test: bool,
    /// Whether it is a test program beside the crate, in `tests`, and not the crate's own.
    pub is_from_outside: bool,
    /// Its path.
    pub path: PathBuf,
}

/// All built programs.
#[derive(Debug)]
pub struct Binaries {
    binaries: Vec<Binary>,
}

impl Binaries {
    /// Builds all programs and test programs of the workspace in the release profile.
    pub fn build(workspace: &Workspace) -> Result<Binaries> {
        println!("== build");
        let (mut binaries, mut taken) = (Vec::new(), Duration::ZERO);
        for arguments in [["--workspace", "--lib", "--bins", "--tests"].as_slice(), &["--package", "nectary"]] {
            let (built, time) = build(workspace, &[&["--release"], arguments].concat())?;
            binaries.extend(built);
            taken += time;
        }
        println!("== build: {:.1} s", taken.as_secs_f64());
        Ok(Binaries { binaries })
    }

    /// Builds the program `nectary` as users do, in the profile `dist`, and uses it from now on.
    pub fn with_dist(mut self, workspace: &Workspace) -> Result<Binaries> {
        let (built, taken) = build(workspace, &["--profile", "dist", "--package", "nectary"])?;
        println!("== build for users: {:.1} s", taken.as_secs_f64());
        self.binaries.retain(|binary| binary.is_test || binary.name != "nectary");
        self.binaries.extend(built);
        Ok(self)
    }

    /// The test programs of a package, the library's first.
    pub fn tests_of(&self, package: &Package) -> Vec<&Binary> {
        self.binaries.iter().filter(|binary| binary.is_test && binary.package_id == package.id).collect()
    }

    /// The program called `name`.
    pub fn program(&self, name: &str) -> Option<&Binary> {
        self.binaries.iter().find(|binary| !binary.is_test && binary.name == name)
    }

    /// A command that runs `binary` as cargo would: in its package's directory, with the path of the `nectary` program
    /// in the environment.
    pub fn command(&self, binary: &Binary, workspace: &Workspace) -> Command {
        let mut command = Command::new(&binary.path);
        if let Some(package) = workspace.packages.iter().find(|package| package.id == binary.package_id) {
            command.current_dir(&package.directory).env("CARGO_MANIFEST_DIR", &package.directory);
        }
        if let Some(nectary) = self.program("nectary") {
            command.env("NECTARY_BIN", &nectary.path);
        }
        command.env("RUST_BACKTRACE", "1");
        command
    }
}

/// Builds what the arguments name; returns the programs, and how long it took.
fn build(workspace: &Workspace, arguments: &[&str]) -> Result<(Vec<Binary>, Duration)> {
    let mut command = cargo();
    command.current_dir(&workspace.root).args(["build", "--locked"]).args(arguments);
    command.args(["--message-format", "json-render-diagnostics"]);
    let ended = process::run(&mut command, BUILD_LIMIT, process::silent)?;
    if !ended.success {
        bail!("the build failed: {}", ended.how);
    }
    let messages = ended.output.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok((messages.filter_map(|message| binary(&message)).collect(), ended.taken))
}

/// Builds the fuzz targets with coverage counters; the result replaces the normal `fuzz` program.
///
/// Only Nectary's own crates are built again: a wrapper of rustc adds the coverage counters of stable Rust to them.
pub fn build_with_coverage(workspace: &Workspace) -> Result<()> {
    println!("== build with coverage");
    let mut command = cargo();
    command.current_dir(&workspace.root).args(["build", "--release", "--locked", "--package", "nectary-fuzz"]);
    command.env("RUSTC_WORKSPACE_WRAPPER", workspace.root.join("crates/fuzz/coverage-rustc"));
    let ended = process::run(&mut command, BUILD_LIMIT, process::silent)?;
    if !ended.success {
        bail!("the build with coverage failed: {}", ended.how);
    }
    Ok(())
}

fn binary(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    Some(Binary {
        package_id: message["package_id"].as_str()?.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        is_from_outside: message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test"),
        path: PathBuf::from(message["executable"].as_str()?),
    })
}
