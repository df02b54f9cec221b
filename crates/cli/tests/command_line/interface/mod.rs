//! What scripts and dashboards build on stays as it is: exit codes and JSON keys.
//!
//! Each list is a file beside this one. A change is deliberate: `NECTARY_FREEZE=1` writes the files again, and the
//! commit shows what users have to change. `CHANGELOG.md` has a line for every removal.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::Scratch;

/// Compares with the list of this name, or writes it if `NECTARY_FREEZE` is set.
#[track_caller]
fn is_frozen(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/command_line/interface").join(name);
    if std::env::var_os("NECTARY_FREEZE").is_some() {
        std::fs::write(&path, found).expect("the list can be written");
    }
    let frozen = std::fs::read_to_string(&path).unwrap_or_default();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, now) = (lines(&frozen), lines(found));
    let differences: Vec<String> = before
        .difference(&now)
        .map(|line| format!("- {line}"))
        .chain(now.difference(&before).map(|line| format!("+ {line}")))
        .collect();
    assert!(
        differences.is_empty(),
        "{name} differs; if that is meant, run this test with NECTARY_FREEZE=1 and say so in CHANGELOG.md:\n{}",
        differences.join("\n")
    );
}

#[test]
fn exit_codes_stay() {
    let help = Scratch::new("frozen-codes").run("--help").exits(0).text();
    let codes = help.split_once("Exit codes:\n").expect("a table").1;
    is_frozen("exit_codes.txt", codes);
}

/// The keys of a JSON value, one line each, as `sequence.written`. Elements of lists are alike: `spans[].device`.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                keys(inner, format!("{path}.{name}").trim_start_matches('.'), found);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|inner| keys(inner, &format!("{path}[]"), found)),
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn json_keys_stay() {
    let scratch = Scratch::new("frozen-json");
    scratch.run("store create ./s --size 32M").exits(0);
    scratch.run_with("store put ./s greeting -", b"hello").exits(0);
    std::fs::write(scratch.file("a.trace"), "1\n2\n3\n1\n2\n").expect("a trace");
    let mut lines = String::new();
    for line in [
        "store stat ./s --json",
        "store check ./s --json",
        "cache simulate a.trace --policy lru,adaptive --size 2 --json",
        "trace stat a.trace --json",
        "ram simulate --size 16M --policy adaptive --only files-1 --streams 1 --rounds 1 --json",
    ] {
        let value: Value = serde_json::from_slice(&scratch.run(line).exits(0).output).expect("JSON");
        let mut found = BTreeSet::new();
        keys(&value, "", &mut found);
        for key in found {
            lines += &format!("nectary {line}: {key}\n");
        }
    }
    is_frozen("json_keys.txt", &lines);
}
