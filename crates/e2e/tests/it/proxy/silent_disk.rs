//! A disk that stops answering in the middle of bodies costs their clients a moment, and no byte.

use anyhow::{Context, Result, ensure};
use nectary_e2e::content;
use nectary_e2e::nectary::{ProxyCommand, find};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::scratch::ScratchFolder;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const SIZE: u64 = 10 << 20;
/// Together, the bodies are much longer than the proxy's memory.
const BODIES: u64 = 6;
const LIMIT: Duration = Duration::from_secs(10);

fn target(number: u64) -> String {
    format!("/o/{number}?size={SIZE}&ranges")
}

/// Gets a body; after its first `pause_bytes`, waits twice at the barrier: before and after the disk becomes silent.
fn get(address: SocketAddr, number: u64, pause_bytes: usize, barrier: &Barrier) -> Result<()> {
    let target = target(number);
    let begin = || -> Result<_> {
        let mut stream = nectary_e2e::http::connect(address, LIMIT)?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = vec![0; pause_bytes];
        stream.read_exact(&mut answer)?;
        Ok((stream, answer))
    };
    let begun = begin();
    barrier.wait();
    barrier.wait();
    let (mut stream, mut answer) = begun?;
    stream.read_to_end(&mut answer).with_context(|| format!("{target} after {} bytes", answer.len()))?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no head")? + 4;
    ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer[..head]));
    ensure!(answer[head..] == content::body(&target, 1, SIZE), "{target}: {} bytes", answer.len() - head);
    Ok(())
}

#[test]
fn bodies_outlive_a_disk_that_hangs() -> Result<()> {
    let (scratch, origin) = (ScratchFolder::new("silent-disk")?, DeterministicOrigin::start()?);
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    command.memory = "16M".into();
    command.arguments.extend(["--disk-deadline", "500ms"].map(str::to_owned));
    let mut nectary = command.start()?;
    for number in 0..BODIES {
        ensure!(nectary.client().get(&target(number))?.body.len() as u64 == SIZE);
    }
    nectary.wait_written(LIMIT)?;
    nectary.terminate(LIMIT)?;
    let trigger = scratch.join("silent");
    let (path, file) = (scratch.join("store"), trigger.display());
    command.store = format!("delay({},read=1h,write=1h,flush=1h,when={file})", path.display());
    for pause_bytes in [1000, 1 << 20, 3 << 20] {
        let mut nectary = command.start()?;
        let barrier = Barrier::new(BODIES as usize + 1);
        let begun = std::thread::scope(|scope| -> Result<Instant> {
            let clients: Vec<_> = (0..BODIES)
                .map(|number| {
                    let (address, barrier) = (command.listen, &barrier);
                    scope.spawn(move || get(address, number, pause_bytes, barrier))
                })
                .collect();
            barrier.wait();
            let silenced = std::fs::write(&trigger, b"");
            let begun = Instant::now();
            barrier.wait();
            silenced?;
            clients.into_iter().try_for_each(|client| client.join().expect("no panic"))?;
            Ok(begun)
        })?;
        let taken = begun.elapsed();
        ensure!(taken < Duration::from_secs(5), "{taken:?}");
        let status = nectary.control()?.status()?;
        let count = |name| find(&status, name).and_then(|count| count.as_u64()).context("a count");
        let (resumed, cut_off) = (count("resumed")?, count("cut_off")?);
        ensure!(resumed > 0 && cut_off == 0, "{resumed} went on from the origin, {cut_off} were cut off");
        ensure!(
            nectary.process.log_text().contains("the body comes from the origin"),
            "{}",
            nectary.process.log_tail()
        );
        std::fs::remove_file(&trigger)?;
        nectary.terminate(LIMIT)?;
        println!("silent after {pause_bytes} bytes: {resumed} of {BODIES} bodies went on from the origin in {taken:?}");
    }
    Ok(())
}
