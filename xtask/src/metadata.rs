//! The workspace and its dependencies, from `cargo metadata`.
//!
//! Owns: the path of the workspace, its members, and every package with its licence. Leaves to others: the rules about
//! dependencies and licences.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process;

/// A dependency of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageDependency {
    /// The name of the required package.
    pub name: String,
    /// Whether only tests and examples use it.
    pub dev: bool,
}

/// A package of the workspace or from a registry.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence, an SPDX expression; empty if the package names no licence.
    pub licence: String,
    /// Its dependencies.
    pub dependencies: Vec<PackageDependency>,
    /// Whether it is a member of the workspace.
    pub is_member: bool,
    /// Cargo's id of the package.
    pub id: String,
    /// Its directory.
    pub directory: PathBuf,
}

/// The workspace.
#[derive(Debug)]
pub struct Workspace {
    /// Its top directory.
    pub root: PathBuf,
    /// Every package that is built on this platform.
    pub packages: Vec<Package>,
}

impl Workspace {
    /// Reads the metadata from cargo.
    pub fn load() -> Result<Workspace> {
        let target = host_target()?;
        let text = process::output(cargo().args(["metadata", "--format-version", "1", "--filter-platform", &target]))?;
        Workspace::parse(&text).context("cargo metadata is not as expected")
    }

    /// The packages of the workspace, sorted by name.
    pub fn members(&self) -> Vec<&Package> {
        let mut members: Vec<&Package> = self.packages.iter().filter(|package| package.is_member).collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members
    }

    fn parse(text: &str) -> Option<Workspace> {
        let metadata: Value = serde_json::from_str(text).ok()?;
        let ids = |key: &str| -> Option<Vec<&str>> { metadata[key].as_array()?.iter().map(Value::as_str).collect() };
        let members = ids("workspace_members")?;
        let nodes = metadata["resolve"]["nodes"].as_array()?;
        let built: Vec<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
        let mut packages = Vec::new();
        for package in metadata["packages"].as_array()? {
            let id = package["id"].as_str()?;
            if !built.contains(&id) {
                continue;
            }
            let dependencies = package["dependencies"].as_array()?.iter().filter_map(|dependency| {
                let dev = dependency["kind"].as_str() == Some("dev");
                Some(PackageDependency { name: dependency["name"].as_str()?.to_owned(), dev })
            });
            packages.push(Package {
                name: package["name"].as_str()?.to_owned(),
                version: package["version"].as_str()?.to_owned(),
                licence: package["license"].as_str().unwrap_or_default().to_owned(),
                dependencies: dependencies.collect(),
                is_member: members.contains(&id),
                id: id.to_owned(),
                directory: PathBuf::from(package["manifest_path"].as_str()?).parent()?.to_owned(),
            });
        }
        Some(Workspace { root: PathBuf::from(metadata["workspace_root"].as_str()?), packages })
    }
}

/// Makes a command that runs the cargo that started this program, or otherwise the cargo on the search path.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The cargo that started this program has set these variables. If they stayed set, some build scripts and all
    // crates that depend on them would be rebuilt whenever a build from here follows one from a shell, or the other way
    // round.
    let is_of_program = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_program)) {
        command.env_remove(name);
    }
    command
}

fn host_target() -> Result<String> {
    let text = process::output(Command::new("rustc").arg("-vV"))?;
    let target = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(target.context("rustc -vV names no host")?.to_owned())
}
