//! Child processes: their output is shown immediately and kept, and a child that hangs is killed.
//!
//! Owns: the start, the output and the end of children. A child stays in the process group of this program, so that
//! Ctrl-C and `timeout` reach it. A child that hangs is killed with all its descendants. A child that cannot be killed,
//! because it waits in the kernel for a device that never answers, is left behind and counts as killed. So the waits of
//! [`run`] are bounded.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::load;

/// The largest number of processes whose children are searched.
const FAMILY_MAX: usize = 1000;
/// The longest wait for the rest of the output after a child was killed.
const REST: Duration = Duration::from_secs(5);
/// The longest wait for the end of a child after its output has ended.
const END: Duration = Duration::from_secs(20);
/// The time between two checks whether a child has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The exit code of a program that cannot run here; other test runners use the same code.
const NOT_RUN: i32 = 77;

/// Shows every line of output.
pub fn shown(_: &str) -> bool {
    true
}

/// Shows no line of output.
pub fn silent(_: &str) -> bool {
    false
}

/// How a child ended.
#[derive(Debug)]
pub struct ChildEnd {
    /// Whether its exit code was 0.
    pub success: bool,
    /// Whether it was killed because it ran too long.
    pub killed: bool,
    /// Whether its exit code is `NOT_RUN`, which says that it cannot run on this machine.
    pub not_run: bool,
    /// A description of its end.
    pub how: String,
    /// Its standard output.
    pub output: String,
    /// How long it ran.
    pub taken: Duration,
}

/// Runs `command` for at most `limit`, which is longer on a busy machine ([`load::scaled`]); shows the lines of its standard output for which `is_told` is true.
pub fn run(command: &mut Command, limit: Duration, is_told: fn(&str) -> bool) -> Result<ChildEnd> {
    run_to_end(command, limit, END, is_told)
}

/// Does the work of [`run`]; the child must end within `end` after the end of its output.
fn run_to_end(command: &mut Command, limit: Duration, end: Duration, is_told: fn(&str) -> bool) -> Result<ChildEnd> {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let (sender, lines) = channel();
    // The thread ends when the pipe is closed, or with this process if a grandchild keeps the pipe open.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    let (mut output, mut killed) = (String::new(), false);
    let mut deadline = started + limit;
    let mut is_extended = false;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if is_told(&line) {
                    let _ = writeln!(std::io::stdout().lock(), "{line}");
                }
                output += &line;
                output.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if killed => break,
            Err(RecvTimeoutError::Timeout) if !is_extended => {
                is_extended = true;
                deadline = started + load::scaled(limit);
            }
            Err(RecvTimeoutError::Timeout) => {
                kill_tree(&mut child);
                killed = true;
                deadline = Instant::now() + REST;
            }
        }
    }
    let status = match end_of(&mut child, Instant::now() + end)? {
        Some(status) => Some(status),
        None => {
            kill_tree(&mut child);
            killed = true;
            end_of(&mut child, Instant::now() + REST)?
        }
    };
    let how = match status {
        Some(status) if !killed => status.to_string(),
        Some(_) => format!("killed after {} s", started.elapsed().as_secs()),
        None => format!("process {} does not end, although it was killed: a device may not answer it", child.id()),
    };
    let not_run = status.and_then(|status| status.code()) == Some(NOT_RUN);
    let success = status.is_some_and(|status| status.success()) && !killed;
    Ok(ChildEnd { success, killed, not_run, how, output, taken: started.elapsed() })
}

/// Waits for a child and returns its status; `None` if it has not ended by `deadline`.
fn end_of(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait().context("cannot wait for a child")?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
    }
}

/// Runs a command and returns its standard output.
///
/// *Errors*: the command cannot be started or fails.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Kills a child and its descendants. The descendants are listed before the kill, because after the kill they are no
/// longer children of this child.
fn kill_tree(child: &mut Child) {
    let mut family = vec![child.id()];
    let mut next = 0;
    while let Some(&parent) = family.get(next).filter(|_| next < FAMILY_MAX) {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        next += 1;
    }
    let _ = child.kill();
    let rest = family[1..].iter().map(u32::to_string);
    let _ = Command::new("kill").arg("-KILL").args(rest).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_child_tree_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo before; wait"]);
        let ended = run(&mut command, Duration::from_secs(1), silent).expect("starts");
        assert!(ended.killed && !ended.success);
        assert_eq!(ended.output, "before\n");
        // The grandchild has the pipe open, too. If the grandchild were still running, the call would have waited for
        // the rest of the output.
        assert!(ended.taken < load::scaled(Duration::from_secs(1)) + REST, "something lives on");
    }

    /// A child that closes its output and does not end is killed.
    #[test]
    fn unending_child_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo before; exec >&-; sleep 1000"]);
        let ended = run_to_end(&mut command, Duration::from_secs(1000), Duration::from_millis(100), silent);
        let ended = ended.expect("starts");
        assert!(ended.killed && !ended.success, "{}", ended.how);
        assert!(ended.taken < REST, "{:?}", ended.taken);
    }

    #[test]
    fn a_failure_keeps_the_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "printf 'a\\nb'; exit 3"]);
        let ended = run(&mut command, Duration::from_secs(100), silent).expect("starts");
        assert!(!ended.success && !ended.killed && ended.how.contains('3'), "{}", ended.how);
        assert_eq!(ended.output, "a\nb\n");
        assert!(!ended.not_run);
    }
}
