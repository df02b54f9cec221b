//! The health of a proxy and its store, in the terms of `nectary status`.
//!
//! Owns: the counters that indicate a problem, and the remedies.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nectary_host::{PartHealth, PartStatus};
use nectary_proxy::{AcmeName, FleetSeat, OriginDown, ProxyReopener, ServiceFigures, ShownCertificate, StatsReader};
use nectary_store::StoreStat;
use serde_json::{Value, json};

use crate::machine;
use crate::proxy::fleet_report;
use crate::proxy::live_config::LiveConfig;

/// A running proxy.
pub struct RunningProxy {
    /// The addresses that it listens on.
    pub addresses: Vec<String>,
    /// Its counters.
    pub stats: StatsReader,
    /// What opens its files again.
    pub reopener: ProxyReopener,
    /// Its limits.
    pub limits: Value,
    /// Its configuration file, if it has one.
    pub config: Option<Arc<LiveConfig>>,
    /// Its fleet, if it is a node of one.
    pub fleet: Option<FleetSeat>,
}

/// Returns the status of the proxy with this name; `running` is `None` while it is starting.
pub fn status(name: &str, stat: &StoreStat, running: Option<&RunningProxy>) -> PartStatus {
    let mut status = PartStatus::healthy("proxy", name);
    let stats = running.map(|running| running.stats.snapshot());
    if let Some(reason) = &stat.stopped {
        let what = format!("the store takes no more writes: {reason}");
        status = status.with_problem(PartHealth::Broken, what, "restart it; where that fails too, replace the device");
    }
    let spans = stat.spans.iter().filter_map(|span| span.stat.as_ref());
    for stat in std::iter::once(stat).chain(spans.filter(|_| stat.stopped.is_none())) {
        if let Some(reason) = stat.trouble.as_ref().filter(|_| stat.stopped.is_none()) {
            let what = format!("{}: the store writes nothing at present: {reason}", stat.device);
            let remedy = "free space, or look at the kernel's log; it is tried again by itself";
            status = status.with_problem(PartHealth::Degraded, what, remedy);
        }
    }
    for span in &stat.spans {
        if let Some(reason) = &span.lost {
            let what = format!("span {} of the store is lost, and what it held: {reason}", span.number);
            status = status.with_problem(
                PartHealth::Degraded,
                what,
                "replace the device, blank, and restart with the same --store and --span",
            );
        }
    }
    if stat.counts.device_read_errors > 0 {
        let what = format!("{}: {} reads failed", stat.device, stat.counts.device_read_errors);
        status = status.with_problem(
            PartHealth::Degraded,
            what,
            "look at the kernel's log; replace the device where it goes on",
        );
    }
    if stat.counts.damaged > 0 {
        let what = format!("{}: {} records were damaged; they are misses now", stat.device, stat.counts.damaged);
        status =
            status.with_problem(PartHealth::Degraded, what, "look at the device's health; a restart clears this count");
    }
    if stat.recovery.purges_lost {
        let what = format!("{}: the purge log was damaged, so what was stored before counts as purged", stat.device);
        status = status.with_problem(PartHealth::Degraded, what, "look at the device's health; the store fills again");
    }
    if stat.purges_waiting > 0 {
        let what = format!(
            "{}: {} purges wait, as {} of at most {} are remembered; the oldest segments are reclaimed for them",
            stat.device, stat.purges_waiting, stat.purge_records, stat.purge_records_max
        );
        let remedy = "wait; purge by prefix or by tag instead of many URLs one by one, or give more memory where that sets the bound";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let log_failure = running.and_then(|running| running.stats.log_failure());
    if let Some(reason) = &log_failure {
        let what = format!("the access log cannot be written: {reason}; its lines wait in memory while there is room");
        let remedy = "free space where it is written; it is tried again by itself, and at once after SIGUSR1";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if let Some(lost) = stats.as_ref().map(|stats| stats.log_lines_lost).filter(|&lost| lost > 0) {
        let what = format!("{lost} lines of the access log were lost");
        let remedy = "free space where it is written, or write it to a faster place; a restart clears this count";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let origins_down = running.map(|running| running.stats.origins_down()).unwrap_or_default();
    for down in &origins_down {
        let what = format!(
            "{} takes no connections: {} in a row failed, the last: {}",
            subject(down),
            down.failures,
            down.last
        );
        let remedy = match down.name.is_empty() {
            true => "look whether the origin runs and --origin names it; what is stored and fresh is served meanwhile",
            false => "look whether it runs and the file names it; its origin's other servers are asked meanwhile",
        };
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let origins_failing = running.map(|running| running.stats.origins_failing()).unwrap_or_default();
    let is_down = |failing: &&OriginDown| origins_down.iter().any(|down| down.server_url == failing.server_url);
    for failing in origins_failing.iter().filter(|failing| !is_down(failing)) {
        let what = format!(
            "{} fails: {} requests in a row got no good answer, the last: {}",
            subject(failing),
            failing.failures,
            failing.last
        );
        let remedy = "look at the origin's log; what is stored is served meanwhile, stale where that is allowed";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let origins_unhealthy = running.map(|running| running.stats.origins_unhealthy()).unwrap_or_default();
    for unhealthy in &origins_unhealthy {
        let what = format!(
            "{} does not pass its checks: {} in a row failed, the last: {}",
            subject(unhealthy),
            unhealthy.failures,
            unhealthy.last
        );
        let remedy = "look at its log, and whether `check` asks for the right path; its origin's other servers are asked meanwhile";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let services = running.map(|running| running.stats.services()).unwrap_or_default();
    for (what, remedy) in services.iter().filter_map(service_problem) {
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let config = running.and_then(|running| running.config.as_ref());
    if let Some(config) = config {
        status = config.report(status);
    }
    let certificates = running.map(|running| running.stats.certificates()).unwrap_or_default();
    for (what, remedy) in certificates.iter().filter_map(certificate_problem) {
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let ordered = running.map(|running| running.stats.ordered_names()).unwrap_or_default();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    for (what, remedy) in ordered.iter().flat_map(|name| ordered_problems(name, now_s)) {
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let fleet = running.and_then(|running| running.fleet.as_ref()).map(fleet_report::figures_of);
    for problem in fleet.iter().flat_map(|fleet| &fleet.problems) {
        status = status.with_problem(PartHealth::Degraded, &problem.what, &problem.remedy);
    }
    let mut detail = json!({
        "acme": ordered,
        "certificates": certificates,
        "latencies": running.map(|running| running.stats.latencies()),
        "addresses": running.map(|running| &running.addresses),
        "connections": running.and_then(|running| running.stats.connection_limits()),
        "limits": running.map(|running| &running.limits),
        "requests": stats,
        "access_log_failure": log_failure,
        "origin_failure": origins_down.first().map(|down| &down.last),
        "servers": running.map(|running| running.stats.servers()),
        "services": services,
        "configuration": config.map(|config| config.figures()),
        "process": {
            "open_descriptors": machine::open_descriptors(),
            "resident_bytes": machine::resident_bytes(),
        },
        "store": stat,
    });
    if let Some(fleet) = fleet {
        detail["fleet"] = json!(fleet);
    }
    status.with_detail(detail)
}

/// The server of an origin, as the subject of a sentence.
fn subject(down: &OriginDown) -> String {
    match down.name.is_empty() {
        true => "the origin".to_owned(),
        false => format!("the server {} of the origin `{}`", down.server_url, down.name),
    }
}

/// What is wrong with looking up the servers of an origin, and what to do.
fn service_problem(service: &ServiceFigures) -> Option<(String, &'static str)> {
    let ServiceFigures { origin, srv, servers, failures, .. } = service;
    let failure = service.failure.as_ref().filter(|_| service.is_failing)?;
    let kept = match servers {
        0 => "it has no server by them".to_owned(),
        1 => "the server of before is used".to_owned(),
        count => format!("the {count} servers of before are used"),
    };
    let what = format!(
        "the SRV records {srv} of the origin `{origin}` give no server: {failures} look-ups in a row, the last: {failure}; {kept}"
    );
    Some((
        what,
        "look up the name with `dig SRV`, and see the servers in /etc/resolv.conf; a reload looks it up at once",
    ))
}

/// The days before the end of a certificate from which on somebody should renew it.
const RENEW_DAYS: i64 = 7;

/// What is wrong with a name whose certificate the proxy orders, and what to do.
fn ordered_problems(ordered: &AcmeName, now_s: i64) -> Vec<(String, &'static str)> {
    const WAIT: &str = "see the log of the proxy; it is tried again by itself, and at once after a reload";
    const SPACE: &str = "free space there, or let the user of the proxy write there; it is tried again by itself";
    const CLOCK: &str = "see whether the clock of this machine is right";
    let name = &ordered.name;
    let days = |end_s: i64| match end_s.saturating_sub(now_s).div_euclid(24 * 3600) {
        ..0 => "has ended: clients refuse it".to_owned(),
        days => format!("ends in {days} days"),
    };
    let mut problems = Vec::new();
    match (&ordered.failure, ordered.not_after_s) {
        (Some(failure), end_s) => {
            let again = failure.again_s.saturating_sub(now_s).max(0);
            let tried = match failure.count {
                0 => format!("it is tried again in {again} s"),
                count => format!("attempt {count} failed, the next is in {again} s"),
            };
            let what = match end_s {
                None => format!("no certificate for {name}: {}; {tried}", failure.what),
                Some(end_s) => {
                    let days = days(end_s);
                    format!("no new certificate for {name}: {}; {tried}; the one in use {days}", failure.what)
                }
            };
            problems.push((what, failure.remedy));
        }
        (None, Some(end_s)) if ordered.is_late(now_s) => {
            problems.push((format!("the certificate for {name} was not renewed in time: it {}", days(end_s)), WAIT));
        }
        _ => {}
    }
    if ordered.not_before_s.is_some_and(|not_before_s| not_before_s > now_s) {
        problems.push((format!("the certificate for {name} is not valid yet: clients may refuse it"), CLOCK));
    }
    if let Some(why) = &ordered.not_written {
        problems.push((format!("{why}; the certificate is used from memory, and is lost with the process"), SPACE));
    }
    problems
}

/// What is wrong with a certificate of a file, and what to do; `None` if nothing is.
pub fn certificate_problem(certificate: &ShownCertificate) -> Option<(String, &'static str)> {
    if certificate.is_ordered {
        return None;
    }
    let (path, days) = (certificate.path.display(), certificate.days_left());
    let remedy = "put a newer one into its place, then `nectary` reads it at SIGHUP (`systemctl reload`)";
    match days {
        ..0 => Some((format!("the certificate {path} has ended: clients refuse it"), remedy)),
        0..RENEW_DAYS => Some((format!("the certificate {path} ends in {days} days"), remedy)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use nectary_proxy::AcmeFailure;

    use super::*;

    const DAY_S: i64 = 24 * 3600;

    fn ordered() -> AcmeName {
        AcmeName {
            name: "a.test".to_owned(),
            path: "/s/a.test.pem".into(),
            not_before_s: None,
            not_after_s: None,
            renewal_s: None,
            failure: None,
            not_written: None,
        }
    }

    fn texts(ordered: &AcmeName, now_s: i64) -> Vec<String> {
        ordered_problems(ordered, now_s).into_iter().map(|(what, _)| what).collect()
    }

    #[test]
    fn ordered_certificates_tell_what_is_wrong() {
        let mut name = ordered();
        assert_eq!(texts(&name, 0), Vec::<String>::new(), "it is being ordered");
        name.failure = Some(AcmeFailure { what: "x".to_owned(), remedy: "y", count: 3, again_s: 60 });
        assert_eq!(texts(&name, 0), ["no certificate for a.test: x; attempt 3 failed, the next is in 60 s"]);
        // Nothing was ordered yet, because nothing could be read or kept.
        name.failure = Some(AcmeFailure { what: "x".to_owned(), remedy: "y", count: 0, again_s: 60 });
        assert_eq!(texts(&name, 0), ["no certificate for a.test: x; it is tried again in 60 s"]);
        name.failure = Some(AcmeFailure { what: "x".to_owned(), remedy: "y", count: 3, again_s: 60 });
        (name.not_before_s, name.not_after_s) = (Some(0), Some(90 * DAY_S));
        let found = texts(&name, 89 * DAY_S);
        assert!(found[0].ends_with("the next is in 0 s; the one in use ends in 1 days"), "{found:?}");
        name.failure = None;
        assert_eq!(texts(&name, 70 * DAY_S), Vec::<String>::new());
        assert!(texts(&name, 80 * DAY_S)[0].ends_with("it ends in 10 days"));
        assert!(texts(&name, 91 * DAY_S)[0].ends_with("it has ended: clients refuse it"));
        assert!(texts(&name, -1)[0].contains("not valid yet"));
        name.not_written = Some("/s/a.test.pem cannot be written: no space".to_owned());
        assert!(texts(&name, 1)[0].contains("used from memory"));
    }
}
