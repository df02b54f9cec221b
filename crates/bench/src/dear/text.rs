//! The report as text: the figures of the run, figures 7 and 8 of the paper as tables, sensitivity, and the meaning of
//! the columns.

use std::fmt::Write;
use std::time::Duration;

use super::cost::Cost;
use super::execute::{Execution, MODEL};
use super::replay::Varied;
use super::results::{Workload, saved};
use super::{BASE, BLOCKS, Plan};
use crate::{Figure, machine};

/// The paper's averages for 6 MB: for single programs, and for several at once.
const SEED: &str = "the paper, DEAR against LRU: alone 23 % fewer reads (51 % at most) and 12 % less time (35 %); \
                    together 12 % (20 %) and 8 % (18 %)";

const LEGEND: [(&str, &str); 7] = [
    ("block reads", "blocks of 8 KiB that the cache read; of the page cache: bytes read by 8 KiB"),
    ("requests", "requests to the block device by the kernel's count, reads and writes"),
    ("stall", "the time that the modelled disk was busy until the last program ended"),
    ("user, system", "processor time of the programs; system is FUSE, file system and copies"),
    ("cache system", "the cache process in the kernel: FUSE, the file system below, driver"),
    ("cache user", "the cache process in itself; policy is the replacement's part, measured by a replay"),
    ("late", "disk time after the end for what was still to be written; in no other column"),
];

/// Writes the whole report.
pub(super) fn text(plan: &Plan, workloads: &[Workload], cost: &Cost, figures: &[Figure], took: Duration) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "bench cache --seed dear: {}", machine::describe());
    let _ = writeln!(
        text,
        "{BLOCKS} blocks of 8 KiB for the policy, no readahead; disk {MODEL}; {} execution(s) each; took {:.0} s",
        plan.executions,
        took.as_secs_f64()
    );
    let _ = writeln!(
        text,
        "programs alone on a virtual clock, which neighbours on the machine do not change; mixes and the costs of a hit in real\n\
         time (the disk {} times faster), which they do: compare within this run, and see the load above",
        plan.speed
    );
    for line in &plan.not_run {
        let _ = writeln!(text, "{line}");
    }
    if !plan.is_judged {
        let _ = writeln!(text, "no verdict on savings: that takes every program and mix, three times");
    }
    let _ = writeln!(
        text,
        "\nFigures (the mean over programs of what is saved against LRU; range over executions)\n  {SEED}"
    );
    for figure in figures {
        text.push_str(&figure.line(34, 3));
    }
    let _ = writeln!(text, "  {} pairs for each cost", cost.pairs);
    for (is_alone, when) in [(true, "alone, virtual clock"), (false, "together, real time")] {
        let some: Vec<&Workload> = workloads.iter().filter(|workload| workload.is_alone() == is_alone).collect();
        if some.is_empty() {
            continue;
        }
        table(&mut text, plan, &some, &format!("Block reads, {when} (figure 7)"), 0, &|one| one.block_reads as f64);
        table(&mut text, plan, &some, &format!("Device requests, {when}"), 0, &|one| one.device_requests as f64);
        table(&mut text, plan, &some, &format!("Response time in s, {when} (figure 7)"), 2, &Execution::response_s);
    }
    let alone: Vec<&Workload> = workloads.iter().filter(|workload| workload.is_alone()).collect();
    if !alone.is_empty() {
        beside_the_seed(&mut text, &alone);
        decomposition(&mut text, plan, &alone);
    }
    for workload in workloads {
        sensitivity(&mut text, workload);
    }
    let _ = writeln!(text, "\nColumns");
    for (name, meaning) in LEGEND {
        let _ = writeln!(text, "  {name:13} {meaning}");
    }
    text
}

/// Writes a table with one row per program and one column per lane.
fn table(
    text: &mut String,
    plan: &Plan,
    workloads: &[&Workload],
    title: &str,
    digits: usize,
    of: &dyn Fn(&Execution) -> f64,
) {
    let _ = write!(text, "\n{title}\n  {:16}", "");
    for lane in &plan.lanes {
        let _ = write!(text, " {:>10}", lane.name);
    }
    for workload in workloads {
        let _ = write!(text, "\n  {:16}", workload.name());
        for lane in &plan.lanes {
            let _ = write!(text, " {:>10.digits$}", workload.mean(lane.name, of));
        }
        let _ = write!(text, "\n  {:16}", "  saved %");
        let base = workload.mean(BASE, of);
        for lane in &plan.lanes {
            let _ = write!(text, " {:>10.1}", saved(base, workload.mean(lane.name, of)));
        }
    }
    text.push('\n');
}

/// Writes the paper's response times with 6 MB, and ours. Both are ratios of DEAR to LRU, because the machines differ.
fn beside_the_seed(text: &mut String, workloads: &[&Workload]) {
    let _ = writeln!(text, "\nResponse time under DEAR over that under LRU, 6 MB: the paper's and ours");
    for workload in workloads {
        let ours = workload.mean("dear", Execution::response_s) / workload.mean(BASE, Execution::response_s);
        let seed = workload.programs.first().and_then(|program| program.seed_s);
        let seed = match seed {
            Some((dear, lru)) => format!("{dear:.2} / {lru:.2} s = {:.2}", dear / lru),
            None => "not in its text".to_owned(),
        };
        let _ = writeln!(text, "  {:10} paper {seed:28} ours {ours:.2}", workload.name());
    }
}

