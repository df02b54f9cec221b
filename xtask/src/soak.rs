//! Runs long campaigns: the random tests run with other seeds, longer, and in any number of rounds.
//!
//! Owns: the rounds of campaigns, and the log. A round is one run of a program with its own seed, derived
//! from the seed of the soak and the round's number, so any round can be repeated alone. The log has one JSON object
//! per line. A round that passed on the same commit is not run again, so a stopped soak can be continued. Shards
//! distribute a soak to several machines: shard I/K runs every K-th round, starting with round I, counted from 0. The
//! campaign `fuzz` has one round per target of `nectary-fuzz`, in a build that counts coverage.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::binaries::{self, BuiltPrograms};
use crate::libtest::TestCounts;
use crate::metadata::Workspace;
use crate::process::{self, ChildEnd};
use campaigns::{CAMPAIGNS, CampaignProgram, NO_PROFILE, SoakCampaign};

mod campaigns;

/// The longest time of a round; one that takes longer is assumed to hang.
const ROUND_LIMIT: Duration = Duration::from_secs(3600);
/// The program of `nectary-fuzz`.
const FUZZ_PROGRAM: &str = "fuzz";
/// The program of a crate's tests from the outside.
const TESTS_PROGRAM: &str = "it";
/// The number of output lines at the end of a failed round that go into the log.
const TAIL_LINES: usize = 40;

/// The default time of each fuzz target in a round; 0 skips fuzzing. *Units*: seconds.
const FUZZ_SECONDS: u64 = 600;
/// The longest time of a fuzz target in a round. It is shorter than [`ROUND_LIMIT`], because a round also has other
/// work. *Units*: seconds.
const FUZZ_SECONDS_MAX: u64 = 3000;

/// The options of a soak: the campaigns to run, and their length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoakOptions {
    seed: Option<u64>,
    rounds: u64,
    shard_index: u64,
    shard_count: u64,
    /// The names of the campaigns, or of fuzz targets, to run; all campaigns if the list is empty.
    only: Vec<String>,
    /// The time of each fuzz target in a round. *Units*: seconds.
    fuzz_seconds: u64,
    /// Whether each round is only a sample of a full round.
    sample: bool,
    log: PathBuf,
}

impl SoakOptions {
    /// Reads the arguments after `soak`.
    pub fn parse(arguments: &[String]) -> Result<SoakOptions> {
        let mut options = SoakOptions {
            seed: None,
            rounds: 10,
            shard_index: 0,
            shard_count: 1,
            only: Vec::new(),
            fuzz_seconds: FUZZ_SECONDS,
            sample: false,
            log: PathBuf::from("target/soak.jsonl"),
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            if name == "--sample" {
                options.sample = true;
                continue;
            }
            let value = rest.next().with_context(|| format!("{name} needs a value"))?;
            let number = || value.parse::<u64>().with_context(|| format!("{name} {value}: expected a number"));
            match name.as_str() {
                "--seed" => options.seed = Some(number()?),
                "--rounds" => options.rounds = number()?,
                "--fuzz-seconds" => {
                    options.fuzz_seconds = number()?;
                    if options.fuzz_seconds > FUZZ_SECONDS_MAX {
                        bail!("--fuzz-seconds {value}: at most {FUZZ_SECONDS_MAX}");
                    }
                }
                "--only" => options.only = value.split(',').map(str::to_owned).collect(),
                "--log" => options.log = PathBuf::from(value),
                "--shard" => {
                    let (index, count) = value.split_once('/').context("--shard: expected I/K, as 0/4")?;
                    let (index, count): (u64, u64) = (index.parse()?, count.parse()?);
                    if index >= count {
                        bail!("--shard {value}: I counts from 0 and is below K");
                    }
                    (options.shard_index, options.shard_count) = (index, count);
                }
                other => bail!("{other} is not understood"),
            }
        }
        let is_known = |only: &str| CAMPAIGNS.iter().any(|campaign| only == campaign.name) || only.starts_with("fuzz-");
        if let Some(only) = options.only.iter().find(|only| !is_known(only)) {
            let known: Vec<&str> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
            bail!("there is no campaign {only}; there are {}, and fuzz-TARGET", known.join(", "));
        }
        Ok(options)
    }
}

