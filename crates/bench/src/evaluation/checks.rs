//! What measurements say of a claim: ratios between contenders, over the pairs that an experiment ran.
//!
//! Owns: the pairing of rows. Two contenders are compared within a seed of the workload, or within a round; a claim
//! holds only if the whole interval does.

use serde_json::Value;

use super::{Evaluation, number};
use crate::ExperimentReport;
use crate::statistics::{IntervalEstimate, paired_ratio};

/// What the measurements say.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ClaimEvidence {
    /// Whether the claim holds, and the numbers.
    Found(bool, String),
    /// The measurements do not have what the claim needs, and what that is.
    Lacking(String),
}

/// A named ratio.
pub(super) type NamedRatio = (String, IntervalEstimate);

/// The evidence of several ratios: the claim holds if all of them do.
pub(super) fn all_hold(ratios: Vec<NamedRatio>, holds: impl Fn(&IntervalEstimate) -> bool) -> ClaimEvidence {
    let ratios: Vec<NamedRatio> = ratios.into_iter().filter(|one| one.1.value.is_finite()).collect();
    if ratios.is_empty() {
        return ClaimEvidence::Lacking("the contenders of the claim are not in the run".to_owned());
    }
    let said = ratios.iter().map(|(name, found)| {
        format!("{name} {} ({} to {})", number(found.value), number(found.low), number(found.high))
    });
    ClaimEvidence::Found(ratios.iter().all(|one| holds(&one.1)), said.collect::<Vec<_>>().join("; "))
}

/// The figures of an experiment that a name's beginning and middle choose, as ratios.
pub(super) fn figures(report: &ExperimentReport, is_meant: impl Fn(&str) -> bool) -> Vec<NamedRatio> {
    let meant = report.figures.iter().filter(|figure| is_meant(&figure.name));
    meant.map(|figure| (figure.name.clone(), figure.found())).collect()
}

/// `bench store`: for each group, `over` divided by `under` in a column, paired by the seed of the workload.
pub(super) fn store_ratio(
    report: &ExperimentReport,
    group: &str,
    column: &str,
    over: &str,
    under: &str,
) -> Option<NamedRatio> {
    let values = |contender: &str| -> Vec<(u64, f64)> {
        let rows = report.rows.iter().filter(|row| row["group"] == group && row["contender"] == contender);
        rows.filter_map(|row| Some((row["seed"].as_u64()?, row[column].as_f64()?))).collect()
    };
    let (over_values, under_values) = (values(over), values(under));
    let pairs = over_values.iter().filter_map(|(seed, value)| {
        let other = under_values.iter().find(|other| other.0 == *seed)?;
        Some((*value, other.1))
    });
    ratio_of_pairs(format!("{group} {column} {over} over {under}"), pairs.collect())
}

/// The groups of a run of `bench store`.
pub(super) fn groups(report: &ExperimentReport) -> Vec<&str> {
    let mut groups: Vec<&str> = report.rows.iter().filter_map(|row| row["group"].as_str()).collect();
    groups.dedup();
    groups
}

/// The contenders of a group.
pub(super) fn contenders<'a>(report: &'a ExperimentReport, group: &str) -> Vec<&'a str> {
    let rows = report.rows.iter().filter(|row| row["group"] == group);
    let mut found: Vec<&str> = Vec::new();
    for name in rows.filter_map(|row| row["contender"].as_str()) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// `bench files --seed nrd`: the time of `over` for a file, everything written, divided by that of `under`, paired by
