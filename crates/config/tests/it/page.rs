//! `docs/proxy-config.md` has every key, and no other.
//!
//! The columns of each table but the last are those of the keys in the sources; the last says what the proxy takes, and is
//! written by hand. `NECTARY_FREEZE=1` writes the tables again, and keeps the last column.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nectary_config::ProxyConfig;
use nectary_config::keys::{ConfigKey, ConfigTable, TABLES};

/// The head of each table of keys.
const HEAD: &str = "| key | value | default | example | meaning | today |\n|---|---|---|---|---|---|\n";
/// What stands in the last column of a new key.
const NOT_YET: &str = "not yet";

fn page() -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/proxy-config.md");
    let text = std::fs::read_to_string(&path).expect("the page");
    (path, text)
}

/// The heading of a table in the page.
fn heading(table: &ConfigTable) -> String {
    format!("### `{}`\n", table.header)
}

/// A row without its last column.
fn row(key: &ConfigKey) -> String {
    let code = |text: &str| {
        let is_value = text.starts_with(['"', '[', '{']) || text.bytes().all(|byte| byte.is_ascii_digit());
        let is_switch = matches!(text, "true" | "false");
        if (is_value && !text.contains("\", or")) || is_switch { format!("`{text}`") } else { text.to_owned() }
    };
    let (default, example) = (code(key.default), code(key.example));
    format!("| `{}` | {} | {default} | {example} | {} |", key.name, key.kind, key.meaning)
}

/// The part of the page from a table's heading to the next heading.
fn section<'a>(text: &'a str, table: &ConfigTable) -> Option<&'a str> {
    let (_, rest) = text.split_once(&heading(table))?;
    Some(rest.split_once("\n#").map_or(rest, |(section, _)| section))
}

/// The last columns of a section, by key.
fn last_columns(section: &str) -> BTreeMap<String, String> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let name = line.split('`').nth(1).unwrap_or_default().to_owned();
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim().to_owned();
        (name, last)
    })
    .collect()
}

/// The section of a table as it should be.
fn written(table: &ConfigTable, today: &BTreeMap<String, String>) -> String {
    let rows =
        table.keys().map(|key| format!("{} {} |\n", row(key), today.get(key.name).map_or(NOT_YET, String::as_str)));
    format!("\n{}\n\n{HEAD}{}", table.meaning, rows.collect::<String>())
}

#[test]
fn page_lists_exactly_all_keys() {
    let (path, mut text) = page();
    if std::env::var_os("NECTARY_FREEZE").is_some() {
        for table in TABLES {
            let old = section(&text, table).unwrap_or_else(|| panic!("no heading for {}", table.header)).to_owned();
            let new = written(table, &last_columns(&old));
            text = text.replacen(&format!("{}{old}", heading(table)), &format!("{}{new}", heading(table)), 1);
        }
        std::fs::write(path, &text).expect("the page can be written");
    }
    for table in TABLES {
        let section = section(&text, table).unwrap_or_else(|| panic!("no heading for {}", table.header));
        let today = last_columns(section);
        assert!(today.values().all(|last| !last.is_empty()), "{}: an empty last column", table.header);
        assert_eq!(section.trim(), written(table, &today).trim(), "{}: run with NECTARY_FREEZE=1", table.header);
    }
    let headings = text.matches("\n### `").count();
    assert_eq!(headings, TABLES.len(), "headings of tables");
}

#[test]
fn examples_of_the_page_are_right() {
    let (_, text) = page();
    let examples: Vec<_> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        match ProxyConfig::parse("docs/proxy-config.md", example) {
            Ok((_, warnings)) => assert!(warnings.is_empty(), "{}", warnings[0]),
            Err(problems) => panic!("{}", problems[0]),
        }
    }
}
