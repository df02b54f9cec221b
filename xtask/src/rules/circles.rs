//! Finds circles between the files of a crate: files that import each other, directly or indirectly.
//!
//! Owns: the reading of imports, and the search for circles in `crates/*/src`. A circle is allowed if a line `//!
//! *Circle*: why` in one of its files defends it. Imports in tests do not count. Imports of the crate's front file, or
//! of the front file of a folder that contains the importing file, do not count either, because a front file holds the
//! common parts of the files below it. The front file of a folder is `mod.rs` or the file with the folder's name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The imports of each module of a crate, by path such as `service::hit`; the crate's root is the empty path.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The line that defends a circle.
const DEFENCE: &str = "//! *Circle*:";
/// The crates that have undefended circles, each with the number of its files in such circles. Never raise a number,
/// and remove an entry once its number is 0.
const OPEN: &[(&str, usize)] = &[];
/// The largest depth of the folders that are searched.
const DEPTH_MAX: usize = 8;

/// Returns the circles that no comment defends, one line each.
pub fn problems(root: &Path) -> Vec<String> {
    let Ok(crates) = fs::read_dir(root.join("crates")) else { return vec!["there is no folder crates".to_owned()] };
    let mut folders: Vec<_> = crates.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    let mut problems = Vec::new();
    for folder in folders {
        let mut sources = BTreeMap::new();
        collect(&folder.join("src"), "", DEPTH_MAX, &mut sources);
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let allowed = OPEN.iter().find(|entry| entry.0 == name).map_or(0, |entry| entry.1);
        judge(&name, allowed, &undefended(&sources), &mut problems);
    }
    problems
}

/// Compares the number of files in circles of a crate with the allowed number.
fn judge(name: &str, allowed: usize, circles: &[Vec<String>], problems: &mut Vec<String>) {
    let files: usize = circles.iter().map(Vec::len).sum();
    if files < allowed {
        problems
            .push(format!("crates/{name}/src: {files} files stand in circles; write {files} for {allowed} in OPEN"));
    }
    if files > allowed {
        problems.extend(circles.iter().map(|circle| {
            format!(
                "crates/{name}/src: {} import each other; open the circle, or defend it with `{DEFENCE} why`",
                circle.join(", ")
            )
        }));
    }
}

/// The undefended circles of a crate, given the text of each of its modules.
fn undefended(sources: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let modules: BTreeSet<&str> = sources.keys().map(String::as_str).collect();
    let imports: Imports =
        sources.iter().map(|(module, text)| (module.clone(), imports_of(module, text, &modules))).collect();
    let is_defended =
        |circle: &[String]| circle.iter().any(|module| sources[module].lines().any(|line| line.starts_with(DEFENCE)));
    circles(&imports).into_iter().filter(|circle| !is_defended(circle)).collect()
}

/// Reads the modules below a folder, except files of tests.
fn collect(folder: &Path, module: &str, depth: usize, sources: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if matches!(stem.as_str(), "tests" | "bin" | "main") || stem.ends_with("_tests") {
            continue;
        }
        let inner = if module.is_empty() { stem.clone() } else { format!("{module}::{stem}") };
        if path.is_dir() && depth > 0 {
            collect(&path, &inner, depth - 1, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = if matches!(stem.as_str(), "lib" | "mod") { module.to_owned() } else { inner };
            if let Ok(text) = fs::read_to_string(&path) {
                sources.insert(name, text);
            }
        }
    }
}

/// The modules that the code of a module imports.
fn imports_of(module: &str, text: &str, modules: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut code = String::new();
    // The tests at the end of a file do not count.
    for line in text.lines().take_while(|line| line.trim() != "#[cfg(test)]") {
        code += line.split("//").next().unwrap_or_default();
        code.push('\n');
    }
    let mut found = BTreeSet::new();
    for start in ["crate", "super", "self"] {
        for (at, _) in code.match_indices(&format!("{start}::")) {
            if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                paths(&code[at..], &mut |path| found.extend(resolve(module, path, modules)));
            }
        }
    }
    found.retain(|other| other != module && !is_front_of(other, module));
    found
}

/// Whether `front` is the crate's front file, or the front file of a folder that contains `module`.
fn is_front_of(front: &str, module: &str) -> bool {
    front.is_empty() || module.strip_prefix(front).is_some_and(|rest| rest.starts_with("::"))
}

