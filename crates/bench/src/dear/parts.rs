//! What the response time consists of: the parts of figure 8 of the paper, the work of the disk, and in words why the
//! paper's policy takes more or less time than LRU.
//!
//! Owns: these tables and sentences, which are made from the measurements alone. A policy with fewer misses can still
//! take more time: a disk serves reads that continue each other without a seek and without waiting for the platter, and
//! a policy that keeps blocks of the middle of a file leaves gaps in such reads.

use std::fmt::Write;

use super::execute::ProgramExecution;
use super::results::{WorkloadExecutions, saved};
use super::{BASE, CacheLane, DearPlan};

/// The lane that the sentences are about.
const SUBJECT: &str = "dear";
/// The difference of two times or lengths below which they count as equal, as a share.
const EQUAL: f64 = 0.05;
/// The share by which the page cache may have more than it is allowed without a mark: the kernel counts in steps.
const PAGES_OVER: f64 = 0.1;
/// The width of sentences, in columns.
const WIDTH: usize = 116;

/// What an execution has of something.
type OfExecution = fn(&ProgramExecution) -> f64;

/// The parts of the response time that the sentences name, each with how to compute it.
const PARTS: [(&str, OfExecution); 5] = [
    ("moving the arm", |one| one.seek_s),
    ("waiting for the platter", |one| one.rotation_s),
    ("moving bytes", |one| one.transfer_s),
    ("the fixed time of each request", rest_s),
    ("processors", processor_s),
];

/// The disk's fixed times of requests.
fn rest_s(one: &ProgramExecution) -> f64 {
    one.stall_s - one.seek_s - one.rotation_s - one.transfer_s
}

/// The response time without the disk.
fn processor_s(one: &ProgramExecution) -> f64 {
    one.response_s() - one.stall_s
}

