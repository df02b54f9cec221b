//! Deliberate defects of the live mirror, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` every question is answered `false` at compile time, so that no user's build has them.

nectary_block::planted_bugs! {
    /// A donor continues to serve connections of an earlier owner.
    OldOwnerServed = 1 => "earlier owner served",
    /// Requests in flight when a connection is lost count as written.
    LostWriteAnswered = 2 => "write on a lost connection answered",
}
