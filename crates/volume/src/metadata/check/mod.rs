//! What must agree: names with inodes, inodes with extents, extents with *space*, records with their owners.
//!
//! Owns: reading everything, and comparing it from all sides. Promises: it changes nothing; bytes that make no sense
//! are problems, not panics; every kind of damage that `tests` plants is named.
//!
//! | file | what is in it |
//! |---|---|
//! | `names` | inodes and directories: counts, links, cookies, types, the way to the root |
//! | `space` | *space*, and the extents of files |
//! | `records` | the record of the volume, attributes, orphans, sessions and what belongs to them |

mod names;
mod records;
mod space;
#[cfg(test)]
mod tests;

use crate::format::Label;
use crate::tables::Tables;

/// The most problems that are described; a damaged volume may have any number.
const PROBLEMS_MAX: usize = 10_000;

/// What was found.
#[derive(Default)]
struct Problems {
    words: Vec<String>,
    more: u64,
}

impl Problems {
    fn add(&mut self, words: String) {
        match self.words.len() < PROBLEMS_MAX {
            true => self.words.push(words),
            false => self.more += 1,
        }
    }
}

/// Compares the records of a volume from all sides; returns what does not agree.
pub fn check(tables: &Tables, label: &Label) -> Vec<String> {
    let mut problems = Problems::default();
    let inodes = names::inodes(tables, &mut problems);
    let volume = records::volume(tables, &inodes, &mut problems);
    names::names(tables, label, &inodes, &mut problems);
    let used = space::space(tables, label, volume.blocks, &inodes, &mut problems);
    records::used(&volume, used.values().map(|(_, space)| space.blocks), &mut problems);
    space::quarantined(tables, label, &used, &mut problems);
    space::extents(tables, volume.blocks, &inodes, &used, &mut problems);
    records::attributes(tables, &inodes, &mut problems);
    records::orphans(tables, &inodes, &mut problems);
    records::sessions(tables, &inodes, volume.next_session, &mut problems);
    records::others(tables, &mut problems);
    if problems.more > 0 {
        problems.words.push(format!("and {} more problems", problems.more));
    }
    problems.words
}
