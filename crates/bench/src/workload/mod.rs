//! Requests as a caching proxy receives them, drawn by the laws below. The same seed gives the same requests.
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
//! [1] H. A. Simon: On a Class of Skew Distribution Functions. Biometrika 42, 1955.

mod bound;
mod generator;
mod trace;

pub mod content;

pub use bound::{RequestLocality, WorkloadDemand, demand, locality};
pub use generator::RequestGenerator;
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
    /// The share of repeated views that choose among recent views; the others choose among all earlier ones.
    pub recent: f64,
    /// Median and sigma of the log-normal law of sizes, in bytes.
    pub size: (f64, f64),
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
            recent: 0.78,
            size: (2500.0, 1.0),
            large_share: 0.0355,
            large: (40_000.0, 2_000_000.0, 1.1),
            clients: ((SEED_CLIENTS * scale) as usize).max(1),
            sites: ((SEED_SITES * scale) as usize).max(1),
        }
    }
}
