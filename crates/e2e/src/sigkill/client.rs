//! One client of the SIGKILL rounds. It uses its keys through the proxy, keeps their models, and records errors.
//!
//! Each key belongs to one client, so its history is known exactly; purges of tags, of prefixes and of everything also
//! affect keys of other clients. Sizes are from 200 bytes to several fragments.

use super::SigkillLoad;
use super::model::{AnswerExpectation, AnswerVerdict, KeyModel, ProcessStop, SequencePoll, judge};
use super::purges::{PREFIX_COUNT, PurgeReach, TAG_COUNT, WidePurgeScope, WidePurges};
use crate::content;
use crate::http::{HttpConnection, HttpResponse, RequestFailure};
use crate::nectary::{AUTHORIZATION, ControlConnection};
use crate::origin::{DeterministicOrigin, TargetAnswer};
use crate::rng::SeededRng;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The largest number of complaints that are described; all are counted.
const COMPLAINTS_MAX: usize = 20;
/// The time that a client waits if the chosen key is not stored and the client may not request new objects.
const PAUSE: Duration = Duration::from_millis(1);
/// The header of requests that must never be passed to the origin.
const ONLY_IF_CACHED: [(&str, &str); 1] = [("Cache-Control", "only-if-cached")];

/// The counts of a client or a round.
#[derive(Clone, Debug, Default)]
pub struct ClientTally {
    /// The number of requests that were answered.
    pub requests: u64,
    /// The number of answers that were hits.
    pub hits: u64,
    /// The numbers of purges that returned: by key, by tag, by prefix, and of everything.
    pub purges: [u64; 4],
    /// The number of versions that were replaced.
    pub replaced: u64,
    /// The number of keys that had to hit after the kill.
    pub demanded: u64,
    /// The number of keys that had to miss after the kill.
    pub forbidden: u64,
    /// The number of demanded keys that did not hit.
    pub missing: u64,
    /// The number of wrong answers: wrong bytes, versions that are not allowed, purged keys that hit, and broken
    /// answers.
    pub wrong: u64,
    /// The number of answers that broke off while the process ran, because the ring overwrote their body.
    pub cut_short: u64,
    /// The number of hits after the kill.
    pub verified_hits: u64,
    /// The number of stored keys that did not hit while the process ran.
    pub lost_alive: u64,
    /// Descriptions of the first complaints.
    pub complaints: Vec<String>,
}

impl ClientTally {
    /// Adds another tally.
    pub fn add(&mut self, other: &ClientTally) {
        self.requests += other.requests;
        self.hits += other.hits;
        self.purges.iter_mut().zip(other.purges).for_each(|(sum, count)| *sum += count);
        self.replaced += other.replaced;
        self.demanded += other.demanded;
        self.forbidden += other.forbidden;
        self.missing += other.missing;
        self.wrong += other.wrong;
        self.cut_short += other.cut_short;
        self.verified_hits += other.verified_hits;
        self.lost_alive += other.lost_alive;
        let room = COMPLAINTS_MAX.saturating_sub(self.complaints.len());
        self.complaints.extend(other.complaints.iter().take(room).cloned());
    }

    fn complain(&mut self, what: String) {
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(what);
        }
    }
}

/// The state that the clients of a round share.
#[derive(Debug)]
pub struct KillRound<'a> {
    /// The load to make.
    pub load: &'a SigkillLoad,
    /// The origin behind the proxy.
    pub origin: &'a DeterministicOrigin,
    /// The directory of the proxy's control socket.
    pub runtime: PathBuf,
    /// Purges that affect keys of several clients.
    pub purges: &'a WidePurges,
    /// The longest body that is stored in one record, in bytes; longer bodies are stored in several records.
    pub whole_bytes_max: u64,
    /// The segment epoch that the ring had reached at the latest poll.
    pub head: AtomicU64,
    /// Set just before the kill; from then on a broken answer is not an error.
    pub killed: AtomicBool,
    /// Whether `strace` may kill the process at any moment; then a broken answer is not an error.
    pub may_break: bool,
    /// The origin's count of body bytes when the round began.
    pub body_bytes_begin: u64,
    /// The start of the round, and the time over which new bytes are spread, so that some are being written at the
    /// kill.
    pub pace: (Instant, Duration),
    /// The share of the round's time after which one client purges everything; `None` once a client has taken this
    /// task.
    pub purge_all_after: Mutex<Option<f64>>,
    /// Planted bug: one byte of one answer is flipped before it is compared.
    pub flip_byte: AtomicBool,
}

