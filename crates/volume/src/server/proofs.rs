//! Sessions whose processes have ended, as a kernel proves.
//!
//! Owns: which sessions are doubtful, and the search for those whose locks are not held on this host. Promises: a
//! session counts as gone only if its origin is that of the server, or of the session that says so, and its lock is
//! free; the owner task never waits for the search. Leaves to others: the proof (`origin`), and ending the session
//! (`owner`).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use nectary_block::SharedDevice;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::format::{SessionRecord, SessionState};
use crate::origin::{self, ProcessOrigin, are_siblings};
use crate::protocol::{RefusalCode, ServerRefusal, SiblingSession};

/// A session that has not renewed its lease for this long is doubtful, although its connections exist. *Units*:
/// milliseconds.
const DOUBT_MS: u64 = 1500;
/// The first and the longest pause between two looks at the lock of a doubtful session.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The proofs that this server can get.
pub(super) struct SessionProofs {
    device: SharedDevice,
    origin: ProcessOrigin,
    /// Sessions that have lost a connection and made no other one.
    left: BTreeSet<u64>,
    /// When a doubtful session's lock is looked at next, and the pause after that.
    next: HashMap<u64, (Instant, Duration)>,
    looking: JoinSet<Vec<u64>>,
}

impl SessionProofs {
    /// Makes the search of a new server. The sessions are those of earlier servers: they have no connection.
    pub fn new(device: SharedDevice, sessions: impl IntoIterator<Item = u64>) -> SessionProofs {
        let origin = ProcessOrigin::of(&device);
        let left = sessions.into_iter().collect();
        SessionProofs { device, origin, left, next: HashMap::new(), looking: JoinSet::new() }
    }

    /// Notes that a session lost its newest connection of a role.
    pub fn left(&mut self, session: u64) {
        self.left.insert(session);
        self.next.remove(&session);
    }

    /// Notes that a session made a connection.
    pub fn returned(&mut self, session: u64) {
        self.left.remove(&session);
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.left.remove(&session);
        self.next.remove(&session);
    }

    fn is_doubtful(&self, number: u64, session: &SessionRecord, heard_ms: u64) -> bool {
        session.state != SessionState::Active || self.left.contains(&number) || heard_ms > DOUBT_MS
    }

    /// Looks at the locks of doubtful sessions that are due; [`gone`](Self::gone) returns those that are not held.
    pub fn look(&mut self, sessions: &[(u64, SessionRecord)], heard_ms: impl Fn(u64) -> u64) {
        if !self.looking.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut due = Vec::new();
        for (number, session) in sessions {
            if !self.is_doubtful(*number, session, heard_ms(*number)) || !self.origin.can_prove(session) {
                self.next.remove(number);
                continue;
            }
            let (at, pause) = self.next.get(number).copied().unwrap_or((now, LOOK_AGAIN.0));
            if at <= now {
                self.next.insert(*number, (now + pause, (pause * 2).min(LOOK_AGAIN.1)));
                due.push((*number, session.incarnation));
            }
        }
        if due.is_empty() {
            return;
        }
        let device = self.device.clone();
        self.looking.spawn(async move {
            let mut gone = Vec::new();
            for (number, incarnation) in due {
                if origin::is_gone(&device, incarnation).await {
                    gone.push(number);
                }
            }
            gone
        });
    }

    /// Waits for the end of a look; returns the sessions that are gone.
    pub async fn gone(&mut self) -> Vec<u64> {
        match self.looking.join_next().await {
            Some(looked) => looked.unwrap_or_default(),
            None => std::future::pending().await,
        }
    }

    /// Returns the doubtful sessions whose locks the session `of` can look at.
    pub fn siblings(
        &self,
        of: u64,
        sessions: &[(u64, SessionRecord)],
        heard_ms: impl Fn(u64) -> u64,
    ) -> Vec<SiblingSession> {
        let Some(asker) = sessions.iter().find(|(number, _)| *number == of) else { return Vec::new() };
        let found = sessions.iter().filter(|(number, session)| {
            *number != of && are_siblings(&asker.1, session) && self.is_doubtful(*number, session, heard_ms(*number))
        });
        found.map(|(number, session)| SiblingSession { session: *number, incarnation: session.incarnation }).collect()
    }
}

