//! The figures that the detecting policies have to reach, measured: every point, the sum, the worst point.
//!
//! Owns: which traces, sizes and mixes are judged, and the limits. Exits with 1 where a figure is missed, with 2 where the
//! command line or a trace is wrong. `cargo run --release -p nectary-trace --bin cache-figures -- --traces ../shared/traces`

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, Row, Run, Workload, policies, run_all};

const HELP: &str = "\
Examples:
  cache-figures --traces ../shared/traces
  cache-figures --traces ../shared/traces --only single --traces-of gli,cpp,ps
  cache-figures --traces ../shared/traces --policy lirs --quiet

Usage: cache-figures --traces DIR [OPTIONS]

  --traces DIR       where NAME.trace.gz are
  --policy NAME      the policy that is judged against the best of the others [default: adaptive]
  --against A,B,…    the others [default: lru,arc,s3fifo,lirs,wtinylfu]
  --traces-of A,B,…  only these traces and the mixes of them
  --only PART        one of single, pairs, triple, dear; may be given again [default: all]
  --threads N        [default: one for each core]
  --quiet            only the sums, the worst points and what falls short

Exit codes: 0 every figure is reached, 1 one is not, 2 the command line or a trace is wrong";

const TRACES: [&str; 6] = ["gli", "cpp", "ps", "cs", "multi1", "sprite"];
/// The traces on which parameters may be tuned; the others judge.
const TUNED_ON: [&str; 3] = ["gli", "cpp", "ps"];
const PERCENT: [u64; 5] = [5, 10, 20, 40, 60];
/// How far the sum, and any single point, may be above the best of the others. *Units*: percent.
const SUM_PERCENT_MAX: f64 = 1.0;
const POINT_PERCENT_MAX: f64 = 3.0;
/// The best fixed split of cs+cpp+ps between policies of their own.
const TRIPLE: (u64, u64) = (1536, 9285);
/// What `dear` may miss, and by how much it must be below LRU on average over the rows at 768. *Units*: blocks, misses.
const DEAR: [(&str, u64, u64); 6] = [
    ("cs", 512, 4730),
    ("cs", 768, 3717),
    ("cs", 1024, 2738),
    ("gli", 768, 3484),
    ("cpp", 768, 1233),
    ("ps", 768, 4038),
];
const DEAR_BELOW_LRU_PERCENT: f64 = 27.0;

struct Options {
    traces: PathBuf,
    policy: String,
    against: Vec<String>,
    names: Vec<String>,
    parts: Vec<String>,
    threads: Option<usize>,
    is_quiet: bool,
}

