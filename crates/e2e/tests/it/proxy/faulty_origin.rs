//! Whatever an origin does, a client never gets a part of an object as if it were complete, no part is stored, and the
//! proxy still serves: one row per misbehaviour.
//!
//! The planted bug: the same checks must fail with the origin alone, without a proxy.

use anyhow::Result;
use nectary_e2e::content;
use nectary_e2e::http::{HttpConnection, HttpResponse, RequestFailure};
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand};
use nectary_e2e::origin::{DeterministicOrigin, OriginBehaviour};
use nectary_e2e::scratch::ScratchFolder;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The answer that a client may get when the origin misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AllowedAnswer {
    /// An error of the proxy (502 or 504), or a visibly truncated answer.
    ErrorOrCut,
    /// Only an error of the proxy, because it rejects the origin's head before it answers.
    Error,
}

const BYTES: u64 = 2_000_000;

fn rows() -> Vec<(OriginBehaviour, AllowedAnswer)> {
    vec![
        (OriginBehaviour::DieAfter(0), AllowedAnswer::ErrorOrCut),
        (OriginBehaviour::DieAfter(1_500_000), AllowedAnswer::ErrorOrCut),
        (OriginBehaviour::ResetAfter(700_000), AllowedAnswer::ErrorOrCut),
        (OriginBehaviour::ChunkedDieAfter(1_200_000), AllowedAnswer::ErrorOrCut),
        (OriginBehaviour::ChunkedNonsenseAfter(1_200_000), AllowedAnswer::ErrorOrCut),
        (OriginBehaviour::LieLonger(1), AllowedAnswer::ErrorOrCut),
        (OriginBehaviour::Nonsense, AllowedAnswer::Error),
        (OriginBehaviour::BothFramings, AllowedAnswer::Error),
        (OriginBehaviour::TwoLengths, AllowedAnswer::Error),
        (OriginBehaviour::EndlessHead(8 << 20), AllowedAnswer::Error),
        (OriginBehaviour::CloseAtOnce, AllowedAnswer::Error),
    ]
}

/// Judges an answer when the origin misbehaves; describes a wrong answer.
fn complaint(result: &Result<HttpResponse, RequestFailure>, allowed: AllowedAnswer) -> Option<String> {
    match result {
        Ok(response) if matches!(response.status, 502 | 504) => None,
        Err(RequestFailure::Truncated { .. } | RequestFailure::Connection(_))
            if allowed == AllowedAnswer::ErrorOrCut =>
        {
            None
        }
        Ok(response) => Some(format!("status {} with {} bytes passed as whole", response.status, response.body.len())),
        Err(failure) => Some(failure.to_string()),
    }
}

fn client(address: SocketAddr) -> HttpConnection {
    HttpConnection::new(address, Duration::from_secs(20))
}

fn start(scratch: &ScratchFolder, origin: &DeterministicOrigin, arguments: &[&str]) -> Result<NectaryProxy> {
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    command.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    command.start()
}

/// No part of an object is stored, or passed to a client as if it were complete.
#[test]
fn partial_answers_are_never_stored() -> Result<()> {
    let scratch = ScratchFolder::new("faulty-origin")?;
    let origin = DeterministicOrigin::start()?;
    let nectary = start(&scratch, &origin, &[])?;
    let mut checks = 0;
    for (index, (behaviour, allowed)) in rows().into_iter().enumerate() {
        let target = format!("/f/{index}?size={BYTES}");
        origin.set_behaviour(&target, Some(behaviour));
        for attempt in 0..2 {
            let result = client(nectary.listen).get(&target);
            let wrong = complaint(&result, allowed);
            assert!(wrong.is_none(), "{behaviour:?}, attempt {attempt}: {}", wrong.unwrap_or_default());
            checks += 1;
        }
        origin.set_behaviour(&target, None);
        let asked = origin.count(&target).requests;
        let good = client(nectary.listen).get(&target)?;
        assert!(!good.is_hit(), "{behaviour:?}: something of it was stored: {}", good.cache_status());
        assert_eq!(origin.count(&target).requests, asked + 1, "{behaviour:?}");
        assert!(good.status == 200 && good.body == content::body(&target, 1, BYTES), "{behaviour:?}");
        checks += 1;
    }
    println!("faulty origin: {} misbehaviours, {checks} answers, none partial as whole, none stored", rows().len());
    Ok(())
}

