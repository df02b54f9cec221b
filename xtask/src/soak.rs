//! Runs long campaigns: the random tests run with other seeds, longer, and in any number of rounds.
//!
//! Owns: the list of campaigns, their rounds, and the log. A round is one run of a program with its own seed, derived
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

use crate::binaries::{self, Binaries};
use crate::libtest::Counts;
use crate::metadata::Workspace;
use crate::process::{self, Ended};

/// The longest time of a round; one that takes longer is assumed to hang.
const ROUND_LIMIT: Duration = Duration::from_secs(3600);
/// The program of `nectary-fuzz`.
const FUZZ_PROGRAM: &str = "fuzz";
/// The program of a crate's tests from the outside.
const TESTS_PROGRAM: &str = "it";
/// The number of output lines at the end of a failed round that go into the log.
const TAIL_LINES: usize = 40;

/// The program that a campaign runs.
enum Program {
    /// A program of the workspace that has several campaigns; its first argument is the name of one.
    Of { program: &'static str, campaign: &'static str },
    /// One module of a crate's tests.
    Tests { package: &'static str, module: &'static str },
    /// The targets of `nectary-fuzz`, one after another.
    Fuzz,
}

struct Campaign {
    name: &'static str,
    program: Program,
    /// The arguments of the program; `{seed}` stands for the round's seed, `{seconds}` for the time of a fuzz target.
    arguments: &'static [&'static str],
    /// The environment of the program; `{seed}` stands for the round's seed.
    environment: &'static [(&'static str, &'static str)],
    /// The placeholders in the arguments that set the size of a round. Each has a value for a full round and a value
    /// for a sample.
    extents: &'static [(&'static str, &'static str, &'static str)],
}

