//! The rooms (folders) of a crate: they depend on each other in one direction only, and their size is limited.
//!
//! Owns: three rules. A room of the store imports only from rooms that `lib.rs` lists before it, except in tests. Some
//! rooms import nothing from another one ([`APART`]). A folder of sources has at most [`FILES_MAX`] files; folders with more files are listed in [`CROWDED`] with their
//! number of files, which may only shrink.

use std::fs;
use std::path::Path;

use super::house;

/// The largest number of files in a folder; files in subfolders do not count.
const FILES_MAX: usize = 20;
/// The folders that have more files, with their limits. Never raise a limit, and remove it when it is no longer needed.
const CROWDED: &[(&str, usize)] = &[];
/// The crates whose rooms may import in one direction only.
const ORDERED: &[&str] = &["crates/store"];
/// Folders, each with a room of its crate of which it imports nothing.
const APART: &[(&str, &str)] = &[("crates/volume/src/server", "client"), ("crates/volume/src/client", "server")];
/// The largest depth of the folders that are searched.
const DEPTH_MAX: usize = 8;

/// Returns the violations of these rules, one line each.
pub fn problems(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for folder in ["crates", "xtask"] {
        crowded(root, &root.join(folder), DEPTH_MAX, &mut problems);
    }
    for name in ORDERED {
        let source = root.join(name).join("src");
        match fs::read_to_string(source.join("lib.rs")) {
            Ok(text) => {
                let rooms = listed(&text);
                if rooms.is_empty() {
                    problems.push(format!("{name}/src/lib.rs: lists no rooms"));
                }
                visit(&source, &source, &rooms, &mut problems);
            }
            Err(error) => problems.push(format!("{name}/src/lib.rs: {error}")),
        }
    }
    for (folder, other) in APART {
        for path in house::files(root, &[folder], "rs") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            problems.extend(imported(&text, other).map(|line| format!("{file}:{line}: it imports from {other}")));
        }
    }
    problems
}

/// The lines of a text that import from a room.
fn imported<'a>(text: &'a str, room: &'a str) -> impl Iterator<Item = usize> + 'a {
    let path = format!("crate::{room}");
    let is_import = move |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.split_once(&path).is_some_and(|(_, rest)| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    text.lines().zip(1..).filter(move |(line, _)| is_import(line)).map(|(_, number)| number)
}

/// The rooms in the order in which `lib.rs` declares them, the lowest first.
fn listed(text: &str) -> Vec<&str> {
    text.lines().filter_map(declared).collect()
}

/// The module that a line declares, if any.
fn declared(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))?;
    rest.strip_suffix(';')
}

fn visit(source: &Path, folder: &Path, rooms: &[&str], problems: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let Ok(inside) = path.strip_prefix(source) else { continue };
        if path.is_dir() {
            visit(source, &path, rooms, problems);
        } else if inside.extension().is_some_and(|extension| extension == "rs") && inside != Path::new("lib.rs") {
            match fs::read_to_string(&path) {
                Ok(text) => upward(rooms, &inside.display().to_string(), &text, problems),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
    }
}

/// Finds imports from rooms above the file's own room; `file` is the file's path below `src`.
fn upward(rooms: &[&str], file: &str, text: &str, problems: &mut Vec<String>) {
    // The path of modules from the crate's root to the file.
    let modules: Vec<&str> = file.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
    if modules.last() == Some(&"tests") {
        return;
    }
    let Some(own) = rooms.iter().position(|room| *room == modules[0]) else {
        problems.push(format!("{file}: lib.rs does not list this room"));
        return;
    };
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code = text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    let code = code.collect::<Vec<_>>().join("\n");
    let up = "super::".repeat(modules.len());
    for start in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(start) {
            // Skips this match if a longer chain of `super::` or a longer word contains it. A shorter chain does not
            // reach the crate's root.
            if code[..at].ends_with("super::") || code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let line = code[..at].lines().count().max(1);
            for name in names(&code[at + start.len()..]) {
                match rooms.iter().position(|room| *room == name) {
                    Some(other) if other <= own => {}
                    Some(_) => {
                        problems.push(format!("{file}:{line}: {} imports from {name}, a room above it", rooms[own]));
                    }
                    None => problems.push(format!("{file}:{line}: {name} hides the room that it is in: name the room")),
                }
            }
        }
    }
}

