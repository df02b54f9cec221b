//! Calls that have been in progress for long, in a status.
//!
//! Owns: the problem that a status reports for them, and their list in its figures. Leaves to others: which calls these
//! are (`nectary-attach`).

use nectary_attach::{LongWaits, WAIT_SHOWN, WaitingCall, WaitingWork};
use nectary_host::{PartHealth, PartStatus};
use serde_json::{Value, json};

/// Adds a problem to a status if calls have been in progress for long. Calls that wait for locks are no problem: their
/// programs wait for other programs.
pub fn with_waits(status: PartStatus, waits: &LongWaits, works: &[WaitingWork]) -> PartStatus {
    let longest = waits.longest.iter().find(|call| !call.why.is_lock);
    let shown = WAIT_SHOWN.as_secs();
    match (longest, works.first()) {
        (Some(longest), _) => {
            let others = match waits.calls {
                0 | 1 => format!("a call has been in progress for longer than {shown} s: "),
                calls => format!("{calls} calls have been in progress for longer than {shown} s; the longest: "),
            };
            let what = format!("{others}{}, for {} s: it {}", of(longest), longest.age.as_secs(), longest.why.what);
            status.with_problem(PartHealth::Degraded, what, longest.why.remedy.clone())
        }
        (None, Some(work)) => {
            let what = match work.inode {
                Some(inode) => format!("another host has waited for inode {inode} for {} s", work.age.as_secs()),
                None => format!("what was written has not been committed for {} s", work.age.as_secs()),
            };
            status.with_problem(
                PartHealth::Degraded,
                format!("{what}: this mount {}", work.why.what),
                work.why.remedy.clone(),
            )
        }
        (None, None) => status,
    }
}

/// Says which call it is, on what, and of which program.
fn of(call: &WaitingCall) -> String {
    let place = match (&call.path, call.inode) {
        (Some(path), _) if path == "." => "the root directory".to_owned(),
        (Some(path), inode) => format!("{path} (inode {inode})"),
        (None, inode) => format!("inode {inode}"),
    };
    let subject = match &call.name {
        Some(name) => format!("{name} in {place}"),
        None => place,
    };
    let program = match (&call.program, call.process) {
        (Some(program), Some(process)) => format!(" by {program} (process {process})"),
        (None, Some(process)) => format!(" by process {process}"),
        _ => String::new(),
    };
    format!("{} of {subject}{program}", call.call)
}

/// Returns the figures of these calls.
pub fn figures(waits: &LongWaits, works: &[WaitingWork]) -> Value {
    let longest: Vec<Value> = waits
        .longest
        .iter()
        .map(|call| {
            json!({
                "call": call.call,
                "inode": call.inode,
                "name": call.name,
                "path": call.path,
                "process": call.process,
                "program": call.program,
                "seconds": call.age.as_secs(),
                "why": call.why.what,
                "do": call.why.remedy,
            })
        })
        .collect();
    let works: Vec<Value> = works
        .iter()
        .map(|work| {
            json!({
                "inode": work.inode,
                "seconds": work.age.as_secs(),
                "why": work.why.what,
                "do": work.why.remedy,
            })
        })
        .collect();
    json!({ "calls": waits.calls, "locks": waits.locks, "longest": longest, "others_wait": works })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_attach::WaitReason;
    use std::time::Duration;

    fn call(call: &'static str, seconds: u64, is_lock: bool) -> WaitingCall {
        let why = WaitReason { what: "waits for the server h1:7200".to_owned(), remedy: "see h1".to_owned(), is_lock };
        let (name, path) = (Some("file".to_owned()), Some("a/b".to_owned()));
        let (process, program) = (Some(12), Some("rm".to_owned()));
        WaitingCall { call, inode: 7, name, path, process, program, age: Duration::from_secs(seconds), why }
    }

    #[test]
    fn longest_wait_is_problem_except_locks() {
        let lock = WaitingCall { name: None, ..call("lock", 90, true) };
        let waits = LongWaits { longest: vec![lock.clone()], calls: 0, locks: 1 };
        let healthy = with_waits(PartStatus::healthy("volume mount", "/mnt"), &waits, &[]);
        assert_eq!((healthy.state, healthy.problems.len()), (PartHealth::Healthy, 0));
        assert_eq!(figures(&waits, &[])["longest"][0]["call"], "lock");
        let waits = LongWaits { longest: vec![lock, call("unlink", 45, false)], calls: 2, locks: 1 };
        let status = with_waits(healthy, &waits, &[]);
        assert_eq!(status.state, PartHealth::Degraded);
        assert_eq!(
            status.problems[0].what,
            "2 calls have been in progress for longer than 30 s; the longest: unlink of file in a/b (inode 7) by rm \
             (process 12), for 45 s: it waits for the server h1:7200"
        );
        assert_eq!(status.problems[0].remedy, "see h1");
    }

    #[test]
    fn unreturned_token_is_a_problem() {
        let why = WaitReason { what: "waits for the kernel".to_owned(), remedy: "see it".to_owned(), is_lock: false };
        let work = WaitingWork { inode: Some(5), age: Duration::from_secs(40), why };
        let status = with_waits(PartStatus::healthy("volume mount", "/mnt"), &LongWaits::default(), &[work]);
        assert_eq!(
            status.problems[0].what,
            "another host has waited for inode 5 for 40 s: this mount waits for the kernel"
        );
    }
}
