//! `nectary bench`: the experiments.
//!
//! Owns: progress on the terminal, the JSON file, and starting this program again for the processes of a run. Leaves to
//! others: the measurements (`nectary-bench`).

mod evaluation;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use nectary_bench::ExperimentReport;
use nectary_bench::evaluation::{PROGRESS_LINES, progress_line};
use nectary_bench::limits::{LimitsOptions, limits};
use nectary_bench::process::{ProcessEnvironment, enter};
use nectary_bench::store::{self, BenchStoreOptions, EXPERIMENTS, ProcessCommands, StorePlan, StorePreset};
use nectary_bench::{dear, files, guardian, hosts, io, proxy, ram, worker};

use crate::arguments::{
    BenchArguments, BenchBareFuseArguments, BenchCacheArguments, BenchCommand, BenchDisk, BenchFileSystem,
    BenchFilesArguments, BenchInsideArguments, BenchIoArguments, BenchLimitsArguments, BenchProxyArguments,
    BenchRamArguments, BenchStoreArguments, IoMatrix, SeedFiles, SeedPrograms, SeedTable,
};
use crate::exit::{CommandFailure, FAILED, GOOD, NOT_FOUND, USAGE};
use crate::{output, progress, runtime};

/// The time between two lines of progress where there is no terminal.
const LINE_PAUSE: Duration = Duration::from_secs(60);

/// Runs an experiment, or a process of one.
pub fn run(arguments: &BenchArguments) -> Result<u8, CommandFailure> {
    let Some(command) = arguments.command.as_ref().filter(|_| !arguments.list) else {
        return output::text(&list()).map(|()| GOOD);
    };
    match command {
        BenchCommand::Store(arguments) => return run_store(arguments),
        BenchCommand::Cache(arguments) => return run_cache(arguments),
        BenchCommand::Io(arguments) => return run_io(arguments),
        BenchCommand::Limits(arguments) => return run_limits(arguments),
        BenchCommand::Files(arguments) => return run_files(arguments),
        BenchCommand::Ram(arguments) => return run_ram(arguments),
        BenchCommand::Proxy(arguments) => return run_proxy(arguments),
        BenchCommand::All(arguments) => return evaluation::run_all(arguments),
        BenchCommand::Report(arguments) => return evaluation::draw(arguments),
        BenchCommand::Compare(arguments) => return evaluation::compare_two(arguments),
        BenchCommand::Claims(arguments) => return evaluation::judge_claims(arguments),
        BenchCommand::Figures(arguments) => return evaluation::list_figures(arguments),
        BenchCommand::FilesWorker => files::serve(std::io::stdin().lock(), std::io::stdout().lock())?,
        BenchCommand::BareFuse(arguments) => serve_bare_fuse(arguments)?,
        BenchCommand::Inside(arguments) => return Err(become_inside(arguments)),
        BenchCommand::Worker => worker::serve(std::io::stdin().lock(), std::io::stdout().lock())?,
        BenchCommand::IoWorker => io::serve(std::io::stdin().lock(), std::io::stdout().lock())?,
        BenchCommand::CacheWorker => dear::serve(std::io::stdin().lock(), std::io::stdout().lock())?,
        BenchCommand::Guardian => guardian::serve(std::io::stdin().lock()),
    }
    Ok(GOOD)
}

/// Returns the list of experiments, one line for each.
fn list() -> String {
    EXPERIMENTS
        .iter()
        .chain(&dear::EXPERIMENTS)
        .chain(&io::EXPERIMENTS)
        .chain(&files::EXPERIMENTS)
        .chain(&ram::EXPERIMENTS)
        .chain(&proxy::EXPERIMENTS)
        .chain(&nectary_bench::evaluation::EXPERIMENTS)
        .map(|(command, shows, takes)| format!("{command:38} {shows} ({takes})\n"))
        .collect()
}

