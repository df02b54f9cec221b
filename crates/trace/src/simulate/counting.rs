//! What is counted of a run: all references after a warm-up, together or in windows.
//!
//! Owns: the text forms of a warm-up and of the length of windows, and the borders of windows.

use std::iter;
use std::ops::Range;

use super::workload::TraceWorkload;

/// The maximum number of windows of a run.
pub const WINDOWS_MAX: usize = 100_000;

/// The counts of a run, or of a window of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunCounts {
    /// The number of references.
    pub references: u64,
    /// The number of references that missed.
    pub misses: u64,
    /// The sum of the sizes of the references; 0 if the trace has no sizes. *Units*: bytes.
    pub bytes: u64,
    /// The sum of the sizes of the references that missed. *Units*: bytes.
    pub missed_bytes: u64,
}

impl RunCounts {
    /// The share of references that were misses, from 0 to 1.
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.references.max(1) as f64
    }

    /// The share of bytes that were misses, from 0 to 1; `None` if the trace has no sizes.
    pub fn byte_miss_ratio(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.missed_bytes as f64 / self.bytes as f64)
    }
}

impl iter::Sum for RunCounts {
    fn sum<I: Iterator<Item = RunCounts>>(all: I) -> RunCounts {
        all.fold(RunCounts::default(), |sum, one| RunCounts {
            references: sum.references + one.references,
            misses: sum.misses + one.misses,
            bytes: sum.bytes + one.bytes,
            missed_bytes: sum.missed_bytes + one.missed_bytes,
        })
    }
}

/// A number of references that may depend on the trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TraceExtent {
    /// A number of references.
    References(u64),
    /// A share of the references, in percent.
    Percent(f64),
    /// A time. *Units*: seconds.
    Seconds(u64),
}

impl TraceExtent {
    /// Reads `100000`, `20%`, or a time as `90s`, `5m`, `1h` or `2d`.
    ///
    /// *Errors*: a sentence about what is wrong.
    pub fn parse(text: &str) -> Result<TraceExtent, String> {
        let wrong =
            || format!("\"{text}\": expected references (100000), percent of them (20%) or a time (90s, 5m, 1h, 2d)");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.parse().map_err(|_| wrong())?;
            return if (0.0..100.0).contains(&percent) { Ok(TraceExtent::Percent(percent)) } else { Err(wrong()) };
        }
        let Some(unit) = text.find(|c: char| !c.is_ascii_digit()) else {
            return text.parse().map(TraceExtent::References).map_err(|_| wrong());
        };
        let seconds: u64 = match &text[unit..] {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let count: u64 = text[..unit].parse().map_err(|_| wrong())?;
        count.checked_mul(seconds).map(TraceExtent::Seconds).ok_or_else(wrong)
    }
}

/// The references that are counted, and their windows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CountingWindows {
    /// The number of references at the beginning that are not counted.
    pub warm_up: usize,
    /// The reference at which each window but the first begins, ascending and above the warm-up.
    pub borders: Vec<usize>,
}

/// All references in one window.
pub static WHOLE: CountingWindows = CountingWindows { warm_up: 0, borders: Vec::new() };

impl CountingWindows {
    /// What is counted of `workload` after `warm_up`, in windows of `window`.
    ///
    /// *Errors*: a time is given and the trace has none; nothing is left to count; there are more than [`WINDOWS_MAX`]
    /// windows. The error is a sentence about it.
    pub fn new(
        workload: &TraceWorkload,
        warm_up: Option<TraceExtent>,
        window: Option<TraceExtent>,
    ) -> Result<CountingWindows, String> {
        let length = workload.blocks().len();
        let place = |extent: TraceExtent| match extent {
            TraceExtent::References(count) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
            TraceExtent::Percent(percent) => Ok((length as f64 * percent / 100.0) as usize),
            TraceExtent::Seconds(_) if workload.times().is_empty() => {
                let name = workload.name();
                Err(format!("{name} has no times; count references, or name the column of times (--columns time=N,…)"))
            }
            TraceExtent::Seconds(seconds) => Ok(after(workload.times(), seconds)),
        };
        let warm_up = warm_up.map_or(Ok(0), place)?;
        if warm_up >= length {
            return Err(format!("a warm-up of {warm_up} leaves nothing of the {length} references to count"));
        }
        let mut borders = Vec::new();
        match window {
            None => {}
            Some(TraceExtent::Seconds(seconds)) => {
                place(TraceExtent::Seconds(seconds))?;
                let begin = u64::from(workload.times()[warm_up]);
                let mut number = 0;
                for (index, &time) in workload.times().iter().enumerate().skip(warm_up) {
                    let now = u64::from(time).saturating_sub(begin) / seconds.max(1);
                    if now > number {
                        number = now;
                        borders.push(index);
                    }
                }
            }
            Some(extent) => {
                let step = place(extent)?.max(1);
                borders.extend((warm_up..length).step_by(step).skip(1).take(WINDOWS_MAX));
            }
        }
        if borders.len() >= WINDOWS_MAX {
            return Err(format!("more than {WINDOWS_MAX} windows; make them longer"));
        }
        Ok(CountingWindows { warm_up, borders })
    }

    /// The windows of a trace of `length` references.
    pub fn ranges(&self, length: usize) -> impl Iterator<Item = Range<usize>> {
        let begins = iter::once(self.warm_up).chain(self.borders.iter().copied());
        begins.zip(self.borders.iter().copied().chain([length])).map(|(begin, end)| begin..end)
    }
}

/// The first reference that is at least `seconds` after the first one.
fn after(times: &[u32], seconds: u64) -> usize {
    times.iter().position(|&time| u64::from(time) >= seconds).unwrap_or(times.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_cache::StreamId;

    #[test]
    fn extents_are_references_percent_or_times() {
        assert_eq!(TraceExtent::parse("100"), Ok(TraceExtent::References(100)));
        assert_eq!(TraceExtent::parse("12.5%"), Ok(TraceExtent::Percent(12.5)));
        assert_eq!(TraceExtent::parse("2h"), Ok(TraceExtent::Seconds(7200)));
        for wrong in ["", "-1", "100%", "nan%", "5x", "h", "99999999999999999999d", "1.5h"] {
            assert!(TraceExtent::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Windows follow the warm-up and cover the rest of the trace.
    #[test]
    fn windows_follow_warm_up() {
        let workload = TraceWorkload::new("a", (0..10).map(|block| (block, StreamId(0))));
        let ranges = |warm_up, window| {
            let counting = CountingWindows::new(&workload, warm_up, window)?;
            Ok::<_, String>(counting.ranges(10).collect::<Vec<_>>())
        };
        assert_eq!(ranges(None, None).map(|all| (all.len(), all.first().cloned())), Ok((1, Some(0..10))));
        assert_eq!(
            ranges(Some(TraceExtent::Percent(20.0)), Some(TraceExtent::References(3))),
            Ok(vec![2..5, 5..8, 8..10])
        );
        assert!(ranges(Some(TraceExtent::References(10)), None).is_err_and(|text| text.contains("leaves nothing")));
        assert!(ranges(Some(TraceExtent::Seconds(1)), None).is_err_and(|text| text.contains("a has no times")));
    }
}
