//! What scripts and dashboards build on stays as it is: exit codes and JSON keys.
//!
//! Each list is a file beside this one. A change is deliberate: `NECTARY_FREEZE=1` writes the files again, and the
//! commit shows what users have to change. `CHANGELOG.md` has a line for every removal.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

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

/// An exported device with a cache, which was used; it goes away in any outcome.
struct Exported {
    child: Child,
    url: String,
}

impl Exported {
    fn new(scratch: &Scratch) -> Exported {
        let exported = Exported::start(scratch, "cache(memory:64M,memory=8M,policy=dear)", "e.sock");
        // Something that reads and writes it.
        scratch.run(&format!("store create {}", exported.url)).exits(0);
        exported
    }

    fn start(scratch: &Scratch, devices: &str, socket: &str) -> Exported {
        let mut command = scratch.command(&format!("export {devices} --nbd unix:./{socket}"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut url).expect("it prints its URL");
        Exported { child, url: url.trim_end().to_owned() }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn running_caches_are_shown_and_changed_and_what_is_wrong_has_its_code() {
    let scratch = Scratch::new("running-cache");
    scratch.run("top --once").exits(4);
    scratch.run("cache advise").exits(4).says("no cache runs");
    scratch.run("cache flush /dev/loop77").exits(4).says("nothing with a cache runs");
    let cache = Exported::new(&scratch);
    let run = |line: &str| scratch.run(&line.replace("NAME", &cache.url));
    assert!(
        run("cache set NAME --policy lru --mode writeback").exits(0).text().contains("8M of memory, lru, writeback")
    );
    run("cache set NAME --memory 1K").exits(2).says("too little");
    run("cache set NAME --policy lirs --memory 1K").exits(2).says("too little");
    run("cache set NAME --memory 9M --policy best").exits(2).says("memory was set, policy was not");
    run("cache set NAME").exits(2).says("nothing to set");
    run("cache pin NAME").exits(1).says("unpin something");
    run("cache pin NAME --offset 65M").exits(2).says("behind the end");
    run("cache show NAME --offset many").exits(2);
    run("cache show /no/such/place").exits(4).says("there are");
    assert!(run("cache flush NAME").exits(0).text().contains("all of it is durable"));
    let metrics = run("top --prometheus --streams 1").exits(0).text();
    assert!(metrics.contains("# TYPE nectary_cache_misses_total counter"), "{metrics}");
    let frame = run("top NAME --once").exits(0).text();
    assert!(frame.contains("64M at ") && frame.contains("to MIN"), "{frame}");
    run("top --json --prometheus").exits(2);
    let devices = "a=cache(memory:16M,memory=8M,policy=lru) b=cache(memory:16M,memory=8M,policy=lirs)";
    let two = Exported::start(&scratch, devices, "two.sock");
    let both = two.url.split_whitespace().next().unwrap_or_default().to_owned();
    scratch.run(&format!("cache set {both} --memory 9M")).exits(2).says("several caches side by side");
    scratch.run(&format!("cache flush {both}")).exits(0);
}

#[test]
fn json_keys_stay() {
    let scratch = Scratch::new("frozen-json");
    scratch.run("store create ./s --size 32M").exits(0);
    scratch.run_with("store put ./s greeting -", b"hello").exits(0);
    std::fs::write(scratch.file("a.trace"), "1\n2\n3\n1\n2\n").expect("a trace");
    let mut lines = String::new();
    let cache = Exported::new(&scratch);
    let name = cache.url.clone();
    for line in [
        "store stat ./s --json",
        "store check ./s --json",
        "cache simulate a.trace --policy lru,adaptive --size 2 --json",
        "trace stat a.trace --json",
        "top --json",
        "cache show NAME --json",
        "cache pin NAME --length 64K --json",
        "cache unpin NAME --json",
        "cache set NAME --memory 9M --json",
        "cache flush NAME --json",
        "cache drop NAME --json",
        "cache advise NAME --json",
    ] {
        let run = line.replace("NAME", &name);
        let value: Value = serde_json::from_slice(&scratch.run(&run).exits(0).output).expect("JSON");
        let mut found = BTreeSet::new();
        keys(&value, "", &mut found);
        for key in found {
            lines += &format!("nectary {line}: {key}\n");
        }
    }
    is_frozen("json_keys.txt", &lines);
}
