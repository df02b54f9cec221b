//! The report as text: the conditions and figures of the run, figures 7 and 8 of the paper as tables, sensitivity, and
//! the meaning of the columns.

use std::fmt::Write;
use std::time::Duration;

use nectary_cache::table_bytes;

use super::cost::CacheCosts;
use super::execute::{MODEL, ProgramExecution};
use super::replay::{ParameterReplay, ReplayAgreement};
use super::results::{RunResults, WorkloadExecutions, saved};
use super::{AGAIN, BASE, BLOCK_BYTES, BLOCKS, DearPlan, PAGES, PAGES_AHEAD, parts};
use crate::{ReportFigure, machine};

/// The paper's averages for 6 MB: for single programs, and for several at once.
const SEED: &str = "the paper, DEAR against LRU: alone 23 % fewer reads (51 % at most) and 12 % less time (35 %); \
                    together 12 % (20 %) and 8 % (18 %)";

const LEGEND: [(&str, &str); 11] = [
    (AGAIN, "LRU, run a second time: smaller differences than between these two are noise"),
    ("dear", "each program with its processes is one stream, as in the paper"),
    ("dear-files", "each pair of a process and a file is a stream, as under a mount; so is it for adaptive"),
    ("block reads", "blocks of 8 KiB that the cache read; of the page cache: bytes read by 8 KiB"),
    ("requests", "requests to the block device by the kernel's count, reads and writes"),
    ("stall", "the time that the modelled disk was busy until the last program ended"),
    ("user, system", "processor time of the programs; system is FUSE, file system and copies"),
    ("cache system", "the cache process in the kernel: FUSE, the file system below, driver"),
    ("cache user", "the cache process in itself; policy is the replacement's part, measured by a replay"),
    ("late", "disk time after the end for what was still to be written; in no other column"),
    ("+- %", "half of the difference between the greatest and the least execution, in % of the mean"),
];

/// Writes the whole report.
pub(super) fn text(
    plan: &DearPlan,
    found: &RunResults,
    cost: &CacheCosts,
    figures: &[ReportFigure],
    took: Duration,
) -> String {
    let mut text = String::new();
    conditions(&mut text, plan, took);
    for line in &plan.not_run {
        let _ = writeln!(text, "{line}");
    }
    if !plan.is_judged {
        let _ =
            writeln!(text, "no verdict on savings: that takes every program and mix, three times, at {BLOCKS} blocks");
    }
    let _ = writeln!(
        text,
        "\nFigures (the mean over programs of what is saved against LRU; range over executions)\n  {SEED}"
    );
    for figure in figures {
        text.push_str(&figure.line(34, 3));
    }
    let _ = writeln!(text, "  {} pairs for each cost", cost.pairs);
    for blocks in found.sizes() {
        size(&mut text, plan, blocks, &found.at(blocks));
    }
    if !found.fitting.is_empty() {
        let _ = writeln!(text, "\nWhat fits into the cache: every policy reads each block once, so nothing ran");
        for one in &found.fitting {
            let _ = writeln!(text, "  {:16} {} blocks of {}", one.name, one.distinct, one.blocks);
        }
    }
    agreement(&mut text, found);
    for workload in &found.workloads {
        sensitivity(&mut text, workload);
    }
    let _ = writeln!(text, "\nColumns");
    for (name, meaning) in LEGEND {
        let _ = writeln!(text, "  {name:13} {meaning}");
    }
    text
}

