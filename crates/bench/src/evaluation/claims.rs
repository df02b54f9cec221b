//! What the seed documents claim, and whether the measurements show it.
//!
//! Owns: the list of claims, in our words, and the rule by which each is judged. A claim is *reproduced* if the
//! interval of every ratio that it is about lies on its side; otherwise it is *not reproduced*. What no experiment of
//! this machine can show is *not testable*, with the reason; what an experiment shows that did not run is *not
//! measured*.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use super::checks::{
    ClaimEvidence, NamedRatio, all_hold, contenders, dear_ratios, figures, groups, ncar_ratios, nrd_files, nrd_ratio,
    nrd_remote, of, store_ratio,
};
use super::seeds::{NRD_CREATE_MS, NRD_FILES, NRD_LINK};
use super::{Evaluation, number};
use crate::statistics::IntervalEstimate;

/// The verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimVerdict {
    /// The measurements show it.
    Reproduced,
    /// They do not.
    NotReproduced,
    /// No experiment here can show it.
    NotTestable,
    /// The experiment that would show it has no results.
    NotMeasured,
}

impl ClaimVerdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            ClaimVerdict::Reproduced => "reproduced",
            ClaimVerdict::NotReproduced => "not reproduced",
            ClaimVerdict::NotTestable => "not testable here",
            ClaimVerdict::NotMeasured => "not measured",
        }
    }
}

/// A claim with its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgedClaim {
    /// Its name.
    pub name: &'static str,
    /// The seed.
    pub seed: &'static str,
    /// What the seed says.
    pub claim: &'static str,
    /// The verdict.
    pub verdict: ClaimVerdict,
    /// The numbers, or why there are none.
    pub why: String,
    /// Whether a quick run said it, whose numbers are those of a look.
    pub is_quick: bool,
}

