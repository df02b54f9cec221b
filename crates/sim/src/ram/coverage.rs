//! The scenarios that runs have to meet, counted.
//!
//! Owns: their names and how often each has to be met. A scenario is counted when what defines it happened, not when it
//! was attempted.

/// Runs for which each scenario has to be met once, on average, at least.
pub const RUNS_PER_SCENARIO: u64 = 100;

macro_rules! scenarios {
    ($($(#[doc = $doc:literal])* $name:ident: $words:literal,)*) => {
        /// A scenario.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Scenario {
            $($(#[doc = $doc])* $name,)*
        }

        impl Scenario {
            /// All of them.
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
    /// A write was executed after its client had given the connection up.
    LateWrite: "write lands after its connection was given up",
    /// A flush began while a write was under way.
    FlushBesideWrite: "flush beside a write",
    /// A client was lost when zeroes were the last that some block got.
    TrimThenCrash: "client lost after a trim",
    /// An attacher died after fencing some of the donors.
    HalfFenced: "attacher dies after fencing some donors",
    /// A donor that was left came back to a later client.
    LeftReturnsLater: "left donor returns after the client crashed",
    /// A client was paused, was cut off from every donor, and came back.
    PausedAndCut: "client paused, all donors cut, then back",
    /// A client was killed while reading the donors' records.
    KilledInSurvey: "client killed in survey",
    /// While making itself the owner.
    KilledInClaim: "client killed in claim",
    /// While storing its view.
    KilledInOpening: "client killed in opening",
    /// While making dirty stripes equal.
    KilledInResync: "client killed in resync",
    /// While a donor was filled.
    KilledInRebuild: "client killed in rebuild",
    /// A client was killed before it had attached, and so was the next one.
    KilledTwice: "client killed in recovery, twice",
    /// A change began while an overlapping one was under way.
    OverlappingWrites: "overlapping writes",
    /// A donor was lost while another was filled.
    SecondLoss: "second loss during rebuild",
    /// A donor was late, came back before it was left, and got what it had missed.
    ComesAndGoes: "donor comes and goes",
    /// A donor was restarted between two connections of one client.
    RestartBetween: "donor restarted between two connections",
    /// A donor was left and filled again.
    Rebuilt: "left donor filled again",
    /// Wrong bytes were found and repaired.
    LieRepaired: "wrong bytes repaired",
    /// An answer came when nobody waited for it any more.
    LateReply: "answer after another one was used",
    /// A client found out that another one has the device.
    Superseded: "superseded client ends",
    /// A client that could not fence every donor waited for the old lease.
    LeaseWaited: "unfenced donor's lease waited for",
    /// A read waited for a proof.
    ReadHeld: "read held for a proof",
    /// A request failed for lack of patience.
    Impatient: "patience lost",
    /// An attachment was refused because one of two donors was missing.
    CannotSettle: "one of two donors cannot settle",
    /// Dirty stripes were made equal.
    Resynchronised: "dirty stripes resynchronised",
}

/// How often each was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    counts: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage { counts: vec![0; Scenario::ALL.len()] }
    }
}

impl Coverage {
    /// It was met.
    pub fn met(&mut self, scenario: Scenario) {
        self.counts[scenario as usize] += 1;
    }

    /// It was met `count` times.
    pub fn met_times(&mut self, scenario: Scenario, count: u64) {
        self.counts[scenario as usize] += count;
    }

    /// How often it was met.
    pub fn count(&self, scenario: Scenario) -> u64 {
        self.counts[scenario as usize]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Coverage) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// The scenarios that were met too rarely in `runs` runs.
    pub fn missing(&self, runs: u64) -> Vec<&'static str> {
        let wanted = (runs / RUNS_PER_SCENARIO).max(1);
        Scenario::ALL.iter().filter(|at| self.count(**at) < wanted).map(|at| at.name()).collect()
    }
}
