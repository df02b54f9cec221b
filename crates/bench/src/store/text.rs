//! A report for people: missed targets first, then the tables and the meaning of their columns.

use std::fmt::Write;
use std::time::Duration;

use nectary_block::format_size;

use super::plan::StorePlan;
use super::results::{DirtyShareResult, GroupResult, LaneResult, RatioTrend, disk_hit_ms, hit_ms, put_ms};
use crate::contender::ContenderKind;
use crate::disk::DiskTimekeeping;
use crate::{ReportFigure, machine};

/// The headings of the tables.
const LEGEND: [(&str, &str); 12] = [
    ("memory", "what the contender was given: all of it, or the proxy's cache + the kernel's buffer cache"),
    ("hits, sim", "share of requests that found their object, and what a simulation says of it"),
    ("hit ms", "mean time of a hit, wherever it was found"),
    ("disk ms", "mean time of a hit that the contender's own memory (of files: the proxy's cache) did not have"),
    ("put ms", "mean time of a put"),
    ("I/Os, I/O ms", "operations that the kernel completed, and the mean time in which the disk served one"),
    ("written", "bytes that the device wrote for each byte that was put"),
    ("cpu us", "processor time a request of the contender's process, the harness's own included"),
    ("daemon s", "of the run: what the harness did in the kernel's place, writing back dirty pages"),
    ("press s", "of the run: asking the kernel for memory over the allowance"),
    (
        "limit",
        "requests a second of any store that misses first requests alone: what no such memory could hold is read, at the disk's speed",
    ),
    ("used", "memory of the contender's group, on average and at most"),
];

pub(super) fn text(
    plan: &StorePlan,
    groups: &[GroupResult],
    figures: &[ReportFigure],
    trends: &[RatioTrend],
    swept: &[DirtyShareResult],
    took: Duration,
) -> String {
    let mut text = String::new();
    head(&mut text, plan, took);
    let _ = writeln!(
        text,
        "\nRun time of each contender over Nectary's, and what else has a target; first Nectary again, which is the noise, then what is short"
    );
    for figure in figures {
        text.push_str(&figure.line(34, 2));
    }
    let _ = writeln!(
        text,
        "\nThe same from piece to piece of the workload (a trend within runs), and over the second half alone"
    );
    for RatioTrend { name, pieces, steady } in trends {
        let pieces: Vec<String> = pieces.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let _ = writeln!(text, "  {name:34} {}; second half {steady:.2}", pieces.join(" "));
    }
    sweep(&mut text, swept);
    for results in groups.chunk_by(|left, right| left.group.label == right.group.label) {
        workload(&mut text, &results[0]);
        for result in results {
            table(&mut text, result);
        }
    }
    let _ = writeln!(text, "\nColumns");
    for (name, meaning) in LEGEND {
        let _ = writeln!(text, "  {name:13} {meaning}");
    }
    for skipped in &plan.skipped {
        let _ = writeln!(text, "not run: {skipped}");
    }
    text
}

fn head(text: &mut String, plan: &StorePlan, took: Duration) {
    let StorePlan { scale, pairs, threads, .. } = plan;
    let option = if plan.disk.is_bare { "--disk" } else { "--seed" };
    let _ = writeln!(text, "bench store {option} {}: {}", plan.options.preset.name(), machine::describe());
    let seeds: Vec<String> = plan.seeds.iter().map(u64::to_string).collect();
    let _ = writeln!(
        text,
        "scale {scale:.5}, seeds {}, {pairs} pieces, {threads} thread(s), took {:.0} s; {} requests of {}",
        seeds.join(" "),
        took.as_secs_f64(),
        plan.requests,
        plan.trace_requests
    );
    let path = match (&plan.disk.model, plan.disk.is_bare, plan.disk.time) {
        (_, true, _) => {
            "a bare disk under every contender: a file on this device and a loop device with direct I/O; times are \
                         real, without the harness's own between calls"
                .to_owned()
        }
        (model, _, time) => {
            let clock = match time {
                DiskTimekeeping::Virtual => "virtual clock".to_owned(),
                DiskTimekeeping::Real { speed } => format!("{speed} times faster than real"),
            };
            let queue = match plan.disk.queue_depth {
                1 => "no queue, as disks of 1999 had none".to_owned(),
                depth => format!("a queue of {depth}"),
            };
            let model = model.as_deref().unwrap_or("none");
            format!(
                "disk model {model} ({clock}, {queue}) under every contender by FUSE file and loop device with direct I/O; times \
                 are the disk's"
            )
        }
    };
    let _ = writeln!(text, "{path}");
    let _ = writeln!(
        text,
        "memory {}, in groups of {}, which is a quarter and 6M more; every byte that was read back was compared, and the hits \
         with a simulation's",
        format_size(plan.memory_bytes),
        format_size(plan.group_bytes())
    );
    if plan.options.quick {
        let _ =
            writeln!(text, "quick: the beginning of the trace alone, which does not fill the disks; for a look only");
    }
}

