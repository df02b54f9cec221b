//! The write budget: it lowers the probability that an object is admitted, so that no more is written to the device
//! than allowed.
//!
//! # Idea
//! Credit for writing accrues at the budget's rate, up to the credit of one *window* (1/24 of the budget's period, at
//! least a minute). Every write to the device is debited: objects with their headers and padding, re-insertions,
//! checkpoints, purges. The bytes of objects that wait to be written are also subtracted from the credit before an
//! object is admitted. Two rules decide whether an object is admitted:
//! - It is admitted with the probability `credit / (half of a window's credit)`, at most 1. So the budget has no effect
//!   while at least half of a window's credit is left; below that, fewer objects are admitted. If more is put than may
//!   be written, the credit settles at the level where the admitted bytes match the budget. So objects are admitted
//!   evenly, without gaps or bursts.
//! - It is admitted only if the credit covers its bytes. So objects that could be refused never bring the credit below
//!   0.
//!
//! Writes that cannot be refused (replacements of objects on the disk, checkpoints) may overdraw the credit. The debt
//! is at most one window's credit, and is paid back before anything else is admitted.
//!
//! # Promise
//! In any time `t`, at most `rate * t` plus one window's credit is written, not counting writes that could not be
//! refused.
//!
//! This is a plain state machine: it has no clock, and its random numbers come from a seed.

use serde::{Deserialize, Serialize};

use super::options::WriteBudget;
use crate::planted::{Bug, planted};

/// A period has this many windows.
const WINDOWS: usize = 24;
/// A window has at least this many seconds.
const WINDOW_S_MIN: f64 = 60.0;

/// A write budget, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WriteBudgetStat {
    /// The bytes that may be written in a period.
    pub budget_bytes: u64,
    /// The period of the budget, at least 24 minutes; in seconds.
    pub period_s: u64,
    /// The bytes written in the last period, or since the store was opened if that is shorter. The start of this period
    /// moves in steps of 1/24 of its length.
    pub used_bytes: u64,
    /// The probability that an object is admitted now.
    pub chance: f64,
}

impl WriteBudgetStat {
    /// Adds the state of another span.
    pub(crate) fn add(&mut self, other: &WriteBudgetStat) {
        let all = self.budget_bytes + other.budget_bytes;
        if all > 0 {
            let weighted = |stat: &WriteBudgetStat| stat.chance * stat.budget_bytes as f64;
            self.chance = ((weighted(self) + weighted(other)) / all as f64 * 1000.0).round() / 1000.0;
        }
        self.budget_bytes = all;
        self.used_bytes += other.used_bytes;
    }
}

/// The state of a write budget: the credit, and the recent writes.
#[derive(Debug, Clone)]
pub struct WriteRate {
    bytes_per_s: f64,
    window_s: f64,
    credit_bytes: f64,
    at_us: u64,
    /// All bytes written up to the last call.
    written_bytes: u64,
    /// The bytes written in each of the last windows, and the number of the newest window.
    windows: [u64; WINDOWS],
    window: u64,
    random: u64,
}

impl WriteRate {
    /// Starts at time 0, with nothing written yet and half of a window's credit.
    pub fn new(budget: &WriteBudget, seed: u64) -> WriteRate {
        let window_s = (budget.period.as_secs_f64() / WINDOWS as f64).max(WINDOW_S_MIN);
        let bytes_per_s = budget.bytes_per_s();
        WriteRate {
            bytes_per_s,
            window_s,
            credit_bytes: bytes_per_s * window_s / 2.0,
            at_us: 0,
            written_bytes: 0,
            windows: [0; WINDOWS],
            window: 0,
            random: seed,
        }
    }

    /// Whether an object of `bytes` is admitted at `now_us`, when `written_bytes` were written in total and
    /// `waiting_bytes` wait.
    pub fn admits(&mut self, now_us: u64, written_bytes: u64, waiting_bytes: u64, bytes: u64) -> bool {
        self.catch_up(now_us, written_bytes);
        let credit = self.credit_bytes - waiting_bytes as f64;
        let chance = self.chance(credit);
        let drawn = (self.next_random() >> 11) as f64 / (1_u64 << 53) as f64;
        bytes as f64 <= credit && drawn < chance
    }

    /// The state of the budget.
    pub fn stat(&mut self, now_us: u64, written_bytes: u64) -> WriteBudgetStat {
        self.catch_up(now_us, written_bytes);
        let period_s = self.window_s * WINDOWS as f64;
        WriteBudgetStat {
            budget_bytes: (self.bytes_per_s * period_s).round() as u64,
            period_s: period_s.round() as u64,
            used_bytes: self.windows.iter().sum(),
            chance: (self.chance(self.credit_bytes) * 1000.0).round() / 1000.0,
        }
    }

    fn chance(&self, credit_bytes: f64) -> f64 {
        (credit_bytes / (self.bytes_per_s * self.window_s / 2.0)).clamp(0.0, 1.0)
    }