/// How a claim is judged: by an experiment, or not at all.
enum ClaimJudge {
    By(fn(&Evaluation) -> Result<ClaimEvidence, ClaimEvidence>),
    Nothing(&'static str),
}

const STORE: &str = "Hummingbird, Table 4";
const THREADS: &str = "Hummingbird, Table 5";
const NCAR: &str = "NCAR";
const DEAR: &str = "DEAR";
const NRD: &str = "Network RamDisk";
/// The parts of the system time as the paper counts it: the kernel's, and what the cache does.
const SYSTEM: [&str; 3] = ["system_s", "cache_system_s", "cache_user_s"];
/// "Comparable" and "very close": at most this much more.
const CLOSE: f64 = 1.1;
/// The sizes of requests from which on a rate is not that of calls alone.
const LARGE: [&str; 4] = ["1m", "2m", "4m", "16m"];

type Row = (&'static str, &'static str, &'static str, ClaimJudge);

/// All claims, in the order of the seeds.
const CLAIMS: [Row; 25] = [
    (
        "throughput-4",
        STORE,
        "The throughput of Hummingbird is much higher than that of XFS and EFS at each disk size",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table4")?;
            Ok(all_hold(peers(report), |found| found.low > 1.0))
        }),
    ),
    (
        "latency",
        STORE,
        "What a user waits for a read is shortest with Hummingbird",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table4")?;
            let others = |group| contenders(report, group).into_iter().filter(|name| is_peer(name));
            let ratios = groups(report).into_iter().flat_map(|group| {
                others(group).filter_map(move |name| store_ratio(report, group, "hit_ms", name, "nectary"))
            });
            Ok(all_hold(ratios.collect(), |found| found.low > 1.0))
        }),
    ),
    (
        "efs-slower",
        STORE,
        "EFS is much slower than XFS, although XFS has a journal",
        ClaimJudge::By(|all| Ok(all_hold(splits(all, "run_s", "ext4-dirsync", "xfs")?, |found| found.low > 1.0))),
    ),
    (
        "efs-writes",
        STORE,
        "Writes take more than 3 times as long on EFS as on XFS (its own table: 2.80 and 3.46 times)",
        ClaimJudge::By(|all| Ok(all_hold(splits(all, "put_ms", "ext4-dirsync", "xfs")?, |found| found.low > 3.0))),
    ),
    (
        "efs-synchronous",
        STORE,
        "The reason is that EFS writes metadata synchronously",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table4")?;
            let ratio = store_ratio(report, "4gb", "put_ms", "ext4-dirsync.50", "ext4.50");
            Ok(all_hold(ratio.into_iter().collect(), |found| found.low > 1.0))
        }),
    ),
    (
        "larger-proxy-cache",
        STORE,
        "128 MB for the proxy's cache instead of 50 MB makes runs shorter (its own EFS rows: 128,878 and 130,359 s)",
        ClaimJudge::By(|all| Ok(all_hold(by_split(all, "run_s")?, |found| found.low > 1.0))),
    ),
    (
        "proxy-cache-better",
        STORE,
        "The proxy's cache serves better than the buffer cache of a file system",
        ClaimJudge::By(|all| Ok(all_hold(by_split(all, "hit_ms")?, |found| found.low > 1.0))),
    ),
    (
        "efs-limit",
        STORE,
        "EFS supports file systems of up to 8 GB",
        ClaimJudge::Nothing(
            "no kernel of today has EFS with writes; its stand-in is ext4 with synchronous directories, left out above 8 GB",
        ),
    ),
    (
        "threads-usual",
        THREADS,
        "Many proxies have several threads or processes",
        ClaimJudge::Nothing("it is about the proxies of its time, not about a measurement"),
    ),
    (
        "thread-safe",
        THREADS,
        "Hummingbird is safe with several threads",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table5")?;
            let threads = report.setting["threads"].as_u64().unwrap_or(0);
            // A run in which a byte was wrong is void, and has no file.
            Ok(ClaimEvidence::Found(
                threads > 1,
                format!("{threads} threads; every byte that was read back was compared"),
            ))
        }),
    ),
    (
        "process-safe",
        THREADS,
        "Hummingbird is safe with several processes",
        ClaimJudge::Nothing(
            "one process owns a store here, and others reach it through that one; tests cover this, no experiment does",
        ),
    ),
    (
        "two-disks-longer",
        THREADS,
        "Runs on two disks with four threads take longer than on one disk",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table5")?;
            let ratios = groups(report).into_iter().flat_map(|group| {
                [("nectary", "nectary-one-disk"), ("ext4-async.50", "ext4-async.50-one-disk")]
                    .into_iter()
                    .filter_map(move |(two, one)| store_ratio(report, group, "run_s", two, one))
            });
            Ok(all_hold(ratios.collect(), |found| found.low > 1.0))
        }),
    ),
    (
        "uneven-disks",
        THREADS,
        "The reason is that files are spread unevenly over the two disks",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table5")?;
            Ok(all_hold(unevenness(&report.rows), |found| found.value > CLOSE))
        }),
    ),
    (
        "bursts",
        THREADS,
        "Accesses to each disk come in bursts",
        ClaimJudge::Nothing("the experiment keeps sums of each disk, not when each operation came"),
    ),
    (
        "queues",
        THREADS,
        "Waiting in the driver's queue makes reads and writes of file systems longer",
        ClaimJudge::By(|all| {
            let (one, four) = (of(all, "store-table4")?, of(all, "store-table5")?);
            let ratios = ["nectary", "ext4-dirsync.50"].into_iter().filter_map(|name| across(one, four, name));
            Ok(all_hold(ratios.collect(), |found| found.value > 1.0))
        }),
    ),
    (
        "throughput-5",
        THREADS,
        "The throughput is 2 to 4 times that of UFS, UFS-async and UFS-soft",
        ClaimJudge::By(|all| {
            let report = of(all, "store-table5")?;
            Ok(all_hold(peers(report), |found| found.low >= 2.0))
        }),
    ),
    (
        "block-sizes",
        NCAR,
        "XFS is about as fast with other sizes of its blocks",
        ClaimJudge::By(|all| {
            let report = of(all, "io-ncar")?;
            let pairs = ["xfs-1024", "xfs-2048"].into_iter().flat_map(|system| {
                let pair =
                    move |what| ncar_ratios(report, &format!("{system}.client.{what}"), &format!("xfs.client.{what}"));
                ["read.direct.streams1", "write.direct.streams1"].into_iter().flat_map(pair)
            });
            Ok(all_hold(pairs.collect(), |found| found.high <= CLOSE && found.low >= 1.0 / CLOSE))
        }),
    ),
    (
        "memory-speed",
        NCAR,
        "Buffered rates of the host with much memory are those of copies in memory",
        ClaimJudge::By(|all| {
            let report = of(all, "io-ncar")?;
            let ratios = ncar_ratios(report, "xfs.client.write.buffered.streams1", "raw.client.write.direct.streams1");
            let large = ratios.into_iter().filter(|one| LARGE.iter().any(|size| one.0.ends_with(&format!(" {size}"))));
            Ok(all_hold(large.collect(), |found| found.low > 1.0))
        }),
    ),
    (
        "no-flush",
        NCAR,
        "The buffer cache cannot be emptied on command, only by unmounting",
        ClaimJudge::Nothing("Linux can drop pages on command: both ways are measured, and figures 13 to 20 show them"),
    ),
    (
        "dear-saves",
        DEAR,
        "Programs read fewer blocks and take less time under DEAR than under LRU (Figure 7)",
        ClaimJudge::By(|all| {
            let report = of(all, "cache-dear")?;
            let names = ["reads_saved.alone.dear", "time_saved.alone.dear"];
            Ok(all_hold(figures(report, |name| names.contains(&name)), |found| found.low > 0.0))
        }),
    ),
    (
        "dear-system-time",
        DEAR,
        "The system times of DEAR and LRU are comparable, so DEAR costs little (Figure 8)",
        ClaimJudge::By(|all| {
            let report = of(all, "cache-dear")?;
            Ok(all_hold(dear_ratios(report, &SYSTEM, "dear", "lru"), |found| found.high <= CLOSE))
        }),
    ),
    (
        "dear-extra-work",
        DEAR,
        "Beyond LRU's work, DEAR sorts blocks and keeps their attributes and distances, which takes time",
        ClaimJudge::By(|all| {
            let report = of(all, "cache-dear")?;
            let names = ["above_lru_us.hits.dear", "above_lru_us.half_misses.dear"];
            Ok(all_hold(figures(report, |name| names.contains(&name)), |found| found.low > 0.0))
        }),
    ),
    (
        "nrd-creates",
        NRD,
        "Creating files over ATM takes much less time on every network RAM disk than on the magnetic disk",
        ClaimJudge::By(|all| every_remote(all, "create")),
    ),
    ("nrd-deletes", NRD, "Deleting them at random does, too", ClaimJudge::By(|all| every_remote(all, "delete"))),
    (
        "nrd-parity",
        NRD,
        "With adaptive parity caching times are very close to those without redundancy",
        ClaimJudge::By(|all| {
            let report = of(all, "files-nrd")?;
            let ratios = ["create", "delete"].map(|step| nrd_ratio(report, NRD_LINK, step, "adaptive-3", "none-2"));
            Ok(all_hold(ratios.into_iter().flatten().collect(), |found| found.high <= CLOSE))
        }),
    ),
];

