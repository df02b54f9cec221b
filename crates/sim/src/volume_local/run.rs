//! Many programs, also with a planted bug.

use nectary_host::log::{Level, write_only};
use nectary_volume::planted::{Bug, plant};

use super::program::{Counts, Program};
use crate::volume_clients::world::{Start, World, in_virtual_time};

/// The bugs that are planted.
pub const BUGS: [Bug; 7] = [
    Bug::NumbersNotTaken,
    Bug::NumberTwice,
    Bug::LocalUnleased,
    Bug::OthersUnlinked,
    Bug::HeldShown,
    Bug::ReturnOvertakes,
    Bug::LocalTwice,
];
/// The rounds of a program.
const ROUNDS: u64 = 25;

/// The results of programs.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The number of programs.
    pub programs: u64,
    /// What happened.
    pub counts: Counts,
    /// The broken promises, in words.
    pub violations: Vec<String>,
}

impl Report {
    /// Whether everything happened that is to be tested.
    pub fn has_all(&self) -> bool {
        let Counts { calls, local, looks, servers, hosts, cuts, stalls, undone } = self.counts;
        [calls, local, looks, servers, hosts, cuts, stalls, undone].iter().all(|count| *count > 0)
    }
}

/// Runs programs with these seeds; `progress` gets the report after each.
pub fn run(seeds: std::ops::Range<u64>, mut progress: impl FnMut(&Report)) -> Report {
    write_only(Level::Error);
    let mut report = Report::default();
    for seed in seeds {
        one(seed, &mut report);
        progress(&report);
    }
    report
}

fn one(seed: u64, report: &mut Report) {
    report.programs += 1;
    let start = match Start::formatted() {
        Ok(start) => start,
        Err(broken) => return report.violations.push(broken),
    };
    let broken = in_virtual_time(async {
        let world = World::new(seed, start).map_err(|error| error.to_string())?;
        let mut program = Program::begin(&world, seed).await?;
        let done = program.run(ROUNDS).await;
        let (sum, of) = (&mut report.counts, program.counts);
        sum.calls += of.calls;
        sum.local += of.local;
        sum.looks += of.looks;
        sum.servers += of.servers;
        sum.hosts += of.hosts;
        sum.cuts += of.cuts;
        sum.stalls += of.stalls;
        sum.undone += of.undone;
        done
    });
    if let Err(broken) = broken {
        report.violations.push(format!("seed {seed}: {broken}"));
    }
}

/// Runs programs with a planted bug until one of them finds it; returns what it found.
pub fn run_planted(bug: Bug, mut seeds: std::ops::Range<u64>) -> Option<String> {
    write_only(Level::Error);
    plant(Some(bug));
    let found = seeds.find_map(|seed| {
        let mut report = Report::default();
        one(seed, &mut report);
        report.violations.pop()
    });
    plant(None);
    found
}
