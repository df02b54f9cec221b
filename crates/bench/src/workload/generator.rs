//! Draws requests according to [`WorkloadLaws`].
//!
//! Owns: the state of the generation: the pages with their embedded objects, the objects' sizes, and the views so far.
//! *Cost*: memory of about 20 bytes per object and 4 per view.

use super::{ProxyRequest, WorkloadLaws};
use crate::random::SeededRandom;

/// The largest number of objects that a page embeds.
const EMBEDDED_MAX: u64 = 40;
/// The smallest size of objects that are not large, in bytes.
const SIZE_BYTES_MIN: f64 = 100.0;

struct SitePage {
    site: u32,
    objects: std::ops::Range<u32>,
}

/// A client's current view.
#[derive(Clone)]
struct ClientPageView {
    client: u32,
    page: Option<u32>,
    site: u32,
    objects: std::ops::Range<u32>,
}

/// An iterator that draws as many requests as the laws specify ([`WorkloadLaws::requests`]).
pub struct RequestGenerator {
    laws: WorkloadLaws,
    random: SeededRandom,
    left: u64,
    /// The probabilities that a view is of a new page and that it is of a large object.
    new_page: f64,
    new_large: f64,
    sizes: Vec<u32>,
    /// The objects of all pages, one page after the other.
    embedded: Vec<u32>,
    pages: Vec<SitePage>,
    /// For each site, the last page with embedded objects.
    last_of_site: Vec<Option<u32>>,
    /// The page of each view so far.
    views: Vec<u32>,
    active: Vec<ClientPageView>,
    next_client: u32,
}

impl RequestGenerator {
    /// Makes a generator that is before the first request.
    pub fn new(laws: WorkloadLaws) -> RequestGenerator {
        // A view of a page makes `1 + mean` requests; if the page is new, `own` of them are first requests. A view of a
        // large object makes one request.
        let mean = laws.embedded_mean;
        let own = 1.0 + mean * (1.0 - laws.shared);
        // The shares follow from the equation new_page * own + new_large = new_share * (1 + mean * (1 - new_large)),
        // and from the condition that new_large is `large_share` times each side of it.
        let new_large =
            laws.large_share * laws.new_share * (1.0 + mean) / (1.0 + laws.large_share * laws.new_share * mean);
        let new_page = (new_large / laws.large_share.max(1e-9) - new_large) / own;
        let new_page = if laws.large_share > 0.0 { new_page } else { laws.new_share * (1.0 + mean) / own };
        RequestGenerator {
            random: SeededRandom::new(laws.seed),
            left: laws.requests,
            new_page,
            new_large,
            sizes: Vec::new(),
            embedded: Vec::new(),
            pages: Vec::new(),
            last_of_site: vec![None; laws.sites.max(1)],
            views: Vec::new(),
            active: Vec::new(),
            next_client: 0,
            laws,
        }
    }

    fn new_object(&mut self, is_large: bool) -> u32 {
        let laws = &self.laws;
        let bytes = match is_large {
            true => self.random.pareto(laws.large.0, laws.large.1, laws.large.2),
            false => self.random.log_normal(laws.size.0, laws.size.1).clamp(SIZE_BYTES_MIN, laws.size_bytes_max),
        };
        self.sizes.push(bytes as u32);
        (self.sizes.len() - 1) as u32
    }

    fn add_page(&mut self) -> u32 {
        let site = self.site();
        let earlier = self.last_of_site[site as usize].map(|page| self.pages[page as usize].objects.clone());
        let start = self.embedded.len() as u32;
        let html = self.new_object(false);
        self.embedded.push(html);
        for _ in 0..self.random.geometric(self.laws.embedded_mean).min(EMBEDDED_MAX) {
            // The first object of a page is its HTML; the embedded ones follow.
            let object = match &earlier {
                Some(earlier) if self.random.chance(self.laws.shared) => {
                    let index = 1 + self.random.below(earlier.len() as u64 - 1) as u32;
                    self.embedded[(earlier.start + index) as usize]
                }
                _ => self.new_object(false),
            };
            self.embedded.push(object);
        }
        let page = self.pages.len() as u32;
        self.pages.push(SitePage { site, objects: start..self.embedded.len() as u32 });
        if self.embedded.len() as u32 > start + 1 {
            self.last_of_site[site as usize] = Some(page);
        }
        page
    }

    fn site(&mut self) -> u32 {
        self.random.below(self.last_of_site.len() as u64) as u32
    }

    /// Draws an earlier view and returns its page.
    fn repeated(&mut self) -> u32 {
        let count = self.views.len() as u64;
        // The smallest age of a recent view is the number of clients, which grows with the scale. So the ages of views,
        // divided by this number, have the same distribution at every scale.
        let clients = (self.laws.clients.max(1) as f64).min(count as f64);
        let age = match self.random.chance(self.laws.recent) {
            true => ((clients * (count as f64 / clients).powf(self.random.unit())) as u64).clamp(1, count),
            false => 1 + self.random.below(count),
        };
        self.views[(count - age) as usize]
    }

    fn view(&mut self) -> ClientPageView {
        let client = self.next_client;
        self.next_client = self.next_client.wrapping_add(1);
        let draw = self.random.unit();
        if draw < self.new_large {
            let object = self.new_object(true);
            let start = self.embedded.len() as u32;
            self.embedded.push(object);
            return ClientPageView { client, page: None, site: self.site(), objects: start..start + 1 };
        }
        let page = match self.views.len() < self.laws.first_views.max(1) || draw < self.new_large + self.new_page {
            true => self.add_page(),
            false => self.repeated(),
        };
        self.views.push(page);
        let SitePage { site, objects } = &self.pages[page as usize];
        ClientPageView { client, page: Some(page), site: *site, objects: objects.clone() }
    }

