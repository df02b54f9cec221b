//! The build of all programs and test programs, in one cargo run.
//!
//! Owns: the build, and the paths of its results. One cargo run for the whole workspace has one set of features per
//! dependency, so each crate is built once. The test programs are then run directly, so that their time does not include
//! the build. The common build gives `nectary` features that other crates need only in tests (planted bugs, all
//! switched off, and a clock that can be stopped); a check makes sure that it also compiles without them (`checks`).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::metadata::{Package, Workspace, cargo};
use crate::process;

/// The longest time of a build; one that takes longer is assumed to hang.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// The crate whose tests run the program of another one.
const OUTSIDE: &str = "nectary-e2e";
/// That other crate.
const NECTARY: &str = "nectary";

/// One built program.
#[derive(Debug)]
pub struct BuiltProgram {
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
pub struct BuiltPrograms {
    binaries: Vec<BuiltProgram>,
    /// The arguments of cargo with which they were built.
    arguments: Vec<String>,
}

impl BuiltPrograms {
    /// Builds all programs and test programs of the workspace, or only those of some crates, in the release profile.
    pub fn build(workspace: &Workspace, crates: &[String]) -> Result<BuiltPrograms> {
        println!("== build");
        let mut arguments = vec!["--release", "--bins", "--tests"];
        if crates.is_empty() {
            arguments.push("--workspace");
        }
        let needs_nectary = crates.iter().any(|name| name == OUTSIDE) && !crates.iter().any(|name| name == NECTARY);
        let names = crates.iter().map(String::as_str).chain(needs_nectary.then_some(NECTARY));
        arguments.extend(names.flat_map(|name| ["--package", name]));
        let (binaries, taken) = build(workspace, &arguments)?;
        println!("== build: {:.1} s", taken.as_secs_f64());
        Ok(BuiltPrograms { binaries, arguments: arguments.into_iter().map(str::to_owned).collect() })
    }

    /// Builds the same again as from a shell that no cargo has started, and returns what was compiled a second time:
    /// nothing, if both have the same features and no build script sees another environment.
    pub fn compiled_again(&self, workspace: &Workspace) -> Result<Vec<String>> {
        let mut command = Command::new("cargo");
        command.current_dir(&workspace.root).args(["build", "--locked"]).args(&self.arguments);
        command.args(["--message-format", "json-render-diagnostics"]);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_set_by_cargo) {
                command.env_remove(name);
            }
        }
        let ended = process::run(&mut command, BUILD_LIMIT, process::silent)?;
        if !ended.success {
            bail!("the second build failed: {}", ended.how);
        }
        Ok(not_fresh(&ended.output))
    }

    /// Builds the program `nectary` as users do, in the profile `dist`, and uses it from now on.
    pub fn with_dist(mut self, workspace: &Workspace) -> Result<BuiltPrograms> {
        let (built, taken) = build(workspace, &["--profile", "dist", "--package", NECTARY])?;
        println!("== build for users: {:.1} s", taken.as_secs_f64());
        self.binaries.retain(|binary| binary.is_test || binary.name != NECTARY);
        self.binaries.extend(built);
        Ok(self)
    }

    /// The test programs of a package, the library's first.
    pub fn tests_of(&self, package: &Package) -> Vec<&BuiltProgram> {
        self.binaries.iter().filter(|binary| binary.is_test && binary.package_id == package.id).collect()
    }

    /// The program called `name`.
    pub fn program(&self, name: &str) -> Option<&BuiltProgram> {
        self.binaries.iter().find(|binary| !binary.is_test && binary.name == name)
    }

    /// A command that runs `binary` as cargo would: in its package's directory, with the path of the `nectary` program
    /// in the environment.
    pub fn command(&self, binary: &BuiltProgram, workspace: &Workspace) -> Command {
        let mut command = Command::new(&binary.path);
        if let Some(package) = workspace.packages.iter().find(|package| package.id == binary.package_id) {
            command.current_dir(&package.directory).env("CARGO_MANIFEST_DIR", &package.directory);
        }
        if let Some(nectary) = self.program(NECTARY) {
            command.env("NECTARY_BIN", &nectary.path);
        }
        command.env("RUST_BACKTRACE", "1");
        command
    }
}

/// Builds what the arguments name; returns the programs, and how long it took.
fn build(workspace: &Workspace, arguments: &[&str]) -> Result<(Vec<BuiltProgram>, Duration)> {
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

/// Whether cargo sets a variable for what it runs, so that a shell does not have it.
pub fn is_set_by_cargo(name: &str) -> bool {
    let is_of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
    is_of_package.iter().any(|prefix| name.starts_with(prefix))
        || ["CARGO", "LD_LIBRARY_PATH", "RUSTUP_TOOLCHAIN", "RUST_RECURSION_COUNT"].contains(&name)
}

/// The names of what a build compiled, from its messages.
fn not_fresh(messages: &str) -> Vec<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let compiled = messages.filter(|message| message["fresh"] == false);
    compiled.filter_map(|message| Some(message["target"]["name"].as_str()?.to_owned())).collect()
}

fn binary(message: &Value) -> Option<BuiltProgram> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    Some(BuiltProgram {
        package_id: message["package_id"].as_str()?.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        is_from_outside: message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test"),
        path: PathBuf::from(message["executable"].as_str()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_compiled_crates_are_listed() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"ring"},"fresh":false}
{"reason":"compiler-artifact","target":{"name":"libc"},"fresh":true}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(not_fresh(messages), ["ring"]);
        assert!(is_set_by_cargo("CARGO_PKG_NAME") && is_set_by_cargo("CARGO") && !is_set_by_cargo("CARGO_HOME"));
    }
}
