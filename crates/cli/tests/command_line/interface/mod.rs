//! What scripts and dashboards build on stays as it is: options, possible values, exit codes, JSON keys.
//!
//! Each list is a file beside this one. A change is deliberate: `NECTARY_FREEZE=1` writes the files again, and the commit
//! shows what users have to change. `CHANGELOG.md` has a line for whatever is taken away.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::Scratch;

/// Compares with the list of this name, or writes it where `NECTARY_FREEZE` is set.
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

/// The first words of the lines of a section of a help text that are indented as deep as its first line.
fn names(help: &str, section: &str) -> Vec<String> {
    let lines: Vec<&str> = help.lines().skip_while(|line| *line != section).skip(1).collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let Some(first) = lines.first().map(|line| depth(line)) else { return Vec::new() };
    let inside = lines.iter().take_while(|line| line.is_empty() || depth(line) > 0);
    let named = inside.filter(|line| !line.is_empty() && depth(line) == first);
    named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The options of a help text with the names of their values, one line each: `--size <BYTES>`, `--io <ENGINE> uring`.
fn options(help: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut option = String::new();
    for line in help.lines() {
        let text = line.trim_start();
        if text.starts_with('-') && (text.starts_with("--") || text.as_bytes().get(2).is_none_or(|byte| *byte == b','))
        {
            // A short help text explains behind two blanks.
            text.split("  ").next().unwrap_or(text).clone_into(&mut option);
            found.push(option.clone());
        } else if let Some(value) = text.strip_prefix("- ") {
            let value = value.split([':', ' ']).next().unwrap_or(value);
            found.push(format!("{option} {value}"));
        } else if let Some(values) = text.strip_prefix("[possible values: ") {
            found.extend(values.trim_end_matches(']').split(", ").map(|value| format!("{option} {value}")));
        }
    }
    found
}

/// Appends the options of a command and of the commands below it.
fn walk(scratch: &Scratch, command: &str, lines: &mut String) {
    let help = scratch.run(&format!("{command} --help")).exits(0).text();
    let title = format!("nectary {command}");
    for option in options(&help) {
        *lines += &format!("{} {option}\n", title.trim_end());
    }
    for argument in names(&help, "Arguments:") {
        *lines += &format!("{} {argument}\n", title.trim_end());
    }
    for name in names(&help, "Commands:").into_iter().filter(|name| name != "help") {
        walk(scratch, format!("{command} {name}").trim_start(), lines);
    }
}

#[test]
fn options_and_their_values_stay() {
    let mut lines = String::new();
    walk(&Scratch::new("frozen-options"), "", &mut lines);
    // The walk reached commands of commands, options and values.
    for line in
        ["nectary store get <SPEC>", "nectary proxy --listen <ADDRESS>", "nectary store stat --io <ENGINE> posix"]
    {
        assert!(lines.lines().any(|known| known == line), "{line} is not among\n{lines}");
    }
    is_frozen("options.txt", &lines);
}

#[test]
fn exit_codes_stay() {
    let help = Scratch::new("frozen-codes").run("--help").exits(0).text();
    let codes = help.split_once("Exit codes:\n").expect("a table").1;
    is_frozen("exit_codes.txt", codes);
}

/// The keys of a JSON value, one line each, as `sequence.written: number`. Elements of lists are alike: `spans[].device`.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                keys(inner, format!("{path}.{name}").trim_start_matches('.'), found);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|inner| keys(inner, &format!("{path}[]"), found)),
        Value::String(_) => drop(found.insert(format!("{path}: text"))),
        Value::Number(_) => drop(found.insert(format!("{path}: number"))),
        Value::Bool(_) => drop(found.insert(format!("{path}: bool"))),
        Value::Null => drop(found.insert(format!("{path}: null"))),
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