    /// The number of distinct objects so far.
    pub fn objects(&self) -> usize {
        self.sizes.len()
    }
}

impl Iterator for RequestGenerator {
    type Item = ProxyRequest;

    fn next(&mut self) -> Option<ProxyRequest> {
        self.left = self.left.checked_sub(1)?;
        while self.active.len() < self.laws.clients.max(1) {
            let view = self.view();
            self.active.push(view);
        }
        let slot = self.random.below(self.active.len() as u64) as usize;
        let view = &mut self.active[slot];
        let position = view.objects.next()?;
        let object = self.embedded[position as usize];
        let html = view.page.map(|page| self.embedded[self.pages[page as usize].objects.start as usize]);
        let request = ProxyRequest {
            client: view.client,
            object,
            bytes: self.sizes[object as usize],
            site: view.site,
            page: html.filter(|html| *html != object),
        };
        if view.objects.is_empty() {
            self.active.swap_remove(slot);
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::workload::{SEED_BYTES, SEED_REQUESTS, SEED_UNIQUE_BYTES};

    #[test]
    fn seed_determines_requests() {
        let requests = |seed| RequestGenerator::new(WorkloadLaws::seed_trace(seed, 0.001)).collect::<Vec<_>>();
        assert_eq!(requests(1).len(), (SEED_REQUESTS / 1000) as usize);
        assert_eq!(requests(1), requests(1));
        assert_ne!(requests(1), requests(2));
    }

    /// The trace has the requests and bytes of the seed document.
    #[test]
    fn seed_trace_matches_paper_totals() {
        let scale = 1.0 / 64.0;
        let mut counts: HashMap<u32, (u64, u32)> = HashMap::new();
        let (mut bytes, mut requests) = (0, 0);
        for request in RequestGenerator::new(WorkloadLaws::seed_trace(1, scale)) {
            let entry = counts.entry(request.object).or_insert((0, request.bytes));
            assert_eq!(entry.1, request.bytes, "an object never changes its size");
            entry.0 += 1;
            bytes += u64::from(request.bytes);
            requests += 1;
        }
        let unique: u64 = counts.values().map(|entry| u64::from(entry.1)).sum();
        let near = |found: u64, wanted: u64| (found as f64 / (wanted as f64 * scale) - 1.0).abs() < 0.10;
        assert!(near(requests, SEED_REQUESTS), "{requests}");
        assert!(near(unique, SEED_UNIQUE_BYTES), "{unique}");
        assert!(near(bytes, SEED_BYTES), "{bytes}");
        let share = counts.len() as f64 / requests as f64;
        assert!((0.31..0.35).contains(&share), "{share} of the requests are first ones");
        let once = counts.values().filter(|entry| entry.0 == 1).count() as f64 / counts.len() as f64;
        assert!((0.45..0.75).contains(&once), "{once} of the objects are requested once");
    }

    #[test]
    fn popularity_is_zipfs_law() {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for request in RequestGenerator::new(WorkloadLaws { recent: 0.0, ..WorkloadLaws::seed_trace(2, 0.05) }) {
            *counts.entry(request.object).or_default() += 1;
        }
        let mut counts: Vec<f64> = counts.into_values().map(|count| count as f64).collect();
        counts.sort_by(|left, right| right.total_cmp(left));
        // The slope of popularity between ranks 100 and 10,000, on logarithmic scales.
        let slope = (counts[100] / counts[10_000]).ln() / (100.0f64).ln();
        assert!((0.45..0.95).contains(&slope), "{slope}");
    }

    #[test]
    fn hints_name_last_viewed_page() {
        let mut last: HashMap<u32, u32> = HashMap::new();
        let mut hinted = 0;
        for request in RequestGenerator::new(WorkloadLaws::seed_trace(3, 0.002)) {
            match request.page {
                None => drop(last.insert(request.client, request.object)),
                Some(page) => {
                    assert_eq!(last.get(&request.client), Some(&page));
                    hinted += 1;
                }
            }
        }
        assert!(hinted > 5000, "{hinted}");
    }
    /// Shares of first requests, mean size and concentration are those that were published of the log.
    #[test]
    fn wikimedia_laws_match_published_numbers() {
        let scale = 1.0 / 32.0;
        let mut counts: HashMap<u32, (u64, u32)> = HashMap::new();
        let mut requests = 0;
        for request in RequestGenerator::new(WorkloadLaws::wikimedia(1, scale)) {
            assert_eq!(request.page, None, "the log has no embedded objects");
            counts.entry(request.object).or_insert((0, request.bytes)).0 += 1;
            requests += 1;
        }
        let unique: u64 = counts.values().map(|entry| u64::from(entry.1)).sum();
        let (objects, mean) = (counts.len() as f64, unique as f64 / counts.len() as f64);
        assert!((objects / requests as f64 - 0.0886).abs() < 0.003, "{objects} of {requests}");
        assert!((mean / 23_372.0 - 1.0).abs() < 0.05, "{mean}");
        assert!((unique as f64 / (SEED_UNIQUE_BYTES as f64 * scale) - 1.0).abs() < 0.05, "{unique}");
        let mut views: Vec<u64> = counts.into_values().map(|entry| entry.0).collect();
        views.sort_unstable_by(|left, right| right.cmp(left));
        let top: u64 = views[..(objects / 100.0) as usize].iter().sum();
        let share = top as f64 / requests as f64;
        assert!((share - 0.555).abs() < 0.06, "{share} of the requests are for a hundredth of the objects");
    }
}
