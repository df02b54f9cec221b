//! The report of a run: its figures, and whether one of them misses its target.
//!
//! Owns: which ratios are figures, and which have a target. Leaves to others: times and ratios (`samples`), tables
//! (`text`).

use std::time::Duration;

use serde_json::{Value, json};

use super::contender::{AGAIN, BASE, LIMIT, LOCAL, MODEL};
use super::loops::{DeletionOrder, LoopTimes};
use super::network::LinkRate;
use super::samples::{LoopSample, LoopSamples, LoopStep};
use super::{FILE_BYTES, FilesPlan, plot, text};
use crate::drawing::svg_file;
use crate::{ExperimentReport, ReportFigure, machine};

/// A synchronously mounted network RAM disk must be this many times as fast as a local disk, if [`LIMIT`] is.
const TARGET_LOCAL: f64 = 4.0;
/// Parity may cost a tenth of the time of mirroring on synchronous mounts, and of no redundancy on others.
const TARGET_PARITY: f64 = 1.0 / 1.1;
/// The network RAM disk with parity for which these targets are, and the one with mirrors.
const PARITY: &str = "adaptive-3";
const MIRROR: &str = "mirror-2";
/// It must be this many times as fast as the model of a disk of the paper's time.
const TARGET_MODEL: f64 = 8.0;

/// Makes the report of a run.
pub(super) fn report(plan: &FilesPlan, samples: Vec<LoopSample>, took: Duration) -> ExperimentReport {
    let samples = LoopSamples(samples);
    let figures = figures(plan, &samples);
    let system = plan.options.system.name();
    let setting = json!({
        "machine": machine::describe(), "seconds": took.as_secs_f64(), "rounds": plan.rounds, "file_system": system,
        "file_bytes": FILE_BYTES, "seed": plan.options.seed, "not_run": plan.not_run, "quick": plan.options.quick,
    });
    let experiment = if system == "ext4" { "files-nrd".to_owned() } else { format!("files-nrd-{system}") };
    let text = text::text(plan, &samples, &figures, took);
    let report = ExperimentReport::new(&experiment, setting, figures, rows(plan, &samples), text);
    let svg = svg_file(&experiment, &plot::pictures(&report));
    report.with_svg(svg)
}

fn figures(plan: &FilesPlan, samples: &LoopSamples) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    let all = samples.which();
    let largest = all
        .iter()
        .filter(|which| !which.is_synchronous && which.order == DeletionOrder::Random)
        .max_by_key(|which| which.files);
    let synchronous = all.iter().find(|which| which.is_synchronous);
    for (which, how) in [(synchronous, "sync"), (largest, "written")] {
        let Some(&which) = which else { continue };
        for &link in &plan.links {
            for contender in plan.contenders.iter().filter(|contender| contender.is_remote()) {
                for step in [LoopStep::Create, LoopStep::Delete] {
                    let others = match contender.name {
                        AGAIN => [BASE].as_slice(),
                        PARITY => &[LOCAL, MODEL, BASE, MIRROR],
                        _ => &[LOCAL, MODEL],
                    };
                    for &other in others {
                        let Some(ratio) = samples.ratio(Some(link), which, other, contender.name, step) else {
                            continue;
                        };
                        let name = format!("{}.{how}.{}.{}.over_{other}", step.name(), link.name(), contender.name);
                        let (target, is_judged) = match (contender.name, link, how, other) {
                            (BASE, LinkRate::Unshaped, "sync", LOCAL) => {
                                let limit = samples.ratio(Some(link), which, LOCAL, LIMIT, step);
                                (Some(TARGET_LOCAL), limit.is_some_and(|limit| limit.value >= TARGET_LOCAL))
                            }
                            (BASE, LinkRate::Unshaped, "sync", MODEL) => (Some(TARGET_MODEL), true),
                            (PARITY, LinkRate::Unshaped, "sync", MIRROR)
                            | (PARITY, LinkRate::Unshaped, "written", BASE) => (Some(TARGET_PARITY), true),
                            _ => (None, false),
                        };
                        let is_judged = is_judged && !plan.options.quick;
                        figures.push(ReportFigure::new(name, "x", ratio).at_least(target).judged(is_judged));
                    }
                }
            }
        }
    }
    figures.sort_by_key(|figure| {
        let is_missed = figure.target.is_some_and(|target| figure.value < target);
        (!figure.name.contains(AGAIN), !is_missed, figure.target.is_none())
    });
    figures
}

