//! Tests that miss counts equal those of an external program, on traces made from a seed, at sizes at which the
//! policies differ.
//!
//! The program `research policies-outside` (crates/bench) runs the external program itself and compares its misses with
//! those of the policies, for many seeds.

mod rows;
mod traces;

use nectary_cache::{AccessResult, Min, NextReferences, Policy, StreamId, by_name};

use rows::TRACES;
use traces::{Next, references};

/// The policies whose misses are in the columns of the rows.
const COLUMNS: [&str; 9] = ["fifo", "lru", "lfu", "clock", "sieve", "arc", "s3fifo", "2q", "min"];

struct GeneratedTrace {
    name: &'static str,
    next: Next,
    /// The cache sizes, each with the misses of each column.
    rows: &'static [(u64, [usize; 9])],
}

fn misses(policy: &mut dyn Policy, ids: &[u64]) -> usize {
    ids.iter().filter(|&&id| policy.reference(id, 1, StreamId(0), &mut |_| true) != AccessResult::Hit).count()
}

/// The misses on generated traces equal those of another program.
#[test]
fn generated_misses_match_reference() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (trace, number) in TRACES.iter().zip(0..) {
        let ids = references(trace.next, 1000 + number);
        let future = NextReferences::of(&ids).expect("short");
        for (size, expected) in trace.rows {
            for (name, expected) in COLUMNS.iter().zip(expected) {
                let found = match by_name(name, *size) {
                    Some(mut policy) => misses(policy.as_mut(), &ids),
                    None => misses(&mut Min::new(*size, &future), &ids),
                };
                compared += 1;
                if found != *expected {
                    wrong.push(format!("{} {name} {size}: {found}, expected {expected}", trace.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} counts differ\n{}", wrong.len(), wrong.join("\n"));
    println!("{compared} counts equal");
}

/// Counts that are equal by accident prove nothing, so every two columns must differ in at least five rows.
#[test]
fn the_sizes_tell_the_policies_apart() {
    let rows: Vec<&[usize; 9]> = TRACES.iter().flat_map(|trace| trace.rows.iter().map(|row| &row.1)).collect();
    for left in 0..COLUMNS.len() {
        for right in 0..left {
            let different = rows.iter().filter(|row| row[left] != row[right]).count();
            assert!(different >= 5, "{} and {}: {different} rows differ", COLUMNS[left], COLUMNS[right]);
        }
    }
}