/// Writes the parts of the response time, which figure 8 of the paper shows for the paper's size.
pub(super) fn decomposition(text: &mut String, is_at_paper: bool, workloads: &[&WorkloadExecutions]) {
    let of_paper = if is_at_paper { " (figure 8)" } else { "" };
    let _ = writeln!(text, "\nResponse time in its parts, in s{of_paper}");
    let _ = writeln!(
        text,
        "  {:10} {:10} {:>9} {:>9} {:>8} {:>8} {:>13} {:>11} {:>8} {:>8}",
        "", "", "response", "stall", "user", "system", "cache system", "cache user", "policy", "late"
    );
    for workload in workloads {
        for (lane, _) in &workload.lanes {
            let of = |part: fn(&ProgramExecution) -> f64| workload.mean(lane.name, part);
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
                of(ProgramExecution::response_s),
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

/// Writes what the disk did: its requests with their lengths, and the parts of the stall.
pub(super) fn disk_work(text: &mut String, workloads: &[&WorkloadExecutions]) {
    let _ = writeln!(text, "\nThe work of the disk: requests of how many blocks, and the parts of the stall in s");
    let _ = writeln!(
        text,
        "  {:16} {:10} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9} {:>8}",
        "", "", "reads", "blocks", "writes", "blocks", "seeks", "seek", "rotation", "transfer", "fixed"
    );
    for workload in workloads {
        for (lane, _) in &workload.lanes {
            let of = |part: fn(&ProgramExecution) -> f64| workload.mean(lane.name, part);
            let _ = writeln!(
                text,
                "  {:16} {:10} {:>8.0} {:>9.2} {:>8.0} {:>9.2} {:>8.0} {:>8.2} {:>9.2} {:>9.2} {:>8.2}",
                workload.name(),
                lane.name,
                of(|one| one.device_reads as f64),
                of(ProgramExecution::run_blocks),
                of(|one| one.device_writes() as f64),
                of(ProgramExecution::write_blocks),
                of(|one| one.seeks as f64),
                of(|one| one.seek_s),
                of(|one| one.rotation_s),
                of(|one| one.transfer_s),
                of(rest_s)
            );
        }
    }
}

/// Writes for each program why the paper's policy takes more or less time than LRU.
pub(super) fn reasons(text: &mut String, workloads: &[&WorkloadExecutions]) {
    let _ = writeln!(text, "\nWhy {SUBJECT} takes more or less time than {BASE} (from the tables above)");
    for workload in workloads {
        if let Some(reason) = reason(workload) {
            wrapped(text, &reason);
        }
    }
}

/// The sentences about one program; `None` if one of the two lanes did not run.
fn reason(workload: &WorkloadExecutions) -> Option<String> {
    let of = |lane: &str, part: fn(&ProgramExecution) -> f64| workload.mean(lane, part);
    let (base_s, own_s) = (of(BASE, ProgramExecution::response_s), of(SUBJECT, ProgramExecution::response_s));
    if !(base_s > 0.0 && own_s.is_finite()) {
        return None;
    }
    let fewer = saved(of(BASE, |one| one.block_reads as f64), of(SUBJECT, |one| one.block_reads as f64));
    let reads = match fewer < 0.0 {
        true => format!("{:.1} % more blocks read", -fewer),
        false => format!("{fewer:.1} % fewer blocks read"),
    };
    let difference_s = own_s - base_s;
    let mut said = match difference_s.abs() < EQUAL * base_s {
        true => format!("{}: {SUBJECT} takes as long as {BASE} ({difference_s:+.2} s), with {reads}.", workload.name()),
        false => format!(
            "{}: {SUBJECT} takes {:.2} s {} than {BASE} ({:+.0} %), with {reads}:",
            workload.name(),
            difference_s.abs(),
            if difference_s > 0.0 { "more" } else { "less" },
            100.0 * difference_s / base_s
        ),
    };
    if difference_s.abs() >= EQUAL * base_s {
        let mut parts = PARTS.map(|(name, part)| (name, of(SUBJECT, part) - of(BASE, part)));
        parts.sort_by(|left, right| (right.1 * difference_s).total_cmp(&(left.1 * difference_s)));
        let parts: Vec<String> = parts.iter().map(|(name, seconds)| format!("{name} {seconds:+.2} s")).collect();
        let _ = write!(said, " {}.", parts.join(", "));
    }
    said.push_str(&requests(workload));
    Some(said)
}

/// The sentences about the requests of one program's disk.
fn requests(workload: &WorkloadExecutions) -> String {
    let of = |lane: &str, part: fn(&ProgramExecution) -> f64| workload.mean(lane, part);
    let pair = |part: fn(&ProgramExecution) -> f64| (of(SUBJECT, part), of(BASE, part));
    let reads = pair(|one| one.device_reads as f64);
    let runs = pair(ProgramExecution::run_blocks);
    let writes = pair(|one| one.device_writes() as f64);
    let mut said = format!(
        " The disk gets {:.0} reads of {:.2} blocks ({BASE}: {:.0} of {:.2}) and {:.0} writes of {:.2} ({BASE}: {:.0} of \
         {:.2}).",
        reads.0,
        runs.0,
        reads.1,
        runs.1,
        writes.0,
        of(SUBJECT, ProgramExecution::write_blocks),
        writes.1,
        of(BASE, ProgramExecution::write_blocks)
    );
    if runs.0 < runs.1 * (1.0 - EQUAL) {
        said.push_str(" Its reads are shorter: blocks that it keeps leave gaps in what LRU reads in one run.");
    }
    if writes.0 > writes.1 * (1.0 + EQUAL) {
        said.push_str(" It also has more writes: reads come between those that the kernel would merge.");
    }
    said
}

/// Writes sentences in lines of bounded width; the second and later lines are indented.
fn wrapped(text: &mut String, said: &str) {
    let mut column = 0;
    for word in said.split(' ') {
        if column == 0 {
            let _ = write!(text, "  {word}");
            column = 2 + word.len();
        } else if column + 1 + word.len() > WIDTH {
            let _ = write!(text, "\n    {word}");
            column = 4 + word.len();
        } else {
            let _ = write!(text, " {word}");
            column += 1 + word.len();
        }
    }
    text.push('\n');
}

/// Writes how many bytes the kernel's page cache had, which should be those of the policies' blocks.
pub(super) fn page_memory(text: &mut String, plan: &DearPlan, workloads: &[&WorkloadExecutions]) {
    let lanes: Vec<&CacheLane> = plan.lanes.iter().filter(|lane| lane.policy.is_none()).collect();
    if lanes.is_empty() {
        return;
    }
    let _ =
        writeln!(text, "\nMemory of the kernel's page cache in MiB: allowed, mean once it is full (0: never), most");
    for workload in workloads {
        let _ = write!(text, "  {:16}", workload.name());
        for lane in &lanes {
            let of = |part: fn(&super::page_memory::PageUse) -> u64| {
                let bytes = |one: &ProgramExecution| one.pages.as_ref().map_or(f64::NAN, |pages| part(pages) as f64);
                workload.mean(lane.name, bytes) / f64::from(1 << 20)
            };
            let (allowed, full) = (of(|pages| pages.allowed_bytes), of(|pages| pages.full_mean_bytes));
            let most = of(|pages| pages.most_bytes);
            let mark = if full > allowed * (1.0 + PAGES_OVER) { " MORE THAN ALLOWED" } else { "" };
            let _ = write!(text, " {:>10} {allowed:7.2} {full:7.2} {most:7.2}{mark}", lane.name);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_memory::PageUse;
    use super::super::results::tests::workload;
    use super::super::{BenchCacheOptions, PROGRAMS};
    use super::*;

    /// A program under LRU, and under `dear` with other requests of the disk.
    fn ld(dear: &ProgramExecution) -> WorkloadExecutions {
        let mut one = workload(&[&PROGRAMS[3]], |_| 1.0);
        for (lane, executions) in &mut one.lanes {
            for execution in executions {
                *execution = match lane.name {
                    SUBJECT => dear.clone(),
                    _ => lru(),
                };
            }
        }
        one
    }

    fn lru() -> ProgramExecution {
        ProgramExecution {
            block_reads: 1535,
            device_reads: 600,
            device_requests: 840,
            device_read_bytes: 1500 * 8192,
            stall_s: 4.4,
            seek_s: 1.0,
            rotation_s: 2.0,
            transfer_s: 0.9,
            user_s: 0.2,
            is_virtual: true,
            ..ProgramExecution::default()
        }
    }

    #[test]
    fn slower_run_with_fewer_reads_explained() {
        let broken = ProgramExecution {
            block_reads: 1516,
            device_reads: 750,
            device_requests: 1050,
            stall_s: 7.6,
            seek_s: 1.5,
            rotation_s: 4.6,
            ..lru()
        };
        let said = reason(&ld(&broken)).expect("both ran");
        assert!(
            said.starts_with("ld: dear takes 3.20 s more than lru (+70 %), with 1.2 % fewer blocks read: "),
            "{said}"
        );
        assert!(said.contains("read: waiting for the platter +2.60 s, moving the arm +0.50 s,"), "{said}");
        assert!(said.contains("750 reads of 2.00 blocks (lru: 600 of 2.50) and 300 writes of"), "{said}");
        assert!(said.contains("reads are shorter") && said.contains("more writes"), "{said}");
    }

    #[test]
    fn equal_times_are_called_equal() {
        let said = reason(&ld(&ProgramExecution { stall_s: 4.5, ..lru() })).expect("both ran");
        assert!(said.contains("takes as long as lru (+0.10 s), with 0.0 % fewer"), "{said}");
        assert!(!said.contains("platter") && !said.contains("shorter") && !said.contains("more writes"), "{said}");
        let mut one = ld(&lru());
        one.lanes.truncate(2);
        assert_eq!(reason(&one), None);
    }

    #[test]
    fn wrapped_lines_keep_all_words() {
        let said = "several words ".repeat(40);
        let mut text = String::new();
        wrapped(&mut text, said.trim());
        assert!(text.lines().all(|line| line.len() <= WIDTH) && text.lines().count() > 4, "{text}");
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), said.split_whitespace().collect::<Vec<_>>());
    }

    /// Lanes whose page cache had more memory than others are marked.
    #[test]
    fn oversized_page_caches_are_marked() {
        let mut one = ld(&lru());
        for (lane, executions) in &mut one.lanes {
            let full_mean_bytes = if lane.reads_ahead { 8 << 20 } else { 6 << 20 };
            let pages = PageUse { allowed_bytes: 6 << 20, full_mean_bytes, most_bytes: 9 << 20, looks: 7 };
            executions.iter_mut().for_each(|execution| execution.pages = Some(pages));
        }
        let plan =
            DearPlan::new(BenchCacheOptions { only: vec!["sort".to_owned()], ..BenchCacheOptions::default() }).unwrap();
        let mut text = String::new();
        page_memory(&mut text, &plan, &[&one]);
        let line = text.lines().last().expect("a line");
        assert!(line.ends_with("pages+ra    6.00    8.00    9.00 MORE THAN ALLOWED"), "{line}");
        assert_eq!(line.matches("MORE").count(), 1, "{line}");
    }

    #[test]
    fn parts_of_the_disk_add_up() {
        let mut text = String::new();
        disk_work(&mut text, &[&ld(&lru())]);
        let line = text.lines().find(|line| line.contains(" dear ")).expect("a line");
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["ld", "dear", "600", "2.50", "240", "0.00", "0", "1.00", "2.00", "0.90", "0.50"]);
    }
}
