//! The interface for scripts and dashboards stays the same: options, exit codes, JSON keys, and the figures of a
//! running proxy.
//!
//! Each list is a file in this folder. A change must be deliberate: `NECTARY_FREEZE=1` writes the files again, and the
//! commit shows what users have to change. `CHANGELOG.md` has a line for every removal.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::a_running_proxy::{ProxyChild, status};
use crate::common::CommandScratch;

/// Compares `found` with the list of this name, or writes the list if `NECTARY_FREEZE` is set.
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
    let help = CommandScratch::new("frozen-codes").run("--help").exits(0).text();
    let codes = help.split_once("Exit codes:\n").expect("a table").1;
    is_frozen("exit_codes.txt", codes);
}

/// Lists the keys of a JSON value with their types, one line each, for example `sequence.written: number`. All elements
/// of a list share a line: `spans[].device: text`.
fn typed_keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                typed_keys(inner, format!("{path}.{name}").trim_start_matches('.'), found);
            }
            return;
        }
        Value::Array(elements) => {
            return elements.iter().for_each(|inner| typed_keys(inner, &format!("{path}[]"), found));
        }
        Value::Null => "none",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "text",
    };
    found.insert(format!("{path}: {kind}"));
}

/// Lists the keys without their types.
fn keys(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    typed_keys(value, "", &mut found);
    found.iter().filter_map(|line| line.rsplit_once(": ")).map(|(key, _)| key.to_owned()).collect()
}

/// A running `nectary export` of devices with caches; it is killed when this is dropped.
struct ExportChild {
    child: Child,
    url: String,
}

impl ExportChild {
    fn new(scratch: &CommandScratch) -> ExportChild {
        let exported = ExportChild::start(scratch, "cache(memory:64M,memory=8M,policy=dear)", "e.sock");
        // This command reads and writes the device.
        scratch.run(&format!("store create {}", exported.url)).exits(0);
        exported
    }

    fn start(scratch: &CommandScratch, devices: &str, socket: &str) -> ExportChild {
        let mut command = scratch.command(&format!("export {devices} --nbd unix:./{socket}"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut url).expect("it prints its URL");
        ExportChild { child, url: url.trim_end().to_owned() }
    }
}

impl Drop for ExportChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Running caches are shown and changed; each kind of error has its exit code.
#[test]
fn cache_commands_set_exit_codes() {
    let scratch = CommandScratch::new("running-cache");
    scratch.run("top --once").exits(4);
    scratch.run("cache advise").exits(4).says("no cache runs");
    scratch.run("cache flush /dev/loop77").exits(4).says("nothing with a cache runs");
    let cache = ExportChild::new(&scratch);
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
    let two = ExportChild::start(&scratch, devices, "two.sock");
    let both = two.url.split_whitespace().next().unwrap_or_default().to_owned();
    scratch.run(&format!("cache set {both} --memory 9M")).exits(2).says("several caches side by side");
    scratch.run(&format!("cache flush {both}")).exits(0);
}

#[test]
fn json_keys_stay() {
    let scratch = CommandScratch::new("frozen-json");
    scratch.run("store create ./s --size 32M").exits(0);
    scratch.run_with("store put ./s greeting -", b"hello").exits(0);
    std::fs::write(scratch.file("a.trace"), "1\n2\n3\n1\n2\n").expect("a trace");
    let mut lines = String::new();
    let cache = ExportChild::new(&scratch);
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
        "ram simulate --size 16M --policy adaptive --only files-1 --streams 1 --rounds 1 --json",
    ] {
        let run = line.replace("NAME", &name);
        let value: Value = serde_json::from_slice(&scratch.run(&run).exits(0).output).expect("JSON");
        for key in keys(&value) {
            lines += &format!("nectary {line}: {key}\n");
        }
    }
    is_frozen("json_keys.txt", &lines);
}

/// Freezes the names of a running proxy's figures, as `nectary status --json` gives them to a monitor.
#[test]
fn figures_of_a_running_proxy_stay() {
    let scratch = CommandScratch::new("frozen-figures");
    let proxy = ProxyChild::start(&scratch, "--store ./s --admit second-request --write-budget 50G/day");
    let mut parts = status(&scratch, 0);
    // The problems of a part depend on the machine, so they are not compared.
    drop(parts[0]["status"]["problems"].take());
    let mut found = BTreeSet::new();
    typed_keys(&parts, "", &mut found);
    drop(proxy);
    is_frozen("proxy_figures.txt", &found.into_iter().map(|key| key + "\n").collect::<String>());
}

