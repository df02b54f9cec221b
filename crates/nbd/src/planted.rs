//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` every question is answered `false` at compile time, so that no user's build has them.

/// A defect that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Reading, changing and writing a block does not keep other writes away from it.
    RangeUnlocked = 1,
    /// A flush on a connection that has written nothing itself is answered without flushing.
    FlushOfOwnWritesOnly = 2,
    /// The data of a read are sent twice.
    DataTwice = 3,
    /// A reply carries another cookie than its request.
    WrongCookie = 4,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 4] = [Bug::RangeUnlocked, Bug::FlushOfOwnWritesOnly, Bug::DataTwice, Bug::WrongCookie];

    /// The name that is printed.
    pub fn name(self) -> &'static str {
        match self {
            Bug::RangeUnlocked => "read-modify-write without a range lock",
            Bug::FlushOfOwnWritesOnly => "flush that misses what another connection wrote",
            Bug::DataTwice => "data answered twice",
            Bug::WrongCookie => "wrong cookie",
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants one bug in this process, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn planted(_: Bug) -> bool {
    false
}
