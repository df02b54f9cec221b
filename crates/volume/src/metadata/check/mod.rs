//! Consistency checks: names against inodes, inodes against extents, extents against *space*, records against their
//! owners.
//!
//! Owns: reading all records, and comparing them in both directions. Promises: nothing is changed; bytes that cannot be
//! decoded are reported as problems and cause no panic; every kind of damage that `tests` plants is reported.
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

use crate::format::VolumeLabel;
use crate::tables::MetadataTables;

/// The maximum number of problems that are described; a damaged volume may have any number.
const PROBLEMS_MAX: usize = 10_000;

/// The problems that were found.
#[derive(Default)]
struct ProblemList {
    words: Vec<String>,
    more: u64,
}

impl ProblemList {
    fn add(&mut self, words: String) {
        match self.words.len() < PROBLEMS_MAX {
            true => self.words.push(words),
            false => self.more += 1,
        }
    }
}

/// Compares the records of a volume with each other; returns the contradictions.
pub fn check(tables: &MetadataTables, label: &VolumeLabel) -> Vec<String> {
    let mut problems = ProblemList::default();
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
