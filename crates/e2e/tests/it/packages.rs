//! What packages are made of, checked without making one: services, configuration, alerts, the operators' page.
//!
//! `e2e-campaigns packages` makes the packages and installs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::{binary, run};
use nectary_e2e::packages::{exposure, repository};
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::ScratchFolder;

/// The greatest exposure of a service that runs as an own user, of 10.
const EXPOSURE_MAX: f64 = 3.0;
const LIMIT: Duration = Duration::from_secs(30);
/// The longest time of a run of promtool, whose tests have a day of samples.
const PROMTOOL_MAX: Duration = Duration::from_secs(60);

/// Copies the units into a scratch folder, with the program under test as their program.
fn units(scratch: &ScratchFolder) -> Result<Vec<PathBuf>> {
    let program = binary()?.canonicalize()?.display().to_string();
    let mut units = Vec::new();
    for entry in fs::read_dir(repository()?.join("packaging/systemd"))?.flatten().filter(|it| it.path().is_file()) {
        let to = scratch.path().join(entry.file_name());
        fs::write(&to, fs::read_to_string(entry.path())?.replace("/usr/bin/nectary", &program))?;
        units.push(to);
    }
    units.sort();
    Ok(units)
}

#[test]
fn services_are_understood_and_little_exposed() -> Result<()> {
    if find_program("systemd-analyze").is_none() {
        not_run("systemd-analyze is not installed");
        return Ok(());
    }
    let scratch = ScratchFolder::new("units")?;
    let units = units(&scratch)?;
    let log = scratch.join("log");
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(&units);
    let (_, said) = guard::run("systemd-analyze", verify, &log, LIMIT)?;
    let wrong: Vec<&str> = said.lines().filter(|line| line.contains("nectary")).collect();
    ensure!(wrong.is_empty(), "{wrong:#?}");
    // A mount is there for every process, so its service cannot have a tree of files of its own.
    for unit in units.iter().filter(|unit| unit.ends_with("nectary-proxy.service") || is_closed(unit)) {
        let found = exposure(unit, &scratch.join("exposure"))?;
        ensure!(found < EXPOSURE_MAX, "{}: {found}", unit.display());
        fs::remove_file(scratch.join("exposure"))?;
    }
    let drop_ins = scratch.join("nectary-proxy.service.d");
    for drop_in in fs::read_dir(repository()?.join("packaging/systemd/drop-ins"))?.flatten() {
        fs::create_dir(&drop_ins)?;
        fs::copy(drop_in.path(), drop_ins.join("a.conf"))?;
        let found = exposure(&scratch.join("nectary-proxy.service"), &scratch.join("exposure"))?;
        ensure!(found < EXPOSURE_MAX, "{:?}: {found}", drop_in.file_name());
        fs::remove_file(scratch.join("exposure"))?;
        fs::remove_dir_all(&drop_ins)?;
    }
    Ok(())
}

/// Whether a unit is a service that runs as an own user.
fn is_closed(unit: &std::path::Path) -> bool {
    fs::read_to_string(unit).is_ok_and(|text| text.contains("\nUser=nectary\n"))
}

#[test]
fn packaged_configuration_is_good() -> Result<()> {
    let scratch = ScratchFolder::new("packaged-config")?;
    let text = fs::read_to_string(repository()?.join("packaging/etc/proxy.toml"))?;
    let own = |text: &str| text.replace("/var/log/nectary", &scratch.path().display().to_string());
    fs::write(scratch.join("proxy.toml"), own(&text))?;
    let at = |name: &str| scratch.join(name).display().to_string();
    let check = || run(&["proxy", "--check-config", "--config", &at("proxy.toml")], scratch.path());
    let (status, said) = check()?;
    ensure!(status.success(), "{said}");
    // The example in its comments too: sites with HTTPS, whose certificates are in another place here.
    let (status, said) = run(&["cert", "init", &at("pki")], scratch.path())?;
    ensure!(status.success(), "{said}");
    let (status, said) = run(&["cert", "server", &at("pki"), "www.example.org", "--out", &at(".")], scratch.path())?;
    ensure!(status.success(), "{said}");
    let is_example = |line: &str| line.strip_prefix('#').is_some_and(|rest| !rest.starts_with(' '));
    let lines = text.lines().map(|line| if is_example(line) { &line[1..] } else { line });
    let whole = lines.collect::<Vec<_>>().join("\n").replace("/etc/nectary/tls", &scratch.path().display().to_string());
    fs::write(scratch.join("proxy.toml"), own(&whole))?;
    let (status, said) = check()?;
    ensure!(!status.success() && said.contains("with TLS or without"), "one listener has TLS, another has not: {said}");
    let only_tls = whole.replacen("[[listener]]\naddress = \"127.0.0.1:8080\"", "", 1);
    fs::write(scratch.join("proxy.toml"), own(&only_tls))?;
    let (status, said) = check()?;
    ensure!(status.success() && said.contains("1 sites"), "{said}");
    Ok(())
}

