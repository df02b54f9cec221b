//! Divides a trace that is read chunk after chunk into a warm-up and windows.
//!
//! Owns: [`WindowCutter`]. Promises: its windows are those of [`CountingWindows`](super::CountingWindows) over the whole trace.

use std::ops::Range;

use super::counting::{TraceExtent, WINDOWS_MAX};
use super::outline::WindowStart;
use super::workload::TraceWorkload;

/// An extent that does not depend on the length of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CutBound {
    References(u64),
    Seconds(u64),
}

impl CutBound {
    /// The bound of `extent` in a trace of `length` references.
    ///
    /// *Errors*: a percentage, and the length is not known.
    fn new(extent: TraceExtent, length: Option<u64>) -> Result<CutBound, String> {
        match (extent, length) {
            (TraceExtent::References(count), _) => Ok(CutBound::References(count)),
            (TraceExtent::Seconds(seconds), _) => Ok(CutBound::Seconds(seconds)),
            (TraceExtent::Percent(percent), Some(length)) => {
                Ok(CutBound::References((length as f64 * percent / 100.0) as u64))
            }
            (TraceExtent::Percent(percent), None) => {
                Err(format!("{percent} % of a trace whose length is not known; give references or a time"))
            }
        }
    }
}

/// A part of a chunk, and the window that it belongs to; `None` for the warm-up.
pub(super) type Cut = (Range<usize>, Option<usize>);

/// The warm-up and the windows so far.
#[derive(Debug)]
pub(super) struct WindowCutter {
    warm_up: CutBound,
    window: Option<CutBound>,
    /// The number of references in the chunks so far.
    done: u64,
    /// The time at which the first window begins.
    begin_s: u64,
    /// The number of the current window by time; windows without a reference are left out.
    number: u64,
    starts: Vec<WindowStart>,
}

impl WindowCutter {
    /// A division by `warm_up` and `window` of a trace of `length` references.
    ///
    /// *Errors*: a percentage, and the length is not known.
    pub(super) fn new(
        warm_up: Option<TraceExtent>,
        window: Option<TraceExtent>,
        length: Option<u64>,
    ) -> Result<WindowCutter, String> {
        let warm_up = CutBound::new(warm_up.unwrap_or(TraceExtent::References(0)), length)?;
        let window = window.map(|window| CutBound::new(window, length)).transpose()?;
        Ok(WindowCutter { warm_up, window, done: 0, begin_s: 0, number: 0, starts: Vec::new() })
    }

    /// Whether the warm-up or the windows are times.
    pub(super) fn needs_times(&self) -> bool {
        matches!(self.warm_up, CutBound::Seconds(_)) || matches!(self.window, Some(CutBound::Seconds(_)))
    }

    /// Divides the next chunk.
    ///
    /// *Errors*: more than [`WINDOWS_MAX`] windows.
    pub(super) fn cut(&mut self, chunk: &TraceWorkload) -> Result<Vec<Cut>, String> {
        let length = chunk.blocks().len();
        let mut cuts: Vec<Cut> = Vec::new();
        let mut at = 0;
        while at < length {
            let end = match self.starts.last() {
                None => self.end_of_warm_up(chunk).min(length),
                Some(start) => self.end_of_window(start.reference, at, chunk).min(length),
            };
            if end > at {
                let window = self.starts.len().checked_sub(1);
                cuts.push((at..end, window));
                at = end;
            }
            if at < length {
                self.start(at, chunk)?;
            }
        }
        self.done += length as u64;
        Ok(cuts)
    }

    /// The beginnings of the windows.
    ///
    /// *Errors*: the warm-up has left nothing.
    pub(super) fn finish(self) -> Result<Vec<WindowStart>, String> {
        if self.starts.is_empty() {
            return Err(format!("the warm-up leaves nothing of the {} references to count", self.done));
        }
        Ok(self.starts)
    }

    fn end_of_warm_up(&self, chunk: &TraceWorkload) -> usize {
        match self.warm_up {
            CutBound::References(count) => usize::try_from(count.saturating_sub(self.done)).unwrap_or(usize::MAX),
            CutBound::Seconds(seconds) => first_at(chunk, 0, seconds),
        }
    }

    /// The end of the window that began before the reference `began` of the trace, at or after `at` in the chunk.
    fn end_of_window(&self, began: u64, at: usize, chunk: &TraceWorkload) -> usize {
        match self.window {
            None => usize::MAX,
            Some(CutBound::References(count)) => {
                let end = began.saturating_add(count.max(1));
                usize::try_from(end.saturating_sub(self.done)).unwrap_or(usize::MAX)
            }
            Some(CutBound::Seconds(seconds)) => {
                let end = self.begin_s.saturating_add((self.number + 1).saturating_mul(seconds.max(1)));
                first_at(chunk, at, end)
            }
        }
    }

    /// Begins a window at the reference `at` of a chunk.
    fn start(&mut self, at: usize, chunk: &TraceWorkload) -> Result<(), String> {
        let second = u64::from(chunk.times().get(at).copied().unwrap_or(0));
        if self.starts.is_empty() {
            self.begin_s = second;
        } else if let Some(CutBound::Seconds(seconds)) = self.window {
            self.number = second.saturating_sub(self.begin_s) / seconds.max(1);
        }
        if self.starts.len() >= WINDOWS_MAX {
            return Err(format!("more than {WINDOWS_MAX} windows; make them longer"));
        }
        let second = Some(second as u32).filter(|_| !chunk.times().is_empty());
        self.starts.push(WindowStart { reference: self.done + at as u64, second });
        Ok(())
    }
}

/// The first reference of a chunk, from `at` on, whose time is at least `second`.
fn first_at(chunk: &TraceWorkload, at: usize, second: u64) -> usize {
    if chunk.times().is_empty() {
        return if second == 0 { at } else { usize::MAX };
    }
    let found = chunk.times()[at..].iter().position(|&time| u64::from(time) >= second);
    found.map_or(usize::MAX, |found| at + found)
}
