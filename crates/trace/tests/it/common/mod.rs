//! The traces of the papers, for tests; they are not part of the project and may be absent.

use std::path::{Path, PathBuf};

use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, TraceWorkload};

/// The folder of the traces. If it is absent, prints a line that says so, and returns `None`.
pub fn traces(test: &str) -> Option<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    if folder.is_dir() {
        return Some(folder.to_owned());
    }
    println!("NOT RUN: {test}: ../shared/traces is absent");
    None
}

/// Loads the trace `name`.
pub fn load(folder: &Path, name: &str) -> TraceWorkload {
    let path = folder.join(format!("{name}.trace.gz"));
    TraceWorkload::load(&path, &ReadOptions::default(), &LoadOptions::default()).expect("a sound trace")
}
