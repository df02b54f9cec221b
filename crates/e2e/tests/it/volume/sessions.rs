//! Tests sessions of mounts: one that was ended because another host waited, one in use, and one that ends at SIGTERM.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::{LIMIT, VolumeRig};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("it opens")
}

fn is_input_output<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    matches!(result, Err(error) if error.raw_os_error() == Some(libc::EIO))
}

#[test]
fn paused_mount_follows_name_changes() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let written = open(&first.join("f"));
    written.write_all_at(b"synced", 0).and_then(|()| written.sync_all()).expect("it is synced");
    for _ in 0..2 {
        assert!(!first.join("made").exists());
    }
    volume.signal_mount(0, libc::SIGSTOP);
    // It waits until the first mount may not use any more what it keeps of the root.
    fs::create_dir(second.join("made")).expect("it is made");
    volume.signal_mount(0, libc::SIGCONT);
    assert!(first.join("made").is_dir(), "what it kept is gone");
    written.write_all_at(b"after it", 0).and_then(|()| written.sync_all()).expect("its session goes on");
    assert_eq!(fs::read(second.join("f")).expect("it is read"), b"after it");
    assert!(!volume.log("m0").contains("ended"), "{}", volume.log("m0"));
    drop(written);
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// The session was ended for another mount.
#[test]
fn mount_resumes_with_new_session() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let (written, locked, clean) = (open(&first.join("f")), open(&first.join("locked")), open(&first.join("clean")));
    written.write_all_at(b"synced", 0).and_then(|()| written.sync_all()).expect("it is synced");
    locked.lock().expect("it is locked");
    clean.write_all_at(b"clean", 0).and_then(|()| clean.sync_all()).expect("it is synced");
    written.write_all_at(b"lost", 100).expect("it is written");
    volume.signal_mount(0, libc::SIGSTOP);
    // The next calls wait until the first mount's lease has ended.
    let there = open(&second.join("f"));
    there.write_all_at(b"of the other host", 0).expect("it is written");
    let other = open(&second.join("locked"));
    other.lock().expect("it is locked");
    volume.signal_mount(0, libc::SIGCONT);
    // Calls with a path work at once, although the mount may not know yet that its session was ended: they wait for the
    // new session.
    assert_eq!(fs::read(first.join("f")).expect("it is read"), b"of the other host");
    fs::create_dir(first.join("made")).expect("it is made");
    assert!(second.join("made").is_dir());
    // Files that were open fail: their data and their locks are lost.
    assert!(is_input_output(written.sync_all()), "what was written is lost");
    assert!(is_input_output(written.write_all_at(b"late", 0)));
    assert!(is_input_output(written.set_len(0)));
    assert!(is_input_output(written.read_at(&mut [0; 4], 0)));
    assert!(is_input_output(clean.read_at(&mut [0; 4], 0)));
    assert!(is_input_output(locked.unlock()));
    let again = open(&first.join("locked"));
    assert!(again.try_lock().is_err(), "the other one has it");
    other.unlock().expect("it is unlocked");
    again.lock().expect("it is locked");
    assert_eq!(fs::read(second.join("f")).expect("it is read"), b"of the other host");
    let here = open(&first.join("f"));
    here.write_all_at(b"after it", 0).and_then(|()| here.sync_all()).expect("it is synced");
    assert_eq!(fs::read(second.join("f")).expect("it is read")[..8], *b"after it");
    let log = volume.log("m0");
    let line = log.lines().find(|line| line.contains("is ended") || line.contains("was ended"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("it has a name");
    let line = line.unwrap_or_else(|| panic!("no word of it: {log}"));
    assert!(line.contains(&format!("of host {}", host.trim())) && line.contains("lease"), "{line}");
    assert!(log.contains("what was written to 1 files is lost"), "{log}");
    // Open files of the ended session do not delay the end of the volume.
    let began = Instant::now();
    drop((written, locked, clean, again, here, there, other));
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert!(began.elapsed() < LIMIT);
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Returns the sessions in the output of `nectary volume info --json`, and that output.
fn info(volume: &VolumeRig) -> (Vec<Value>, Value) {
    let text = volume.run(&["volume", "info", &volume.disk(), "--json"]).unwrap_or_else(|error| panic!("{error:#}"));
    let info: Value = serde_json::from_str(&text).expect("it is JSON");
    (info["sessions"].as_array().expect("they are a list").clone(), info)
}

#[test]
fn sigterm_ends_lazily_unmounted_session() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    for is_own_command in [true, false] {
        let index = if is_own_command { 0 } else { 1 };
        let directory = volume.mount().expect("it mounts");
        let file = open(&directory.join("f"));
        file.write_all_at(b"not synced", 0).expect("it is written");
        let shown = directory.display().to_string();
        match is_own_command {
            true => drop(volume.run(&["volume", "umount", &shown, "--lazy"]).expect("it is unmounted")),
            false => drop(Command::new("umount").args(["-l", &shown]).status().expect("it runs")),
        }
        file.write_all_at(b"still open", 10).expect("it is written");
        let (code, text) = volume.try_run(&["status"]).expect("it runs");
        assert!(code == Some(3) && text.contains("it is unmounted, and still serves programs"), "{code:?}: {text}");
        volume.signal_mount(index, libc::SIGTERM);
        volume.wait_mount(index).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(file.write_all_at(b"late", 0).is_err());
        assert_eq!(info(&volume).0, Vec::<Value>::new());
    }
    let again = volume.mount().expect("it mounts");
    assert_eq!(fs::read(again.join("f")).expect("it is read"), b"not syncedstill open");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// The command `info` accounts for all space.
#[test]
fn active_session_is_not_released() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    let directory = volume.mount().expect("it mounts");
    fs::write(directory.join("f"), vec![1; 1 << 20]).expect("it is written");
    let (sessions, info) = info(&volume);
    let session = sessions[0]["session"].to_string();
    let parts = ["free", "reserved", "data", "metadata", "granted", "draining", "quarantined", "bad"];
    let bytes = |name: &str| info[format!("{name}_bytes")].as_u64().expect("it is there");
    assert_eq!(parts.iter().map(|part| bytes(part)).sum::<u64>(), bytes("size"), "{info}");
    assert!(bytes("metadata") > 0 && bytes("data") + bytes("granted") > 0, "{info}");
    let release = |session: &str| volume.try_run(&["volume", "release", &volume.disk(), session]).expect("it runs");
    let (code, text) = release(&session);
    assert!(code == Some(5) && text.contains("is in use"), "{code:?}: {text}");
    let (code, text) = release("99");
    assert!(code == Some(4) && text.contains("there is no session 99"), "{code:?}: {text}");
    volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
}
