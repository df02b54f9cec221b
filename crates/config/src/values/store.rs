//! The store of responses.
//!
//! Owns: the values of `[store]`.

use std::fmt;
use std::time::Duration;

use crate::place::{LocatedValue, Setting};
use crate::quantity::exact_size;

/// `[store]`: the store of responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreConfig {
    /// `device`: the SPEC of the device, made if it is absent: a path, `disk:/dev/sdb`, `memory:2G`. Not empty; its
    /// syntax is not checked here. Required.
    pub device: LocatedValue<String>,
    /// `spans`: SPECs of the other devices of a store on several. Default: none.
    pub spans: Vec<LocatedValue<String>>,
    /// `forget-if-spans-missing`: whether to begin empty instead of failing, if the missing spans may have served
    /// without the others. Default: false.
    pub forget_if_spans_missing: Setting<bool>,
    /// `size`: of a store that is created, or of each of its spans; not 0. *Units*: bytes. Default: 4 GiB.
    pub size_bytes: Setting<u64>,
    /// `memory`: for objects, index and buffers; not 0. *Units*: bytes. Default: 256 MiB, or half of what there is if
    /// that is less.
    pub memory_bytes: Setting<u64>,
    /// `io`: how devices are read and written. Default: [`StoreIoEngine::Auto`].
    pub io: Setting<StoreIoEngine>,
    /// `disk-deadline`: how long an operation of the disk may take; 0 for no bound. Default: 2 s.
    pub disk_deadline: Setting<Duration>,
    /// `admit`: which objects are written to the disk. Default: [`AdmitRule::All`].
    pub admit: Setting<AdmitRule>,
    /// `admit-bytes-min`: shorter bodies are not written. *Units*: bytes. Default: 0.
    pub admit_bytes_min: Setting<u64>,
    /// `admit-bytes-max`: longer bodies are not written; not less than `admit-bytes-min`. *Units*: bytes. Default: no
    /// limit.
    pub admit_bytes_max: Setting<u64>,
    /// `write-budget`: how much may be written in a period. Default: no limit.
    pub write_budget: Setting<WriteBudget>,
    /// `reinsert`: how much of a segment is rewritten before it is overwritten. *Units*: percent, 0 to 50. Default:
    /// that of the store.
    pub reinsert_percent: Setting<u32>,
    /// `rewrite`: how much may be rewritten from memory, of what is admitted. *Units*: percent, 0 to 100. Default: that
    /// of the store.
    pub rewrite_percent: Setting<u32>,
    /// `cluster-read`: the extent of a read. Default: [`ClusterRead::Auto`].
    pub cluster_read: Setting<ClusterRead>,
    /// `cluster-size`: a power of two from 4 KiB to 1 MiB, or 0 for no clusters. *Units*: bytes. Default: 64 KiB.
    pub cluster_size_bytes: Setting<u64>,
}

/// How devices are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreIoEngine {
    /// `"auto"`: io_uring if the kernel allows it.
    Auto,
    /// `"uring"`: io_uring, or an error.
    Uring,
    /// `"posix"`: plain system calls.
    Posix,
}

/// Which objects are written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitRule {
    /// `"all"`.
    All,
    /// `"second-request"`: only objects that are requested again.
    SecondRequest,
}

/// The extent of a read from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterRead {
    /// `"auto"`: whichever has recently saved reads.
    Auto,
    /// `"cluster"`: the cluster around the object.
    Cluster,
    /// `"object"`: the object.
    Object,
}

/// How much may be written in a period, as `50G/day` or `2M/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteBudget {
    /// The bytes, not 0.
    pub bytes: u64,
    /// The period.
    pub period: Duration,
}

impl WriteBudget {
    /// The names of the periods, and their lengths. *Units*: seconds.
    pub const PERIODS: [(&'static str, u64); 4] = [("s", 1), ("min", 60), ("h", 3600), ("day", 86400)];
}

/// Writes the budget as the file has it.
impl fmt::Display for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = exact_size(self.bytes);
        match WriteBudget::PERIODS.iter().find(|(_, seconds)| Duration::from_secs(*seconds) == self.period) {
            Some((name, _)) => write!(f, "{size}/{name}"),
            None => write!(f, "{size} in {:?}", self.period),
        }
    }
}
