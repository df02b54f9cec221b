//! The fields of structs: one with many fields is several that share a name.
//!
//! Owns: the count of the fields of each struct in the sources of some crates, and its bound. Structs of tests do not
//! count. Those above the bound are listed in [`MANY`] with their number of fields, which may only shrink.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::house;

/// The crates whose structs are counted.
const COUNTED: &[&str] = &["crates/ram/src", "crates/store/src", "crates/volume/src"];
/// The most fields of a struct.
const FIELDS_MAX: usize = 20;
/// The structs that have more, each with its number of fields. Never raise a number, and remove an entry once its struct
/// is within the bound.
const MANY: &[(&str, usize)] = &[
    // One row of figures, whose fields are keys of the status.
    ("StoreStat", 39),
];

/// Returns the structs that have too many fields, one line each.
pub fn problems(root: &Path) -> Vec<String> {
    let mut fields = BTreeMap::new();
    for path in house::files(root, COUNTED, "rs") {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if let Ok(text) = fs::read_to_string(&path) {
            count(&text, &mut fields);
        }
    }
    judge(&fields, MANY)
}

/// Adds the number of fields of each struct in a text; of structs with one name, the largest counts.
fn count(text: &str, fields: &mut BTreeMap<String, usize>) {
    let mut open: Option<(String, String, usize)> = None;
    for line in text.lines() {
        match open.take() {
            // The tests at the end of a file do not count.
            None if line.trim() == "#[cfg(test)]" => return,
            Some((name, end, count)) if line == end => {
                let known = fields.entry(name).or_default();
                *known = count.max(*known);
            }
            Some((name, end, count)) => {
                let is_field = line.strip_prefix(&end[..end.len() - 1]).is_some_and(is_field);
                open = Some((name, end, count + usize::from(is_field)));
            }
            None => open = opened(line),
        }
    }
}

/// The name of the struct whose fields begin after a line, the line that ends it, and its number of fields so far.
fn opened(line: &str) -> Option<(String, String, usize)> {
    let code = line.trim_start();
    let rest = without_visibility(code).strip_prefix("struct ")?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    let indent = &line[..line.len() - code.len()];
    rest.ends_with('{').then(|| (name.to_owned(), format!("{indent}}}"), 0))
}

/// Whether the rest of a line, after the indent of its struct, is a field.
fn is_field(rest: &str) -> bool {
    let Some(code) = rest.strip_prefix("    ") else { return false };
    let name = without_visibility(code).split(':').next().unwrap_or_default();
    code.contains(':')
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// A definition without `pub` and what follows in parentheses.
fn without_visibility(code: &str) -> &str {
    let Some(rest) = code.strip_prefix("pub") else { return code };
    match rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")) {
        Some((_, rest)) => rest,
        None => rest.strip_prefix(' ').unwrap_or(code),
    }
}

fn judge(fields: &BTreeMap<String, usize>, many: &[(&str, usize)]) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, count) in fields {
        let known = many.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
        match known {
            Some(most) if *count > FIELDS_MAX && *count < most => {
                problems.push(format!("{name}: {count} fields; write {count} for {most} in MANY"));
            }
            Some(most) if *count <= FIELDS_MAX || *count == most => {}
            None if *count <= FIELDS_MAX => {}
            _ => problems.push(format!("{name}: {count} fields; at most {FIELDS_MAX}: give each part its own")),
        }
    }
    let is_within = |name: &str| fields.get(name).is_none_or(|count| *count <= FIELDS_MAX);
    let stale = many.iter().filter(|entry| is_within(entry.0));
    problems.extend(stale.map(|entry| format!("{}: it is within the bound; remove it from MANY", entry.0)));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> Vec<(String, usize)> {
        let mut fields = BTreeMap::new();
        count(text, &mut fields);
        fields.into_iter().collect()
    }

    #[test]
    fn fields_of_each_struct_counted() {
        let text = "/// A.\npub(crate) struct First<T> {\n    /// Its name: text.\n    pub name: T,\n    \
                    pub(super) at: (u64, u64),\n    #[serde(default)]\n    count_2: u64,\n}\n\
                    struct Empty;\nstruct Pair(u64, u64);\n\
                    mod inner {\n    pub struct Second {\n        only: u64,\n    }\n}\n\
                    fn main() {\n    let first = First {\n        name: 1,\n    };\n}\n\
                    #[cfg(test)]\nmod tests {\n    struct Third {\n        a: u64,\n    }\n}\n";
        assert_eq!(counted(text), [("First".to_owned(), 3), ("Second".to_owned(), 1)]);
    }

    /// A struct that is known to have more may only shrink.
    #[test]
    fn many_fields_are_bounded() {
        let fields = |count| BTreeMap::from([("Writer".to_owned(), count)]);
        let known = [("Writer", 30)];
        assert!(judge(&fields(FIELDS_MAX), &[]).is_empty() && judge(&fields(30), &known).is_empty());
        for (count, known) in [(FIELDS_MAX + 1, &[][..]), (31, &known[..]), (29, &known[..]), (FIELDS_MAX, &known[..])]
        {
            assert_eq!(judge(&fields(count), known).len(), 1, "{count}");
        }
        assert_eq!(judge(&BTreeMap::new(), &known).len(), 1, "one that is gone");
    }
}
