//! What is requested from origins most: by URL and by origin, in requests and in bytes.
//!
//! Owns: what one worker counts of its requests to origins, in windows of time, and the list over all workers. Only
//! what asks an origin is counted; a hit is not. A request counts when it is over. The list covers the current window
//! and the one before it, so it follows what happens now. The worker and the reader share a lock, which nobody holds
//! for long.
//! Leaves to others: finding the greatest of many in bounded memory (`space_saving`).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::space_saving::{HeavyKey, KEY_BYTES_MAX, SpaceSaving, heaviest};

/// The length of a window. The list covers at least this much time, and at most twice as much.
const WINDOW: Duration = Duration::from_secs(600);

/// What one worker has requested from origins. *Cost*: at most six summaries, about 1 MiB if all URLs are long.
#[derive(Debug, Default)]
pub(crate) struct OriginTraffic(Mutex<TrafficWindows>);

/// The windows that are not over for too long.
#[derive(Debug, Default)]
struct TrafficWindows {
    current: Option<TrafficWindow>,
    former: Option<TrafficWindow>,
}

/// What was requested in one window.
#[derive(Debug, Clone)]
struct TrafficWindow {
    since: Instant,
    urls_by_requests: SpaceSaving,
    urls_by_bytes: SpaceSaving,
    origins: SpaceSaving,
}

impl TrafficWindows {
    /// Ends the current window if its time has passed, and forgets the one before it if that is too old.
    fn turn(&mut self, now: Instant) {
        let age = |window: &TrafficWindow| now.saturating_duration_since(window.since);
        if self.current.as_ref().is_some_and(|current| age(current) >= WINDOW) {
            self.former = self.current.take();
        }
        self.former.take_if(|former| age(&*former) >= 2 * WINDOW);
    }
}

impl OriginTraffic {
    fn count(&self, asked: &AskedUrl, body_bytes: u64, now: Instant) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now);
        let window = windows.current.get_or_insert_with(|| TrafficWindow {
            since: now,
            urls_by_requests: SpaceSaving::default(),
            urls_by_bytes: SpaceSaving::default(),
            origins: SpaceSaving::default(),
        });
        window.urls_by_requests.add(&asked.names.url, asked.requests, body_bytes);
        window.urls_by_bytes.add(&asked.names.url, body_bytes, asked.requests);
        window.origins.add(asked.names.origin.as_bytes(), 1, body_bytes);
    }

    /// Copies the windows that are not too old.
    fn windows(&self, now: Instant) -> Vec<TrafficWindow> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now);
        [&windows.former, &windows.current].into_iter().flatten().cloned().collect()
    }
}

/// A URL, and the origin that is asked for it.
#[derive(Debug, Clone)]
pub(crate) struct AskedUrl {
    traffic: Arc<OriginTraffic>,
    names: Rc<AskedNames>,
    /// The requests for the URL that one request to the origin counts as: 1, or 0 if it continues an earlier one.
    requests: u64,
}

/// The names by which a request counts.
#[derive(Debug)]
struct AskedNames {
    url: Box<[u8]>,
    origin: String,
}

impl AskedUrl {
    /// Names a URL and an origin; requests for it are counted in `traffic`.
    pub fn new(traffic: &Arc<OriginTraffic>, url: &[u8], origin: String) -> AskedUrl {
        let url = url[..url.len().min(KEY_BYTES_MAX)].into();
        AskedUrl { traffic: traffic.clone(), names: Rc::new(AskedNames { url, origin }), requests: 1 }
    }

    /// The URL, which may be cut off.
    pub fn url(&self) -> &[u8] {
        &self.names.url
    }

    /// The same, for requests that continue an earlier one: of the URL they count the bytes alone.
    pub fn continued(self) -> AskedUrl {
        AskedUrl { requests: 0, ..self }
    }

    /// A request for it, which counts when the result is dropped.
    pub fn begin(&self) -> OriginRequest {
        OriginRequest { asked: self.clone(), body_bytes: Cell::new(0) }
    }
}

/// A request to an origin, which is counted when this value is dropped.
#[derive(Debug)]
pub(crate) struct OriginRequest {
    asked: AskedUrl,
    body_bytes: Cell<u64>,
}

impl OriginRequest {
    /// Counts bytes of the response's body.
    pub fn add_bytes(&self, count: usize) {
        self.body_bytes.set(self.body_bytes.get() + count as u64);
    }
}

impl Drop for OriginRequest {
    fn drop(&mut self) {
        self.asked.traffic.count(&self.asked, self.body_bytes.get(), Instant::now());
    }
}

/// What was requested from origins most, of all workers together.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct TopTraffic {
    /// The time that it covers. *Units*: seconds.
    pub seconds: f64,
    /// The URLs that were requested most.
    pub urls_by_requests: Vec<TrafficRow>,
    /// The URLs whose bodies were the most bytes.
    pub urls_by_bytes: Vec<TrafficRow>,
    /// The origins that were asked most.
    pub origins: Vec<TrafficRow>,
}

