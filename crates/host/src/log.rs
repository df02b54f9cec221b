//! Messages to the user who runs the program. Each message is one line on standard error. The rate of repeated messages
//! can be limited.
//!
//! Owns: the form of the line, `nectary: LEVEL: COMPONENT: MESSAGE`, and [`LogThrottle`], which writes one message of a
//! kind per interval and counts the rest, and [`LogThrottles`], which does so for each of many things; and the least important
//! level that is written. Leaves to others: access logs
//! and figures. If a message cannot be written, that is ignored, because there is no other place to report it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The importance of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LogLevel {
    /// An operation failed, and the user must act.
    Error,
    /// There is a problem, and the program continues.
    Warning,
    /// The message is only for information.
    Note,
}

impl LogLevel {
    fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Note => "note",
        }
    }
}

/// The least important level that is written.
static LEAST: AtomicU8 = AtomicU8::new(LogLevel::Note as u8);

/// From now on this process writes only messages of this level and of more important ones. Simulations lose thousands
/// of sessions on purpose; nobody wants to read of each.
pub fn write_only(least: LogLevel) {
    LEAST.store(least as u8, Ordering::Relaxed);
}

/// Writes one message.
pub fn write(level: LogLevel, component: &str, message: fmt::Arguments<'_>) {
    if level as u8 > LEAST.load(Ordering::Relaxed) {
        return;
    }
    let line = format!("nectary: {}: {component}: {}\n", level.as_str(), OneLine(&message.to_string()));
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// A text that is written with its control characters escaped, so that text from a network cannot forge a line.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Writes one message of a kind per interval, and counts the other messages.
///
/// ```
/// use nectary_host::log::{LogLevel, LogThrottle};
///
/// static DAMAGED: LogThrottle = LogThrottle::once();
/// for offset in [4096, 8192] {
///     DAMAGED.write(LogLevel::Warning, "store", format_args!("checksum mismatch at offset {offset}"));
/// }
/// assert_eq!(DAMAGED.held_back(), 1);
/// ```
#[derive(Debug)]
pub struct LogThrottle {
    interval: Duration,
    /// The earliest time at which the next message may be written, in nanoseconds since [`START`]; 0 before the first
    /// message.
    next: AtomicU64,
    held_back: AtomicU64,
}

impl LogThrottle {
    /// Allows one message per `interval`.
    pub const fn every(interval: Duration) -> LogThrottle {
        LogThrottle { interval, next: AtomicU64::new(0), held_back: AtomicU64::new(0) }
    }

    /// Allows one message in the life of the process.
    pub const fn once() -> LogThrottle {
        LogThrottle::every(Duration::MAX)
    }

    /// Writes the message, or only counts it if a message of its kind was written within the interval.
    ///
    /// *Cost*: a message that is held back costs one load and one addition, and is not formatted.
    pub fn write(&self, level: LogLevel, component: &str, message: fmt::Arguments<'_>) {
        let Some(held_back) = self.pass(START.elapsed()) else { return };
        match held_back {
            0 => write(level, component, message),
            count => write(level, component, format_args!("{message} ({count} more like this since the last one)")),
        }
    }

    /// The number of messages that were held back since the last message was written.
    pub fn held_back(&self) -> u64 {
        self.held_back.load(Ordering::Relaxed)
    }

    /// If a message may be written at `now`, returns the number of messages that were held back before it. Otherwise
    /// counts the message as held back and returns `None`.
    fn pass(&self, now: Duration) -> Option<u64> {
        let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let following = nanoseconds(now.saturating_add(self.interval)).max(1);
        let passes = (next == 0 || nanoseconds(now) >= next)
            && self.next.compare_exchange(next, following, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if passes {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Whether the next message would be written at `now`.
    fn is_over(&self, now: Duration) -> bool {
        now.as_nanos() >= u128::from(self.next.load(Ordering::Relaxed))
    }
}

/// The maximum number of keys of a [`LogThrottles`].
const KEYS_MAX: usize = 256;

/// The longest key that a [`LogThrottles`] keeps apart. *Units*: bytes.
const KEY_BYTES_MAX: usize = 512;

/// A [`LogThrottle`] for each key, such as the name of what a message is about, so that one thing that fails all the time does
/// not hold back the first message about another. Once 256 keys had a message within the interval, further ones share a
/// throttle, as do those of more than 512 bytes.
#[derive(Debug)]
pub struct LogThrottles {
    interval: Duration,
    by_key: Mutex<BTreeMap<String, Arc<LogThrottle>>>,
    others: LogThrottle,
}

impl LogThrottles {
    /// Allows one message per `interval` and key.
    pub const fn every(interval: Duration) -> LogThrottles {
        LogThrottles { interval, by_key: Mutex::new(BTreeMap::new()), others: LogThrottle::every(interval) }
    }

    /// Writes the message, or only counts it if a message of its kind and key was written within the interval.
    ///
    /// *Cost*: that of [`LogThrottle::write`], and a lock with a look-up.
    pub fn write(&self, key: &str, level: LogLevel, component: &str, message: fmt::Arguments<'_>) {
        match self.of(key, START.elapsed()) {
            Some(throttle) => throttle.write(level, component, message),
            None => self.others.write(level, component, message),
        }
    }

    /// The throttle of a key; `None` for the one that many share.
    fn of(&self, key: &str, now: Duration) -> Option<Arc<LogThrottle>> {
        if key.len() > KEY_BYTES_MAX {
            return None;
        }
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_key.get(key) {
            return Some(Arc::clone(known));
        }
        if by_key.len() >= KEYS_MAX {
            by_key.retain(|_, throttle| !throttle.is_over(now));
        }
        (by_key.len() < KEYS_MAX).then(|| {
            let throttle = Arc::new(LogThrottle::every(self.interval));
            by_key.insert(key.to_owned(), Arc::clone(&throttle));
            throttle
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One message passes per interval, and the others are counted.
    #[test]
    fn throttle_passes_one_per_interval() {
        let throttle = LogThrottle::every(Duration::from_secs(10));
        let at = |seconds| throttle.pass(Duration::from_secs(seconds));
        assert_eq!(at(0), Some(0));
        assert_eq!(at(1), None);
        assert_eq!(at(9), None);
        assert_eq!(at(10), Some(2));
        assert_eq!(at(11), None);
    }

    #[test]
    fn once_means_once() {
        let throttle = LogThrottle::once();
        assert_eq!(throttle.pass(Duration::ZERO), Some(0));
        assert_eq!(throttle.pass(Duration::from_secs(1 << 33)), None);
    }

    #[test]
    fn each_key_has_its_first_message() {
        let throttles = LogThrottles::every(Duration::from_secs(10));
        let at = |key: &str, seconds| {
            let now = Duration::from_secs(seconds);
            throttles.of(key, now).map(|throttle| throttle.pass(now))
        };
        assert_eq!(
            [at("a", 1), at("a", 2), at("b", 3), at("a", 11)],
            [Some(Some(0)), Some(None), Some(Some(0)), Some(Some(1))]
        );
    }

    #[test]
    fn keys_of_throttles_are_bounded() {
        let throttles = LogThrottles::every(Duration::from_secs(10));
        let at = |key: &str, seconds| {
            let now = Duration::from_secs(seconds);
            throttles.of(key, now).map(|throttle| throttle.pass(now))
        };
        for number in 0..KEYS_MAX {
            assert_eq!(at(&number.to_string(), 1), Some(Some(0)));
        }
        assert_eq!((at("more", 10), at("0", 10)), (None, Some(None)), "all are within their interval");
        assert_eq!((at("more", 11), throttles.by_key.lock().expect("no panic").len()), (Some(Some(0)), 1));
        assert_eq!(at(&"x".repeat(KEY_BYTES_MAX + 1), 20), None);
    }

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(OneLine("a\nnectary: error: b\u{1b}[31m").to_string(), "a\\nnectary: error: b\\u{1b}[31m");
    }
}
