//! What is known of a server of an origin: whether it works, and the requests that it has.
//!
//! Owns: the failures in a row, by kind, and the counts of requests, which all workers share. Leaves to others: what follows
//! for the server (`health`, `pool`), and telling of it (`stats`).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of connections or requests that must fail in a row before an origin counts as down. A single failure may
/// be chance.
pub(super) const FAILURES_MIN: u64 = 3;

/// Whether a server of an origin accepts connections, answers requests and passes its checks, and how many requests it
/// has. Workers update this when they open a connection, and when an exchange begins and ends.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    connections: FailureStreak,
    answers: FailureStreak,
    checks: FailureStreak,
    requests: AtomicU64,
    under_way: AtomicUsize,
    has_left: AtomicBool,
}

/// A request at a server, which counts until this value is dropped.
#[derive(Debug)]
pub(crate) struct CountedRequest(Arc<ServerState>);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Failures since the last success.
#[derive(Debug, Default)]
struct FailureStreak {
    failures: AtomicU64,
    last: Mutex<String>,
}

impl FailureStreak {
    fn note(&self, failure: Option<&dyn std::fmt::Display>) {
        match failure {
            None if self.failures.load(Ordering::Relaxed) > 0 => self.failures.store(0, Ordering::Relaxed),
            None => {}
            Some(failure) => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = failure.to_string();
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn continue_from(&self, former: &FailureStreak) {
        let last = former.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
        self.failures.store(former.failures.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn report(&self, failures_min: u64) -> Option<OriginDown> {
        let failures = self.failures.load(Ordering::Relaxed);
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (name, server_url) = (String::new(), String::new());
        (failures >= failures_min).then(|| OriginDown { name, server_url, failures, last: last() })
    }
}

impl ServerState {
    /// Goes on from what another record of the same server says; with its checks, if it `is_checked`.
    pub fn continue_from(&self, former: &ServerState, is_checked: bool) {
        self.connections.continue_from(&former.connections);
        self.answers.continue_from(&former.answers);
        if is_checked {
            self.checks.continue_from(&former.checks);
        }
        self.requests.store(former.requests.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts a request at the server, until the result is dropped.
    pub fn begin(self: &Arc<Self>) -> CountedRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        CountedRequest(self.clone())
    }

    /// The requests that the server has got so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The requests at the server that are not over.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Records that the origin no longer has the server: its connections are not used for further requests.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Whether the origin no longer has the server.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// The checks in a row that the server has not passed.
    pub fn failed_checks(&self) -> u64 {
        self.checks.failures.load(Ordering::Relaxed)
    }

    /// The failures of the last connections, if there were several in a row.
    pub fn connection_failures(&self) -> Option<OriginDown> {
        self.connections.report(FAILURES_MIN)
    }

    /// The failures of the last requests, if there were several in a row.
    pub fn answer_failures(&self) -> Option<OriginDown> {
        self.answers.report(FAILURES_MIN)
    }

    /// The failures of the last checks, if there were at least so many in a row.
    pub fn check_failures(&self, failures_min: u64) -> Option<OriginDown> {
        self.checks.report(failures_min)
    }

    /// Records that the server has passed a check (`failure` is `None`), or why it has not.
    pub fn note_check(&self, failure: Option<&dyn std::fmt::Display>) {
        self.checks.note(failure);
    }

    /// Records that a connection was opened (`failure` is `None`), or why it could not be opened.
    pub fn note_connection(&self, failure: Option<&dyn std::fmt::Display>) {
        self.connections.note(failure);
    }

    /// Records that a request was answered (`failure` is `None`), or why it was not, or the error that is its answer.
    pub fn note_answer(&self, failure: Option<&dyn std::fmt::Display>) {
        self.answers.note(failure);
    }
}

/// A server of an origin that accepts no connections, or does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginDown {
    /// The name of the origin; empty if there is only one.
    pub name: String,
    /// The URL of the server.
    pub server_url: String,
    /// The number of connections, requests or checks that failed in a row.
    pub failures: u64,
    /// Why the last one failed.
    pub last: String,
}

/// A server of an origin, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ServerFigures {
    /// The name of the origin; empty if there is only one.
    pub origin: String,
    /// The URL of the server.
    pub url: String,
    /// Its share of the requests, relative to the other servers'.
    pub weight: u16,
    /// The priority of the record that names it; `None` for a server of the configuration.
    pub priority: Option<u16>,
    /// The requests that were meant for it since the proxy began, also those that it did not get.
    pub requests: u64,
    /// Those that are not over.
    pub requests_under_way: usize,
    /// Why its last connections, checks or requests all failed; `None` if they did not.
    pub failure: Option<String>,
}
