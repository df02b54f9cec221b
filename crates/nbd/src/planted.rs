//! Deliberate defects, of which at most one is active at a time. Tests show that their checks catch each defect.
//!
//! Without the feature `planted` this module is private and every defect is disabled at compile time, so that no user's
//! build contains a defect.

nectary_block::planted_bugs! {
    /// A read-modify-write of a block does not lock out other writes of the block.
    RangeUnlocked = 1 => "read-modify-write without a range lock",
    /// A flush on a connection that has written nothing is answered without a flush of the device.
    FlushOfOwnWritesOnly = 2 => "flush that misses what another connection wrote",
    /// The data of a read are sent twice.
    DataTwice = 3 => "data answered twice",
    /// A reply has a different cookie than its request.
    WrongCookie = 4 => "wrong cookie",
}
