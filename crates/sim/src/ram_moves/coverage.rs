//! What runs have to reach, with counts.

macro_rules! scenarios {
    ($($(#[doc = $doc:literal])* $name:ident: $words:literal,)*) => {
        /// A scenario.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Scenario {
            $($(#[doc = $doc])* $name,)*
        }

        impl Scenario {
            /// All scenarios.
            pub const ALL: &[Scenario] = &[$(Scenario::$name,)*];

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Scenario::$name => $words,)*
                }
            }
        }
    };
}

scenarios! {
    /// A donor was to be replaced by a user.
    Replace: "replace",
    /// A donor said that it leaves.
    Drain: "drain, or the SIGTERM of a donor",
    /// A donor was killed, and a spare was there.
    Sparing: "a spare for a lost donor",
    /// The device was detached and grew.
    Growth: "growth",
    /// Another client took the device over.
    TakeOver: "take-over",
    /// A donor was killed.
    Killed: "fault: a donor killed",
    /// A donor was killed, and was there again with empty memory.
    Restarted: "fault: a donor started again",
    /// A donor was stopped for a while.
    Stopped: "fault: a donor stopped",
    /// A donor was cut off for a while.
    Cut: "fault: a donor cut off",
    /// The client was killed.
    ClientKilled: "fault: the client killed",
    /// The client was stopped for a while.
    ClientStopped: "fault: the client stopped",
    /// The connection to the donor that was copied broke.
    Broken: "connections broken while copying",
    /// While the other donor was prepared.
    InConnecting: "fault while connecting",
    /// While parts were copied.
    InCopying: "fault while copying",
    /// In the last pause before the switch.
    InPause: "fault in the last pause",
    /// While the others were told.
    InSettling: "fault while the others are told",
    /// While a spare was filled.
    InFilling: "fault while a spare is filled",
    /// While the former donor was emptied.
    InEmptying: "fault while the former donor is emptied",
    /// Outside a move.
    InNoMove: "fault outside a move",
    /// Another donor took a place.
    Switched: "another donor took the place",
    /// A move was done.
    Moved: "moves done",
    /// A spare was filled.
    Spared: "spares filled",
    /// A donor had its place again.
    Reverted: "moves reverted",
    /// A move ended because another donor was lost.
    OtherLost: "moves ended for a lost donor",
    /// The other donor was lost right after it had taken the place.
    TakerLost: "other donor lost after the switch",
    /// A spare could not be filled.
    SpareGivenUp: "spares given up",
    /// A switch of a lost client was finished.
    Finished: "switches of lost clients finished",
    /// The device grew.
    Grown: "devices grown",
    /// A client attached after another one was lost.
    Attached: "attached after the loss of a client",
}

/// How often each scenario was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamMovesCoverage {
    counts: Vec<u64>,
}

impl Default for RamMovesCoverage {
    fn default() -> RamMovesCoverage {
        RamMovesCoverage { counts: vec![0; Scenario::ALL.len()] }
    }
}

impl RamMovesCoverage {
    /// Counts a scenario.
    pub fn met(&mut self, scenario: Scenario) {
        self.counts[scenario as usize] += 1;
    }

    /// How often a scenario was reached.
    pub fn count(&self, scenario: Scenario) -> u64 {
        self.counts[scenario as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &RamMovesCoverage) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// The scenarios that were reached in fewer than one of a thousand runs.
    pub fn missing(&self, runs: u64) -> Vec<&'static str> {
        let wanted = RamMovesCoverage::wanted(runs);
        Scenario::ALL.iter().filter(|at| self.count(**at) < wanted).map(|at| at.name()).collect()
    }

    /// How often each scenario has to be reached.
    pub fn wanted(runs: u64) -> u64 {
        (runs / 1000).max(1)
    }
}