fn sweep(text: &mut String, swept: &[DirtyShareResult]) {
    if swept.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\nRun time by how much of the buffer cache may be dirty; each file system contends with its best"
    );
    for of_system in swept.chunk_by(|left, right| left.system == right.system) {
        let shares: Vec<String> =
            of_system.iter().map(|swept| format!("{} %: {:.1} s", swept.dirty_percent, swept.run_s)).collect();
        let _ = writeln!(text, "  {:14} {}", of_system[0].system.name(), shares.join(", "));
    }
}

/// Writes the laws of a workload, and the properties of its requests.
fn workload(text: &mut String, result: &GroupResult) {
    let GroupResult { group, demand, locality, .. } = result;
    let _ = writeln!(text, "\n{}: {}", group.label, group.source.describe());
    let _ = writeln!(
        text,
        "  of all requests {:.3} are first ones; an LRU of the memory has {:.3}, one of the disk {:.3} more",
        demand.compulsory as f64 / demand.requests.max(1) as f64,
        locality.memory_hits,
        locality.disk_hits
    );
}

fn table(text: &mut String, result: &GroupResult) {
    let GroupResult { group, limit, totals, lanes, demand, .. } = result;
    let mega_of = |bytes: u64| bytes as f64 / 1e6;
    let _ = writeln!(
        text,
        "\n{}, seed {}: {} GB scaled to {:.0} MB, {:.0} MB unique, {:.0} MB in all; the disk alone: {:.3} ms a read of 8 KiB, {:.1} MB/s read and \
         {:.1} written in order; an LRU over groups would have {:.0} requests a second",
        group.label,
        group.source.seed(),
        group.seed_gb,
        mega_of(group.disk_bytes),
        mega_of(totals.unique_bytes),
        mega_of(totals.bytes),
        limit.random_read_ms,
        limit.read_bytes_per_s / 1e6,
        limit.write_bytes_per_s / 1e6,
        limit.lru_over_groups_per_s(demand, 1)
    );
    let _ = writeln!(
        text,
        "  {:20} {:11} {:>11} {:>5} {:>5} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7} {:>6} {:>8} {:>7} {:>8} {:>7} {:>6} {:>11}",
        "file system",
        "stands for",
        "memory",
        "hits",
        "sim",
        "hit ms",
        "disk ms",
        "put ms",
        "I/Os",
        "I/O ms",
        "written",
        "cpu us",
        "daemon s",
        "press s",
        "run s",
        "req/s",
        "limit",
        "used"
    );
    for (lane, kind) in lanes.iter().zip(group.lanes.iter().map(|lane| &lane.kind)) {
        let total = &lane.total;
        let _ = writeln!(
            text,
            "  {:20} {:11} {:>11} {:>5.3} {:>5.3} {:>7.3} {:>7.3} {:>7.3} {:>8} {:>7.3} {:>7.2} {:>6.0} {:>8.1} {:>7.1} {:>8.1} {:>7.1} {:>6.0} {:>11}",
            lane.name,
            lane.seed_name,
            memory(kind),
            total.hit_rate(),
            lane.simulated.map_or(f64::NAN, |expected| expected.hits as f64 / total.requests.max(1) as f64),
            hit_ms(lane),
            disk_hit_ms(lane),
            put_ms(lane),
            lane.disk().operations,
            lane.disk_io_ms(),
            lane.written_per_byte(),
            1e6 * total.processor_s / total.requests.max(1) as f64,
            total.daemon_s,
            total.pressure_s,
            lane.run_time().as_secs_f64(),
            total.requests as f64 / total.run_s,
            limit.requests_per_s(demand, lane.disks),
            format!("{}/{}", mega(lane.keeping.used_mean_bytes), mega(lane.keeping.used_max_bytes)),
        );
        disks(text, lane);
    }
}

/// A contender's memory, as text.
fn memory(kind: &ContenderKind) -> String {
    match kind {
        ContenderKind::Nectary { memory_bytes, .. } | ContenderKind::Foyer { memory_bytes, .. } => mega(*memory_bytes),
        ContenderKind::Files { proxy_bytes, buffer_bytes, .. } => {
            format!("{}+{}", mega(*proxy_bytes), mega(*buffer_bytes))
        }
        ContenderKind::Memory { .. } => String::new(),
    }
}

/// If a contender has several disks, writes the work of each and how long requests waited for it.
fn disks(text: &mut String, lane: &LaneResult) {
    if lane.counts.len() < 2 {
        return;
    }
    let seconds = lane.total.run_s.max(1e-9);
    let shares = lane.counts.iter().enumerate().map(|(index, disk)| {
        let busy = disk.busy_us as f64 / 1e4 / seconds;
        format!("disk {}: {} I/Os, {busy:.0} % busy", index + 1, disk.operations)
    });
    let shares: Vec<String> = shares.collect();
    let waited = match lane.is_virtual {
        true => {
            format!("; mean wait for a disk {:.2} ms a request", 1e3 * lane.total.waited_s / lane.total.requests as f64)
        }
        false => String::new(),
    };
    let _ = writeln!(text, "    {}{waited}", shares.join("; "));
}

fn mega(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / f64::from(1 << 20))
}
