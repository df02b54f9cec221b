//! A sample of the campaign `proxy-origins`: an origin with several addresses or servers, some of which fail.

use anyhow::Result;
use nectary_e2e::failover::{FailoverRoundPlan, OriginRedundancy, missing, round};
use nectary_e2e::report::not_run;
use std::time::Duration;

const SAMPLE: FailoverRoundPlan = FailoverRoundPlan {
    phases: 1,
    phase: Duration::from_secs(2),
    is_planted: false,
    several: OriginRedundancy::Addresses,
};

#[test]
fn failing_addresses_leave_no_request_unanswered() -> Result<()> {
    if let Some(reason) = missing() {
        not_run(format!("failing addresses: {reason}"));
        return Ok(());
    }
    for seed in [7, 10] {
        let counts = round(seed, &SAMPLE)?;
        println!("failing addresses: seed {seed}: {counts}");
        assert!(counts.problems.is_empty(), "{:#?}", counts.problems);
    }
    Ok(())
}

#[test]
fn failing_servers_leave_no_request_unanswered() -> Result<()> {
    for seed in [3, 5] {
        let counts = round(seed, &FailoverRoundPlan { several: OriginRedundancy::Servers, ..SAMPLE })?;
        println!("failing servers: seed {seed}: {counts}");
        assert!(counts.problems.is_empty(), "{:#?}", counts.problems);
    }
    Ok(())
}

/// A round without a good address is reported as a problem.
#[test]
fn planted_outage_is_reported() -> Result<()> {
    if let Some(reason) = missing() {
        not_run(format!("planted: {reason}"));
        return Ok(());
    }
    let counts = round(7, &FailoverRoundPlan { phase: Duration::from_millis(300), is_planted: true, ..SAMPLE })?;
    println!("planted: {counts}");
    assert!(!counts.problems.is_empty());
    Ok(())
}