/// Two more claims, which compare with a number of the seed.
const NUMBERS: [Row; 2] = [
    (
        "nrd-12.6-ms",
        NRD,
        "16,384 files of 2 KB take 12.629 ms each on the disk and 7.601 ms on the network RAM disk, 1.66 times less",
        ClaimJudge::By(|all| {
            let report = of(all, "files-nrd")?;
            let files = nrd_files(report).unwrap_or(0);
            if files != NRD_FILES {
                return Ok(ClaimEvidence::Lacking(format!("the run has {files} files at most, the seed {NRD_FILES}")));
            }
            let [(disk, _, slow_ms), (ram, _, fast_ms)] = NRD_CREATE_MS;
            let ratio = nrd_ratio(report, NRD_LINK, "create", disk, ram);
            Ok(all_hold(ratio.into_iter().collect(), |found| found.low >= slow_ms / fast_ms))
        }),
    ),
    (
        "nrd-reliable",
        NRD,
        "A network RAM disk can be reliable and keep its performance",
        ClaimJudge::Nothing(
            "no experiment loses a donor; `cargo run --release -p nectary-e2e -- ram-donors` does, and checks every byte",
        ),
    ),
];

/// Whether a contender is a file system, and with the disks of the table.
fn is_peer(name: &str) -> bool {
    !name.starts_with("nectary") && !name.starts_with("foyer") && !name.ends_with("one-disk")
}

/// The run times of all file systems over Nectary's.
fn peers(report: &crate::ExperimentReport) -> Vec<NamedRatio> {
    let is_meant = |name: &str| {
        let contender = name.strip_prefix("ratio.").and_then(|rest| rest.split_once('.'));
        contender.is_some_and(|(group, contender)| group != "best" && is_peer(contender))
    };
    figures(report, is_meant)
}

/// A column of one file system over that of another, with both divisions of memory.
fn splits(all: &Evaluation, column: &str, over: &str, under: &str) -> Result<Vec<NamedRatio>, ClaimEvidence> {
    let report = of(all, "store-table4")?;
    let ratio = |split| store_ratio(report, "4gb", column, &format!("{over}.{split}"), &format!("{under}.{split}"));
    Ok([50, 128].into_iter().filter_map(ratio).collect())
}

