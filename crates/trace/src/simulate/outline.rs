//! What tables, pictures, JSON and CSV say about a simulated trace.
//!
//! Owns: [`TraceOutline`]. It is the same for a trace in memory and for one that was read in a stream.

use nectary_cache::StreamId;

use super::counting::CountingWindows;
use super::workload::TraceWorkload;

/// The figures of a trace that do not depend on policies and sizes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceOutline {
    /// The name of the trace.
    pub name: String,
    /// The number of references.
    pub references: u64,
    /// The number of distinct blocks or objects.
    pub distinct: u64,
    /// The sum of the sizes of all distinct objects; 0 if the trace has no sizes. *Units*: bytes.
    pub distinct_bytes: u64,
    /// Whether the two figures above are estimates from a sample.
    pub is_estimate: bool,
    /// Whether the trace has objects with sizes.
    pub has_sizes: bool,
    /// The beginning of each counted window.
    pub windows: Vec<WindowStart>,
    /// The names of streams, sorted by stream.
    pub streams: Vec<(StreamId, String)>,
}

/// The beginning of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowStart {
    /// The number of references before it.
    pub reference: u64,
    /// The time of its first reference since that of the trace; `None` if the trace has no times. *Units*: seconds.
    pub second: Option<u32>,
}

impl TraceOutline {
    /// A stream's name.
    pub fn stream_name(&self, stream: StreamId) -> Option<&str> {
        let index = self.streams.binary_search_by_key(&stream.0, |(known, _)| known.0).ok()?;
        Some(&self.streams[index].1)
    }
}

impl TraceWorkload {
    /// The outline of a run that counts what `counting` says.
    pub fn outline(&self, counting: &CountingWindows) -> TraceOutline {
        let start = |index: usize| {
            let second = self.times().get(index).copied();
            WindowStart { reference: index as u64, second }
        };
        TraceOutline {
            name: self.name.clone(),
            references: self.references(),
            distinct: self.distinct,
            distinct_bytes: self.distinct_bytes,
            is_estimate: false,
            has_sizes: self.has_sizes(),
            windows: counting.ranges(self.blocks.len()).map(|window| start(window.start)).collect(),
            streams: self.names.clone(),
        }
    }
}
