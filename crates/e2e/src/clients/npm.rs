//! npm through a reverse proxy in front of its registry.

use super::{ClientVerdict, Files, call, compare, finish, last_line, proxy, tree};
use crate::guard::find_program;
use crate::scratch::ScratchFolder;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// A small package that has a dependency.
const PACKAGE: &str = "is-odd@3.0.1";

/// Installs the package twice, each time with an empty cache.
pub fn run() -> Result<ClientVerdict> {
    if find_program("npm").is_none() {
        return Ok(ClientVerdict::NotRun("npm is not installed".to_owned()));
    }
    let Some(registry) = registry() else {
        return Ok(ClientVerdict::NotRun("npm: the registry of this machine is not asked over https".to_owned()));
    };
    let scratch = ScratchFolder::new("npm")?;
    let (reached, text) = install(&scratch.join("direct"), &registry)?;
    if !reached {
        let reason = last_line(&text);
        return Ok(ClientVerdict::NotRun(format!("npm: the registry cannot be reached without the proxy: {reason}")));
    }
    // Some registries send no freshness information; the proxy gives a lifetime to files with a version in their name,
    // because these do not change.
    let command = proxy(&scratch.join("proxy"), Some(registry), "/*.tgz=1d")?;
    let nectary = command.start()?;
    let mut runs = [Files::new(), Files::new()];
    for (name, run) in ["first", "second"].into_iter().zip(&mut runs) {
        let (good, text) = install(&scratch.join(name), &format!("http://{}", nectary.listen))?;
        if !good {
            bail!("npm install, {name} run: {text}\n{}", nectary.process.log_tail());
        }
        *run = tree(&scratch.join(name).join("node_modules"))?;
    }
    let lines = finish(nectary, &command)?;
    let mut right = tree(&scratch.join("direct/node_modules"))?;
    // npm's own record of the installation contains the registry's address, so it is not compared.
    right.remove("/.package-lock.json");
    compare("npm", &right, &runs, &lines, |url| url.ends_with(".tgz")).map(ClientVerdict::Kept)
}

/// The registry that npm of this machine uses.
fn registry() -> Option<String> {
    let output = Command::new("npm").args(["config", "get", "registry"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().trim_end_matches('/').to_owned();
    text.starts_with("https://").then_some(text)
}

/// Installs the package into `folder` from `registry`, with an empty cache and no configuration of the user.
fn install(folder: &Path, registry: &str) -> Result<(bool, String)> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("package.json"), "{\"name\": \"client\", \"version\": \"1.0.0\"}\n")?;
    let mut command = Command::new("npm");
    command
        .args(["install", PACKAGE, "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"])
        .args(["--replace-registry-host=always", "--fetch-retries=1", "--registry", registry, "--cache"])
        .arg(folder.join("cache"))
        .arg("--userconfig")
        .arg(folder.join("npmrc"))
        .current_dir(folder);
    call("npm", command, &folder.join("npm.log"))
}