fn run_store(arguments: &BenchStoreArguments) -> Result<u8, CommandFailure> {
    let preset = match (arguments.seed, arguments.disk) {
        (Some(SeedTable::Table4), _) => StorePreset::Table4,
        (Some(SeedTable::Table5), _) => StorePreset::Table5,
        (None, Some(BenchDisk::Bare) | None) => StorePreset::Bare,
    };
    if let Some(path) = arguments.foyer.as_deref().filter(|path| !path.is_file()) {
        let message = format!("--foyer {}: there is no such program", path.display());
        return Err(CommandFailure::new(
            NOT_FOUND,
            message,
            "build it with `cargo build --release -p nectary-foyer`, or correct the path",
        ));
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let plan = StorePlan::new(BenchStoreOptions {
        preset,
        workload: arguments.workload.map(Into::into).unwrap_or_default(),
        log: arguments.log.clone(),
        scale: arguments.scale,
        quick: arguments.quick,
        ablations: arguments.ablations,
        seed: arguments.random_seed,
        pairs: arguments.pairs,
        only: arguments.only.clone(),
        sizes: arguments.size.clone(),
        speed: arguments.speed,
        trace: arguments.trace,
        seeds: arguments.seeds,
        queue_depth: arguments.queue_depth,
        dirty_percent: arguments.dirty,
        embedded: arguments.embedded.clone(),
        folder: arguments.folder.clone(),
        foyer: arguments.foyer.clone().or_else(|| foyer_beside(&program)),
    })?;
    let programs = programs(&program, "worker");
    let report = with_progress(|progress| store::run(&plan, &programs, progress))?;
    let places = ReportFiles { json: &arguments.json, svg: &arguments.svg, write: &arguments.write };
    publish(&places, &report)
}

fn run_cache(arguments: &BenchCacheArguments) -> Result<u8, CommandFailure> {
    let SeedPrograms::Dear = arguments.seed;
    let mut plan = dear::DearPlan::new(dear::BenchCacheOptions {
        quick: arguments.quick,
        only: arguments.only.clone(),
        blocks: arguments.blocks.clone(),
        executions: arguments.executions,
        speed: arguments.speed,
        excused: Vec::new(),
    })?;
    if arguments.write.is_some() {
        plan.options.excused = fit_to_keep(arguments.anyway)?;
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let programs = programs(&program, "cache-worker");
    let report = with_progress(|progress| dear::run(&plan, &programs, progress))?;
    let places = ReportFiles { json: &arguments.json, svg: &arguments.svg, write: &arguments.write };
    publish(&places, &report)
}

/// Refuses to keep the results of a run under conditions that make them worthless; with `anyway`, returns these
/// conditions for the page.
fn fit_to_keep(anyway: bool) -> Result<Vec<String>, CommandFailure> {
    let unfit = nectary_bench::machine::unfit(commit().as_deref(), nectary_bench::machine::load());
    match unfit.is_empty() || anyway {
        true => Ok(unfit),
        false => Err(CommandFailure::new(
            FAILED,
            format!("--write: {}", unfit.join("; ")),
            "commit all changes and wait until the machine is quiet, or add --anyway; the page then says this",
        )),
    }
}

fn run_io(arguments: &BenchIoArguments) -> Result<u8, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let (report, requests) = match arguments.matrix {
        Some(IoMatrix::Ncar) => {
            let options = arguments.ncar_options();
            if arguments.dry_run {
                return output::text(&io::ncar_dry_run(&options)?).map(|()| GOOD);
            }
            let programs = programs(&program, "io-worker");
            (with_progress(|progress| io::run_ncar(&options, &program, &programs, progress))?, None)
        }
        None => {
            let options = arguments.options();
            let guardian = process_of(&program, "guardian");
            if arguments.check_fio {
                let programs = programs(&program, "io-worker");
                (with_progress(|progress| io::check_fio(&options, &programs, progress))?, None)
            } else {
                let plan = io::SweepPlan::new(options)?;
                if arguments.dry_run {
                    return output::text(&io::dry_run(&plan)?).map(|()| GOOD);
                }
                let (report, requests) = with_progress(|progress| io::run(&plan, guardian, progress))?;
                (report, Some(requests))
            }
        }
    };
    if let (Some(path), Some(requests)) = (&arguments.timestamps, requests) {
        let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut file = std::io::BufWriter::new(file);
        let written = requests.write(&mut file).and_then(|()| file.flush());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let places = ReportFiles { json: &arguments.json, svg: &arguments.svg, write: &arguments.write };
    publish(&places, &report)
}

/// Returns the commands that start this program again, for the processes of a run.
fn programs(program: &Path, worker: &'static str) -> ProcessCommands {
    let again = |process: &'static str| -> Box<dyn Fn() -> Command + Sync> {
        let program = program.to_owned();
        Box::new(move || process_of(&program, process))
    };
    ProcessCommands { worker: again(worker), guardian: again("guardian") }
}

/// Runs a function that reports its progress: with a bar on the terminal, elsewhere a line a minute, and for `bench all`,
/// which started it, a line for each step.
fn with_progress<T>(run: impl FnOnce(&mut (dyn FnMut(&store::RunProgress) + Send)) -> T) -> T {
    if std::env::var_os(PROGRESS_LINES).is_some() {
        return run(&mut |step| {
            // If `bench all` is gone, this process is ended.
            let _ = output::text(&(progress_line(step) + "\n"));
        });
    }
    let bar = progress::steps();
    let mut said = Instant::now();
    let ended = run(&mut |step| {
        bar.set_length(step.of);
        bar.set_position(step.done);
        bar.set_message(step.what.clone());
        if bar.is_hidden() && said.elapsed() >= LINE_PAUSE {
            said = Instant::now();
            // Without a reader of the lines the run goes on.
            let _ = writeln!(std::io::stderr(), "{} of {} steps: {}", step.done, step.of, step.what);
        }
    });
    bar.finish_and_clear();
    ended
}

/// The files for a report, in addition to the terminal.
struct ReportFiles<'a> {
    json: &'a Option<PathBuf>,
    svg: &'a Option<PathBuf>,
    write: &'a Option<PathBuf>,
}

