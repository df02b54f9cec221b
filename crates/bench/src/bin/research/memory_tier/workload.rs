//! Generates requests like those of a web cache from a seed.
//!
//! Objects of a catalogue are requested by Zipf's law: the object of rank r has a weight of r to the power of minus the
//! *exponent*. Published exponents of web caches lie between 0.6 and 1.0. Sizes are log-normal and independent of
//! popularity, with a median of 12 KiB, a mean of about 35 KiB and a maximum of 1 MiB (the store keeps larger objects
//! in fragments of that size). Three kinds of requests are added:
//! - *one-hit wonders*: requests for objects that are never requested again. There are so many that 50 to 70 % of all
//!   objects are requested once, as content networks report;
//! - *scans*: a crawler or a mirror walks through the catalogue from end to end, at intervals;
//! - *drift*: at intervals one rank is given to a new object, so that in the whole run more objects are popular for a
//!   time than the catalogue holds at once.

use std::collections::HashMap;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The number of objects that can be popular at one time.
const CATALOGUE: usize = 100_000;
/// The parameters of the log-normal sizes: the median, the deviation of the logarithm, and the bounds. *Units*: bytes.
const MEDIAN_BYTES: f64 = 12.0 * 1024.0;
const DEVIATION: f64 = 1.55;
const BYTES_MIN: f64 = 200.0;
const BYTES_MAX: f64 = 1024.0 * 1024.0;

/// A kind of workload.
#[derive(Debug, Clone, Copy)]
pub struct WebWorkloadKind {
    pub name: &'static str,
    exponent: f64,
    /// The share of requests for objects that are never requested again.
    wonders: f64,
    /// The number of requests from one scan to the next, and the number of requests while a scan runs; both are 0 if
    /// there are no scans.
    scan_every: usize,
    scan_length: usize,
    /// The number of requests after which another rank is given to a new object; 0 if this never happens.
    drift_every: usize,
}

pub const KINDS: [WebWorkloadKind; 5] = [
    WebWorkloadKind { name: "steady", exponent: 0.8, wonders: 0.0, scan_every: 0, scan_length: 0, drift_every: 0 },
    WebWorkloadKind { name: "wonders", exponent: 0.8, wonders: 0.08, scan_every: 0, scan_length: 0, drift_every: 0 },
    WebWorkloadKind {
        name: "scans",
        exponent: 0.8,
        wonders: 0.08,
        scan_every: 100_000,
        scan_length: 30_000,
        drift_every: 0,
    },
    WebWorkloadKind { name: "drift", exponent: 0.8, wonders: 0.08, scan_every: 0, scan_length: 0, drift_every: 8 },
    WebWorkloadKind {
        name: "all",
        exponent: 0.9,
        wonders: 0.08,
        scan_every: 150_000,
        scan_length: 30_000,
        drift_every: 16,
    },
];

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct WebRequest {
    pub id: u64,
    pub bytes: u32,
}

/// The requests of one run.
pub struct WebWorkload {
    pub requests: Vec<WebRequest>,
    /// The sum of the sizes of all distinct objects.
    pub distinct_bytes: u64,
    distinct: usize,
    once: usize,
}

impl WebWorkload {
    /// Makes `count` requests.
    pub fn new(kind: &WebWorkloadKind, seed: u64, count: usize) -> WebWorkload {
        let mut random = CatalogueRandom::new(seed);
        let cumulative = zipf(kind.exponent);
        // The shuffle makes popularity independent of the objects' numbers.
        let mut objects: Vec<u64> = (0..CATALOGUE as u64).collect();
        for rank in (1..CATALOGUE).rev() {
            objects.swap(rank, (random.uniform() * (rank + 1) as f64) as usize);
        }
        let mut next_object = CATALOGUE as u64;
        let mut fresh = || {
            next_object += 1;
            next_object - 1
        };
        let mut requests = Vec::with_capacity(count);
        let mut scanned = 0;
        while requests.len() < count {
            let number = requests.len();
            let in_scan = kind.scan_every > 0 && number % kind.scan_every >= kind.scan_every - kind.scan_length;
            // While a scan runs, every other request belongs to it.
            let id = if in_scan && number % 2 == 0 {
                scanned = (scanned + 1) % CATALOGUE;
                objects[scanned]
            } else if random.uniform() < kind.wonders {
                fresh()
            } else {
                let drawn = random.uniform();
                objects[cumulative.partition_point(|sum| *sum < drawn).min(CATALOGUE - 1)]
            };
            if kind.drift_every > 0 && number % kind.drift_every == 0 {
                objects[(random.uniform() * CATALOGUE as f64) as usize] = fresh();
            }
            requests.push(WebRequest { id, bytes: bytes_of(id, seed) });
        }
        let mut counts: HashMap<u64, (u32, u32)> = HashMap::new();
        requests.iter().for_each(|request| counts.entry(request.id).or_insert((request.bytes, 0)).1 += 1);
        WebWorkload {
            distinct_bytes: counts.values().map(|(bytes, _)| u64::from(*bytes)).sum(),
            distinct: counts.len(),
            once: counts.values().filter(|(_, count)| *count == 1).count(),
            requests,
        }
    }

    /// A description of the workload.
    pub fn description(&self) -> String {
        let once = 100.0 * self.once as f64 / self.distinct.max(1) as f64;
        let gib = self.distinct_bytes as f64 / f64::from(1 << 30);
        format!("{} objects, {once:.0} % of them requested once, {gib:.1} GiB", self.distinct)
    }
}

/// For each rank, the share of requests that go to this rank or a lower one.
fn zipf(exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut cumulative: Vec<f64> = Vec::with_capacity(CATALOGUE);
    for rank in 1..=CATALOGUE {
        sum += (rank as f64).powf(-exponent);
        cumulative.push(sum);
    }
    cumulative.iter_mut().for_each(|share| *share /= sum);
    cumulative
}

/// The size of an object, which is the same at every request.
fn bytes_of(id: u64, seed: u64) -> u32 {
    let mut random = CatalogueRandom::new(id.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ seed);
    // The Box-Muller transform gives a normally distributed number.
    let (radius, angle) = (random.uniform().max(f64::MIN_POSITIVE), random.uniform());
    let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
    (MEDIAN_BYTES * (DEVIATION * normal).exp()).clamp(BYTES_MIN, BYTES_MAX) as u32
}

struct CatalogueRandom(SplitMix64);

impl CatalogueRandom {
    fn new(seed: u64) -> CatalogueRandom {
        CatalogueRandom(SplitMix64::seed_from_u64(seed))
    }

    /// A number from 0 to 1.
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
