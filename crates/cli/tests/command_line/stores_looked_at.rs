//! `nectary store stat`, `check` and `get` leave a store as it is, also where it is damaged.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::a_running_proxy::ProxyChild;
use crate::common::CommandScratch;

/// The bytes of a file, and the time of its last change.
fn state(scratch: &CommandScratch) -> (Vec<u8>, i64, i64) {
    let status = fs::metadata(scratch.file("s")).expect("there");
    (fs::read(scratch.file("s")).expect("there"), status.mtime(), status.mtime_nsec())
}

/// Looks at the store with each command; returns what `store check` writes to the standard error stream.
fn looked_at(scratch: &CommandScratch, code: i32) -> String {
    fs::set_permissions(scratch.file("s"), fs::Permissions::from_mode(0o444)).expect("it is ours");
    let before = state(scratch);
    scratch.run("store stat ./s --json").exits(0);
    assert_eq!(scratch.run("store get ./s a").exits(0).output, b"1");
    let checked = scratch.run("store check ./s").exits(code);
    scratch.run("store get ./s absent").exits(4).says("absent");
    assert!(state(scratch) == before, "the file was changed");
    fs::set_permissions(scratch.file("s"), fs::Permissions::from_mode(0o644)).expect("it is ours");
    checked.errors
}

#[test]
fn inspection_leaves_store_file_unchanged() {
    let scratch = CommandScratch::new("look");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s a -", b"1").exits(0);
    assert_eq!(looked_at(&scratch, 0), "");
    drop(ProxyChild::start(&scratch, "--store ./s"));
    assert!(looked_at(&scratch, 0).contains("was not closed"));
    let file = fs::File::options().write(true).open(scratch.file("s")).expect("there");
    file.set_len((40 << 20) + 100).expect("shorter");
    let said = looked_at(&scratch, 3);
    assert!(said.contains("truncated") && said.contains("what to do"), "{said}");
    // What was said is what an open for writing does.
    scratch.run_with("store put ./s b -", b"2").exits(0);
    assert_eq!(fs::metadata(scratch.file("s")).expect("there").len(), 64 << 20);
    assert_eq!(looked_at(&scratch, 0), "");
}
