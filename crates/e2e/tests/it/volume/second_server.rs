//! Tests a second server of a volume: it never deposes one that leads, and a start that fails takes no leadership.

use nectary_e2e::guard;
use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::kills::FileLoopDevice;
use nectary_e2e::volume::{LIMIT, VolumeRig};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The exit code when another process has it.
const BUSY: i32 = 5;

fn volume() -> Option<VolumeRig> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

/// Returns what the disk says about the volume.
fn info(volume: &VolumeRig) -> Result<Value> {
    Ok(serde_json::from_str(&volume.run(&["volume", "info", &volume.disk(), "--json"])?)?)
}

fn epoch(volume: &VolumeRig) -> Result<u64> {
    info(volume)?["epoch"].as_u64().context("an epoch")
}

/// Starts a second server, which has to say that the first one leads; the first one goes on.
fn refused_beside_leader(volume: &mut VolumeRig, disk: &str, more: &[&str]) -> Result<()> {
    let (directory, before) = (volume.mount()?, epoch(volume)?);
    fs::write(directory.join("before"), b"written")?;
    let second = format!("unix:{}", volume.scratch.join("second").display());
    // As in a container: it has a runtime directory of its own.
    let elsewhere = volume.scratch.join("elsewhere");
    fs::create_dir(&elsewhere)?;
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700))?;
    let mut serve = volume.command(&[&["volume", "serve", disk, "--listen", &second], more].concat())?;
    serve.env("NECTARY_RUNTIME_DIR", &elsewhere);
    let (status, text) = guard::run("second", serve, &volume.scratch.join("second.log"), LIMIT)?;
    let code = status.code();
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    ensure!(code == Some(BUSY), "{code:?}: {text}");
    ensure!(text.contains(&format!("server 0 on {} leads", host.trim())), "{text}");
    ensure!(epoch(volume)? == before, "it took the lead");
    // The first server stores what it is told, also for a later server.
    fs::write(directory.join("after"), b"written")?;
    volume.kill_server();
    volume.serve()?;
    for name in ["before", "after"] {
        ensure!(fs::read(directory.join(name))? == b"written", "{name}");
    }
    let check = volume.finish()?;
    ensure!(check["problems"].as_array().map(Vec::len) == Some(0), "{check}");
    Ok(())
}

#[test]
fn second_server_by_other_path_refused() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let apart = FileLoopDevice::of(&volume.disk())?;
    refused_beside_leader(&mut volume, &format!("disk:{}", apart.0), &[])
}

#[test]
fn living_leader_said_gone_leads_on() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let apart = FileLoopDevice::of(&volume.disk())?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    refused_beside_leader(&mut volume, &format!("disk:{}", apart.0), &["--confirm-gone", host.trim()])
}

#[test]
fn second_server_of_other_number_refused() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let disk = volume.disk();
    refused_beside_leader(&mut volume, &disk, &["--number", "1"])
}

#[test]
fn failed_start_takes_no_leadership() -> Result<()> {
    let Some(mut volume) = volume() else { return Ok(()) };
    let identity = info(&volume)?["volume"].as_str().context("an identity")?.to_owned();
    // The server is killed, so its lease could be taken.
    volume.kill_server();
    let before = epoch(&volume)?;
    let (disk, run) = (volume.disk(), volume.scratch.join("run"));
    let address = format!("unix:{}", volume.scratch.join("other").display());
    let serve = ["volume", "serve", &disk, "--number", "1", "--listen"];
    // A control socket cannot replace a folder, nor the socket of a living process.
    for name in [format!("volume-{identity}.sock"), format!("volume-{identity}-1.sock")] {
        // The killed server left its socket.
        let _ = fs::remove_file(run.join(&name));
        fs::create_dir(run.join(name))?;
    }
    let (code, text) = volume.try_run(&[&serve[..], &[&address]].concat())?;
    ensure!(code == Some(1) && text.contains(&identity), "{code:?}: {text}");
    let mut sockets = Vec::new();
    for name in [format!("volume-{identity}.sock"), format!("volume-{identity}-1.sock")] {
        fs::remove_dir(run.join(&name))?;
        sockets.push(UnixListener::bind(run.join(name))?);
    }
    let (code, text) = volume.try_run(&[&serve[..], &[&address]].concat())?;
    ensure!(code == Some(BUSY) && text.contains(&identity), "{code:?}: {text}");
    // An address that is in use.
    for name in [format!("volume-{identity}.sock"), format!("volume-{identity}-1.sock")] {
        fs::remove_file(run.join(name))?;
    }
    let used = volume.scratch.join("used");
    sockets.push(UnixListener::bind(&used)?);
    let (code, text) = volume.try_run(&[&serve[..], &[&format!("unix:{}", used.display())]].concat())?;
    ensure!(code != Some(0) && text.contains("used"), "{code:?}: {text}");
    ensure!(epoch(&volume)? == before, "a start that failed took the lead");
    // The next one leads at once, and both servers have a control socket of their own.
    volume.serve()?;
    let (code, text) = volume.try_run(&["status"])?;
    ensure!(code == Some(0) && text.contains("volume server"), "{code:?}: {text}");
    ensure!(run.join(format!("volume-{identity}-0.sock")).exists());
    volume.finish()?;
    Ok(())
}
