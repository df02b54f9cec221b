//! Reasons why a donor does not start.

use nectary_block::format_size;

/// The reason why a donor does not start.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    /// The memory to lend is less than one slab.
    #[error("{} of memory are too little to lend: give --memory 2M or more", format_size(*memory_bytes))]
    TooLittle {
        /// The memory to lend.
        memory_bytes: u64,
    },
    /// The machine has less memory available.
    #[error(
        "{} of memory are to be lent, and {} are available on this machine",
        format_size(*wanted_bytes),
        format_size(*available_bytes)
    )]
    NotThere {
        /// The memory to lend.
        wanted_bytes: u64,
        /// The memory that the kernel estimates to be available.
        available_bytes: u64,
    },
    /// The kernel refuses to lock the memory.
    #[error(
        "cannot lock {} of memory, only {}: {source}; this process may lock {limit} (RLIMIT_MEMLOCK): raise it \
         (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in a systemd unit), give it CAP_IPC_LOCK, or use \
         --on-demand, whose memory may be swapped out",
        format_size(*wanted_bytes),
        format_size(*locked_bytes)
    )]
    Locked {
        /// The memory to lock.
        wanted_bytes: u64,
        /// The memory that was locked before the kernel refused.
        locked_bytes: u64,
        /// The limit, in words.
        limit: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// No random numbers are available, or an option is wrong.
    #[error("{0}")]
    Other(String),
}
