//! Runs the outside program, `libcachesim`, in a Python environment that is made for it.
//!
//! The environment is created once, in the build directory, from the package index that this machine's pip is
//! configured for. The program is under the GPL, which lets anyone run it; this project contains no part of it.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nectary_trace::simulate::TraceWorkload;

const PACKAGE: &str = "libcachesim==0.3.5";
const SCRIPT: &str = include_str!("misses.py");

/// The misses of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissCounts {
    /// The number of references that missed.
    pub count: u64,
    /// The sum of the sizes of these references.
    pub bytes: u64,
}

impl std::fmt::Display for MissCounts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} misses of {} bytes", self.count, self.bytes)
    }
}

/// An environment that has the outside program.
pub struct SimulatorEnvironment {
    folder: PathBuf,
}

impl SimulatorEnvironment {
    /// Finds the environment, or creates it.
    pub fn prepare() -> Result<SimulatorEnvironment, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let target = program.parent().and_then(Path::parent).ok_or("the program lies in no build directory")?;
        let outside = SimulatorEnvironment { folder: target.join("policies-outside") };
        if !outside.is_ready() {
            fs::create_dir_all(&outside.folder).map_err(|error| error.to_string())?;
            run(Command::new("python3").args(["-m", "venv"]).arg(&outside.folder))?;
            run(Command::new(outside.python()).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
            if !outside.is_ready() {
                return Err(format!("{PACKAGE} was installed and cannot be imported"));
            }
        }
        fs::write(outside.script(), SCRIPT).map_err(|error| error.to_string())?;
        Ok(outside)
    }

    /// The package and version that the policies are compared with.
    pub fn version(&self) -> &'static str {
        PACKAGE
    }

    /// The name of a file for a trace of this process; `ending` tells the form of the trace.
    pub fn trace_file(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("trace-{}{ending}", std::process::id()))
    }

    /// Writes the blocks of a workload as a trace.
    pub fn write(&self, workload: &TraceWorkload) -> Result<PathBuf, String> {
        let trace = self.trace_file(".txt");
        let mut text = String::new();
        workload.blocks().iter().for_each(|block| _ = writeln!(text, "{block}"));
        fs::write(&trace, text).map_err(|error| error.to_string())?;
        Ok(trace)
    }

    /// The misses and missed bytes at each point, in the order of `points`. A point is a policy and a cache size.
    pub fn misses(&self, trace: &Path, points: &[(&'static str, u64)]) -> Result<Vec<MissCounts>, String> {
        let mut wanted = String::new();
        points.iter().for_each(|(policy, size)| _ = writeln!(wanted, "{policy} {size} {}", trace.display()));
        let mut child = Command::new(self.python())
            .arg(self.script())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.python().display()))?;
        // Only a few kilobytes go each way, so no pipe fills up and blocks.
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(wanted.as_bytes()));
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        written.map_err(|error| format!("the outside program reads nothing: {error}"))?;
        let misses = |line: &str| {
            let (count, bytes) = line.split_once(' ')?;
            Some(MissCounts { count: count.parse().ok()?, bytes: bytes.parse().ok()? })
        };
        let counts: Vec<MissCounts> = String::from_utf8_lossy(&output.stdout).lines().filter_map(misses).collect();
        if !output.status.success() || counts.len() != points.len() {
            return Err(format!("the outside program: {}, {} of {} counts", output.status, counts.len(), points.len()));
        }
        Ok(counts)
    }

    fn is_ready(&self) -> bool {
        let mut import = Command::new(self.python());
        import.args(["-c", "import libcachesim"]).stderr(Stdio::null());
        import.status().is_ok_and(|status| status.success())
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin/python3")
    }

    fn script(&self) -> PathBuf {
        self.folder.join("misses.py")
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
