//! Compares foyer with itself: it measures the chosen settings twice, and every alternative to them.
//!
//! `cargo run --release -p nectary-foyer --example settings -- FOLDER [--pairs N] [--trace F] [--seed N] [--embedded N]
//! [--only NAME]... [--json FILE]`, after `cargo build --release -p nectary-foyer`
//!
//! Owns: a run of `bench store --disk bare` with these contenders. By default its requests are not those of the
//! comparison with Nectary: the seed and the number of objects per page differ. Leaves to others: the measurement
//! (`nectary_bench`).

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

use nectary_bench::contender::{ContenderKind, FoyerSettings, FoyerWrites};
use nectary_bench::statistics::paired_ratio;
use nectary_bench::store::{BenchStoreOptions, ProcessCommands, StoreLane, StorePlan, StorePreset, run};

const USAGE: &str = "settings FOLDER [--pairs N] [--trace F] [--seed N] [--embedded N] [--only NAME]... [--json FILE]";
const SEED: u64 = 2;
const EMBEDDED: u64 = 3;
/// The share of the trace whose objects fill the disk of 4 GB once.
const TRACE_SHARE: f64 = 0.3333;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    // An example is in a subdirectory of the directory that has the program.
    let program = std::env::current_exe()?.with_file_name("../nectary-foyer");
    let mut options = BenchStoreOptions {
        folder: Some(PathBuf::from(arguments.next().ok_or(USAGE)?)),
        foyer: Some(program.clone()),
        seed: SEED,
        trace: Some(TRACE_SHARE),
        ..BenchStoreOptions::new(StorePreset::Bare)
    };
    let (mut only, mut json) = (Vec::new(), None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--pairs" => options.pairs = Some(value.parse()?),
            "--trace" => options.trace = Some(value.parse()?),
            "--seed" => options.seed = value.parse()?,
            "--embedded" => options.embedded = vec![value.parse()?],
            "--json" => json = Some(value),
            "--only" => only.push(value),
            _ => return Err(USAGE.into()),
        }
    }
    if options.embedded.is_empty() {
        options.embedded.push(EMBEDDED);
    }
    let mut plan = StorePlan::new(options)?;
    plan.groups[0].lanes = lanes(plan.memory_bytes, &only);
    let again = |process: &'static str| -> Box<dyn Fn() -> Command + Sync> {
        let program = program.clone();
        Box::new(move || {
            let mut command = Command::new(&program);
            command.arg(process);
            command
        })
    };
    let programs = ProcessCommands { worker: again("worker"), guardian: again("guardian") };
    let report = run(&plan, &programs, &mut |step| eprintln!("{} of {}  {}", step.done, step.of, step.what))?;
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    let times = |row: &serde_json::Value| -> Vec<f64> {
        let pieces = row["pieces"].as_array().into_iter().flatten();
        pieces.filter_map(|piece| piece["run_s"].as_f64()).collect()
    };
    let chosen = report.rows.first().map(times).unwrap_or_default();
    println!("{:32} {:>9} {:>25} {:>7}", "settings", "seconds", "chosen over it, in time", "hits");
    for row in &report.rows {
        let ratio = paired_ratio(&chosen, &times(row));
        let name = row["contender"].as_str().unwrap_or_default();
        let spread = format!("{:.2} ({:.2} to {:.2})", ratio.value, ratio.low, ratio.high);
        let seconds: f64 = times(row).iter().sum();
        println!("{name:32} {seconds:9.2} {spread:>25} {:7.4}", row["hit_rate"].as_f64().unwrap_or(f64::NAN));
    }
    Ok(())
}

/// The contenders: the chosen settings twice, then the alternatives.
fn lanes(memory_bytes: u64, only: &[String]) -> Vec<StoreLane> {
    let insertion = FoyerSettings { writes: FoyerWrites::Insertion, ..FoyerSettings::default() };
    let mut all = vec![("chosen", FoyerSettings::default()), ("again", FoyerSettings::default())];
    let others = std::iter::once(("insertion", insertion)).chain(FoyerSettings::alternatives());
    all.extend(others.filter(|(name, _)| only.is_empty() || only.iter().any(|wanted| name.contains(wanted.as_str()))));
    let lane = |(name, settings): (&str, FoyerSettings)| StoreLane {
        name: format!("foyer-{name}"),
        seed_name: "",
        kind: ContenderKind::Foyer { memory_bytes, settings },
        disks: 1,
        memory: String::new(),
    };
    all.into_iter().map(lane).collect()
}