/// round; on asynchronous mounts, in random order, with the largest number of files.
pub(super) fn nrd_ratio(
    report: &ExperimentReport,
    link: &str,
    step: &str,
    over: &str,
    under: &str,
) -> Option<NamedRatio> {
    let files = nrd_files(report)?;
    let values = |contender: &str| -> Option<Vec<f64>> {
        let row = report.rows.iter().find(|row| {
            row["contender"] == contender
                && (row["link"] == link || row["link"] == "none")
                && row["files"].as_u64() == Some(files)
                && row["order"] == "random"
                && row["is_synchronous"] == Value::Bool(false)
        })?;
        let part = |sample: &Value, name: String| sample["taken"][name.as_str()].as_f64();
        let samples = row["samples"].as_array()?.iter();
        samples.map(|one| Some(part(one, format!("{step}_s"))? + part(one, format!("{step}_sync_s"))?)).collect()
    };
    let pairs = values(over)?.into_iter().zip(values(under)?).collect();
    ratio_of_pairs(format!("{step} {over} over {under}"), pairs)
}

/// The largest number of files of a run of `bench files --seed nrd`.
pub(super) fn nrd_files(report: &ExperimentReport) -> Option<u64> {
    let rows = report.rows.iter().filter(|row| row["order"] == "random" && row["is_synchronous"] == Value::Bool(false));
    rows.filter_map(|row| row["files"].as_u64()).max()
}

/// The contenders of such a run that are in the memory of other machines, without the second run of one.
pub(super) fn nrd_remote(report: &ExperimentReport) -> Vec<&str> {
    let mut names: Vec<&str> = report
        .rows
        .iter()
        .filter(|row| row["link"] != "none")
        .filter_map(|row| row["contender"].as_str())
        .filter(|name| !name.ends_with("again"))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// `bench io --matrix ncar`: the rates of one series divided by those of another, for each size of request.
pub(super) fn ncar_ratios(report: &ExperimentReport, over: &str, under: &str) -> Vec<NamedRatio> {
    let prefix = format!("ncar.{over}.");
    let over_figures = report.figures.iter().filter_map(|figure| Some((figure.name.strip_prefix(&*prefix)?, figure)));
    over_figures
        .filter_map(|(size, figure)| {
            let name = format!("ncar.{under}.{size}");
            let other = report.figures.iter().find(|figure| figure.name == name)?;
            // The ends of the intervals that are farthest apart, because the passes of two series are no pairs.
            let (value, low, high) = (figure.value / other.value, figure.low / other.high, figure.high / other.low);
            Some((format!("{over} over {under} at {size}"), IntervalEstimate { value, low, high }))
        })
        .collect()
}

/// `bench cache`: for each program that ran alone at the paper's size, the mean of some times of `over` divided by that
/// of `under`.
pub(super) fn dear_ratios(report: &ExperimentReport, parts: &[&str], over: &str, under: &str) -> Vec<NamedRatio> {
    let sums = |workload: &Value, lane: &str| -> Option<Vec<f64>> {
        let row = report.rows.iter().find(|row| {
            row["workload"] == *workload && row["lane"] == lane && row["blocks"].as_u64() == Some(crate::dear::BLOCKS)
        })?;
        let executions = row["executions"].as_array()?.iter().filter(|one| one["is_virtual"] == Value::Bool(true));
        Some(executions.map(|one| parts.iter().filter_map(|part| one[*part].as_f64()).sum()).collect())
    };
    let mut names: Vec<&Value> = Vec::new();
    for name in report.rows.iter().map(|row| &row["workload"]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
        .into_iter()
        .filter_map(|name| {
            let pairs = sums(name, over)?.into_iter().zip(sums(name, under)?).collect();
            ratio_of_pairs(name.as_str().unwrap_or_default().to_owned(), pairs)
        })
        .collect()
}

fn ratio_of_pairs(name: String, pairs: Vec<(f64, f64)>) -> Option<NamedRatio> {
    let (over, under): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    (!over.is_empty()).then(|| (name, paired_ratio(&over, &under)))
}

/// An experiment, or what is lacking.
pub(super) fn of<'a>(evaluation: &'a Evaluation, name: &str) -> Result<&'a ExperimentReport, ClaimEvidence> {
    evaluation.get(name).ok_or_else(|| ClaimEvidence::Lacking(format!("{name}: {}", evaluation.why_not(name))))
}