/// Writes a report's files and prints it; the exit code says whether it misses a target.
fn publish(places: &ReportFiles<'_>, report: &ExperimentReport) -> Result<u8, CommandFailure> {
    save(places.json.as_deref(), report)?;
    if let (Some(path), Some(svg)) = (places.svg, report.svg()) {
        write(path, svg)?;
    }
    if let Some(folder) = places.write {
        write_results(folder, &report.experiment, report.text(), report.svg())?;
    }
    output::text(report.text())?;
    Ok(if report.is_short() { FAILED } else { GOOD })
}

fn run_files(arguments: &BenchFilesArguments) -> Result<u8, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let places = ReportFiles { json: &arguments.json, svg: &None, write: &arguments.write };
    let folder = arguments.folder.clone().unwrap_or_else(|| PathBuf::from("."));
    let Some(seed) = arguments.seed else {
        let mut options = files::FolderOptions::new(folder);
        if !arguments.files.is_empty() {
            options.files.clone_from(&arguments.files);
        }
        options.bytes = u32::try_from(arguments.size).unwrap_or(u32::MAX);
        options.rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { options.rounds });
        options.seed = arguments.random_seed;
        let guardian = process_of(&program, "guardian");
        let report = with_progress(|progress| files::run_folder(&options, guardian, progress))?;
        return publish(&places, &report);
    };
    if let Some(option) = foreign_option(arguments, seed) {
        let message = format!("{option} is not an option of this experiment");
        return Err(CommandFailure::new(
            USAGE,
            message,
            "leave it out; `nectary bench files --help` says where it counts",
        ));
    }
    if seed == SeedFiles::Ncar {
        let plan = files::shared::SharedFilesPlan::new(files::shared::SharedFilesOptions {
            quick: arguments.quick,
            only: arguments.only.clone(),
            files: arguments.files.first().copied(),
            rounds: arguments.rounds,
            folder,
            juicefs: arguments.juicefs.clone().or_else(|| files::shared::find_juicefs(&program)),
            has_local_names: arguments.local_names,
            has_programs: arguments.programs,
            seed: arguments.random_seed,
        })?;
        let report = with_progress(|progress| files::shared::run(&plan, &program, progress))?;
        return publish(&places, &report);
    }
    let options = files::BenchFilesOptions {
        quick: arguments.quick,
        only: arguments.only.clone(),
        links: arguments.link.clone(),
        rounds: arguments.rounds,
        system: arguments.file_system.unwrap_or(BenchFileSystem::Ext4).into(),
        folder,
        seed: arguments.random_seed,
    };
    let plan = runtime()?.block_on(async { files::FilesPlan::new(options) })?;
    let report = with_progress(|progress| files::run_nrd(&plan, &program, progress))?;
    publish(&places, &report)
}

/// An option that was given and does not count under a paper's conditions.
fn foreign_option(arguments: &BenchFilesArguments, seed: SeedFiles) -> Option<&'static str> {
    let is_nrd = seed == SeedFiles::Nrd;
    let given = [
        (is_nrd && !arguments.files.is_empty(), "--files"),
        (arguments.files.len() > 1, "a second --files"),
        (is_nrd && arguments.juicefs.is_some(), "--juicefs"),
        (is_nrd && arguments.local_names, "--local-names"),
        (is_nrd && arguments.programs, "--programs"),
        (!is_nrd && !arguments.link.is_empty(), "--link"),
        (!is_nrd && arguments.file_system.is_some(), "--file-system"),
    ];
    given.into_iter().find(|given| given.0).map(|given| given.1)
}

