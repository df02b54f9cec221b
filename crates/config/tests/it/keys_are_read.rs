//! Every key of the tables is read: a value that suits no key is told wherever it stands.

use nectary_config::ProxyConfig;
use nectary_config::keys::{ConfigTable, TABLES};

/// A file in which a key of a table has this value, and all else is right.
fn file(table: &ConfigTable, key: &str, value: &str) -> String {
    let set = format!("{key} = {value}");
    let header = table.header;
    let (inside, outside) = match header {
        "servers = [{ … }]" => ("[origins.x]\nservers = [{ ", " }]"),
        "check = { … }" => ("[origins.x.check]\n", ""),
        "eject = { … }" => ("[origins.x.eject]\n", ""),
        "request-headers = { … }, response-headers = { … }" => {
            ("[[site]]\n[[site.route]]\n[site.route.request-headers]\n", "")
        }
        "redirect = { … }" => ("[[site]]\n[[site.route]]\n[site.route.redirect]\n", ""),
        "[origins.NAME]" => ("[origins.x]\n", ""),
        "[[site.route]]" => ("[[site]]\n[[site.route]]\n", ""),
        _ => (header, ""),
    };
    format!("{inside}\n{set}\n{outside}").replace("[{ \n", "[{ ").replace("\n\n }]", " }]").replace("\n }]", " }]")
}

#[test]
fn all_table_keys_are_read() {
    for table in TABLES {
        for key in table.keys() {
            let text = file(table, key.name, "1979-05-27");
            let problems = ProxyConfig::parse("proxy.toml", &text).expect_err("a date is nowhere right");
            let told = problems.iter().any(|problem| problem.message().contains("a date"));
            assert!(told, "{} {}: {text}\n{problems:?}", table.header, key.name);
        }
    }
}

#[test]
fn tables_have_each_key_once() {
    for table in TABLES {
        let mut names: Vec<_> = table.keys().map(|key| key.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table.keys().count(), "{}", table.header);
        for key in table.keys() {
            assert!(key.meaning.ends_with('.'), "{} {}", table.header, key.name);
            assert!([key.kind, key.default, key.example].iter().all(|text| !text.is_empty() && !text.contains('|')));
        }
    }
}

/// The example of each key is a value that the key may have.
#[test]
fn examples_are_right() {
    for table in TABLES {
        for key in table.keys().filter(|key| key.example != "see below") {
            let text = file(table, key.name, key.example);
            let problems = ProxyConfig::parse("proxy.toml", &text).expect_err("a part of a file");
            let line = text.lines().position(|line| line.contains(&format!("{} = ", key.name))).expect("the key") + 1;
            let wrong = problems.iter().find(|problem| {
                let missing = problem.message().contains("missing")
                    || problem.message().contains("no origin")
                    || problem.message().contains("without")
                    || problem.message().contains("there is no certificate")
                    || problem.message().contains("nowhere to send");
                problem.place().line as usize == line && !missing
            });
            assert!(wrong.is_none(), "{} {}: {}", table.header, key.name, wrong.expect("a problem"));
        }
    }
}
