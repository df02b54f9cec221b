//! The lines of shared volumes in `nectary top`: three for each server, one for each mount.

use serde_json::Value;

use super::SampleChange;
use super::words::{number, rate, short, size, word};

/// Formats a count with its name, and its growth in a second.
fn counted(part: &Value, (name, shown): (&str, &str), change: Option<&SampleChange<'_>>) -> String {
    let grown = change.and_then(|change| change.grown(part, |part| part[name].as_u64()));
    let now = rate(grown, change).map(|a_second| format!(", now {}/s", short(a_second))).unwrap_or_default();
    format!("{} {shown}{now}", short(number(&part[name])))
}

/// Returns the lines of a server: its sessions, its activity, and its tokens and locks.
pub fn of_server(server: &Value, change: Option<&SampleChange<'_>>) -> Vec<String> {
    let counted = |names| counted(server, names, change);
    let sessions = &server["sessions"];
    let (active, quarantined) = (number(&sessions["active"]), number(&sessions["ended"]));
    let mut head = format!("volume {}  {}, {active} sessions", word(&server["name"]), word(&server["state"]));
    for (name, text) in [("suspended", "suspended"), ("expected", "not heard of since the start")] {
        if number(&sessions[name]) > 0 {
            head += &format!(", {} {text}", number(&sessions[name]));
        }
    }
    if quarantined > 0 {
        head += &format!(", {quarantined} ended with space in quarantine");
    }
    let held = |name: &str| {
        let (held, waiting) = (number(&server[name]["held"]), number(&server[name]["waiting"]));
        format!("{} held, {} wait", short(held), short(waiting))
    };
    vec![
        head,
        format!(
            "  does    {}; {}; {}",
            counted(("operations", "operations")),
            counted(("questions", "questions")),
            counted(("appends", "commits"))
        ),
        format!(
            "  tokens  {}; locks {}; {} of {} free",
            held("tokens"),
            held("locks"),
            size(number(&server["free_bytes"])),
            size(number(&server["size_bytes"]))
        ),
    ]
}

/// Returns the line of a mount.
pub fn of_mount(mount: &Value, change: Option<&SampleChange<'_>>) -> String {
    let counted = |names| counted(mount, names, change);
    format!(
        "mount {}  {}, session {}, {} open; {}; {}; {} wait",
        word(&mount["name"]),
        word(&mount["state"]),
        number(&mount["session"]),
        short(number(&mount["open_files"])),
        counted(("operations", "operations")),
        counted(("questions", "questions")),
        short(number(&mount["waiting"]))
    )
}
