//! The health of a proxy and its store, in the terms of `nectary status`.
//!
//! Owns: the counters that indicate a problem, and the remedies.

use std::net::SocketAddr;

use nectary_host::{State, Status};
use nectary_proxy::{Reopener, StatsReader};
use nectary_store::Stat;
use serde_json::{Value, json};

use crate::machine;

/// A running proxy.
pub struct Running {
    /// The addresses that it listens on.
    pub addresses: Vec<SocketAddr>,
    /// Its counters.
    pub stats: StatsReader,
    /// What opens its files again.
    pub reopener: Reopener,
    /// Its limits.
    pub limits: Value,
}

/// Returns the status of the proxy with this name; `running` is `None` while it is starting.
pub fn status(name: &str, stat: &Stat, running: Option<&Running>) -> Status {
    let mut status = Status::healthy("proxy", name);
    let stats = running.map(|running| running.stats.snapshot());
    if let Some(reason) = &stat.stopped {
        let what = format!("the store takes no more writes: {reason}");
        status = status.with_problem(State::Broken, what, "restart it; where that fails too, replace the device");
    }
    let spans = stat.spans.iter().filter_map(|span| span.stat.as_ref());
    for stat in std::iter::once(stat).chain(spans.filter(|_| stat.stopped.is_none())) {
        if let Some(reason) = stat.trouble.as_ref().filter(|_| stat.stopped.is_none()) {
            let what = format!("{}: the store writes nothing at present: {reason}", stat.device);
            let remedy = "free space, or look at the kernel's log; it is tried again by itself";
            status = status.with_problem(State::Degraded, what, remedy);
        }
    }
    for span in &stat.spans {
        if let Some(reason) = &span.lost {
            let what = format!("span {} of the store is lost, and what it held: {reason}", span.number);
            status = status.with_problem(
                State::Degraded,
                what,
                "replace the device, blank, and restart with the same --store and --span",
            );
        }
    }
    if stat.counts.device_read_errors > 0 {
        let what = format!("{}: {} reads failed", stat.device, stat.counts.device_read_errors);
        status =
            status.with_problem(State::Degraded, what, "look at the kernel's log; replace the device where it goes on");
    }
    if stat.counts.damaged > 0 {
        let what = format!("{}: {} records were damaged; they are misses now", stat.device, stat.counts.damaged);
        status = status.with_problem(State::Degraded, what, "look at the device's health; a restart clears this count");
    }
    if stat.recovery.purges_lost {
        let what = format!("{}: the purge log was damaged, so what was stored before counts as purged", stat.device);
        status = status.with_problem(State::Degraded, what, "look at the device's health; the store fills again");
    }
    if stat.purges_waiting > 0 {
        let what = format!(
            "{}: {} purges wait, as {} of at most {} are remembered; the oldest segments are reclaimed for them",
            stat.device, stat.purges_waiting, stat.purge_records, stat.purge_records_max
        );
        let remedy = "wait; purge by prefix or by tag instead of many URLs one by one, or give more memory where that sets the bound";
        status = status.with_problem(State::Degraded, what, remedy);
    }
    let log_failure = running.and_then(|running| running.stats.log_failure());
    if let Some(reason) = &log_failure {
        let what = format!("the access log cannot be written: {reason}; its lines wait in memory while there is room");
        let remedy = "free space where it is written; it is tried again by itself, and at once after SIGUSR1";
        status = status.with_problem(State::Degraded, what, remedy);
    }
    if let Some(lost) = stats.as_ref().map(|stats| stats.log_lines_lost).filter(|&lost| lost > 0) {
        let what = format!("{lost} lines of the access log were lost");
        let remedy = "free space where it is written, or write it to a faster place; a restart clears this count";
        status = status.with_problem(State::Degraded, what, remedy);
    }
    let origin_down = running.and_then(|running| running.stats.origin_down());
    if let Some(down) = &origin_down {
        let what =
            format!("the origin takes no connections: {} in a row failed, the last: {}", down.failures, down.last);
        let remedy = "look whether the origin runs and --origin names it; what is stored and fresh is served meanwhile";
        status = status.with_problem(State::Degraded, what, remedy);
    } else if let Some(failing) = running.and_then(|running| running.stats.origin_failing()) {
        let what = format!(
            "the origin fails: {} requests in a row got no good answer, the last: {}",
            failing.failures, failing.last
        );
        let remedy = "look at the origin's log; what is stored is served meanwhile, stale where that is allowed";
        status = status.with_problem(State::Degraded, what, remedy);
    }
    status.with_detail(json!({
        "addresses": running.map(|running| &running.addresses),
        "connections": running.and_then(|running| running.stats.connection_limits()),
        "limits": running.map(|running| &running.limits),
        "requests": stats,
        "access_log_failure": log_failure,
        "origin_failure": origin_down.map(|down| down.last),
        "process": { "resident_bytes": machine::resident_bytes() },
        "store": stat,
    }))
}
