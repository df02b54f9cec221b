//! A restart is no outage: the next process has the store at once, and no request is lost where listeners are inherited.

use anyhow::{Result, ensure};
use nectary_e2e::content;
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::guard::describe;
use nectary_e2e::restart;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn restarts_lose_no_request() -> Result<()> {
    let counts = restart::run(3, 1)?;
    println!("restarts: {counts}");
    assert!(counts.failed.is_empty(), "{:#?}", counts.failed);
    ensure!(counts.good > 0 && counts.long > 0, "there was too little load");
    Ok(())
}

#[test]
fn next_process_has_store_at_once() -> Result<()> {
    let mut filled = FilledProxy::new("next-process", 20, 1)?;
    filled.command.size = "160M".to_owned();
    let target = "/long/1?size=24000000&ranges";
    let mut first = filled.command.start()?;
    filled.fill(&first)?;
    assert_eq!(first.client().get(target)?.status, 200);
    first.wait_written(Duration::from_secs(20))?;
    first.terminate(Duration::from_secs(20))?;
    // This one has the body on its disk alone.
    let mut first = filled.command.start()?;
    let mut stream = TcpStream::connect(first.listen)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())?;
    let mut found = vec![0; 100_000];
    stream.read_exact(&mut found)?;
    let head = found.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    found.drain(..head);

    first.process.signal(libc::SIGTERM);
    let begun = Instant::now();
    while TcpStream::connect(first.listen).is_ok() {
        ensure!(begun.elapsed() < Duration::from_secs(1), "the first one still listens");
    }
    let mut second = loop {
        // A store that another process has open is an error at once.
        let mut second = filled.command.spawn()?;
        if second.wait_ready(Duration::from_secs(10)).is_ok() {
            break second;
        }
        ensure!(begun.elapsed() < Duration::from_secs(5), "{}", second.process.log_tail());
    };
    let taken = begun.elapsed();
    assert!(first.process.try_status().is_none(), "the first one still sends");
    assert_eq!(filled.check(&second).hits, 20);
    second.terminate(Duration::from_secs(20))?;
    // Everything on the disk is overwritten: the rest of the body comes from the origin.
    let store = std::fs::OpenOptions::new().write(true).open(&filled.command.store)?;
    let zeroes = vec![0; 1 << 20];
    for number in 0..160 {
        std::os::unix::fs::FileExt::write_all_at(&store, &zeroes, number << 20)?;
    }
    let mut rest = vec![0; 24_000_000 - found.len()];
    stream.read_exact(&mut rest)?;
    found.append(&mut rest);
    assert!(found == content::body(target, 1, 24_000_000), "wrong bytes");
    drop(stream);
    let exit = first.process.wait(Duration::from_secs(15))?;
    assert!(exit.success(), "{}\n{}", describe(exit), first.process.log_tail());
    assert!(filled.origin.count(target).requests >= 2, "the rest was asked for");
    println!("the next process had the store after {} ms; the body went on", taken.as_millis());
    Ok(())
}
