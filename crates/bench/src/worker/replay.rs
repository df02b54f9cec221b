//! Replays a piece of the workload against a contender, and verifies every byte that it gives back.
//!
//! Each request is a get; a miss is followed by a put of the object, as if an origin had answered in no time. A piece ends
//! when everything that was put is written, so that no contender writes while another is measured. Times are the disk's.
//! The calls of contenders are timed; making and comparing bodies is in the run's time and in no call's.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::contender::Storage;
use crate::disk::DiskClock;
use crate::workload::{Request, content};
use crate::{Error, ErrorKind};

/// What a piece of the workload came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Requests.
    pub requests: u64,
    /// Of those, found in the contender's memory.
    pub memory_hits: u64,
    /// Of those, found on its disk.
    pub disk_hits: u64,
    /// Bytes of the hits, all of them compared.
    pub hit_bytes: u64,
    /// Bytes that were put.
    pub put_bytes: u64,
    /// Time in gets that went to the disk, in seconds.
    pub disk_get_s: f64,
    /// Time in all gets that found something, in seconds.
    pub hit_s: f64,
    /// Time in puts, in seconds.
    pub put_s: f64,
    /// Time of the whole piece, in seconds.
    pub run_s: f64,
    /// Of that, writing at the end what still waited, in seconds.
    pub settle_s: f64,
}

impl Piece {
    /// Adds another piece.
    pub fn add(&mut self, other: &Piece) {
        self.requests += other.requests;
        self.memory_hits += other.memory_hits;
        self.disk_hits += other.disk_hits;
        self.hit_bytes += other.hit_bytes;
        self.put_bytes += other.put_bytes;
        self.disk_get_s += other.disk_get_s;
        self.hit_s += other.hit_s;
        self.put_s += other.put_s;
        self.run_s += other.run_s;
        self.settle_s += other.settle_s;
    }

    /// Requests that found nothing, each of which was followed by a put.
    pub fn misses(&self) -> u64 {
        self.requests - self.memory_hits - self.disk_hits
    }

    /// Share of requests that found their object.
    pub fn hit_rate(&self) -> f64 {
        (self.memory_hits + self.disk_hits) as f64 / self.requests.max(1) as f64
    }
}

/// Replays requests on some threads; requests of one client stay on one thread.
///
/// *Errors*: [`ErrorKind::Void`] at the first body that is not the object's.
pub fn replay(storage: &dyn Storage, clock: &DiskClock, requests: &[Request], threads: usize) -> Result<Piece, Error> {
    let threads = threads.max(1);
    let began = clock.now();
    let mut sum = Piece::default();
    if threads == 1 {
        sum = replay_part(storage, clock, requests.iter())?;
    } else {
        let parts = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|index| {
                    let part = requests.iter().filter(move |request| request.client as usize % threads == index);
                    scope.spawn(move || replay_part(storage, clock, part))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Piece, Error>>| {
                thread.join().unwrap_or_else(|_| Err(Error::failed("a contender", "its thread panicked")))
            };
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        for part in parts {
            sum.add(&part?);
        }
    }
    let settling = clock.now();
    storage.settle()?;
    let ended = clock.now();
    sum.settle_s = (ended - settling).as_secs_f64();
    sum.run_s = (ended - began).as_secs_f64();
    Ok(sum)
}

fn replay_part<'a>(
    storage: &dyn Storage,
    clock: &DiskClock,
    requests: impl Iterator<Item = &'a Request>,
) -> Result<Piece, Error> {
    let mut piece = Piece::default();
    let seconds = |since: Duration| (clock.now().saturating_sub(since)).as_secs_f64();
    for request in requests {
        piece.requests += 1;
        let began = clock.now();
        let found = storage.get(request)?;
        let took = seconds(began);
        match found {
            Some(found) => {
                if let Some(position) = content::first_wrong(request.object, request.bytes, &found.pieces) {
                    return Err(void(request, position));
                }
                piece.hit_bytes += u64::from(request.bytes);
                piece.hit_s += took;
                match found.in_memory {
                    true => piece.memory_hits += 1,
                    false => {
                        piece.disk_hits += 1;
                        piece.disk_get_s += took;
                    }
                }
            }
            None => {
                let body = Bytes::from(content::body(request.object, request.bytes));
                let began = clock.now();
                storage.put(request, body)?;
                piece.put_s += seconds(began);
                piece.put_bytes += u64::from(request.bytes);
            }
        }
        storage.tick(clock.now())?;
    }
    Ok(piece)
}

fn void(request: &Request, position: u64) -> Error {
    let Request { object, bytes, .. } = request;
    let message = format!("the run is void: byte {position} of object {object} ({bytes} bytes) is not what was put");
    Error::new(ErrorKind::Void, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Memory;
    use crate::disk::Timekeeping;
    use crate::workload::{Generator, Laws};

    fn run(wrong: Option<u32>, threads: usize) -> Result<Piece, Error> {
        let requests: Vec<Request> = Generator::new(Laws::seed_trace(1, 0.001)).collect();
        let clock = DiskClock::new(Timekeeping::Virtual, None, Vec::new());
        replay(&Memory::new(wrong), &clock, &requests, threads)
    }

    #[test]
    fn hits_are_the_requests_that_are_not_the_first_for_their_object() {
        let requests: Vec<Request> = Generator::new(Laws::seed_trace(1, 0.001)).collect();
        let distinct: std::collections::HashSet<u32> = requests.iter().map(|request| request.object).collect();
        let piece = run(None, 1).unwrap();
        assert_eq!(piece.requests, requests.len() as u64);
        assert_eq!(piece.misses(), distinct.len() as u64);
        assert_eq!(run(None, 4).unwrap().requests, piece.requests);
    }

    #[test]
    fn one_planted_wrong_byte_makes_the_run_void() {
        for threads in [1, 4] {
            let error = run(Some(17), threads).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Void);
            assert!(error.message.contains("object 17 "), "{error}");
        }
    }
}