fn rows(plan: &FilesPlan, samples: &LoopSamples) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut add = |link: Option<LinkRate>, contender: &str| {
        for which in samples.which() {
            let some = samples.of(contender, link, which);
            if some.is_empty() {
                continue;
            }
            let ms = |of: fn(&LoopTimes) -> f64| LoopSamples::median_ms(&some, |sample| of(&sample.taken));
            rows.push(json!({
                "link": link.map_or("none".to_owned(), LinkRate::name), "contender": contender, "files": which.files,
                "order": which.order, "is_synchronous": which.is_synchronous,
                "create_ms": ms(|taken| taken.create_s), "create_written_ms": ms(|taken| LoopStep::Create.written_s(taken)),
                "delete_ms": ms(|taken| taken.delete_s), "delete_written_ms": ms(|taken| LoopStep::Delete.written_s(taken)),
                "processor_ms": LoopSamples::median_ms(&some, |sample| sample.processor_s), "samples": some,
            }));
        }
    };
    for contender in &plan.contenders {
        match contender.is_remote() {
            false => add(None, contender.name),
            true => plan.links.iter().for_each(|&link| add(Some(link), contender.name)),
        }
    }
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::contender::ContenderFileSystem;
    use crate::files::{BenchFilesOptions, CONTENDERS};

    /// A plan without a runtime, and samples in which each contender takes `seconds`.
    pub fn sampled(seconds: impl Fn(&str) -> f64) -> (FilesPlan, Vec<LoopSample>) {
        sampled_of(&[LOCAL, MODEL, LIMIT, BASE, AGAIN], seconds)
    }

    fn sampled_of(names: &[&str], seconds: impl Fn(&str) -> f64) -> (FilesPlan, Vec<LoopSample>) {
        let options = BenchFilesOptions {
            quick: false,
            only: Vec::new(),
            links: Vec::new(),
            rounds: None,
            system: ContenderFileSystem::Ext4,
            folder: ".".into(),
            seed: 1,
        };
        let contenders: Vec<_> = CONTENDERS.into_iter().filter(|one| names.contains(&one.name)).collect();
        let (links, loops) = (vec![LinkRate::Unshaped, LinkRate::Shaped(10)], vec![(100, DeletionOrder::Random)]);
        let not_run = vec!["mirror-2: NOT RUN: not there".to_owned()];
        let plan = FilesPlan { options, contenders, not_run, links, rounds: 2, loops, synchronous_files: 10 };
        let mut samples = Vec::new();
        for contender in &plan.contenders {
            let links = if contender.is_remote() { plan.links.iter().copied().map(Some).collect() } else { vec![None] };
            for link in links {
                for (round, is_synchronous) in [(0, false), (0, true), (1, true), (1, false)] {
                    let time = seconds(contender.name);
                    let taken =
                        LoopTimes { create_s: time, create_sync_s: time, delete_s: time / 2.0, delete_sync_s: 0.0 };
                    let (order, files) = (DeletionOrder::Random, if is_synchronous { 10 } else { 100 });
                    let contender = contender.name;
                    samples.push(LoopSample {
                        contender,
                        link,
                        round,
                        is_synchronous,
                        order,
                        files,
                        taken,
                        processor_s: 0.1,
                    });
                }
            }
        }
        (plan, samples)
    }

    fn time(local: f64) -> impl Fn(&str) -> f64 {
        move |name| match name {
            LOCAL => local,
            MODEL => 9.0,
            LIMIT => 0.5,
            _ => 1.0,
        }
    }

    /// Noise is the first figure, and short figures follow it.
    #[test]
    fn files_report_puts_noise_first() {
        let (plan, samples) = sampled(time(3.0));
        let report = report(&plan, samples, Duration::from_secs(1));
        assert!(report.figures[0].name.contains("none-2-again.over_none-2"), "{}", report.figures[0].name);
        let short: Vec<&str> =
            report.figures.iter().filter(|figure| figure.is_short()).map(|figure| &*figure.name).collect();
        assert_eq!(short, ["create.sync.unshaped.none-2.over_disk", "delete.sync.unshaped.none-2.over_disk"]);
        assert!(report.is_short());
        let model = report.figures.iter().find(|one| one.name == "delete.sync.unshaped.none-2.over_hdd-1999").unwrap();
        assert_eq!((model.value, model.target, model.is_judged), (9.0, Some(8.0), true));
    }

    /// Parity is compared with mirrors where writes wait, and with no redundancy where they do not.
    #[test]
    fn parity_figures_have_two_targets() {
        let found = |parity: f64| {
            let (plan, samples) = sampled_of(&[BASE, PARITY, MIRROR], |name| if name == PARITY { parity } else { 1.0 });
            let figures = figures(&plan, &LoopSamples(samples));
            let with_target = figures.into_iter().filter(|figure| figure.target.is_some());
            with_target.map(|figure| (figure.is_short(), figure.name)).collect::<Vec<_>>()
        };
        let names = |all: &[(bool, String)]| all.iter().map(|one| one.1.clone()).collect::<Vec<_>>();
        let (good, bad) = (found(1.05), found(1.2));
        let mut sorted = names(&good);
        sorted.sort();
        let expected = ["create", "delete"].map(|step| {
            [
                format!("{step}.sync.unshaped.adaptive-3.over_mirror-2"),
                format!("{step}.written.unshaped.adaptive-3.over_none-2"),
            ]
        });
        assert_eq!(sorted, expected.concat());
        assert!(good.iter().all(|one| !one.0) && bad.iter().all(|one| one.0), "{good:?} {bad:?}");
    }

    /// No verdict on the ratio to a disk that the network's path cannot beat by the target.
    #[test]
    fn unbeatable_local_disk_not_judged() {
        let (plan, samples) = sampled(time(1.5));
        let report = report(&plan, samples, Duration::from_secs(1));
        let local = report.figures.iter().find(|one| one.name == "create.sync.unshaped.none-2.over_disk").unwrap();
        assert!(!local.is_judged && !report.is_short(), "{local:?}");
        assert!(report.text().contains("no verdict"), "{}", report.text());
    }

    #[test]
    fn rows_are_median_ms_per_file() {
        let (plan, samples) = sampled(time(3.0));
        let rows = rows(&plan, &LoopSamples(samples));
        // Three without a link, two over two links, each with two loops.
        assert_eq!(rows.len(), (3 + 2 * 2) * 2);
        assert_eq!(rows[0]["contender"], "disk");
        assert_eq!((&rows[0]["create_ms"], &rows[0]["create_written_ms"]), (&json!(30.0), &json!(60.0)));
    }
}