const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "policies",
        program: Program::Tests { package: "nectary-cache", module: "policies_agree_with_their_models" },
        arguments: &["--show-output"],
        environment: &[("PROPTEST_RNG_SEED", "{seed}"), ("PROPTEST_CASES", "{cases}")],
        extents: &[("{cases}", "20000", "2000")],
    },
    Campaign {
        name: "policies-outside",
        program: Program::Of { program: "research", campaign: "policies-outside" },
        arguments: &["--seed", "{seed}"],
        environment: &[],
        extents: &[],
    },
    Campaign {
        name: "store-model",
        program: Program::Of { program: "sim-campaigns", campaign: "store-model" },
        arguments: &["--seed", "{seed}", "--operations", "{operations}"],
        environment: &[],
        extents: &[("{operations}", "1000000", "200000")],
    },
    Campaign {
        name: "store-crash-states",
        program: Program::Of { program: "sim-campaigns", campaign: "store-crash-states" },
        arguments: &["--seed", "{seed}", "--workloads", "{workloads}", "--states", "{states}"],
        environment: &[],
        extents: &[("{workloads}", "200", "20"), ("{states}", "10000", "1000")],
    },
    Campaign {
        name: "store-crash-chains",
        program: Program::Of { program: "sim-campaigns", campaign: "store-crash-chains" },
        arguments: &["--seed", "{seed}", "--chains", "{chains}"],
        environment: &[],
        extents: &[("{chains}", "1000", "60")],
    },
    Campaign {
        name: "store-moments",
        program: Program::Of { program: "sim-campaigns", campaign: "store-moments" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "200", "20")],
    },
    Campaign {
        name: "store-faults",
        program: Program::Of { program: "sim-campaigns", campaign: "store-faults" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "2000", "100")],
    },
    Campaign {
        name: "store-unreadable",
        program: Program::Of { program: "sim-campaigns", campaign: "store-unreadable" },
        arguments: &["--seed", "{seed}", "--stride", "{stride}"],
        environment: &[],
        extents: &[("{stride}", "1", "64")],
    },
    Campaign {
        name: "store-concurrent",
        program: Program::Of { program: "sim-campaigns", campaign: "store-concurrent" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}", "--images", "{images}"],
        environment: &[],
        extents: &[("{runs}", "100000", "5000"), ("{images}", "10000", "1000")],
    },
    Campaign {
        name: "cache-concurrent",
        program: Program::Of { program: "sim-campaigns", campaign: "cache-concurrent" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}", "--images", "{images}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000"), ("{images}", "10000", "1000")],
    },
    Campaign {
        name: "ram-placement",
        program: Program::Tests { package: "nectary-ram", module: "placement_invariants" },
        arguments: &["--show-output"],
        environment: &[("PLACEMENT_SEED", "{seed}"), ("PLACEMENT_RUNS", "{runs}")],
        extents: &[("{runs}", "2000", "200")],
    },
    Campaign {
        name: "ram-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-simulation" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "5000")],
    },
    Campaign {
        name: "ram-donors",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "50", "2")],
    },
    Campaign {
        name: "ram-donors-parity-log",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "parity-log", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-donors-parity-cache",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "parity-cache", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-donors-adaptive",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "adaptive", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-donors-parity",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "parity", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-moves",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "mirror", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-parity",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "parity", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-parity-log",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "parity-log", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-parity-cache",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "parity-cache", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-adaptive",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "adaptive", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-parity-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-simulation" },
        arguments: &["--policy", "parity", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "2000")],
    },
    Campaign {
        name: "ram-log-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-simulation" },
        arguments: &["--policy", "parity-log", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "2000")],
    },
    Campaign {
        name: "proxy-origins",
        program: Program::Of { program: "e2e-campaigns", campaign: "proxy-origins" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "200", "10")],
    },
    Campaign {
        name: "volume-journal",
        program: Program::Of { program: "sim-campaigns", campaign: "volume-journal" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "2000", "50")],
    },
    Campaign {
        name: "volume-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "volume-simulation" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "2000")],
    },
    Campaign {
        name: "volume-crash-states",
        program: Program::Of { program: "sim-campaigns", campaign: "volume-crash-states" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}", "--least", "{distinct}"],
        environment: &[],
        extents: &[("{runs}", "200", "10"), ("{distinct}", "10000", "500")],
    },
    Campaign {
        name: "volume-maps",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-maps" },
        arguments: &["--rounds", "{rounds}", "--seconds", "{load}"],
        environment: &[],
        extents: &[("{rounds}", "100", "20"), ("{load}", "60", "5")],
    },
    Campaign {
        name: "volume-programs",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-programs" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "50", "3")],
    },
    Campaign {
        name: "volume-databases",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-databases" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "10", "1")],
    },
    Campaign {
        name: "volume-takeover",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-takeover" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "20", "3")],
    },
    Campaign {
        name: "volume-tree",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-tree" },
        arguments: &["--operations", "{operations}", "--calls", "{calls}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{operations}", "20000", "2000"), ("{calls}", "20000", "3000")],
    },
    Campaign {
        name: "volume-kills",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-kills" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "50", "3")],
    },
    Campaign {
        name: "store-spans",
        program: Program::Of { program: "sim-campaigns", campaign: "store-spans" },
        arguments: &["--seed", "{seed}"],
        environment: &[],
        extents: &[],
    },
    Campaign {
        name: "sigkill",
        program: Program::Of { program: "e2e-campaigns", campaign: "sigkill" },
        arguments: &["--rounds", "{kills}", "--seed", "{seed}", "--first-hit", "median"],
        environment: &[],
        extents: &[("{kills}", "20", "5")],
    },
    Campaign {
        name: "sigkill-lapping",
        program: Program::Of { program: "e2e-campaigns", campaign: "sigkill" },
        arguments: &["--lapping", "--planted", "--rounds", "{kills}", "--seed", "{seed}", "--first-hit", "median"],
        environment: &[],
        extents: &[("{kills}", "20", "5")],
    },
    Campaign {
        name: "disk-faults",
        program: Program::Of { program: "e2e-campaigns", campaign: "disk-faults" },
        arguments: &["--rounds", "{faults}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{faults}", "30", "3")],
    },
    Campaign {
        name: "attach-filesystems",
        program: Program::Of { program: "e2e-campaigns", campaign: "attach-filesystems" },
        arguments: &["--seconds", "{load}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{load}", "300", "20")],
    },
    Campaign {
        name: "cache-tree",
        program: Program::Of { program: "e2e-campaigns", campaign: "cache-tree" },
        arguments: &["--operations", "{operations}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{operations}", "1000000", "100000")],
    },
    Campaign {
        name: "nbd-kernel",
        program: Program::Of { program: "e2e-campaigns", campaign: "nbd-kernel" },
        arguments: &["--sessions", "{sessions}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{sessions}", "12", "3")],
    },
    Campaign {
        name: "restarts",
        program: Program::Of { program: "e2e-campaigns", campaign: "restarts" },
        arguments: &["--restarts", "{restarts}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{restarts}", "50", "10")],
    },
    Campaign {
        name: "package-clients",
        program: Program::Of { program: "e2e-campaigns", campaign: "package-clients" },
        arguments: &[],
        environment: &[],
        extents: &[],
    },
    Campaign {
        name: "fuzz",
        program: Program::Fuzz,
        arguments: &["--seed", "{seed}", "--seconds", "{seconds}"],
        environment: &[NO_PROFILE],
        extents: &[],
    },
];

