//! The C header matches the Rust code: it has the same calls, with the same arguments, and the same numbers.

use std::collections::BTreeMap;

const HEADER: &str = include_str!("../../include/nectary.h");
const RUST: &str = include_str!("../../src/lib.rs");
const ERRORS: &str = include_str!("../../src/error.rs");

/// The name of each call, and the C types of its result and its arguments.
type Calls = BTreeMap<String, Vec<String>>;

fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("* ", "*").replace(" *", "*")
}

/// The calls that a header declares.
fn declared(header: &str) -> Calls {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    code.push_str(rest);
    let code: String = code.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let calls = code.split(';').filter_map(|statement| {
        let (left, arguments) = statement.split_once('(')?;
        let start = left.rfind("nectary_")?;
        let types = arguments.trim_end().strip_suffix(')')?.split(',').filter_map(|argument| {
            let argument = squeeze(argument);
            let name = argument.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |index| index + 1);
            (argument != "void").then(|| argument[..name].trim().to_owned())
        });
        let result = squeeze(left[..start].rsplit(['{', '}']).next()?);
        Some((left[start..].trim().to_owned(), [result].into_iter().chain(types).collect()))
    });
    calls.collect()
}

/// The calls that the library exports.
fn exported(source: &str) -> Calls {
    let calls = source.split("#[unsafe(no_mangle)]").skip(1).filter_map(|item| {
        let (_, item) = item.split_once("extern \"C\" fn ")?;
        let (name, rest) = item.split_once('(')?;
        let (arguments, rest) = rest.split_once(')')?;
        let result = rest.split_once("->")?.1.split_once('{')?.0;
        let types = arguments.split(',').filter_map(|argument| argument.split_once(':').map(|pair| in_c(pair.1)));
        Some((name.to_owned(), [in_c(result)].into_iter().chain(types).collect()))
    });
    calls.collect()
}

/// The C type for a Rust type.
fn in_c(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{}*", in_c(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("const {}*", in_c(inner));
    }
    match rust {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "nectary_store" => "nectary_store",
        other => panic!("{other} has no type in C here"),
    }
    .to_owned()
}

/// Finds the numbers that a text defines, by name. A definition is a line with `prefix`, a name and a number.
fn numbers(text: &str, prefix: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let words = lines.filter_map(|line| {
        let mut words = line.split([' ', ':', '=', ';']).filter(|word| !word.is_empty() && *word != "c_int");
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    words.filter(|(name, _)| name.starts_with("NECTARY_")).collect()
}

#[test]
fn header_declares_exported_functions() {
    let (declared, exported) = (declared(HEADER), exported(RUST));
    assert_eq!(declared, exported);
    let six = ["write_file", "read_file", "done_read_file", "delete_file", "collocate_files", "write_nomem_file"];
    let others = ["open", "close", "last_error"];
    for name in six.iter().chain(&others) {
        assert!(declared.contains_key(&format!("nectary_{name}")), "{name}");
    }
    assert_eq!(declared.len(), six.len() + others.len());
}

/// The library's calls, their types, and its numbers change only on purpose: they must be those in `interface.txt`.
/// `NECTARY_FREEZE=1` rewrites that file, and `CHANGELOG.md` needs a line for everything that is removed.
#[test]
fn header_interface_stays_frozen() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interface.txt");
    let calls =
        declared(HEADER).into_iter().map(|(name, types)| format!("{} {name}({})", types[0], types[1..].join(", ")));
    let numbers = numbers(HEADER, "#define ").into_iter().map(|(name, value)| format!("{name} {value}"));
    let found: String = calls.chain(numbers).map(|line| line + "\n").collect();
    if std::env::var_os("NECTARY_FREEZE").is_some() {
        std::fs::write(path, &found).expect("the list can be written");
    }
    let frozen = std::fs::read_to_string(path).expect("the list is there");
    assert_eq!(found, frozen, "if that is meant, run this test with NECTARY_FREEZE=1 and say so in CHANGELOG.md");
}

#[test]
fn a_header_that_differs_is_noticed() {
    let exported = exported(RUST);
    for (old, new) in [
        ("size_t *length);", "uint64_t *length);"),
        ("uint64_t create_bytes, ", ""),
        ("const char *nectary_last_error(void);", ""),
        ("int nectary_close(", "void nectary_close("),
    ] {
        let planted = HEADER.replacen(old, new, 1);
        assert!(planted != HEADER && declared(&planted) != exported, "{old}");
    }
}

#[test]
fn header_numbers_match_library() {
    let mut defined = numbers(HEADER, "#define ");
    let bounds = [
        ("NECTARY_NAME_BYTES_MAX", nectary::NECTARY_NAME_BYTES_MAX),
        ("NECTARY_SPEC_BYTES_MAX", nectary::NECTARY_SPEC_BYTES_MAX),
    ];
    for (name, value) in bounds {
        assert_eq!(defined.remove(name), Some(value.to_string()), "{name}");
    }
    let codes = numbers(ERRORS, "pub const ");
    assert_eq!(codes.len(), 8);
    assert_eq!(defined, codes);
}

/// The page also names the example.
#[test]
fn page_names_calls_and_codes() {
    let page = include_str!("../../../../docs/capi.md");
    for name in declared(HEADER).keys() {
        assert!(page.contains(&format!("| `{name}` | ")), "{name}");
    }
    // Each code is listed with its number.
    for (name, value) in numbers(ERRORS, "pub const ") {
        assert!(page.contains(&format!("| `{name}` {value} |")), "{name}");
    }
    assert!(page.contains("(../crates/capi/examples/pages.c)"));
}
