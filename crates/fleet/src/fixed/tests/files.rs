//! The file of a node.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::fixed::known_logs::{FixedPurge, LogExtent};
use crate::fixed::log_file::FixedLogFile;

/// A directory that is removed in the end.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("nectary-fixed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        TestDirectory(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn step(number: u64) -> FixedStep {
    let scope = PurgeScope::Keys(vec![format!("http://a/{number}").into_bytes()]);
    let purge = FleetPurge { scope, soft_since_s: None, rules: RulesHash(1) };
    FixedStep::Purge(Arc::new(FixedPurge { log: 7, number, accepted_s: 9, purge }))
}

fn mark_of(fleet: u128, revision: u64) -> AppliedMark {
    AppliedMark { fleet, revision, rules: RulesRecord::NONE.begin(RulesHash(1)) }
}

#[test]
fn purge_log_survives_torn_ends() {
    let directory = TestDirectory::new("torn");
    let path = directory.0.join("purges");
    let (mut file, loaded) = FixedLogFile::open(&path, &name_of(0), AppliedMark::NONE).expect("a new file");
    assert!(loaded.is_new && loaded.steps.is_empty() && loaded.head.base == 1);
    assert!(FixedLogFile::open(&path, &name_of(0), AppliedMark::NONE).expect_err("locked").contains("another process"));
    file.append(2, &[step(1), step(2)]).expect("appended");
    file.append(3, &[step(2), step(3)]).expect("appended once more");
    drop(file);
    let whole = std::fs::read(&path).expect("the file");
    for cut in [1, 30] {
        std::fs::write(&path, &whole[..whole.len() - cut]).expect("written");
        let (mut file, loaded) = FixedLogFile::open(&path, &name_of(0), AppliedMark::NONE).expect("a torn file");
        assert_eq!((loaded.is_new, loaded.steps), (false, vec![step(1), step(2)]));
        file.append(4, &[step(3)]).expect("appended");
        assert_eq!(std::fs::read(&path).expect("the file"), whole);
    }
    let (mut file, loaded) = FixedLogFile::open(&path, &name_of(0), AppliedMark::NONE).expect("the file");
    let kept = LogExtents::from([(7, LogExtent { through: 2, floor: 2 })]);
    file.rewrite(kept.clone(), &[step(3)]).expect("rewritten");
    file.append(5, &[step(4)]).expect("appended");
    drop(file);
    let mark = mark_of(loaded.head.identity, 5);
    let (file, again) = FixedLogFile::open(&path, &name_of(0), mark).expect("the file");
    assert_eq!(again.head, PurgeLogHead { base: 3, extents: kept, ..loaded.head.clone() });
    assert_eq!(again.steps, [step(3), step(4)]);
    drop(file);
    // A store that has made more than the file says.
    let (_, renewed) = FixedLogFile::open(&path, &name_of(0), mark_of(loaded.head.identity, 6)).expect("the file");
    assert!(renewed.head.identity != loaded.head.identity && renewed.steps.is_empty() && !renewed.is_new);
    assert_eq!(renewed.head.extents.get(&7).map(|extent| extent.through), Some(4));
}

#[test]
fn damaged_purge_log_is_put_aside() {
    let directory = TestDirectory::new("damaged");
    let path = directory.0.join("purges");
    let (mut file, first) = FixedLogFile::open(&path, &name_of(0), AppliedMark::NONE).expect("a new file");
    file.append(2, &[step(1), step(2), step(3)]).expect("appended");
    drop(file);
    let mut bytes = std::fs::read(&path).expect("the file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let mark = mark_of(first.head.identity, 4);
    let (file, loaded) = FixedLogFile::open(&path, &name_of(0), mark).expect("a new file");
    assert!(loaded.is_new && loaded.head.identity != first.head.identity);
    assert_eq!(std::fs::read(directory.0.join("purges.damaged")).expect("it is aside"), bytes);
    drop(file);
    let (_, other) = FixedLogFile::open(&path, &name_of(1), AppliedMark::NONE).expect("a new file");
    assert!(other.is_new, "the file is that of another node");
}