/// The environment variable with which the instrumented program writes no profile, because it reads its coverage
/// itself.
const NO_PROFILE: (&str, &str) = ("LLVM_PROFILE_FILE", "/dev/null");
/// The default time of each fuzz target in a round; 0 skips fuzzing. *Units*: seconds.
const FUZZ_SECONDS: u64 = 600;
/// The longest time of a fuzz target in a round. It is shorter than [`ROUND_LIMIT`], because a round also has other
/// work. *Units*: seconds.
const FUZZ_SECONDS_MAX: u64 = 3000;

/// The options of a soak: the campaigns to run, and their length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
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

impl Options {
    /// Reads the arguments after `soak`.
    pub fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options {
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
pub fn command(options: &Options) -> Result<bool> {
    let workspace = Workspace::load()?;
    let binaries = Binaries::build(&workspace, &[])?;
    let commit = commit(&workspace.root);
    let path = workspace.root.join(&options.log);
    let done = fs::read_to_string(&path).unwrap_or_default();
    let seed = options.seed.or_else(|| last_seed(&done, &commit)).unwrap_or_else(new_seed);
    println!("== soak: seed {seed}, {} rounds, commit {commit}, log {}", options.rounds, path.display());
    let items = items(options, &binaries, &workspace)?;
    let (mut passed, mut failed, mut skipped) = (0_u64, 0_u64, 0_u64);
    let mut not_run = Vec::new();
    // A sample has its own name in the log, so that it does not count as a full round.
    let name = |item: &Item| if options.sample { format!("{} (sample)", item.name) } else { item.name.clone() };
    for round in (0..options.rounds).filter(|round| round % options.shard_count == options.shard_index) {
        for item in &items {
            if is_done(&done, &name(item), seed, round, &commit) {
                skipped += 1;
                continue;
            }
            let round_seed = derive(seed, round);
            println!("== soak: {} round {round}, seed {round_seed}", item.name);
            let ended = run(item, round_seed, options, &binaries, &workspace)?;
            match Outcome::of(&ended) {
                Outcome::Passed => passed += 1,
                Outcome::Failed => failed += 1,
                Outcome::NotRun(reason) => not_run.push(format!("{} round {round}: {reason}", item.name)),
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
enum Outcome {
    Passed,
    Failed,
    /// This machine lacks something; the text is the reason.
    NotRun(String),
}

impl Outcome {
    fn of(ended: &Ended) -> Outcome {
        if ended.success {
            return Outcome::Passed;
        }
        if !ended.not_run {
            return Outcome::Failed;
        }
        let reason = ended.output.lines().find_map(|line| line.strip_prefix("NOT RUN: "));
        reason.map_or(Outcome::Failed, |reason| Outcome::NotRun(reason.to_owned()))
    }
}

/// A campaign or one fuzz target; each of its rounds has a line in the log.
struct Item {
    name: String,
    campaign: &'static Campaign,
    target: Option<String>,
}

/// The items of a round. If they include fuzz targets, these are built again with coverage counters.
fn items(options: &Options, binaries: &Binaries, workspace: &Workspace) -> Result<Vec<Item>> {
    let only = &options.only;
    let mut items = Vec::new();
    for campaign in CAMPAIGNS {
        if !matches!(campaign.program, Program::Fuzz) {
            items.push(Item { name: campaign.name.to_owned(), campaign, target: None });
            continue;
        }
        if options.fuzz_seconds == 0 || !only.is_empty() && !only.iter().any(|only| only.starts_with(campaign.name)) {
            continue;
        }
        binaries::build_with_coverage(workspace)?;
        let fuzz = binaries.program(FUZZ_PROGRAM).context("there is no program fuzz")?;
        let targets = process::output(binaries.command(fuzz, workspace).arg("list").envs([NO_PROFILE]))?;
        let targets = targets.lines().map(str::to_owned);
        items.extend(targets.map(|target| Item { name: format!("fuzz-{target}"), campaign, target: Some(target) }));
    }
    items.retain(|item| only.is_empty() || only.iter().any(|only| *only == item.name || only == item.campaign.name));
    if items.is_empty() {
        bail!("there is no campaign {}", only.join(", "));
    }
    Ok(items)
}

fn run(item: &Item, seed: u64, options: &Options, binaries: &Binaries, workspace: &Workspace) -> Result<Ended> {
    let campaign = item.campaign;
    let program = |name: &str| binaries.program(name).with_context(|| format!("there is no program {name}"));
    let chosen = match campaign.program {
        Program::Of { program: name, .. } => program(name)?,
        Program::Fuzz => program(FUZZ_PROGRAM)?,
        Program::Tests { package, .. } => {
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
        Program::Of { campaign: name, .. } => _ = command.arg(name),
        Program::Tests { module, .. } => _ = command.arg(format!("{module}::")),
        Program::Fuzz => {}
    }
    command.args(campaign.arguments.iter().map(|argument| filled(argument)));
    command.envs(campaign.environment.iter().map(|(name, value)| (name, filled(value))));
    let ended = process::run(&mut command, ROUND_LIMIT, process::shown)?;
    if let Program::Tests { module, .. } = campaign.program
        && ended.success
        && Counts::parse(&ended.output).passed == 0
    {
        bail!("campaign {}: no test of the module {module} ran", campaign.name);
    }
    Ok(ended)
}

fn entry(campaign: &str, seed: u64, round: u64, round_seed: u64, commit: &str, ended: &Ended) -> Value {
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

    fn parse(text: &str) -> Result<Options> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() {
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
    fn what_stands_for_an_extent_is_used_and_nothing_is_left_to_fill_in() {
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
    fn what_cannot_run_here_is_told_from_what_fails() {
        let ended = |code: &str| {
            let script = format!("echo 'NOT RUN: no index'; exit {code}");
            process::run(Command::new("sh").args(["-c", &script]), Duration::from_secs(100), process::silent)
                .expect("starts")
        };
        assert!(matches!(Outcome::of(&ended("0")), Outcome::Passed));
        assert!(matches!(Outcome::of(&ended("1")), Outcome::Failed));
        assert!(matches!(Outcome::of(&ended("77")), Outcome::NotRun(reason) if reason == "no index"));
    }

    #[test]
    fn a_round_that_passed_on_this_commit_is_done_and_no_other() {
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
