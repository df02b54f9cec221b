//! Child processes that end with the run.
//!
//! Promises that a [`GuardedProcess`], with every process of its group, is dead and reaped when it is dropped, even in a
//! panic; and that the kernel kills it when the thread that started it ends. So start a long-lived process from a
//! thread that lives as long as the process.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for the end of the other processes of a killed group.
const GROUP_END_MAX: Duration = Duration::from_secs(1);

/// A running child with its output in a file.
#[derive(Debug)]
pub struct GuardedProcess {
    name: String,
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
    started: Instant,
}

impl GuardedProcess {
    /// Starts `command` in its own process group; standard output and error go to `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path, cpu: Option<usize>) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        bind_to_parent(&mut command, cpu);
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), status: None, started })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The time at which the process was started, just before the exec.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The exit status, if the process has ended.
    pub fn try_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Sends a signal to the process itself.
    pub fn signal(&mut self, signal: i32) {
        if self.try_status().is_none() {
            // SAFETY: a plain system call; the child is not reaped yet, so its id is not reused.
            unsafe { libc::kill(self.child.id() as i32, signal) };
        }
    }

    /// Kills the whole group with SIGKILL and reaps the process.
    pub fn kill(&mut self) {
        if self.try_status().is_none() {
            // SAFETY: a plain system call; the group leader is not reaped yet, so the group id is not reused.
            unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
            self.status = self.child.wait().ok();
            self.wait_for_group();
        }
    }

    /// Waits, for a bounded time, until the group has no process: a program may end slightly after its wrapper.
    fn wait_for_group(&self) {
        let deadline = Instant::now() + GROUP_END_MAX;
        // SAFETY: a plain system call; signal 0 only tests whether the group exists.
        while unsafe { libc::kill(-(self.child.id() as i32), 0) } == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the end of the process. *Errors*: it takes longer than `limit`; the error has the end of its output.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_status() {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} still runs after {limit:?}\n{}", self.name, self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The output of the process so far.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of the process's output, for error messages.
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        format!("--- {} printed:\n{}", self.name, lines[lines.len().saturating_sub(20)..].join("\n"))
    }

    /// The processor time of all threads of all processes of the group, in nanoseconds. Threads that have ended are not
    /// included.
    pub fn cpu_ns(&self) -> u64 {
        let group = self.id().to_string();
        let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let members = numbers.filter(|entry| {
            // The line has the form `pid (name) state parent group …`; the name may contain any characters.
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(2)) == Some(&group)
        });
        let threads =
            members.flat_map(|entry| std::fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten());
        let time = |entry: std::fs::DirEntry| {
            let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        threads.filter_map(time).sum()
    }

    /// The peak resident memory of the process, in bytes (`VmHWM`).
    pub fn resident_bytes_max(&self) -> Result<u64> {
        self.status_bytes("VmHWM")
    }

    /// A field of `/proc/PID/status` that is an amount of memory, in bytes.
    pub fn status_bytes(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let value = value.with_context(|| format!("no {field} line"))?;
        let kib: u64 = value.trim().trim_end_matches("kB").trim().parse().context(field.to_owned())?;
        Ok(kib * 1024)
    }
}

impl Drop for GuardedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command to its end with a time limit; returns its status and its output.
pub fn run(name: &str, command: Command, log: &Path, limit: Duration) -> Result<(ExitStatus, String)> {
    let mut process = GuardedProcess::spawn(name, command, log, None)?;
    let status = process.wait(limit)?;
    Ok((status, process.log_text()))
}

/// Describes an exit in words: a code or a signal.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown end".to_owned(),
    }
}

/// The number of files that a child may have open, which is the hard limit of this process.
pub fn files_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a plain system call that fills the structure it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { limit.rlim_max } else { 1024 }
}

/// Lets this process have as many files open as its children.
pub fn raise_files() {
    let files = libc::rlimit { rlim_cur: files_max(), rlim_max: files_max() };
    // SAFETY: a plain system call that reads the structure it is given.
    let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &files) };
}

/// Returns the path of a program with this name on the PATH (or in the system directories), if there is one.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).map(|folder| Path::new(folder).join(name)).find(|file| file.is_file())
}

/// Makes the kernel kill the child when its parent ends, lets it open many files, and, if requested, pins it to one
/// processor with priority.
fn bind_to_parent(command: &mut Command, cpu: Option<usize>) {
    let files = libc::rlimit { rlim_cur: files_max(), rlim_max: files_max() };
    // SAFETY: prctl, setrlimit, setpriority and sched_setaffinity are plain system calls, allowed between fork and
    // exec; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // Allow as many open files as possible, because nginx keeps every cached file open. A failure is ignored:
            // most processes need fewer.
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
            if let Some(cpu) = cpu {
                // The pinned process is the measured one: if allowed, it gets priority over everything else on that
                // processor.
                libc::setpriority(libc::PRIO_PROCESS, 0, -20);
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchFolder;

    #[test]
    fn a_dropped_process_is_dead() {
        let scratch = ScratchFolder::new("guard").unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = GuardedProcess::spawn("sleep", command, &scratch.join("log"), Some(0)).unwrap();
        let path = format!("/proc/{}", process.id());
        assert!(Path::new(&path).exists());
        assert!(process.resident_bytes_max().unwrap() > 0 && process.cpu_ns() > 0);
        drop(process);
        assert!(!Path::new(&path).exists());
    }
}
