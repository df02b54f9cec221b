//! Tests mounts that are killed or stopped, and what becomes of their space.

use nectary_e2e::live::missing;
use nectary_e2e::nbd::NbdServer;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::kills::{DISK, FileLoopDevice, KillTotals, SERVER_LEASE, rounds, sessions, until};
use nectary_e2e::volume::{LIMIT, VolumeRig};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Rounds by default; the soak makes 50.
const ROUNDS: u64 = 10;

fn volume() -> Option<VolumeRig> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(VolumeRig::leased(DISK, SERVER_LEASE).unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

fn checked(volume: &mut VolumeRig, done: KillTotals) -> Result<()> {
    println!("{done:?}");
    ensure!(done.kills == ROUNDS, "{done:?}");
    let check = volume.finish()?;
    ensure!(check["problems"].as_array().map(Vec::len) == Some(0), "{check}");
    Ok(())
}

#[test]
fn killed_mounts_never_fill_the_disk() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let done = rounds(&mut volume, ROUNDS, 1, None)?;
    ensure!(done.rewrites == ROUNDS);
    checked(&mut volume, done)
}

#[test]
fn mount_beside_killed_ones_never_waits() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let beside = volume.mount()?;
    let done = rounds(&mut volume, ROUNDS, 2, Some(&beside))?;
    ensure!(done.rewrites == 2 * ROUNDS);
    checked(&mut volume, done)
}

#[test]
fn new_mount_proves_to_distant_server() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    volume.stop_server()?;
    // Locks of the loop device and of its file do not see each other, so the server is as on another host.
    let apart = FileLoopDevice::of(&volume.disk())?;
    volume.serve_from(&format!("disk:{}", apart.0), &[])?;
    let done = rounds(&mut volume, ROUNDS, 3, None)?;
    checked(&mut volume, done)?;
    let log = volume.log("server");
    ensure!(log.contains("of the same host says so") && !log.contains("a lock on the disk says so"), "{log}");
    Ok(())
}

#[test]
fn stopped_mount_keeps_undrained_space() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let (first, second) = (volume.mount()?, volume.mount()?);
    let held = File::create(first.join("held"))?;
    held.write_all_at(&[1; 4096], 0)?;
    held.sync_all()?;
    held.write_all_at(&[2; 4096], 0)?;
    volume.signal_mount(0, libc::SIGSTOP);
    let stopped = while_stopped(&volume, &second);
    // An open file of a stopped mount cannot be closed.
    volume.signal_mount(0, libc::SIGCONT);
    stopped?;
    // Its last write is over, so its space is free, although the process goes on with another session.
    until(&volume, "it is over", |found| found.iter().all(|(number, _)| *number != 1))?;
    fs::write(first.join("later"), b"written")?;
    ensure!(fs::read(second.join("later"))? == b"written");
    ensure!(held.sync_all().is_err(), "what was written is lost");
    drop(held);
    let check = volume.finish()?;
    ensure!(check["problems"].as_array().map(Vec::len) == Some(0), "{check}");
    Ok(())
}

/// Writes on the other mount until the stopped one is ended, and checks what is said about it.
fn while_stopped(volume: &VolumeRig, second: &Path) -> Result<()> {
    // The second mount frees and writes more than the disk has: it waits for space that the stopped one holds back.
    let (began, piece) = (Instant::now(), vec![3; 1 << 20]);
    for round in 0..8 {
        let file = File::create(second.join("file"))?;
        for at in 0..51 {
            file.write_all_at(&piece, at << 20).with_context(|| format!("round {round}, MiB {at}"))?;
        }
        file.sync_all()?;
    }
    ensure!(began.elapsed() < LIMIT);
    // It was ended, for others waited; its process lives, so it is not over.
    until(volume, "it is ended", |found| found.iter().any(|(number, state)| (*number, &**state) == (1, "ended")))?;
    let (_, text) = volume.try_run(&["status"])?;
    ensure!(text.contains("session 1 of") && text.contains("its space is set aside"), "{text}");
    let info = volume.run(&["volume", "info", &volume.disk()])?;
    ensure!(info.contains("held back"), "{info}");
    Ok(())
}

#[test]
fn stopped_then_killed_mount_is_over() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let (first, second) = (volume.mount()?, volume.mount()?);
    let locked = File::create(first.join("locked"))?;
    locked.lock()?;
    let other = File::open(second.join("locked"))?;
    volume.signal_mount(0, libc::SIGSTOP);
    // Longer than the server needs to look at its lock.
    std::thread::sleep(Duration::from_secs(3));
    let (found, tried) = (sessions(&volume), other.try_lock());
    volume.kill_mount(0);
    ensure!(found?.len() == 2, "it is silent, and not gone");
    ensure!(tried.is_err(), "it holds its lock");
    let began = Instant::now();
    other.lock()?;
    ensure!(began.elapsed() < Duration::from_secs(3), "{:?}: the lock is free at once", began.elapsed());
    drop((locked, other));
    until(&volume, "it is over", |found| found.len() == 1)?;
    volume.finish()?;
    Ok(())
}

#[test]
fn status_names_killed_mount_over_nbd() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    volume.stop_server()?;
    let export = NbdServer::nectary(volume.scratch.path(), "export", &[&volume.disk()])?;
    let url = export.url("");
    volume.serve_from(&url, &[])?;
    let (first, second) = (volume.mount_of(&url)?, volume.mount_of(&url)?);
    fs::write(first.join("file"), vec![1; 1 << 20])?;
    fs::File::open(first.join("file"))?.sync_all()?;
    volume.kill_mount(0);
    let began = Instant::now();
    loop {
        let (code, text) = volume.try_run(&["status"])?;
        if text.contains("no word from session 1 of") && text.contains("nectary volume release") {
            ensure!(code == Some(3), "{code:?}: {text}");
            break;
        }
        ensure!(began.elapsed() < LIMIT, "{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
    volume.run(&["volume", "release", &url, "1"])?;
    while volume.try_run(&["status"])?.1.contains("session 1 of") {
        ensure!(began.elapsed() < LIMIT, "it is released, and named still");
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(fs::read(second.join("file"))? == vec![1; 1 << 20]);
    volume.unmount(1)?;
    volume.stop_server()?;
    drop(export);
    let check = volume.check()?;
    ensure!(check["problems"].as_array().map(Vec::len) == Some(0), "{check}");
    Ok(())
}
