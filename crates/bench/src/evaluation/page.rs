//! The report: one HTML file, drawn from the JSON of an evaluation.
//!
//! Owns: the order of the page. First what was run on what, then what lost and by how much, then each table and figure
//! of the seeds by its number with the seed's values beside, what the seeds do not have, their claims, and in the end
//! all raw figures with the command behind them. Promises: the page needs nothing from outside, no script either; each
//! table and figure of the seeds is in it once, with the reason where it has no values; text from files is escaped.

use std::fmt::Write;

use super::claims::{ClaimVerdict, claims};
use super::losses::losses;
use super::sections::{beyond, body, ncar, table};
use super::seeds::{NO_RECOVERY, SeedItem, seed_items};
use super::{EVALUATION_STEPS, Evaluation, RunNote, is_not_run, note, number, proxy_tables, with_interval};
use crate::drawing::{STYLE, escaped};
use crate::{ExperimentReport, ReportFigure};

const CSS: &str = include_str!("page.css");

/// Draws the page.
pub fn page(evaluation: &Evaluation) -> String {
    let items = seed_items();
    let length = if evaluation.is_quick() { "a quick run: a look, without verdicts" } else { "a full run" };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Nectary: the experiments</title>\n<style>\n{CSS}{STYLE}</style>\n</head>\n<body>\n\
         <h1>Nectary: the experiments</h1>\n<p>{length}. Drawn by <code>nectary bench report</code> from the JSON files \
         beside this page.</p>\n"
    );
    html += &contents(evaluation, &items);
    html += &what_was_run(evaluation);
    html += &what_lost(evaluation);
    html += "<h2 id=\"seeds\">The seeds' tables and figures</h2>\n";
    html += &slips(&items);
    for item in items.iter().filter(|item| item.experiment != "io-ncar") {
        let (id, title) = (escaped(&item.id), escaped(&item.title));
        let _ = writeln!(html, "<section id=\"{id}\">\n<h3>{title}</h3>");
        html += &match evaluation.get(item.experiment) {
            Some(report) => format!("{}{}", behind(report), body(&item.id, report)),
            None if item.experiment.is_empty() => not_run(NO_RECOVERY),
            None => not_run(&evaluation.why_not(item.experiment)),
        };
        html += "</section>\n";
    }
    html += &of_ncar(evaluation, &items);
    html += &beyond_the_seeds(evaluation);
    html += &what_was_claimed(evaluation);
    html += &raw(evaluation);
    html + "</body>\n</html>\n"
}

fn not_run(why: &str) -> String {
    format!("<p class=\"bad\">NOT RUN: {}</p>\n", escaped(why))
}

/// The command behind an experiment, and its raw data.
fn behind(report: &ExperimentReport) -> String {
    let RunNote { command, .. } = note(report);
    let name = escaped(&report.experiment);
    let command = if command.is_empty() { format!("of {name}") } else { format!("<code>{}</code>", escaped(&command)) };
    format!(
        "<p class=\"note\">{command}; <a href=\"#raw-{name}\">figures and tables</a>, <a href=\"{name}.json\">JSON</a></p>\n"
    )
}

/// Whether an experiment has no table or figure of the seeds.
fn is_beyond(report: &ExperimentReport) -> bool {
    !seed_items().iter().any(|item| item.experiment == report.experiment)
}

fn contents(evaluation: &Evaluation, items: &[SeedItem]) -> String {
    let mut html = String::from("<nav><ul>\n");
    let link = |id: &str, title: &str| format!("<li><a href=\"#{}\">{}</a></li>\n", escaped(id), escaped(title));
    for (id, title) in [("run", "What was run on what"), ("lost", "What lost, and by how much")] {
        html += &link(id, title);
    }
    items.iter().for_each(|item| html += &link(&item.id, &item.title));
    html += &link("beyond", "Beyond the seeds");
    for report in evaluation.experiments.iter().filter(|report| is_beyond(report)) {
        html += &link(&format!("beyond-{}", report.experiment), &format!("Beyond the seeds: {}", report.experiment));
    }
    for (id, title) in [("claims", "What the seeds claim"), ("raw", "All figures")] {
        html += &link(id, title);
    }
    html + "</ul></nav>\n"
}

