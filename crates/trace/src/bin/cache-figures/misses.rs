//! The misses of one policy against the fewest of others: every point, the sums, the worst points.
//!
//! Owns: the limits. Leaves to others: which traces and sizes.

use std::fmt::Write as _;

use nectary_trace::simulate::{Row, Run, Workload, policies, run_all};

use crate::limit::{Limit, limit};
use crate::{Options, known};

/// The traces on which parameters may be tuned, with the recorded ones; the others judge.
const TUNED_ON: [&str; 3] = ["gli", "cpp", "ps"];
/// How far the sum, and any single point, may be above the best of the others. *Units*: percent.
const SUM_PERCENT_MAX: f64 = 1.0;
pub const POINT_PERCENT_MAX: f64 = 3.0;
/// The best fixed split of cs+cpp+ps between policies of their own. *Units*: blocks, misses.
pub const TRIPLE: (u64, u64) = (1536, 9285);

/// How the names of points end whose traces nothing was tuned on.
pub const HELD_OUT_ENDING: &str = "-held-out";

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

    fn is_over(&self) -> bool {
        self.above_percent() > POINT_PERCENT_MAX
    }
}

/// The judged policy over all workloads and sizes.
pub fn judge(judged: &[(Workload, Vec<u64>)], options: &Options) -> Result<Vec<String>, nectary_trace::Error> {
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
    let short = summary(policy, &points);
    if policy == "adaptive" {
        let workloads = judged.iter().flat_map(|(workload, sizes)| sizes.iter().map(move |size| (workload, *size)));
        for (point, (workload, size)) in points.iter().zip(workloads).filter(|(point, _)| point.is_over()) {
            limits(point, &limit(workload, size));
        }
    }
    Ok(short)
}

/// Prints, for a point that is over, the cost of the choice and the cost of following it.
fn limits(point: &Point, limit: &Limit) {
    let percent = |misses: u64| 100.0 * (misses as f64 / point.best as f64 - 1.0);
    println!(
        "LIMIT {} {}: adaptive {:+.2} %, its leaders' ghosts {:+.2} %; the best of six windows, by hindsight, {:+.2} % if \
         contents came with the choice, {:+.2} % as they do not",
        point.name,
        point.size,
        point.above_percent(),
        percent(limit.adaptive_free),
        percent(limit.free),
        percent(limit.paid)
    );
}

/// Prints one line of the table.
fn point(rows: &[Row], options: &Options) -> Point {
    let others = rows[1..].iter().filter(|row| row.policy != policies::MIN);
    let best = others.min_by_key(|row| row.misses).unwrap_or(&rows[0]);
    let is_tuned = rows[0].trace.split('+').all(|name| TUNED_ON.contains(&name) || name.ends_with("-recorded"));
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
        let mark = if point.is_over() { "  SHORT" } else { "" };
        println!("{line}  {:+6.2} % ({}){mark}", point.above_percent(), point.best_policy);
    }
    point
}

/// Prints the sums and the worst points; returns what falls short.
fn summary(policy: &str, points: &[Point]) -> Vec<String> {
    let mut short = Vec::new();
    let is_held_out = |point: &Point| point.name.ends_with(HELD_OUT_ENDING);
    let (held_out, others): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|point| is_held_out(point));
    let (tuned, judged): (Vec<&Point>, Vec<&Point>) = others.iter().partition(|point| point.is_tuned);
    for (what, of) in [("tuned on", tuned), ("judged on", judged), ("all", others), ("held out", held_out)] {
        let (misses, best): (u64, u64) =
            of.iter().fold((0, 0), |sum, point| (sum.0 + point.misses, sum.1 + point.best));
        let Some(worst) = of.iter().max_by(|a, b| a.above_percent().total_cmp(&b.above_percent())) else { continue };
        let above = 100.0 * (misses as f64 / best as f64 - 1.0);
        // Each point weighs the same in the mean, whatever its trace's length.
        let mean = of.iter().map(|point| point.above_percent()).sum::<f64>() / of.len() as f64;
        let beyond = of.iter().filter(|point| point.is_over()).count();
        println!(
            "{what:10} {:3} points  sum {misses} against {best}: {above:+.2} %  mean {mean:+.2} %  {beyond} points over {POINT_PERCENT_MAX} %  worst {} {}: {:+.2} %",
            of.len(),
            worst.name,
            worst.size,
            worst.above_percent()
        );
        if matches!(what, "all" | "held out") && above > SUM_PERCENT_MAX {
            short.push(format!(
                "{policy}, {what}: the sum is {above:+.2} % above the best, at most {SUM_PERCENT_MAX} %"
            ));
        }
    }
    for point in points.iter().filter(|point| point.is_over()) {
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
