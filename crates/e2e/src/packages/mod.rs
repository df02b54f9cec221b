//! The packages of this repository, and a clean machine on which they are installed.
//!
//! Owns: making the packages (`packaging/make`), a container of a fresh Debian with a service manager of its own, and the
//! commands of a page. Leaves to others: what is done with them (`e2e-campaigns packages`).

pub mod container;
pub mod page;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guard;
use crate::nectary::binary;

/// The longest time in which packages are made; the first time, the maker of manual pages is built.
const MAKE_MAX: Duration = Duration::from_secs(500);

/// The top folder of the repository.
pub fn repository() -> Result<PathBuf> {
    Ok(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?)
}

/// The version of the repository's crates.
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Makes packages of the program under test into `folder`; the forms are `deb`, `rpm` and `tarball`.
pub fn make(forms: &[&str], version: &str, folder: &Path) -> Result<()> {
    let mut command = Command::new(repository()?.join("packaging/make"));
    command.args(forms).env("PROGRAM", binary()?).env("VERSION", version).env("OUT", folder);
    let (status, output) = guard::run("packaging/make", command, &folder.with_extension("make.log"), MAKE_MAX)?;
    ensure!(status.success(), "packaging/make {}: {output}", forms.join(" "));
    Ok(())
}

/// The only file in `folder` whose name begins and ends like this.
pub fn file(folder: &Path, begins: &str, ends: &str) -> Result<PathBuf> {
    let names = std::fs::read_dir(folder)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(begins) && name.ends_with(ends)).collect();
    let name = found.pop().with_context(|| format!("there is no {begins}*{ends} in {}", folder.display()))?;
    ensure!(found.is_empty(), "{name} and {found:?} are in {}", folder.display());
    Ok(folder.join(name))
}

/// The exposure of a service by `systemd-analyze security`, from 0 to 10, without a running service manager.
pub fn exposure(unit: &Path, log: &Path) -> Result<f64> {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]).arg(unit);
    let (_, output) = guard::run("systemd-analyze", command, log, Duration::from_secs(60))?;
    let line = output.lines().find(|line| line.contains("Overall exposure level")).with_context(|| output.clone())?;
    let words = line.rsplit(": ").next().unwrap_or_default();
    words.split_whitespace().next().and_then(|word| word.parse().ok()).with_context(|| line.to_owned())
}
