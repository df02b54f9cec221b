//! One client of the SIGKILL rounds: uses its keys through the proxy, keeps their models, notes what was wrong.
//!
//! Each key belongs to one client, so its history is known exactly. Sizes run from 200 bytes to several fragments.

use super::model::{Expectation, KeyModel, Poll, Verdict, judge};
use crate::content;
use crate::http::{Connection, Failure, Response};
use crate::origin::{Origin, Resource};
use crate::rng::Rng;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Body bytes that a round may fetch from the origin, about: what is under way then still ends.
pub const ROUND_BYTES_MAX: u64 = 40 << 20;
/// Most complaints that are kept in words; all are counted.
const COMPLAINTS_MAX: usize = 20;

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were answered.
    pub requests: u64,
    /// Answers that were hits.
    pub hits: u64,
    /// Purges that returned.
    pub purges: u64,
    /// Versions that were replaced.
    pub replaced: u64,
    /// Keys that had to hit after the kill.
    pub demanded: u64,
    /// Keys that had to miss after the kill.
    pub forbidden: u64,
    /// Of the demanded, those that did not hit.
    pub missing: u64,
    /// Wrong bytes, versions that may not answer, purged keys that hit, broken answers.
    pub wrong: u64,
    /// Stored keys that were no hit while the process lived.
    pub lost_alive: u64,
    /// The first complaints in words.
    pub complaints: Vec<String>,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.hits += other.hits;
        self.purges += other.purges;
        self.replaced += other.replaced;
        self.demanded += other.demanded;
        self.forbidden += other.forbidden;
        self.missing += other.missing;
        self.wrong += other.wrong;
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

/// What the clients of a round share.
#[derive(Debug)]
pub struct Round<'a> {
    /// The origin behind the proxy.
    pub origin: &'a Origin,
    /// Set just before the kill: from then on a broken answer is no complaint.
    pub killed: AtomicBool,
    /// The process ends on its own: a broken answer is no complaint.
    pub may_break: bool,
    /// The origin's count of body bytes when the round began.
    pub body_bytes_begin: u64,
    /// When the round began, and over which time new bytes are spread, so that the kill comes while some are being written.
    pub pace: (Instant, Duration),
    /// Planted bug: one byte of one answer is flipped before it is compared.
    pub flip_byte: AtomicBool,
}

impl Round<'_> {
    /// True where new bytes may be asked for now.
    fn may_grow(&self) -> bool {
        let (began, over) = self.pace;
        let share = began.elapsed().as_secs_f64() / over.as_secs_f64().max(0.001);
        let bytes_max = (ROUND_BYTES_MAX as f64 * share.min(1.0)) as u64;
        self.origin.body_bytes() < self.body_bytes_begin + bytes_max
    }
}

/// A client and its keys.
#[derive(Debug, Default)]
pub struct Client {
    name: String,
    keys: Vec<KeyModel>,
    rng: Rng,
}

impl Client {
    /// A client without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its keys.
    pub fn keys(&self) -> &[KeyModel] {
        &self.keys
    }

    /// Starts a round: new targets carry the name, the choices follow the generator, the keys of former rounds stay.
    pub fn begin_round(&mut self, name: String, rng: Rng) {
        self.name = name;
        self.rng = rng;
    }

    /// Forgets all keys, as the store they were in is gone.
    pub fn forget(&mut self) {
        self.keys.clear();
    }

    /// Uses the proxy until it is killed.
    pub fn load(&mut self, proxy: SocketAddr, round: &Round<'_>) -> Tally {
        let mut tally = Tally::default();
        let mut connection = Connection::new(proxy, Duration::from_secs(30));
        while !round.killed.load(Ordering::SeqCst) {
            let may_grow = round.may_grow();
            let action = self.rng.unit();
            if self.keys.is_empty() || (may_grow && action < 0.35) {
                let target = self.new_target();
                self.keys.push(KeyModel::new(target));
                let index = self.keys.len() - 1;
                self.get(&mut connection, round, index, &[], &mut tally);
                if self.rng.chance(0.5) {
                    self.get(&mut connection, round, index, &[], &mut tally);
                }
                continue;
            }
            let index = self.rng.index(self.keys.len());
            if may_grow && action < 0.42 {
                round.origin.bump(&self.keys[index].target);
                tally.replaced += 1;
                self.get(&mut connection, round, index, &[("Cache-Control", "no-cache")], &mut tally);
            } else if may_grow && action < 0.48 {
                if self.rng.chance(0.5) {
                    round.origin.bump(&self.keys[index].target);
                }
                self.purge(&mut connection, round, index, &mut tally);
                if self.rng.chance(0.5) {
                    self.get(&mut connection, round, index, &[], &mut tally);
                }
            } else if may_grow || self.keys[index].is_stored() {
                self.get(&mut connection, round, index, &[], &mut tally);
            }
        }
        tally
    }

