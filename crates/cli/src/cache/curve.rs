//! `nectary cache curve`: LRU misses at all sizes, from a sample of a trace.
//!
//! Owns: the command and its output. Leaves to others: the curve and its error (`nectary-trace`).

use std::fmt::Write as _;
use std::path::Path;

use nectary_trace::Error;
use nectary_trace::curve::{CurveOptions, CurvePoint, MissCurve, RatioEstimate, curve};
use nectary_trace::formats::{self, BLOCK_BYTES, ReferenceReader};
use nectary_trace::simulate::sizes::{CacheSize, parse_list};
use serde_json::{Value, json};

use super::simulated::quoted;
use crate::arguments::CurveArguments;
use crate::exit::{CommandFailure, GOOD};
use crate::{output, progress};

/// Runs the command.
pub fn run(arguments: &CurveArguments) -> Result<u8, CommandFailure> {
    let usage = |error: String| Error::Usage(format!("--size: {error}"));
    let sizes = arguments.size.as_deref().map_or(Ok(Vec::new()), parse_list).map_err(usage)?;
    let read = arguments.read.options();
    let mut curves = Vec::new();
    let mut csv = String::from("trace,size,unit,miss_ratio,miss_ratio_error,byte_miss_ratio,byte_miss_ratio_error\n");
    for path in &arguments.traces {
        let mut reader = formats::open(path, &read)?;
        let block_bytes = arguments.read.block.or(reader.block_bytes()).unwrap_or(BLOCK_BYTES);
        let sizes = sizes.iter().map(|size| size_of(*size, &*reader, block_bytes)).collect::<Result<_, _>>();
        let samples = usize::try_from(arguments.samples).unwrap_or(usize::MAX);
        let options = CurveOptions { samples, sizes: sizes.map_err(usage)?, ..CurveOptions::default() };
        let bar = progress::references(format!("reading {}", path.display()));
        let curve = curve(path, &mut *reader, &options, &|done| bar.set_position(done))?;
        bar.finish_and_clear();
        if arguments.json {
            curves.push(figures(path, &curve));
        } else if arguments.csv {
            curve.points.iter().for_each(|point| csv += &line(path, &curve, point));
        } else {
            output::text(&text(path, &curve))?;
        }
    }
    if arguments.json {
        output::json(&json!({ "curves": curves }))?;
    } else if arguments.csv {
        output::text(&csv)?;
    }
    Ok(GOOD)
}

/// Returns a size in the unit of the curve.
fn size_of(size: CacheSize, reader: &dyn ReferenceReader, block_bytes: u64) -> Result<u64, String> {
    match (size, reader.has_objects()) {
        (CacheSize::Percent(_), _) => {
            Err("in one pass the number of distinct blocks is not known before; give sizes".to_owned())
        }
        (CacheSize::Blocks(count), true) => Err(format!("\"{count}\": objects have sizes; give bytes, as {count}K")),
        (CacheSize::Bytes(bytes), true) => Ok(bytes),
        (size, false) => size.blocks(0, block_bytes),
    }
}

fn unit(curve: &MissCurve) -> &'static str {
    if curve.is_in_bytes { "bytes" } else { "blocks" }
}

fn figures(path: &Path, curve: &MissCurve) -> Value {
    let point = |point: &CurvePoint| {
        let mut value = json!({
            "size": point.size,
            "miss_ratio": point.misses.ratio,
            "miss_ratio_error": point.misses.error,
        });
        if let Some(bytes) = point.missed_bytes {
            value["byte_miss_ratio"] = bytes.ratio.into();
            value["byte_miss_ratio_error"] = bytes.error.into();
        }
        value
    };
    json!({
        "trace": path.display().to_string(),
        "references": curve.references,
        "unit": unit(curve),
        "rate": curve.rate,
        "samples": curve.samples,
        "points": curve.points.iter().map(point).collect::<Vec<_>>(),
    })
}

fn line(path: &Path, curve: &MissCurve, point: &CurvePoint) -> String {
    let bytes = point.missed_bytes.map_or_else(|| ",".to_owned(), |bytes| format!("{},{}", bytes.ratio, bytes.error));
    let RatioEstimate { ratio, error } = point.misses;
    format!("{},{},{},{ratio},{error},{bytes}\n", quoted(&path.display().to_string()), point.size, unit(curve))
}

fn text(path: &Path, curve: &MissCurve) -> String {
    let sample = match curve.rate {
        1.0 => format!("exact, {} distinct", curve.samples),
        rate => format!("from {} samples, {:.3} % of all", curve.samples, 100.0 * rate),
    };
    let mut text = format!("{}: {} references; LRU misses in %, {sample}\n", path.display(), curve.references);
    let width = curve.points.last().map_or(0, |point| point.size.to_string().len()).max(unit(curve).len());
    let shown = |estimate: RatioEstimate| format!("{:6.2} ± {:5.2}", 100.0 * estimate.ratio, 100.0 * estimate.error);
    // Writing to a String never fails.
    let _ = write!(text, "{:>width$}  {:>14}", unit(curve), "references");
    text += if curve.is_in_bytes { "           bytes\n" } else { "\n" };
    for point in &curve.points {
        let _ = write!(text, "{:>width$}  {}", point.size, shown(point.misses));
        if let Some(bytes) = point.missed_bytes {
            let _ = write!(text, "  {}", shown(bytes));
        }
        text.push('\n');
    }
    text
}
