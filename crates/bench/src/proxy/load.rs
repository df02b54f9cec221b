//! The load: requests on many connections from one thread, as fast as they are answered, or at planned times.
//!
//! Owns: when a request is sent, and what its latency is. With [`LoadPace::Open`] request i has the planned time i /
//! rate, whether the proxy keeps up or not; if all connections are waiting, it is sent later, and its latency counts
//! from the planned time all the same. A load that waits for answers before it sends would leave out the requests that a
//! slow proxy delays (coordinated omission [1]). What is planned and unanswered [`GRACE`] after the end counts with the
//! time until then. Promises: every body has the right length, and with `is_checked` the right bytes; the run is void
//! otherwise. Leaves to others: which objects are requested.
//!
//! *Cost*: about two system calls and 5 us a request. Between planned times less than a millisecond apart the thread
//! does not sleep, so it has a processor for itself.
//!
//! [1] G. Tene: HdrHistogram, and "How NOT to Measure Latency". 2013.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::answer::AnswerBuffer;
use super::origin::{OriginCounts, target};
use crate::workload::content;
use crate::{Error, ExperimentErrorKind};

/// How long answers are waited for after the last request was planned.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// The longest wait for any event, after which the end of the load is looked at.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// The bounds of latencies, and the digits that are kept. *Units*: microseconds.
const LATENCY_US_MAX: u64 = 600_000_000;
const LATENCY_DIGITS: u8 = 3;
/// The bytes of a body that are compared if it is not checked as a whole.
const CHECKED_BYTES: usize = 8;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LoadPace {
    /// Each connection sends when its answer has come.
    Closed,
    /// So many requests a second are planned.
    Open(f64),
}

/// A load.
#[derive(Debug, Clone)]
pub(super) struct LoadPlan {
    /// The proxy.
    pub address: SocketAddr,
    /// The number of connections.
    pub connections: usize,
    /// When requests are sent.
    pub pace: LoadPace,
    /// When the load ends, if the objects do not end before.
    pub duration: Duration,
    /// Whether all bytes of bodies are compared.
    pub is_checked: bool,
    /// Whether a connection that fails is no error.
    pub may_fail: bool,
}

/// An answer, or a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AnsweredRequest {
    /// When the request was planned.
    pub planned: Instant,
    /// When the answer was complete.
    pub ended: Instant,
    /// Whether the proxy answered without the origin; `None` if there was no answer.
    pub is_hit: Option<bool>,
    /// The bytes of the body.
    pub bytes: u32,
}

/// What a load has measured.
#[derive(Debug, Clone)]
pub(super) struct LoadOutcome {
    /// The answers.
    pub answered: u64,
    /// Those that the proxy had stored.
    pub hits: u64,
    /// The bytes of all bodies, and of those of hits.
    pub bytes: u64,
    pub hit_bytes: u64,
    /// Requests without an answer.
    pub failed: u64,
    /// From the first planned time to the last answer, without the grace. *Units*: seconds.
    pub elapsed_s: f64,
    /// Latencies from the planned times. *Units*: microseconds.
    pub latency_us: Histogram<u64>,
}

/// An empty histogram of latencies.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_US_MAX, LATENCY_DIGITS).expect("valid bounds")
}

impl LoadOutcome {
    fn new() -> LoadOutcome {
        let latency_us = histogram();
        LoadOutcome { answered: 0, hits: 0, bytes: 0, hit_bytes: 0, failed: 0, elapsed_s: 0.0, latency_us }
    }

    /// Answers a second.
    pub fn per_s(&self) -> f64 {
        self.answered as f64 / self.elapsed_s.max(1e-9)
    }

    /// The share of answers that were hits.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.answered.max(1) as f64
    }

    /// The share of bytes that were those of hits.
    pub fn byte_hit_rate(&self) -> f64 {
        self.hit_bytes as f64 / self.bytes.max(1) as f64
    }

    fn count(&mut self, one: &AnsweredRequest) {
        let us = one.ended.saturating_duration_since(one.planned).as_micros() as u64;
        self.latency_us.saturating_record(us.max(1));
        let Some(is_hit) = one.is_hit else {
            self.failed += 1;
            return;
        };
        self.answered += 1;
        self.bytes += u64::from(one.bytes);
        if is_hit {
            self.hits += 1;
            self.hit_bytes += u64::from(one.bytes);
        }
    }
}

/// A request that was sent.
#[derive(Debug, Clone, Copy)]
struct SentRequest {
    planned: Instant,
    object: u32,
    bytes: u32,
    /// The number of the origin's last answer before.
    serial: u64,
    /// Whether it was sent again on another connection.
    is_again: bool,
}