/// Runs the rounds that are not in the log; returns whether all passed.
pub fn command(options: &SoakOptions) -> Result<bool> {
    let workspace = Workspace::load()?;
    let binaries = BuiltPrograms::build(&workspace, &[])?;
    let commit = commit(&workspace.root);
    let path = workspace.root.join(&options.log);
    let done = fs::read_to_string(&path).unwrap_or_default();
    let seed = options.seed.or_else(|| last_seed(&done, &commit)).unwrap_or_else(new_seed);
    println!("== soak: seed {seed}, {} rounds, commit {commit}, log {}", options.rounds, path.display());
    let items = items(options, &binaries, &workspace)?;
    let (mut passed, mut failed, mut skipped) = (0_u64, 0_u64, 0_u64);
    let mut not_run = Vec::new();
    // A sample has its own name in the log, so that it does not count as a full round.
    let name = |item: &SoakItem| if options.sample { format!("{} (sample)", item.name) } else { item.name.clone() };
    for round in (0..options.rounds).filter(|round| round % options.shard_count == options.shard_index) {
        for item in &items {
            if is_done(&done, &name(item), seed, round, &commit) {
                skipped += 1;
                continue;
            }
            let round_seed = derive(seed, round);
            println!("== soak: {} round {round}, seed {round_seed}", item.name);
            let ended = run(item, round_seed, options, &binaries, &workspace)?;
            match RoundOutcome::of(&ended) {
                RoundOutcome::Passed => passed += 1,
                RoundOutcome::Failed => failed += 1,
                RoundOutcome::NotRun(reason) => not_run.push(format!("{} round {round}: {reason}", item.name)),
            }
            append(&path, &entry(&name(item), seed, round, round_seed, &commit, &ended))?;
        }
    }
    if !not_run.is_empty() {
        println!("NOT RUN {}\n  {}", not_run.len(), not_run.join("\n  "));
    }
    println!("soak: {passed} rounds passed, {failed} failed, {skipped} were in the log already (seed {seed})");
    Ok(failed == 0)
}

/// The outcome of a round.
enum RoundOutcome {
    Passed,
    Failed,
    /// This machine lacks something; the text is the reason.
    NotRun(String),
}

impl RoundOutcome {
    fn of(ended: &ChildEnd) -> RoundOutcome {
        if ended.success {
            return RoundOutcome::Passed;
        }
        if !ended.not_run {
            return RoundOutcome::Failed;
        }
        let reason = ended.output.lines().find_map(|line| line.strip_prefix("NOT RUN: "));
        reason.map_or(RoundOutcome::Failed, |reason| RoundOutcome::NotRun(reason.to_owned()))
    }
}

/// A campaign or one fuzz target; each of its rounds has a line in the log.
struct SoakItem {
    name: String,
    campaign: &'static SoakCampaign,
    target: Option<String>,
}

/// The items of a round. If they include fuzz targets, these are built again with coverage counters.
fn items(options: &SoakOptions, binaries: &BuiltPrograms, workspace: &Workspace) -> Result<Vec<SoakItem>> {
    let only = &options.only;
    let mut items = Vec::new();
    for campaign in CAMPAIGNS {
        if !matches!(campaign.program, CampaignProgram::Fuzz) {
            items.push(SoakItem { name: campaign.name.to_owned(), campaign, target: None });
            continue;
        }
        if options.fuzz_seconds == 0 || !only.is_empty() && !only.iter().any(|only| only.starts_with(campaign.name)) {
            continue;
        }
        binaries::build_with_coverage(workspace)?;
        let fuzz = binaries.program(FUZZ_PROGRAM).context("there is no program fuzz")?;
        let targets = process::output(binaries.command(fuzz, workspace).arg("list").envs([NO_PROFILE]))?;
        let targets = targets.lines().map(str::to_owned);
        items.extend(targets.map(|target| SoakItem { name: format!("fuzz-{target}"), campaign, target: Some(target) }));
    }
    items.retain(|item| only.is_empty() || only.iter().any(|only| *only == item.name || only == item.campaign.name));
    if items.is_empty() {
        bail!("there is no campaign {}", only.join(", "));
    }
    Ok(items)
}

