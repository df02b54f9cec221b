//! SIGTERM finishes what is under way, takes nothing new, stops cleanly, and leaves a full store behind.

use anyhow::Result;
use nectary_e2e::content;
use nectary_e2e::filled::{Checked, Filled};
use nectary_e2e::guard::describe;
use nectary_e2e::http::Connection;
use nectary_e2e::nectary;
use nectary_e2e::origin::Behaviour;
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn transfers_under_way_are_finished_and_nothing_new_is_taken() -> Result<()> {
    let filled = Filled::new("shutdown", 50, 1)?;
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let target = "/slow/1?size=1000000";
    let slow = Behaviour::Slow { piece_bytes: 20_000, pause: Duration::from_millis(30) };
    filled.origin.set_behaviour(target, Some(slow));
    let listen = nectary.listen;
    // Connections that are idle or have sent half a request hold nothing up.
    let idle = TcpStream::connect(listen)?;
    let half = TcpStream::connect(listen)?;
    std::io::Write::write_all(&mut &half, b"GET /half HTTP/1.1\r\nHost:")?;
    let exit = std::thread::scope(|scope| -> Result<_> {
        let clients: Vec<_> =
            (0..4).map(|_| scope.spawn(move || Connection::new(listen, Duration::from_secs(20)).get(target))).collect();
        let deadline = Instant::now() + Duration::from_secs(10);
        while filled.origin.count(target).requests == 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        // The origin has been asked; the body takes 1.5 s from here.
        std::thread::sleep(Duration::from_millis(300));
        nectary.process.signal(libc::SIGTERM);
        std::thread::sleep(Duration::from_millis(300));
        let refused = Connection::new(listen, Duration::from_secs(2)).get(&filled.targets[0]);
        assert!(refused.is_err(), "a new connection was served after SIGTERM: {refused:?}");
        for client in clients {
            let response = client.join().expect("a client does not panic")?;
            assert!(response.status == 200 && response.body == content::body(target, 1, 1_000_000));
        }
        nectary.process.wait(Duration::from_secs(15))
    })?;
    assert!(exit.success(), "{}\n{}", describe(exit), nectary.process.log_tail());
    drop((idle, half));
    filled.origin.set_behaviour(target, None);
    let nectary = filled.command.start()?;
    assert_eq!(filled.check(&nectary), Checked { hits: 50, ..Checked::default() });
    assert!(nectary.client().get(target)?.is_hit(), "what was under way is stored");
    println!("SIGTERM: 4 transfers finished, nothing new taken, {} objects hit after the restart", 51);
    Ok(())
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_up_the_stop_for_ever() -> Result<()> {
    let filled = Filled::new("stuck", 5, 2)?;
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let target = "/big/1?size=50000000";
    let stuck = TcpStream::connect(nectary.listen)?;
    std::io::Write::write_all(&mut &stuck, format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())?;
    std::thread::sleep(Duration::from_millis(500));
    let started = Instant::now();
    let status = nectary.terminate(Duration::from_secs(40))?;
    println!(
        "SIGTERM with a client that reads nothing: {} after {} ms",
        describe(status),
        started.elapsed().as_millis()
    );
    drop(stuck);
    let nectary = filled.command.start()?;
    assert_eq!(filled.check(&nectary).wrong, 0);
    Ok(())
}

#[test]
fn the_status_command_sees_the_running_proxy_and_its_end() -> Result<()> {
    let filled = Filled::new("status", 5, 3)?;
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let (status, text) = nectary::run(&["status", "--json"], filled.scratch.path())?;
    assert_eq!(status.code(), Some(0), "{text}");
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let sequences = nectary::find(&value, "sequences").expect("the status has sequences");
    assert!(sequences["last"].as_u64() >= sequences["written"].as_u64(), "{sequences}");
    nectary.terminate(Duration::from_secs(20))?;
    let (status, text) = nectary::run(&["status"], filled.scratch.path())?;
    assert_eq!(status.code(), Some(4), "{text}");
    Ok(())
}
