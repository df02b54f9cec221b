//! Rounds of a fleet under load: three proxies, three members of etcd, purges, and what disturbs them.
//!
//! Before each purge the origin has new versions of what it is about. After a purge that was answered as `applied`, no
//! response to a later request may have an older version, at any node; the exception is a node that says that it is cut
//! off, if `serve-when-cut` is not 0. Every body is compared with its version. A node that is not killed or stopped
//! answers every request: with 200, or, while it is cut off, with 503 by its limit.

mod cluster;
mod relay;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use self::cluster::{FleetCluster, NodeAddress, SITE};
pub use self::cluster::{FleetTrouble, LEASE, missing};
use crate::content;
use crate::http::{HttpConnection, HttpResponse};
use crate::origin::DeterministicOrigin;
use crate::rng::SeededRng;

/// Clients of the load.
const CLIENTS: usize = 4;
/// Objects, and their tags.
const OBJECTS: usize = 40;
const TAGS: usize = 5;
/// The length of each object.
const BODY_BYTES: u64 = 2000;
/// The longest time of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// The extent of a round.
#[derive(Clone, Copy, Debug)]
pub struct FleetRoundPlan {
    /// How often the fleet is disturbed.
    pub troubles: u64,
    /// `serve-when-cut`.
    pub serve_when_cut: Duration,
    /// Whether the nodes share the keys.
    pub shares: bool,
    /// Whether the members are fixed, without etcd.
    pub is_fixed: bool,
    /// Whether the checks believe in a purge that was never made, so that they must complain.
    pub is_planted: bool,
}

/// What happened in rounds.
#[derive(Clone, Debug, Default)]
pub struct FleetCounts {
    /// GETs that were answered with 200.
    pub answered: u64,
    /// Those from a store.
    pub hits: u64,
    /// Those that another node has answered.
    pub peer_answers: u64,
    /// Those from the store of a node that said that it was cut off.
    pub cut_hits: u64,
    /// Those of these with a version from before an applied purge, as `serve-when-cut` allows.
    pub cut_old: u64,
    /// GETs that a cut off node refused by its limit.
    pub limited: u64,
    /// GETs without an answer at a node that was killed or stopped meanwhile.
    pub silent: u64,
    /// Purges that every living node had applied.
    pub applied: u64,
    /// Purges that were in the log, but not confirmed by all nodes in time.
    pub accepted: u64,
    /// Purges that failed.
    pub refused: u64,
    /// The longest time without any answer to a GET.
    pub gap: Duration,
    /// The longest time of an applied purge.
    pub purge_longest: Duration,
    /// How often each kind of trouble was made.
    pub troubles: [u64; FleetTrouble::KINDS.len()],
    /// What was wrong.
    pub problems: Vec<String>,
}

impl FleetCounts {
    /// Adds other counts.
    pub fn add(&mut self, other: FleetCounts) {
        self.answered += other.answered;
        self.hits += other.hits;
        self.peer_answers += other.peer_answers;
        self.cut_hits += other.cut_hits;
        self.cut_old += other.cut_old;
        self.limited += other.limited;
        self.silent += other.silent;
        self.applied += other.applied;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.gap = self.gap.max(other.gap);
        self.purge_longest = self.purge_longest.max(other.purge_longest);
        self.troubles.iter_mut().zip(other.troubles).for_each(|(sum, count)| *sum += count);
        self.problems.extend(other.problems);
    }
}

impl fmt::Display for FleetCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FleetCounts {
            answered,
            hits,
            peer_answers,
            cut_hits,
            cut_old,
            limited,
            silent,
            applied,
            accepted,
            refused,
            ..
        } = self;
        write!(
            out,
            "{answered} answers, {hits} hits, {peer_answers} of other nodes, {cut_hits} of cut off nodes ({cut_old} old), {limited} limited, "
        )?;
        write!(out, "{silent} at silent nodes; purges: {applied} applied, {accepted} accepted, {refused} refused; ")?;
        let (gap, longest) = (self.gap.as_secs_f64(), self.purge_longest.as_secs_f64());
        write!(out, "longest gap {gap:.2} s, longest purge {longest:.2} s; troubles:")?;
        for (kind, count) in FleetTrouble::KINDS.iter().zip(self.troubles) {
            write!(out, " {kind} {count}")?;
        }
        write!(out, "; {} problems", self.problems.len())
    }
}

/// What clients, purges and checks share.
struct FleetRoundState<'a> {
    origin: &'a DeterministicOrigin,
    nodes: &'a [NodeAddress],
    extent: &'a FleetRoundPlan,
    /// The lowest version of each object that may be seen: that of the last applied purge.
    floors: Vec<AtomicU64>,
    /// The versions of purges that some nodes had not confirmed: all have them when all have returned.
    accepted: Mutex<Vec<(usize, u64)>>,
    /// When the last GET was answered.
    last_answer: Mutex<Instant>,
    stop: AtomicBool,
}

