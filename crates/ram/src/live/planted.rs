//! Planted bugs of the live mirror, switched on one at a time, so that tests can show that their checks catch them.
//!
//! Without the feature `planted`, the check for a bug is `false` at compile time, so that no user's build contains the
//! bugs.

nectary_block::planted_bugs! {
    /// A donor continues to serve connections of an earlier owner.
    OldOwnerServed = 1 => "earlier owner served",
    /// Requests in flight when a connection is lost count as done.
    LostWriteAnswered = 2 => "write on a lost connection answered",
}