    /// Asks for every key once after a restart and compares with what must be.
    pub fn verify(&mut self, proxy: SocketAddr, round: &Round<'_>, stop: Stop<'_>) -> Tally {
        let mut tally = Tally::default();
        let mut connection = Connection::new(proxy, Duration::from_secs(30));
        for key in &mut self.keys {
            let expected = stop.expectation(key);
            tally.demanded += u64::from(expected.must_hit);
            tally.forbidden += u64::from(expected.must_miss);
            let asked_before = round.origin.count(&key.target).requests;
            match connection.get(&key.target) {
                Ok(response) => {
                    let asked = round.origin.count(&key.target).requests - asked_before;
                    let hit = response.is_hit();
                    if hit == (asked > 0) {
                        tally.wrong += 1;
                        let status = response.cache_status();
                        tally.complain(format!("{}: {status:?}, but the origin was asked {asked} times", key.target));
                    }
                    if let Some(version) = check(&key.target, &response, expected, round, &mut tally) {
                        key.restarted(version, hit);
                    }
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

    /// Half of the keys are small, and a few have several fragments.
    fn new_target(&mut self) -> String {
        let serial = self.keys.len();
        let framing = if self.rng.chance(0.2) { "&chunked" } else { "" };
        let bytes =
            if self.rng.chance(0.85) { 200 + self.rng.below(20_000) } else { content::law_bytes(self.rng.next_u64()) };
        format!("/k/{}/{serial}?size={bytes}{framing}", self.name)
    }

    fn get(
        &mut self,
        connection: &mut Connection,
        round: &Round<'_>,
        index: usize,
        headers: &[(&str, &str)],
        tally: &mut Tally,
    ) {
        let key = &mut self.keys[index];
        let was_stored = key.is_stored() && headers.is_empty();
        let expected = key.asked();
        match connection.request("GET", &key.target, headers) {
            Ok(response) => {
                let hit = response.is_hit();
                if let Some(version) = check(&key.target, &response, expected, round, tally) {
                    key.answered(version, hit, Instant::now());
                    if was_stored && !hit {
                        tally.lost_alive += 1;
                        tally.complain(format!("{}: stored, but {:?}", key.target, response.cache_status()));
                    }
                }
            }
            Err(failure) => broken(&key.target, &failure, round, tally),
        }
    }

    fn purge(&mut self, connection: &mut Connection, round: &Round<'_>, index: usize, tally: &mut Tally) {
        let key = &mut self.keys[index];
        key.purge_sent();
        match connection.request("PURGE", &key.target, &[]) {
            Ok(response) if response.status == 200 => {
                tally.purges += 1;
                key.purge_returned(round.origin.version(&key.target));
            }
            Ok(response) => {
                tally.wrong += 1;
                tally.complain(format!("PURGE {}: status {}", key.target, response.status));
            }
            Err(failure) => broken(&key.target, &failure, round, tally),
        }
    }
}

/// How the process before this one ended, which decides what must still be there.
#[derive(Clone, Copy, Debug)]
pub enum Stop<'a> {
    /// Killed; this was written just before, and these polls were made.
    Killed {
        /// The written sequence.
        written: u64,
        /// The polls of the round.
        polls: &'a [Poll],
    },
    /// Stopped cleanly.
    Clean,
}

impl Stop<'_> {
    /// What the key must show now.
    pub fn expectation(&self, key: &KeyModel) -> Expectation {
        match self {
            Stop::Killed { written, polls } => key.after_kill(*written, polls),
            Stop::Clean => key.after_stop(),
        }
    }
}

/// Checks status, version and bytes of an answer; the version, where the bytes are those of that version.
fn check(
    target: &str,
    response: &Response,
    expected: Expectation,
    round: &Round<'_>,
    tally: &mut Tally,
) -> Option<u64> {
    tally.requests += 1;
    tally.hits += u64::from(response.is_hit());
    let version = response.version();
    let Some(version) = version.filter(|version| response.status == 200 && *version <= round.origin.version(target))
    else {
        tally.wrong += 1;
        tally.complain(format!("{target}: status {}, version {version:?}", response.status));
        return None;
    };
    let bytes = Resource::parse(target).bytes;
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
    match judge(expected, version, response.is_hit()) {
        Verdict::Right => {}
        Verdict::Missing => {
            tally.missing += 1;
            tally.complain(format!("{target} version {version}: missing: {:?}", response.cache_status()));
        }
        verdict => {
            tally.wrong += 1;
            tally.complain(format!("{target} version {version}: {verdict:?}: {:?}", response.cache_status()));
        }
    }
    Some(version)
}

/// Notes an answer that did not come, unless the proxy has been killed.
fn broken(target: &str, failure: &Failure, round: &Round<'_>, tally: &mut Tally) {
    if !round.may_break && !round.killed.load(Ordering::SeqCst) {
        tally.wrong += 1;
        tally.complain(format!("{target}: {failure}"));
    }
}