/// Finds every path of the import at the start of a text: `a::{b, c::d}` has the paths `a::b` and `a::c::d`.
fn paths(text: &str, found: &mut impl FnMut(&[&str])) {
    /// Reads the tree of names after the path `before`; returns the rest of the text.
    fn tree<'a>(mut text: &'a str, before: &mut Vec<&'a str>, found: &mut impl FnMut(&[&str])) -> &'a str {
        let depth = before.len();
        loop {
            text = text.trim_start();
            if let Some(inner) = text.strip_prefix('{') {
                text = inner;
                while !text.is_empty() {
                    let rest = tree(text, before, found).trim_start();
                    match rest.strip_prefix(',') {
                        Some(after) if !after.trim_start().starts_with('}') => text = after,
                        other => {
                            let rest = other.unwrap_or(rest).trim_start();
                            text = rest.strip_prefix('}').unwrap_or("");
                            break;
                        }
                    }
                }
                break;
            }
            let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
            before.push(&text[..end]);
            text = &text[end..];
            match text.strip_prefix("::") {
                Some(rest) if rest.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '{') => text = rest,
                _ => {
                    found(before);
                    break;
                }
            }
        }
        before.truncate(depth);
        text
    }
    tree(text, &mut Vec::new(), found);
}

/// The module that a path refers to, as seen from another module: the longest prefix of the path that is a module.
fn resolve(from: &str, path: &[&str], modules: &BTreeSet<&str>) -> Option<String> {
    let mut at: Vec<&str> = Vec::new();
    if path.first() != Some(&"crate") {
        at.extend(from.split("::").filter(|part| !part.is_empty()));
    }
    for part in path {
        match *part {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            name => {
                at.push(name);
                if !modules.contains(at.join("::").as_str()) {
                    at.pop();
                    break;
                }
            }
        }
    }
    let module = at.join("::");
    modules.contains(module.as_str()).then_some(module)
}

/// The circles: sets of two or more modules in which each module reaches every other.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|module| (module.as_str(), reach(module, imports))).collect();
    let mut circles: Vec<Vec<String>> = Vec::new();
    for (module, there) in &reached {
        if circles.iter().flatten().any(|known| known == module) || !there.contains(module) {
            continue;
        }
        let members = there.iter().filter(|other| reached.get(**other).is_some_and(|back| back.contains(module)));
        circles.push(members.map(|member| (*member).to_owned()).collect());
    }
    circles
}

/// The modules that a module reaches through one or more imports.
fn reach<'a>(module: &str, imports: &'a Imports) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = imports[module].iter().map(String::as_str).collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(imports.get(module).into_iter().flatten().map(String::as_str));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        texts.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned())).collect()
    }

    /// A circle is found whichever way an import is written.
    #[test]
    fn circle_is_always_found() {
        let open = [
            ("", "mod a; mod b; pub use a::A;"),
            ("a", "use crate::b::{\n    c::{C, D},\n    E,\n};\n"),
            ("b", "pub mod c;\nuse self::c::C;\n"),
            ("b::c", "use super::E; use crate::A;\n// crate::a::A\n#[cfg(test)]\nmod tests { use crate::a::A; }\n"),
        ];
        assert_eq!(undefended(&sources(&open)), Vec::<Vec<String>>::new());
        for back in ["use crate::a::A;", "use super::super::a::A;", "use crate::{x, a::A};", "fn f() { crate::a::f() }"]
        {
            let mut closed = open;
            closed[3].1 = back;
            assert_eq!(undefended(&sources(&closed)), [["a", "b", "b::c"]], "{back}");
        }
    }

    #[test]
    fn circle_baseline_only_shrinks() {
        for (allowed, files, is_good) in [(2, 1, false), (2, 2, true), (2, 3, false), (0, 0, true), (0, 2, false)] {
            let circle = vec!["a".to_owned(); files];
            let mut problems = Vec::new();
            judge("a", allowed, &[circle], &mut problems);
            assert_eq!(problems.is_empty(), is_good, "{files} of {allowed}: {problems:?}");
        }
    }

    #[test]
    fn defended_circle_is_ignored() {
        let circle = sources(&[("", ""), ("a", "use crate::b::B;"), ("b", "//! B.\nuse crate::a::A;")]);
        assert_eq!(undefended(&circle), [["a", "b"]]);
        let circle = sources(&[("", ""), ("a", "use crate::b::B;"), ("b", "//! *Circle*: a is b.\nuse crate::a::A;")]);
        assert!(undefended(&circle).is_empty());
    }
}
