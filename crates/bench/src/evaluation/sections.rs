//! The sections of the report about tables and figures of the seeds: the seed's values, and those of this run beside.
//!
//! Owns: these tables. Counts and run times of `bench store` are shown for the seed's number of requests. Leaves to
//! others: the page around them (`page`), pictures (the experiments).

use std::fmt::Write;

use serde_json::Value;

use super::number;
use super::seeds::{
    DEAR_BY_SIZE, DEAR_SAVED, NRD_CREATE_MS, NRD_FILES, NRD_LINK, SEED_REQUESTS, SeedRow, TABLE4, TABLE5,
};
use crate::drawing::{ChartGrid, escaped};
use crate::statistics::{IntervalEstimate, estimate, median};
use crate::{ExperimentReport, dear, files, io, proxy, store};

/// A table with headings; cells are HTML.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(heading));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = writeln!(html, "<tr>{cells}</tr>");
    }
    html + "</tbody></table></div>\n"
}

/// A number with its interval, if it has one.
pub(super) fn cell(found: IntervalEstimate) -> String {
    match found.low < found.high {
        true => {
            format!("{} <small>{} to {}</small>", number(found.value), number(found.low), number(found.high))
        }
        false => number(found.value),
    }
}

/// The body of a seed's table or figure. NCAR's figures are drawn in groups: [`ncar`].
pub(super) fn body(id: &str, report: &ExperimentReport) -> String {
    match id {
        "table-4" => seed_table(&TABLE4, report) + &grids(&store::pictures(report)),
        "table-5" => seed_table(&TABLE5, report) + &grids(&store::pictures(report)),
        "dear-figure-7" => saved(report) + &grid(&dear::pictures(report), 0),
        "dear-figure-8" => grid(&dear::pictures(report), 1),
        "dear-sensitivity" => sensitivity(report),
        "nrd-figure-11" => creating(report) + &grid(&files::nrd_pictures(report), 0),
        "nrd-figure-12" => grid(&files::nrd_pictures(report), 1),
        _ => String::new(),
    }
}

/// The figures of the NCAR report.
pub(super) fn ncar(report: &ExperimentReport) -> String {
    grids(&io::ncar_pictures(report))
}

/// The pictures of an experiment of which the seeds have no table or figure.
pub(super) fn beyond(report: &ExperimentReport) -> String {
    match report.experiment.as_str() {
        "store-bare" => grids(&store::pictures(report)),
        "io" => grids(&io::sweep_pictures(report)),
        "proxy" => grids(&proxy::pictures(report)),
        _ => String::new(),
    }
}

fn grids(grids: &[ChartGrid]) -> String {
    grids.iter().map(ChartGrid::html).collect()
}

fn grid(all: &[ChartGrid], index: usize) -> String {
    all.get(index).map_or(String::new(), ChartGrid::html)
}

/// The seed's table with this run beside.
fn seed_table(rows: &[SeedRow], report: &ExperimentReport) -> String {
    let factor = SEED_REQUESTS / report.setting["requests"].as_f64().unwrap_or(f64::NAN);
    let base_s = |row: &SeedRow| {
        rows.iter().rfind(|one| one.here.0 == row.here.0 && is_own(one)).map_or(f64::NAN, |one| one.run_s)
    };
    let base = |group: &str| here(report, (group, "nectary"), "run_s");
    let lines = rows.iter().map(|row| {
        let of = |column: &str| here(report, row.here, column);
        let scaled = |column: &str| of(column).iter().map(|value| value * factor).collect::<Vec<_>>();
        // What a file system reads is what the proxy's cache did not have; Nectary has no cache before it.
        let read = if is_own(row) { "hit_ms" } else { "disk_hit_ms" };
        let ratios: Vec<f64> = of("run_s").iter().zip(base(row.here.0)).map(|(value, base)| value / base).collect();
        let pair = |seed: f64, found: &[f64]| format!("{} | <b>{}</b>", number(seed), cell(estimate(found)));
        vec![
            format!("{} | <b>{}</b>", escaped(row.system), escaped(row.here.1)),
            escaped(row.disk),
            escaped(row.memory),
            pair(row.hit_rate, &of("hit_rate")),
            pair(row.read_ms, &of(read)),
            pair(row.write_ms, &of("put_ms")),
            pair(row.ios, &scaled("disk_ios")),
            pair(row.io_ms, &of("disk_io_ms")),
            pair(row.run_s, &scaled("run_s")),
            pair(row.run_s / base_s(row), &ratios),
        ]
    });
    let lines: Vec<Vec<String>> = lines.collect();
    let headings = [
        "file system",
        "disk",
        "memory, MB",
        "hit rate",
        "FS read, ms",
        "FS write, ms",
        "disk I/Os",
        "disk I/O, ms",
        "run time, s",
        "times Nectary's",
    ];
    let scale = report.setting["scale"].as_f64().unwrap_or(f64::NAN);
    format!(
        "<p>The seed's value | <b>this run's</b>, the median over seeds of the workload with its interval. Disks and memory \
         are scaled by {}; I/Os and run times are shown for the seed's 4.8 million requests.</p>\n{}",
        number(scale),
        table(&headings, &lines)
    )
}