/// Writes the machine and the conditions of the run.
fn conditions(text: &mut String, plan: &DearPlan, took: Duration) {
    let _ = writeln!(text, "bench cache --seed dear: {}", machine::describe());
    for excuse in &plan.options.excused {
        let _ = writeln!(text, "RUN ANYWAY (--anyway): {excuse}");
    }
    let sizes: Vec<String> =
        plan.sizes.iter().map(|blocks| format!("{blocks} ({} MiB)", (blocks * BLOCK_BYTES) >> 20)).collect();
    let _ = writeln!(
        text,
        "{} blocks of 8 KiB for the policy, no readahead; disk {MODEL}; {} execution(s) each; took {:.0} s",
        sizes.join(" and "),
        plan.executions,
        took.as_secs_f64()
    );
    for blocks in &plan.sizes {
        let _ = writeln!(text, "beside {blocks} blocks, tables of the policies in KiB: {}", tables(plan, *blocks));
    }
    let _ = writeln!(
        text,
        "{PAGES}: the kernel's page cache with as many bytes as these blocks, without readahead (it reads pages of 4 KiB);\n\
         {PAGES_AHEAD}: the same with the kernel's readahead of 128 KiB, which the policies do not have"
    );
    let _ = writeln!(
        text,
        "programs alone on a virtual clock, which neighbours on the machine do not change; mixes and the costs of a hit in real\n\
         time (the disk {} times faster), which they do: compare within this run, and see the load above",
        plan.speed
    );
}

/// The memory that each policy needs beside its blocks, which no lane is charged for: all have the same number of
/// blocks, as in the paper.
fn tables(plan: &DearPlan, blocks: u64) -> String {
    let mut policies: Vec<&str> = plan.lanes_at(blocks).iter().filter_map(|lane| lane.policy).collect();
    let mut seen = std::collections::HashSet::new();
    policies.retain(|policy| seen.insert(*policy));
    let each = policies.iter().map(|policy| format!("{policy} {}", table_bytes(policy, blocks).div_ceil(1024)));
    each.collect::<Vec<_>>().join(", ")
}

/// Writes the tables of one size of the cache.
fn size(text: &mut String, plan: &DearPlan, blocks: u64, workloads: &[&WorkloadExecutions]) {
    let at = if plan.sizes.len() > 1 { format!(", {blocks} blocks") } else { String::new() };
    let of_paper = if blocks == BLOCKS { " (figure 7)" } else { "" };
    for (is_alone, when) in [(true, "alone, virtual clock"), (false, "together, real time")] {
        let some: Vec<&WorkloadExecutions> =
            workloads.iter().copied().filter(|workload| workload.is_alone() == is_alone).collect();
        if some.is_empty() {
            continue;
        }
        table(text, &some, &format!("Block reads, {when}{at}{of_paper}"), 0, &|one| one.block_reads as f64);
        table(text, &some, &format!("Device requests, {when}{at}"), 0, &|one| one.device_requests as f64);
        table(text, &some, &format!("Response time in s, {when}{at}{of_paper}"), 2, &ProgramExecution::response_s);
    }
    let alone: Vec<&WorkloadExecutions> = workloads.iter().copied().filter(|workload| workload.is_alone()).collect();
    if blocks == BLOCKS && !alone.is_empty() {
        beside_the_seed(text, &alone);
    }
    if !alone.is_empty() {
        parts::decomposition(text, blocks == BLOCKS, &alone);
    }
    parts::disk_work(text, workloads);
    if !alone.is_empty() {
        parts::reasons(text, &alone);
    }
    parts::page_memory(text, plan, workloads);
}

/// Writes a table with one row per program and one column per lane.
fn table(
    text: &mut String,
    workloads: &[&WorkloadExecutions],
    title: &str,
    digits: usize,
    of: &dyn Fn(&ProgramExecution) -> f64,
) {
    let Some(first) = workloads.first() else { return };
    let lanes = &first.lanes;
    let _ = write!(text, "\n{title}\n  {:16}", "");
    for (lane, _) in lanes {
        let _ = write!(text, " {:>10}", lane.name);
    }
    for workload in workloads {
        let _ = write!(text, "\n  {:16}", workload.name());
        for (lane, _) in lanes {
            let _ = write!(text, " {:>10.digits$}", workload.mean(lane.name, of));
        }
        let _ = write!(text, "\n  {:16}", "  +- %");
        for (lane, _) in lanes {
            let (least, greatest) = workload.range(lane.name, of);
            let _ = write!(text, " {:>10.1}", 50.0 * (greatest - least) / workload.mean(lane.name, of));
        }
        let _ = write!(text, "\n  {:16}", "  saved %");
        let base = workload.mean(BASE, of);
        for (lane, _) in lanes {
            let _ = write!(text, " {:>10.1}", saved(base, workload.mean(lane.name, of)));
        }
    }
    text.push('\n');
}

