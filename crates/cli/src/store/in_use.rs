//! What to do where another process has the store of a command open.
//!
//! Owns: the remedies, which name the running proxy and its control socket. Promises: a purge that is refused shows the
//! command that purges through the proxy. Leaves to others: finding out that the store is in use (`device`).

use std::time::Duration;

use nectary_host::RuntimeDirectory;
use nectary_host::control::RunningPart;
use serde_json::{Value, json};

use crate::exit::{BUSY, CommandFailure};
use crate::services::running_parts::running_parts;

/// The longest time in which each part must answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to the same result while another process has the store open.
pub enum BusyAlternative {
    /// In words.
    Do(&'static str),
    /// A purge with these parameters, through the proxy's control socket.
    Purge(Value),
}

/// Adds to a failure what to do instead, if the failure is that the store is in use.
pub fn explained(failure: CommandFailure, instead: &BusyAlternative) -> CommandFailure {
    if failure.code() != BUSY {
        return failure;
    }
    let holder = holder(&failure.message());
    let remedy = remedy(holder.as_ref(), instead);
    failure.with_remedy(remedy)
}

/// The running proxy that an error message names by its process.
fn holder(message: &str) -> Option<RunningPart> {
    let parts = running_parts(&RuntimeDirectory::open().ok()?, PATIENCE).ok()?;
    let is_holder = |part: &RunningPart| {
        part.status
            .as_ref()
            .is_ok_and(|status| status.component == "proxy" && message.contains(&format!("process {} ", status.pid)))
    };
    parts.into_iter().find(is_holder)
}

fn remedy(holder: Option<&RunningPart>, instead: &BusyAlternative) -> String {
    let who = holder.and_then(|part| {
        let status = part.status.as_ref().ok()?;
        Some(format!("the proxy {} (process {})", status.name, status.pid))
    });
    let who = who.as_deref().unwrap_or("the other process (`nectary status` lists what runs)");
    match (instead, holder) {
        (BusyAlternative::Do(what), Some(_)) => format!("{what}, or stop {who}"),
        (BusyAlternative::Do(what), None) => format!("wait for {who}, or stop it; if it is a proxy, {what}"),
        (BusyAlternative::Purge(params), Some(part)) => {
            let request = json!({ "method": "purge", "params": params }).to_string();
            let (request, socket) = (quoted(&request), quoted(&part.path.to_string_lossy()));
            format!("purge through {who}, which goes on: echo {request} | nc -U -q1 {socket}")
        }
        (BusyAlternative::Purge(_), None) => {
            format!("if a proxy has it, purge through its control socket (docs/cli.md, nectary proxy); else stop {who}")
        }
    }
}

/// Quotes a text for a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nectary_host::PartStatus;

    use super::*;

    /// The purge is shown as the command that purges through the proxy's control socket.
    #[test]
    fn busy_store_suggests_proxy_purge() {
        let status = PartStatus::healthy("proxy", "127.0.0.1:8080");
        let part = RunningPart { path: PathBuf::from("/run/nectary/p.sock"), status: Ok(status) };
        let text = remedy(Some(&part), &BusyAlternative::Purge(json!({ "prefix": "http://a/it's" })));
        let request = r#"echo '{"method":"purge","params":{"prefix":"http://a/it'\''s"}}'"#;
        assert!(text.contains(request) && text.ends_with(" | nc -U -q1 '/run/nectary/p.sock'"), "{text}");
        let text = remedy(None, &BusyAlternative::Purge(json!({ "all": true })));
        assert!(text.contains("control socket") && text.contains("nectary status"), "{text}");
        let text = remedy(Some(&part), &BusyAlternative::Do("ask it"));
        assert!(text.starts_with("ask it, or stop the proxy 127.0.0.1:8080 (process "), "{text}");
        assert!(remedy(None, &BusyAlternative::Do("ask it")).ends_with("if it is a proxy, ask it"));
    }
}