/// Writes the parts of the response time, which figure 8 of the paper shows.
fn decomposition(text: &mut String, plan: &Plan, workloads: &[&Workload]) {
    let _ = writeln!(text, "\nResponse time in its parts, in s (figure 8)");
    let _ = writeln!(
        text,
        "  {:10} {:10} {:>9} {:>9} {:>8} {:>8} {:>13} {:>11} {:>8} {:>8}",
        "", "", "response", "stall", "user", "system", "cache system", "cache user", "policy", "late"
    );
    for workload in workloads {
        for lane in &plan.lanes {
            let of = |part: fn(&Execution) -> f64| workload.mean(lane.name, part);
            let references = of(|one| (one.cache.hits + one.cache.misses) as f64);
            let us = workload.known.as_ref().and_then(|known| {
                known.policy_us.iter().find(|entry| Some(entry.0.as_str()) == lane.policy).map(|entry| entry.1)
            });
            let policy = us.map_or("-".to_owned(), |us| format!("{:.4}", us * references / 1e6));
            let _ = writeln!(
                text,
                "  {:10} {:10} {:>9.2} {:>9.2} {:>8.3} {:>8.3} {:>13.3} {:>11.3} {policy:>8} {:>8.2}",
                workload.name(),
                lane.name,
                of(Execution::response_s),
                of(|one| one.stall_s),
                of(|one| one.user_s),
                of(|one| one.system_s),
                of(|one| one.cache_system_s),
                of(|one| one.cache_user_s),
                of(|one| one.late_s)
            );
        }
    }
}

/// Writes the replays of the recorded references with one parameter changed. Their times are computed from the run with
/// 6 MB.
fn sensitivity(text: &mut String, workload: &Workload) {
    let Some(known) = &workload.known else { return };
    let live = workload.mean(BASE, |one| one.cache.misses as f64);
    let _ = writeln!(
        text,
        "\n{}: {} references of {} blocks; LRU misses {} in the replay and {live:.0} live, MIN {} (reads {} and {})",
        workload.name(),
        known.lru.references,
        known.distinct,
        known.lru.misses,
        known.min.misses,
        known.lru.reads,
        known.min.reads
    );
    for of_parameter in known.sensitivity.chunk_by(|left, right| left.parameter == right.parameter) {
        let parameter = of_parameter[0].parameter;
        let _ = write!(text, "  {parameter:9}");
        for of_value in of_parameter.chunk_by(|left, right| left.value == right.value) {
            let unit = if parameter == "size" { " MB" } else { "" };
            let each: Vec<String> = of_value.iter().map(|varied| computed(workload, varied)).collect();
            let _ = write!(text, " {}{unit}: {};", of_value[0].value, each.join(", "));
        }
        text.push('\n');
    }
}

/// The reads of a replay, and its computed time.
fn computed(workload: &Workload, varied: &Varied) -> String {
    let of = |part: fn(&Execution) -> f64| workload.mean(varied.policy, part);
    let processor_s = of(|one| one.response_s() - one.stall_s);
    let read_s = of(|one| one.stall_s) / of(|one| one.block_reads.max(1) as f64);
    let seconds = processor_s + read_s * varied.counts.reads as f64;
    format!("{} {} reads {seconds:.2} s", varied.policy, varied.counts.reads)
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::workload;
    use super::super::{Options, PAGES, PROGRAMS, results};
    use super::*;
    use crate::statistics::estimate;

    #[test]
    fn what_is_short_is_said_and_a_look_has_no_verdict() {
        let options = Options { quick: false, only: vec!["sort".to_owned()], executions: None, speed: None };
        let mut plan = Plan::new(options).unwrap();
        plan.is_judged = true;
        let cost = Cost {
            hit_us: vec![("lru", estimate(&[3.0]))],
            above_hits_us: vec![("dear", estimate(&[0.1]))],
            above_misses_us: vec![("dear", estimate(&[0.2]))],
            pairs: 10,
            through_fuse: Vec::new(),
        };
        let sort = PROGRAMS.iter().find(|program| program.name == "sort").unwrap();
        let share = |lane: &str| match lane {
            "dear" => 0.9,
            "adaptive" => 0.3,
            _ => 0.5,
        };
        let all = [workload(&[sort], share)];
        let figures = results::figures(&all, Some(&cost), true);
        let said = text(&plan, &all, &cost, &figures, Duration::from_secs(1));
        let of = |name: &str| said.lines().find(|line| line.trim_start().starts_with(name)).expect("a line").to_owned();
        assert!(of("reads_saved.alone.dear ").ends_with("target 23  SHORT"), "{said}");
        assert!(of("hit_us.lru").ends_with("target at most 2  SHORT"), "{said}");
        assert!(!of("reads_saved.alone.adaptive").contains("SHORT"), "{said}");
        assert!(said.contains(PAGES) && said.contains("13.60 / 16.59 s = 0.82"), "{said}");
        let figures: Vec<Figure> = figures.into_iter().map(|figure| figure.judged(false)).collect();
        let look = text(&plan, &all, &cost, &figures, Duration::from_secs(1));
        assert!(!look.contains("SHORT") && look.contains("(no verdict)"), "{look}");
    }
}
