//! Planted bugs of the log, switched on one at a time, so that tests can show that their checks catch them.
//!
//! The planted bugs of the placement (`placement::planted`) and of the base (`crate::planted`) are separate lists.

nectary_block::planted_bugs! {
    /// All parities of an open group go to the same spare, so a newer one overwrites the last.
    ParityInPlace = 1 => "parity of an open group overwritten in place",
    /// The slots of a freed group are used before the steps that freed it are done.
    FreedTooEarly = 2 => "group freed while its successor is only in the client's memory",
    /// Trims and writes of zeroes are not stored.
    TrimUnrecorded = 3 => "a zeroed block back after a scan",
    /// The parity does not cover the headers.
    HeadersOutside = 4 => "headers outside parity",
    /// A donor counts as left while the donors are only being told.
    AcknowledgedBeforeLeft = 5 => "an acknowledgement before the left-set is durable",
    /// A parity of an open group is stored before the members of the parity before it are stored.
    ParityBeforeMembers = 6 => "both parities of an open group ahead of their members",
    /// Slots are written while the summary of the earlier group is still stored.
    SummaryKept = 7 => "slots reused while the old summary stands",
    /// A group is reused while it is being read.
    PinsIgnored = 8 => "slots reused while they are read",
    /// A recovering client uses the data that it found before parity protects it.
    RecoveryUnsealed = 9 => "open groups left open by recovery",
    /// A read from memory is answered without a proof that no other client has the device.
    MemoryUnproven = 10 => "memory answered without a proof",
    /// A donor that is trusted again does not get its part of groups that were open.
    OpenGroupsNotRefilled = 11 => "open groups not refilled",
    /// The scrub makes the parity fit a damaged slot.
    ScrubFromDamaged = 12 => "scrub repairs from the damaged slot",
    /// The scrub skips a group after each step.
    ScrubSkips = 13 => "scrub skips groups",
    /// Changes are acknowledged after the loss of two donors.
    LostAcknowledged = 14 => "changes acknowledged without a donor that has them",
    /// A donor is trusted before what it had of a group that was used again is erased.
    ErasureUnawaited = 15 => "donor trusted before old slots are erased",
    /// Cleaning moves a block that cannot be read as zeroes.
    LostAsZeroes = 16 => "unreadable block moved as zeroes",
    /// The summary of a full group is stored before its members.
    SealedEarly = 17 => "full group sealed before its members are stored",
}
