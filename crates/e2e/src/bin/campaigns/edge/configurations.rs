//! A hundred configurations, and changes under load: `e2e-campaigns configurations`.
//!
//! Each feature of the configuration file is seen by requests to a proxy that has it, and missed at one that has not.
//! Each wrong file is refused with its exact message. Then a proxy is reloaded, restarted and upgraded under `wrk` and
//! `h2load`. Prints the counts. The exit code is 0 only if everything was as expected, and there were at least 30 good
//! files and 70 wrong ones; 77 if `wrk` is missing for the changes.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nectary_e2e::configurations::changes::{self, ProxyChange};
use nectary_e2e::configurations::{TrialEnvironment, features, wrong};
use nectary_e2e::guard::find_program;
use nectary_e2e::report::not_run;

use crate::rounds::{NotRunPolicy, ProblemCounter, first_line};

/// The fewest files that count.
const GOOD_MIN: usize = 30;
const WRONG_MIN: usize = 70;

/// Tries a hundred configurations of the proxy, and changes of it under load.
#[derive(Args)]
pub struct ConfigurationsArguments {
    /// The number of reloads, of restarts and of upgrades under load; 0 for none
    #[arg(long, default_value_t = 10)]
    changes: u64,
    /// The seed of the objects under load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this feature, and nothing else
    #[arg(long, value_name = "NAME")]
    feature: Option<String>,
}

/// Runs the campaign.
pub fn campaign(arguments: &ConfigurationsArguments) -> Result<ExitCode> {
    let mut problems = ProblemCounter::default();
    let is_missing = find_program("curl").is_none();
    if is_missing {
        problems.add("curl is not installed: features of TLS cannot be seen");
    }
    let surroundings = TrialEnvironment::new()?;
    let good = see_features(&surroundings, arguments.feature.as_deref(), &mut problems);
    if arguments.feature.is_some() {
        return Ok(problems.exit());
    }
    let refused = refuse_wrong_files(&surroundings, &mut problems)?;
    println!("configurations: {good} good files with their effect, {refused} wrong ones with their message");
    if good < GOOD_MIN || refused < WRONG_MIN {
        problems.add(format!("expected at least {GOOD_MIN} and {WRONG_MIN}"));
    }
    if arguments.changes > 0 {
        if find_program("wrk").is_none() {
            let code = NotRunPolicy::IsAllowed.exit("configurations", "wrk is not installed, which changes need");
            return Ok(if problems.count() > 0 { problems.exit() } else { code });
        }
        change(arguments, &mut problems);
    }
    println!("configurations: {} problems in all", problems.count());
    Ok(problems.exit())
}

/// Sees features, all or one. *Returns*: how many were seen with their files, and missed without.
fn see_features(surroundings: &TrialEnvironment, only: Option<&str>, problems: &mut ProblemCounter) -> usize {
    let (mut count, mut good) = (0, 0);
    for feature in features().filter(|feature| only.is_none_or(|only| only == feature.name)) {
        count += 1;
        let wrong = surroundings.check(feature);
        println!("{}: {}", feature.name, if wrong.is_empty() { "seen" } else { "WRONG" });
        good += usize::from(wrong.is_empty());
        problems.extend(wrong);
    }
    if count == 0 {
        problems.add(format!("there is no feature {}", only.unwrap_or_default()));
    }
    good
}

/// Lets the program check each wrong file. *Returns*: how many were refused with their message.
fn refuse_wrong_files(surroundings: &TrialEnvironment, problems: &mut ProblemCounter) -> Result<usize> {
    let (cases, folder) = (wrong::cases()?, surroundings.folder());
    wrong::check_the_checker(&cases, folder)?;
    let mut good = 0;
    for case in &cases {
        match wrong::difference(case, folder)? {
            None => good += 1,
            Some(difference) => problems.add(difference),
        }
    }
    Ok(good)
}

/// Reloads, restarts and upgrades a proxy under load.
fn change(arguments: &ConfigurationsArguments, problems: &mut ProblemCounter) {
    if find_program("h2load").is_none() {
        not_run("configurations: h2load is not installed (Debian package nghttp2-client): only wrk makes the load");
    }
    for kind in ProxyChange::ALL {
        match changes::run(kind, arguments.changes, arguments.seed) {
            Ok(counts) => {
                println!("{}: {counts}", kind.plural());
                problems.extend(counts.problems().iter().map(|problem| format!("{}: {problem}", kind.plural())));
            }
            Err(error) => problems.add(format!("{}: {}", kind.plural(), first_line(&error))),
        }
    }
}
