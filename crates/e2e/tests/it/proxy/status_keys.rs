//! Scripts read `nectary status --json`, so its names must not change.

use anyhow::{Context, Result};
use nectary_e2e::nectary::ProxyCommand;
use nectary_e2e::scratch::ScratchFolder;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// The keys of the status of a proxy, as paths, one per line.
const KNOWN: &str = include_str!("../../golden/status_keys.txt");
/// The path of the proxy's own counters, each of which must be known; other parts of the status may get new keys.
const COUNTERS: &str = "detail/requests/";

/// Collects every key of a value as a path; keys of a list's elements are below `[]`.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            keys(value, &path, found);
            found.insert(path);
        }),
        Value::Array(elements) => elements.iter().for_each(|element| keys(element, &format!("{path}[]"), found)),
        _ => {}
    }
}

#[test]
fn what_status_calls_its_figures_stays() -> Result<()> {
    let scratch = ScratchFolder::new("status-keys")?;
    let mut nectary = ProxyCommand::new(scratch.path(), None)?.start()?;
    let mut found = BTreeSet::new();
    keys(&nectary.control()?.status().context("a status")?, "", &mut found);
    nectary.terminate(Duration::from_secs(20))?;
    let known: BTreeSet<String> = KNOWN.lines().map(str::to_owned).collect();
    let gone: Vec<_> = known.difference(&found).collect();
    let new: Vec<_> = found.difference(&known).filter(|key| key.starts_with(COUNTERS)).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "scripts read these by name. Gone: {gone:?}. New: {new:?}; a line in tests/golden/status_keys.txt makes one known"
    );
    Ok(())
}
