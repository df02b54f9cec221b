//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` this module is private and every question is answered `false` at compile time, so that
//! no user's build has them.

nectary_block::planted_bugs! {
    /// Reading, changing and writing a block does not keep other writes away from it.
    RangeUnlocked = 1 => "read-modify-write without a range lock",
    /// A flush on a connection that has written nothing itself is answered without flushing.
    FlushOfOwnWritesOnly = 2 => "flush that misses what another connection wrote",
    /// The data of a read are sent twice.
    DataTwice = 3 => "data answered twice",
    /// A reply carries another cookie than its request.
    WrongCookie = 4 => "wrong cookie",
}
