//! Deliberate defects of the live mirror, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` every question is answered `false` at compile time, so that no user's build has them.

nectary_block::planted_bugs! {
    /// A donor goes on to serve connections of an earlier owner.
    OldOwnerServed = 1 => "earlier owner served",
    /// What was on its way when a connection was lost counts as written.
    LostWriteAnswered = 2 => "write on a lost connection answered",
}
