//! What is remembered about the addresses of origins, and the order in which they are tried.
//!
//! Owns: the marks of addresses that have failed, which all workers share. An address that failed is tried after the
//! others for a while, which doubles with each failure in a row; so the address that worked is preferred. The families
//! of addresses take turns, so a network that has lost one family costs one delay. *Source*: RFC 8305, 4 and 5.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// The maximum number of marks. When there are more, those are dropped whose time is over, or else all.
const MARKS_MAX: usize = 4096;

/// The time for which an address is tried after the others when it has failed once.
const DEMOTED_FIRST: Duration = Duration::from_secs(10);

/// The longest such time.
const DEMOTED_MAX: Duration = Duration::from_secs(300);

/// The mark of an address that has failed.
#[derive(Debug, Clone, Copy)]
struct AddressMark {
    /// The failures in a row.
    failures: u32,
    /// The address is tried after the others until this time.
    until: Instant,
}

/// The marks of the addresses that have failed.
#[derive(Debug, Default)]
pub(super) struct AddressMarks {
    marks: Mutex<HashMap<SocketAddr, AddressMark>>,
    /// The number of marks, so that a success without marks takes no lock.
    count: AtomicUsize,
}

impl AddressMarks {
    /// The order in which the addresses of a name are tried at `now`: the families take turns, beginning with that of
    /// the first address, and the addresses that have failed recently come last.
    pub fn order(&self, found: &[IpAddr], port: u16, now: Instant) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = Vec::new();
        let first_is_v6 = found.first().is_some_and(IpAddr::is_ipv6);
        let mut ours = found.iter().filter(|address| address.is_ipv6() == first_is_v6);
        let mut others = found.iter().filter(|address| address.is_ipv6() != first_is_v6);
        loop {
            let (one, other) = (ours.next(), others.next());
            if one.is_none() && other.is_none() {
                break;
            }
            all.extend(one.into_iter().chain(other).map(|&address| SocketAddr::new(address, port)));
        }
        if self.count.load(Ordering::Relaxed) > 0 {
            let marks = self.marks();
            // The sort keeps the order of equals.
            all.sort_by_key(|address| marks.get(address).map(|mark| mark.until).filter(|&until| until > now));
        }
        all.truncate(ADDRESSES_MAX);
        all
    }

    /// Records that an address did not accept a connection, broke one, or did not answer in time.
    pub fn note_failure(&self, address: SocketAddr, now: Instant) {
        let mut marks = self.marks();
        if marks.len() >= MARKS_MAX && !marks.contains_key(&address) {
            marks.retain(|_, mark| mark.until > now);
            if marks.len() >= MARKS_MAX {
                marks.clear();
            }
        }
        let mark = marks.entry(address).or_insert(AddressMark { failures: 0, until: now });
        // Failures of attempts that ran beside each other count once.
        if mark.until <= now {
            let time = DEMOTED_FIRST.saturating_mul(1 << mark.failures.min(8)).min(DEMOTED_MAX);
            *mark = AddressMark { failures: mark.failures.saturating_add(1), until: now + time };
        }
        self.count.store(marks.len(), Ordering::Relaxed);
    }

    /// Records that an address has answered. *Cost*: an atomic load if no address has a mark.
    pub fn note_success(&self, address: SocketAddr) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut marks = self.marks();
            marks.remove(&address);
            self.count.store(marks.len(), Ordering::Relaxed);
        }
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<SocketAddr, AddressMark>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(addresses: &AddressMarks, found: &[&str], now: Instant) -> Vec<String> {
        let found: Vec<IpAddr> = found.iter().map(|text| text.parse().expect("an address")).collect();
        addresses.order(&found, 80, now).iter().map(|address| address.ip().to_string()).collect()
    }

    fn socket(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().expect("an address"), 80)
    }

    #[test]
    fn families_take_turns() {
        let (addresses, now) = (AddressMarks::default(), Instant::now());
        for (found, expected) in [
            (&["::1", "::2", "::3", "1.1.1.1"][..], &["::1", "1.1.1.1", "::2", "::3"][..]),
            (&["1.1.1.1", "::1", "::2", "1.1.1.2"], &["1.1.1.1", "::1", "1.1.1.2", "::2"]),
            (&["1.1.1.2", "1.1.1.1"], &["1.1.1.2", "1.1.1.1"]),
            (&[], &[]),
        ] {
            assert_eq!(order(&addresses, found, now), expected);
        }
        let many: Vec<IpAddr> = (0..ADDRESSES_MAX as u32 + 1).map(|n| IpAddr::V4(n.into())).collect();
        assert_eq!(addresses.order(&many[1..], 80, now).len(), ADDRESSES_MAX);
        assert_eq!(addresses.order(&many, 80, now).len(), ADDRESSES_MAX);
    }

    #[test]
    fn failed_address_comes_last_briefly() {
        let (addresses, now) = (AddressMarks::default(), Instant::now());
        let found = ["1.1.1.1", "1.1.1.2", "1.1.1.3"];
        addresses.note_failure(socket("1.1.1.1"), now);
        assert_eq!(order(&addresses, &found, now), ["1.1.1.2", "1.1.1.3", "1.1.1.1"]);
        addresses.note_failure(socket("1.1.1.2"), now + Duration::from_secs(1));
        assert_eq!(order(&addresses, &found, now), ["1.1.1.3", "1.1.1.1", "1.1.1.2"]);
        let mut later = now + DEMOTED_FIRST;
        assert_eq!(order(&addresses, &found, later), ["1.1.1.1", "1.1.1.3", "1.1.1.2"]);
        // Each further failure doubles the time.
        for seconds in [20, 40, 80, 160, 300, 300] {
            addresses.note_failure(socket("1.1.1.1"), later);
            addresses.note_failure(socket("1.1.1.1"), later);
            later += Duration::from_secs(seconds);
            let before = order(&addresses, &["1.1.1.1", "1.1.1.9"], later - Duration::from_millis(1));
            assert_eq!(before, ["1.1.1.9", "1.1.1.1"], "{seconds}");
            assert_eq!(order(&addresses, &["1.1.1.1", "1.1.1.9"], later), ["1.1.1.1", "1.1.1.9"], "{seconds}");
        }
        addresses.note_failure(socket("1.1.1.1"), later);
        addresses.note_success(socket("1.1.1.1"));
        assert_eq!(order(&addresses, &["1.1.1.1", "1.1.1.9"], later), ["1.1.1.1", "1.1.1.9"]);
    }

    #[test]
    fn marks_are_bounded() {
        let (addresses, now) = (AddressMarks::default(), Instant::now());
        for number in 0..=MARKS_MAX as u32 {
            assert_eq!(addresses.count.load(Ordering::Relaxed), number as usize);
            addresses.note_failure(SocketAddr::new(IpAddr::V4(number.into()), 80), now);
        }
        assert_eq!(addresses.count.load(Ordering::Relaxed), 1);
    }
}