#[derive(Default)]
struct LoadConnection {
    stream: Option<TcpStream>,
    sent: Option<SentRequest>,
    answer: AnswerBuffer,
    unwritten: Vec<u8>,
}

/// What became of a connection's request.
enum ConnectionEvent {
    Waiting,
    Answered(AnsweredRequest),
    Broken(SentRequest),
}

struct LoadRun<'a> {
    plan: &'a LoadPlan,
    counts: Arc<OriginCounts>,
    poll: Poll,
    connections: Vec<LoadConnection>,
    idle: Vec<usize>,
    room: Vec<u8>,
}

/// Runs a load over objects, each with its size, and tells each answer to `seen`.
///
/// *Errors*: [`ExperimentErrorKind::Void`] for a wrong body; a connection failed, unless it may.
pub(super) fn run(
    plan: &LoadPlan,
    counts: &Arc<OriginCounts>,
    objects: &mut dyn Iterator<Item = (u32, u32)>,
    seen: &mut dyn FnMut(&AnsweredRequest),
) -> Result<LoadOutcome, Error> {
    let poll = Poll::new().map_err(|error| Error::failed("the load", error))?;
    let connections = (0..plan.connections).map(|_| LoadConnection::default()).collect();
    let idle = (0..plan.connections).rev().collect();
    let mut run = LoadRun { plan, counts: counts.clone(), poll, connections, idle, room: vec![0; 256 << 10] };
    run.all(objects, seen)
}

