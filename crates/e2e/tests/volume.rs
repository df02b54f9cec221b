//! A shared volume as users run it: mounts that see each other, and processes that are killed.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::rng::Rng;
use nectary_e2e::volume::{LIMIT, Volume};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

fn volume(size: &str) -> Option<Volume> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(Volume::new(size).unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.below(256) as u8).collect()
}

#[test]
fn what_one_mount_writes_another_reads() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    fs::create_dir(first.join("d")).expect("it is made");
    for (index, length) in [0, 1, 4095, 4096, 4097, 100_000, 3_000_000].into_iter().enumerate() {
        let (here, there) = (first.join(format!("d/{index}")), second.join(format!("d/{index}")));
        let bytes = pattern(index as u64, length);
        let mut file = File::create(&here).expect("it is made");
        file.write_all(&bytes).expect("it is written");
        drop(file);
        // After a file is closed, everybody who opens it sees its contents.
        assert_eq!(fs::metadata(&there).expect("it is there").len(), length as u64);
        assert!(fs::read(&there).expect("it is read") == bytes, "{length} bytes");
        // And the other way, into the same file.
        let other = File::options().write(true).open(&there).expect("it opens");
        other.write_all_at(b"changed", 10).expect("it is written");
        drop(other);
        let mut found = [0; 7];
        File::open(&here).and_then(|file| file.read_exact_at(&mut found, 10)).expect("it is read");
        assert_eq!(&found, b"changed");
    }
    fs::rename(first.join("d"), first.join("e")).expect("it is renamed");
    assert!(!second.join("d").exists() && second.join("e/3").exists());
    fs::remove_dir_all(second.join("e")).expect("it is removed");
    assert!(!first.join("e").exists());
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Each file is written by renaming a synced file over it, so it always has the whole of some round.
fn replace(directory: &Path, name: &str, round: u64) -> std::io::Result<()> {
    let temporary = directory.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(&pattern(round, 20_000))?;
    file.sync_all()?;
    fs::rename(temporary, directory.join(name))
}

#[test]
fn a_killed_server_loses_nothing_that_was_synced_and_clients_go_on() {
    let Some(mut volume) = volume("512M") else { return };
    let mounted = volume.mount().expect("it mounts");
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (is_over, rounds) = (&is_over, &rounds);
    let written = std::thread::scope(|scope| {
        let mounted = &mounted;
        let writer = scope.spawn(move || {
            let mut written = BTreeMap::new();
            while !is_over.load(Ordering::Acquire) {
                let round = rounds.load(Ordering::Acquire) + 1;
                let name = format!("{}", round % 7);
                // The server is away for a while in some of these calls: they wait, and succeed.
                replace(mounted, &name, round).unwrap_or_else(|error| panic!("round {round}: {error}"));
                written.insert(name, round);
                rounds.store(round, Ordering::Release);
            }
            written
        });
        for _ in 0..5 {
            let (began, before) = (Instant::now(), rounds.load(Ordering::Acquire));
            while rounds.load(Ordering::Acquire) < before + 10 && began.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            volume.kill_server();
            volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
        }
        is_over.store(true, Ordering::Release);
        writer.join().expect("the writer succeeds")
    });
    assert!(rounds.load(Ordering::Acquire) >= 50, "{rounds:?}");
    for (name, round) in &written {
        assert!(fs::read(mounted.join(name)).expect("it is there") == pattern(*round, 20_000), "{name}");
    }
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
    // A new server and a new mount have the same.
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    let mounted = volume.mount().expect("it mounts");
    for (name, round) in &written {
        assert!(fs::read(mounted.join(name)).expect("it is there") == pattern(*round, 20_000), "{name}");
    }
}

#[test]
fn a_killed_mount_leaves_what_it_synced() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let mut file = File::create(first.join("a")).expect("it is made");
    file.write_all(&pattern(1, 50_000)).and_then(|()| file.sync_all()).expect("it is synced");
    file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&[0xff; 50_000])).expect("it is written");
    volume.kill_mount(0);
    let mut found = Vec::new();
    File::open(second.join("a")).and_then(|mut file| file.read_to_end(&mut found)).expect("it is read");
    assert!(found == pattern(1, 50_000) || found == [0xff; 50_000], "neither what was synced nor what was written");
    fs::write(second.join("b"), b"and others go on").expect("it is written");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

#[test]
fn a_second_server_on_the_same_host_is_refused_also_from_another_network_namespace() {
    let Some(mut volume) = volume("512M") else { return };
    let (disk, second) = (volume.disk(), format!("unix:{}", volume.scratch.join("second").display()));
    let serve = volume.command(&["volume", "serve", &disk, "--listen", &second]).expect("it is there");
    let mut elsewhere = Command::new("unshare");
    elsewhere.arg("--net").arg(serve.get_program()).args(serve.get_args());
    elsewhere.env("NECTARY_RUNTIME_DIR", volume.scratch.join("run"));
    for (name, command) in [("here", serve), ("elsewhere", elsewhere)] {
        let log = volume.scratch.join(&format!("{name}.log"));
        let (status, text) = nectary_e2e::guard::run(name, command, &log, LIMIT).expect("it runs");
        assert!(!status.success(), "{name}: {text}");
        assert!(text.contains("a server with number 0 serves this volume on this host already"), "{name}: {text}");
    }
    // The first one goes on, and after it was killed the next one begins at once.
    let mounted = volume.mount().expect("it mounts");
    fs::write(mounted.join("file"), b"served").expect("it is written");
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(fs::read(mounted.join("file")).expect("it is read"), b"served");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}
