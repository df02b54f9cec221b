//! SIGTERM ends a proxy whose disk does not answer: at once while the store is being opened, later within the disk's
//! deadlines.

use anyhow::{Result, ensure};
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::guard::describe;
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nbd::NbdServer;
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
/// What the end of a process takes without waiting for anything, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);
/// The deadline of the disk, and how long a process may take to end whose disk is silent.
const DEADLINE: (&str, Duration) = ("500ms", Duration::from_secs(6));

/// Waits until the process has a file open. It listens for signals before.
fn wait_for_file(nectary: &mut NectaryProxy, path: &Path) -> Result<()> {
    let (folder, deadline) = (format!("/proc/{}/fd", nectary.process.id()), Instant::now() + LIMIT);
    loop {
        let mut files = std::fs::read_dir(&folder)?.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        if files.any(|file| file == path) {
            return Ok(());
        }
        ensure!(nectary.process.try_status().is_none(), "{}", nectary.process.log_tail());
        ensure!(Instant::now() < deadline, "{} is not opened", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ends_while_opening(command: &ProxyCommand, path: &Path) -> Result<()> {
    let mut nectary = command.spawn()?;
    wait_for_file(&mut nectary, path)?;
    let begun = Instant::now();
    let exit = nectary.terminate(LIMIT)?;
    let (taken, said) = (begun.elapsed(), nectary.process.log_text());
    ensure!(exit.success() && said.contains("stopped before the store was open"), "{}\n{said}", describe(exit));
    ensure!(taken < AT_ONCE, "{}: it took {taken:?}", command.store);
    println!("SIGTERM while {} is opened: ended after {taken:?}", command.store);
    Ok(())
}

#[test]
fn sigterm_ends_opening_proxy() -> Result<()> {
    let mut filled = FilledProxy::new("opening", 20, 1)?;
    filled.fill_and_stop()?;
    let path = filled.store_path();
    filled.command.arguments.extend(["--disk-deadline", "0"].map(str::to_owned));
    filled.command.store = format!("delay({},read=1h)", path.display());
    ends_while_opening(&filled.command, &path)?;
    // The store is as it was.
    filled.command.store = path.display().to_string();
    let mut nectary = filled.command.start()?;
    ensure!(filled.check(&nectary).hits == 20);
    nectary.terminate(LIMIT)?;
    // So it is while a new one is made.
    let path = filled.scratch.join("new");
    std::fs::File::create(&path)?.set_len(256 << 20)?;
    filled.command.store = format!("delay({},write=1h)", path.display());
    ends_while_opening(&filled.command, &path)
}

/// Asks for an object that is on the disk alone, and for one that is to be stored; then SIGTERM must end the process.
fn ends_while_silent(filled: &FilledProxy, nectary: &mut NectaryProxy) -> Result<()> {
    let mut clients = Vec::new();
    for (number, target) in filled.targets.iter().enumerate() {
        let mut client = HttpConnection::new(nectary.listen, LIMIT);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())?;
        clients.push(client);
        nectary.client().get(&format!("/new/{number}?size=30000"))?;
    }
    let begun = Instant::now();
    let exit = nectary.terminate(LIMIT)?;
    let taken = begun.elapsed();
    ensure!(exit.code().is_some(), "{}\n{}", describe(exit), nectary.process.log_tail());
    ensure!(taken < DEADLINE.1, "it took {taken:?}\n{}", nectary.process.log_tail());
    println!("SIGTERM while {} is silent: {} after {taken:?}", filled.command.store, describe(exit));
    Ok(())
}

/// The disk of the proxy hangs.
#[test]
fn sigterm_ends_hanging_proxy() -> Result<()> {
    let mut filled = FilledProxy::new("hanging", 20, 1)?;
    filled.fill_and_stop()?;
    let (path, trigger) = (filled.store_path(), filled.scratch.join("silent"));
    let end = ["--disk-deadline", DEADLINE.0, "--drain", "2s"].map(str::to_owned);
    filled.command.arguments.extend(end);
    filled.command.store = format!("delay({},read=1h,write=1h,flush=1h,when={})", path.display(), trigger.display());
    let mut nectary = filled.command.start()?;
    std::fs::write(&trigger, b"")?;
    ends_while_silent(&filled, &mut nectary)
}

/// The server of the proxy's disk stands still.
#[test]
fn sigterm_ends_proxy_without_server() -> Result<()> {
    let mut filled = FilledProxy::new("standing", 20, 1)?;
    filled.fill_and_stop()?;
    let folder = filled.scratch.join("server");
    std::fs::create_dir(&folder)?;
    let mut server = NbdServer::nectary(&folder, "disk", &[&filled.store_path().display().to_string()])?;
    let end = ["--disk-deadline", DEADLINE.0, "--drain", "2s"].map(str::to_owned);
    filled.command.arguments.extend(end);
    filled.command.store = server.url("");
    let mut nectary = filled.command.start()?;
    server.process.signal(libc::SIGSTOP);
    ends_while_silent(&filled, &mut nectary)
}