/// Runs one round.
pub fn round(seed: u64, extent: &FleetRoundPlan) -> Result<FleetCounts> {
    let mut rng = SeededRng::new(seed);
    let origin = DeterministicOrigin::start()?;
    let nodes = cluster::addresses()?;
    let mut cluster = FleetCluster::start(&nodes, origin.address(), extent)?;
    let field = FleetRoundState {
        origin: &origin,
        nodes: &nodes,
        extent,
        floors: (0..OBJECTS).map(|_| AtomicU64::new(1)).collect(),
        accepted: Mutex::default(),
        last_answer: Mutex::new(Instant::now()),
        stop: AtomicBool::new(false),
    };
    let mut counts = FleetCounts::default();
    let kinds = extent.kinds();
    let first = rng.index(kinds);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..CLIENTS {
            let (rng, field) = (rng.split(), &field);
            threads.push(scope.spawn(move || load(rng, field)));
        }
        let (purge_rng, shared) = (rng.split(), &field);
        threads.push(scope.spawn(move || purges(purge_rng, shared)));
        for number in 0..extent.troubles as usize {
            let trouble = FleetTrouble::of_kind((first + number) % kinds, &mut rng);
            // Shorter and longer than a lease.
            let time = Duration::from_millis(300 + rng.below(3 * LEASE.as_millis() as u64));
            counts.troubles[trouble.kind()] += 1;
            if let Err(error) = cluster.disturb(trouble, time, &nodes) {
                counts.problems.push(format!("after {trouble:?} for {time:?}: {error:#}"));
                break;
            }
            if extent.is_fixed {
                field.believe_accepted();
            }
            std::thread::sleep(Duration::from_millis(rng.below(500)));
        }
        field.stop.store(true, Ordering::SeqCst);
        for thread in threads {
            match thread.join() {
                Ok(done) => counts.add(done),
                Err(_) => counts.problems.push("a client panicked".to_owned()),
            }
        }
    });
    counts.problems.extend(cluster.stop());
    if extent.shares && counts.peer_answers == 0 {
        counts.problems.push("no node has answered another".to_owned());
    }
    if counts.hits == 0 || counts.applied == 0 {
        counts.problems.push(format!("{} hits and {} applied purges: nothing was tried", counts.hits, counts.applied));
    }
    counts.problems.iter_mut().for_each(|problem| problem.push_str(&format!(", seed {seed}")));
    Ok(counts)
}

impl FleetRoundPlan {
    /// The kinds of trouble that there can be, which are the first ones.
    pub fn kinds(&self) -> usize {
        if self.is_fixed { 2 } else { FleetTrouble::KINDS.len() }
    }
}

impl FleetRoundState<'_> {
    /// From now on nothing may be seen that is older than the purges that were in the log of any node, as all nodes have
    /// returned. What a node accepted just before it was killed comes to the others a moment after it has returned.
    fn believe_accepted(&self) {
        let accepted = std::mem::take(&mut *self.accepted.lock().unwrap_or_else(PoisonError::into_inner));
        std::thread::sleep(LEASE);
        for (object, version) in accepted {
            self.floors[object].fetch_max(version, Ordering::SeqCst);
        }
    }
}

fn target(object: usize) -> String {
    format!("/o/{object}?size={BODY_BYTES}&tags=t{}", object % TAGS)
}

/// One client: sends requests to nodes until it is stopped.
fn load(mut rng: SeededRng, field: &FleetRoundState<'_>) -> FleetCounts {
    let mut counts = FleetCounts::default();
    let mut connections: Vec<_> =
        field.nodes.iter().map(|node| HttpConnection::new(node.clients, ANSWER_MAX)).collect();
    let mut seen = vec![0; field.nodes.len()];
    while !field.stop.load(Ordering::SeqCst) {
        let (node, object) = (rng.index(field.nodes.len()), rng.index(OBJECTS));
        // A node that does not answer is asked now and then, so that requests wait there as it goes on.
        let silence = field.nodes[node].silence();
        if silence % 2 == 1 && !rng.chance(0.05) {
            continue;
        }
        // A connection to a process that has ended is no answer of the next one.
        if std::mem::replace(&mut seen[node], silence) != silence {
            connections[node].close();
        }
        let planted = u64::from(field.extent.is_planted && rng.chance(0.01));
        let floor = field.floors[object].load(Ordering::SeqCst) + planted;
        let result = connections[node].get(&target(object));
        let is_undisturbed = silence.is_multiple_of(2) && field.nodes[node].silence() == silence;
        match result {
            Ok(response) if response.status == 200 => {
                counts.note_gap(field);
                counts.judge(&response, (node, object), floor, field);
            }
            Ok(response) if response.status == 503 && response.cache_status().contains("fleet-cut") => {
                counts.limited += 1;
            }
            // What a node that is being stopped or started says or does not say is its end.
            _ if !is_undisturbed => counts.silent += 1,
            Ok(response) => counts.problems.push(format!("node {node}: {} for object {object}", response.status)),
            Err(failure) => counts.problems.push(format!("node {node}: object {object}: {failure}")),
        }
        std::thread::sleep(Duration::from_millis(rng.below(5)));
    }
    counts
}