impl LoadRun<'_> {
    fn all(
        &mut self,
        objects: &mut dyn Iterator<Item = (u32, u32)>,
        seen: &mut dyn FnMut(&AnsweredRequest),
    ) -> Result<LoadOutcome, Error> {
        let mut outcome = LoadOutcome::new();
        let mut events = Events::with_capacity(1024);
        let began = Instant::now();
        let end = began + self.plan.duration;
        let (mut planned, mut is_over, mut last) = (0u64, false, began);
        // Requests whose connection broke, to be sent again.
        let mut again: VecDeque<SentRequest> = VecDeque::new();
        loop {
            let now = Instant::now();
            is_over |= now >= end && (self.plan.pace == LoadPace::Closed || self.time_of(began, planned) >= end);
            if now >= end + GRACE {
                break;
            }
            while let Some(slot) = self.idle.pop() {
                let at = match self.plan.pace {
                    LoadPace::Closed => now,
                    LoadPace::Open(_) => self.time_of(began, planned).min(end),
                };
                let next = match again.pop_front() {
                    Some(sent) => Some(SentRequest { is_again: true, ..sent }),
                    None if is_over || at > now || (self.plan.pace != LoadPace::Closed && at >= end) => None,
                    None => objects.next().map(|(object, bytes)| {
                        planned += 1;
                        SentRequest { planned: at, object, bytes, serial: 0, is_again: false }
                    }),
                };
                let Some(next) = next else {
                    self.idle.push(slot);
                    is_over |= at <= now && again.is_empty();
                    break;
                };
                if let Some(broken) = self.send(slot, next)? {
                    self.fail(broken, &mut outcome, &mut again, seen)?;
                }
            }
            if is_over && self.idle.len() == self.connections.len() && again.is_empty() {
                break;
            }
            self.wait(&mut events, began, planned, is_over)?;
            for event in &events {
                let slot = event.token().0;
                match self.step(slot)? {
                    ConnectionEvent::Waiting => {}
                    ConnectionEvent::Answered(answered) => {
                        last = answered.ended;
                        outcome.count(&answered);
                        seen(&answered);
                        self.idle.push(slot);
                    }
                    ConnectionEvent::Broken(sent) => {
                        self.idle.push(slot);
                        self.fail(sent, &mut outcome, &mut again, seen)?;
                    }
                }
            }
        }
        // What is still under way counts with the time until now.
        let now = Instant::now();
        for sent in self.connections.iter_mut().filter_map(|one| one.sent.take()).chain(again) {
            outcome.count(&AnsweredRequest { planned: sent.planned, ended: now, is_hit: None, bytes: 0 });
        }
        if let LoadPace::Open(_) = self.plan.pace {
            while self.time_of(began, planned) < end && !is_over && objects.next().is_some() {
                let planned_at = self.time_of(began, planned);
                outcome.count(&AnsweredRequest { planned: planned_at, ended: now, is_hit: None, bytes: 0 });
                planned += 1;
            }
        }
        outcome.elapsed_s = (last - began).as_secs_f64();
        Ok(outcome)
    }

    /// The planned time of the request with this number.
    fn time_of(&self, began: Instant, number: u64) -> Instant {
        match self.plan.pace {
            LoadPace::Closed => began,
            LoadPace::Open(per_s) => began + Duration::from_secs_f64(number as f64 / per_s),
        }
    }

    fn wait(&mut self, events: &mut Events, began: Instant, planned: u64, is_over: bool) -> Result<(), Error> {
        let left = self.time_of(began, planned).saturating_duration_since(Instant::now());
        // The kernel's timer has whole milliseconds.
        let whole = Duration::from_millis(left.as_millis() as u64);
        let wait = match self.idle.is_empty() || is_over {
            true => WAIT_MAX,
            false => whole.min(WAIT_MAX),
        };
        match self.poll.poll(events, Some(wait)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(Error::failed("the load", error)),
            _ => Ok(()),
        }
    }

    /// Sends a request; returns it if its connection cannot be made.
    fn send(&mut self, slot: usize, mut next: SentRequest) -> Result<Option<SentRequest>, Error> {
        next.serial = self.counts.answers();
        let one = &mut self.connections[slot];
        if one.stream.is_none() {
            match connect(self.plan.address) {
                Ok(mut stream) => {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    let registered = self.poll.registry().register(&mut stream, Token(slot), interest);
                    registered.map_err(|error| Error::failed("the load", error))?;
                    one.stream = Some(stream);
                }
                Err(_) => {
                    self.idle.push(slot);
                    return Ok(Some(next));
                }
            }
        }
        one.answer.clear();
        one.unwritten =
            format!("GET {} HTTP/1.1\r\nHost: bench.test\r\n\r\n", target(next.object, next.bytes)).into_bytes();
        one.sent = Some(next);
        if let Err(sent) = one.write() {
            self.idle.push(slot);
            return Ok(Some(sent));
        }
        Ok(None)
    }

    /// Reads what has arrived on a connection.
    fn step(&mut self, slot: usize) -> Result<ConnectionEvent, Error> {
        let one = &mut self.connections[slot];
        if let Err(sent) = one.write() {
            return Ok(ConnectionEvent::Broken(sent));
        }
        loop {
            let Some(stream) = &mut one.stream else { return Ok(ConnectionEvent::Waiting) };
            let count = match stream.read(&mut self.room) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ConnectionEvent::Waiting),
                Err(_) => 0,
            };
            let Some(sent) = one.sent else {
                // The proxy closes a connection that is idle.
                if count == 0 {
                    one.stream = None;
                }
                return Ok(ConnectionEvent::Waiting);
            };
            if count == 0 {
                one.close();
                return Ok(ConnectionEvent::Broken(sent));
            }
            let Some(head) = one.answer.push(&self.room[..count])? else { continue };
            check(&sent, head.status, one.answer.body(), self.plan.is_checked)?;
            let is_hit = Some(head.serial.is_some_and(|serial| serial <= sent.serial));
            one.sent = None;
            if head.is_last {
                one.close();
            }
            let (planned, ended) = (sent.planned, Instant::now());
            return Ok(ConnectionEvent::Answered(AnsweredRequest { planned, ended, is_hit, bytes: sent.bytes }));
        }
    }

    /// Counts a request whose connection failed, or has it sent once more: a proxy may close an idle connection at the
    /// moment at which a request is sent.
    fn fail(
        &mut self,
        sent: SentRequest,
        outcome: &mut LoadOutcome,
        again: &mut VecDeque<SentRequest>,
        seen: &mut dyn FnMut(&AnsweredRequest),
    ) -> Result<(), Error> {
        if !sent.is_again && !self.plan.may_fail {
            again.push_back(sent);
            return Ok(());
        }
        if !self.plan.may_fail {
            return Err(Error::failed(self.plan.address, "it closed two connections without an answer"));
        }
        let ended = Instant::now();
        let failed = AnsweredRequest { planned: sent.planned, ended, is_hit: None, bytes: 0 };
        outcome.count(&failed);
        seen(&failed);
        Ok(())
    }
}

