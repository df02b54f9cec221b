//! The report as text: figures, a table for each link, and the meaning of its columns.

use std::fmt::Write;
use std::time::Duration;

use super::contender::{CLIENT_BYTES, DISK_BYTES, DONOR_BYTES, LIMIT, MODEL};
use super::loops::LoopTimes;
use super::network::LinkRate;
use super::samples::{LoopSamples, LoopStep};
use super::{FILE_BYTES, FilesPlan};
use crate::{ReportFigure, machine};

/// The figures that the paper gives in its text; its plots 11 and 12 show the others.
const SEED: &str = "\
the paper, 16,384 files of 2 KB, creating: magnetic disk 12.629 ms a file (79 files/s); network RAM disk without
redundancy, with block caching, ATM at 155 Mb/s: 7.601 ms (131 files/s), 1.66 times as fast. Deleting at random:
every network RAM disk faster than the disk; with adaptive parity caching close to the one without redundancy";

const LEGEND: [(&str, &str); 6] = [
    (
        "create, delete",
        "the loop alone, in ms a file and files a second; on a synchronous mount each file is written at once",
    ),
    ("written", "the same with the final sync counted"),
    ("cpu", "processor time of donors and of the process that serves the block device, for a file created and deleted"),
    ("sync", "mounted sync and dirsync; async: as file systems are mounted"),
    (
        "none-2",
        "two donors, no redundancy; none-4: four; cached: a block cache before it, with its memory from the client's",
    ),
    (LIMIT, "the same path to the block device without a network: the limit"),
];

/// Writes the whole report.
pub(super) fn text(plan: &FilesPlan, samples: &LoopSamples, figures: &[ReportFigure], took: Duration) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "bench files --seed nrd: {}", machine::describe());
    let _ = writeln!(
        text,
        "files of {FILE_BYTES} bytes on {} of {} MiB; client of {} MiB, donors of {} MiB; {} rounds; took {:.0} s",
        plan.options.system.name(),
        DISK_BYTES >> 20,
        CLIENT_BYTES >> 20,
        DONOR_BYTES >> 20,
        plan.rounds,
        took.as_secs_f64()
    );
    let _ = writeln!(text, "times are real, and neighbours on the machine change them: compare within this run");
    for line in &plan.not_run {
        let _ = writeln!(text, "{line}");
    }
    if plan.options.quick {
        let _ = writeln!(text, "a quick run: no verdicts");
    }
    let _ = writeln!(text, "{SEED}");
    let _ = writeln!(
        text,
        "\nFigures (how many times as long the other takes, everything written; range of the pairs of {} rounds)",
        plan.rounds
    );
    for figure in figures {
        text.push_str(&figure.line(58, 2));
    }
    let local = plan.contenders.iter().any(|contender| !contender.is_remote());
    if local {
        table(&mut text, plan, samples, None);
    }
    for &link in &plan.links {
        table(&mut text, plan, samples, Some(link));
    }
    let _ = writeln!(text, "\nColumns");
    for (name, meaning) in LEGEND {
        let _ = writeln!(text, "  {name:15} {meaning}");
    }
    text
}

/// One row per contender and loop.
fn table(text: &mut String, plan: &FilesPlan, samples: &LoopSamples, link: Option<LinkRate>) {
    let title = match link {
        None => format!("On this machine ({MODEL} in real time, first come, first served)"),
        Some(LinkRate::Unshaped) => "Over links as fast as the machine".to_owned(),
        Some(LinkRate::Shaped(rate)) => format!("Over links of {rate} Mb/s"),
    };
    let _ = writeln!(text, "\n{title}");
    let _ = writeln!(
        text,
        "  {:18} {:5} {:>6} {:8} {:>10} {:>8} {:>10} {:>10} {:>8} {:>10} {:>8}",
        "",
        "mount",
        "files",
        "order",
        "create ms",
        "files/s",
        "written ms",
        "delete ms",
        "files/s",
        "written ms",
        "cpu ms"
    );
    for which in samples.which() {
        for contender in plan.contenders.iter().filter(|contender| contender.is_remote() == link.is_some()) {
            let some = samples.of(contender.name, link, which);
            if some.is_empty() {
                continue;
            }
            let ms = |of: &dyn Fn(&LoopTimes) -> f64| LoopSamples::median_ms(&some, |sample| of(&sample.taken));
            let (create, delete) = (ms(&|taken| taken.create_s), ms(&|taken| taken.delete_s));
            let _ = writeln!(
                text,
                "  {:18} {:5} {:>6} {:8} {create:>10.3} {:>8.0} {:>10.3} {delete:>10.3} {:>8.0} {:>10.3} {:>8.3}",
                contender.name,
                if which.is_synchronous { "sync" } else { "async" },
                which.files,
                which.order.name(),
                1e3 / create,
                ms(&|taken| LoopStep::Create.written_s(taken)),
                1e3 / delete,
                ms(&|taken| LoopStep::Delete.written_s(taken)),
                LoopSamples::median_ms(&some, |sample| sample.processor_s),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{report, tests::sampled};
    use super::*;

    /// The text has the paper's values, the contenders that do not run, and a table for each link.
    #[test]
    fn nrd_text_has_table_per_link() {
        let (plan, samples) = sampled(|_| 1.0);
        let report = report(&plan, samples, Duration::from_secs(61));
        let text = report.text();
        for part in ["12.629 ms a file", "mirror-2: NOT RUN", "On this machine", "10 Mb/s", "took 61 s", "SHORT"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.len() < 150) && !text.contains("NaN"), "{text}");
    }
}
