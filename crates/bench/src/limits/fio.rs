//! The peer: fio on a file of the same size.
//!
//! Owns: its command lines, and reading its report.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{DEPTH, Measured};
use crate::{Error, ExperimentErrorKind};

/// The number of writes in flight.
const WRITES: usize = 4;

/// Runs fio on a file.
pub(super) struct FioRunner {
    pub path: PathBuf,
    pub bytes: u64,
}

impl FioRunner {
    /// Writes with fio; returns bytes per second, and processor time per `unit` bytes.
    pub fn write(&self, bytes: u64, unit: u32) -> Result<Measured, Error> {
        let arguments = ["--rw=write", "--bs=1M", "--end_fsync=1"];
        let more = [format!("--io_size={bytes}"), format!("--iodepth={WRITES}")];
        let report = self.run(&arguments, &more)?;
        let rate = number(&report, "write", "bw_bytes")?;
        Ok((rate, processor_share(&report) * 1e6 / rate * f64::from(unit)))
    }

    /// Reads with fio; returns reads per second, and processor time per read.
    pub fn read(&self, bytes: u64, jobs: usize, seconds: u64) -> Result<Measured, Error> {
        let arguments = ["--rw=randread", "--time_based", "--norandommap", "--group_reporting"];
        let depth = [format!("--numjobs={jobs}"), format!("--iodepth={}", DEPTH / jobs)];
        let more =
            [format!("--bs={bytes}"), format!("--runtime={seconds}")].into_iter().chain(depth).collect::<Vec<_>>();
        let report = self.run(&arguments, &more)?;
        let rate = number(&report, "read", "iops")?;
        // With several jobs, fio reports the mean per job.
        Ok((rate, processor_share(&report) * jobs as f64 * 1e6 / rate))
    }

    fn run(&self, arguments: &[&str], more: &[String]) -> Result<Value, Error> {
        let mut command = Command::new("fio");
        command.args(["--name=limit", "--direct=1", "--ioengine=io_uring", "--output-format=json"]);
        command.arg(format!("--filename={}", self.path.display())).arg(format!("--size={}", self.bytes));
        command.args(arguments).args(more).stdin(Stdio::null());
        let output = command.output().map_err(|error| {
            Error::new(ExperimentErrorKind::Missing, format!("fio: {error}; install the Debian package fio"))
        })?;
        if !output.status.success() {
            return Err(Error::failed("fio", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // Warnings may precede the report.
        let json = text.find('{').map_or("", |start| &text[start..]);
        serde_json::from_str(json).map_err(|error| Error::failed("fio's report", error))
    }
}

fn number(report: &Value, direction: &str, name: &str) -> Result<f64, Error> {
    let value = report["jobs"][0][direction][name].as_f64();
    let value = value.filter(|value| *value > 0.0);
    value.ok_or_else(|| Error::failed("fio's report", format!("there is no {direction} {name} in it")))
}

/// The share of one processor that fio used.
fn processor_share(report: &Value) -> f64 {
    ["usr_cpu", "sys_cpu"].iter().filter_map(|name| report["jobs"][0][name].as_f64()).sum::<f64>() / 100.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A field that is absent or 0 is an error.
    #[test]
    fn fio_report_requires_its_fields() {
        let report = json!({ "jobs": [{ "read": { "iops": 12.5 }, "write": { "bw_bytes": 0 } }] });
        assert_eq!(number(&report, "read", "iops").unwrap(), 12.5);
        assert!(number(&report, "write", "bw_bytes").is_err());
        assert!(number(&Value::Null, "read", "iops").is_err());
    }
}