/// Runs promtool in a folder; returns whether it succeeds, and what it says.
fn promtool(folder: &std::path::Path, arguments: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(folder);
    let log = folder.join("promtool.log");
    let _ = fs::remove_file(&log);
    let (status, said) = guard::run("promtool", command, &log, PROMTOOL_MAX)?;
    Ok((status.success(), said))
}

#[test]
fn alerts_fire_when_they_should() -> Result<()> {
    if find_program("promtool").is_none() {
        not_run("promtool is not installed (Debian package prometheus)");
        return Ok(());
    }
    let scratch = ScratchFolder::new("alerts")?;
    let from = repository()?.join("packaging/prometheus");
    for name in ["alerts.yml", "alerts-test.yml"] {
        fs::copy(from.join(name), scratch.join(name))?;
    }
    let (is_good, said) = promtool(scratch.path(), &["check", "rules", "alerts.yml"])?;
    ensure!(is_good, "{said}");
    let (is_good, said) = promtool(scratch.path(), &["test", "rules", "alerts-test.yml"])?;
    ensure!(is_good, "{said}");
    // Alerts that are never active, or that fire at once or for everything, are noticed.
    let rules = fs::read_to_string(from.join("alerts.yml"))?;
    for (right, wrong) in [
        ("nectary_store_stopped == 1", "nectary_store_stopped == 2"),
        ("nectary_proxy_server_up == 0", "nectary_proxy_server_up >= 0"),
        ("time() < 14 * 86400\n        for: 1h", "time() < 14 * 86400\n        for: 1m"),
        ("> 0.05 * sum", "> 0.5 * sum"),
    ] {
        let planted = rules.replacen(right, wrong, 1);
        ensure!(planted != rules, "there is no rule with {right}");
        fs::write(scratch.join("alerts.yml"), planted)?;
        let (is_good, _) = promtool(scratch.path(), &["test", "rules", "alerts-test.yml"])?;
        ensure!(!is_good, "{wrong} is not noticed");
    }
    Ok(())
}

/// The tables of the keys in `docs/proxy-config.md`: for each heading and key, what this version does.
fn keys_today(text: &str) -> BTreeMap<(String, String), String> {
    let (mut heading, mut found) = (String::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            heading = title.trim_matches('`').to_owned();
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let (true, [key, .., today]) = (line.starts_with("| `"), cells.as_slice()) {
            found.insert(
                (heading.clone(), key.trim_matches('`').to_owned()),
                (*today).trim_end_matches(" |").to_owned(),
            );
        }
    }
    found
}

/// What a directive of another program becomes: each key with the heading of its table.
fn keys_of(cell: &str) -> Vec<(String, String)> {
    let mut heading = String::new();
    let mut found = Vec::new();
    for word in cell.split('`').skip(1).step_by(2) {
        match word.starts_with('[') || word.contains("{ … }") {
            true => heading = word.to_owned(),
            false => found.push((heading.clone(), word.to_owned())),
        }
    }
    found
}

#[test]
fn tables_for_newcomers_are_true() -> Result<()> {
    let docs = repository()?.join("docs");
    let today = keys_today(&fs::read_to_string(docs.join("proxy-config.md"))?);
    ensure!(today.len() > 100, "only {} keys", today.len());
    let page = fs::read_to_string(docs.join("proxy.md"))?;
    let tables = page.split_once("## Coming from nginx").context("a table")?.1;
    let mut count = 0;
    for line in tables.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", _, ours, note, ""] = cells.as_slice() else { anyhow::bail!("not three columns: {line}") };
        for key in keys_of(ours) {
            count += 1;
            let works = today.get(&key).with_context(|| format!("{line}\nthere is no key `{}` of {}", key.1, key.0))?;
            let says_not_yet = note.starts_with("not yet");
            // Of some keys only one value works, which is then in the column.
            let works_whole = works.starts_with("yes") || works.starts_with("at start");
            ensure!(works_whole != says_not_yet, "{line}\n`{}` of {}: {works}", key.1, key.0);
        }
    }
    ensure!(count > 100, "only {count} keys in the tables");
    Ok(())
}

#[test]
fn wrong_table_rows_are_noticed() {
    let today =
        keys_today("### `[a]`\n| key | value | today |\n|---|---|---|\n| `b` | N | not yet |\n| `c` | N | yes |\n");
    let key = |name: &str| ("[a]".to_owned(), name.to_owned());
    assert_eq!(today.get(&key("b")).map(String::as_str), Some("not yet"));
    assert_eq!(today.get(&key("c")).map(String::as_str), Some("yes"));
    assert_eq!(keys_of("`[a]`: `b`, `c`; `[d]`: `e`"), [key("b"), key("c"), ("[d]".to_owned(), "e".to_owned())]);
}
