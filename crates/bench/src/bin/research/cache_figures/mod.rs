//! Measures the figures that `dear` and `adaptive` have to reach: for every point, for the sum, and for the worst
//! point.
//!
//! Owns: the choice of traces, sizes and mixes, and the command line. Leaves to others: the figures, one file each. The
//! program exits with 1 if a figure is missed, and with 2 if the command line or a trace is wrong. `cargo run --release
//! -p nectary-bench -- cache-figures --traces ../shared/traces`

mod ablation;
mod books;
mod changes;
mod cost;
mod dear;
mod fork;
mod generated;
mod limit;
mod misses;
mod public;
mod size;
mod verdicts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, TraceWorkload, policies};

const HELP: &str = "\
Examples:
  research cache-figures --traces ../shared/traces
  research cache-figures --traces ../shared/traces --only single --traces-of gli,cpp,ps
  research cache-figures --traces ../shared/traces --policy lirs --quiet
  research cache-figures --only recorded --only books --only verdicts
  research cache-figures --only cost
  research cache-figures --traces ../shared/traces --only ablation --write docs/research/adaptive.md

Usage: research cache-figures [--traces DIR] [OPTIONS]

  --traces DIR       where NAME.trace.gz are; without them only the parts that need none are run
  --public DIR       where the public traces are, which `crates/bench/public-traces.py` writes
  --policy NAME      the policy that is judged against the best of the others [default: adaptive]
  --against A,B,…    the others [default: lru,arc,s3fifo,lirs,wtinylfu]
  --traces-of A,B,…  only these traces and the mixes of them
  --only PART        may be given again [default: all but ablation, and cost, which wants a quiet machine]
                     dear: the paper's scheme against its table
                     single, pairs, triple: misses on the traces, their pairs, and cs+cpp+ps
                     recorded: misses on the traces that the project recorded
                     held-out: misses on the recorded traces that nothing was tuned on
                     public: misses on public traces, below and above 4,096 blocks, and at both sides of it
                     generated: misses on generated accesses at 20,000 to 200,000 blocks
                     forks: how near any policy can be for certain at the points of the first five
                     ablation: all points again without each part, and with other constants
                     changes: how often the leader changes while the pattern of accesses stays the same
                     size: the lines and the constants of adaptive
                     books: ledgers and windows against simulations of their own
                     verdicts: on uniform random references
                     cost: nanoseconds a reference at 1 Ki to 1 Mi blocks
  --write FILE       into which page ablation writes its table
  --threads N        [default: one for each core]
  --quiet            only the sums, the worst points and what falls short

Exit codes: 0 every figure is reached, 1 one is not, 2 the command line or a trace is wrong";

const PARTS: [&str; 15] = [
    "dear",
    "single",
    "pairs",
    "triple",
    "recorded",
    "held-out",
    "public",
    "generated",
    "forks",
    "ablation",
    "changes",
    "size",
    "books",
    "verdicts",
    "cost",
];
/// The parts that run only if they are named.
const PARTS_NAMED: [&str; 2] = ["ablation", "cost"];
/// The parts whose points are judged.
const PARTS_OF_POINTS: [&str; 7] = ["single", "pairs", "triple", "recorded", "held-out", "public", "generated"];
/// The parts that need the papers' traces.
const PARTS_OF_TRACES: [&str; 4] = ["dear", "single", "pairs", "triple"];
const TRACES: [&str; 6] = ["gli", "cpp", "ps", "cs", "multi1", "sprite"];
/// The traces that the project recorded, in the folder `tests/data` of `nectary-trace`.
const RECORDED: [&str; 6] = ["cscope", "sort", "ld", "cpp", "sqlite", "postgres"];
/// Traces that the project recorded and used for no tuning, in its folder `held_out`.
const HELD_OUT: [&str; 11] =
    ["archive", "awk", "build", "checksums", "compare", "dbm", "grep", "index", "merge", "perl", "xz"];
const PERCENT: [u64; 5] = [5, 10, 20, 40, 60];

