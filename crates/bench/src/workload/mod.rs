//! Requests as a caching proxy receives them: those of a real log (`log`), or drawn by the laws below. The same seed
//! gives the same requests.
//!
//! # The laws
//! Clients view pages. A view requests the page's HTML and then its embedded objects; several clients are active at the
//! same time, so views interleave. The probability that a view is of a new page is chosen to give the configured share
//! of first requests. Each other view repeats an earlier view. The age of an earlier view is 1 for the latest, 2 for
//! the one before it, and so on. With probability `recent`, the age is drawn log-uniformly from the range between the
//! number of clients and the number of earlier views, so that recent views are repeated more often. Otherwise every
//! earlier view is equally likely. Repeating earlier views is Simon's model [1], in which popularity follows Zipf's
//! law; the exponent is 1 minus the share of new pages. An embedded object is new, or is also embedded in an earlier
//! page of the same site. Sizes are log-normal. A few views are of one large object each, with a size from a Pareto
//! law; large objects are rarely requested again. Large objects make the mean size of distinct objects larger than the
//! mean size of requests, as in real traces.
//!
//! Hints are derived only from the requests, as wg-Hummingbird derives them: an object that is not HTML belongs to the
//! last HTML object of its client.
//!
//! # The public log
//! [`WorkloadPreset::Wikimedia`] has the published numbers of Wikimedia's log of text pages of 2019 [2], which the miss
//! ratio profiler FLOWS lists as `wiki2019t` [3]: 207,646,002 requests for 6.93 TB, of 18,394,481 distinct objects with
//! 430 GB. So 8.86 % of the requests are the first for their object, and an object has 23.4 kB on average. The log has
//! neither clients nor embedded objects, so there are no hints. The sources print no quantiles of sizes; the law is
//! log-normal with the seed's sigma and the published mean. The share of recent views, and the number of views before
//! the first repeated one, are chosen such that the most requested hundredth of the objects has the published share of
//! the requests, 55.5 % [4].
//!
//! [1] H. A. Simon: On a Class of Skew Distribution Functions. Biometrika 42, 1955.
//! [2] Wikimedia: Analytics/Data Lake/Traffic/Caching, on Wikitech; listed in the repository cacheMon/cache_dataset.
//! [3] X. Guo and others: FLOWS: Balanced MRC Profiling for Heterogeneous Object-Size Cache. EuroSys 2024; the
//! configuration of its traces.
//! [4] The summary of the traces of a study with libCacheSim: wiki_2019t, `top1pct`.

mod bound;
mod generator;
mod log;
mod source;
mod trace;

pub mod content;

pub use bound::{RequestLocality, WorkloadDemand, demand, locality};
pub use generator::RequestGenerator;
pub use log::{LOG_OBJECT_BYTES_MAX, LOG_REQUESTS_MAX, LeftOutLines, LogWorkload};
pub use source::WorkloadSource;
pub use trace::{TraceReader, WorkloadTotals, write_trace};

use serde::Serialize;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyRequest {
    /// The client.
    pub client: u32,
    /// The number of the object.
    pub object: u32,
    /// The size of the object in bytes, which never changes.
    pub bytes: u32,
    /// The site of the object. The page in `page` belongs to the same site.
    pub site: u32,
    /// The page with which the object should be collocated: the client's last HTML object. `None` if this object is
    /// HTML.
    pub page: Option<u32>,
}

impl ProxyRequest {
    /// The key under which the object is stored: a URL of typical length.
    pub fn key(&self) -> String {
        key(self.site, self.object)
    }

    /// The key of the page with which the object should be collocated, if the request has a hint.
    pub fn page_key(&self) -> Option<String> {
        self.page.map(|page| key(self.site, page))
    }
}

fn key(site: u32, object: u32) -> String {
    format!("http://site-{site:05}.example/objects/{object:08x}.html")
}

/// The parameters of a workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadLaws {
    /// The seed of the requests.
    pub seed: u64,
    /// The number of requests.
    pub requests: u64,
    /// The share of requests that are the first for their object.
    pub new_share: f64,
    /// The mean number of embedded objects per page.
    pub embedded_mean: f64,
    /// The share of embedded objects that an earlier page of the site embeds too.
    pub shared: f64,
    /// The number of views before the first one that repeats another.
    pub first_views: usize,
    /// The share of repeated views that choose among recent views; the others choose among all earlier ones.
    pub recent: f64,
    /// Median and sigma of the log-normal law of sizes, in bytes.
    pub size: (f64, f64),
    /// The largest size that this law gives, in bytes.
    pub size_bytes_max: f64,
    /// The share of distinct objects that are large.
    pub large_share: f64,
    /// Bounds and exponent of the Pareto law of large sizes, in bytes.
    pub large: (f64, f64, f64),
    /// The number of clients that are active at the same time.
    pub clients: usize,
    /// The number of sites.
    pub sites: usize,
}

