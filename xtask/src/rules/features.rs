//! One set of features, whichever of our crates are built: so no build compiles another's crates a second time.
//!
//! Owns: the comparison of the features that cargo enables for the tests of the whole workspace with those for the tests
//! of each member alone. What differs among the crates of others belongs into `crates/features/Cargo.toml`; a feature of
//! ours (`planted`, `conformance`) into the dev-dependencies of the member.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::metadata::{Workspace, cargo};
use crate::process;

/// The differences, one line each.
pub fn problems(workspace: &Workspace) -> Vec<String> {
    let all = match enabled(workspace, &["--workspace"]) {
        Ok(all) => all,
        Err(error) => return vec![format!("{error:#}")],
    };
    let mut problems = Vec::new();
    for member in workspace.members() {
        match enabled(workspace, &["--package", &member.name]) {
            Ok(alone) => problems.extend(differences(&member.name, &all, &alone)),
            Err(error) => problems.push(format!("{}: {error:#}", member.name)),
        }
    }
    problems
}

/// The packages that a build uses, each as `name vVERSION|FEATURES`.
fn enabled(workspace: &Workspace, packages: &[&str]) -> Result<BTreeSet<String>> {
    let mut tree = cargo();
    tree.current_dir(&workspace.root).args(["tree", "--locked", "--prefix", "none", "--format", "{p}|{f}"]);
    let text = process::output(tree.args(["--edges", "normal,build,dev"]).args(packages)).context("cargo tree")?;
    Ok(text.lines().map(line).filter(|line| line.contains('|')).collect())
}

/// A line without what is no part of the package: whether it was shown before, whether it is a macro, where it is.
fn line(text: &str) -> String {
    let (package, features) = text.split_once('|').unwrap_or((text, ""));
    let package: Vec<&str> = package.split(' ').take(2).collect();
    format!("{}|{}", package.join(" "), features.trim_end_matches(" (*)"))
}

fn differences(member: &str, all: &BTreeSet<String>, alone: &BTreeSet<String>) -> Vec<String> {
    let own = format!("{member} ");
    let mut problems = Vec::new();
    for package in alone.difference(all).filter(|package| !package.starts_with(&own)) {
        let (name, features) = package.split_once('|').unwrap_or((package, ""));
        let same = format!("{name}|");
        let wanted: Vec<&str> = all.iter().filter_map(|package| package.strip_prefix(&same)).collect();
        let place = if name.starts_with("nectary") { "its dev-dependencies" } else { "crates/features/Cargo.toml" };
        problems.push(format!(
            "{member} alone builds {name} with the features [{features}], not [{}] as the workspace does: name the rest in \
             {place}",
            wanted.join("] or [")
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_member_features_are_named() {
        let set = |lines: &[&str]| lines.iter().map(|text| line(text)).collect::<BTreeSet<_>>();
        let all = set(&["tokio v1.54.1|net,rt (*)", "syn v2.0.1 (proc-macro)|full", "nectary-a v0.1.0 (/a)|planted"]);
        let good = set(&["tokio v1.54.1|net,rt", "syn v2.0.1|full (*)", "nectary-a v0.1.0 (/elsewhere)|"]);
        assert_eq!(differences("nectary-a", &all, &good), Vec::<String>::new());
        let found = differences("nectary-b", &all, &good);
        assert!(matches!(&found[..], [only] if only.contains("[planted]") && only.contains("dev-dep")), "{found:?}");
        let found = differences("nectary-b", &all, &set(&["tokio v1.54.1|net"]));
        assert!(
            matches!(&found[..], [only] if only.contains("[net,rt]") && only.contains("crates/features")),
            "{found:?}"
        );
    }
}