/// Writes the paper's response times with 6 MB, and ours. Both are ratios of DEAR to LRU, because the machines differ.
fn beside_the_seed(text: &mut String, workloads: &[&WorkloadExecutions]) {
    let _ = writeln!(text, "\nResponse time under DEAR over that under LRU, 6 MB: the paper's and ours");
    for workload in workloads {
        let ours =
            workload.mean("dear", ProgramExecution::response_s) / workload.mean(BASE, ProgramExecution::response_s);
        let seed = workload.programs.first().and_then(|program| program.seed_s);
        let seed = match seed {
            Some((dear, lru)) => format!("{dear:.2} / {lru:.2} s = {:.2}", dear / lru),
            None => "not in its text".to_owned(),
        };
        let _ = writeln!(text, "  {:10} paper {seed:28} ours {ours:.2}", workload.name());
    }
}

/// Writes whether the replays, from which the last tables come, have the counts of the executions.
fn agreement(text: &mut String, found: &RunResults) {
    let all: Vec<(&WorkloadExecutions, &ReplayAgreement)> =
        found.workloads.iter().flat_map(|one| one.agreements.iter().map(move |agreement| (one, agreement))).collect();
    if all.is_empty() {
        return;
    }
    let differ: Vec<_> = all.iter().filter(|entry| !entry.1.holds()).collect();
    let _ = writeln!(
        text,
        "\nReplays of the recorded references, beside executions of the same policy and size: {} of {} differ",
        differ.len(),
        all.len()
    );
    let _ = writeln!(
        text,
        "  the recorded execution has to be equal, the means of others may differ by 2 %; adaptive and dear-files have other\n\
         \x20 streams than the record, which is of one stream for each program"
    );
    for (workload, agreement) in differ {
        let _ = writeln!(
            text,
            "  {} under {} of {} blocks DIFFERS: {} misses and {} reads in the replay, {:.0} and {:.0} live",
            workload.name(),
            agreement.lane,
            workload.blocks,
            agreement.replayed.0,
            agreement.replayed.1,
            agreement.live.0,
            agreement.live.1
        );
    }
}

