//! What may be left of small bursts, and what may not.

use super::super::snapshot::TreeReader;
use super::*;
use crate::scratch::ScratchFolder;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

fn read(root: &Path) -> TreeSnapshot {
    TreeReader::default().read(root).unwrap()
}

fn mark(root: &Path, range: Range<u64>) -> DurableMark {
    let inode = fs::metadata(root.join("f")).unwrap().ino();
    DurableMark { inode, range, extended_to: 0, order: MarkOrder::WithNames }
}

/// A file of ones; a directory is made, the file is overwritten, and another directory is made.
fn burst(root: &Path, marks: impl Fn(&Path) -> Vec<DurableMark>) -> CallBurst {
    fs::write(root.join("f"), [1; 100]).unwrap();
    let mut burst = CallBurst::new(read(root));
    fs::create_dir(root.join("first")).unwrap();
    burst.add(read(root), Vec::new());
    fs::File::options().write(true).open(root.join("f")).unwrap().write_all_at(&[2; 100], 50).unwrap();
    burst.add(read(root), marks(root));
    fs::create_dir(root.join("second")).unwrap();
    burst.add(read(root), Vec::new());
    burst
}

#[test]
fn prefix_of_names_may_be_left() {
    let scratch = ScratchFolder::new("burst-prefix").unwrap();
    let burst = burst(scratch.path(), |_| Vec::new());
    assert!(burst.explain(&read(scratch.path())).unwrap().is_all());
    fs::remove_dir(scratch.join("second")).unwrap();
    assert_eq!(burst.explain(&read(scratch.path())).unwrap().calls, 1);
    fs::create_dir(scratch.join("second")).unwrap();
    fs::remove_dir(scratch.join("first")).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err(), "a call is lost without the next one");
}

#[test]
fn kept_names_may_not_be_lost() {
    let scratch = ScratchFolder::new("burst-kept").unwrap();
    let mut burst = burst(scratch.path(), |_| Vec::new());
    burst.keep_names(burst.last());
    fs::remove_dir(scratch.join("second")).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err());
}

#[test]
fn unmarked_data_may_be_lost() {
    let scratch = ScratchFolder::new("burst-data").unwrap();
    let mut burst = burst(scratch.path(), |_| Vec::new());
    fs::write(scratch.join("f"), [1; 100]).unwrap();
    assert_eq!(burst.explain(&read(scratch.path())).unwrap().files, 1);
    fs::write(scratch.join("f"), [3; 100]).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err(), "bytes of no call");
    fs::write(scratch.join("f"), [1; 120]).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err(), "a size of no call");
    fs::write(scratch.join("f"), [[1_u8; 50], [2; 50], [0; 50]].concat()).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err(), "a size without its data");
    fs::write(scratch.join("f"), [1; 100]).unwrap();
    burst.keep_all();
    assert!(burst.explain(&read(scratch.path())).is_err(), "all was seen");
}

#[test]
fn marked_data_stays_with_its_names() {
    let scratch = ScratchFolder::new("burst-marked").unwrap();
    let burst = burst(scratch.path(), |root| vec![mark(root, WHOLE)]);
    fs::write(scratch.join("f"), [1; 100]).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err(), "the names after the mark are there");
    fs::remove_dir(scratch.join("second")).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_ok_and(|left| left.calls == 1), "names before the mark");
}

/// What was written through `O_DSYNC` is not lost with later names, nor with those of before.
#[test]
fn synced_data_stays_without_its_names() {
    let scratch = ScratchFolder::new("burst-synced").unwrap();
    let burst = burst(scratch.path(), |root| vec![DurableMark { order: MarkOrder::Data, ..mark(root, 50..150) }]);
    fs::remove_dir(scratch.join("second")).unwrap();
    fs::remove_dir(scratch.join("first")).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_ok_and(|left| left.calls == 2));
    fs::write(scratch.join("f"), [1; 100]).unwrap();
    assert!(burst.explain(&read(scratch.path())).is_err());
}

