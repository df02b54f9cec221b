//! Made-up experiments, and what is drawn and judged from them, beside golden files.
//!
//! `NECTARY_FREEZE=1` writes the golden files again.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::drawing::tests::is_well_formed;
use crate::statistics::IntervalEstimate;

/// A directory that is gone when this is dropped.
struct EvaluationFolder(PathBuf);

impl EvaluationFolder {
    fn new(name: &str) -> EvaluationFolder {
        let path = std::env::temp_dir().join(format!("nectary-evaluation-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        EvaluationFolder(path)
    }
}

impl Drop for EvaluationFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compares with a golden file, or writes it.
#[track_caller]
fn is_golden(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/evaluation/golden").join(name);
    if std::env::var_os("NECTARY_FREEZE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, found).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let differs = golden.lines().zip(found.lines()).position(|(left, right)| left != right);
    let line = differs.unwrap_or(golden.lines().count().min(found.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("the end").to_owned();
    assert!(golden == found, "{name}, line {}: {:?}, and golden is {:?}", line + 1, at(found), at(&golden));
}

fn figure(name: &str, unit: &'static str, (value, low, high): (f64, f64, f64)) -> ReportFigure {
    ReportFigure::new(name, unit, IntervalEstimate { value, low, high })
}

fn noted(mut report: ExperimentReport, command: &str) -> ExperimentReport {
    let note = RunNote {
        command: command.to_owned(),
        took_s: 61.0,
        load: Some(0.12),
        version: "0.1.0".to_owned(),
        commit: "0123abcd".to_owned(),
        text: "what it <printed>\n".to_owned(),
        ..RunNote::default()
    };
    report.more.insert(RUN.to_owned(), serde_json::to_value(note).unwrap());
    report
}

fn setting() -> Value {
    json!({ "machine": "2 x Processor, Linux 6.1, load 0.12 0.3 0.5", "scale": 0.03125, "requests": 150_000, "threads": 1,
            "tools": { "mkfs.xfs": "mkfs.xfs version 6.1.0" }, "skipped": ["btrfs.50: mkfs.btrfs is missing"] })
}

fn store_row(contender: &str, seed: u64, factor: f64) -> Value {
    json!({
        "group": "4gb", "contender": contender, "seed": seed, "hit_rate": 0.6, "hit_ms": factor, "disk_hit_ms": 2.0 * factor,
        "put_ms": factor / 2.0, "disk_ios": 30_000.0 * factor, "disk_io_ms": 9.0, "run_s": 40.0 * factor + seed as f64,
        "disk_counts": [{ "operations": 100 }, { "operations": 130 }], "pieces": [{ "run_s": factor }, { "run_s": factor }],
        "request_ms": { "read_ms": factor, "write_ms": 0.5, "daemon_ms": 0.1, "other_ms": 0.2 },
    })
}

fn store_table4() -> ExperimentReport {
    let lanes =
        [("nectary", 1.0), ("ext4-dirsync.50", 8.0), ("xfs.50", 3.0), ("ext4-dirsync.128", 8.0), ("xfs.128", 2.9)];
    let rows = [1, 2].into_iter().flat_map(|seed| lanes.map(|(name, factor)| store_row(name, seed, factor)));
    let figures = vec![
        figure("ratio.4gb.nectary-again", "x", (1.0, 0.99, 1.01)),
        figure("ratio.4gb.xfs.50", "x", (3.0, 2.9, 3.1)).at_least(4.6),
        figure("ratio.4gb.ext4-dirsync.50", "x", (8.0, 7.9, 8.1)).at_least(13.0),
        figure("written_per_byte_put.4gb", "B", (1.23, 1.22, 1.24)).at_most(1.25),
        figure("hit_rate_beyond_peers.4gb", "points", (f64::NAN, f64::NAN, f64::NAN)).at_least(0.0),
    ];
    noted(
        ExperimentReport::new("store-table4", setting(), figures, rows.collect(), String::new()),
        "nectary bench store --seed table4",
    )
}

fn io_ncar() -> ExperimentReport {
    let mut figures = Vec::new();
    for (series, rate) in [
        ("volume.client.read.direct.streams1", 300.0),
        ("volume.client.read.direct.streams2", 400.0),
        ("xfs.client.read.direct.streams1", 500.0),
        ("raw.client.read.direct.streams1", 600.0),
    ] {
        for size in ["64k", "1m"] {
            figures.push(figure(&format!("ncar.{series}.{size}"), "MiB/s", (rate, rate * 0.9, rate * 1.1)));
        }
    }
    let name = "ncar.volume.client.read.direct.streams1.1m.added_over_bare";
    figures.push(figure(name, "x", (1.4, 1.4, 1.4)).at_most(1.25).judged(false));
    noted(
        ExperimentReport::new("io-ncar", setting(), figures, Vec::new(), String::new()),
        "nectary bench io . --matrix ncar",
    )
}

/// An evaluation with two experiments, one that did not run, and others that are not there.
fn evaluation() -> Evaluation {
    let mut ram = ExperimentReport::new("ram", setting(), Vec::new(), Vec::new(), String::new());
    let note = RunNote { not_run: Some("there is no fio: apt-get install fio".to_owned()), ..RunNote::default() };
    ram.more.insert(RUN.to_owned(), serde_json::to_value(note).unwrap());
    Evaluation { experiments: vec![store_table4(), io_ncar(), ram] }
}

fn written(folder: &Path, evaluation: &Evaluation) {
    for report in &evaluation.experiments {
        let path = folder.join(format!("{}.json", report.experiment));
        replace_file(&path, &serde_json::to_vec_pretty(report).unwrap()).unwrap();
    }
}

#[test]
fn pages_are_drawn_from_json_alone() {
    let scratch = EvaluationFolder::new("page");
    written(&scratch.0, &evaluation());
    let read = Evaluation::read(&scratch.0).unwrap();
    let names: Vec<&str> = read.experiments.iter().map(|one| one.experiment.as_str()).collect();
    assert_eq!(names, ["store-table4", "io-ncar", "ram"], "the order of the steps, not of names");
    let html = page(&read);
    assert_eq!(html, page(&evaluation()));
    // The figures of the NCAR report alone would be most of the golden file.
    let mut without = evaluation();
    without.experiments.remove(1);
    is_golden("report.html", &page(&without));
}

#[test]
fn pages_need_nothing_from_outside() {
    let html = page(&evaluation());
    is_well_formed(&html);
    for outside in ["http:", "https:", "//", "src=", "<link", "<script", "@import", "url(", "<img", "<iframe"] {
        assert!(!html.contains(outside), "{outside}");
    }
    for target in html.split("href=\"").skip(1).filter_map(|part| part.split('"').next()) {
        match target.strip_prefix('#') {
            Some(id) => assert_eq!(html.matches(&format!("id=\"{id}\"")).count(), 1, "{id}"),
            None => assert!(target.ends_with(".json") && !target.contains('/'), "{target}"),
        }
    }
    assert!(html.contains("what it &lt;printed&gt;"));
}

#[test]
fn pages_have_each_seed_figure_once() {
    let mut without = evaluation();
    without.experiments.remove(1);
    for evaluation in [evaluation(), without, Evaluation::default()] {
        let html = page(&evaluation);
        for item in seed_items() {
            assert_eq!(html.matches(&format!("id=\"{}\"", item.id)).count(), 1, "{}", item.id);
        }
    }
    let html = page(&Evaluation::default());
    assert!(html.contains("NOT RUN") && !html.contains("NaN"), "{html}");
}

#[test]
fn lost_figures_come_before_the_seeds() {
    let html = page(&evaluation());
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}"));
    let order = [
        "id=\"run\"",
        "id=\"lost\"",
        "ratio.4gb.ext4-dirsync.50",
        "id=\"table-4\"",
        "id=\"ncar-figure-20\"",
        "id=\"raw\"",
    ];
    assert!(order.map(at).is_sorted(), "{:?}", order.map(at));
    // 13 wanted, 8 measured; the seed's 128,878 s beside 321.5 s for 32 times as many requests.
    for text in ["38.5 % of it", "128,878 | <b>10,288", "NOT RUN</span>: there is no fio"] {
        at(text);
    }
}

#[test]
fn claims_follow_the_measurements() {
    let judged = claims(&evaluation());
    let verdict = |name: &str| judged.iter().find(|claim| claim.name == name).unwrap().verdict;
    for (name, expected) in [
        ("throughput-4", ClaimVerdict::Reproduced),
        ("efs-writes", ClaimVerdict::NotReproduced),
        ("efs-limit", ClaimVerdict::NotTestable),
        ("thread-safe", ClaimVerdict::NotMeasured),
        ("nrd-creates", ClaimVerdict::NotMeasured),
    ] {
        assert_eq!(verdict(name), expected, "{name}");
    }
    is_golden("claims.txt", &claims_text(&judged));
    let mut names: Vec<&str> = judged.iter().map(|claim| claim.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), judged.len());
}

#[test]
fn comparisons_need_intervals_that_are_apart() {
    let of = |figures| Evaluation {
        experiments: vec![ExperimentReport::new("ram", json!({}), figures, Vec::new(), String::new())],
    };
    let old = of(vec![
        figure("faster", "IOPS", (10.0, 9.0, 11.0)),
        figure("slower", "IOPS", (10.0, 9.0, 11.0)),
        figure("longer", "ms", (10.0, 9.0, 11.0)),
        figure("overlapping", "IOPS", (10.0, 9.0, 11.0)),
        figure("once", "IOPS", (10.0, 10.0, 10.0)),
        figure("read.again", "x", (1.0, 0.9, 1.1)),
        figure("gone", "x", (1.0, 0.9, 1.1)),
    ]);
    let new = of(vec![
        figure("faster", "IOPS", (20.0, 19.0, 21.0)),
        figure("slower", "IOPS", (5.0, 4.0, 6.0)),
        figure("longer", "ms", (20.0, 19.0, 21.0)),
        figure("overlapping", "IOPS", (12.0, 10.9, 13.0)),
        figure("once", "IOPS", (20.0, 20.0, 20.0)),
        figure("read.again", "x", (2.0, 1.9, 2.1)),
        figure("added", "x", (1.0, 0.9, 1.1)),
    ]);
    let compared = compare(&old, &new);
    let of = |name: &str| compared.iter().find(|one| one.name == name).unwrap().comparison;
    assert_eq!(
        [of("slower"), of("longer"), of("faster")],
        [FigureComparison::Worse, FigureComparison::Worse, FigureComparison::Better]
    );
    assert_eq!([of("overlapping"), of("once")], [FigureComparison::NotApart, FigureComparison::NoVerdict]);
    assert_eq!(
        [of("read.again"), of("gone"), of("added")],
        [FigureComparison::Changed, FigureComparison::OnlyOne, FigureComparison::OnlyOne]
    );
    assert_eq!(compared[0].comparison, FigureComparison::Worse, "the worse ones are first");
    is_golden("compared.txt", &compared_text(&compared));
}

/// A comparison of a quick run with a full one has no verdict.
#[test]
fn quick_runs_never_compare_to_full() {
    let of = |quick: bool, value: f64| {
        let figures = vec![figure("rate", "IOPS", (value, value - 1.0, value + 1.0))];
        Evaluation {
            experiments: vec![ExperimentReport::new(
                "ram",
                json!({ "quick": quick }),
                figures,
                Vec::new(),
                String::new(),
            )],
        }
    };
    assert_eq!(compare(&of(false, 10.0), &of(true, 50.0))[0].comparison, FigureComparison::NoVerdict);
    assert_eq!(compare(&of(true, 10.0), &of(true, 50.0))[0].comparison, FigureComparison::Better);
}

#[test]
fn design_figures_have_states_and_pages() {
    let scratch = EvaluationFolder::new("figures");
    written(&scratch.0, &evaluation());
    fs::write(
        scratch.0.join("faster.md"),
        "  fill nectary 2351.3 MB/s 4.0 us  fio 3197.5 MB/s 0.4 us  ratio 0.749 (0.681 to 0.798)  target 0.75  SHORT\n",
    )
    .unwrap();
    let stated = stated_figures(Some(&scratch.0)).unwrap();
    let of = |name: &str| stated.iter().find(|one| one.name == name).unwrap();
    assert_eq!(
        (of("store.table-4").state, of("store.table-4").page.as_deref()),
        (FigureState::NotReached, Some("store-table4.json"))
    );
    assert_eq!(of("store.written").state, FigureState::Reached);
    assert_eq!(of("store.hit-rate").state, FigureState::NotMeasured, "it has no value");
    assert_eq!(
        (of("store.fill").state, of("store.fill").page.as_deref()),
        (FigureState::NotReached, Some("faster.md"))
    );
    assert_eq!(of("volume.ncar-direct").state, FigureState::NotMeasured, "a quick run gives no verdict");
    assert_eq!(of("ram.one-donor").state, FigureState::NotMeasured);
    assert_eq!(of("store.restart").state, FigureState::Elsewhere);
    is_golden("figures.txt", &stated_text(&stated));
    assert!(stated_figures(None).unwrap().iter().all(|one| one.page.is_none()));
    let empty = EvaluationFolder::new("figures-empty");
    assert_eq!(stated_figures(Some(&empty.0)).unwrap_err().kind, ExperimentErrorKind::Missing);
}

#[test]
fn files_of_something_else_are_refused() {
    let scratch = EvaluationFolder::new("refused");
    assert_eq!(Evaluation::read(&scratch.0).unwrap_err().kind, ExperimentErrorKind::Missing);
    assert_eq!(Evaluation::read(&scratch.0.join("no")).unwrap_err().kind, ExperimentErrorKind::Missing);
    fs::write(scratch.0.join(".ram.json.part"), "{").unwrap();
    fs::write(scratch.0.join("ram.json"), "{").unwrap();
    let error = Evaluation::read(&scratch.0).unwrap_err();
    assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains("ram.json"), "{error}");
}
