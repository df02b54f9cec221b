//! Tests system calls that fail, and system calls at which the process is killed. `strace` injects both; the store uses
//! the POSIX engine.
//!
//! After a failed write or flush the proxy still serves correct bytes and reports the failure. After a kill at a call,
//! written objects are found, and purged ones are not.

use anyhow::Result;
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::guard::find_program;
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nectary::{AUTHORIZATION, find};
use nectary_e2e::report::{not_run, seed_or_new};
use nectary_e2e::sigkill::{self, ROOMY, SigkillCampaign};
use std::process::Command;
use std::time::{Duration, Instant};

const WRITES: &str = "pwrite64,pwritev,pwritev2";
const FLUSHES: &str = "fdatasync,fsync";

/// True if `strace` may trace processes; otherwise prints the reason.
fn can_trace() -> bool {
    let Some(strace) = find_program("strace") else {
        not_run("faulty calls: strace is not installed");
        return false;
    };
    let traced = Command::new(strace).args(["-f", "-qq", "-o", "/dev/null", "true"]).status();
    let good = traced.is_ok_and(|status| status.success());
    if !good {
        not_run("faulty calls: strace may not trace here (ptrace is forbidden)");
    }
    good
}

/// A wrapper that makes these calls fail, in each thread from the `first` call on.
fn failing(filled: &FilledProxy, calls: &str, error: &str, first: u32) -> Vec<String> {
    let log = filled.scratch.join("strace.log").display().to_string();
    let inject = format!("inject={calls}:error={error}:when={first}+");
    let words = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", &log, "-e", &format!("trace={calls}"), "-e", &inject];
    words.map(str::to_owned).to_vec()
}

/// Failed writes and flushes cost storage, but no client gets wrong bytes.
#[test]
fn failed_writes_keep_answers_correct() -> Result<()> {
    if !can_trace() {
        return Ok(());
    }
    for (calls, error, first) in [(WRITES, "EIO", 3), (WRITES, "ENOSPC", 2), (FLUSHES, "EIO", 2)] {
        let mut filled = FilledProxy::new("failing", 200, 1)?;
        filled.command.arguments.extend(["--io", "posix"].map(str::to_owned));
        filled.fill_and_stop()?;
        let good = filled.command.clone();
        filled.command.wrapper = failing(&filled, calls, error, first);
        // Get new objects, so that there is something to write.
        let more = FilledProxy::new("failing-more", 200, 2)?;
        let mut nectary = filled.command.start()?;
        let mut client = HttpConnection::new(nectary.listen, Duration::from_secs(20));
        let deadline = Instant::now() + Duration::from_secs(20);
        let (mut serial, mut purged) = (0, 0);
        let state = loop {
            for target in &more.targets {
                let target = target.replace("/o/", &format!("/n{serial}/"));
                let response = client.get(&target)?;
                let bytes = nectary_e2e::origin::TargetAnswer::parse(&target).bytes;
                assert!(response.body == nectary_e2e::content::body(&target, 1, bytes), "{target}");
            }
            serial += 1;
            let target = &filled.targets[serial];
            if client.request("PURGE", target, &[AUTHORIZATION])?.status == 200 {
                // The object is purged, so from here on only its next version is right, even after the restart.
                filled.origin.bump(target);
                purged += 1;
            }
            assert_eq!(filled.check(&nectary).wrong, 0, "{}", nectary.process.log_tail());
            let status = nectary.control()?.status()?;
            let state = find(&status, "state").and_then(|state| state.as_str()).unwrap_or("none").to_owned();
            if state != "healthy" || Instant::now() > deadline {
                break state;
            }
        };
        assert_ne!(state, "healthy", "{calls} failed with {error}, and nothing is said about it");
        assert_ne!(
            client.request("PURGE", &filled.targets[100], &[AUTHORIZATION])?.status,
            200,
            "a purge that is not durable"
        );
        nectary.process.kill();
        assert!(!nectary.process.log_text().contains("panicked"), "{}", nectary.process.log_tail());
        let nectary = good.start()?;
        let checked = filled.check(&nectary);
        assert_eq!(checked.wrong, 0, "{}", nectary.process.log_tail());
        assert!(checked.hits >= 150, "what was written before is still there: {checked:?}");
        println!("{calls} {error} from the {first}. on: state {state}, {} purges held; afterwards {checked:?}", purged);
    }
    Ok(())
}

/// The process is killed at a write or a flush.
#[test]
fn kill_at_write_keeps_written_objects() -> Result<()> {
    if !can_trace() {
        return Ok(());
    }
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("seed {seed}");
    let mut campaign = SigkillCampaign::new(&ROOMY, seed, 4);
    campaign.kill_at_calls = Some(format!("{WRITES},{FLUSHES}"));
    campaign.arguments.extend(["--io", "posix"].map(str::to_owned));
    let summary = sigkill::run(&campaign, |report| {
        println!(
            "round {}: written {} of {}, demanded {}",
            report.round, report.written, report.last, report.tally.demanded
        );
        Ok(())
    })?;
    println!("killed at calls: {}", sigkill::describe(&summary));
    let total = &summary.tally;
    assert_eq!((total.missing, total.wrong, total.lost_alive), (0, 0, 0), "seed {seed}: {:?}", total.complaints);
    assert!(total.demanded > 0, "nothing was demanded");
    Ok(())
}
