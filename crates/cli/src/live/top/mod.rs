//! `nectary top`: the activity of the caches, proxies and volumes of this machine, each second.
//!
//! Owns: the requests to these parts, the difference between two answers, and the loop. Leaves to others: the frames
//! (`frame`), the text for Prometheus (`prometheus`). A part that has ended is omitted from the next frame.

mod frame;
mod prometheus;
mod volumes;
mod words;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use nectary_host::{PartHealth, PartStatus, RuntimeDirectory};
use serde_json::{Value, json};

use super::{CacheTarget, CachingProcess, PATIENCE};
use crate::arguments::TopArguments;
use crate::exit::{CommandFailure, GOOD, NOT_FOUND};
use crate::services::running_parts::running_parts;
use crate::{output, volume};

/// Terminal sequences: move the cursor to the corner, clear to the end of the line, clear below.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";
/// The width of a terminal that does not report it.
const COLUMNS_DEFAULT: usize = 80;
/// The number of streams shown for each cache if the output is not a terminal.
const STREAMS_DEFAULT: usize = 10;

/// The details of a proxy's status that are shown, beside all its counters.
const PROXY_DETAILS: &[&str] = &[
    "access_log_failure",
    "acme",
    "certificates",
    "connections",
    "fleet",
    "latencies",
    "origin_failure",
    "process",
    "servers",
    "services",
    "store",
];
/// The details of a volume server's status that are shown.
const SERVER_DETAILS: &[&str] =
    &["operations", "questions", "appends", "checkpoints", "inodes", "free_bytes", "size_bytes", "tokens", "locks"];
/// The details of a volume mount's status that are shown.
const MOUNT_DETAILS: &[&str] = &["session", "operations", "questions", "waiting", "reconnections", "open_files"];

/// The answers of caches, proxies and volumes to one round of requests.
pub struct TopSample {
    at: Instant,
    /// The caches, as the method `top` returns them.
    pub caches: Vec<Value>,
    /// The proxies: name, state, counters, process and store of each.
    pub proxies: Vec<Value>,
    /// The servers of volumes: name, state, and the details of their status.
    pub volumes: Vec<Value>,
    /// The mounts of volumes: name, state, and the details of their status.
    pub volume_mounts: Vec<Value>,
    /// The state of every part: component, name, state as a number, and the number of problems.
    pub parts: Vec<Value>,
}