fn what_was_run(evaluation: &Evaluation) -> String {
    let mut machines: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for report in &evaluation.experiments {
        // The load is another one in each experiment, and has a column.
        let machine = report.setting["machine"].as_str().unwrap_or("an unknown machine");
        let machine = machine.split(", load").next().unwrap_or(machine);
        if !machines.contains(&machine) {
            machines.push(machine);
        }
        let RunNote { command, took_s, load, version, commit, not_run, .. } = note(report);
        let shows = EVALUATION_STEPS.iter().find(|step| step.name == report.experiment).map_or("", |step| step.shows);
        let state = match &not_run {
            Some(why) => format!("<span class=\"bad\">NOT RUN</span>: {}", escaped(why)),
            None if took_s > 0.0 => format!("{} s", number(took_s.round())),
            None => "read from a file".to_owned(),
        };
        rows.push(vec![
            escaped(&report.experiment),
            escaped(shows),
            format!("<code>{}</code>", escaped(&command)),
            state,
            load.map_or("-".to_owned(), number),
            escaped(format!("{version} {commit}").trim()),
        ]);
    }
    for step in
        EVALUATION_STEPS.iter().filter(|step| !evaluation.experiments.iter().any(|one| one.experiment == step.name))
    {
        let state = "<span class=\"bad\">NOT RUN</span>: it is not in this directory".to_owned();
        rows.push(vec![escaped(step.name), escaped(step.shows), String::new(), state, "-".to_owned(), String::new()]);
    }
    let machines: Vec<String> = machines.iter().map(|machine| escaped(machine)).collect();
    format!(
        "<h2 id=\"run\">What was run on what</h2>\n<p>{}</p>\n{}{}",
        machines.join("<br>\n"),
        table(&["experiment", "shows", "command", "took", "load before", "version, commit"], &rows),
        peers(evaluation)
    )
}

/// What the experiments say of versions of peers, and of what they left out.
fn peers(evaluation: &Evaluation) -> String {
    let mut lines: Vec<String> = Vec::new();
    for report in &evaluation.experiments {
        if let Some(tools) = report.setting["tools"].as_object() {
            lines.extend(
                tools.iter().map(|(name, version)| format!("{name}: {}", version.as_str().unwrap_or_default())),
            );
        }
        for list in ["not_run", "skipped", "excused"] {
            let all = report.setting[list].as_array().map_or(&[][..], Vec::as_slice);
            lines.extend(all.iter().filter_map(|one| Some(format!("{}: {}", report.experiment, one.as_str()?))));
        }
    }
    lines.sort();
    lines.dedup();
    let lines: String = lines.iter().map(|line| format!("<li>{}</li>\n", escaped(line))).collect();
    if lines.is_empty() { lines } else { format!("<p>Peers, and what is left out:</p>\n<ul>\n{lines}</ul>\n") }
}