/// Writes the replays of the recorded references with one parameter changed. They have no times: a read that continues
/// the last one takes a fraction of the time of another, and a replay does not know which reads these are.
fn sensitivity(text: &mut String, workload: &WorkloadExecutions) {
    let Some(known) = &workload.known else { return };
    let live = (workload.mean(BASE, |one| one.cache.misses as f64), workload.mean(BASE, |one| one.block_reads as f64));
    let _ = writeln!(
        text,
        "\n{}, {} blocks: {} references of {} blocks; LRU misses {} in the replay and {:.0} live (reads {} and {:.0}), MIN \
         misses {} (reads {})",
        workload.name(),
        workload.blocks,
        known.lru.references,
        known.distinct,
        known.lru.misses,
        live.0,
        known.lru.reads,
        live.1,
        known.min.misses,
        known.min.reads
    );
    for of_parameter in known.sensitivity.chunk_by(|left, right| left.parameter == right.parameter) {
        let parameter = of_parameter[0].parameter;
        let _ = write!(text, "  {parameter:9}");
        for of_value in of_parameter.chunk_by(|left, right| left.value == right.value) {
            let value = match parameter {
                "size" => format!("{} MiB", (of_value[0].value * BLOCK_BYTES) >> 20),
                _ => of_value[0].value.to_string(),
            };
            let reads = |varied: &ParameterReplay| format!("{} {} reads", varied.policy, varied.counts.reads);
            let each: Vec<String> = of_value.iter().map(reads).collect();
            let _ = write!(text, " {value}: {};", each.join(", "));
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::{ReplayCounts, ReplayResults};
    use super::super::results::tests::workload;
    use super::super::results::{self, FittingProgram};
    use super::super::{BenchCacheOptions, PROGRAMS};
    use super::*;
    use crate::statistics::estimate;

    fn plan() -> DearPlan {
        let mut plan =
            DearPlan::new(BenchCacheOptions { only: vec!["sort".to_owned()], ..BenchCacheOptions::default() }).unwrap();
        plan.is_judged = true;
        plan
    }

    fn cost() -> CacheCosts {
        CacheCosts {
            hit_us: vec![("lru", estimate(&[3.0]))],
            above_hits_us: vec![("dear", estimate(&[0.1]))],
            above_misses_us: vec![("dear", estimate(&[0.2]))],
            pairs: 10,
            through_fuse: Vec::new(),
        }
    }

    fn said(plan: &DearPlan, found: &RunResults) -> String {
        text(plan, found, &cost(), &[], Duration::from_secs(1))
    }

    /// Short figures are marked, and a quick run has no verdict.
    #[test]
    fn text_marks_short_figures() {
        let plan = plan();
        let sort = PROGRAMS.iter().find(|program| program.name == "sort").unwrap();
        let share = |lane: &str| match lane {
            "dear" => 0.9,
            "adaptive" => 0.3,
            _ => 0.5,
        };
        let found = RunResults { workloads: vec![workload(&[sort], share)], ..RunResults::default() };
        let figures = results::figures(&found, Some(&cost()), true);
        let said = text(&plan, &found, &cost(), &figures, Duration::from_secs(1));
        let of = |name: &str| said.lines().find(|line| line.trim_start().starts_with(name)).expect("a line").to_owned();
        assert!(of("reads_saved.alone.dear ").ends_with("target 23  SHORT"), "{said}");
        assert!(of("hit_us.lru").ends_with("target at most 2  SHORT"), "{said}");
        assert!(!of("reads_saved.alone.adaptive").contains("SHORT"), "{said}");
        assert!(said.contains(PAGES_AHEAD) && said.contains("13.60 / 16.59 s = 0.82"), "{said}");
        assert!(!said.contains("--anyway") && !said.contains("What fits"), "{said}");
        let figures: Vec<ReportFigure> = figures.into_iter().map(|figure| figure.judged(false)).collect();
        let look = text(&plan, &found, &cost(), &figures, Duration::from_secs(1));
        assert!(!look.contains("SHORT") && look.contains("(no verdict)"), "{look}");
    }

    /// The text names the excuses, and the programs that fit into the cache.
    #[test]
    fn text_names_excuses_and_fits() {
        let mut plan = plan();
        plan.options.excused = vec!["the load is 3.12".to_owned()];
        let fitting = vec![FittingProgram { name: "ld".to_owned(), distinct: 2463, blocks: 65_536 }];
        let said = said(&plan, &RunResults { fitting, ..RunResults::default() });
        assert!(said.contains("RUN ANYWAY (--anyway): the load is 3.12\n"), "{said}");
        assert!(said.contains("  ld               2463 blocks of 65536\n"), "{said}");
        assert!(said.contains("768 (6 MiB) and 65536 (512 MiB) blocks"), "{said}");
        let tables = said.lines().find(|line| line.starts_with("beside 768 blocks")).expect("a line");
        assert!(
            tables.matches("lru ").count() == 1 && tables.contains("adaptive ") && !tables.contains(" 0"),
            "{tables}"
        );
    }

    #[test]
    fn replays_that_differ_are_named() {
        let mut one = workload(&[&PROGRAMS[3]], |_| 1.0);
        let counts = ReplayCounts { references: 5932, misses: 3803, reads: 2673 };
        one.known = Some(ReplayResults { lru: counts, ..ReplayResults::default() });
        let agreement = |live| ReplayAgreement { lane: "lru".to_owned(), replayed: (3803, 2673), live, accepted: 0.02 };
        one.agreements = vec![agreement((3803.0, 2673.0))];
        let found = |one: &WorkloadExecutions| RunResults { workloads: vec![one.clone()], ..RunResults::default() };
        let good = said(&plan(), &found(&one));
        assert!(good.contains("0 of 1 differ") && !good.contains("DIFFERS") && found(&one).agrees(), "{good}");
        one.agreements.push(agreement((2665.0, 1535.0)));
        let bad = said(&plan(), &found(&one));
        let line = "ld under lru of 768 blocks DIFFERS: 3803 misses and 2673 reads in the replay, 2665 and 1535 live";
        assert!(bad.contains(line) && bad.contains("1 of 2 differ") && !found(&one).agrees(), "{bad}");
    }
}
