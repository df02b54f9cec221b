//! The options of `bench all`, `report`, `compare`, `claims` and `figures`.

use std::path::PathBuf;

use clap::Args;

/// `bench all`.
#[derive(Debug, Args)]
pub struct BenchAllArguments {
    /// The directory of the report and of the experiments' JSON files, which are the state of the run; it is made if it
    /// is not there. The same command goes on after an interruption
    #[arg(long, value_name = "DIR")]
    pub report: PathBuf,
    /// Less of everything, without verdicts, in a quarter of an hour
    #[arg(long)]
    pub quick: bool,
    /// Only the experiment of this name, or those with this in their name, for example io or store; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// A directory on the device to be measured; the report's if it is not given
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// `bench report`.
#[derive(Debug, Args)]
pub struct BenchReportArguments {
    /// The directory with the experiments' JSON files
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Where the page is written; report.html in the directory if it is not given
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print which tables and figures are in it as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bench compare`.
#[derive(Debug, Args)]
pub struct BenchCompareArguments {
    /// The earlier directory, or one JSON file
    #[arg(value_name = "OLD")]
    pub old: PathBuf,
    /// The later one
    #[arg(value_name = "NEW")]
    pub new: PathBuf,
    /// Print every figure as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bench claims`.
#[derive(Debug, Args)]
pub struct BenchClaimsArguments {
    /// The directory with the experiments' JSON files, or one of them
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bench figures`.
#[derive(Debug, Args)]
pub struct BenchFiguresArguments {
    /// A directory with the experiments' JSON files, or with pages such as docs/results; nothing is measured without
    /// one
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