fn is_own(row: &SeedRow) -> bool {
    row.here.1.starts_with("nectary")
}

/// A column of a contender, for each seed of the workload.
fn here(report: &ExperimentReport, (group, contender): (&str, &str), column: &str) -> Vec<f64> {
    let rows = report.rows.iter().filter(|row| row["group"] == group && row["contender"] == contender);
    rows.filter_map(|row| row[column].as_f64()).collect()
}

/// What DEAR saves, beside what the paper says.
fn saved(report: &ExperimentReport) -> String {
    let lines = DEAR_SAVED.iter().map(|(name, mean, greatest)| {
        let found = report.figures.iter().find(|figure| figure.name == *name);
        vec![
            escaped(name),
            format!("{mean} (at most {greatest})"),
            found.map_or("-".to_owned(), |figure| cell(figure.found())),
        ]
    });
    let lines: Vec<Vec<String>> = lines.collect();
    table(&["saved against LRU, percent", "the paper's mean", "this run's mean"], &lines)
}

/// Replays with other sizes, periods and numbers of sublists, for each program.
fn sensitivity(report: &ExperimentReport) -> String {
    let all = report.more.get("sensitivity").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut lines = Vec::new();
    for one in all.iter().filter(|one| one["blocks"].as_u64() == Some(dear::BLOCKS)) {
        let name = one["workload"].as_str().unwrap_or_default();
        let varied = one["known"]["sensitivity"].as_array().map_or(&[][..], Vec::as_slice);
        let misses = |policy: &str, like: &Value| {
            let found = varied.iter().find(|other| {
                other["policy"] == policy && other["parameter"] == like["parameter"] && other["value"] == like["value"]
            });
            found.and_then(|found| found["counts"]["misses"].as_f64())
        };
        for (index, point) in varied.iter().filter(|point| point["policy"] == "dear").enumerate() {
            let parameter = point["parameter"].as_str().unwrap_or_default();
            let own = misses("dear", point).unwrap_or(f64::NAN);
            let lru = misses("lru", point).or_else(|| one["known"]["lru"]["misses"].as_f64()).unwrap_or(f64::NAN);
            let seed = DEAR_BY_SIZE.iter().find(|seed| seed.0 == name && parameter == "size");
            let seed = seed.and_then(|seed| seed.1.get(index));
            lines.push(vec![
                escaped(name),
                escaped(&format!("{parameter} {}", point["value"])),
                number(own),
                number(lru),
                number(own / lru),
                seed.map_or("-".to_owned(), |(dear, lru)| format!("{dear} / {lru} s = {}", number(dear / lru))),
            ]);
        }
    }
    let headings =
        ["program", "blocks, references or sublists", "misses, DEAR", "misses, LRU", "ratio", "the paper's times"];
    match lines.is_empty() {
        true => "<p>NOT RUN: no program was replayed.</p>\n".to_owned(),
        false => table(&headings, &lines),
    }
}

/// The times of creating files that the paper prints.
fn creating(report: &ExperimentReport) -> String {
    let lines = NRD_CREATE_MS.iter().map(|(contender, seed_name, seed_ms)| {
        let rows = report.rows.iter().filter(|row| {
            row["contender"] == *contender
                && (row["link"] == NRD_LINK || row["link"] == "none")
                && row["files"].as_u64() == Some(NRD_FILES)
                && row["order"] == "random"
                && row["is_synchronous"] == Value::Bool(false)
        });
        let found: Vec<f64> = rows.filter_map(|row| row["create_written_ms"].as_f64()).collect();
        let here = if found.is_empty() { format!("not run with {NRD_FILES} files") } else { number(median(&found)) };
        vec![escaped(&format!("{seed_name} | {contender}")), number(*seed_ms), here]
    });
    let lines: Vec<Vec<String>> = lines.collect();
    table(&["creating 16,384 files over ATM | 155 Mb/s, ms a file", "the paper", "this run"], &lines)
}