fn run(
    item: &SoakItem,
    seed: u64,
    options: &SoakOptions,
    binaries: &BuiltPrograms,
    workspace: &Workspace,
) -> Result<ChildEnd> {
    let campaign = item.campaign;
    let program = |name: &str| binaries.program(name).with_context(|| format!("there is no program {name}"));
    let chosen = match campaign.program {
        CampaignProgram::Of { program: name, .. } => program(name)?,
        CampaignProgram::Fuzz => program(FUZZ_PROGRAM)?,
        CampaignProgram::Tests { package, .. } => {
            let member = workspace.packages.iter().find(|member| member.name == package);
            let tests = binaries.tests_of(member.with_context(|| format!("there is no crate {package}"))?);
            let outside = tests.into_iter().find(|test| test.name == TESTS_PROGRAM);
            outside.with_context(|| format!("campaign {}: {package} has no tests from outside", campaign.name))?
        }
    };
    let seconds = options.fuzz_seconds.to_string();
    let filled = |text: &str| {
        let text = text.replace("{seed}", &seed.to_string()).replace("{seconds}", &seconds);
        campaign
            .extents
            .iter()
            .fold(text, |text, (place, whole, sample)| text.replace(place, if options.sample { sample } else { whole }))
    };
    let mut command = binaries.command(chosen, workspace);
    if let Some(target) = &item.target {
        command.args(["soak", "--target", target]);
    }
    match campaign.program {
        CampaignProgram::Of { campaign: name, .. } => _ = command.arg(name),
        CampaignProgram::Tests { module, .. } => _ = command.arg(format!("{module}::")),
        CampaignProgram::Fuzz => {}
    }
    command.args(campaign.arguments.iter().map(|argument| filled(argument)));
    command.envs(campaign.environment.iter().map(|(name, value)| (name, filled(value))));
    let ended = process::run(&mut command, ROUND_LIMIT, process::shown)?;
    if let CampaignProgram::Tests { module, .. } = campaign.program
        && ended.success
        && TestCounts::parse(&ended.output).passed == 0
    {
        bail!("campaign {}: no test of the module {module} ran", campaign.name);
    }
    Ok(ended)
}

fn entry(campaign: &str, seed: u64, round: u64, round_seed: u64, commit: &str, ended: &ChildEnd) -> Value {
    let mut entry = json!({
        "campaign": campaign, "seed": seed, "round": round, "round_seed": round_seed, "commit": commit,
        "passed": ended.success, "seconds": (ended.taken.as_secs_f64() * 10.0).round() / 10.0,
    });
    if !ended.success {
        let lines: Vec<&str> = ended.output.lines().collect();
        entry["how"] = json!(ended.how);
        entry["tail"] = json!(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"));
    }
    entry
}

fn append(path: &Path, entry: &Value) -> Result<()> {
    let failed = || format!("cannot append to {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    let mut log = OpenOptions::new().create(true).append(true).open(path).with_context(failed)?;
    writeln!(log, "{entry}").with_context(failed)
}

fn entries(log: &str) -> impl Iterator<Item = Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok())
}

fn is_done(log: &str, campaign: &str, seed: u64, round: u64, commit: &str) -> bool {
    entries(log).any(|entry| {
        entry["campaign"] == campaign
            && entry["seed"] == seed
            && entry["round"] == round
            && entry["commit"] == commit
            && entry["passed"] == true
    })
}

