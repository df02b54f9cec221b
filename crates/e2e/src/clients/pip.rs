//! pip through reverse proxies in front of its index and its packages.
//!
//! The index is the one that pip is configured for, or its built-in one. pip requests the index with `max-age=0`, which
//! the proxy ignores; some indexes send no lifetime, so the proxy gives them one.

use super::split::{SplitRegistry, origin_of};
use super::{ClientVerdict, Files, call, compare, last_line, tree};
use crate::guard::find_program;
use crate::scratch::ScratchFolder;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A small package without dependencies.
const PACKAGE: &str = "six==1.16.0";
const IS_PACKAGE: [&str; 2] = [".whl", ".tar.gz"];

/// Downloads the package twice without a cache.
pub fn run() -> Result<ClientVerdict> {
    let Some(python) = find_program("python3") else {
        return Ok(ClientVerdict::NotRun("pip: python3 is not installed".to_owned()));
    };
    let scratch = ScratchFolder::new("pip")?;
    let Some(index) = index(&python, &scratch)? else {
        return Ok(ClientVerdict::NotRun("pip is not installed, or its index is not asked over https".to_owned()));
    };
    let report = scratch.join("report.json");
    let dry = ["install", "--dry-run", "--ignore-installed", "--report"].map(str::to_owned);
    let arguments = [&dry[..], &[report.display().to_string()]].concat();
    let (reached, text) = pip(&python, &scratch.join("dry"), &index, &arguments)?;
    if !reached {
        let reason = last_line(&text);
        return Ok(ClientVerdict::NotRun(format!("pip: the index cannot be reached without the proxy: {reason}")));
    }
    let (good, text) = download(&python, &scratch.join("direct"), &index)?;
    if !good {
        bail!("pip download without the proxy: {text}");
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    let url = report["install"][0]["download_info"]["url"].as_str().context("pip's report names no URL")?;
    let (files, _) = origin_of(url).with_context(|| format!("pip's report names {url}"))?;
    let (host, path) = origin_of(&index).with_context(|| format!("pip's index is {index}"))?;
    let split = SplitRegistry::start(&scratch.join("proxy"), host, files, "1h")?;
    let through = format!("http://{}{path}", split.address);
    let mut runs = [Files::new(), Files::new()];
    for (name, run) in ["first", "second"].into_iter().zip(&mut runs) {
        let (good, text) = download(&python, &scratch.join(name), &through)?;
        if !good {
            bail!("pip download, {name} run: {text}");
        }
        *run = tree(&scratch.join(name).join("packages"))?;
    }
    let lines = split.finish()?;
    let right = tree(&scratch.join("direct/packages"))?;
    let is_package = |url: &str| IS_PACKAGE.iter().any(|end| url.ends_with(end));
    compare("pip", &right, &runs, &lines, is_package).map(ClientVerdict::Kept)
}

/// The index that pip of this machine uses.
fn index(python: &Path, scratch: &ScratchFolder) -> Result<Option<String>> {
    let mut configured = Command::new(python);
    configured.args(["-m", "pip", "config", "get", "global.index-url"]);
    let (is_configured, text) = call("pip", configured, &scratch.join("config.log"))?;
    let text = match (std::env::var("PIP_INDEX_URL"), is_configured) {
        (Ok(url), _) => url,
        (Err(_), true) => last_line(&text).to_owned(),
        (Err(_), false) => {
            let mut built_in = Command::new(python);
            built_in.args(["-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"]);
            let (is_there, text) = call("pip", built_in, &scratch.join("built-in.log"))?;
            if is_there { last_line(&text).to_owned() } else { String::new() }
        }
    };
    let url = text.trim().trim_end_matches('/').to_owned();
    Ok(url.starts_with("https://").then_some(url))
}

fn download(python: &Path, folder: &Path, index: &str) -> Result<(bool, String)> {
    let to = folder.join("packages").display().to_string();
    pip(python, folder, index, &["download", "--dest", &to].map(str::to_owned))
}

fn pip(python: &Path, folder: &Path, index: &str, arguments: &[String]) -> Result<(bool, String)> {
    std::fs::create_dir_all(folder)?;
    let mut command = Command::new(python);
    command
        .args(["-m", "pip"])
        .args(arguments)
        .args(["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--retries", "1", "--index-url", index])
        .arg(PACKAGE)
        .current_dir(folder);
    for variable in ["PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT"] {
        command.env_remove(variable);
    }
    call("pip", command, &folder.join("pip.log"))
}