impl KillRound<'_> {
    /// The elapsed share of the round's time; 1 at the end.
    fn share(&self) -> f64 {
        let (began, over) = self.pace;
        (began.elapsed().as_secs_f64() / over.as_secs_f64().max(0.001)).min(1.0)
    }

    /// True if new bytes may be requested now.
    fn may_grow(&self) -> bool {
        let bytes_max = (self.load.round_bytes_max as f64 * self.share()) as u64;
        self.origin.body_bytes() < self.body_bytes_begin + bytes_max
    }

    /// True for the single client that must purge everything now.
    fn takes_purge_of_everything(&self) -> bool {
        let mut after = self.purge_all_after.lock().unwrap_or_else(PoisonError::into_inner);
        after.take_if(|after| *after <= self.share()).is_some()
    }
}

/// A stored key that missed while the process ran.
#[derive(Debug)]
struct MissedKey {
    key: KeyModel,
    status: String,
    at: Instant,
}

/// A client and its keys.
#[derive(Debug, Default)]
pub struct KeyClient {
    name: String,
    keys: Vec<KeyModel>,
    missed: Vec<MissedKey>,
    rng: SeededRng,
}

impl KeyClient {
    /// A client without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its keys.
    pub fn keys(&self) -> &[KeyModel] {
        &self.keys
    }

    /// Starts a round: new targets contain `name`, choices use `rng`, keys of earlier rounds stay.
    pub fn begin_round(&mut self, name: String, rng: SeededRng) {
        self.name = name;
        self.rng = rng;
    }

    /// Forgets all keys, because their store was replaced.
    pub fn forget(&mut self) {
        self.keys.clear();
    }