struct CacheFiguresOptions {
    traces: Option<PathBuf>,
    public: Option<PathBuf>,
    policy: String,
    against: Vec<String>,
    names: Vec<String>,
    parts: Vec<String>,
    threads: Option<usize>,
    is_quiet: bool,
    write: Option<PathBuf>,
}

/// A workload over which the policies are judged.
pub struct JudgedWorkload {
    /// The group to which the workload belongs; the misses of a group are summed.
    group: &'static str,
    workload: TraceWorkload,
    sizes: Vec<u64>,
}

/// Runs the subcommand with the arguments after its name.
pub fn main(words: &[String]) -> ExitCode {
    let options = match options(words) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => return usage(&error),
    };
    match figures(&options) {
        Ok(short) if short.is_empty() => {
            println!("every figure is reached");
            ExitCode::SUCCESS
        }
        Ok(short) => {
            for line in short {
                println!("SHORT {line}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            usage(&format!("{error}{cause}"))
        }
    }
}

fn usage(error: &str) -> ExitCode {
    eprintln!("cache-figures: error: {error}");
    ExitCode::from(2)
}

fn options(words: &[String]) -> Result<Option<CacheFiguresOptions>, String> {
    let mut options = CacheFiguresOptions {
        traces: None,
        public: None,
        policy: "adaptive".to_owned(),
        against: list("lru,arc,s3fifo,lirs,wtinylfu"),
        names: TRACES.map(str::to_owned).to_vec(),
        parts: Vec::new(),
        threads: None,
        is_quiet: false,
        write: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value; see --help"));
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--traces" => options.traces = Some(value()?.into()),
            "--public" => options.public = Some(value()?.into()),
            "--policy" => options.policy = value()?,
            "--against" => options.against = list(&value()?),
            "--traces-of" => options.names = list(&value()?),
            "--only" => options.parts.push(value()?),
            "--threads" => options.threads = Some(value()?.parse().map_err(|_| "--threads needs a number")?),
            "--write" => options.write = Some(value()?.into()),
            "--quiet" => options.is_quiet = true,
            _ => return Err(format!("{word} is no option; see --help")),
        }
    }
    if let Some(part) = options.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("--only {part}: expected one of {}", PARTS.join(", ")));
    }
    let has = |part: &str| options.parts.iter().any(|wanted| wanted == part);
    if has("forks") && !PARTS_OF_POINTS.iter().any(|part| has(part)) {
        return Err(format!(
            "--only forks needs one of {} beside it, whose points it takes",
            PARTS_OF_POINTS.join(", ")
        ));
    }
    if options.traces.is_none() && options.parts.iter().any(|part| PARTS_OF_TRACES.contains(&part.as_str())) {
        return Err(format!("{} need --traces DIR; see --help", PARTS_OF_TRACES.join(", ")));
    }
    Ok(Some(options))
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