fn what_lost(evaluation: &Evaluation) -> String {
    let lost = losses(evaluation);
    let rows = lost.iter().map(|lost| {
        let most = if lost.figure.is_at_most { "at most " } else { "" };
        let wanted = match lost.figure.target {
            Some(_) => format!("target {most}{}", number(lost.wanted)),
            None => "as fast as the peer".to_owned(),
        };
        let unit = if lost.wanted.abs() < 1e-9 { "of 1" } else { "of it" };
        let verdict = if lost.is_judged { "<span class=\"bad\">missed</span>" } else { "no verdict" };
        vec![
            escaped(&lost.experiment),
            escaped(&lost.figure.name),
            escaped(&with_interval(&lost.figure)),
            wanted,
            format!("{} % {unit}", number(lost.missing_percent)),
            verdict.to_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let judged = lost.iter().filter(|lost| lost.is_judged).count();
    format!(
        "<h2 id=\"lost\">What lost, and by how much</h2>\n<p>{judged} figures miss their target or are slower than a peer; \
         {} more are below it in runs that are too short for a verdict.</p>\n{}",
        lost.len() - judged,
        table(&["experiment", "figure", "measured", "wanted", "missing", "verdict"], &rows)
    )
}

fn slips(items: &[SeedItem]) -> String {
    let slips = items.iter().filter(|item| !item.slip.is_empty());
    let lines: String =
        slips.map(|item| format!("<li>{}: {}</li>\n", escaped(&item.title), escaped(item.slip))).collect();
    format!("<p>Slips of the seeds, and what is followed:</p>\n<ul>\n{lines}</ul>\n")
}

/// The figures of the NCAR report, which share their axes.
fn of_ncar(evaluation: &Evaluation, items: &[SeedItem]) -> String {
    let mut html = String::from(
        "<h3>NCAR, Figures 1 to 20</h3>\n<p>The report's numbers are only in its plots, which the seed documents do not \
         have: what can be compared is the set of figures. CXFS is a shared volume here, Magic the client host (3 GB), \
         Redcloud the server's host (128 MB).</p>\n",
    );
    match evaluation.get("io-ncar") {
        Some(report) => html + &behind(report) + &ncar(report),
        None => {
            let why = evaluation.why_not("io-ncar");
            for item in items.iter().filter(|item| item.experiment == "io-ncar") {
                let (id, title) = (escaped(&item.id), escaped(&item.title));
                let _ = writeln!(html, "<section id=\"{id}\">\n<p>{title}</p>\n{}</section>", not_run(&why));
            }
            html
        }
    }
}

fn beyond_the_seeds(evaluation: &Evaluation) -> String {
    let mut html = String::from("<h2 id=\"beyond\">Beyond the seeds</h2>\n");
    for report in evaluation.experiments.iter().filter(|report| is_beyond(report)) {
        let name = escaped(&report.experiment);
        let _ = writeln!(html, "<h3 id=\"beyond-{name}\">{name}</h3>");
        match note(report).not_run {
            Some(why) => html += &not_run(&why),
            None => {
                html += &behind(report);
                let with_target: Vec<&ReportFigure> =
                    report.figures.iter().filter(|one| one.target.is_some()).collect();
                if !with_target.is_empty() {
                    html += &figures(&with_target);
                }
                if report.experiment == "proxy" {
                    html += &proxy_tables::tables(report);
                }
                html += &beyond(report);
            }
        }
    }
    html
}

/// A table of figures with their targets and verdicts.
fn figures(all: &[&ReportFigure]) -> String {
    let rows = all.iter().map(|figure| {
        let most = if figure.is_at_most { "at most " } else { "" };
        let target = figure.target.map_or(String::new(), |target| format!("{most}{}", number(target)));
        let verdict = match (figure.is_short(), figure.target) {
            (true, _) => "<span class=\"bad\">missed</span>",
            (false, Some(_)) if !figure.is_judged || !figure.value.is_finite() => "no verdict",
            (false, Some(_)) => "<span class=\"good\">reached</span>",
            _ => "",
        };
        vec![escaped(&figure.name), escaped(&with_interval(figure)), target, verdict.to_owned()]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    table(&["figure", "value (interval)", "target", "verdict"], &rows)
}

fn what_was_claimed(evaluation: &Evaluation) -> String {
    let rows = claims(evaluation).into_iter().map(|claim| {
        let class = match claim.verdict {
            ClaimVerdict::Reproduced => "good",
            ClaimVerdict::NotReproduced | ClaimVerdict::NotMeasured => "bad",
            ClaimVerdict::NotTestable => "pale",
        };
        let look = if claim.is_quick { " (a look)" } else { "" };
        vec![
            escaped(claim.seed),
            escaped(claim.claim),
            format!("<span class=\"{class}\">{}</span>{look}", claim.verdict.words()),
            escaped(&claim.why),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    format!(
        "<h2 id=\"claims\">What the seeds claim</h2>\n{}",
        table(&["seed", "claim", "verdict", "numbers, or why"], &rows)
    )
}

/// Every figure of every experiment, and what it printed.
fn raw(evaluation: &Evaluation) -> String {
    let mut html = String::from("<h2 id=\"raw\">All figures</h2>\n");
    for report in evaluation.experiments.iter().filter(|report| !is_not_run(report)) {
        let name = escaped(&report.experiment);
        let all: Vec<&ReportFigure> = report.figures.iter().collect();
        let _ = write!(
            html,
            "<details id=\"raw-{name}\">\n<summary>{name}: {} figures, {} rows</summary>\n{}{}<pre>{}</pre>\n</details>\n",
            all.len(),
            report.rows.len(),
            behind(report),
            figures(&all),
            escaped(&note(report).text)
        );
    }
    html
}
