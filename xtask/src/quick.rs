//! The tests that a change needs first: those of the crates that it touches and of the crates that use them.
//!
//! Owns: the choice of crates from git's list of changed files. Crates whose tests take long ([`LONG_SECONDS`]) are left
//! out, and named at the end, unless the change is in them. Leaves to others: the checks and the tests themselves; only
//! `make test` runs everything.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::budgets;
use crate::metadata::{Package, Workspace};
use crate::process;

/// A crate with a larger budget is tested only if the change is in it. *Units*: seconds.
const LONG_SECONDS: u64 = 90;

/// What a change needs.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangedCrates {
    /// The crates to test; all if the change concerns the whole workspace.
    pub crates: Vec<String>,
    /// The crates that use what has changed, and whose tests take too long.
    pub left_out: Vec<String>,
}

/// Reads git's list of files that differ from `since`; by default from the upstream branch, or else from the last
/// commit.
///
/// *Errors*: git fails, or nothing differs.
pub fn choose(workspace: &Workspace, since: Option<&str>) -> Result<ChangedCrates> {
    let git = |arguments: &[&str]| process::output(Command::new("git").current_dir(&workspace.root).args(arguments));
    let since = match since {
        Some(since) => since.to_owned(),
        None => git(&["rev-parse", "--verify", "--quiet", "@{upstream}"]).unwrap_or_else(|_| "HEAD".to_owned()),
    };
    let base = git(&["merge-base", since.trim(), "HEAD"]).with_context(|| format!("--since {}", since.trim()))?;
    let changed = git(&["diff", "--name-only", base.trim()])? + &git(&["ls-files", "--others", "--exclude-standard"])?;
    let files: Vec<&Path> = changed.lines().map(Path::new).collect();
    println!("== quick: {} files differ from {}", files.len(), since.trim());
    if files.is_empty() {
        bail!("nothing differs from {}; --since REVISION names an earlier one", since.trim());
    }
    Ok(of_files(&files, &workspace.root, &workspace.members()))
}

fn of_files(files: &[&Path], root: &Path, members: &[&Package]) -> ChangedCrates {
    let owner = |file: &Path| {
        members.iter().find(|member| member.directory.strip_prefix(root).is_ok_and(|folder| file.starts_with(folder)))
    };
    let changed: BTreeSet<&str> = files.iter().filter_map(|file| Some(owner(file)?.name.as_str())).collect();
    let concerns_all = |file: &&&Path| owner(file).is_none() && file.extension().is_some_and(|ending| ending != "md");
    let mut needed: BTreeSet<&str> = match files.iter().find(concerns_all) {
        Some(_) => members.iter().map(|member| member.name.as_str()).collect(),
        None => changed.clone(),
    };
    // Each turn finds the users of what the turn before has found.
    loop {
        let is_user = |member: &&&Package| member.dependencies.iter().any(|used| needed.contains(used.name.as_str()));
        let users: Vec<&str> = members.iter().filter(is_user).map(|member| member.name.as_str()).collect();
        let before = needed.len();
        needed.extend(users);
        if needed.len() == before {
            break;
        }
    }
    let is_short = |name: &&str| changed.contains(name) || budgets::seconds(name) <= LONG_SECONDS;
    let (crates, left_out): (Vec<&str>, Vec<&str>) = needed.into_iter().partition(is_short);
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    ChangedCrates { crates: owned(crates), left_out: owned(left_out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::PackageDependency;

    fn package(name: &str, uses: &[&str]) -> Package {
        Package {
            id: name.to_owned(),
            name: name.to_owned(),
            version: String::new(),
            licence: String::new(),
            dependencies: uses.iter().map(|name| PackageDependency { name: (*name).to_owned(), dev: false }).collect(),
            is_member: true,
            directory: Path::new("/root/crates").join(name),
        }
    }

    #[test]
    fn change_needs_crate_and_users() {
        let packages = [
            package("nectary-block", &[]),
            package("nectary-store", &["nectary-block"]),
            package("nectary-proxy", &["nectary-store"]),
            package("nectary-e2e", &[]),
            package("nectary-sim", &["nectary-store"]),
        ];
        let members: Vec<&Package> = packages.iter().collect();
        let choice = |files: &[&str]| {
            let files: Vec<&Path> = files.iter().map(Path::new).collect();
            let choice = of_files(&files, Path::new("/root"), &members);
            (choice.crates.join(" "), choice.left_out.join(" "))
        };
        let words = |crates: &str, left_out: &str| (crates.to_owned(), left_out.to_owned());
        assert_eq!(choice(&["crates/nectary-proxy/src/lib.rs"]), words("nectary-proxy", ""));
        assert_eq!(choice(&["crates/nectary-store/x.rs"]), words("nectary-proxy nectary-store", "nectary-sim"));
        assert_eq!(choice(&["crates/nectary-sim/src/lib.rs"]), words("nectary-sim", ""));
        assert_eq!(choice(&["docs/cli.md"]), words("", ""));
        let all = words("nectary-block nectary-proxy nectary-store", "nectary-e2e nectary-sim");
        assert_eq!(choice(&["Cargo.toml"]), all);
    }
}
