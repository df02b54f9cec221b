//! Deliberate defects, of which at most one is active. Tests show that their checks catch each of them.
//!
//! Without the feature `planted` this module is private and every defect is disabled at compile time, so that no user's
//! build contains one.

nectary_block::planted_bugs! {
    /// A read-modify-write of a block does not exclude other writes of the block.
    RangeUnlocked = 1 => "read-modify-write without a range lock",
    /// A flush on a connection that has written nothing itself is answered without flushing.
    FlushOfOwnWritesOnly = 2 => "flush that misses what another connection wrote",
    /// The data of a read are sent twice.
    DataTwice = 3 => "data answered twice",
    /// A reply has another cookie than its request.
    WrongCookie = 4 => "wrong cookie",
}