    /// Adds the credit for the time since the last call, and debits the bytes written in that time.
    fn catch_up(&mut self, now_us: u64, written_bytes: u64) {
        let most = self.bytes_per_s * self.window_s;
        let elapsed_s = now_us.saturating_sub(self.at_us) as f64 / 1e6;
        let written = written_bytes.saturating_sub(self.written_bytes);
        let debit = if planted(Bug::WriteBudgetNotDebited) { 0.0 } else { written as f64 };
        self.credit_bytes = ((self.credit_bytes + elapsed_s * self.bytes_per_s).min(most) - debit).max(-most);
        self.at_us = self.at_us.max(now_us);
        self.written_bytes = self.written_bytes.max(written_bytes);
        let window = (self.at_us as f64 / 1e6 / self.window_s) as u64;
        for passed in (self.window + 1..=window).rev().take(WINDOWS) {
            self.windows[passed as usize % WINDOWS] = 0;
        }
        self.window = window;
        self.windows[window as usize % WINDOWS] += written;
    }

    /// The next number of the sequence "splitmix64".
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;
    const DAY_S: u64 = 86_400;

    /// Simulates a day in which an object of `bytes` is offered `per_s` times a second. Returns the bytes written by
    /// the end of each window, and by the end of the day.
    fn day(rate: &mut WriteRate, per_s: u64, bytes: u64) -> (Vec<u64>, u64) {
        let (mut written, mut windows) = (0, Vec::new());
        for second in 0..DAY_S {
            for part in 0..per_s {
                let now_us = second * SECOND_US + part * SECOND_US / per_s;
                // An append is 5 % larger than its objects.
                if rate.admits(now_us, written, 0, bytes) {
                    written += bytes * 21 / 20;
                }
            }
            if second % 3600 == 3599 {
                windows.push(written);
            }
        }
        (windows, written)
    }

    fn budget(text: &str) -> WriteBudget {
        text.parse().expect("a budget")
    }

    #[test]
    fn tenfold_load_spreads_budget_evenly() {
        for bytes in [10_000, 1_000_000] {
            let mut rate = WriteRate::new(&budget("20G/day"), 7);
            let per_s = (10 * (20_u64 << 30) / DAY_S / bytes).max(1);
            let (windows, written) = day(&mut rate, per_s, bytes);
            let (all, hour) = (20_u64 << 30, (20_u64 << 30) / 24);
            assert!(written <= all + hour && written >= all * 97 / 100, "{written} of {all}");
            for pair in windows.windows(2) {
                let one = pair[1] - pair[0];
                assert!(one.abs_diff(hour) < hour / 10, "objects of {bytes}: {one} in an hour, {hour} wanted");
            }
            let stat = rate.stat(DAY_S * SECOND_US - 1, written);
            assert_eq!((stat.budget_bytes, stat.period_s, stat.used_bytes), (all, DAY_S, written));
            assert!(stat.chance > 0.05 && stat.chance < 0.15, "{stat:?}");
        }
    }

    #[test]
    fn load_below_budget_is_admitted() {
        let mut rate = WriteRate::new(&budget("20G/day"), 7);
        let per_s = (20_u64 << 30) / DAY_S / 10_000 * 8 / 10;
        let (_, written) = day(&mut rate, per_s, 10_000);
        assert_eq!(written, DAY_S * per_s * 10_500);
        assert_eq!(rate.stat(DAY_S * SECOND_US, written).chance, 1.0);
    }

    /// Writes that cannot be refused are paid back, and no debt outlives a window.
    #[test]
    fn forced_writes_are_repaid() {
        let mut rate = WriteRate::new(&budget("24G/day"), 7);
        let hour_us = 3600 * SECOND_US;
        // Writes that cannot be refused use the budget of ten hours at once.
        let written = 10 << 30;
        assert!(!rate.admits(hour_us / 4, written, 0, 1));
        assert!(!rate.admits(hour_us, written, 0, 1));
        assert!((1..1000).any(|step| rate.admits(hour_us + hour_us / 4 + step * hour_us / 1000, written, 0, 1000)));
    }

    #[test]
    fn waiting_and_large_are_refused() {
        let mut rate = WriteRate::new(&budget("24G/day"), 7);
        assert!(rate.admits(0, 0, 0, 512 << 20));
        assert!(!rate.admits(0, 0, 0, (512 << 20) + 1), "only half a window's credit is there");
        assert!(!rate.admits(0, 0, 512 << 20, 1), "all of it waits to be written");
        assert!(rate.admits(3600 * SECOND_US, 0, 0, 1 << 30));
        assert!(!rate.admits(48 * 3600 * SECOND_US, 0, 0, (1 << 30) + 1), "no more than a window's is kept");
    }

    #[test]
    fn the_same_seed_admits_the_same() {
        let run = |seed| {
            let mut rate = WriteRate::new(&budget("2G/day"), seed);
            (0..10_000).map(|step| rate.admits(step, step * 10_000, 0, 1000)).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}
