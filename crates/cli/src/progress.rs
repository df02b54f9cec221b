//! Progress on the terminal: elapsed time, bytes and remaining time; nothing if the standard error stream is not a
//! terminal.
//!
//! Owns: the form of progress on the terminal.

use std::borrow::Cow;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows progress over a known number of bytes, or over an unknown length.
pub fn bytes(what: impl Into<Cow<'static, str>>, length: Option<u64>) -> ProgressBar {
    let bar = match length {
        Some(length) => ProgressBar::new(length),
        None => ProgressBar::no_length(),
    };
    let template = match length {
        Some(_) => "{msg} [{elapsed}] {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        None => "{msg} [{elapsed}] {bytes}, {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Shows progress over a number of entries that becomes known later.
pub fn entries(what: impl Into<Cow<'static, str>>) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{elapsed}] {wide_bar} {pos} of {len} entries, {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Shows progress over a known number of runs of a simulation.
pub fn runs(count: u64) -> ProgressBar {
    let bar = ProgressBar::new(count);
    if let Ok(style) = ProgressStyle::with_template("simulating [{elapsed}] {wide_bar} {pos} of {len} runs, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}

/// Shows progress over a number of steps that becomes known later.
pub fn steps() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{elapsed}] {wide_bar} {pos} of {len}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Shows progress over an unknown number of references.
pub fn references(what: impl Into<Cow<'static, str>>) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{msg} [{elapsed}] {human_pos} references, {per_sec}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
