//! apt through a forward proxy.
//!
//! apt works in a private root with the mirrors of this machine's configuration. Mirrors often send no freshness
//! information, so the proxy gets a `--default-ttl`.

use super::{ClientVerdict, Files, call, compare, finish, last_line, proxy};
use crate::guard::find_program;
use crate::scratch::ScratchFolder;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Small packages that are in every Debian and Ubuntu.
const PACKAGES: [&str; 4] = ["hello", "tree", "netcat-traditional", "libjansson4"];

/// Downloads lists and packages twice, each time into an empty root.
pub fn run() -> Result<ClientVerdict> {
    if find_program("apt-get").is_none() {
        return Ok(ClientVerdict::NotRun("apt: apt-get is not installed".to_owned()));
    }
    let sources = match sources() {
        Ok(sources) => sources,
        Err(reason) => return Ok(ClientVerdict::NotRun(format!("apt: {reason}"))),
    };
    let scratch = ScratchFolder::new("apt")?;
    let direct = scratch.join("direct");
    make_root(&direct, &sources)?;
    let (reached, text) = apt(&direct, "DIRECT", &["update"])?;
    if !reached {
        let reason = last_line(&text);
        return Ok(ClientVerdict::NotRun(format!("apt: the mirrors cannot be reached without the proxy: {reason}")));
    }
    let command = proxy(&scratch.join("proxy"), None, "1h")?;
    let nectary = command.start()?;
    let through = format!("http://{}", nectary.listen);
    let mut runs = [Files::new(), Files::new()];
    for (name, run) in ["first", "second"].into_iter().zip(&mut runs) {
        let root = scratch.join(name);
        make_root(&root, &sources)?;
        for arguments in [["update"].as_slice(), &[["download"].as_slice(), &PACKAGES].concat()] {
            let (good, text) = apt(&root, &through, arguments)?;
            if !good {
                bail!("apt-get {arguments:?}, {name} run: {text}\n{}", nectary.process.log_tail());
            }
        }
        *run = fetched(&root)?;
    }
    let lines = finish(nectary, &command)?;
    let packages = runs[0].keys().filter(|name| name.ends_with(".deb")).count();
    if packages != PACKAGES.len() {
        bail!("apt: {packages} packages of {} were downloaded", PACKAGES.len());
    }
    // The lists may change between the runs; apt itself checks the packages against them.
    compare("apt", &Files::new(), &runs, &lines, |url| url.ends_with(".deb")).map(ClientVerdict::Kept)
}

/// The files of this machine's apt configuration that name sources with plain http, as (file name, text). *Errors*:
/// there are none, or apt uses a proxy.
fn sources() -> std::result::Result<Vec<(String, String)>, String> {
    let configuration =
        Command::new("apt-config").arg("dump").output().map_err(|error| format!("apt-config: {error}"))?;
    let configuration = String::from_utf8_lossy(&configuration.stdout).into_owned();
    let proxy = |line: &&str| line.to_ascii_lowercase().starts_with("acquire::http::proxy ") && !line.contains("\"\"");
    if let Some(line) = configuration.lines().find(proxy) {
        return Err(format!("apt of this machine reaches its mirrors through a proxy of its own ({line})"));
    }
    let folder = std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let files = folder.chain([PathBuf::from("/etc/apt/sources.list")]);
    let known =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "list" || extension == "sources");
    let mut sources = Vec::new();
    for path in files.filter(known) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        if lines.iter().any(|line| line.contains("http://")) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sources.push((name, lines.join("\n") + "\n"));
        }
    }
    if sources.is_empty() {
        return Err("no apt source of this machine is asked over plain http".to_owned());
    }
    Ok(sources)
}

/// Makes a separate root for apt: sources, state, cache.
fn make_root(root: &Path, sources: &[(String, String)]) -> Result<()> {
    for folder in [
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "etc/apt/sources.list.d",
        "var/lib/apt/lists/partial",
        "var/lib/dpkg",
        "var/cache/apt/archives/partial",
        "packages",
    ] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::write(root.join("var/lib/dpkg/status"), "")?;
    std::fs::write(root.join("etc/apt/apt.conf"), "")?;
    for (name, text) in sources {
        let folder = if name == "sources.list" { "etc/apt" } else { "etc/apt/sources.list.d" };
        std::fs::write(root.join(folder).join(name), text)?;
    }
    Ok(())
}

fn apt(root: &Path, proxy: &str, arguments: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new("apt-get");
    let options = [
        format!("Dir={}", root.display()),
        format!("Dir::State::status={}/var/lib/dpkg/status", root.display()),
        "Dir::Etc::TrustedParts=/etc/apt/trusted.gpg.d".to_owned(),
        format!("Acquire::http::Proxy={proxy}"),
        "Acquire::Languages=none".to_owned(),
        "Acquire::Retries=1".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::PDiffs=false".to_owned(),
    ];
    for option in options {
        command.arg("-o").arg(option);
    }
    command
        .args(["-q", "-y"])
        .args(arguments)
        .current_dir(root.join("packages"))
        .env("APT_CONFIG", root.join("etc/apt/apt.conf"));
    let (good, text) = call("apt-get", command, &root.join("apt.log"))?;
    // `update` only warns about a mirror that cannot be reached.
    Ok((good && !text.contains("Failed to fetch"), text))
}

/// The files that apt has fetched: packages, and the index files that it keeps.
fn fetched(root: &Path) -> Result<Files> {
    let mut files = Files::new();
    for folder in ["packages", "var/lib/apt/lists"] {
        for entry in std::fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() && name != "lock" {
                files.insert(format!("{folder}/{name}"), std::fs::read(entry.path())?);
            }
        }
    }
    Ok(files)
}
