//! What the summary repeats of a failed test's output.
//!
//! Owns: the order and the length of it. The message of each panic comes first, because a backtrace or a log of a
//! hundred lines hides it; then where in this workspace it was; then the end of what the test printed. Frames of the
//! standard library and of other crates are left out.

/// The most lines of a panic's message.
const MESSAGE_LINES_MAX: usize = 40;
/// The most frames of this workspace of a backtrace.
const FRAMES_MAX: usize = 8;
/// The most lines of what else the test printed, from its end.
const PRINTED_LINES_MAX: usize = 20;

/// What a line of a test's output belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputPart {
    Printed,
    Message,
    Backtrace,
}

/// A panic in a test's output.
#[derive(Debug, Default)]
struct PrintedPanic<'a> {
    message: Vec<&'a str>,
    /// Places in this workspace, the innermost first.
    frames: Vec<&'a str>,
}

/// Returns the lines of a failed test's output that the summary repeats.
pub fn shortened(lines: &[&str]) -> Vec<String> {
    let (panics, printed) = divided(lines);
    let mut shown = Vec::new();
    for PrintedPanic { message, frames } in panics {
        shown.extend(message.iter().take(MESSAGE_LINES_MAX).map(|line| (*line).to_owned()));
        if let Some(more) = message.len().checked_sub(MESSAGE_LINES_MAX).filter(|more| *more > 0) {
            shown.push(format!("({more} more lines)"));
        }
        shown.extend(frames.iter().take(FRAMES_MAX).map(|place| format!("  at {place}")));
    }
    if !shown.is_empty() && !printed.is_empty() {
        shown.push("it printed:".to_owned());
    }
    let first = printed.len().saturating_sub(PRINTED_LINES_MAX);
    shown.extend(printed[first..].iter().map(|line| (*line).to_owned()));
    shown
}

/// Divides the output of a test into its panics and what else it printed; empty lines are left out.
fn divided<'a>(lines: &[&'a str]) -> (Vec<PrintedPanic<'a>>, Vec<&'a str>) {
    let mut panics: Vec<PrintedPanic> = Vec::new();
    let mut printed = Vec::new();
    let mut part = OutputPart::Printed;
    for &line in lines.iter().filter(|line| !line.trim().is_empty()) {
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            panics.push(PrintedPanic::default());
            part = OutputPart::Message;
        } else if line.trim().eq_ignore_ascii_case("stack backtrace:") {
            part = OutputPart::Backtrace;
            continue;
        } else if line.starts_with("note: ") && line.contains("RUST_BACKTRACE=") {
            part = OutputPart::Printed;
            continue;
        } else if part == OutputPart::Backtrace && !is_of_backtrace(line) {
            part = OutputPart::Printed;
        }
        match (part, panics.last_mut()) {
            (OutputPart::Message, Some(panic)) => panic.message.push(line),
            (OutputPart::Backtrace, Some(panic)) => panic.frames.extend(own_place(line)),
            (OutputPart::Backtrace, None) => {}
            _ => printed.push(line),
        }
    }
    (panics, printed)
}

/// Whether a line is a frame of a backtrace (`12: name`), or its place (`at FILE:LINE:COLUMN`).
fn is_of_backtrace(line: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let line = line.trim_start();
    line.starts_with("at ") || line.split_once(": ").is_some_and(|(number, _)| is_number(number))
}

/// Returns the place of a frame if it is in this workspace.
fn own_place(line: &str) -> Option<&str> {
    let place = line.trim_start().strip_prefix("at ")?;
    let is_foreign = ["/rustc/", "/rustlib/", "/registry/"].into_iter().any(|part| place.contains(part));
    (!is_foreign).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREIGN_FRAME: &str = "  20: core::ops::function::FnOnce::call_once\n             at /rustc/4a4ef493/library/core/src/ops/function.rs:250:5";

    fn of(output: &str) -> Vec<String> {
        shortened(&output.lines().collect::<Vec<_>>())
    }

    /// The message is first, however long the backtrace and what was printed before are.
    #[test]
    fn panic_message_precedes_printed_lines() {
        let printed: String = (0..200).map(|number| format!("line {number}\n")).collect();
        let foreign = format!("{FOREIGN_FRAME}\n").repeat(100);
        let output = format!(
            "{printed}\nthread 'ram::grows' (4711) panicked at crates/e2e/tests/it/ram/grow.rs:11:5:\nmirror, seed 1: 2 of 9 units are \
             lost\n\nCaused by: nothing\nstack backtrace:\n   0: __rustc::rust_begin_unwind\n             at \
             /rustc/4a4ef493/library/std/src/panicking.rs:697:5\n   1: it::ram::grow::grown\n             at \
             ./tests/it/ram/grow.rs:11:5\n   2: anyhow::new\n             at /root/.cargo/registry/src/index/anyhow/src/lib.rs:1:1\n{foreign}note: Some \
             details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.\nit was dropped\n"
        );
        let shown = of(&output);
        let expected = [
            "thread 'ram::grows' (4711) panicked at crates/e2e/tests/it/ram/grow.rs:11:5:",
            "mirror, seed 1: 2 of 9 units are lost",
            "Caused by: nothing",
            "  at ./tests/it/ram/grow.rs:11:5",
            "it printed:",
        ];
        assert_eq!(&shown[..expected.len()], expected);
        assert_eq!(shown.len(), expected.len() + PRINTED_LINES_MAX);
        assert_eq!(shown[shown.len() - 2..], ["line 199", "it was dropped"]);
    }

    #[test]
    fn long_message_is_cut() {
        let message: String = (0..100).map(|number| format!("left {number}\n")).collect();
        let shown = of(&format!("thread 'a' panicked at src/a.rs:1:1:\n{message}"));
        assert_eq!(shown.len(), MESSAGE_LINES_MAX + 1);
        assert_eq!(shown[MESSAGE_LINES_MAX], "(61 more lines)");
    }

    /// A test that returns an error does not panic; the backtrace of its error is left out.
    #[test]
    fn error_without_panic_is_shown() {
        let shown = of(&format!("Error: no disk\n\nStack backtrace:\n{FOREIGN_FRAME}\n"));
        assert_eq!(shown, ["Error: no disk"]);
    }

    #[test]
    fn message_without_backtrace_is_shown() {
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
        let shown = of(&format!("seed 7\nthread 'b::c' panicked at src/b.rs:3:4:\nboth: 1\n{note}\n"));
        assert_eq!(shown, ["thread 'b::c' panicked at src/b.rs:3:4:", "both: 1", "it printed:", "seed 7"]);
    }
}
