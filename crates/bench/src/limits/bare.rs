//! What every store must do: the limit that a store can reach.
//!
//! Owns: two loops on files. *Copying* copies bodies into buffers, computes their checksums, and writes two buffers at a
//! time. *Reading* reads bodies from the places where they were written, computes their checksums, and compares them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nectary_block::{Buffer, IoContext, OpenOptions, SharedDevice, WriteFlags};
use tokio::task::JoinHandle;

use super::{BODIES, LimitsOptions, Measured, on_threads, void};
use crate::random::SeededRandom;
use crate::{Error, sys};

/// The size of a write, in bytes: the size of a store's append, unless an object is longer.
const WRITE_BYTES: usize = 2 << 20;

async fn file(path: &Path, options: &LimitsOptions) -> Result<SharedDevice, Error> {
    let open = OpenOptions { create_bytes: Some(options.bytes), ..OpenOptions::default() };
    Ok(nectary_block::open(&format!("file:{}", path.display()), &open).await?)
}

/// A file to which bodies are copied.
pub(super) struct BodyCopier {
    device: SharedDevice,
    bodies: Arc<Vec<Bytes>>,
    spare: Vec<Buffer>,
    buffer_bytes: usize,
    position: u64,
}

impl BodyCopier {
    pub async fn create(path: &Path, options: &LimitsOptions, bodies: &Arc<Vec<Bytes>>) -> Result<BodyCopier, Error> {
        let device = file(path, options).await?;
        let block_bytes = device.geometry().block_bytes as usize;
        let buffer_bytes = WRITE_BYTES.max((options.object_bytes as usize).next_multiple_of(block_bytes));
        let spare = (0..2).map(|_| Buffer::zeroed(buffer_bytes)).collect();
        Ok(BodyCopier { device, bodies: Arc::clone(bodies), spare, buffer_bytes, position: 0 })
    }

    /// Writes about `bytes` bytes and flushes them; returns bytes of bodies per second, and processor time per body.
    pub async fn fill(&mut self, bytes: u64) -> Result<Measured, Error> {
        let (began, processor) = (Instant::now(), sys::processor_time());
        let (mut in_flight, mut filled, mut count) = (VecDeque::<JoinHandle<Result<Vec<Buffer>, _>>>::new(), 0, 0_u32);
        let ended = |error| Error::failed("a write", error);
        let mut bodies = self.bodies.iter().cycle();
        while filled < bytes {
            let mut buffer = match self.spare.pop() {
                Some(buffer) => buffer,
                None => match in_flight.pop_front() {
                    Some(written) => written.await.map_err(ended)??.remove(0),
                    None => Buffer::zeroed(self.buffer_bytes),
                },
            };
            let mut rest = &mut buffer[..];
            let mut sum = 0;
            while let Some(body) = bodies.next().filter(|body| body.len() <= rest.len()) {
                sum ^= crc32c::crc32c(body);
                let (place, after) = rest.split_at_mut(body.len());
                place.copy_from_slice(body);
                rest = after;
                filled += body.len() as u64;
                count += 1;
            }
            std::hint::black_box(sum);
            if self.position + self.buffer_bytes as u64 > self.device.geometry().size_bytes {
                self.position = 0;
            }
            let write = self.device.write_at(self.position, vec![buffer], WriteFlags::default(), IoContext::default());
            in_flight.push_back(tokio::spawn(write));
            // Submits the write now, not when the next buffer is full.
            tokio::task::yield_now().await;
            self.position += self.buffer_bytes as u64;
        }
        for written in in_flight {
            self.spare.push(written.await.map_err(ended)??.remove(0));
        }
        self.device.flush(IoContext::default()).await?;
        let rate = filled as f64 / began.elapsed().as_secs_f64();
        Ok((rate, (sys::processor_time() - processor).as_secs_f64() * 1e6 / f64::from(count.max(1))))
    }
}

/// A file of bodies; no two of them share a block.
#[derive(Clone)]
pub(super) struct BodyFile {
    device: SharedDevice,
    bodies: Arc<Vec<Bytes>>,
    /// The length of a read, in bytes.
    place_bytes: usize,
    places: u32,
    object_bytes: usize,
}

impl BodyFile {
    /// Writes the file.
    pub async fn create(
        path: &Path,
        options: &LimitsOptions,
        place_bytes: u64,
        bodies: &Arc<Vec<Bytes>>,
    ) -> Result<BodyFile, Error> {
        let (device, place_bytes) = (file(path, options).await?, place_bytes as usize);
        let (places, object_bytes) = ((options.bytes / place_bytes as u64) as u32, options.object_bytes as usize);
        let at_once = (WRITE_BYTES / place_bytes).max(1) as u32;
        for first in (0..places).step_by(at_once as usize) {
            let count = at_once.min(places - first);
            let mut buffer = Buffer::zeroed(count as usize * place_bytes);
            for (number, place) in (first..first + count).zip(buffer.chunks_mut(place_bytes)) {
                place[..object_bytes].copy_from_slice(&bodies[(number % BODIES) as usize]);
            }
            let offset = u64::from(first) * place_bytes as u64;
            device.write_at(offset, vec![buffer], WriteFlags::default(), IoContext::default()).await?;
        }
        device.flush(IoContext::default()).await?;
        Ok(BodyFile { device, bodies: Arc::clone(bodies), place_bytes, places, object_bytes })
    }

    /// Reads random bodies for `time`, `depth` at once; returns reads per second, and processor time per read.
    pub fn read(&self, time: Duration, depth: usize, seed: u64) -> Result<Measured, Error> {
        let (began, processor) = (Instant::now(), sys::processor_time());
        let until = began + time;
        let counts = on_threads(depth, seed, |random| self.clone().read_until(until, random))?;
        let reads = counts.into_iter().sum::<u64>() as f64;
        let seconds = began.elapsed().as_secs_f64();
        Ok((reads / seconds, (sys::processor_time() - processor).as_secs_f64() * 1e6 / reads))
    }

    /// Reads one body after the other; returns their number.
    async fn read_until(self, until: Instant, mut random: SeededRandom) -> Result<u64, Error> {
        let mut count = 0;
        while Instant::now() < until {
            let place = random.below(self.places.into()) as u32;
            let (offset, buffer) = (u64::from(place) * self.place_bytes as u64, Buffer::recycled(self.place_bytes));
            let read = self.device.read_at(offset, vec![buffer], IoContext::default()).await?;
            let Some(body) = read.first().map(|buffer| &buffer[..self.object_bytes]) else { continue };
            std::hint::black_box(crc32c::crc32c(body));
            if *body != self.bodies[(place % BODIES) as usize] {
                return Err(void("place", place));
            }
            count += 1;
        }
        Ok(count)
    }
}
