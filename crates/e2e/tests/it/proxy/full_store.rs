//! A file system without room costs storage while it has none; once it has room, the store goes on by itself.

use anyhow::{Context, Result, ensure};
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::guard::find_program;
use nectary_e2e::nectary::{AUTHORIZATION, NectaryProxy, find};
use nectary_e2e::report::not_run;
use nectary_e2e::{content, origin};
use std::io::Write;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(40);

/// Gets a new object each time, and checks its bytes. *Returns* whether it is a hit at once.
fn get_new(nectary: &NectaryProxy, number: u64) -> Result<String> {
    let target = format!("/new/{number}?size=300000");
    let (bytes, response) = (origin::TargetAnswer::parse(&target).bytes, nectary.client().get(&target)?);
    ensure!(response.status == 200 && response.body == content::body(&target, 1, bytes), "{target}");
    Ok(target)
}

fn state(nectary: &NectaryProxy) -> Result<String> {
    let status = nectary.control()?.status()?;
    Ok(find(&status, "state").and_then(|state| state.as_str()).context("the status has a state")?.to_owned())
}

/// Purges an object; *returns* whether it is purged.
fn purge(nectary: &NectaryProxy, target: &str) -> Result<bool> {
    Ok(nectary.client().request("PURGE", target, &[AUTHORIZATION])?.status == 200)
}

#[test]
fn freed_space_used_without_restart() -> Result<()> {
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 || find_program("unshare").is_none() {
        not_run("room again: needs root and unshare for a separate small file system");
        return Ok(());
    }
    let mut filled = FilledProxy::new("room-again", 60, 11)?;
    let disk = filled.scratch.join("disk");
    std::fs::create_dir(&disk)?;
    let folder = disk.display();
    // The file is sparse, so it needs room only when it is written.
    let script = format!("mount -t tmpfs -o size=64m tmpfs {folder} && truncate -s 256M {folder}/store && exec \"$@\"");
    filled.command.store = disk.join("store").display().to_string();
    filled.command.wrapper = ["unshare", "-m", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    ensure!(purge(&nectary, &filled.targets[0])?, "a purge before");
    // The file system is visible only to the proxy. A file of another program takes all its room.
    let seen = format!("/proc/{}/root{folder}/filler", nectary.process.id());
    let mut filler = std::fs::File::create(&seen)?;
    let zeroes = vec![0; 64 << 10];
    while filler.write_all(&zeroes).is_ok() {}
    while filler.write_all(&zeroes[..4096]).is_ok() {}
    drop(filler);
    let (begun, mut number) = (Instant::now(), 0);
    while state(&nectary)? == "healthy" {
        ensure!(begun.elapsed() < LIMIT, "nothing is said about the full file system");
        get_new(&nectary, number)?;
        number += 1;
    }
    for _ in 0..5 {
        get_new(&nectary, number)?;
        number += 1;
    }
    let (found, written) = (filled.check(&nectary), nectary.control()?.sequences()?);
    ensure!(found.wrong == 0 && found.hits >= 50, "{found:?}");
    ensure!(written.written < written.last, "something waits for room: {written:?}");
    let was_purged = purge(&nectary, &filled.targets[1])?;
    std::fs::remove_file(&seen)?;
    let begun = Instant::now();
    while state(&nectary)? != "healthy" {
        ensure!(begun.elapsed() < LIMIT, "the store does not go on\n{}", nectary.process.log_tail());
        std::thread::sleep(Duration::from_millis(20));
    }
    let taken = begun.elapsed();
    let target = get_new(&nectary, number)?;
    let now = nectary.wait_written(LIMIT)?;
    ensure!(now.written > written.written, "{now:?}");
    ensure!(nectary.client().get(&target)?.is_hit(), "{target} is stored");
    for target in &filled.targets[2..5] {
        ensure!(purge(&nectary, target)?, "a purge of {target}\n{}", nectary.process.log_tail());
        ensure!(!nectary.client().get(target)?.is_hit(), "{target} is purged");
    }
    ensure!(filled.check(&nectary).wrong == 0 && nectary.process.try_status().is_none());
    ensure!(nectary.process.log_text().contains("a write failed"), "{}", nectary.process.log_tail());
    println!("without room a purge succeeded: {was_purged}; with room, the store went on after {taken:?}");
    nectary.terminate(LIMIT)?;
    Ok(())
}