/// A URL or an origin with what was requested from it. The number by which the list is ordered is certain: it may be
/// more, by at most `error_max`. The other number may be less than the truth.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TrafficRow {
    /// The URL, of which at most 512 bytes, or the origin.
    pub name: String,
    /// Requests to origins.
    pub requests: u64,
    /// Bytes of bodies that origins sent.
    pub bytes: u64,
    /// By how much the number that decides the order may be more.
    pub error_max: u64,
}

/// The list over all workers: at most `count` rows in each part.
pub(crate) fn top<'a>(workers: impl Iterator<Item = &'a Arc<OriginTraffic>>, count: usize) -> TopTraffic {
    let now = Instant::now();
    let windows: Vec<TrafficWindow> = workers.flat_map(|worker| worker.windows(now)).collect();
    let since = windows.iter().map(|window| window.since).min().unwrap_or(now);
    let name = |key: &HeavyKey| String::from_utf8_lossy(&key.key).into_owned();
    let part = |of: fn(&TrafficWindow) -> &SpaceSaving| {
        let summaries: Vec<SpaceSaving> = windows.iter().map(|window| of(window).clone()).collect();
        heaviest(&summaries, count)
    };
    let by_requests = |key: HeavyKey| {
        let (requests, bytes, error_max) = (key.at_least(), key.beside, key.error_max);
        TrafficRow { name: name(&key), requests, bytes, error_max }
    };
    let by_bytes = |key: HeavyKey| {
        let (requests, bytes, error_max) = (key.beside, key.at_least(), key.error_max);
        TrafficRow { name: name(&key), requests, bytes, error_max }
    };
    TopTraffic {
        seconds: now.saturating_duration_since(since).as_secs_f64(),
        urls_by_requests: part(|window| &window.urls_by_requests).into_iter().map(by_requests).collect(),
        urls_by_bytes: part(|window| &window.urls_by_bytes).into_iter().map(by_bytes).collect(),
        origins: part(|window| &window.origins).into_iter().map(by_requests).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(traffic: &Arc<OriginTraffic>, url: &str, bytes: usize) {
        let request = AskedUrl::new(traffic, url.as_bytes(), "http://o".to_owned()).begin();
        request.add_bytes(bytes);
        request.add_bytes(1);
    }

    #[test]
    fn workers_add_up() {
        let workers = [Arc::new(OriginTraffic::default()), Arc::new(OriginTraffic::default())];
        for _ in 0..3 {
            ask(&workers[0], "http://h/a", 9);
            ask(&workers[1], "http://h/a", 9);
        }
        ask(&workers[1], "http://h/b", 999);
        let top = top(workers.iter(), 2);
        let row = |name: &str, requests, bytes| TrafficRow { name: name.to_owned(), requests, bytes, error_max: 0 };
        assert_eq!(top.urls_by_requests, [row("http://h/a", 6, 60), row("http://h/b", 1, 1000)]);
        assert_eq!(top.urls_by_bytes, [row("http://h/b", 1, 1000), row("http://h/a", 6, 60)]);
        assert_eq!(top.origins, [row("http://o", 7, 1060)]);
    }

    #[test]
    fn continued_request_counts_only_bytes() {
        let traffic = Arc::new(OriginTraffic::default());
        ask(&traffic, "http://h/a", 9);
        let rest = AskedUrl::new(&traffic, b"http://h/a", "http://o".to_owned()).continued().begin();
        rest.add_bytes(5);
        drop(rest);
        let top = top([&traffic].into_iter(), 2);
        let row = |name: &str, requests, bytes| TrafficRow { name: name.to_owned(), requests, bytes, error_max: 0 };
        assert_eq!(top.urls_by_requests, [row("http://h/a", 1, 15)]);
        assert_eq!(top.urls_by_bytes, [row("http://h/a", 1, 15)]);
        assert_eq!(top.origins, [row("http://o", 2, 15)]);
    }

    #[test]
    fn old_windows_are_forgotten() {
        let (traffic, start) = (Arc::new(OriginTraffic::default()), Instant::now());
        let count = |url: &str, now| traffic.count(&AskedUrl::new(&traffic, url.as_bytes(), String::new()), 0, now);
        count("old", start);
        count("new", start + WINDOW);
        assert_eq!(traffic.windows(start + 2 * WINDOW - Duration::from_secs(1)).len(), 2);
        assert_eq!(traffic.windows(start + 2 * WINDOW).len(), 1);
        assert_eq!(traffic.windows(start + 3 * WINDOW).len(), 0);
        count("first", start);
        assert_eq!(traffic.windows(start + 5 * WINDOW).len(), 0, "one window that is too old");
    }

    /// Clients choose URLs, and no client may break the document for the others.
    #[test]
    fn any_bytes_become_valid_json() {
        let traffic = Arc::new(OriginTraffic::default());
        let every: Vec<u8> = (0..=255).collect();
        drop(AskedUrl::new(&traffic, &every, "\"</script>\u{1}".to_owned()).begin());
        drop(AskedUrl::new(&traffic, &"\u{20ac}".repeat(1000).into_bytes(), String::new()).begin());
        let text = serde_json::to_string(&top([&traffic].into_iter(), 9)).expect("text");
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read["urls_by_requests"].as_array().map(Vec::len), Some(2));
        assert_eq!(read["origins"][1]["name"], "\"</script>\u{1}");
    }
}
