//! Replays every committed input of every target, and runs some mutants of them, which are the same in each test run.

use std::time::Instant;

use nectary_fuzz::campaign::{DEFAULT_SEED, mutants, replay};
use nectary_fuzz::guard::TargetGuard;
use nectary_fuzz::targets::TARGETS;

/// The largest size of a target's corpus. *Units*: bytes.
const CORPUS_BYTES_MAX: u64 = 16 << 10;

#[test]
fn corpus_and_mutants_pass() {
    let _turn = crate::turn();
    let guard = TargetGuard::new();
    let mut problems = Vec::new();
    for target in TARGETS {
        let started = Instant::now();
        let count = match replay(target, &guard) {
            Ok(count) => count,
            Err((path, finding)) => {
                problems.push(format!("{}: {}: {}", target.name, path.display(), finding.what));
                continue;
            }
        };
        if count == 0 {
            problems.push(format!("{}: it has no corpus", target.name));
        }
        if let Some(guilty) = mutants(target, &guard, DEFAULT_SEED, target.mutants).expect("the corpus is read") {
            problems.push(format!(
                "{}: mutant {}: {}; `fuzz mutants {} {DEFAULT_SEED} {}` writes it down",
                target.name, guilty.runs, guilty.finding.what, target.name, guilty.runs
            ));
        }
        println!(
            "{}: {count} inputs, {} mutants, {:.2} s",
            target.name,
            target.mutants,
            started.elapsed().as_secs_f64()
        );
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Every folder belongs to a target and is small.
#[test]
fn corpus_folders_match_small_targets() {
    let _turn = crate::turn();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
    for entry in std::fs::read_dir(root).expect("the corpus is there") {
        let path = entry.expect("it is read").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(TARGETS.iter().any(|target| target.name == name), "{name} is no target");
        let files = std::fs::read_dir(&path).expect("it is read");
        let bytes: u64 = files.map(|file| file.expect("it is read").metadata().expect("it is there").len()).sum();
        assert!(bytes <= CORPUS_BYTES_MAX, "{name}: {bytes} bytes");
    }
}
