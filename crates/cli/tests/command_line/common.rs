//! Running the `nectary` program in a scratch directory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A scratch directory in which commands run; it is removed at the end.
pub struct CommandScratch {
    path: PathBuf,
}

impl CommandScratch {
    /// Makes an empty directory in the build's temporary directory.
    pub fn new(name: &str) -> CommandScratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the build's temporary directory can be written to");
        CommandScratch { path }
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns a command, whose line is split at blanks, ready to run in the directory.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nectary"));
        command.args(line.split_whitespace()).current_dir(&self.path);
        command.env("NECTARY_RUNTIME_DIR", self.path.join("run")).stdin(Stdio::null());
        command
    }

    /// Runs a command line to its end.
    pub fn run(&self, line: &str) -> CommandResult {
        CommandResult::of(line, self.command(line).output().expect("the program starts"))
    }

    /// Runs a command line in a shell that first runs `before`, such as `ulimit -n 20`.
    pub fn run_after(&self, before: &str, line: &str) -> CommandResult {
        let mut shell = Command::new("sh");
        let script = format!("{before}; exec {} {line}", env!("CARGO_BIN_EXE_nectary"));
        shell.args(["-c", &script]).current_dir(&self.path);
        shell.env("NECTARY_RUNTIME_DIR", self.path.join("run")).stdin(Stdio::null());
        CommandResult::of(line, shell.output().expect("a shell"))
    }

    /// Runs a command line with `input` on its standard input.
    pub fn run_with(&self, line: &str, input: &[u8]) -> CommandResult {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        std::thread::scope(|scope| {
            // The command may end without reading everything.
            scope.spawn(move || drop(stdin.write_all(input)));
            CommandResult::of(line, child.wait_with_output().expect("it ends"))
        })
    }
}

impl Drop for CommandScratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The result of a command.
pub struct CommandResult {
    line: String,
    /// The exit code.
    pub code: Option<i32>,
    /// The standard output.
    pub output: Vec<u8>,
    /// The standard error stream.
    pub errors: String,
}

impl CommandResult {
    fn of(line: &str, output: Output) -> CommandResult {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        CommandResult { line: line.to_owned(), code: output.status.code(), output: output.stdout, errors }
    }

    /// Returns the standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> CommandResult {
        let (line, found) = (&self.line, self.code);
        assert_eq!(found, Some(code), "nectary {line}\n{}{}", self.text(), self.errors);
        assert!(!self.errors.contains("panicked"), "nectary {line}\n{}", self.errors);
        self
    }

    /// Asserts that the error contains a text.
    #[track_caller]
    pub fn says(self, text: &str) -> CommandResult {
        assert!(self.errors.contains(text), "nectary {}: no {text:?} in\n{}", self.line, self.errors);
        self
    }
}