/// Prints every figure. *Returns* a line for each figure that is missed.
fn figures(options: &CacheFiguresOptions) -> Result<Vec<String>, nectary_trace::Error> {
    let wants = |part: &str| {
        let is_named = |wanted: &str| options.parts.iter().any(|named| named == wanted);
        let has_traces = options.traces.is_some() || !PARTS_OF_TRACES.contains(&part);
        // The ablation uses the points of all parts, unless the command line names some of these parts.
        let is_all = options.parts.is_empty()
            || is_named("ablation")
                && PARTS_OF_POINTS.contains(&part)
                && !PARTS_OF_POINTS.iter().any(|points| is_named(points));
        is_named(part) || is_all && has_traces && !PARTS_NAMED.contains(&part)
    };
    let singles = match &options.traces {
        Some(directory) => load(directory, ".trace.gz", &options.names)?,
        None => {
            println!("NOT RUN: {} without --traces", PARTS_OF_TRACES.join(", "));
            BTreeMap::new()
        }
    };
    let recorded = match wants("recorded") || wants("books") {
        true => load(&data(), ".nectrace.gz", &RECORDED.map(str::to_owned))?,
        false => BTreeMap::new(),
    };
    let mut short = Vec::new();
    if wants("dear") {
        short.extend(dear::dear(&singles, options)?);
    }
    let mut judged: Vec<JudgedWorkload> = Vec::new();
    let mut add = |group, workload: TraceWorkload, more: &[u64]| {
        let percent = PERCENT.map(|percent| (workload.distinct() * percent / 100).max(1));
        judged.push(JudgedWorkload { group, workload, sizes: [&percent[..], more].concat() });
    };
    if wants("single") {
        singles.values().for_each(|workload| add("papers", workload.clone(), &[]));
    }
    if wants("pairs") {
        for (index, first) in options.names.iter().enumerate() {
            for second in &options.names[index + 1..] {
                add("mixes", TraceWorkload::mix(&[&singles[first], &singles[second]])?, &[]);
            }
        }
    }
    if wants("triple")
        && let [Some(cs), Some(cpp), Some(ps)] = ["cs", "cpp", "ps"].map(|name| singles.get(name))
    {
        add("mixes", TraceWorkload::mix(&[cs, cpp, ps])?, &[misses::TRIPLE.0]);
    }
    if wants("recorded") {
        recorded.values().for_each(|workload| add("recorded", recorded_name(workload), &[]));
    }
    if wants("held-out") {
        let held_out = load(&data().join("held_out"), ".nectrace.gz", &HELD_OUT.map(str::to_owned))?;
        held_out.values().for_each(|workload| add("held out", recorded_name(workload), &[]));
    }
    if wants("public") {
        match &options.public {
            Some(directory) => judged.extend(public::judged(directory)?),
            None => println!("NOT RUN: public without --public"),
        }
    }
    if wants("generated") {
        let of_size = |size| generated::generated(size).map(move |workload| (size, workload));
        let all = generated::SIZES.into_iter().flat_map(of_size);
        judged.extend(all.map(|(size, workload)| JudgedWorkload { group: "generated", workload, sizes: vec![size] }));
    }
    let (points, over) = misses::judge(&judged, options)?;
    short.extend(over);
    if wants("forks") {
        judged.retain(|judged| judged.group != "generated" && !judged.group.starts_with("public"));
        short.extend(fork::forks(&judged, options));
    }
    if wants("ablation") {
        short.extend(ablation::ablation(&judged, &points, options));
    }
    if wants("changes") {
        short.extend(changes::changes());
    }
    if wants("size") {
        short.extend(size::size());
    }
    if wants("books") {
        let mixes = judged.iter().map(|judged| &judged.workload).filter(|workload| workload.name().contains('+'));
        short.extend(books::books(singles.values().chain(recorded.values()).chain(mixes)));
    }
    if wants("verdicts") {
        short.extend(verdicts::verdicts());
    }
    if wants("cost") {
        short.extend(cost::cost());
    }
    Ok(short)
}

/// The folder of the recorded traces.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data")
}

/// A recorded trace, under a name that differs from that of the papers' trace of the same program.
fn recorded_name(workload: &TraceWorkload) -> TraceWorkload {
    let mut workload = workload.clone();
    workload.rename(&format!("{}-recorded", workload.name().to_owned()));
    workload
}

fn load(
    directory: &Path,
    ending: &str,
    names: &[String],
) -> Result<BTreeMap<String, TraceWorkload>, nectary_trace::Error> {
    let mut workloads = BTreeMap::new();
    for name in names {
        let path = directory.join(format!("{name}{ending}"));
        workloads.insert(name.clone(), TraceWorkload::load(&path, &ReadOptions::default(), &LoadOptions::default())?);
    }
    Ok(workloads)
}

/// The entry `name` in the list of policies. *Errors*: no policy has this name.
fn known(name: &str) -> Result<&'static str, nectary_trace::Error> {
    let names = policies::names();
    let found = names.iter().find(|known| **known == name);
    found.copied().ok_or_else(|| {
        nectary_trace::Error::Usage(format!("no policy is called \"{name}\"; there are: {}", names.join(", ")))
    })
}
