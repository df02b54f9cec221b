//! Leases: the times until which a client may do I/O and answer from its caches, and when a server ends a session for
//! the sake of others.
//!
//! Owns: the parts of a lease, and the rule that decides when a session is barred (its renewals are no longer answered)
//! and when it is ended. Each side uses only its own clock: the client counts from when it sent the renewal, the server
//! from when it received it. So the client's lease ends first, whatever was delayed. The speeds of clocks may differ by
//! the drift, which the server adds.

/// The part of a lease in which I/O may begin.
pub const IO_OF_LEASE: (u64, u64) = (6, 10);
/// The part of a lease in which caches may answer.
pub const CACHE_OF_LEASE: (u64, u64) = (8, 10);
/// A client that does not give a token back within this time is barred, and cannot renew its lease. *Units*:
/// milliseconds.
pub const GIVE_BACK_MAX_MS: u64 = 30_000;
/// After a session is barred for this long, the owner task has received every renewal that was answered before.
/// *Units*: milliseconds.
const BARRED_MIN_MS: u64 = 50;

/// A client's lease, in any unit of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientLease {
    sent: u64,
    length: u64,
}

impl ClientLease {
    /// Extends the lease: a renewal that was sent at this time was answered.
    pub fn renewed(&mut self, sent: u64, length: u64) {
        if self.length == 0 || sent >= self.sent {
            *self = ClientLease { sent, length };
        }
    }

    fn is_within(&self, now: u64, (part, of): (u64, u64)) -> bool {
        now.saturating_sub(self.sent) < self.length * part / of
    }

    /// Whether I/O may begin.
    pub fn may_begin(&self, now: u64) -> bool {
        self.is_within(now, IO_OF_LEASE)
    }

    /// Whether caches may answer at this time.
    pub fn may_cache(&self, now: u64) -> bool {
        self.is_within(now, CACHE_OF_LEASE)
    }

    /// Whether finished work may be acknowledged at this time.
    pub fn holds(&self, now: u64) -> bool {
        self.is_within(now, (1, 1))
    }
}

/// The decision about a session that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionVerdict {
    /// Its renewals are no longer answered.
    Bar,
    /// Its renewals are answered again.
    Unbar,
    /// The session is ended.
    End,
}

/// The times since renewals of a session arrived. *Units*: milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionSilence {
    /// The time since the last renewal.
    pub heard_ms: u64,
    /// The time since the last answered renewal: a lease and the drift later, its client no longer answers programs.
    pub answered_ms: u64,
}

/// Decides about a session; returns what changes, if anything. `barred_for_ms` is the time since the session was
/// barred, `waited_ms` the time that others have waited for it, `lease_ms` the lease plus the drift. *Units*:
/// milliseconds.
pub fn verdict(
    barred_for_ms: Option<u64>,
    silence: SessionSilence,
    waited_ms: Option<u64>,
    lease_ms: u64,
) -> Option<SessionVerdict> {
    let is_slow = waited_ms.is_some_and(|waited| waited > GIVE_BACK_MAX_MS);
    let is_silent = silence.heard_ms > lease_ms;
    match (barred_for_ms, waited_ms) {
        (Some(_), _) if !is_silent && !is_slow => Some(SessionVerdict::Unbar),
        (Some(barred), Some(_)) if silence.answered_ms > lease_ms && barred > BARRED_MIN_MS => {
            Some(SessionVerdict::End)
        }
        (None, Some(_)) if is_silent || is_slow => Some(SessionVerdict::Bar),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(heard_ms: u64, answered_ms: u64) -> SessionSilence {
        SessionSilence { heard_ms, answered_ms }
    }

    /// A session is ended only one lease after its renewals were no longer answered.
    #[test]
    fn session_is_barred_then_ended() {
        assert_eq!(verdict(None, silence(10, 10), Some(10), 100), None);
        assert_eq!(verdict(None, silence(101, 101), Some(10), 100), Some(SessionVerdict::Bar));
        assert_eq!(verdict(Some(50), silence(151, 151), Some(10), 100), None);
        assert_eq!(verdict(Some(51), silence(152, 152), Some(10), 100), Some(SessionVerdict::End));
    }

    /// A session that nobody waits for is neither barred nor ended.
    #[test]
    fn unawaited_session_is_left_alone() {
        assert_eq!(verdict(None, silence(1000, 1000), None, 100), None);
        assert_eq!(verdict(Some(500), silence(1000, 1000), None, 100), None);
    }

    /// The session renews its lease also if nobody waits for it any more.
    #[test]
    fn barred_session_renews_when_heard() {
        assert_eq!(verdict(Some(51), silence(3, 300), Some(10), 100), Some(SessionVerdict::Unbar));
        assert_eq!(verdict(Some(51), silence(3, 300), None, 100), Some(SessionVerdict::Unbar));
    }

    /// A session that returns a token too slowly ends although its renewals arrive.
    #[test]
    fn slow_return_ends_session() {
        let slow = Some(GIVE_BACK_MAX_MS + 1);
        assert_eq!(verdict(None, silence(3, 3), slow, 100), Some(SessionVerdict::Bar));
        assert_eq!(verdict(Some(60), silence(3, 63), slow, 100), None);
        assert_eq!(verdict(Some(160), silence(3, 163), slow, 100), Some(SessionVerdict::End));
    }

    /// An old renewal that arrives late does not shorten the lease.
    #[test]
    fn lease_ends_in_three_steps() {
        let mut lease = ClientLease::default();
        assert!(!lease.may_begin(0) && !lease.holds(0));
        lease.renewed(1000, 100);
        lease.renewed(900, 100);
        assert!(lease.may_begin(1059) && !lease.may_begin(1060));
        assert!(lease.may_cache(1079) && !lease.may_cache(1080));
        assert!(lease.holds(1099) && !lease.holds(1100));
    }
}