/// The parts of a help page on which scripts rely: the usage, options, arguments, and allowed words for values. Prose
/// and examples are left out.
struct HelpPage {
    usage: String,
    /// Options and arguments; if an option allows only certain words, with these words.
    entries: Vec<(String, BTreeSet<String>)>,
    commands: Vec<String>,
}

impl HelpPage {
    fn read(help: &str) -> HelpPage {
        let (_, rest) = help.split_once("Usage: ").expect("a usage");
        let (usage, rest) = rest.split_once("\n\n").unwrap_or((rest, ""));
        let usage = usage.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut page = HelpPage { usage, entries: Vec::new(), commands: Vec::new() };
        let mut section = "";
        let mut text = String::new();
        for line in rest.lines().chain(["end:"]) {
            let trimmed = line.trim();
            let is_heading = !line.starts_with(' ') && trimmed.ends_with(':');
            let name = trimmed.split("  ").next().unwrap_or_default();
            // The name of an entry is indented by 2 spaces, or by 6 if it is an option without a short form. The help
            // text of an entry is indented further.
            let depth = line.len() - line.trim_start().len();
            let is_entry = match section {
                "Arguments:" => depth == 2 && trimmed.starts_with(['<', '[']),
                "Options:" => matches!(depth, 2 | 6) && trimmed.starts_with('-'),
                _ => false,
            };
            if (is_heading || is_entry) && !text.is_empty() {
                page.entries.last_mut().expect("text belongs to an entry").1 = words(&text);
                text.clear();
            }
            if is_heading {
                section = trimmed;
            } else if is_entry {
                page.entries.push((name.to_owned(), BTreeSet::new()));
                text = trimmed.to_owned();
            } else if !text.is_empty() {
                text = format!("{text}\n{trimmed}");
            } else if section == "Commands:" && depth == 2 && !name.is_empty() && name != "help" {
                page.commands.push(name.to_owned());
            }
        }
        page
    }
}

/// Returns the allowed words of an option, from its text.
fn words(text: &str) -> BTreeSet<String> {
    if let Some((_, list)) = text.split_once("Possible values:\n") {
        let lines = list.lines().filter_map(|line| line.strip_prefix("- "));
        return lines.map(|line| line.split(':').next().unwrap_or(line).to_owned()).collect();
    }
    let flat = text.replace('\n', " ");
    let list = flat.split_once("[possible values: ").and_then(|(_, list)| list.split_once(']'));
    list.map_or_else(BTreeSet::new, |(list, _)| list.split(", ").map(str::to_owned).collect())
}

#[test]
fn options_of_every_command_stay() {
    let scratch = CommandScratch::new("frozen-options");
    let mut lines = String::new();
    let mut open = vec!["nectary".to_owned()];
    while let Some(command) = open.pop() {
        let line = format!("{} --help", command.trim_start_matches("nectary")).trim().to_owned();
        let page = HelpPage::read(&scratch.run(&line).exits(0).text());
        assert!(page.usage.starts_with(&command), "{command}: {}", page.usage);
        lines += &format!("{}\n", page.usage);
        for (entry, words) in page.entries {
            let words = words.into_iter().collect::<Vec<_>>().join(" ");
            lines += format!("{command}: {entry} {words}").trim_end();
            lines.push('\n');
        }
        // The list is reversed, because its last element is handled first.
        open.extend(page.commands.iter().rev().map(|name| format!("{command} {name}")));
    }
    is_frozen("options.txt", &lines);
}

#[test]
fn help_parser_skips_prose() {
    let help = "Does it\n\nExamples:\n  nectary x --not-this\n\nUsage: nectary x [OPTIONS]\n       <SPEC>\n\n\
        Commands:\n  go    Goes\n  help  Prints\n\nArguments:\n  <SPEC>  A device\n\n\
        Options:\n      --io <ENGINE>\n          How\n\n          Possible values:\n          - auto: the best\n\
        \u{20}         - posix\n\n  -q, --quiet         Less [possible\n                      values: a, b]\n\n\
        Exit codes:\n  0  done\n";
    let page = HelpPage::read(help);
    assert_eq!((page.usage.as_str(), page.commands), ("nectary x [OPTIONS] <SPEC>", vec!["go".to_owned()]));
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
    let expected =
        [("<SPEC>", words(&[])), ("--io <ENGINE>", words(&["auto", "posix"])), ("-q, --quiet", words(&["a", "b"]))];
    assert_eq!(page.entries, expected.map(|(name, words)| (name.to_owned(), words)));
}
