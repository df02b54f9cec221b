//! The commands `nectary bench store` and `nectary bench limits` as a separate program, which builds in a fraction of
//! the time of the whole program.
//!
//! Owns: nothing but the command line. Leaves to others: everything that is measured (`nectary_bench`).

use std::error::Error;
use std::process::Command;

use nectary_bench::limits::{LimitsOptions, limits};
use nectary_bench::store::{self, BenchStoreOptions, ProcessCommands, StorePlan, StorePreset};
use nectary_bench::{guardian, worker};

const USAGE: &str = "store-contenders limits FOLDER | table4 | table5 | bare; with the last three: [--quick] [--ablations] [--scale F] \
                     [--trace F] [--pairs N] [--size GB] [--only NAME] [--speed N] [--embedded N] [--folder DIR] [--foyer PROGRAM] \
                     [--json FILE]";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("worker") => Ok(worker::serve(std::io::stdin().lock(), std::io::stdout().lock())?),
        Some("guardian") => {
            guardian::serve(std::io::stdin().lock());
            Ok(())
        }
        Some("limits") if arguments.len() == 2 => measure_limits(&arguments[1]),
        Some("table4") => run(StorePreset::Table4, &arguments[1..]),
        Some("table5") => run(StorePreset::Table5, &arguments[1..]),
        Some("bare") => run(StorePreset::Bare, &arguments[1..]),
        _ => Err(USAGE.into()),
    }
}

fn measure_limits(folder: &str) -> Result<(), Box<dyn Error>> {
    let options = LimitsOptions { folder: folder.into(), bytes: 1 << 30, object_bytes: 7000, pairs: 10, seconds: 2 };
    let mut guardian = Command::new(std::env::current_exe()?);
    guardian.arg("guardian");
    print!("{}", limits(&options, guardian, &mut |done, of| eprintln!("{done} of {of}"))?.text());
    Ok(())
}

fn run(preset: StorePreset, arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let mut options = BenchStoreOptions::new(preset);
    let mut json = None;
    let mut left = arguments.iter();
    while let Some(name) = left.next() {
        match name.as_str() {
            "--quick" => options.quick = true,
            "--ablations" => options.ablations = true,
            _ => {}
        }
        if matches!(name.as_str(), "--quick" | "--ablations") {
            continue;
        }
        let value = left.next().ok_or(USAGE)?;
        match name.as_str() {
            "--scale" => options.scale = Some(value.parse()?),
            "--seeds" => options.seeds = Some(value.parse()?),
            "--queue-depth" => options.queue_depth = value.parse()?,
            "--dirty" => options.dirty_percent = Some(value.parse()?),
            "--pairs" => options.pairs = Some(value.parse()?),
            "--size" => options.sizes.push(value.parse()?),
            "--trace" => options.trace = Some(value.parse()?),
            "--speed" => options.speed = Some(value.parse()?),
            "--embedded" => options.embedded.push(value.parse()?),
            "--folder" => options.folder = Some(value.into()),
            "--foyer" => options.foyer = Some(value.into()),
            "--only" => options.only.push(value.clone()),
            "--json" => json = Some(value.clone()),
            _ => return Err(USAGE.into()),
        }
    }
    let program = std::env::current_exe()?;
    let again = |process: &'static str| -> Box<dyn Fn() -> Command + Sync> {
        let program = program.clone();
        Box::new(move || {
            let mut command = Command::new(&program);
            command.arg(process);
            command
        })
    };
    let programs = ProcessCommands { worker: again("worker"), guardian: again("guardian") };
    let began = std::time::Instant::now();
    let report = store::run(&StorePlan::new(options)?, &programs, &mut |step| {
        eprintln!("{:6.1} s  {} of {}  {}", began.elapsed().as_secs_f64(), step.done, step.of, step.what);
    })?;
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    print!("{}", report.text());
    Ok(())
}