/// The first name of a path, or the first name of each path in braces.
fn names(path: &str) -> Vec<&str> {
    let Some(list) = path.strip_prefix('{') else { return vec![word(path)] };
    let mut depth = 0;
    let mut names = Vec::new();
    let mut begins = true;
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !character.is_whitespace() => {
                names.push(word(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn crowded(root: &Path, folder: &Path, depth: usize, problems: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let (mut count, mut folders) = (0, Vec::new());
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() && depth > 0 && !path.ends_with("target") {
            folders.push(path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            count += 1;
        }
    }
    let name = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
    if name.split('/').any(|part| part == "src") {
        problems.extend(too_many(&name, count, CROWDED));
    }
    folders.sort();
    folders.iter().for_each(|folder| crowded(root, folder, depth - 1, problems));
}

fn too_many(folder: &str, count: usize, crowded: &[(&str, usize)]) -> Option<String> {
    let known = crowded.iter().find(|(name, _)| *name == folder);
    match known {
        Some((_, most)) if count < *most => {
            Some(format!("{folder}: {count} files now: lower its bound in xtask/src/rules/rooms.rs"))
        }
        Some((_, most)) if count == *most && count > FILES_MAX => None,
        None if count <= FILES_MAX => None,
        _ => Some(format!("{folder}: {count} files in one folder; at most {FILES_MAX}: it hides rooms")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMS: &[&str] = &["error", "format", "state", "api"];

    fn found(file: &str, text: &str) -> usize {
        let mut problems = Vec::new();
        upward(ROOMS, file, text, &mut problems);
        problems.len()
    }

    /// An import from a room above is found however it is written.
    #[test]
    fn upward_room_import_is_found() {
        let good = "use crate::error::Error;\nuse crate::format::{self, Location};\n\
                    /// As [`Store`](crate::api::Store).\nfn a() { crate::error::b() }\n\
                    #[cfg(test)]\nmod tests { use crate::api::Store; }\n";
        assert_eq!(found("state/mod.rs", good), 0);
        assert_eq!(found("state/record.rs", good), 0);
        for planted in [
            "use crate::api::Store;\n",
            "use crate::{error::Error, api::{Store, Options}};\n",
            "fn a() { crate::api::store::b() }\n",
            "use crate::Store;\n",
        ] {
            assert_eq!(found("state/record.rs", planted), 1, "{planted}");
            assert_eq!(found("state/deep/in/it.rs", planted), 1, "{planted}");
        }
        assert_eq!(found("state/mod.rs", "use super::api::Store;\n"), 1);
        assert_eq!(found("state/record.rs", "use super::super::api::Store;\n"), 1);
        assert_eq!(found("state/record.rs", "use super::api::Store;\n"), 0, "a file of the same room");
        assert_eq!(found("cellar/mod.rs", ""), 1, "a room that is not listed");
        assert_eq!(found("state/tests.rs", "use crate::api::Store;\n"), 0);
    }

    #[test]
    fn import_between_apart_rooms_found() {
        let text = "//! As crate::client.\nuse crate::client::{Error, open};\nuse crate::clients::All;\n\
                    fn a() { crate::client::b() }\n";
        assert_eq!(imported(text, "client").collect::<Vec<_>>(), [2, 4]);
        assert_eq!(imported(text, "server").count(), 0);
    }

    #[test]
    fn rooms_keep_declaration_order() {
        assert_eq!(
            listed("//! mod x;\n// Below.\nmod error;\n\npub mod format;\npub use format::A;\n"),
            ["error", "format"]
        );
    }

    /// A folder that is known to have more files may only shrink.
    #[test]
    fn folder_size_is_bounded() {
        let known = [("a/src", 30)];
        assert_eq!(too_many("b/src", FILES_MAX, &known), None);
        assert!(too_many("b/src", FILES_MAX + 1, &known).is_some());
        assert_eq!(too_many("a/src", 30, &known), None);
        assert!(too_many("a/src", 31, &known).is_some() && too_many("a/src", 29, &known).is_some());
    }
}
