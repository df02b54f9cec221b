//! cargo through reverse proxies in front of its index and its packages.
//!
//! The registry is the one that cargo is configured for, or its built-in one. A run without the proxy stores the
//! registry's host and the address of its packages in cargo's home, and the test reads them there.

use super::split::{SplitRegistry, origin_of};
use super::{ClientVerdict, Files, call, compare, last_line, tree};
use crate::guard::find_program;
use crate::scratch::ScratchFolder;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = "[package]
name = \"client\"
version = \"1.0.0\"
edition = \"2021\"

[lib]
path = \"lib.rs\"

[dependencies]
cfg-if = \"=1.0.0\"
itoa = \"=1.0.9\"

[workspace]
";

/// Fetches the packages twice, each time with an empty home.
pub fn run() -> Result<ClientVerdict> {
    let Some(cargo) = find_program("cargo") else {
        return Ok(ClientVerdict::NotRun("cargo is not installed".to_owned()));
    };
    let scratch = ScratchFolder::new("cargo")?;
    let direct = scratch.join("direct");
    let (reached, text) = fetch(&cargo, &direct, None)?;
    if !reached {
        let reason = last_line(&text);
        return Ok(ClientVerdict::NotRun(format!("cargo: the registry cannot be reached without the proxy: {reason}")));
    }
    let Some((index, packages)) = registry(&direct)? else {
        return Ok(ClientVerdict::NotRun("cargo: the registry is not asked over http".to_owned()));
    };
    let (files, _) = origin_of(&packages).with_context(|| format!("the index has its packages at {packages}"))?;
    // The index may change at any time. With a lifetime of an hour, both runs get the same index.
    let split = SplitRegistry::start(&scratch.join("proxy"), &index, files, "1h")?;
    let mut runs = [Files::new(), Files::new()];
    for (name, run) in ["first", "second"].into_iter().zip(&mut runs) {
        let (good, text) = fetch(&cargo, &scratch.join(name), Some(&format!("sparse+http://{}/", split.address)))?;
        if !good {
            bail!("cargo fetch, {name} run: {text}");
        }
        *run = crates(&scratch.join(name))?;
    }
    let lines = split.finish()?;
    let right = crates(&direct)?;
    let is_package = |url: &str| {
        ["cfg-if", "itoa"].iter().any(|name| url.contains(&format!("/{name}/")) || url.contains(&format!("/{name}-")))
    };
    compare("cargo", &right, &runs, &lines, |url| is_package(url) && url.contains("1.0.")).map(ClientVerdict::Kept)
}

fn fetch(cargo: &Path, folder: &Path, registry: Option<&str>) -> Result<(bool, String)> {
    let (home, project) = (folder.join("home"), folder.join("project"));
    std::fs::create_dir_all(&home)?;
    std::fs::create_dir_all(&project)?;
    std::fs::write(project.join("Cargo.toml"), MANIFEST)?;
    std::fs::write(project.join("lib.rs"), "")?;
    let own = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let own = own.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let configuration = own.map(|home| home.join("config.toml")).filter(|file| file.is_file());
    let mut command = Command::new(cargo);
    command.arg("fetch").current_dir(&project).env("CARGO_HOME", &home).env("CARGO_NET_RETRY", "1");
    match (registry, configuration) {
        (Some(registry), _) => {
            command.args(["--config", "source.crates-io.replace-with='nectary'"]);
            command.args(["--config", &format!("source.nectary.registry='{registry}'")]);
        }
        (None, Some(configuration)) => _ = std::fs::copy(configuration, home.join("config.toml"))?,
        (None, None) => {}
    }
    // If cargo runs the tests, it has set variables for this process; remove them.
    for (name, _) in std::env::vars_os() {
        let is_cargos =
            name.to_string_lossy().starts_with("CARGO") && name != "CARGO_NET_RETRY" && name != "CARGO_HOME";
        if is_cargos {
            command.env_remove(&name);
        }
    }
    call("cargo", command, &folder.join("cargo.log"))
}

/// Returns the index from which a home was filled, and the address of its packages.
fn registry(folder: &Path) -> Result<Option<(String, String)>> {
    for entry in std::fs::read_dir(folder.join("home/registry/index"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let (Some((host, _)), Ok(text)) = (name.rsplit_once('-'), std::fs::read(entry.path().join("config.json")))
        else {
            continue;
        };
        let configuration: Value = serde_json::from_slice(&text)?;
        if let Some(packages) = configuration["dl"].as_str() {
            return Ok(Some((format!("https://{host}"), packages.to_owned())));
        }
    }
    Ok(None)
}

/// Returns the packages in a home, by their file names.
fn crates(folder: &Path) -> Result<Files> {
    let files = tree(&folder.join("home/registry/cache"))?;
    let packages = files.into_iter().filter(|(name, _)| name.ends_with(".crate"));
    Ok(packages.map(|(name, bytes)| (name.rsplit('/').next().unwrap_or(&name).to_owned(), bytes)).collect())
}
