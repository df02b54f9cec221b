//! What other programs take of this machine's processors while tests run.
//!
//! Owns: the share of others, by which the time of tests is judged, and the longer limit of a child on a busy machine.
//! Both read `/proc`; where it says nothing, nothing is scaled.

use std::fs;
use std::time::Duration;

/// Limits grow with the load by at most this factor.
const FACTOR_MAX: f64 = 4.0;
/// A share of others above this does not count further: beside so much work, times mean nothing.
const SHARE_MAX: f64 = 0.75;

/// The processor time of all programs and of this one with its children that have ended, at one moment.
///
/// *Units*: clock ticks.
#[derive(Debug, Clone, Copy)]
pub struct LoadMeter {
    busy: u64,
    idle: u64,
    own: u64,
}

impl LoadMeter {
    /// Reads both times; `None` if the machine does not say.
    pub fn start() -> Option<LoadMeter> {
        let (busy, idle) = of_all(&fs::read_to_string("/proc/stat").ok()?)?;
        Some(LoadMeter { busy, idle, own: own(&fs::read_to_string("/proc/self/stat").ok()?)? })
    }

    /// The share of the processors that others have taken since then, from 0 to [`SHARE_MAX`].
    pub fn share_of_others(start: Option<LoadMeter>) -> f64 {
        let (Some(start), Some(now)) = (start, LoadMeter::start()) else { return 0.0 };
        let busy = now.busy.saturating_sub(start.busy);
        let others = busy.saturating_sub(now.own.saturating_sub(start.own));
        let all = busy + now.idle.saturating_sub(start.idle);
        if all == 0 { 0.0 } else { (others as f64 / all as f64).min(SHARE_MAX) }
    }
}

/// How long something may take that may take `limit` on an idle machine: the limit times the average load of the last
/// minute for each processor, if that is more than one.
pub fn scaled(limit: Duration) -> Duration {
    let load = fs::read_to_string("/proc/loadavg").ok().and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    limit.mul_f64((load.unwrap_or(0.0) / processors).clamp(1.0, FACTOR_MAX))
}

/// The busy and the idle ticks of all processors, from the first line of `/proc/stat`.
fn of_all(stat: &str) -> Option<(u64, u64)> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted with users.
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((ticks.iter().take(8).sum::<u64>() - idle, idle))
}

/// The ticks of a process and of its children that have ended, from its `stat`.
fn own(stat: &str) -> Option<u64> {
    // The name before the last bracket may have any character; utime is the twelfth field after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_read() {
        let stat = "cpu  10 20 30 1000 200 4 5 6 7 8\ncpu0 1 2 3 4\n";
        assert_eq!(of_all(stat), Some((10 + 20 + 30 + 4 + 5 + 6, 1200)));
        assert_eq!(own("12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 1 20 0 1 0"), Some(124));
        assert_eq!(of_all("intr 1"), None);
        assert_eq!(own("12 nothing"), None);
    }

    #[test]
    fn load_separates_own_work() {
        let start = LoadMeter::start().expect("there is /proc");
        let earlier = |own: u64, busy: u64, idle: u64| {
            Some(LoadMeter { busy: start.busy - busy, idle: start.idle - idle, own: start.own.saturating_sub(own) })
        };
        // Nothing happened; only others were busy, for most of the time; and idle time alone.
        assert!(LoadMeter::share_of_others(Some(start)) <= SHARE_MAX);
        assert!(LoadMeter::share_of_others(earlier(0, start.busy, 0)) > 0.5);
        assert!(LoadMeter::share_of_others(earlier(0, 0, start.idle)) < 0.5);
        assert_eq!(LoadMeter::share_of_others(None), 0.0);
    }

    /// Limits never shrink.
    #[test]
    fn limits_grow_within_bounds() {
        let limit = Duration::from_secs(10);
        assert!(scaled(limit) >= limit && scaled(limit) <= limit.mul_f64(FACTOR_MAX));
    }
}
