//! Bugs that are planted, one at a time: in the client and the server, and in the model of a mount.

use std::cell::Cell;

use nectary_volume::planted::{self, Bug as VolumeBug};

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
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

impl Bug {
    /// All bugs.
    pub const EVERY: &'static [Bug] = &[
        Bug::Volume(VolumeBug::AbsentNameKept),
        Bug::AbsentGiven,
        Bug::ReplacedShown,
        Bug::Volume(VolumeBug::RepeatedInPart),
        Bug::Volume(VolumeBug::RepeatedInOtherOrder),
        Bug::Volume(VolumeBug::RepeatedTwice),
        Bug::Volume(VolumeBug::ShownEarly),
        Bug::Volume(VolumeBug::FreedWhileOpen),
        Bug::Volume(VolumeBug::NumberUsedTwice),
        Bug::Volume(VolumeBug::CircleUnchecked),
        Bug::Volume(VolumeBug::MovesEarly),
        Bug::Volume(VolumeBug::AnsweredOutOfOrder),
        Bug::Volume(VolumeBug::OvertakenOperation),
        Bug::Volume(VolumeBug::KeptPastLease),
        Bug::LateCreate,
        Bug::LateSet,
        Bug::LateListing,
        Bug::Volume(VolumeBug::ChangeUnwaited),
        Bug::Volume(VolumeBug::GrantKeptAfterRecall),
        Bug::Volume(VolumeBug::LateAnswerKept),
        Bug::Volume(VolumeBug::ReturnedUnforgotten),
        Bug::Volume(VolumeBug::RenamedNameForgotten),
        Bug::Volume(VolumeBug::NamesInGrace),
        Bug::Volume(VolumeBug::ReplacedBeforeData),
        Bug::Volume(VolumeBug::DependenceIgnored),
        Bug::Volume(VolumeBug::NumbersNotTaken),
        Bug::Volume(VolumeBug::NumberTwice),
        Bug::Volume(VolumeBug::LocalUnleased),
        Bug::Volume(VolumeBug::OthersUnlinked),
        Bug::Volume(VolumeBug::HeldShown),
        Bug::Volume(VolumeBug::ReturnOvertakes),
        Bug::Volume(VolumeBug::LocalTwice),
        Bug::Volume(VolumeBug::MakerUnheard),
    ];

    /// The bug's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Bug::Volume(bug) => bug.name(),
            Bug::LateCreate => "attributes of a late CREATE shown",
            Bug::LateSet => "attributes of a late SETATTR shown",
            Bug::LateListing => "names of a late READDIRPLUS shown",
            Bug::ReplacedShown => "attributes of a replaced inode shown",
            Bug::AbsentGiven => "absence of a name shown",
        }
    }
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants one bug, or none. A bug of the client or the server affects the whole process.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
    planted::plant(match bug {
        Some(Bug::Volume(bug)) => Some(bug),
        _ => None,
    });
}

/// Whether a bug is planted in the model of a mount.
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
