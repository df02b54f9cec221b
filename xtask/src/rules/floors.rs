//! The direction of dependencies: each crate has a floor (layer), and depends only on crates of lower floors.
//!
//! Owns: the table of floors, as in `docs/overview.svg`, and the table of frameworks that only certain crates may use.
//! A new crate fails the check until it has a floor here.

use crate::metadata::{Package, PackageDependency};

/// The floor of each crate; a crate may depend only on crates of lower floors.
const FLOORS: &[(&str, u8)] = &[
    ("nectary", 6),
    ("nectary-capi", 6),
    ("nectary-foyer", 6),
    ("nectary-proxy", 5),
    ("nectary-bench", 5),
    ("nectary-attach", 4),
    ("nectary-fleet", 4),
    ("nectary-volume", 3),
    ("nectary-trace", 3),
    ("nectary-ram", 3),
    ("nectary-buffer", 3),
    ("nectary-store", 3),
    ("nectary-cache", 2),
    ("nectary-fuse", 2),
    ("nectary-nbd", 2),
    ("nectary-host", 1),
    ("nectary-config", 1),
    ("nectary-block", 0),
];

/// Crates for tests only: they may depend on any floor; crates with a floor may use them only as dev-dependencies.
const BESIDE: &[&str] = &["nectary-features", "nectary-kit", "nectary-sim", "nectary-fuzz", "nectary-e2e", "xtask"];

/// Heavy frameworks, and the crates that may depend on each, so that other crates need not build them.
const FRAMEWORKS: &[(&str, &[&str])] = &[
    ("hyper", &["nectary-fleet", "nectary-proxy"]),
    ("prost", &["nectary-fleet"]),
    ("instant-acme", &["nectary-proxy"]),
    ("rustls", &["nectary-host", "nectary-proxy"]),
    ("clap", &["nectary"]),
    ("io-uring", &["nectary-block"]),
    ("foyer", &["nectary-foyer"]),
];

/// The dependencies of members that break a rule, one line each.
pub fn problems(members: &[&Package]) -> Vec<String> {
    let mut problems = Vec::new();
    let floor = |name: &str| FLOORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
    for member in members {
        let name = member.name.as_str();
        let is_beside = BESIDE.contains(&name);
        if !is_beside && floor(name).is_none() {
            problems.push(format!("{name} has no floor: give it one in xtask/src/rules/floors.rs"));
        }
        // A crate may be its own dev-dependency: its tests then use additional features.
        let is_self = |dependency: &&PackageDependency| dependency.name == name && dependency.dev;
        for dependency in member.dependencies.iter().filter(|dependency| !is_self(dependency)) {
            let other = dependency.name.as_str();
            let framework = FRAMEWORKS.iter().find(|entry| entry.0 == other && !entry.1.contains(&name));
            if let Some((_, owners)) = framework.filter(|_| !is_beside) {
                problems.push(format!("{name} depends on {other}, which only {} may", owners.join(" and ")));
            }
            if BESIDE.contains(&other) && !dependency.dev && !is_beside {
                problems.push(format!("{name} depends on {other}, which is for tests: make it a dev-dependency"));
            }
            if let (Some(above), Some(below)) = (floor(name), floor(other))
                && above <= below
            {
                problems.push(format!("{name} (floor {above}) depends on {other} (floor {below}), which is not lower"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
        Package {
            name: name.to_owned(),
            version: String::new(),
            licence: String::new(),
            dependencies: dependencies
                .iter()
                .map(|&(name, dev)| PackageDependency { name: name.to_owned(), dev })
                .collect(),
            is_member: true,
            id: String::new(),
            directory: std::path::PathBuf::new(),
        }
    }

    #[test]
    fn only_downward_dependencies_pass() {
        let good = package("nectary-store", &[("nectary-block", false), ("nectary-sim", true), ("tokio", false)]);
        assert_eq!(problems(&[&good]), Vec::<String>::new());
        for bad in [
            package("nectary-store", &[("nectary-proxy", false)]),
            package("nectary-store", &[("nectary-proxy", true)]),
            package("nectary-store", &[("nectary-store", false)]),
            package("nectary-store", &[("nectary-sim", false)]),
            package("nectary-store", &[("hyper", false)]),
            package("nectary-unheard-of", &[]),
        ] {
            assert_eq!(problems(&[&bad]).len(), 1, "{bad:?}");
        }
    }
}
