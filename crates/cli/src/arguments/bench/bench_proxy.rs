//! The options of `bench proxy`.

use std::path::{Path, PathBuf};

use clap::Args;

use nectary_bench::proxy::{BenchProxyOptions, find_peers};
use nectary_block::parse_size;

use super::BenchWorkloadLaws;

/// `bench proxy`.
#[derive(Debug, Args)]
pub struct BenchProxyArguments {
    /// A directory on the device to be measured, for a disk a proxy
    #[arg(long, value_name = "DIR")]
    pub folder: PathBuf,
    /// Short loads and few requests, without verdicts
    #[arg(long)]
    pub quick: bool,
    /// Only Nectary and the proxies with this in their name: nginx, varnish, squid, haproxy, trafficserver; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// The root directory of a later release with proxies; by default the one that `ci/setup peers` makes
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,
    /// Replay the requests of this access log: Squid's native format, Common, Combined, W3C extended or JSON lines;
    /// plain, or compressed with gzip, xz or zstd
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub log: Option<PathBuf>,
    /// The laws by which the replayed requests are drawn; the seeds' by default
    #[arg(long, value_name = "LAWS", value_enum)]
    pub workload: Option<BenchWorkloadLaws>,
    /// Chooses the requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub random_seed: u64,
    /// Memory of each proxy, with its page cache; 256M by default, or 128M with --quick
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Rounds of each load; 5 by default, or 1 with --quick
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Length of each load in seconds; 10 by default, or 1 with --quick
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Replay at most so many requests; 20000 with --quick
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// The suite for HTTP caches, run in front of each proxy: a package of npm, or a directory with a clone of its
    /// repository; http-cache-tests by default, or none with --quick
    #[arg(long, value_name = "SUITE")]
    pub suite: Option<String>,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as a page into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

impl BenchProxyArguments {
    /// The options of a run; `program` is the path of this program.
    pub fn options(&self, program: &Path) -> BenchProxyOptions {
        BenchProxyOptions {
            quick: self.quick,
            only: self.only.clone(),
            folder: self.folder.clone(),
            peers: self.peers.clone().or_else(|| find_peers(program)),
            workload: self.workload.map(Into::into).unwrap_or_default(),
            log: self.log.clone(),
            seed: self.random_seed,
            rounds: self.rounds,
            seconds: self.seconds,
            memory_bytes: self.memory,
            requests: self.requests,
            suite: self.suite.clone(),
        }
    }
}
