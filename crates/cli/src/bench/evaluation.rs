//! `nectary bench all`, `report`, `compare`, `claims` and `figures`: all experiments as one.
//!
//! Owns: what these commands print, and their exit codes. Leaves to others: the evaluation
//! (`nectary_bench::evaluation`).

use std::io::{IsTerminal, Write};

use anyhow::Context;
use nectary_bench::evaluation::{
    AllOptions, ClaimVerdict, Evaluation, FigureComparison, PAGE_NAME, claims, claims_text, compare, compared_text,
    drawn_items, note, page, replace_file, run, stated_figures, stated_text,
};
use nectary_bench::store::RunProgress;

use super::{commit, process_of, with_progress};
use crate::arguments::{
    BenchAllArguments, BenchClaimsArguments, BenchCompareArguments, BenchFiguresArguments, BenchReportArguments,
};
use crate::exit::{CommandFailure, FAILED, GOOD};
use crate::output;

/// Runs what has no results yet, draws the report, and says what did not run.
pub fn run_all(arguments: &BenchAllArguments) -> Result<u8, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let options = AllOptions {
        report: arguments.report.clone(),
        folder: arguments.folder.clone(),
        is_quick: arguments.quick,
        only: arguments.only.clone(),
        commit: commit().unwrap_or_default(),
    };
    let guardian = process_of(&program, "guardian");
    let evaluation = with_progress(|progress| {
        let mut said = String::new();
        run(&options, &program, guardian, &mut |step| {
            say_begin(step, &mut said);
            progress(step);
        })
    })?;
    let path = arguments.report.join(PAGE_NAME);
    replace_file(&path, page(&evaluation).as_bytes())?;
    let mut text = String::new();
    let mut not_run = 0;
    for report in &evaluation.experiments {
        let note = note(report);
        let state = match note.not_run {
            Some(why) => {
                not_run += 1;
                format!("NOT RUN: {why}")
            }
            None => format!("{:.0} s, {} figures", note.took_s, report.figures.len()),
        };
        text += &format!("{:14} {state}\n", report.experiment);
    }
    let count = evaluation.experiments.len();
    text += &format!("{} of {count} experiments ran; {}\n", count - not_run, path.display());
    output::text(&text)?;
    Ok(if not_run > 0 { FAILED } else { GOOD })
}

/// Says on a standard error stream that is no terminal, which has no bar, that an experiment begins.
fn say_begin(step: &RunProgress, said: &mut String) {
    let name = step.what.split(':').next().unwrap_or_default();
    if std::io::stderr().is_terminal() || name == said {
        return;
    }
    name.clone_into(said);
    let left_s = step.of.saturating_sub(step.done);
    // A closed stream is no reason to end the run.
    let _ = writeln!(std::io::stderr(), "{name}; about {} minutes left", left_s.div_ceil(60));
}

/// Draws the report, and says which tables and figures of the seeds are not in it.
pub fn draw(arguments: &BenchReportArguments) -> Result<u8, CommandFailure> {
    let evaluation = Evaluation::read(&arguments.folder)?;
    let path = arguments.output.clone().unwrap_or_else(|| arguments.folder.join(PAGE_NAME));
    replace_file(&path, page(&evaluation).as_bytes())?;
    let items = drawn_items(&evaluation);
    // What no command measures is no fault of this evaluation.
    let is_short = items.iter().any(|item| item.not_drawn.is_some() && !item.experiment.is_empty());
    if arguments.json {
        output::json(&items)?;
    } else {
        let missing =
            items.iter().filter_map(|item| Some(format!("NOT RUN: {}: {}\n", item.title, item.not_drawn.as_ref()?)));
        let missing: Vec<String> = missing.collect();
        let drawn = items.len() - missing.len();
        let (all, path) = (items.len(), path.display());
        output::text(&format!("{drawn} of {all} tables and figures of the seeds; {path}\n{}", missing.concat()))?;
    }
    Ok(if is_short { FAILED } else { GOOD })
}

/// Compares two evaluations; fails if something has become worse.
pub fn compare_two(arguments: &BenchCompareArguments) -> Result<u8, CommandFailure> {
    let compared = compare(&Evaluation::read(&arguments.old)?, &Evaluation::read(&arguments.new)?);
    match arguments.json {
        true => output::json(&compared)?,
        false => output::text(&compared_text(&compared))?,
    }
    let is_worse = compared.iter().any(|one| one.comparison == FigureComparison::Worse);
    Ok(if is_worse { FAILED } else { GOOD })
}

/// Judges the claims of the seeds; fails if a claim that can be tested was not measured.
pub fn judge_claims(arguments: &BenchClaimsArguments) -> Result<u8, CommandFailure> {
    let judged = claims(&Evaluation::read(&arguments.folder)?);
    match arguments.json {
        true => output::json(&judged)?,
        false => output::text(&claims_text(&judged))?,
    }
    let is_short = judged.iter().any(|claim| claim.verdict == ClaimVerdict::NotMeasured);
    Ok(if is_short { FAILED } else { GOOD })
}

/// Lists the figures of the design pages.
pub fn list_figures(arguments: &BenchFiguresArguments) -> Result<u8, CommandFailure> {
    let figures = stated_figures(arguments.folder.as_deref())?;
    match arguments.json {
        true => output::json(&figures)?,
        false => output::text(&stated_text(&figures))?,
    }
    Ok(GOOD)
}
