//! `nectary cache simulate`: policies over traces.
//!
//! Owns: the command: which runs are made, and whether a trace is held in memory or read in a stream. Leaves to others:
//! the simulation (`nectary-trace`), and the form of the output (`simulated`).

use std::path::Path;

use nectary_trace::formats::{self, BLOCK_BYTES, ReadOptions};
use nectary_trace::simulate::counting::TraceExtent;
use nectary_trace::simulate::sizes::{CacheSize, CapacityUnit, TraceShape};
use nectary_trace::simulate::stream::{StreamOptions, StreamRun, StreamedResults, stream, survey};
use nectary_trace::simulate::svg::{SvgOptions, svg};
use nectary_trace::simulate::{
    CountingWindows, LoadOptions, REFERENCES_MAX, SimulationRow, SimulationRun, TraceOutline, TraceWorkload, policies,
    run_all, sizes,
};
use nectary_trace::{Error, Result};

use super::simulated::SimulationResults;
use crate::arguments::SimulateArguments;
use crate::exit::{CommandFailure, GOOD};
use crate::{output, progress};

/// The policies that look at sizes.
const OF_SIZES: [&str; 2] = ["gdsf", "lhd"];

/// Runs the command.
pub fn run(arguments: &SimulateArguments) -> std::result::Result<u8, CommandFailure> {
    let names = policy_names(&arguments.policy)?;
    let sizes = sizes::parse_list(&arguments.size).map_err(|error| Error::Usage(format!("--size: {error}")))?;
    let plan = SimulationPlan { arguments, names, sizes };
    if arguments.stream {
        plan.check_stream()?;
    }
    let traces = plan.load()?;
    let (outlines, rows) = plan.simulate(&traces)?;
    let results = SimulationResults { outlines: &outlines, rows: &rows, arguments };
    if arguments.json {
        output::json(&results.json())?;
    } else if arguments.csv {
        output::text(&results.csv())?;
    } else {
        output::text(&results.text())?;
    }
    // The picture is written after the table, so that the table is printed even if the picture cannot be written.
    if let Some(path) = &arguments.svg {
        let picture = svg(&outlines, &rows, SvgOptions { is_log: arguments.log, is_ratio: arguments.ratio });
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()) {
            return Err(Error::Absent { path: folder.to_owned() }.into());
        }
        std::fs::write(path, picture).map_err(|error| Error::io(path, error))?;
    }
    Ok(GOOD)
}

/// Returns the requested policies, each once, in the order in which every table has them.
fn policy_names(asked: &[String]) -> Result<Vec<&'static str>> {
    let known = policies::names();
    let mut names = Vec::new();
    for asked in asked.iter().map(|asked| asked.trim()) {
        if asked == "all" {
            names.extend(policies::all());
        } else if let Some(name) = known.iter().find(|name| **name == asked) {
            names.push(name);
        } else {
            let known = known.join(", ");
            return Err(Error::Usage(format!("--policy: no policy is called \"{asked}\"; there are: {known}")));
        }
    }
    names.sort_by_key(|name| policies::order(name));
    names.dedup();
    Ok(names)
}

/// A trace to simulate.
enum TraceInput<'a> {
    /// All its references.
    Held(Box<TraceWorkload>),
    /// The file of a trace that is read in a stream.
    Streamed(&'a Path),
}

/// What is to be simulated.
struct SimulationPlan<'a> {
    arguments: &'a SimulateArguments,
    names: Vec<&'static str>,
    sizes: Vec<CacheSize>,
}

impl<'a> SimulationPlan<'a> {
    /// Refuses what a stream cannot do.
    fn check_stream(&self) -> Result<()> {
        let refused = |what: &str| {
            Error::Usage(format!("{what} needs the whole trace in memory: leave out --stream, or take --limit N"))
        };
        if self.arguments.mix {
            return Err(refused("--mix"));
        }
        if self.arguments.explain {
            return Err(refused("--explain"));
        }
        if self.names == [policies::MIN] {
            return Err(refused("min"));
        }
        let is_once = self.arguments.traces.iter().any(|path| path == Path::new("-"));
        if is_once && self.has_percent() {
            let what = "percent need the length of the trace, and a pipe is read once: give --size, --warm-up and \
                        --window as numbers, bytes or times";
            return Err(Error::Usage(what.to_owned()));
        }
        Ok(())
    }

