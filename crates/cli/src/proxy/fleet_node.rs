//! A proxy of a configuration with `[fleet]`: joining, telling what is wrong, and leaving.
//!
//! Owns: the start of the driver beside the proxy, one line in the log for each problem that begins or ends, and the end,
//! which gives the lease back. Leaves to others: membership (`nectary-fleet`), purges and requests (`nectary-proxy`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nectary_config::ProxyConfig;
use nectary_fleet::configured::options_of;
use nectary_fleet::etcd::EtcdFleet;
use nectary_fleet::fixed::FixedFleet;
use nectary_fleet::options::FleetConnection;
use nectary_host::PartProblem;
use nectary_host::fleet::{FleetMembership, NodeStanding, PurgeStore};
use nectary_host::log::{self, LogLevel};
use nectary_proxy::{FleetSeat, FleetStore, rules_of};
use nectary_store::SpanSet;

use super::fleet_report;
use crate::exit::{CommandFailure, FAILED, USAGE};

/// The longest time for which a start waits until the node may serve from its store, and the time between two looks.
const READY_TIME_MAX: Duration = Duration::from_secs(3);
const READY_PAUSE: Duration = Duration::from_millis(10);
/// A problem that was not there for this long is told again.
const TOLD_TIME: Duration = Duration::from_secs(60);

/// A proxy as a node of its fleet.
#[derive(Debug)]
pub struct FleetNode {
    seat: FleetSeat,
    told: Mutex<ToldProblems>,
}

/// The problems that are in the log, without their numbers, and when each was last there.
#[derive(Debug, Default)]
struct ToldProblems(Vec<(String, Instant)>);

impl ToldProblems {
    /// The problems that are not in the log, or were not there for [`TOLD_TIME`].
    fn note<'a>(&mut self, problems: &'a [PartProblem], now: Instant) -> Vec<&'a PartProblem> {
        self.0.retain(|(_, last)| now.saturating_duration_since(*last) < TOLD_TIME);
        let is_new = |problem: &&PartProblem| {
            let text = without_numbers(&problem.what);
            match self.0.iter_mut().find(|(told, _)| *told == text) {
                Some((_, last)) => *last = now,
                None => {
                    self.0.push((text, now));
                    return true;
                }
            }
            false
        };
        problems.iter().filter(is_new).collect()
    }

    /// Whether there were problems; now there are none.
    fn are_over(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

/// A text whose numbers may change while it says the same.
fn without_numbers(text: &str) -> String {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    text.split(' ').map(|word| if is_number(word) { "#" } else { word }).collect::<Vec<_>>().join(" ")
}

impl FleetNode {
    /// Joins the fleet of a configuration, in a thread; `None` if it has none. That etcd is away is no error: the node
    /// tries to join until it has.
    ///
    /// *Errors*: a configuration that cannot be used, files of TLS that cannot be read, no thread.
    pub fn join(config: Option<&Arc<ProxyConfig>>, store: &SpanSet) -> Result<Option<FleetNode>, CommandFailure> {
        let Some((config, fleet)) = config.and_then(|config| Some((config, config.fleet.as_ref()?))) else {
            return Ok(None);
        };
        let rules = rules_of(config).map_err(nectary_proxy::Error::Config)?;
        let help = "mend [fleet] in the configuration";
        let options = options_of(fleet, store.stat().span_bytes, rules);
        let options = options.map_err(|error| CommandFailure::new(USAGE, error, help))?;
        let purges: Arc<dyn PurgeStore> = Arc::new(FleetStore::new(store.clone()));
        let (joined, by) = match &options.connection {
            FleetConnection::Etcd { endpoints, tls } => {
                let joined = EtcdFleet::start(&options, endpoints.clone(), tls, purges);
                (joined.map(|it| it as Arc<dyn FleetMembership>), format!("{} members of etcd", endpoints.len()))
            }
            FleetConnection::Members { members, log, tls, serve_limit } => {
                let joined = FixedFleet::start(&options, members, log, tls, *serve_limit, purges);
                (joined.map(|it| it as Arc<dyn FleetMembership>), format!("{} fixed members", members.len()))
            }
        };
        let (node, name) = (&options.node, &options.fleet);
        let membership = joined
            .map_err(|error| CommandFailure::new(FAILED, format!("cannot join the fleet {name}: {error}"), help))?;
        let text = format_args!("joins the fleet {name} as {node}, by {by}; until then origins answer");
        log::write(LogLevel::Note, "proxy", text);
        Ok(Some(FleetNode { seat: FleetSeat::new(membership, fleet), told: Mutex::default() }))
    }

    /// What the proxy's workers get.
    pub fn seat(&self) -> &FleetSeat {
        &self.seat
    }

    /// Waits until this node may serve from its store, at most [`READY_TIME_MAX`]: until then its origins would answer all
    /// requests, within a limit.
    pub async fn ready(&self) {
        let gate = self.seat.membership().gate().clone();
        let waited = tokio::time::timeout(READY_TIME_MAX, async {
            while gate.standing() != NodeStanding::Member {
                tokio::time::sleep(READY_PAUSE).await;
            }
        });
        // A node that has not joined in this time serves without its store.
        let _ = waited.await;
    }

    /// Writes a line for each problem that is new, and one when all are over.
    pub fn tell_problems(&self) {
        let problems = fleet_report::figures_of(&self.seat).problems;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in told.note(&problems, Instant::now()) {
            log::write(LogLevel::Warning, "proxy", format_args!("{}; {}", problem.what, problem.remedy));
        }
        if problems.is_empty() && told.are_over() {
            log::write(LogLevel::Note, "proxy", format_args!("fleet: nothing is wrong any more"));
        }
    }

    /// Leaves the fleet. Call it when nothing of the proxy uses the store, and before the store is closed.
    pub async fn leave(&self) {
        self.seat.membership().leave().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_with_other_numbers_are_told_once() {
        let problem = |what: &str| PartProblem { what: what.to_owned(), remedy: String::new() };
        let begun = Instant::now();
        let mut told = ToldProblems::default();
        let mut count = |what: &str, seconds| told.note(&[problem(what)], begun + Duration::from_secs(seconds)).len();
        assert_eq!([count("57 purges wait", 0), count("58 purges wait", 1), count("node n2 waits", 2)], [1, 0, 1]);
        assert_eq!([count("node n3 waits", 3), count("9 purges wait", 50), count("node n2 waits", 62)], [1, 0, 1]);
        assert!(told.are_over() && !told.are_over());
    }
}
