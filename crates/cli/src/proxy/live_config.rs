//! The configuration file of a running proxy.
//!
//! Owns: reading it again at a signal or a request, and what became of that, for `nectary status`. Promises: a file that is
//! wrong changes nothing, and is one line in the log.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nectary_host::log::{self, LogLevel};
use nectary_host::{PartHealth, PartStatus};
use nectary_proxy::ProxyReopener;
use serde_json::{Value, json};

use super::config_file;

/// The configuration file of a running proxy.
#[derive(Debug)]
pub struct LiveConfig {
    path: PathBuf,
    last: Mutex<LastReload>,
}

/// What became of the last reload.
#[derive(Debug, Default)]
struct LastReload {
    /// The reloads whose file is in use now or was.
    count: u64,
    /// Why the last file is not in use.
    failure: Option<String>,
    /// What of the file in use only a restart changes.
    needs_restart: Vec<&'static str>,
}

impl LiveConfig {
    /// The file with which the proxy has started.
    pub fn new(path: PathBuf) -> LiveConfig {
        LiveConfig { path, last: Mutex::default() }
    }

    /// Reads the file again and uses it, and opens the access log again; blocks the thread until that is done. `cause` is
    /// who asked for that. *Errors*: why nothing has changed.
    pub fn reload(&self, reopener: &ProxyReopener, cause: &str) -> Result<(), String> {
        if let Err(error) = reopener.reopen_log() {
            log::write(LogLevel::Error, "proxy", format_args!("{cause}: {error}; what was open stays in use"));
        }
        let read = config_file::read(&self.path);
        let reloaded = read.and_then(|config| reopener.reload(&config).map_err(|error| error.to_string()));
        let path = self.path.display();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match reloaded {
            Ok(needs_restart) => {
                last.count += 1;
                last.failure = None;
                let later = match needs_restart.is_empty() {
                    true => String::new(),
                    false => format!("; a restart is needed for {}", needs_restart.join(", ")),
                };
                last.needs_restart = needs_restart;
                log::write(LogLevel::Note, "proxy", format_args!("{cause}: {path} is in use{later}"));
                Ok(())
            }
            Err(error) => {
                let line = one_line(&error);
                log::write(LogLevel::Error, "proxy", format_args!("{cause}: {path} changes nothing: {line}"));
                last.failure = Some(line);
                Err(error)
            }
        }
    }

    /// Adds what is wrong with the file to a status.
    pub fn report(&self, status: PartStatus) -> PartStatus {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match last.needs_restart.is_empty() {
            true => status,
            false => {
                let what = format!("the configuration file has changes of {}", last.needs_restart.join(", "));
                status.with_problem(PartHealth::Healthy, what, "restart the proxy: only that applies them")
            }
        };
        let Some(failure) = &last.failure else { return status };
        let what = format!("the configuration file is wrong, and the former one stays in use: {failure}");
        status.with_problem(
            PartHealth::Degraded,
            what,
            "mend it (`nectary proxy --check-config`), and send SIGHUP again",
        )
    }

    /// The state as JSON.
    pub fn figures(&self) -> Value {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "file": self.path,
            "reloads": last.count,
            "failure": last.failure,
            "needs_restart": last.needs_restart,
        })
    }
}

/// The first line of a text, and how much more there is. The log has one line for each event.
fn one_line(text: &str) -> String {
    let mistakes = text.lines().filter(|line| line.contains(": error: ")).count();
    let first = text.lines().next().unwrap_or_default();
    if mistakes > 1 { format!("{first} (and {} more)", mistakes - 1) } else { first.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_settings_needing_restart() {
        let live = LiveConfig::new(PathBuf::from("f"));
        assert!(live.report(PartStatus::healthy("proxy", "a")).problems.is_empty());
        live.last.lock().expect("no panic").needs_restart = vec!["[[listener]]", "[limits]"];
        let status = live.report(PartStatus::healthy("proxy", "a"));
        assert_eq!((status.state, status.problems.len()), (PartHealth::Healthy, 1));
        assert!(status.problems[0].what.ends_with("[[listener]], [limits]"), "{}", status.problems[0].what);
    }

    #[test]
    fn several_mistakes_are_one_line() {
        assert_eq!(one_line("f:1:2: error: a\n1 | x\n  | ^"), "f:1:2: error: a");
        assert_eq!(one_line("f:1:2: error: a\n1 | x\nf:2:2: error: b\nhelp: c"), "f:1:2: error: a (and 1 more)");
        assert_eq!(one_line(""), "");
    }
}
