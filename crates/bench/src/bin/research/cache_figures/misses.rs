//! The misses of one policy, compared with the fewest misses of other policies: for every point, for the sums, and for
//! the worst points.
//!
//! Owns: the limits. Leaves to others: the choice of traces and sizes.

use std::fmt::Write as _;

use nectary_trace::simulate::{SimulationRow, SimulationRun, policies, run_all};

use super::limit::{ChooserLimit, limit};
use super::{CacheFiguresOptions, JudgedWorkload, known};

/// The largest allowed distance of the sum, of the sum on public traces, and of any single point, above the best of the
/// other policies. *Units*: percent.
const SUM_PERCENT_MAX: f64 = 1.0;
const SUM_PUBLIC_PERCENT_MAX: f64 = 1.5;
pub const POINT_PERCENT_MAX: f64 = 5.0;
/// The size of the cache, and the misses of the best fixed split of it between separate policies, on the mix cs+cpp+ps.
/// *Units*: blocks, misses.
pub const TRIPLE: (u64, u64) = (1536, 9285);

/// One point: the misses of the judged policy, and the fewest misses of the other policies.
pub struct MissPoint {
    /// The group to which the point belongs; the misses of a group are summed.
    pub group: &'static str,
    name: String,
    size: u64,
    misses: u64,
    /// The fewest misses of the other policies.
    pub best: u64,
    best_policy: &'static str,
}

impl MissPoint {
    fn above_percent(&self) -> f64 {
        100.0 * (self.misses as f64 / self.best as f64 - 1.0)
    }

    fn is_over(&self) -> bool {
        self.above_percent() > POINT_PERCENT_MAX
    }
}

/// Runs the judged policy over all workloads at all sizes. *Returns* the points, and the limits that were missed.
pub fn judge(
    judged: &[JudgedWorkload],
    options: &CacheFiguresOptions,
) -> Result<(Vec<MissPoint>, Vec<String>), nectary_trace::Error> {
    if judged.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let Ok(policy) = known(&options.policy) else {
        return Ok((Vec::new(), vec![format!("{}: there is no such policy", options.policy)]));
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
    let places = || judged.iter().flat_map(|judged| judged.sizes.iter().map(move |size| (judged, *size)));
    for (JudgedWorkload { workload, .. }, size) in places() {
        runs.extend(columns.iter().map(|policy| SimulationRun::new(workload, policy, size)));
    }
    let rows = run_all(&runs, options.threads, &|_| {})?;
    if !options.is_quiet {
        let mut head = format!("{:16} {:>6}", "trace", "size");
        columns.iter().for_each(|name| write!(head, " {name:>8}").unwrap_or(()));
        println!("{head}  above the best");
    }
    let rows = rows.chunks_exact(columns.len()).zip(places());
    let points: Vec<MissPoint> = rows.map(|(rows, (judged, _))| point(judged.group, rows, options)).collect();
    let short = summary(policy, &points);
    if policy == "adaptive" {
        let small = points
            .iter()
            .zip(places())
            .filter(|(point, _)| point.is_over() && point.group != "generated" && !point.group.starts_with("public"));
        for (point, (judged, size)) in small {
            limits(point, &limit(&judged.workload, size));
        }
    }
    Ok((points, short))
}

/// For a point over the limit, prints the cost of choosing a policy and the cost of changing the contents to it.
fn limits(point: &MissPoint, limit: &ChooserLimit) {
    let percent = |misses: u64| 100.0 * (misses as f64 / point.best as f64 - 1.0);
    println!(
        "LIMIT {} {}: adaptive {:+.2} %; the best of six windows, by hindsight, {:+.2} % if \
         contents came with the choice, {:+.2} % as they do not",
        point.name,
        point.size,
        point.above_percent(),
        percent(limit.free),
        percent(limit.paid)
    );
}

/// Makes a point from the rows of all policies, and prints its line of the table.
fn point(group: &'static str, rows: &[SimulationRow], options: &CacheFiguresOptions) -> MissPoint {
    let others = rows[1..].iter().filter(|row| row.policy != policies::MIN);
    let best = others.min_by_key(|row| row.counts.misses).unwrap_or(&rows[0]);
    let point = MissPoint {
        group,
        name: rows[0].trace.clone(),
        size: rows[0].size,
        misses: rows[0].counts.misses,
        best: best.counts.misses,
        best_policy: best.policy,
    };
    if !options.is_quiet {
        let mut line = format!("{:16} {:>6}", point.name, point.size);
        rows.iter().for_each(|row| write!(line, " {:>8}", row.counts.misses).unwrap_or(()));
        let mark = if point.is_over() { "  SHORT" } else { "" };
        println!("{line}  {:+6.2} % ({}){mark}", point.above_percent(), point.best_policy);
    }
    point
}

/// Prints the sums and the worst points; returns the missed limits.
fn summary(policy: &str, points: &[MissPoint]) -> Vec<String> {
    let mut short = Vec::new();
    let mut groups: Vec<&str> = points.iter().map(|point| point.group).collect();
    groups.dedup();
    for what in groups {
        let of: Vec<&MissPoint> = points.iter().filter(|point| point.group == what).collect();
        let (misses, best): (u64, u64) =
            of.iter().fold((0, 0), |sum, point| (sum.0 + point.misses, sum.1 + point.best));
        let Some(worst) = of.iter().max_by(|a, b| a.above_percent().total_cmp(&b.above_percent())) else { continue };
        let above = 100.0 * (misses as f64 / best as f64 - 1.0);
        // In the mean, all points have the same weight, whatever the lengths of their traces.
        let mean = of.iter().map(|point| point.above_percent()).sum::<f64>() / of.len() as f64;
        let beyond = of.iter().filter(|point| point.is_over()).count();
        println!(
            "{what:10} {:3} points  sum {misses} against {best}: {above:+.2} %  mean {mean:+.2} %  {beyond} points over {POINT_PERCENT_MAX} %  worst {} {}: {:+.2} %",
            of.len(),
            worst.name,
            worst.size,
            worst.above_percent()
        );
        let most = if what.starts_with("public") { SUM_PUBLIC_PERCENT_MAX } else { SUM_PERCENT_MAX };
        if above > most {
            short.push(format!("{policy}, {what}: the sum is {above:+.2} % above the best, at most {most} %"));
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