impl FleetCounts {
    fn note_gap(&mut self, field: &FleetRoundState<'_>) {
        let mut last = field.last_answer.lock().unwrap_or_else(PoisonError::into_inner);
        self.gap = self.gap.max(last.elapsed());
        *last = Instant::now();
    }

    fn judge(
        &mut self,
        response: &HttpResponse,
        (node, object): (usize, usize),
        floor: u64,
        field: &FleetRoundState<'_>,
    ) {
        let target = target(object);
        let Some(version) = response.version() else {
            return self.problems.push(format!("node {node}: {target} without a version"));
        };
        if response.body != content::body(&target, version, BODY_BYTES) {
            self.problems.push(format!("node {node}: {target} has wrong bytes for version {version}"));
        }
        self.answered += 1;
        self.hits += u64::from(response.is_hit());
        let is_of_peer = |(name, value): &(String, String)| name == "cache-status" && value.contains("fleet=\"");
        self.peer_answers += u64::from(!response.is_hit() && response.headers.iter().any(is_of_peer));
        let is_cut = response.cache_status().contains("fleet=cut");
        self.cut_hits += u64::from(is_cut && response.is_hit());
        if version >= floor {
            return;
        }
        if is_cut && !field.extent.serve_when_cut.is_zero() {
            self.cut_old += 1;
            return;
        }
        let status = response.cache_status();
        self.problems.push(format!("node {node}: {target} has version {version} after a purge of {floor} ({status})"));
    }
}

/// Purges at random nodes until it is stopped.
fn purges(mut rng: SeededRng, field: &FleetRoundState<'_>) -> FleetCounts {
    let mut counts = FleetCounts::default();
    while !field.stop.load(Ordering::SeqCst) {
        let node = rng.index(field.nodes.len());
        let silence = field.nodes[node].silence();
        if silence % 2 == 1 {
            continue;
        }
        let object = rng.index(OBJECTS);
        let (about, body): (Vec<usize>, Value) = match rng.below(10) {
            0 => ((0..OBJECTS).collect(), json!({ "all": true, "wait": "applied" })),
            1 | 2 => {
                let tag = object % TAGS;
                ((tag..OBJECTS).step_by(TAGS).collect(), json!({ "tags": [format!("t{tag}")], "wait": "applied" }))
            }
            3 => {
                let url = format!("http://{SITE}/o/");
                ((0..OBJECTS).collect(), json!({ "prefix": url, "wait": "applied" }))
            }
            _ => {
                let url = format!("http://{SITE}{}", target(object));
                (vec![object], json!({ "url": url, "wait": "applied" }))
            }
        };
        let versions: Vec<u64> = about.iter().map(|object| field.origin.bump(&target(*object))).collect();
        let began = Instant::now();
        let result = send(field.nodes[node].admin, &body);
        match result {
            Some((200, answer)) if answer["fleet"]["state"] == "applied" => {
                counts.applied += 1;
                counts.purge_longest = counts.purge_longest.max(began.elapsed());
                for (object, version) in about.iter().zip(versions) {
                    field.floors[*object].fetch_max(version, Ordering::SeqCst);
                }
            }
            Some((202, answer)) if answer["fleet"]["state"] == "accepted" => {
                counts.accepted += 1;
                let mut accepted = field.accepted.lock().unwrap_or_else(PoisonError::into_inner);
                accepted.extend(about.into_iter().zip(versions));
            }
            Some((503 | 504, _)) => counts.refused += 1,
            _ if field.nodes[node].silence() != silence => counts.refused += 1,
            other => counts.problems.push(format!("a purge at node {node} was answered with {other:?}")),
        }
        std::thread::sleep(Duration::from_millis(rng.below(100)));
    }
    counts
}

/// Sends a purge; returns status and JSON of the answer (null if it is none).
fn send(admin: std::net::SocketAddr, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let head = format!(
        "POST /purge HTTP/1.1\r\nHost: {admin}\r\nAccept: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = HttpConnection::new(admin, ANSWER_MAX).exchange(head.as_bytes(), "POST").ok()?;
    Some((response.status, serde_json::from_slice(&response.body).unwrap_or_default()))
}