fn run_ram(arguments: &BenchRamArguments) -> Result<u8, CommandFailure> {
    let options = ram::RamOptions {
        quick: arguments.quick,
        only: arguments.only.clone(),
        pairs: arguments.pairs,
        milliseconds: arguments.milliseconds,
        threads: arguments.threads,
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let report = with_progress(|progress| ram::run(&options, &program, progress))?;
    let places = ReportFiles { json: &arguments.json, svg: &None, write: &arguments.write };
    publish(&places, &report)
}

fn run_proxy(arguments: &BenchProxyArguments) -> Result<u8, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let plan = proxy::ProxyPlan::new(arguments.options(&program), &program)?;
    let report = with_progress(|progress| proxy::run(&plan, &program, progress))?;
    let places = ReportFiles { json: &arguments.json, svg: &None, write: &arguments.write };
    publish(&places, &report)
}

/// Serves files that are parts of a device, or files in memory.
fn serve_bare_fuse(arguments: &BenchBareFuseArguments) -> Result<(), CommandFailure> {
    let BenchBareFuseArguments { device, directory, bytes } = arguments;
    let (device, directory, bytes) = (device.clone(), directory.clone(), bytes.unwrap_or(0));
    let options = hosts::BareOptions { device, directory, bytes };
    Ok(hosts::serve(&options, std::io::stdout().lock())?)
}

/// Replaces this process by another program; returns a failure if that is not possible.
fn become_inside(arguments: &BenchInsideArguments) -> CommandFailure {
    let BenchInsideArguments { group, own_network, processor, .. } = arguments;
    let inside = ProcessEnvironment { group: group.clone(), has_own_network: *own_network, processor: *processor };
    enter(&inside, &arguments.program).into()
}

/// Writes a page of `docs/results/` and its picture, if it has one.
fn write_results(folder: &Path, experiment: &str, text: &str, svg: Option<&str>) -> Result<(), CommandFailure> {
    let picture = svg.map_or_else(String::new, |_| format!("![{experiment}]({experiment}.svg)\n\n"));
    write(&folder.join(format!("{experiment}.md")), &results_page(experiment, &picture, text))?;
    svg.map_or(Ok(()), |svg| write(&folder.join(format!("{experiment}.svg")), svg))
}

/// The commit of the current directory, marked if there are changes; `None` outside of a repository.
fn commit() -> Option<String> {
    let said = Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).trim().to_owned()).filter(|commit| !commit.is_empty())
}

/// Formats a page of `docs/results/`: the report, the command that made it, and the plots.
fn results_page(experiment: &str, picture: &str, text: &str) -> String {
    let command: Vec<String> = std::env::args().skip(1).filter(|word| !word.is_empty()).collect();
    let commit = commit().unwrap_or_default();
    format!(
        "# {experiment}\n\nWritten by `nectary {}`, version {}, commit {commit}.\n\n{picture}```\n{}```\n",
        command.join(" "),
        env!("CARGO_PKG_VERSION"),
        text
    )
}

fn run_limits(arguments: &BenchLimitsArguments) -> Result<u8, CommandFailure> {
    let options = LimitsOptions {
        folder: arguments.folder.clone(),
        bytes: arguments.size,
        object_bytes: arguments.object,
        pairs: arguments.pairs,
        seconds: arguments.seconds,
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let report = with_progress(|progress| {
        let mut step = |done, of| progress(&store::RunProgress { done, of, what: "store and fio in turn".to_owned() });
        limits(&options, process_of(&program, "guardian"), &mut step)
    })?;
    let places = ReportFiles { json: &arguments.json, svg: &None, write: &arguments.write };
    publish(&places, &report)
}

/// Returns the program that runs foyer as a contender, if it is in the directory of this program.
fn foyer_beside(program: &Path) -> Option<PathBuf> {
    Some(program.with_file_name("nectary-foyer")).filter(|path| path.is_file())
}

/// Returns the command that starts this program again as a process of a run.
fn process_of(program: &Path, process: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["bench", process]);
    command
}

fn save(path: Option<&Path>, report: &impl serde::Serialize) -> Result<(), CommandFailure> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    write(path, &text)
}

fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