/// A file that was cut may be empty up to there, but not beyond: the data of a later write is not lost without its size.
#[test]
fn cut_file_keeps_data_behind_cut() {
    for (zeroes, is_allowed) in [(80, true), (81, false)] {
        let scratch = ScratchFolder::new(&format!("burst-cut-{zeroes}")).unwrap();
        let root = scratch.path();
        fs::write(root.join("f"), [1; 60]).unwrap();
        let mut burst = CallBurst::new(read(root));
        let write = |bytes: &[u8], at| {
            fs::File::options().write(true).open(root.join("f")).unwrap().write_all_at(bytes, at).unwrap();
        };
        write(&[2; 40], 60);
        burst.add(read(root), Vec::new());
        fs::File::options().write(true).open(root.join("f")).unwrap().set_len(80).unwrap();
        let cut = DurableMark { extended_to: 80, order: MarkOrder::All, ..mark(root, 80..u64::MAX) };
        burst.add(read(root), vec![cut]);
        write(&[3; 40], 80);
        burst.add(read(root), Vec::new());
        write(&vec![0; zeroes - 60], 60);
        assert_eq!(burst.explain(&read(root)).is_ok(), is_allowed, "{zeroes}");
    }
}

fn set_time(root: &Path, ns: i64) {
    ModifiedTime::Set(ns).set(&root.join("f")).unwrap();
}

fn write_to(root: &Path, fill: u8) {
    fs::File::options().write(true).open(root.join("f")).unwrap().write_all_at(&[fill; 10], 0).unwrap();
}

/// A time that was set is lost only with later names, and not replaced by another one.
#[test]
fn set_time_stays_with_names() {
    let scratch = ScratchFolder::new("burst-time").unwrap();
    let root = scratch.path();
    fs::write(root.join("f"), [1; 100]).unwrap();
    set_time(root, 7);
    let mut burst = CallBurst::new(read(root));
    set_time(root, 8);
    burst.add(read(root), Vec::new());
    assert!(burst.explain(&read(root)).is_ok());
    set_time(root, 7);
    assert!(burst.explain(&read(root)).is_ok(), "the last call is lost");
    fs::create_dir(root.join("later")).unwrap();
    burst.add(read_with_time(root, 8), Vec::new());
    for (ns, is_allowed) in [(7, false), (8, true), (9, false)] {
        set_time(root, ns);
        assert_eq!(burst.explain(&read(root)).is_ok(), is_allowed, "{ns}");
    }
    write_to(root, 1);
    assert!(burst.explain(&read(root)).is_err(), "nobody has written");
    fs::remove_dir(root.join("later")).unwrap();
    set_time(root, 7);
    assert!(burst.explain(&read(root)).is_ok());
    burst.keep_names(1);
    assert!(burst.explain(&read(root)).is_err(), "it was durable");
}

fn read_with_time(root: &Path, ns: i64) -> TreeSnapshot {
    set_time(root, ns);
    read(root)
}

/// The time of a write is lost with the data, unless the data is durable.
#[test]
fn time_of_write_stays_with_data() {
    let scratch = ScratchFolder::new("burst-write-time").unwrap();
    let root = scratch.path();
    fs::write(root.join("f"), [1; 100]).unwrap();
    set_time(root, 7);
    let mut burst = CallBurst::new(read(root));
    write_to(root, 2);
    burst.add(read(root), Vec::new());
    fs::create_dir(root.join("later")).unwrap();
    burst.add(read(root), Vec::new());
    assert!(burst.explain(&read(root)).is_ok());
    fs::remove_dir(root.join("later")).unwrap();
    assert!(burst.explain(&read(root)).is_ok(), "the data is newer than the names");
    fs::create_dir(root.join("later")).unwrap();
    write_to(root, 1);
    for (ns, is_allowed) in [(7, true), (8, false)] {
        set_time(root, ns);
        assert_eq!(burst.explain(&read(root)).is_ok(), is_allowed, "{ns}");
    }
    write_to(root, 2);
    burst.add(read(root), vec![DurableMark { order: MarkOrder::All, ..mark(root, WHOLE) }]);
    set_time(root, 7);
    assert!(burst.explain(&read(root)).is_err(), "the write was durable");
}

#[test]
fn time_of_directory_stays_with_entries() {
    let scratch = ScratchFolder::new("burst-directory-time").unwrap();
    let root = scratch.path();
    fs::create_dir(root.join("d")).unwrap();
    let set = || ModifiedTime::Set(7).set(&root.join("d")).unwrap();
    set();
    let mut burst = CallBurst::new(read(root));
    fs::create_dir(root.join("d/below")).unwrap();
    burst.add(read(root), Vec::new());
    assert!(burst.explain(&read(root)).is_ok());
    set();
    assert!(burst.explain(&read(root)).is_err(), "an entry is there without the time");
    fs::remove_dir(root.join("d/below")).unwrap();
    assert!(burst.explain(&read(root)).is_err(), "a time is there without the entry");
    set();
    assert!(burst.explain(&read(root)).is_ok());
}