/// The numbers of clients and sites of the paper's trace at scale 1. Both are multiplied by the scale, so that the
/// distance between requests for an object, relative to memory, is the same at every scale.
const SEED_CLIENTS: f64 = 512.0;
const SEED_SITES: f64 = 16_000.0;

/// The number of requests of the paper's trace.
pub const SEED_REQUESTS: u64 = 4_800_000;
/// The bytes of the distinct objects of the paper's trace.
pub const SEED_UNIQUE_BYTES: u64 = 14_300_000_000;
/// The bytes of all requests of the paper's trace.
pub const SEED_BYTES: u64 = 27_600_000_000;

/// The published numbers of Wikimedia's log: requests, distinct objects, and their bytes.
const WIKIMEDIA_REQUESTS: f64 = 207_646_002.0;
const WIKIMEDIA_OBJECTS: f64 = 18_394_481.0;
const WIKIMEDIA_UNIQUE_BYTES: f64 = 429_911_251_322.0;
/// The number of views before the first repeated one at scale 1. With fewer, the very first page would have a larger
/// share of the requests than any of the log.
const WIKIMEDIA_FIRST_VIEWS: f64 = 6400.0;

/// Laws with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkloadPreset {
    /// The trace of the paper on wg-Hummingbird.
    #[default]
    Seed,
    /// Wikimedia's log of text pages of 2019.
    Wikimedia,
}

impl WorkloadPreset {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            WorkloadPreset::Seed => "seed",
            WorkloadPreset::Wikimedia => "wikimedia",
        }
    }

    /// Its laws, scaled.
    pub fn laws(self, seed: u64, scale: f64) -> WorkloadLaws {
        match self {
            WorkloadPreset::Seed => WorkloadLaws::seed_trace(seed, scale),
            WorkloadPreset::Wikimedia => WorkloadLaws::wikimedia(seed, scale),
        }
    }
}

impl WorkloadLaws {
    /// The laws of the paper's trace, scaled. At scale 1 it has 4.8 M requests for 27.6 GB, of which 14.3 GB are
    /// distinct.
    ///
    /// `recent` was chosen such that an LRU cache of 4, 9 and 18 GB has the hit rates of the paper's table 4: 0.62,
    /// 0.66, 0.67.
    pub fn seed_trace(seed: u64, scale: f64) -> WorkloadLaws {
        WorkloadLaws {
            seed,
            requests: ((SEED_REQUESTS as f64 * scale) as u64).max(1),
            new_share: 0.33,
            embedded_mean: 3.0,
            shared: 0.3,
            first_views: 1,
            recent: 0.78,
            size: (2500.0, 1.0),
            size_bytes_max: 200_000.0,
            large_share: 0.0355,
            large: (40_000.0, 2_000_000.0, 1.1),
            clients: ((SEED_CLIENTS * scale) as usize).max(1),
            sites: ((SEED_SITES * scale) as usize).max(1),
        }
    }
    /// The laws of Wikimedia's log of text pages, scaled. At scale 1 its distinct objects have as many bytes as those of
    /// the paper's trace, so that the same disks hold the same shares of both.
    pub fn wikimedia(seed: u64, scale: f64) -> WorkloadLaws {
        let mean_bytes = WIKIMEDIA_UNIQUE_BYTES / WIKIMEDIA_OBJECTS;
        let new_share = WIKIMEDIA_OBJECTS / WIKIMEDIA_REQUESTS;
        let requests = SEED_UNIQUE_BYTES as f64 / mean_bytes / new_share;
        let usual = WorkloadLaws::seed_trace(seed, scale);
        let sigma = usual.size.1;
        WorkloadLaws {
            requests: ((requests * scale) as u64).max(1),
            new_share,
            embedded_mean: 0.0,
            shared: 0.0,
            first_views: ((WIKIMEDIA_FIRST_VIEWS * scale) as usize).max(1),
            recent: 0.35,
            size: (mean_bytes / (sigma * sigma / 2.0).exp(), sigma),
            size_bytes_max: 2_000_000.0,
            large_share: 0.0,
            ..usual
        }
    }

    /// The laws, in a sentence.
    pub fn describe(&self) -> String {
        format!(
            "requests by {} clients on {} sites; {:.2} of them the first for their object; pages embed {} objects, {:.2} \
             of them from an earlier page; {:.2} of repeats are recent; sizes log-normal (median {:.0} B, sigma {}), \
             {:.2} % of objects by Pareto's law from {:.0} to {:.0} B (exponent {})",
            self.clients,
            self.sites,
            self.new_share,
            self.embedded_mean,
            self.shared,
            self.recent,
            self.size.0,
            self.size.1,
            100.0 * self.large_share,
            self.large.0,
            self.large.1,
            self.large.2
        )
    }
}
