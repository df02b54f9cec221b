//! Tests that changes of names which were answered are there after the loss of the server, and what the loss of
//! everything may take.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::VolumeRig;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUNDS: usize = 3;
const NAMES: usize = 50;

fn volume() -> Option<VolumeRig> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

/// What a program was shown of a file: its inode, mode and time of change.
fn seen(path: &Path) -> (u64, u32, i64, i64) {
    let found = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.ino(), found.mode(), found.ctime(), found.ctime_nsec())
}

/// Changes names until it is told to stop; returns what was seen of each file that is left.
fn change(directory: &Path, is_over: &AtomicBool) -> BTreeMap<PathBuf, (u64, u32, i64, i64)> {
    let mut left = BTreeMap::new();
    for number in 0.. {
        if is_over.load(Ordering::Acquire) {
            break;
        }
        let (made, moved) = (directory.join(format!("made-{number}")), directory.join(format!("moved-{number}")));
        File::create(&made).expect("it is made");
        match number % 4 {
            0 => fs::remove_file(&made).expect("it is removed"),
            1 => {
                fs::rename(&made, &moved).expect("it is renamed");
                left.insert(moved.clone(), seen(&moved));
            }
            2 => {
                fs::set_permissions(&made, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is set");
                left.insert(made.clone(), seen(&made));
            }
            _ => _ = left.insert(made.clone(), seen(&made)),
        }
    }
    left
}

fn names(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(directory).expect("it is read").map(|entry| entry.expect("it is read").path()).collect();
    names.sort();
    names
}

#[test]
fn answered_changes_survive_killed_servers() {
    let Some(mut volume) = volume() else { return };
    let (first, second) = (volume.mount().unwrap(), volume.mount().unwrap());
    for round in 0..ROUNDS {
        let directories = [format!("a{round}"), format!("b{round}")];
        directories.iter().for_each(|name| fs::create_dir(first.join(name)).unwrap());
        let is_over = AtomicBool::new(false);
        let (here, there) = (first.join(&directories[0]), second.join(&directories[1]));
        let left = std::thread::scope(|scope| {
            let changing = [&here, &there].map(|directory| scope.spawn(|| change(directory, &is_over)));
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(300));
                volume.kill_server();
                volume.serve().unwrap();
            }
            std::thread::sleep(Duration::from_millis(300));
            is_over.store(true, Ordering::Release);
            changing.map(|changing| changing.join().unwrap())
        });
        for (name, left) in directories.iter().zip(&left) {
            assert!(left.len() > 10, "only {} changes were made", left.len());
            for mount in [&first, &second] {
                let found = names(&mount.join(name));
                let expected: Vec<&str> = left.keys().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
                let found: Vec<&str> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
                assert_eq!(found, expected);
                for (path, before) in left {
                    assert_eq!(seen(&mount.join(name).join(path.file_name().unwrap())), *before, "{}", path.display());
                }
            }
        }
    }
    volume.finish_whole().unwrap();
}

/// Kills the server and all mounts, and begins again; returns the new mount.
fn lose_everything(volume: &mut VolumeRig, more: &[&str]) -> PathBuf {
    volume.kill_server();
    volume.kill_mounts();
    volume.serve().unwrap();
    volume.mount_with(more).unwrap()
}

/// The server and all mounts are killed.
#[test]
fn synced_names_survive_total_loss() {
    let Some(mut volume) = volume() else { return };
    let mut mount = volume.mount().unwrap();
    for (round, way) in ["fsync of the directory", "fsync of another file", "a second"].into_iter().enumerate() {
        let directory = mount.join(format!("d{round}"));
        fs::create_dir(&directory).unwrap();
        let other = File::create(mount.join("other")).unwrap();
        (0..NAMES).for_each(|number| drop(File::create(directory.join(number.to_string())).unwrap()));
        match round {
            0 => File::open(&directory).unwrap().sync_all().unwrap(),
            1 => other.sync_all().unwrap(),
            _ => std::thread::sleep(Duration::from_secs(1)),
        }
        drop(other);
        mount = lose_everything(&mut volume, &[]);
        assert_eq!(names(&mount.join(format!("d{round}"))).len(), NAMES, "{way}");
    }
    volume.finish_whole().unwrap();
}

#[test]
fn dirsync_names_survive_total_loss() {
    let Some(mut volume) = volume() else { return };
    let options = ["-o", "dirsync"];
    let mut mount = volume.mount_with(&options).unwrap();
    for round in 0..ROUNDS {
        let path = mount.join(format!("file-{round}"));
        fs::write(&path, [7; 5000]).unwrap();
        fs::create_dir(mount.join(format!("directory-{round}"))).unwrap();
        mount = lose_everything(&mut volume, &options);
        assert!(mount.join(format!("directory-{round}")).is_dir());
        assert_eq!(fs::read(mount.join(format!("file-{round}"))).unwrap(), [7; 5000]);
    }
    volume.finish_whole().unwrap();
}

#[test]
fn replaced_files_are_never_empty() {
    let Some(mut volume) = volume() else { return };
    let mut mount = volume.mount().unwrap();
    let contents = |round: usize| vec![round as u8 + 1; 30_000];
    for name in ["renamed", "cut"] {
        let mut file = File::create(mount.join(name)).unwrap();
        file.write_all(&contents(0)).unwrap();
        file.sync_all().unwrap();
    }
    for round in 1..=2 * ROUNDS {
        fs::write(mount.join("new"), contents(round)).unwrap();
        fs::rename(mount.join("new"), mount.join("renamed")).unwrap();
        // Every other time as a shell does it, which closes a copy of the descriptor before anything is written.
        match round % 2 {
            0 => fs::write(mount.join("cut"), contents(round)).unwrap(),
            _ => {
                fs::write(volume.scratch.join("source"), contents(round)).unwrap();
                let mut shell = Command::new("sh");
                let line = format!("cat {} > cut", volume.scratch.join("source").display());
                let status = shell.args(["-c", &line]).current_dir(&mount).status().unwrap();
                assert!(status.success());
            }
        }
        mount = lose_everything(&mut volume, &[]);
        let renamed = fs::read(mount.join("renamed")).unwrap();
        assert!(renamed == contents(round) || renamed == contents(round - 1), "round {round}: {} bytes", renamed.len());
        assert!(fs::read(mount.join("cut")).unwrap() == contents(round), "round {round}");
        fs::write(mount.join("renamed"), contents(round)).unwrap();
    }
    volume.finish_whole().unwrap();
}
