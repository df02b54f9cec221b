//! Leases: until when a client may do what, and when a server ends a session for others.
//!
//! Owns: the parts of a lease, and the order bar, wait, end. Times are of one clock each: the client counts from when it
//! sent the renewal, the server from when it had it, so the client's lease ends first, whatever was delayed. Clocks may
//! differ in speed by the drift, which the server adds.

/// The part of a lease in which I/O may begin.
pub const IO_OF_LEASE: (u64, u64) = (6, 10);
/// The part in which caches answer.
pub const CACHE_OF_LEASE: (u64, u64) = (8, 10);
/// A client that does not give back in this time is not let renew its lease. *Units*: milliseconds.
pub const GIVE_BACK_MAX_MS: u64 = 30_000;
/// A renewal that was answered when its session was barred is at the owner by then. *Units*: milliseconds.
const BARRED_MIN_MS: u64 = 50;

/// A client's lease, in any unit of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lease {
    sent: u64,
    length: u64,
}

impl Lease {
    /// A renewal that was sent then was answered.
    pub fn renewed(&mut self, sent: u64, length: u64) {
        if self.length == 0 || sent >= self.sent {
            *self = Lease { sent, length };
        }
    }

    fn is_within(&self, now: u64, (part, of): (u64, u64)) -> bool {
        now.saturating_sub(self.sent) < self.length * part / of
    }

    /// Whether I/O may begin.
    pub fn may_begin(&self, now: u64) -> bool {
        self.is_within(now, IO_OF_LEASE)
    }

    /// Whether caches may answer.
    pub fn may_cache(&self, now: u64) -> bool {
        self.is_within(now, CACHE_OF_LEASE)
    }

    /// Whether what was done may be acknowledged.
    pub fn holds(&self, now: u64) -> bool {
        self.is_within(now, (1, 1))
    }
}

/// What becomes of a session that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// Its renewals are answered no more.
    Bar,
    /// They are again.
    Unbar,
    /// It is over.
    End,
}

/// What becomes of a session that others have waited for so long, if anything. `silent_ms` is how long ago the last
/// renewal came that was answered, `lease_ms` the lease and the drift. *Units*: milliseconds.
pub fn verdict(barred_for_ms: Option<u64>, silent_ms: u64, waited_ms: u64, lease_ms: u64) -> Option<Late> {
    let (is_silent, is_slow) = (silent_ms > lease_ms, waited_ms > GIVE_BACK_MAX_MS);
    match barred_for_ms {
        Some(barred) if is_silent && barred > BARRED_MIN_MS => Some(Late::End),
        Some(_) if !is_silent && !is_slow => Some(Late::Unbar),
        None if is_silent || is_slow => Some(Late::Bar),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_after_its_lease_and_only_once_its_renewals_are_not_answered() {
        assert_eq!(verdict(None, 10, 10, 100), None);
        assert_eq!(verdict(None, 101, 10, 100), Some(Late::Bar));
        assert_eq!(verdict(Some(50), 151, 10, 100), None);
        assert_eq!(verdict(Some(51), 152, 10, 100), Some(Late::End));
        assert_eq!(verdict(Some(51), 3, 10, 100), Some(Late::Unbar));
        assert_eq!(verdict(None, 3, GIVE_BACK_MAX_MS + 1, 100), Some(Late::Bar));
        assert_eq!(verdict(Some(60), 3, GIVE_BACK_MAX_MS + 1, 100), None);
        assert_eq!(verdict(Some(160), 101, GIVE_BACK_MAX_MS + 1, 100), Some(Late::End));
    }

    #[test]
    fn a_lease_ends_in_three_steps_and_an_old_renewal_does_not_shorten_it() {
        let mut lease = Lease::default();
        assert!(!lease.may_begin(0) && !lease.holds(0));
        lease.renewed(1000, 100);
        lease.renewed(900, 100);
        assert!(lease.may_begin(1059) && !lease.may_begin(1060));
        assert!(lease.may_cache(1079) && !lease.may_cache(1080));
        assert!(lease.holds(1099) && !lease.holds(1100));
    }
}
