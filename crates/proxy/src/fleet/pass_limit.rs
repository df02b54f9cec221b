//! The limit on requests to origins while a node may not use its store.
//!
//! Owns: [`PassLimit`]: so many requests in each period, for all workers together.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// So many requests in each period.
#[derive(Debug)]
pub(super) struct PassLimit {
    count: u32,
    period: Duration,
    window: Mutex<PassWindow>,
}

/// The period under way.
#[derive(Debug, Default)]
struct PassWindow {
    begins: Duration,
    taken: u32,
}

impl PassLimit {
    /// A limit of `count` requests in a period.
    pub fn new(count: u32, period: Duration) -> PassLimit {
        PassLimit { count, period, window: Mutex::default() }
    }

    /// Counts a request at a time; if it is one too many, returns the seconds until the next period, at least 1.
    pub fn take(&self, now: Duration) -> Result<(), u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= window.begins + self.period {
            *window = PassWindow { begins: now, taken: 0 };
        }
        if window.taken < self.count {
            window.taken += 1;
            return Ok(());
        }
        let left = (window.begins + self.period).saturating_sub(now);
        Err(left.as_secs().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_counted_by_period() {
        let limit = PassLimit::new(2, Duration::from_secs(60));
        let at = |seconds| limit.take(Duration::from_secs(seconds));
        assert_eq!([at(100), at(100), at(100)], [Ok(()), Ok(()), Err(60)]);
        assert_eq!([at(159), at(160), at(161), at(162)], [Err(1), Ok(()), Ok(()), Err(58)]);
    }
}