    /// Whether something depends on the length of the trace.
    fn has_percent(&self) -> bool {
        let is_percent = |extent: &Option<TraceExtent>| matches!(extent, Some(TraceExtent::Percent(_)));
        self.sizes.iter().any(|size| matches!(size, CacheSize::Percent(_)))
            || is_percent(&self.arguments.warm_up)
            || is_percent(&self.arguments.window)
    }

    /// Returns the policies for a trace. For objects with sizes, `all` has those that look at sizes, too.
    fn names_for(&self, has_sizes: bool) -> Vec<&'static str> {
        let mut names = self.names.clone();
        if has_sizes && self.arguments.policy.iter().any(|name| name.trim() == "all") {
            names.extend(OF_SIZES.iter().filter(|name| !self.names.contains(name)));
        }
        names
    }

    fn read_options(&self) -> ReadOptions {
        self.arguments.read.options()
    }

    fn load_options(&self) -> LoadOptions {
        let arguments = self.arguments;
        let limit = arguments.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        LoadOptions { limit, is_reads_only: arguments.only_reads, ttl_s: arguments.ttl, references_max: None }
    }

    /// Returns the traces to simulate: each one separately, or all merged into one.
    fn load(&self) -> Result<Vec<TraceInput<'a>>> {
        let arguments = self.arguments;
        let mut workloads: Vec<TraceWorkload> = Vec::new();
        let mut traces = Vec::new();
        let mut held = 0;
        let can_stream = self.check_stream().is_ok();
        for path in &arguments.traces {
            if arguments.stream {
                traces.push(TraceInput::Streamed(path));
                continue;
            }
            let bar = progress::references(format!("reading {}", path.display()));
            let report = |done| bar.set_position(done);
            let references_max = if can_stream { REFERENCES_MAX - held } else { REFERENCES_MAX };
            let options = LoadOptions { references_max: Some(references_max), ..self.load_options() };
            let loaded = TraceWorkload::load_with(path, &self.read_options(), &options, &report);
            bar.finish_and_clear();
            let workload = match loaded {
                Ok(workload) => workload,
                Err(Error::TooLarge { .. }) if path != Path::new("-") && can_stream => {
                    eprintln!("nectary: {}: too long to hold in memory, and so read in a stream", path.display());
                    traces.push(TraceInput::Streamed(path));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(warning) = workload.warning() {
                eprintln!("nectary: {}: {warning}", path.display());
            }
            held = REFERENCES_MAX.min(held + workload.blocks().len());
            match arguments.mix {
                true => workloads.push(workload),
                false => traces.push(TraceInput::Held(Box::new(workload))),
            }
        }
        if arguments.mix {
            let mixed = TraceWorkload::mix(&workloads.iter().collect::<Vec<_>>())?;
            return Ok(vec![TraceInput::Held(Box::new(mixed))]);
        }
        Ok(traces)
    }

    /// Returns the outlines and the rows of all traces.
    fn simulate(&self, traces: &[TraceInput<'_>]) -> Result<(Vec<TraceOutline>, Vec<SimulationRow>)> {
        let mut held = self.simulate_held(traces)?.into_iter();
        let mut outlines: Vec<TraceOutline> = Vec::new();
        let mut rows = Vec::new();
        for (trace, path) in traces.iter().zip(&self.arguments.traces) {
            let done = match trace {
                TraceInput::Held(_) => held.next(),
                TraceInput::Streamed(path) => Some(self.simulate_streamed(path)?),
            };
            let Some((mut outline, mut own)) = done else { continue };
            // Rows are distinguished by the names of their traces.
            if outlines.iter().any(|other| other.name == outline.name) {
                outline.name = path.display().to_string();
                own.iter_mut().for_each(|row| row.trace.clone_from(&outline.name));
            }
            outlines.push(outline);
            rows.extend(own);
        }
        Ok((outlines, rows))
    }

    /// Makes the runs of all traces in memory, together on all cores. *Returns* the outline and the rows of each.
    fn simulate_held(&self, traces: &[TraceInput<'_>]) -> Result<Vec<(TraceOutline, Vec<SimulationRow>)>> {
        let arguments = self.arguments;
        let counted = traces.iter().filter_map(|trace| match trace {
            TraceInput::Held(workload) => {
                Some((&**workload, CountingWindows::new(workload, arguments.warm_up, arguments.window)))
            }
            TraceInput::Streamed(_) => None,
        });
        let counted = counted.map(|(workload, counting)| Ok((workload, counting.map_err(Error::Usage)?)));
        let counted: Vec<(&TraceWorkload, CountingWindows)> = counted.collect::<Result<_>>()?;
        let mut runs = Vec::new();
        let mut ends = Vec::new();
        for (workload, counting) in &counted {
            let (unit, sizes) = self.sizes_of(workload.shape(), workload.block_bytes())?;
            let is_explained = arguments.explain;
            for size in sizes {
                let run = |policy| SimulationRun {
                    unit,
                    counting,
                    is_explained,
                    ..SimulationRun::new(workload, policy, size)
                };
                runs.extend(self.names_for(workload.has_sizes()).into_iter().map(run));
            }
            ends.push(runs.len());
        }
        let bar = progress::runs(runs.len() as u64);
        let threads = arguments.threads.map(usize::from);
        let mut rows = run_all(&runs, threads, &|done| bar.set_position(done as u64))?.into_iter();
        bar.finish_and_clear();
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let lengths: Vec<usize> = ends.iter().zip(begins).map(|(end, begin)| end - begin).collect();
        let done = counted.iter().zip(lengths);
        Ok(done
            .map(|((workload, counting), count)| (workload.outline(counting), rows.by_ref().take(count).collect()))
            .collect())
    }

    fn simulate_streamed(&self, path: &Path) -> Result<(TraceOutline, Vec<SimulationRow>)> {
        let arguments = self.arguments;
        let (load, read) = (self.load_options(), self.read_options());
        let mut known = None;
        if self.has_percent() {
            let mut reader = formats::open(path, &read)?;
            let bar = progress::references(format!("counting {}", path.display()));
            known = Some(survey(path, &mut *reader, &load, &|done| bar.set_position(done))?);
            bar.finish_and_clear();
        }
        let mut reader = formats::open(path, &read)?;
        let unknown = TraceShape { has_sizes: reader.has_objects(), distinct: 0, distinct_bytes: 0 };
        let (unit, sizes) = self.sizes_of(known.map_or(unknown, |known| known.1), reader.block_bytes())?;
        let mut names = self.names_for(unknown.has_sizes);
        names.retain(|name| *name != policies::MIN);
        if self.names.contains(&policies::MIN) {
            eprintln!("nectary: {}: min needs the whole trace in memory, and is left out", path.display());
        }
        let of_size = |size| names.iter().map(move |&policy| StreamRun { policy, size, unit });
        let runs: Vec<StreamRun> = sizes.into_iter().flat_map(of_size).collect();
        let options = StreamOptions {
            load,
            warm_up: arguments.warm_up,
            window: arguments.window,
            length: known.map(|known| known.0),
            threads: arguments.threads.map(usize::from),
            ..StreamOptions::default()
        };
        let bar = progress::references(format!("simulating {}", path.display()));
        let streamed = stream(path, &mut *reader, &runs, &options, &|done| bar.set_position(done));
        bar.finish_and_clear();
        let StreamedResults { rows, outline, warning } = streamed?;
        if let Some(warning) = warning {
            eprintln!("nectary: {}: {warning}", path.display());
        }
        Ok((outline, rows))
    }

    /// Returns the sizes for a trace, ascending, each once, and their unit.
    fn sizes_of(&self, shape: TraceShape, block_bytes: Option<u64>) -> Result<(CapacityUnit, Vec<u64>)> {
        let usage = |what: String| Error::Usage(format!("--size: {what}"));
        let block_bytes = self.arguments.read.block.or(block_bytes).unwrap_or(BLOCK_BYTES);
        let all = self.sizes.iter().map(|size| size.of(shape, block_bytes));
        let all = all.collect::<std::result::Result<Vec<(CapacityUnit, u64)>, String>>().map_err(usage)?;
        let unit = all.first().map_or(CapacityUnit::Blocks, |size| size.0);
        if all.iter().any(|size| size.0 != unit) {
            let what = "numbers of objects (1000) and bytes or percent of them (1G, 10%) cannot be in one table";
            return Err(usage(what.to_owned()));
        }
        let mut sizes: Vec<u64> = all.into_iter().map(|size| size.1).collect();
        sizes.sort_unstable();
        sizes.dedup();
        Ok((unit, sizes))
    }
}
