//! The settings of foyer, as the parent passes them to its program.
//!
//! Owns: foyer's settings that were chosen by measurement, and the alternatives, as data. Leaves to others: foyer
//! itself, which is linked only into its own program, and the reasons (`docs/decisions/0028-foyer.md`).

use serde::{Deserialize, Serialize};

/// When foyer writes an object to its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoyerWrites {
    /// When the object is evicted from memory; foyer's default.
    Eviction,
    /// When the object is put.
    Insertion,
}

/// How foyer reads and writes its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoyerEngine {
    /// Blocking calls, on threads that foyer's runtime has for them; foyer's default.
    Psync,
    /// One thread with an io_uring ring, which polls without sleeping.
    Uring,
    /// As `Uring`, with a kernel thread that polls for submissions.
    UringSubmitPoll,
}

/// foyer's settings, except those that follow from its disk and memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoyerSettings {
    /// When foyer writes an object to its disk.
    pub writes: FoyerWrites,
    /// How foyer reads and writes its disk.
    pub engine: FoyerEngine,
    /// The number of reads and writes in flight in a ring.
    pub depth: usize,
    /// The number of threads of its runtime. With 0, its tasks run on the calling thread while that thread waits.
    pub threads: usize,
    /// The number of parts of its disk that are written at the same time.
    pub flushers: usize,
    /// The number of bytes that are evicted at once.
    pub block_bytes: u64,
    /// The divisor of the buffer size: each of foyer's two buffers has the size of foyer's memory divided by this.
    pub buffer_share: u64,
}

impl Default for FoyerSettings {
    fn default() -> FoyerSettings {
        FoyerSettings {
            writes: FoyerWrites::Eviction,
            engine: FoyerEngine::Psync,
            depth: 64,
            threads: 0,
            flushers: 1,
            block_bytes: 4 << 20,
            buffer_share: 8,
        }
    }
}

impl FoyerSettings {
    /// The alternatives to the chosen settings, by name. Each changes one setting; some also change the engine.
    pub fn alternatives() -> Vec<(&'static str, FoyerSettings)> {
        let usual = FoyerSettings::default;
        let uring = || FoyerSettings { engine: FoyerEngine::Uring, ..usual() };
        vec![
            ("threads-1", FoyerSettings { threads: 1, ..usual() }),
            ("threads-2", FoyerSettings { threads: 2, ..usual() }),
            ("uring", uring()),
            ("uring-threads-1", FoyerSettings { threads: 1, ..uring() }),
            ("uring-threads-2", FoyerSettings { threads: 2, ..uring() }),
            ("uring-depth-8", FoyerSettings { depth: 8, ..uring() }),
            ("uring-submit-poll", FoyerSettings { engine: FoyerEngine::UringSubmitPoll, ..usual() }),
            ("flushers-2", FoyerSettings { flushers: 2, ..usual() }),
            ("block-2m", FoyerSettings { block_bytes: 2 << 20, ..usual() }),
            ("block-8m", FoyerSettings { block_bytes: 8 << 20, ..usual() }),
            ("block-16m", FoyerSettings { block_bytes: 16 << 20, ..usual() }),
            ("buffer-4", FoyerSettings { buffer_share: 4, ..usual() }),
            ("buffer-16", FoyerSettings { buffer_share: 16, ..usual() }),
        ]
    }
}