fn main() -> ExitCode {
    let options = match options() {
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

fn options() -> Result<Option<Options>, String> {
    let mut options = Options {
        traces: PathBuf::new(),
        policy: "adaptive".to_owned(),
        against: list("lru,arc,s3fifo,lirs,wtinylfu"),
        names: TRACES.map(str::to_owned).to_vec(),
        parts: Vec::new(),
        threads: None,
        is_quiet: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value; see --help"));
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--traces" => options.traces = value()?.into(),
            "--policy" => options.policy = value()?,
            "--against" => options.against = list(&value()?),
            "--traces-of" => options.names = list(&value()?),
            "--only" => options.parts.push(value()?),
            "--threads" => options.threads = Some(value()?.parse().map_err(|_| "--threads needs a number")?),
            "--quiet" => options.is_quiet = true,
            _ => return Err(format!("{word} is no option; see --help")),
        }
    }
    if options.traces.as_os_str().is_empty() {
        return Err("--traces DIR is needed; see --help".to_owned());
    }
    if let Some(part) =
        options.parts.iter().find(|part| !["single", "pairs", "triple", "dear"].contains(&part.as_str()))
    {
        return Err(format!("--only {part}: expected single, pairs, triple or dear"));
    }
    Ok(Some(options))
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

/// Prints every figure and gives a line for each that is missed.
fn figures(options: &Options) -> Result<Vec<String>, nectary_trace::Error> {
    let wants = |part: &str| options.parts.is_empty() || options.parts.iter().any(|wanted| wanted == part);
    let singles = load(&options.traces, &options.names)?;
    let mut short = Vec::new();
    if wants("dear") {
        short.extend(dear(&singles, options)?);
    }
    let mut judged: Vec<(Workload, Vec<u64>)> = Vec::new();
    let mut add = |workload: Workload, more: &[u64]| {
        let percent = PERCENT.map(|percent| (workload.distinct() * percent / 100).max(1));
        judged.push((workload, [&percent, more].concat()));
    };
    if wants("single") {
        singles.values().for_each(|workload| add(workload.clone(), &[]));
    }
    if wants("pairs") {
        for (index, first) in options.names.iter().enumerate() {
            for second in &options.names[index + 1..] {
                add(Workload::mix(&[&singles[first], &singles[second]])?, &[]);
            }
        }
    }
    if wants("triple")
        && let [Some(cs), Some(cpp), Some(ps)] = ["cs", "cpp", "ps"].map(|name| singles.get(name))
    {
        add(Workload::mix(&[cs, cpp, ps])?, &[TRIPLE.0]);
    }
    short.extend(judge(&judged, options)?);
    Ok(short)
}

fn load(directory: &Path, names: &[String]) -> Result<BTreeMap<String, Workload>, nectary_trace::Error> {
    let mut workloads = BTreeMap::new();
    for name in names {
        let path = directory.join(format!("{name}.trace.gz"));
        workloads.insert(name.clone(), Workload::load(&path, &ReadOptions::default(), &LoadOptions::default())?);
    }
    Ok(workloads)
}

/// The name as the list of policies has it.
fn known(name: &str) -> Result<&'static str, nectary_trace::Error> {
    let names = policies::names();
    let found = names.iter().find(|known| **known == name);
    found.copied().ok_or_else(|| {
        nectary_trace::Error::Usage(format!("no policy is called \"{name}\"; there are: {}", names.join(", ")))
    })
}

/// The rows of the paper's scheme.
fn dear(singles: &BTreeMap<String, Workload>, options: &Options) -> Result<Vec<String>, nectary_trace::Error> {
    if known("dear").is_err() {
        return Ok(vec!["dear: there is no such policy".to_owned()]);
    }
    let rows: Vec<_> = DEAR.iter().filter(|row| singles.contains_key(row.0)).collect();
    let run =
        |policy, row: &&(&str, u64, u64)| Run { workload: &singles[row.0], policy, size: row.1, is_explained: false };
    let runs: Vec<Run<'_>> = rows.iter().flat_map(|row| [run("dear", row), run("lru", row)]).collect();
    let results = run_all(&runs, options.threads, &|_| {})?;
    let mut short = Vec::new();
    let mut saved = Vec::new();
    println!("dear against its table");
    for (&&(name, size, misses_max), result) in rows.iter().zip(results.chunks_exact(2)) {
        let (dear, lru) = (result[0].misses, result[1].misses);
        let below = 100.0 * (1.0 - dear as f64 / lru as f64);
        let verdict = if dear <= misses_max { "ok" } else { "SHORT" };
        println!(
            "  {name:8} {size:5}  dear {dear:6}  at most {misses_max:6}  lru {lru:6}  {below:5.1} % below  {verdict}"
        );
        if dear > misses_max {
            short.push(format!("dear {name} {size}: {dear} misses, at most {misses_max}"));
        }
        if size == 768 {
            saved.push(below);
        }
    }
    if saved.len() == 4 {
        let mean = saved.iter().sum::<f64>() / saved.len() as f64;
        println!("  on average at 768 {mean:.1} % below LRU, at least {DEAR_BELOW_LRU_PERCENT} %");
        if mean < DEAR_BELOW_LRU_PERCENT {
            short.push(format!("dear at 768: {mean:.1} % below LRU, at least {DEAR_BELOW_LRU_PERCENT} %"));
        }
    }
    Ok(short)
}

/// One point: the judged policy's misses against the fewest of the others.
struct Point {
    name: String,
    size: u64,
    misses: u64,
    best: u64,
    best_policy: &'static str,
    is_tuned: bool,
}

impl Point {
    fn above_percent(&self) -> f64 {
        100.0 * (self.misses as f64 / self.best as f64 - 1.0)
    }
}

/// The judged policy over all workloads and sizes.
fn judge(judged: &[(Workload, Vec<u64>)], options: &Options) -> Result<Vec<String>, nectary_trace::Error> {
    if judged.is_empty() {
        return Ok(Vec::new());
    }
    let Ok(policy) = known(&options.policy) else {
        return Ok(vec![format!("{}: there is no such policy", options.policy)]);
    };
    let mut columns = vec![policy];
    for name in &options.against {
        match known(name) {
            Ok(name) => columns.push(name),
            Err(_) => eprintln!("cache-figures: {name}: there is no such policy, left out"),
        }
    }
    columns.extend(known(policies::MIN));
    let mut runs = Vec::new();
    for (workload, sizes) in judged {
        for &size in sizes {
            runs.extend(columns.iter().map(|policy| Run { workload, policy, size, is_explained: false }));
        }
    }
    let rows = run_all(&runs, options.threads, &|_| {})?;
    if !options.is_quiet {
        let mut head = format!("{:16} {:>6}", "trace", "size");
        columns.iter().for_each(|name| write!(head, " {name:>8}").unwrap_or(()));
        println!("{head}  above the best");
    }
    let points: Vec<Point> = rows.chunks_exact(columns.len()).map(|rows| point(rows, options)).collect();
    Ok(summary(policy, &points))
}

/// Prints one line of the table.
fn point(rows: &[Row], options: &Options) -> Point {
    let others = rows[1..].iter().filter(|row| row.policy != policies::MIN);
    let best = others.min_by_key(|row| row.misses).unwrap_or(&rows[0]);
    let is_tuned = rows[0].trace.split('+').all(|name| TUNED_ON.contains(&name));
    let point = Point {
        name: rows[0].trace.clone(),
        size: rows[0].size,
        misses: rows[0].misses,
        best: best.misses,
        best_policy: best.policy,
        is_tuned,
    };
    if !options.is_quiet {
        let mut line = format!("{:16} {:>6}", point.name, point.size);
        rows.iter().for_each(|row| write!(line, " {:>8}", row.misses).unwrap_or(()));
        let mark = if point.above_percent() > POINT_PERCENT_MAX { "  SHORT" } else { "" };
        println!("{line}  {:+6.2} % ({}){mark}", point.above_percent(), point.best_policy);
    }
    point
}

/// Prints the sums and the worst points; gives what falls short.
fn summary(policy: &str, points: &[Point]) -> Vec<String> {
    let mut short = Vec::new();
    for (what, is_tuned) in [("tuned on", Some(true)), ("judged on", Some(false)), ("all", None)] {
        let of: Vec<&Point> = points.iter().filter(|point| is_tuned.is_none_or(|is| point.is_tuned == is)).collect();
        let (misses, best): (u64, u64) =
            of.iter().fold((0, 0), |sum, point| (sum.0 + point.misses, sum.1 + point.best));
        let Some(worst) = of.iter().max_by(|a, b| a.above_percent().total_cmp(&b.above_percent())) else { continue };
        let above = 100.0 * (misses as f64 / best as f64 - 1.0);
        // Each point weighs the same in the mean, whatever its trace's length.
        let mean = of.iter().map(|point| point.above_percent()).sum::<f64>() / of.len() as f64;
        let beyond = of.iter().filter(|point| point.above_percent() > POINT_PERCENT_MAX).count();
        println!(
            "{what:10} {:3} points  sum {misses} against {best}: {above:+.2} %  mean {mean:+.2} %  {beyond} points over {POINT_PERCENT_MAX} %  worst {} {}: {:+.2} %",
            of.len(),
            worst.name,
            worst.size,
            worst.above_percent()
        );
        if is_tuned.is_none() && above > SUM_PERCENT_MAX {
            short.push(format!("{policy}: the sum is {above:+.2} % above the best, at most {SUM_PERCENT_MAX} %"));
        }
    }
    for point in points.iter().filter(|point| point.above_percent() > POINT_PERCENT_MAX) {
        let (name, size) = (&point.name, point.size);
        let (above, best, by) = (point.above_percent(), point.best, point.best_policy);
        short.push(format!("{policy} {name} {size}: {} against {best} of {by}, {above:+.2} %", point.misses));
    }
    for point in points.iter().filter(|point| point.name == "cs+cpp+ps" && point.size == TRIPLE.0) {
        println!("{} at {}: {}, at most {}", point.name, point.size, point.misses, TRIPLE.1);
        if point.misses > TRIPLE.1 {
            short
                .push(format!("{policy} {} {}: {} misses, at most {}", point.name, point.size, point.misses, TRIPLE.1));
        }
    }
    short
}