/// A column of XFS with 50 MB for the proxy's cache over that with 128 MB.
fn by_split(all: &Evaluation, column: &str) -> Result<Vec<NamedRatio>, ClaimEvidence> {
    let report = of(all, "store-table4")?;
    let ratio = |group| store_ratio(report, group, column, "xfs.50", "xfs.128");
    Ok(groups(report).into_iter().filter_map(ratio).collect())
}

/// The time of a hit with four threads and two disks over that with one thread and one disk.
fn across(one: &crate::ExperimentReport, four: &crate::ExperimentReport, contender: &str) -> Option<NamedRatio> {
    let mean = |report: &crate::ExperimentReport| {
        let rows = report.rows.iter().filter(|row| row["group"] == "4gb" && row["contender"] == contender);
        let values: Vec<f64> = rows.filter_map(|row| row["hit_ms"].as_f64()).collect();
        crate::statistics::median(&values)
    };
    let ratio = mean(four) / mean(one);
    ratio.is_finite().then(|| (format!("hit_ms of {contender}"), IntervalEstimate::exactly(ratio)))
}

/// The operations of the busier disk over those of the other one, for each contender with two disks.
fn unevenness(rows: &[Value]) -> Vec<NamedRatio> {
    let of_row = |row: &Value| {
        let counts: Vec<f64> =
            row["disk_counts"].as_array()?.iter().filter_map(|disk| disk["operations"].as_f64()).collect();
        let [first, second] = counts.as_slice() else { return None };
        let name = format!("{} {}", row["group"].as_str()?, row["contender"].as_str()?);
        Some((name, IntervalEstimate::exactly(first.max(*second) / first.min(*second))))
    };
    // A seed of the workload is enough: the places of objects do not depend on it.
    let mut found: Vec<NamedRatio> = rows.iter().filter_map(of_row).collect();
    found.sort_by(|left, right| left.0.cmp(&right.0));
    found.dedup_by(|left, right| left.0 == right.0);
    found
}

/// The time of the model of the paper's disk over that of every network RAM disk.
fn every_remote(all: &Evaluation, step: &str) -> Result<ClaimEvidence, ClaimEvidence> {
    let report = of(all, "files-nrd")?;
    let ratio = |name| nrd_ratio(report, NRD_LINK, step, NRD_CREATE_MS[0].0, name);
    Ok(all_hold(nrd_remote(report).into_iter().filter_map(ratio).collect(), |found| found.low > 1.0))
}

/// Judges all claims.
pub fn claims(evaluation: &Evaluation) -> Vec<JudgedClaim> {
    CLAIMS
        .iter()
        .chain(&NUMBERS)
        .map(|(name, seed, claim, judge)| {
            let (name, seed, claim) = (*name, *seed, *claim);
            let (verdict, why) = match judge {
                ClaimJudge::Nothing(why) => (ClaimVerdict::NotTestable, (*why).to_owned()),
                ClaimJudge::By(by) => match by(evaluation).unwrap_or_else(|lacking| lacking) {
                    ClaimEvidence::Found(true, why) => (ClaimVerdict::Reproduced, why),
                    ClaimEvidence::Found(false, why) => (ClaimVerdict::NotReproduced, why),
                    ClaimEvidence::Lacking(why) => (ClaimVerdict::NotMeasured, why),
                },
            };
            let is_quick = evaluation.is_quick() && !matches!(verdict, ClaimVerdict::NotTestable);
            JudgedClaim { name, seed, claim, verdict, why, is_quick }
        })
        .collect()
}

/// The claims as text: how many have each verdict, then each claim.
pub fn claims_text(claims: &[JudgedClaim]) -> String {
    let mut text = String::new();
    let count = |verdict| claims.iter().filter(|claim| claim.verdict == verdict).count();
    let all =
        [ClaimVerdict::Reproduced, ClaimVerdict::NotReproduced, ClaimVerdict::NotTestable, ClaimVerdict::NotMeasured];
    let counts: Vec<String> = all.iter().map(|verdict| format!("{} {}", count(*verdict), verdict.words())).collect();
    let _ = writeln!(text, "{} claims: {}", number(claims.len() as f64), counts.join(", "));
    if claims.iter().any(|claim| claim.is_quick) {
        let _ = writeln!(text, "quick runs: a look, no verdict that counts");
    }
    for claim in claims {
        let _ = writeln!(
            text,
            "\n{}: {}\n  {}: {}\n  {}",
            claim.name,
            claim.claim,
            claim.seed,
            claim.verdict.words(),
            claim.why
        );
    }
    text
}