#[test]
fn checks_fail_without_proxy() -> Result<()> {
    let origin = DeterministicOrigin::start()?;
    let target = format!("/f/1?size={BYTES}");
    let mut caught = 0;
    for (behaviour, allowed) in rows().into_iter().filter(|(_, allowed)| *allowed == AllowedAnswer::Error) {
        origin.set_behaviour(&target, Some(behaviour));
        let result = client(origin.address()).get(&target);
        assert!(complaint(&result, allowed).is_some(), "{behaviour:?} passed for an error of the proxy");
        caught += 1;
    }
    let whole: Result<HttpResponse, RequestFailure> = Ok(HttpResponse { status: 200, ..HttpResponse::default() });
    assert!(complaint(&whole, AllowedAnswer::ErrorOrCut).is_some());
    println!("planted: {} answers of a bare origin, all complained about", caught + 1);
    Ok(())
}

/// The announced length counts, and the surplus bytes reach no other answer.
#[test]
fn surplus_origin_bytes_are_dropped() -> Result<()> {
    let scratch = ScratchFolder::new("short-origin")?;
    let origin = DeterministicOrigin::start()?;
    let nectary = start(&scratch, &origin, &[])?;
    let target = "/f/1?size=100000";
    origin.set_behaviour(target, Some(OriginBehaviour::LieShorter(10)));
    let whole = content::body(target, 1, 100_000);
    for _ in 0..3 {
        // HTTP cannot detect an announced length that is too short: the announced length counts as the object's length.
        // But the rest must not be mixed into the next answer.
        match client(nectary.listen).get(target) {
            Ok(response) => assert!(response.status == 502 || response.body == whole[..99_990], "{}", response.status),
            Err(RequestFailure::Truncated { .. } | RequestFailure::Connection(_)) => {}
            Err(failure) => panic!("{failure}"),
        }
        let other = client(nectary.listen).get("/f/2?size=1000")?;
        assert!(other.body == content::body("/f/2?size=1000", 1, 1000), "the surplus bytes reached another answer");
    }
    Ok(())
}

/// All clients get the body as it arrives.
#[test]
fn slow_origin_is_fetched_once() -> Result<()> {
    let scratch = ScratchFolder::new("slow-origin")?;
    let origin = DeterministicOrigin::start()?;
    let nectary = start(&scratch, &origin, &[])?;
    let target = "/s/1?size=400000";
    let slow = OriginBehaviour::Slow { piece_bytes: 20_000, pause: Duration::from_millis(50) };
    origin.set_behaviour(target, Some(slow));
    let whole = content::body(target, 1, 400_000);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| client(nectary.listen).get(target))).collect();
        for thread in threads {
            let response = thread.join().expect("a client does not panic").expect("a whole answer");
            assert!(response.body == whole, "{}", response.cache_status());
        }
    });
    // A fetch has 20 pauses of 50 ms; eight separate fetches would take eight times as long.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(origin.count(target).requests, 1, "one fetch for eight clients");
    println!("slow origin: 8 clients at once, 1 fetch, {} ms", started.elapsed().as_millis());
    Ok(())
}

#[test]
fn silent_origin_blocks_nobody_else() -> Result<()> {
    let scratch = ScratchFolder::new("silent-origin")?;
    let origin = DeterministicOrigin::start()?;
    let nectary = start(&scratch, &origin, &[])?;
    origin.set_behaviour("/s/1?size=10", Some(OriginBehaviour::Silent));
    origin.set_behaviour("/s/2?size=100000", Some(OriginBehaviour::StallAfter(50_000)));
    let mut waiting: Vec<_> = ["/s/1?size=10", "/s/2?size=100000"]
        .iter()
        .map(|target| {
            let stream = nectary_e2e::http::connect(nectary.listen, Duration::from_secs(5))?;
            std::io::Write::write_all(&mut &stream, format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())?;
            Ok(stream)
        })
        .collect::<std::io::Result<_>>()?;
    let started = Instant::now();
    for id in 0..200 {
        let target = format!("/o/{id}?size=1000");
        assert!(client(nectary.listen).get(&target)?.body == content::body(&target, 1, 1000));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    waiting.clear();
    Ok(())
}

/// The memory for the body is bounded.
#[test]
fn endless_body_is_never_stored() -> Result<()> {
    let scratch = ScratchFolder::new("endless-origin")?;
    let origin = DeterministicOrigin::start()?;
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    command.memory = "32M".to_owned();
    command.size = "64M".to_owned();
    let nectary = command.start()?;
    let target = "/e/1?size=10";
    origin.set_behaviour(target, Some(OriginBehaviour::EndlessBody(400 << 20)));
    let result = client(nectary.listen).get(target);
    assert!(!matches!(&result, Ok(response) if response.status == 200), "an unfinished body passed as whole");
    let resident = nectary.process.resident_bytes_max()?;
    assert!(resident <= (32 + 64) << 20, "VmHWM {} MiB", resident >> 20);
    origin.set_behaviour(target, None);
    assert!(client(nectary.listen).get(target)?.body == content::body(target, 1, 10));
    println!("endless body: 400 MiB without an end through 32 MiB of memory, VmHWM {} MiB", resident >> 20);
    Ok(())
}