impl LoadConnection {
    /// Writes what is left of a request; returns it if the connection is broken.
    fn write(&mut self) -> Result<(), SentRequest> {
        while let (Some(stream), Some(sent), false) = (&mut self.stream, self.sent, self.unwritten.is_empty()) {
            match stream.write(&self.unwritten) {
                Ok(count) if count > 0 => drop(self.unwritten.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                _ => {
                    self.close();
                    return Err(sent);
                }
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        self.stream = None;
        self.sent = None;
        self.unwritten.clear();
        self.answer.clear();
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = std::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(TcpStream::from_std(stream))
}

/// Compares an answer with what the object is.
fn check(sent: &SentRequest, status: u16, body: &[u8], is_checked: bool) -> Result<(), Error> {
    let SentRequest { object, bytes, .. } = *sent;
    let part = if is_checked { bytes as usize } else { CHECKED_BYTES.min(bytes as usize) };
    let wrong = match body.len() == bytes as usize {
        true => content::first_wrong(object, part as u32, &[&body[..part]]),
        false => Some(body.len() as u64),
    };
    if status == 200 && wrong.is_none() {
        return Ok(());
    }
    let what = match wrong {
        Some(position) if status == 200 => format!("byte {position} of object {object} ({bytes} bytes) is wrong"),
        _ => format!("object {object} has status {status}"),
    };
    Err(Error::new(ExperimentErrorKind::Void, format!("the run is void: {what}")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::proxy::origin::BenchOrigin;

    /// A server that answers all requests on one connection with a body, the first of them late.
    fn server(body: Vec<u8>, late: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut room, mut late) = ([0; 4096], Some(late));
            // A request is one segment, because the load waits for its answer.
            while stream.read(&mut room).is_ok_and(|count| count > 0) {
                std::thread::sleep(late.take().unwrap_or_default());
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Serial: 0\r\n\r\n", body.len());
                if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
                    return;
                }
            }
        });
        address
    }

    fn plan(address: SocketAddr, pace: LoadPace, ms: u64) -> LoadPlan {
        let duration = Duration::from_millis(ms);
        LoadPlan { address, connections: 1, pace, duration, is_checked: true, may_fail: false }
    }

    fn run_load(plan: &LoadPlan, objects: &mut dyn Iterator<Item = (u32, u32)>) -> Result<LoadOutcome, Error> {
        run(plan, &Arc::new(OriginCounts::default()), objects, &mut |_| {})
    }

    /// A server that is late once delays all requests behind it, and each is counted with its delay.
    #[test]
    fn planned_requests_count_their_delay() {
        let late = Duration::from_millis(300);
        let address = server(content::body(7, 4), late);
        let mut objects = std::iter::repeat((7, 4));
        let outcome = run_load(&plan(address, LoadPace::Open(100.0), 500), &mut objects).unwrap();
        assert_eq!((outcome.answered + outcome.failed, outcome.hits), (50, outcome.answered), "{outcome:?}");
        // 30 requests were planned while the server was late: the median of all waited for half of that and more.
        let median_us = outcome.latency_us.value_at_quantile(0.5);
        assert!(median_us > 50_000 && outcome.latency_us.max() >= 299_000, "{median_us}");
        let address = server(content::body(7, 4), late);
        let closed = run_load(&plan(address, LoadPace::Closed, 500), &mut objects).unwrap();
        assert!(closed.latency_us.value_at_quantile(0.5) < 50_000, "a closed load leaves the delay out");
    }

    #[test]
    fn origin_numbers_tell_misses() {
        let origin = BenchOrigin::start().unwrap();
        let objects: Vec<(u32, u32)> = (0..100).map(|object| (object, object * 50)).collect();
        let load = LoadPlan { connections: 4, ..plan(origin.address(), LoadPace::Closed, 60_000) };
        let mut seen = 0;
        let mut objects = objects.into_iter();
        let outcome = run(&load, origin.counts(), &mut objects, &mut |answer| seen += u64::from(answer.bytes)).unwrap();
        assert_eq!((outcome.answered, outcome.hits, outcome.failed), (100, 0, 0));
        assert_eq!((outcome.bytes, seen, origin.counts().body_bytes()), (247_500, 247_500, 247_500));
    }

    #[test]
    fn wrong_body_voids_load() {
        for body in [content::body(8, 4), content::body(7, 3)] {
            let address = server(body, Duration::ZERO);
            let mut objects = std::iter::repeat((7, 4));
            let error = run_load(&plan(address, LoadPace::Closed, 500), &mut objects).unwrap_err();
            assert!(error.kind == ExperimentErrorKind::Void && error.message.contains("object 7"), "{error}");
        }
    }

    #[test]
    fn refused_connections_count_as_failures() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut objects = std::iter::repeat((7, 4));
        let may_fail = LoadPlan { may_fail: true, ..plan(address, LoadPace::Open(100.0), 100) };
        let outcome = run_load(&may_fail, &mut objects).unwrap();
        assert_eq!((outcome.answered, outcome.failed), (0, 10));
        assert!(run_load(&plan(address, LoadPace::Open(100.0), 100), &mut objects).is_err());
    }
}
