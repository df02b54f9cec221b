//! apt through a forward proxy, twice with an empty apt cache: the second time the packages come from the store.
//!
//! apt works in a private root with the mirrors of this machine's own configuration. The mirrors often give no freshness at
//! all, so the proxy gets a `--default-ttl`.

use anyhow::{Context, Result, bail};
use nectary_e2e::access_log;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::ProxyCommand;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::Scratch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Small packages that every Debian and Ubuntu has.
const PACKAGES: [&str; 4] = ["hello", "tree", "netcat-traditional", "libjansson4"];
const LIMIT: Duration = Duration::from_secs(100);

/// The sources of this machine as (file name, text), where any of them is asked over plain http without a proxy.
fn sources() -> std::result::Result<Vec<(String, String)>, String> {
    let configuration =
        Command::new("apt-config").arg("dump").output().map_err(|error| format!("apt-config: {error}"))?;
    let configuration = String::from_utf8_lossy(&configuration.stdout).into_owned();
    let proxy = |line: &&str| line.to_ascii_lowercase().starts_with("acquire::http::proxy ") && !line.contains("\"\"");
    if let Some(line) = configuration.lines().find(proxy) {
        return Err(format!("apt of this machine reaches its mirrors through another proxy ({line})"));
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

/// A separate root for apt: sources, state, cache.
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

fn apt(root: &Path, proxy: &str, arguments: &[&str], limit: Duration) -> Result<(bool, String)> {
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
    let log = root.join("apt.log");
    let _ = std::fs::remove_file(&log);
    let (status, text) = guard::run("apt-get", command, &log, limit)?;
    // A mirror that cannot be reached is a warning of `update` only.
    Ok((status.success() && !text.contains("Failed to fetch"), text))
}

/// What apt has fetched: packages, and the index files that it keeps.
fn fetched(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
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

#[test]
fn the_second_apt_run_comes_from_the_store() -> Result<()> {
    if find_program("apt-get").is_none() {
        not_run("apt: apt-get is not installed");
        return Ok(());
    }
    let sources = match sources() {
        Ok(sources) => sources,
        Err(reason) => {
            not_run(format!("apt: {reason}"));
            return Ok(());
        }
    };
    let scratch = Scratch::new("apt")?;
    let direct = scratch.join("direct");
    make_root(&direct, &sources)?;
    let (reached, text) = apt(&direct, "DIRECT", &["update"], LIMIT)?;
    if !reached {
        not_run(format!("apt: the mirrors cannot be reached without the proxy: {}", last_line(&text)));
        return Ok(());
    }
    let mut command = ProxyCommand::new(scratch.path(), None)?;
    command.access_log = true;
    command.arguments.extend(["--default-ttl", "1h"].map(str::to_owned));
    let mut nectary = command.start()?;
    let proxy = format!("http://{}", nectary.listen);
    let mut runs = Vec::new();
    for name in ["first", "second"] {
        let root = scratch.join(name);
        make_root(&root, &sources)?;
        for arguments in [["update"].as_slice(), &[["download"].as_slice(), &PACKAGES].concat()] {
            let (good, text) = apt(&root, &proxy, arguments, LIMIT)?;
            if !good {
                bail!("apt-get {arguments:?}, {name} run: {text}\n{}", nectary.process.log_tail());
            }
        }
        runs.push(fetched(&root)?);
    }
    let status = nectary.terminate(Duration::from_secs(20))?;
    assert!(status.success(), "{}", guard::describe(status));
    let packages = runs[0].keys().filter(|name| name.ends_with(".deb")).count();
    assert_eq!(packages, PACKAGES.len());
    assert_eq!(runs[0].keys().collect::<Vec<_>>(), runs[1].keys().collect::<Vec<_>>());
    for (name, bytes) in &runs[0] {
        assert!(runs[1][name] == *bytes, "{name} differs between the runs");
    }
    let lines = access_log::read(&command.access_log_path())?;
    let mut by_url = BTreeMap::<&str, Vec<&str>>::new();
    for line in lines.iter().filter(|line| line.method == "GET") {
        by_url.entry(&line.url).or_default().push(&line.result);
    }
    let of_packages = by_url.iter().filter(|(url, _)| url.ends_with(".deb"));
    let mut from_store = 0;
    for (url, results) in of_packages {
        assert_eq!(results.len(), 2, "{url}: {results:?}");
        assert_eq!(results[1], "HIT", "{url}: {results:?}");
        from_store += 1;
    }
    assert_eq!(from_store, PACKAGES.len());
    let repeated: Vec<_> = by_url.iter().filter(|(_, results)| results.len() > 1).collect();
    let hits = repeated.iter().filter(|(_, results)| results.last() == Some(&"HIT")).count();
    let bytes: usize = runs[0].values().map(Vec::len).sum();
    println!(
        "apt: {} files ({bytes} bytes) equal in both runs; {} URLs requested twice, {hits} hits the second time; packages {from_store} of {packages}",
        runs[0].len(),
        repeated.len(),
    );
    for (url, results) in repeated.iter().filter(|(_, results)| results.last() != Some(&"HIT")) {
        println!("apt: not a hit: {} {results:?}", url.rsplit('/').next().context("a URL has a slash")?);
    }
    Ok(())
}

fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("")
}
