//! Runs SIGKILL rounds under load: `e2e-campaigns sigkill --rounds 200 --seed 7 --shard 0/2 --log sigkill.jsonl`.
//!
//! Prints one line per round and the sums; appends one line of JSON per round to the log. Rounds that the log already
//! has for this seed are not run again. The exit code is 0 only if the counts of missing, wrong and lost objects are 0,
//! there were enough demanded keys, purges and laps, every purge held, and the first hit came within a second of exec
//! in every round (with `--first-hit median`, in the median of the rounds).

use anyhow::{Result, bail};
use clap::Args;
use nectary_e2e::report::{seed_or_new, write_json_line};
use nectary_e2e::sigkill::{self, InTime, LAPPING, ROOMY, RoundReport, SigkillCampaign};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::rounds::{ProblemCounter, shard};

/// Kills a loaded proxy again and again; everything written must be there, everything purged must not.
#[derive(Args)]
pub struct SigkillArguments {
    /// Rounds of all shards together.
    #[arg(long, default_value_t = 15)]
    rounds: u64,
    /// Chooses the workload; a new one is drawn and printed without it.
    #[arg(long)]
    seed: Option<u64>,
    /// Run every n-th round only, from the i-th on.
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    shard: String,
    /// Append one line of JSON a round to this file, and skip the rounds that it has.
    #[arg(long)]
    log: Option<PathBuf>,
    /// A store of 24 MiB that laps between kills, 48 clients, and purges by key, by tag, by prefix and of everything.
    #[arg(long)]
    lapping: bool,
    /// Before the rounds, plant each bug in a separate round; the run fails for one that is not reported correctly.
    #[arg(long)]
    planted: bool,
    /// Which first hits have to come within a second: `every` one, or, where other work runs beside, the `median`.
    #[arg(long, value_name = "WHICH", value_parser = in_time, default_value = "every")]
    first_hit: InTime,
    /// Further arguments of the proxy.
    #[arg(last = true)]
    proxy: Vec<String>,
}

/// Runs the campaign.
pub fn campaign(arguments: SigkillArguments) -> Result<ExitCode> {
    let seed = seed_or_new(arguments.seed);
    let load = if arguments.lapping { &LAPPING } else { &ROOMY };
    let (shard, shards) = shard(&arguments.shard)?;
    let done = arguments.log.as_deref().map_or_else(|| Ok(Vec::new()), |log| rounds_done(log, seed))?;
    let planted_good = !arguments.planted || sigkill::run_planted(load, seed)?;
    let mut campaign = SigkillCampaign::new(load, seed, arguments.rounds);
    campaign.rounds.retain(|round| round % shards == shard && !done.contains(round));
    campaign.arguments = arguments.proxy;
    println!(
        "sigkill: {} rounds, seed {seed}, shard {shard}/{shards}, {} done before",
        campaign.rounds.len(),
        done.len()
    );
    let summary = sigkill::run(&campaign, |report| {
        println!("{}", describe(report));
        match &arguments.log {
            Some(log) => write_json_line(log, &to_json(report, seed)),
            None => Ok(()),
        }
    })?;
    println!("{}", sigkill::describe(&summary));
    let mut problems = ProblemCounter::default();
    problems.extend(summary.problems(arguments.first_hit));
    Ok(if planted_good { problems.exit() } else { ExitCode::FAILURE })
}

fn in_time(text: &str) -> Result<InTime> {
    match text {
        "every" => Ok(InTime::Every),
        "median" => Ok(InTime::Median),
        _ => bail!("it is every or median"),
    }
}

fn rounds_done(log: &Path, seed: u64) -> Result<Vec<u64>> {
    if !log.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(log)?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(lines.filter(|line| line["seed"] == seed).filter_map(|line| line["round"].as_u64()).collect())
}

fn describe(report: &RoundReport) -> String {
    let tally = &report.tally;
    let mut text = format!(
        "round {:3}: {} requests, {} hits, {} keys, written {} of {}, {:.1} laps, purges {:?}; demanded {}, missing {}, wrong {}, \
         lost alive {}, cut short {}, purged {}, first hit {}",
        report.round,
        tally.requests,
        tally.hits,
        report.keys,
        report.written,
        report.last,
        report.laps,
        tally.purges,
        tally.demanded,
        tally.missing,
        tally.wrong,
        tally.lost_alive,
        tally.cut_short,
        tally.forbidden,
        report.first_hit.map_or_else(|| "-".to_owned(), |time| format!("{} ms", time.as_millis())),
    );
    for complaint in &tally.complaints {
        text.push_str(&format!("\n    {complaint}"));
    }
    text
}

fn to_json(report: &RoundReport, seed: u64) -> Value {
    let tally = &report.tally;
    json!({
        "test": "sigkill", "seed": seed, "round": report.round, "requests": tally.requests, "hits": tally.hits,
        "keys": report.keys, "written": report.written, "last": report.last, "demanded": tally.demanded,
        "missing": tally.missing, "wrong": tally.wrong, "lost_alive": tally.lost_alive, "cut_short": tally.cut_short, "forbidden": tally.forbidden,
        "purges": tally.purges, "laps": report.laps, "replaced": tally.replaced,
        "first_hit_ms": report.first_hit.map(|time| time.as_millis() as u64),
    })
}
