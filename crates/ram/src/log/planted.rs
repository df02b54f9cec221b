//! Deliberate defects of the log, one at a time, by which tests show that their checks catch them.
//!
//! Those of the placement (`placement::planted`) and of the base (`crate::planted`) are lists of their own.

nectary_block::planted_bugs! {
    /// Each parity of an open group goes to the same spare.
    ParityInPlace = 1 => "parity of an open group overwritten in place",
    /// The slots of a freed group are used before the steps before its end are done.
    FreedTooEarly = 2 => "group freed while its successor is only in the client's memory",
    /// Trims and zeroes are not stored.
    TrimUnrecorded = 3 => "a zeroed block back after a scan",
    /// The parity leaves the headers out.
    HeadersOutside = 4 => "headers outside parity",
    /// A donor that is being left counts as left already.
    AcknowledgedBeforeLeft = 5 => "an acknowledgement before the left-set is durable",
    /// A parity is stored before its members are.
    ParityBeforeMembers = 6 => "parity of an open group stored before its members",
    /// Slots are written while the summary of the group before still stands.
    SummaryKept = 7 => "slots reused while the old summary stands",
    /// A group is used again while it is read.
    PinsIgnored = 8 => "slots reused while they are read",
    /// A recovering client uses what it found before it is protected.
    RecoveryUnsealed = 9 => "open groups left open by recovery",
    /// What is in memory is answered without asking whether another client has the device.
    MemoryUnproven = 10 => "memory answered without a proof",
    /// A donor that is taken in again does not get the groups that were open.
    OpenGroupsNotRefilled = 11 => "open groups not refilled",
}
