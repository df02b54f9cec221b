//! How many purges a node accepts.
//!
//! Owns: [`PurgeBucket`]: an amount in a period, of purges or of their bytes.

use std::time::Duration;

/// How many purges, or bytes of them, may come now: as many as in a period at once, and then as they are due.
#[derive(Debug)]
pub(crate) struct PurgeBucket {
    /// The amount of a period.
    pub count: u64,
    period: Duration,
    /// When the bucket is full again.
    pub full_at: Duration,
}

impl PurgeBucket {
    /// An amount in a period, of which all may come at once.
    pub fn new(count: u64, period: Duration) -> PurgeBucket {
        PurgeBucket { count: count.max(1), period, full_at: Duration::ZERO }
    }

    /// When the bucket is full again if this amount is taken; `None` if it may not be.
    pub fn full_after(&self, now: Duration, amount: u64) -> Option<Duration> {
        let step_ns = self.period.as_nanos() * u128::from(amount) / u128::from(self.count);
        let step = Duration::from_nanos(u64::try_from(step_ns).unwrap_or(u64::MAX));
        let full_at = self.full_at.max(now).saturating_add(step);
        (full_at <= now + self.period).then_some(full_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_rate_allows_burst() {
        let mut bucket = PurgeBucket::new(3, Duration::from_secs(3));
        let mut take = |ms, amount| {
            let full_at = bucket.full_after(Duration::from_millis(ms), amount);
            bucket.full_at = full_at.unwrap_or(bucket.full_at);
            full_at.is_some()
        };
        assert_eq!([(); 4].map(|()| take(10_000, 1)), [true, true, true, false]);
        assert!(!take(10_999, 1) && take(11_000, 1) && !take(11_000, 1));
        assert!(take(99_000, 2) && !take(99_000, 2) && take(99_000, 1));
        let mut bytes = PurgeBucket::new(1 << 26, Duration::from_secs(60));
        bytes.full_at = bytes.full_after(Duration::ZERO, 1 << 26).expect("as many as in a period");
        assert_eq!(bytes.full_after(Duration::from_millis(1), 1 << 18), None);
    }
}