/// Returns the seed of the soak to continue: the last seed in the log, if its entry has this commit.
fn last_seed(log: &str, commit: &str) -> Option<u64> {
    entries(log).last().filter(|entry| entry["commit"] == commit)?["seed"].as_u64()
}

/// Takes a new seed from the clock. It is below a million, so it is short to type.
fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| u64::from(elapsed.subsec_micros()))
}

/// Derives the seed of a round from the soak's seed with SplitMix64; it is below 1,000,000,000.
fn derive(seed: u64, round: u64) -> u64 {
    let mut z = seed.wrapping_add((round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % 1_000_000_000
}

/// The current commit, with a `+` if files differ from it; such a soak cannot be reproduced later.
fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| process::output(Command::new("git").current_dir(root).args(arguments));
    let Ok(head) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "none".to_owned() };
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_ok_and(|changes| changes.is_empty());
    format!("{}{}", head.trim(), if clean { "" } else { "+" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SoakOptions> {
        SoakOptions::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn bad_soak_arguments_are_refused() {
        let fuzz = parse("--only fuzz-store-state --fuzz-seconds 5").expect("good");
        assert_eq!((fuzz.fuzz_seconds, &fuzz.only[..]), (5, &["fuzz-store-state".to_owned()][..]));
        assert_eq!(parse("--only policies,sigkill").expect("good").only, ["policies", "sigkill"]);
        assert!(parse("--sample --rounds 1").expect("good").sample);
        let options = parse("--seed 7 --rounds 3 --shard 1/4 --only policies").expect("good");
        assert_eq!((options.seed, options.rounds), (Some(7), 3));
        assert_eq!((options.shard_index, options.shard_count), (1, 4));
        for wrong in [
            "--seed",
            "--seed x",
            "--shard 4/4",
            "--shard 0/0",
            "--shard 1",
            "--only no",
            "--fuzz-seconds 3001",
            "--what 1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_two_campaigns_share_a_name() {
        let names: std::collections::BTreeSet<&str> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
        assert_eq!(names.len(), CAMPAIGNS.len());
    }

    #[test]
    fn campaign_extents_fill_all_placeholders() {
        for campaign in CAMPAIGNS {
            let environment = campaign.environment.iter().map(|(_, value)| *value);
            let mut text = campaign.arguments.iter().copied().chain(environment).collect::<Vec<_>>().join(" ");
            for place in campaign.extents.iter().map(|extent| extent.0).chain(["{seed}", "{seconds}"]) {
                assert!(text.contains(place) || place.starts_with("{se"), "{}: {place}", campaign.name);
                text = text.replace(place, "1");
            }
            assert!(!text.contains('{'), "{}: {text}", campaign.name);
        }
    }

    #[test]
    fn unavailable_round_differs_from_failure() {
        let ended = |code: &str| {
            let script = format!("echo 'NOT RUN: no index'; exit {code}");
            process::run(Command::new("sh").args(["-c", &script]), Duration::from_secs(100), process::silent)
                .expect("starts")
        };
        assert!(matches!(RoundOutcome::of(&ended("0")), RoundOutcome::Passed));
        assert!(matches!(RoundOutcome::of(&ended("1")), RoundOutcome::Failed));
        assert!(matches!(RoundOutcome::of(&ended("77")), RoundOutcome::NotRun(reason) if reason == "no index"));
    }

    /// A round that passed on another commit is not done.
    #[test]
    fn done_round_passed_this_commit() {
        let ended = process::run(&mut Command::new("true"), Duration::from_secs(100), process::silent).expect("starts");
        let log = format!("{}\n", entry("policies", 7, 3, 1, "abc", &ended));
        assert!(is_done(&log, "policies", 7, 3, "abc"));
        assert!(!is_done(&log, "policies", 7, 4, "abc"));
        assert!(!is_done(&log, "policies", 7, 3, "abd"));
        assert_eq!(last_seed(&log, "abc"), Some(7));
        assert_eq!(last_seed(&log, "abd"), None);
        assert_ne!(derive(7, 3), derive(7, 4));
    }
}
