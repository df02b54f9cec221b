//! The reports of runs: medians of paired rounds, counts, and tests that were not run.

use anyhow::Result;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Prints why a test was not run, in the form that the test runner collects.
pub fn not_run(reason: impl fmt::Display) {
    println!("NOT RUN: {reason}");
}

/// The median of the values (the mean of the two middle values if their number is even); NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// The median, the least and the greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueSpread {
    /// The middle value.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl ValueSpread {
    /// Summarises values; without values, all fields are NaN or infinite.
    pub fn of(values: &[f64]) -> Self {
        Self {
            median: median(values),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Summarises the ratios of two series that were measured in the same rounds.
    pub fn of_ratios(numerators: &[f64], denominators: &[f64]) -> Self {
        let ratios: Vec<f64> = numerators.iter().zip(denominators).map(|(left, right)| left / right).collect();
        Self::of(&ratios)
    }
}

impl fmt::Display for ValueSpread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.2} ({:.2}-{:.2})", self.median, self.min, self.max)
    }
}

/// Appends one line of JSON to a file, which is created if it is absent.
pub fn write_json_line(path: &Path, value: &serde_json::Value) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    Ok(file.write_all(format!("{value}\n").as_bytes())?)
}

/// Writes JSON to a file, readable for people.
pub fn write_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    Ok(std::fs::write(path, format!("{value:#}\n"))?)
}

/// The seed to use: the given one, or a new one from the clock. The caller prints it in either case.
pub fn seed_or_new(asked: Option<u64>) -> u64 {
    asked.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        crate::rng::mix(now.as_nanos() as u64) % 1_000_000_000
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let spread = ValueSpread::of_ratios(&[2.0, 9.0, 4.0], &[1.0, 3.0, 2.0]);
        assert_eq!(spread, ValueSpread { median: 2.0, min: 2.0, max: 3.0 });
    }
}
