//! The scenarios that runs have to reach, with counts.
//!
//! Owns: their names and how often each has to be reached. A scenario counts when it has happened, not when it was
//! attempted.

use nectary_ram::format::RedundancyCode;

/// Each scenario has to be reached at least once per this many runs, on average.
pub const RUNS_PER_SCENARIO: u64 = 100;

macro_rules! scenarios {
    ($($(#[doc = $doc:literal])* $name:ident: $words:literal,)*) => {
        /// A scenario.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Scenario {
            $($(#[doc = $doc])* $name,)*
        }

        impl Scenario {
            /// All scenarios.
            pub const ALL: &[Scenario] = &[$(Scenario::$name,)*];

            /// The scenario's name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Scenario::$name => $words,)*
                }
            }
        }
    };
}

scenarios! {
    /// A write was executed after its client had abandoned the connection.
    LateWrite: "write lands after its connection was given up",
    /// A flush began while a write was in progress.
    FlushBesideWrite: "flush beside a write",
    /// A client was lost when the last change of some block had written zeroes.
    TrimThenCrash: "client lost after a trim",
    /// An attaching client died after it had fenced some of the donors.
    HalfFenced: "attacher dies after fencing some donors",
    /// A donor that one client had left returned to a later client.
    LeftReturnsLater: "left donor returns after the client crashed",
    /// A client was paused, was cut off from every donor, and resumed.
    PausedAndCut: "client paused, all donors cut, then back",
    /// A client was killed while reading the donors' records.
    KilledInSurvey: "client killed in survey",
    /// A client was killed while it made itself the owner of the donors.
    KilledInClaim: "client killed in claim",
    /// A client was killed while storing its view.
    KilledInOpening: "client killed in opening",
    /// A client was killed while making dirty stripes equal.
    KilledInResync: "client killed in resync",
    /// A client was killed while a donor was refilled.
    KilledInRebuild: "client killed in rebuild",
    /// Two clients in succession were killed before they had attached.
    KilledTwice: "client killed in recovery, twice",
    /// A change began while an overlapping one was in progress.
    OverlappingWrites: "overlapping writes",
    /// A donor was lost while another was refilled.
    SecondLoss: "second loss during rebuild",
    /// A late donor answered again while its client still trusted it, and changes without an answer were repeated.
    ComesAndGoes: "donor comes and goes",
    /// A donor was restarted between two connections of one client.
    RestartBetween: "donor restarted between two connections",
    /// The client left a donor, and filled it again later.
    Rebuilt: "left donor filled again",
    /// Wrong bytes were found and repaired.
    LieRepaired: "wrong bytes repaired",
    /// Another donor with the same memory took the place of one.
    Replaced: "another donor took the place of one",
    /// All copies were compared.
    Scrubbed: "all copies compared by the scrub",
    /// A wrong copy was found and repaired by the scrub.
    ScrubRepaired: "wrong copy repaired by the scrub",
    /// An answer arrived after it was no longer needed.
    LateReply: "answer after another one was used",
    /// A client detected that another client owns the device.
    Superseded: "superseded client ends",
    /// A client that could not fence every donor waited for the old lease.
    LeaseWaited: "unfenced donor's lease waited for",
    /// A read waited for a proof.
    ReadHeld: "read held for a proof",
    /// A request failed because its patience ended.
    Impatient: "patience lost",
    /// An attachment was refused because one of two donors was missing.
    CannotSettle: "one of two donors cannot settle",
    /// Dirty stripes were made equal.
    Resynchronised: "dirty stripes resynchronised",
    /// With parity: a read was answered from the other members.
    Reconstructed: "read answered from the other members",
    /// With parity: what a missing donor had of an unfinished stripe was lost.
    Lost: "block of a missing donor lost in an unfinished stripe",
    /// With parity: a read of such a block failed.
    LostRead: "read of a lost block failed",
}

impl Scenario {
    /// Whether a device with this redundancy code can reach the scenario.
    pub fn is_of(self, code: RedundancyCode) -> bool {
        match self {
            Scenario::Reconstructed | Scenario::Lost | Scenario::LostRead => code == RedundancyCode::Parity,
            Scenario::CannotSettle => code == RedundancyCode::Mirror,
            _ => true,
        }
    }
}

/// How often each scenario was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamCoverage {
    counts: Vec<u64>,
}

impl Default for RamCoverage {
    fn default() -> RamCoverage {
        RamCoverage { counts: vec![0; Scenario::ALL.len()] }
    }
}

impl RamCoverage {
    /// Counts a scenario.
    pub fn met(&mut self, scenario: Scenario) {
        self.counts[scenario as usize] += 1;
    }

    /// Counts a scenario `count` times.
    pub fn met_times(&mut self, scenario: Scenario, count: u64) {
        self.counts[scenario as usize] += count;
    }

    /// How often a scenario was reached.
    pub fn count(&self, scenario: Scenario) -> u64 {
        self.counts[scenario as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &RamCoverage) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// The scenarios that were reached too rarely in `runs` runs.
    pub fn missing(&self, runs: u64, code: RedundancyCode) -> Vec<&'static str> {
        let wanted = (runs / RUNS_PER_SCENARIO).max(1);
        let is_missing = |at: &&Scenario| at.is_of(code) && self.count(**at) < wanted;
        Scenario::ALL.iter().filter(is_missing).map(|at| at.name()).collect()
    }
}
