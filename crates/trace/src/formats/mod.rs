//! What every trace format is read into: a sequence of references to blocks.
//!
//! Owns: [`Reference`]. Leaves to others: each format's own file.

use nectary_cache::Stream;

/// One reference to one block, or to one object where a trace has objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Whose reference it is: the process and file, the volume, or the trace that it comes from.
    pub stream: Stream,
    /// The block, unique over all streams of a run.
    pub block: u64,
    /// Its size. *Units*: bytes; 0 where the trace does not say.
    pub bytes: u32,
    /// Whether it was written and not read.
    pub is_write: bool,
}
