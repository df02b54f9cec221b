//! `nectary ram check`: whether what the donors have of a device is right.
//!
//! Owns: what it prints, and the exit code. Leaves to others: the check (`nectary-ram`).

use std::fmt::Write as _;

use clap::Args;
use nectary_block::format_size;
use nectary_ram::check::{CheckCounts, CheckFindings, CheckProblem, CheckedDonor, RedundancyHealth, check};
use serde_json::json;

use super::create::options;
use crate::exit::{CommandFailure, DEGRADED, FAILED, GOOD};
use crate::{output, progress};

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary ram check 'ram(h1:7070,h2:7070,id=safe,redundancy=mirror)'
  Only what a program has to know:
    nectary ram check --json 'ram(h1:7070,h2:7070,id=safe,redundancy=mirror)' |
      jq .health";

/// `ram check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The device: its donors, id and redundancy, as `ram(h1:7070,h2:7070,id=safe,redundancy=mirror)`
    #[arg(value_name = "SPEC")]
    pub spec: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Checks a device: 0, everything is right; 3, something that protects it is not; 1, blocks are lost or doubtful.
pub async fn run(arguments: &CheckArguments) -> Result<u8, CommandFailure> {
    let bar = progress::bytes("checking", Some(0));
    let mut told = |read: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(read);
    };
    let checked = check(&options(&arguments.spec, false)?, &mut told).await;
    bar.finish_and_clear();
    let checked = checked?;
    match arguments.json {
        true => output::json(&as_json(&checked))?,
        false => output::text(&as_text(&checked))?,
    }
    Ok(match checked.health {
        RedundancyHealth::Healthy => GOOD,
        RedundancyHealth::Degraded => DEGRADED,
        RedundancyHealth::Broken => FAILED,
    })
}

fn as_json(checked: &CheckFindings) -> serde_json::Value {
    let problem = |problem: &CheckProblem| {
        json!({
            "what": problem.what,
            "text": problem.text,
            "donor": problem.donor.map(|place| place + 1),
            "group": problem.group,
            "offset_bytes": problem.block.map(|block| block * u64::from(checked.block_bytes)),
        })
    };
    let donor = |donor: &CheckedDonor| {
        let CheckedDonor { place, name, generation, why } = donor;
        json!({ "number": place + 1, "name": name, "generation": generation, "missing": why })
    };
    json!({
        "id": checked.id,
        "size_bytes": checked.size_bytes,
        "redundancy": checked.redundancy,
        "health": checked.health,
        "view_generation": checked.view.0,
        "view_epoch": checked.view.1,
        "is_detached": checked.is_detached,
        "donors": checked.donors.iter().map(donor).collect::<Vec<_>>(),
        "counts": checked.counts,
        "problem_count": checked.problem_count,
        "problems": checked.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

fn as_text(checked: &CheckFindings) -> String {
    let mut text = String::new();
    for problem in &checked.problems {
        let donor = problem.donor.and_then(|place| checked.donors.iter().find(|donor| donor.place == place));
        let donor = donor.map(|donor| format!("donor {} ({}): ", donor.place + 1, donor.name)).unwrap_or_default();
        let at = problem.block.map(|block| format!(" (at byte {})", block * u64::from(checked.block_bytes)));
        let _ = writeln!(text, "PROBLEM: {donor}{}{}", problem.text, at.unwrap_or_default());
    }
    let more = checked.problem_count - checked.problems.len() as u64;
    if more > 0 {
        let _ = writeln!(text, "and {more} more problems");
    }
    let CheckCounts { read_bytes, compared_stripes, single_stripes, .. } = checked.counts;
    let CheckCounts { mapped_blocks, compared_groups, sealed_groups, open_groups, .. } = checked.counts;
    let CheckCounts { reconstructed_blocks, lost_blocks, doubtful_blocks, .. } = checked.counts;
    let what = match checked.redundancy {
        "parity" => format!("{compared_stripes} stripes are compared, {single_stripes} are without a donor"),
        "mirror" => format!("{compared_stripes} stripes are compared, {single_stripes} have one copy"),
        _ => format!(
            "{mapped_blocks} blocks in {sealed_groups} sealed groups ({compared_groups} compared) and {open_groups} \
             open ones, {reconstructed_blocks} blocks only by parity"
        ),
    };
    let (id, size, read) = (&checked.id, format_size(checked.size_bytes), format_size(read_bytes));
    let _ = writeln!(text, "device {id} of {size}, {}: {read} read; {what}", checked.redundancy);
    let _ = writeln!(text, "{} lost blocks, {} doubtful ones", lost_blocks, doubtful_blocks);
    let end = match checked.health {
        RedundancyHealth::Healthy => "healthy: every block is there, and any one donor can be lost",
        RedundancyHealth::Degraded => {
            "degraded: every block can be read; attach the device, which fills missing donors and ends what is \
             unfinished; start a donor with damage again, and it is filled from the others"
        }
        RedundancyHealth::Broken => "broken: save what can be read, and write the named blocks again (docs/ram.md)",
    };
    let _ = writeln!(text, "{end}");
    text
}