impl TopSample {
    /// A sample that has nothing but caches.
    fn empty(caches: Vec<Value>) -> TopSample {
        let (proxies, volumes, volume_mounts, parts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        TopSample { at: Instant::now(), caches, proxies, volumes, volume_mounts, parts }
    }
}

/// Shows frames until a signal arrives, or one frame.
pub fn run(arguments: &TopArguments) -> Result<u8, CommandFailure> {
    let streams = arguments.streams.map_or(STREAMS_DEFAULT, usize::from);
    if arguments.json || arguments.prometheus {
        let sample = sample(arguments, streams)?;
        match arguments.json {
            true => output::json(&json!({
                "caches": sample.caches,
                "proxies": sample.proxies,
                "volumes": sample.volumes,
                "volume_mounts": sample.volume_mounts,
            }))?,
            false => output::text(&prometheus::text(&sample))?,
        }
        return Ok(code(&sample));
    }
    if arguments.once || !std::io::stdout().is_terminal() {
        let sample = sample(arguments, streams)?;
        let columns = console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let columns = columns.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok()).unwrap_or(COLUMNS_DEFAULT);
        output::text(&frame::lines(&sample, None, columns, streams).join("\n"))?;
        output::text("\n")?;
        return Ok(code(&sample));
    }
    let every = Duration::from_secs(u64::from(arguments.every));
    let mut before: Option<TopSample> = None;
    loop {
        let began = Instant::now();
        let (rows, columns) = console::Term::stdout().size();
        let (rows, columns) = (usize::from(rows).max(4), usize::from(columns));
        // Streams that do not fit on the screen are not requested.
        let sample = sample(arguments, arguments.streams.map_or(rows, usize::from))?;
        let lines = frame::lines(&sample, before.as_ref(), columns, rows);
        let shown: Vec<&str> = lines.iter().take(rows - 1).map(String::as_str).collect();
        output::text(&format!("{HOME}{}{CLEAR_LINE}{CLEAR_BELOW}", shown.join(CLEAR_LINE)))?;
        before = Some(sample);
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

/// Returns the exit code: "not found" if there is nothing to show.
fn code(sample: &TopSample) -> u8 {
    let parts = [&sample.caches, &sample.proxies, &sample.volumes, &sample.volume_mounts];
    if parts.iter().all(|parts| parts.is_empty()) { NOT_FOUND } else { GOOD }
}

fn sample(arguments: &TopArguments, streams: usize) -> Result<TopSample, CommandFailure> {
    let asked = match &arguments.name {
        Some(name) => vec![CacheTarget::named(name)?.running],
        None => CachingProcess::all()?,
    };
    let mut caches = Vec::new();
    for running in &asked {
        // A process that has just ended is omitted.
        let Ok(answer) = running.ask_for("top", json!({ "streams": streams }), PATIENCE) else { continue };
        caches.extend(answer["caches"].as_array().cloned().unwrap_or_default());
    }
    let mut sample = TopSample::empty(caches);
    if arguments.name.is_none() {
        add_others(&mut sample)?;
    }
    Ok(sample)
}

/// Adds the parts that are no caches, from their status, and the state of all parts.
fn add_others(sample: &mut TopSample) -> Result<(), CommandFailure> {
    for part in running_parts(&RuntimeDirectory::open()?, PATIENCE)? {
        let Ok(status) = part.status else {
            let state = json!({ "component": "unknown", "name": part.path, "state": number_of(PartHealth::Broken) });
            sample.parts.push(state);
            continue;
        };
        add(sample, &status);
    }
    Ok(())
}

/// Adds a part that is no cache, from its status.
fn add(sample: &mut TopSample, status: &PartStatus) {
    sample.parts.push(json!({
        "component": status.component,
        "name": status.name,
        "state": number_of(status.state),
        "problems": status.problems.len(),
    }));
    let detail = &status.detail;
    let (list, names) = match status.component.as_str() {
        "proxy" => (&mut sample.proxies, PROXY_DETAILS),
        volume::SERVER => (&mut sample.volumes, SERVER_DETAILS),
        volume::MOUNT => (&mut sample.volume_mounts, MOUNT_DETAILS),
        _ => return,
    };
    let mut shown = json!({ "name": status.name, "state": status.state.as_str() });
    for name in names {
        shown[*name] = detail[*name].clone();
    }
    if status.component == "proxy" {
        add_counters(&mut shown, detail);
    }
    if status.component == volume::SERVER {
        shown["sessions"] = sessions(detail);
    }
    list.push(shown);
}

/// The metrics of one part that is no cache, as text for Prometheus.
pub fn metrics_of(status: &PartStatus) -> String {
    let mut sample = TopSample::empty(Vec::new());
    add(&mut sample, status);
    prometheus::text(&sample)
}

/// The number of a state in the metrics: a greater one is worse.
fn number_of(state: PartHealth) -> u64 {
    match state {
        PartHealth::Healthy => 0,
        PartHealth::Degraded => 1,
        PartHealth::Broken => 2,
    }
}

/// Adds the counters of a proxy, and how many spans of its store are lost.
fn add_counters(shown: &mut Value, detail: &Value) {
    for (name, value) in detail["requests"].as_object().into_iter().flatten() {
        shown[name] = value.clone();
    }
    if shown["store"].is_object() {
        let spans: &[Value] = detail["store"]["spans"].as_array().map_or(&[], Vec::as_slice);
        shown["store"]["spans_lost"] = spans.iter().filter(|span| span["lost"].is_string()).count().into();
    }
}

/// Counts the sessions of a volume by state.
fn sessions(detail: &Value) -> Value {
    let all: &[Value] = detail["sessions"].as_array().map_or(&[], Vec::as_slice);
    let count = |state: &str| all.iter().filter(|session| session["state"] == state).count();
    json!({
        "active": count("active"),
        "suspended": count("suspended"),
        "ended": count("ended"),
        "expected": detail["sessions_expected"],
    })
}

/// The change between two samples.
pub struct SampleChange<'a> {
    seconds: f64,
    before: HashMap<&'a str, &'a Value>,
}

impl<'a> SampleChange<'a> {
    fn new(before: Option<&'a TopSample>, now: &TopSample) -> Option<SampleChange<'a>> {
        let sample = before?;
        let all = sample.caches.iter().chain(&sample.proxies).chain(&sample.volumes).chain(&sample.volume_mounts);
        let before = all.filter_map(|part| Some((part["name"].as_str()?, part))).collect();
        Some(SampleChange { seconds: (now.at - sample.at).as_secs_f64().max(0.001), before })
    }

    /// Returns the growth of one number of a part; `None` if the part is new or was restarted.
    fn grown(&self, now: &Value, number: impl Fn(&Value) -> Option<u64>) -> Option<u64> {
        let before = self.before.get(now["name"].as_str()?)?;
        number(now)?.checked_sub(number(before)?)
    }
}