    /// Uses the proxy until it is killed.
    pub fn load(&mut self, proxy: SocketAddr, round: &KillRound<'_>) -> ClientTally {
        let mut tally = ClientTally::default();
        let mut connection = HttpConnection::new(proxy, Duration::from_secs(30));
        let load = round.load;
        while !round.killed.load(Ordering::SeqCst) {
            if round.takes_purge_of_everything() {
                self.purge_wide(&mut connection, round, WidePurgeScope::All, &mut tally);
            }
            let may_grow = round.may_grow();
            let action = self.rng.unit();
            if self.keys.is_empty() || (may_grow && action < 0.35 && self.keys.len() < load.keys_max) {
                let key = self.new_key();
                self.keys.push(key);
                let index = self.keys.len() - 1;
                self.get_once_or_twice(&mut connection, round, index, &mut tally);
                continue;
            }
            let index = self.rng.index(self.keys.len());
            if may_grow && (0.35..0.42).contains(&action) {
                tally.replaced += 1;
                self.get(&mut connection, round, index, &[("Cache-Control", "no-cache")], &mut tally);
            } else if may_grow && (0.42..0.48).contains(&action) {
                self.purge_key(&mut connection, round, index, &mut tally);
                if self.rng.chance(0.5) {
                    self.get(&mut connection, round, index, &[], &mut tally);
                }
            } else if may_grow && self.rng.chance(load.wide_purges) {
                let scope = match self.rng.below(100) {
                    0 => WidePurgeScope::All,
                    1..60 => WidePurgeScope::Tag(self.keys[index].tag),
                    _ => WidePurgeScope::Prefix(self.keys[index].prefix),
                };
                self.purge_wide(&mut connection, round, scope, &mut tally);
            } else if self.keys[index].is_stored() {
                self.get(&mut connection, round, index, &[], &mut tally);
            } else if may_grow {
                self.get_once_or_twice(&mut connection, round, index, &mut tally);
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        tally
    }

    /// Counts objects lost while the process ran: those that missed although the next poll shows that the ring had not
    /// reached them.
    pub fn judge_missed(&mut self, polls: &[SequencePoll]) -> ClientTally {
        let mut tally = ClientTally::default();
        for missed in self.missed.drain(..) {
            let poll = polls.iter().find(|poll| poll.began > missed.at);
            if poll.is_some_and(|poll| missed.key.is_stored_in(poll.ring)) {
                tally.lost_alive += 1;
                tally.complain(format!("{}: stored, but {:?}", missed.key.target, missed.status));
            }
        }
        tally
    }

    /// Applies the purges of all clients to its keys.
    pub fn take_note_of(&mut self, purges: &WidePurges) {
        self.keys.iter_mut().for_each(|key| key.purged(purges.reach(key.tag, key.prefix)));
    }

    /// After a restart, gets every key once, only from the store, and compares the answers with the model.
    pub fn verify(&mut self, proxy: SocketAddr, round: &KillRound<'_>, stop: ProcessStop<'_>) -> ClientTally {
        let mut tally = ClientTally::default();
        let mut connection = HttpConnection::new(proxy, Duration::from_secs(30));
        for key in &mut self.keys {
            let expected = key.after(stop);
            tally.demanded += u64::from(expected.must_hit);
            tally.forbidden += u64::from(key.is_purged());
            let began = Instant::now();
            match connection.request("GET", &key.target, &ONLY_IF_CACHED) {
                Ok(response) if response.is_hit() || response.status != 504 => {
                    if let Some(version) = check(&key.target, &response, round, &mut tally) {
                        tally.verified_hits += 1;
                        compare(key, &response, expected, Some(version), &mut tally);
                        key.restarted(Some(version), began);
                    }
                }
                Ok(response) => {
                    tally.requests += 1;
                    compare(key, &response, expected, None, &mut tally);
                    key.restarted(None, began);
                }
                Err(failure) => {
                    tally.wrong += 1;
                    tally.complain(format!("{}: {failure}", key.target));
                    connection.close();
                }
            }
        }
        tally
    }

    /// Its keys, to plant bugs.
    pub fn keys_mut(&mut self) -> &mut [KeyModel] {
        &mut self.keys
    }

    /// Makes a key; half of the keys are small, and a few have several fragments.
    fn new_key(&mut self) -> KeyModel {
        let serial = self.keys.len();
        let framing = if self.rng.chance(0.2) { "&chunked" } else { "" };
        let bytes =
            if self.rng.chance(0.85) { 200 + self.rng.below(20_000) } else { content::law_bytes(self.rng.next_u64()) };
        let (tag, prefix) = (self.rng.index(TAG_COUNT), self.rng.index(PREFIX_COUNT));
        let name = &self.name;
        KeyModel::new(format!("{}{name}/{serial}?size={bytes}&tags=t{tag}{framing}", prefix_path(prefix)), tag, prefix)
    }

    /// Gets a key once, which stores it, and half of the time again, which shows that it is stored.
    fn get_once_or_twice(
        &mut self,
        connection: &mut HttpConnection,
        round: &KillRound<'_>,
        index: usize,
        tally: &mut ClientTally,
    ) {
        self.get(connection, round, index, &[], tally);
        if self.rng.chance(0.5) {
            self.get(connection, round, index, &[], tally);
        }
    }

    fn get(
        &mut self,
        connection: &mut HttpConnection,
        round: &KillRound<'_>,
        index: usize,
        headers: &[(&str, &str)],
        tally: &mut ClientTally,
    ) {
        let key = &mut self.keys[index];
        let reach = || round.purges.reach(key.tag, key.prefix);
        let (reach_before, head) = (reach(), round.head.load(Ordering::SeqCst));
        let requested = round.origin.bump(&key.target);
        let asked_before = round.origin.asked_at(&key.target);
        let began = Instant::now();
        let answer = connection.request("GET", &key.target, headers);
        let (reach_after, asked_at) = (reach(), round.origin.asked_at(&key.target));
        key.purged(reach_before);
        let expected = key.asked(requested);
        let fetched_at = asked_at.filter(|_| asked_at > asked_before);
        if let Some(asked_at) = fetched_at {
            key.fetched(asked_at, head);
        }
        let response = match answer {
            Ok(response) => response,
            Err(RequestFailure::Truncated { response, .. }) if response.is_hit() => {
                // This happens only if the ring overwrites a body while it is read.
                tally.cut_short += u64::from(!round.killed.load(Ordering::SeqCst));
                key.hit(response.version().unwrap_or(0), began, Instant::now());
                return self.note_missed(index, reach_after, "cut short");
            }
            // This happens if the ring overwrites the body before the proxy sends the head. It also happens if the
            // proxy is still fetching the body, and the ring overwrites it while the client reads it.
            Err(failure)
                if key.has_fragments(round.whole_bytes_max) && !matches!(failure, RequestFailure::Malformed(_)) =>
            {
                tally.cut_short += u64::from(!round.killed.load(Ordering::SeqCst));
                return self.note_missed(index, reach_after, "cut short");
            }
            Err(failure) => {
                let what = format!("{failure}; before: {}", key.history());
                return broken(&key.target, &what, round, tally);
            }
        };
        let Some(version) = check(&key.target, &response, round, tally) else { return };
        if fetched_at.is_none() {
            // The answer is from the store, or from the fetch of the previous request, which the store has not finished
            // yet.
            compare(key, &response, expected, Some(version), tally);
        }
        if response.is_hit() {
            key.hit(version, began, Instant::now());
        } else if fetched_at.is_some() && version != requested {
            tally.wrong += 1;
            tally.complain(format!("{}: the origin gave version {version}, {requested} was requested", key.target));
        } else if headers.is_empty() {
            self.note_missed(index, reach_after, response.cache_status());
        }
    }

    /// Records that a stored key missed, unless a purge may be the reason.
    fn note_missed(&mut self, index: usize, reach: PurgeReach, status: &str) {
        let key = &mut self.keys[index];
        key.purged(reach);
        if key.is_stored() {
            self.missed.push(MissedKey { key: key.clone(), status: status.to_owned(), at: Instant::now() });
        }
    }

    fn purge_key(
        &mut self,
        connection: &mut HttpConnection,
        round: &KillRound<'_>,
        index: usize,
        tally: &mut ClientTally,
    ) {
        let key = &mut self.keys[index];
        let sent = Instant::now();
        key.purged(PurgeReach { under_way: 1, ..PurgeReach::default() });
        let answer = connection.request("PURGE", &key.target, &[AUTHORIZATION]);
        if purge_holds(&key.target, answer, round, tally) {
            tally.purges[0] += 1;
            key.purged(PurgeReach { dead_before: Some(sent), ..PurgeReach::default() });
        }
    }

    /// Purges by tag over HTTP, or by prefix or everything over the control socket.
    fn purge_wide(
        &mut self,
        connection: &mut HttpConnection,
        round: &KillRound<'_>,
        scope: WidePurgeScope,
        tally: &mut ClientTally,
    ) {
        let sent = round.purges.sent(scope);
        let (kind, holds) = match scope {
            WidePurgeScope::Tag(tag) => {
                let header = if self.rng.chance(0.5) { "Surrogate-Key" } else { "Cache-Tag" };
                let answer = connection.request("PURGE", "/", &[AUTHORIZATION, (header, &format!("t{tag}"))]);
                (1, purge_holds("a tag", answer, round, tally))
            }
            WidePurgeScope::Prefix(prefix) => {
                let prefix = format!("{}{}", round.origin.url(), prefix_path(prefix));
                (2, purge_over_control(&json!({ "prefix": prefix }), round, tally))
            }
            WidePurgeScope::All => (3, purge_over_control(&json!({ "all": true }), round, tally)),
        };
        if holds {
            tally.purges[kind] += 1;
            round.purges.returned(scope, sent);
        }
    }
}

/// The prefix of the targets of a prefix purge.
fn prefix_path(prefix: usize) -> String {
    format!("/p{prefix}/")
}

/// Checks status, version and bytes of an answer; returns the version if the bytes are those of that version.
fn check(target: &str, response: &HttpResponse, round: &KillRound<'_>, tally: &mut ClientTally) -> Option<u64> {
    tally.requests += 1;
    tally.hits += u64::from(response.is_hit());
    let version = response.version();
    let Some(version) = version.filter(|version| response.status == 200 && *version <= round.origin.version(target))
    else {
        tally.wrong += 1;
        tally.complain(format!("{target}: status {}, version {version:?}", response.status));
        return None;
    };
    let bytes = TargetAnswer::parse(target).bytes;
    let seed = content::seed(target, version);
    let mut difference = content::first_difference(seed, 0, &response.body);
    if round.flip_byte.swap(false, Ordering::SeqCst) {
        let mut body = response.body.clone();
        let middle = body.len() / 2;
        body[middle] ^= 1;
        difference = content::first_difference(seed, 0, &body);
    }
    if difference.is_some() || response.body.len() as u64 != bytes {
        tally.wrong += 1;
        let found = response.body.len();
        tally
            .complain(format!("{target} version {version}: {found} bytes of {bytes}, first difference {difference:?}"));
        return None;
    }
    Some(version)
}

/// Compares a hit or a miss with the model.
fn compare(
    key: &KeyModel,
    response: &HttpResponse,
    expected: AnswerExpectation,
    hit: Option<u64>,
    tally: &mut ClientTally,
) {
    let count = match judge(expected, hit) {
        AnswerVerdict::Right => return,
        AnswerVerdict::Missing => &mut tally.missing,
        AnswerVerdict::Resurrected | AnswerVerdict::Stale { .. } => &mut tally.wrong,
    };
    *count += 1;
    let (target, status, history) = (&key.target, response.cache_status(), key.history());
    let verdict = judge(expected, hit);
    tally.complain(format!("{target} version {hit:?}: {verdict:?} by {expected:?}: {status:?}; before: {history}"));
}

/// Records a missing or broken answer, unless the proxy was killed.
fn broken(target: &str, failure: &dyn std::fmt::Display, round: &KillRound<'_>, tally: &mut ClientTally) {
    if !round.may_break && !round.killed.load(Ordering::SeqCst) {
        tally.wrong += 1;
        tally.complain(format!("{target}: {failure}"));
    }
}

/// True if the answer says that the purge is done.
fn purge_holds(
    what: &str,
    answer: Result<HttpResponse, RequestFailure>,
    round: &KillRound<'_>,
    tally: &mut ClientTally,
) -> bool {
    match answer {
        Ok(response) if response.status == 200 => return true,
        Ok(response) => {
            tally.wrong += 1;
            tally.complain(format!("PURGE of {what}: status {}", response.status));
        }
        Err(failure) => broken(&format!("PURGE of {what}"), &failure, round, tally),
    }
    false
}

fn purge_over_control(params: &serde_json::Value, round: &KillRound<'_>, tally: &mut ClientTally) -> bool {
    let done = ControlConnection::connect(&round.runtime).and_then(|mut control| control.purge(params));
    if let Err(error) = &done {
        broken(&format!("purge of {params}"), error, round, tally);
    }
    done.is_ok()
}
