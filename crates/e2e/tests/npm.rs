//! npm through a reverse proxy in front of its registry, twice with an empty npm cache: the tarballs of the second
//! installation come from the store.

use anyhow::{Result, bail};
use nectary_e2e::access_log;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::ProxyCommand;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::Scratch;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A small package that has a dependency.
const PACKAGE: &str = "is-odd@3.0.1";
const LIMIT: Duration = Duration::from_secs(100);

/// The registry that npm of this machine uses.
fn registry() -> Option<String> {
    let output = Command::new("npm").args(["config", "get", "registry"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().trim_end_matches('/').to_owned();
    text.starts_with("https://").then_some(text)
}

/// Installs the package into `folder` from `registry`, with an empty cache and no configuration of the user.
fn install(folder: &Path, registry: &str, limit: Duration) -> Result<(bool, String)> {
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
    let log = folder.join("npm.log");
    let (status, text) = guard::run("npm", command, &log, limit)?;
    Ok((status.success(), text))
}

/// Every file under `folder` with its bytes.
fn tree(folder: &Path, name: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            tree(&entry.path(), &name, files)?;
        } else {
            files.insert(name, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

#[test]
fn the_tarballs_of_the_second_npm_install_come_from_the_store() -> Result<()> {
    if find_program("npm").is_none() {
        not_run("npm is not installed");
        return Ok(());
    }
    let Some(registry) = registry() else {
        not_run("npm: the registry of this machine is not asked over https");
        return Ok(());
    };
    let scratch = Scratch::new("npm")?;
    let (reached, text) = install(&scratch.join("direct"), &registry, LIMIT)?;
    if !reached {
        not_run(format!(
            "npm: the registry cannot be reached without the proxy: {}",
            text.lines().next().unwrap_or("")
        ));
        return Ok(());
    }
    let mut command = ProxyCommand::new(scratch.path(), Some(registry))?;
    command.access_log = true;
    // Registries differ: some give no freshness at all, and what has a version in its name does not change.
    command.arguments.extend(["--default-ttl", "/*.tgz=1d"].map(str::to_owned));
    let mut nectary = command.start()?;
    let mut direct = BTreeMap::new();
    tree(&scratch.join("direct/node_modules"), "", &mut direct)?;
    let mut runs = Vec::new();
    for name in ["first", "second"] {
        let (good, text) = install(&scratch.join(name), &format!("http://{}", nectary.listen), LIMIT)?;
        if !good {
            bail!("npm install, {name} run: {text}\n{}", nectary.process.log_tail());
        }
        let mut files = BTreeMap::new();
        tree(&scratch.join(name).join("node_modules"), "", &mut files)?;
        runs.push(files);
    }
    let status = nectary.terminate(Duration::from_secs(20))?;
    assert!(status.success(), "{}", guard::describe(status));
    assert!(runs[0] == runs[1], "the two installations differ");
    // npm's own record of the installation names the registry.
    let payload = |files: &BTreeMap<String, Vec<u8>>| -> BTreeMap<String, Vec<u8>> {
        files.clone().into_iter().filter(|(name, _)| name != "/.package-lock.json").collect()
    };
    assert!(payload(&runs[0]) == payload(&direct), "the installation differs from one without the proxy");
    let lines = access_log::read(&command.access_log_path())?;
    let mut tarballs = BTreeMap::<&str, Vec<&str>>::new();
    for line in lines.iter().filter(|line| line.url.ends_with(".tgz")) {
        tarballs.entry(&line.url).or_default().push(&line.result);
    }
    assert!(tarballs.len() >= 2, "expected a package and its dependency, found {tarballs:?}");
    for (url, results) in &tarballs {
        assert_eq!((results.len(), results.last()), (2, Some(&"HIT")), "{url}: {results:?}");
    }
    let bytes: usize = runs[0].values().map(Vec::len).sum();
    println!(
        "npm: {} files ({bytes} bytes) equal in both runs and without the proxy; {} tarballs, all hits the second time",
        runs[0].len(),
        tarballs.len()
    );
    Ok(())
}