/// Returns which of these sessions, said to be gone by the session `of`, exist still.
///
/// *Errors*: `Conflict` if one of them has another origin, so that the caller cannot know.
pub(super) fn confirmed(
    of: u64,
    told: &[SiblingSession],
    sessions: &[(u64, SessionRecord)],
) -> Result<Vec<u64>, ServerRefusal> {
    let find = |number: u64| sessions.iter().find(|(found, _)| *found == number).map(|(_, session)| session);
    let asker = find(of);
    let mut gone = Vec::new();
    for SiblingSession { session, incarnation } in told {
        let Some(found) = find(*session) else { continue };
        let is_right = asker.is_some_and(|asker| are_siblings(asker, found));
        if *session == of || !is_right || found.incarnation != *incarnation {
            let words = format!("session {of} cannot know whether session {session} has ended");
            return Err(ServerRefusal { code: RefusalCode::Conflict, errno: libc::EPERM, words });
        }
        gone.push(*session);
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nectary_block::MemoryDevice;

    use super::*;

    fn session(boot: u64, state: SessionState) -> SessionRecord {
        SessionRecord {
            incarnation: [boot as u8; 16],
            state,
            kind: 1,
            flags: 0,
            lease_ms: 5000,
            acknowledged: 0,
            machine: 1,
            boot,
            created_ns: 0,
            ended_ns: 0,
            reason: 0,
            host: "h".to_owned(),
        }
    }

    #[tokio::test]
    async fn only_doubtful_siblings_are_named() {
        let mut proofs = SessionProofs::new(Arc::new(MemoryDevice::new(1 << 20)), [1, 2]);
        let active = SessionState::Active;
        let all: Vec<(u64, SessionRecord)> =
            [(1, 5, active), (2, 5, active), (3, 5, active), (4, 6, active), (5, 0, active)]
                .into_iter()
                .chain([(6, 5, SessionState::Ended), (7, 0, SessionState::Ended), (8, 6, SessionState::Ended)])
                .map(|(number, boot, state)| (number, session(boot, state)))
                .collect();
        let named = |proofs: &SessionProofs, of, heard_ms: u64| {
            let found = proofs.siblings(of, &all, |number| if number == 3 { heard_ms } else { 0 });
            found.iter().map(|sibling| sibling.session).collect::<Vec<_>>()
        };
        assert_eq!(named(&proofs, 1, 100), [2, 6], "2 has no connection since the start");
        proofs.returned(2);
        assert_eq!(named(&proofs, 1, DOUBT_MS + 1), [3, 6], "3 is silent");
        proofs.left(2);
        assert_eq!(named(&proofs, 3, 100), [1, 2, 6]);
        assert_eq!(named(&proofs, 4, 0), [8]);
        assert!(named(&proofs, 5, 0).is_empty(), "a session without a proof has no sibling");
        assert!(named(&proofs, 99, 0).is_empty());
    }

    #[test]
    fn word_of_another_origin_is_refused() {
        let all: Vec<(u64, SessionRecord)> = [(1, 5), (2, 5), (3, 6), (4, 0), (5, 0)]
            .map(|(number, boot)| (number, session(boot, SessionState::Active)))
            .into();
        let told = |number, boot: u64| SiblingSession { session: number, incarnation: [boot as u8; 16] };
        assert_eq!(confirmed(1, &[told(2, 5), told(99, 5)], &all), Ok(vec![2]), "one is over already");
        for (of, told) in [(1, told(3, 6)), (1, told(2, 6)), (1, told(1, 5)), (4, told(5, 0)), (99, told(2, 5))] {
            assert_eq!(
                confirmed(of, &[told], &all).map_err(|failure| failure.code),
                Err(RefusalCode::Conflict),
                "{told:?}"
            );
        }
    }
}
