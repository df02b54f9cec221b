//! A clock that also counts while the host is suspended.
//!
//! `Instant` is `CLOCK_MONOTONIC`, which stands still while the host is suspended. After a suspension, a lease could
//! still seem valid by that clock, although for all other hosts it ended long ago.

use std::time::Duration;

/// The time since the host's start, including the time for which the host was suspended. Even this clock may stop while
/// a virtual machine is paused, so the safety of data must not depend on it alone.
pub fn since_boot() -> Duration {
    // Linux has this clock since 2.6.39, so the call does not fail.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_includes_suspended_time() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            Duration::from_secs_f64(text.split_whitespace().next().unwrap().parse().unwrap())
        };
        // The uptime has a resolution of a hundredth of a second.
        let (before, now, after) = (uptime(), since_boot(), uptime());
        let slack = Duration::from_millis(20);
        assert!(now + slack >= before && now <= after + slack, "{before:?} {now:?} {after:?}");
    }
}
