//! Bugs that are planted, one at a time: in the client and the server, and in the model of a mount.

use std::cell::Cell;

use nectary_volume::planted::{self, Bug as VolumeBug};

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeNamesBug {
    /// In the client or the server.
    Volume(VolumeBug),
    /// The kernel shows attributes of the answer to CREATE for some time.
    LateCreate,
    /// The kernel shows attributes of the answer to SETATTR for some time.
    LateSet,
    /// The kernel shows names of the answer to READDIRPLUS for some time.
    LateListing,
    /// The kernel shows old attributes of an inode that a rename has replaced, if it knew another one by the name.
    ReplacedShown,
    /// The kernel shows that a name is absent for some time.
    AbsentGiven,
}

impl VolumeNamesBug {
    /// All bugs.
    pub const EVERY: &'static [VolumeNamesBug] = &[
        VolumeNamesBug::Volume(VolumeBug::AbsentNameKept),
        VolumeNamesBug::AbsentGiven,
        VolumeNamesBug::ReplacedShown,
        VolumeNamesBug::Volume(VolumeBug::RepeatedInPart),
        VolumeNamesBug::Volume(VolumeBug::RepeatedInOtherOrder),
        VolumeNamesBug::Volume(VolumeBug::RepeatedTwice),
        VolumeNamesBug::Volume(VolumeBug::ShownEarly),
        VolumeNamesBug::Volume(VolumeBug::FreedWhileOpen),
        VolumeNamesBug::Volume(VolumeBug::NumberUsedTwice),
        VolumeNamesBug::Volume(VolumeBug::CircleUnchecked),
        VolumeNamesBug::Volume(VolumeBug::MovesEarly),
        VolumeNamesBug::Volume(VolumeBug::AnsweredOutOfOrder),
        VolumeNamesBug::Volume(VolumeBug::OvertakenOperation),
        VolumeNamesBug::Volume(VolumeBug::KeptPastLease),
        VolumeNamesBug::LateCreate,
        VolumeNamesBug::LateSet,
        VolumeNamesBug::LateListing,
        VolumeNamesBug::Volume(VolumeBug::ChangeUnwaited),
        VolumeNamesBug::Volume(VolumeBug::GrantKeptAfterRecall),
        VolumeNamesBug::Volume(VolumeBug::LateAnswerKept),
        VolumeNamesBug::Volume(VolumeBug::ReturnedUnforgotten),
        VolumeNamesBug::Volume(VolumeBug::RenamedNameForgotten),
        VolumeNamesBug::Volume(VolumeBug::NamesInGrace),
        VolumeNamesBug::Volume(VolumeBug::ReplacedBeforeData),
        VolumeNamesBug::Volume(VolumeBug::DependenceIgnored),
        VolumeNamesBug::Volume(VolumeBug::NumbersNotTaken),
        VolumeNamesBug::Volume(VolumeBug::NumberTwice),
        VolumeNamesBug::Volume(VolumeBug::LocalUnleased),
        VolumeNamesBug::Volume(VolumeBug::OthersUnlinked),
        VolumeNamesBug::Volume(VolumeBug::HeldShown),
        VolumeNamesBug::Volume(VolumeBug::ReturnOvertakes),
        VolumeNamesBug::Volume(VolumeBug::LocalTwice),
        VolumeNamesBug::Volume(VolumeBug::MakerUnheard),
        VolumeNamesBug::Volume(VolumeBug::MovedNameSame),
        VolumeNamesBug::Volume(VolumeBug::AheadUnsaid),
    ];

    /// The bug's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            VolumeNamesBug::Volume(bug) => bug.name(),
            VolumeNamesBug::LateCreate => "attributes of a late CREATE shown",
            VolumeNamesBug::LateSet => "attributes of a late SETATTR shown",
            VolumeNamesBug::LateListing => "names of a late READDIRPLUS shown",
            VolumeNamesBug::ReplacedShown => "attributes of a replaced inode shown",
            VolumeNamesBug::AbsentGiven => "absence of a name shown",
        }
    }
}

thread_local! {
    static PLANTED: Cell<Option<VolumeNamesBug>> = const { Cell::new(None) };
}

/// Plants one bug, or none. A bug of the client or the server affects the whole process.
pub fn plant(bug: Option<VolumeNamesBug>) {
    PLANTED.set(bug);
    planted::plant(match bug {
        Some(VolumeNamesBug::Volume(bug)) => Some(bug),
        _ => None,
    });
}

/// Whether a bug is planted in the model of a mount.
pub fn is_planted(bug: VolumeNamesBug) -> bool {
    PLANTED.get() == Some(bug)
}
