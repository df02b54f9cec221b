//! What keeps a donor from starting.

use nectary_block::format_size;

/// Why a donor does not start.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    /// Less than one slab.
    #[error("{} of memory are too little to lend: give --memory 2M or more", format_size(*memory_bytes))]
    TooLittle {
        /// The memory that was to be lent.
        memory_bytes: u64,
    },
    /// The machine has less memory left.
    #[error(
        "{} of memory are to be lent, and {} are available on this machine: give a smaller --memory, or end what uses \
         the memory",
        format_size(*wanted_bytes),
        format_size(*available_bytes)
    )]
    NotThere {
        /// The memory that was to be lent.
        wanted_bytes: u64,
        /// What the kernel says is available.
        available_bytes: u64,
    },
    /// The kernel refuses to lock it.
    #[error(
        "cannot lock {} of memory, only {}: {source}; this process may lock {limit} (RLIMIT_MEMLOCK): raise it \
         (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in a systemd unit), give it CAP_IPC_LOCK, or use \
         --on-demand, whose memory may be swapped out",
        format_size(*wanted_bytes),
        format_size(*locked_bytes)
    )]
    Locked {
        /// The memory that was to be locked.
        wanted_bytes: u64,
        /// What was locked when the kernel refused.
        locked_bytes: u64,
        /// The limit, in words.
        limit: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// No random numbers, or a mistake in the options.
    #[error("{0}")]
    Other(String),
}
