//! The network between a host and the server: frames that take time, in order, and connections that break.
//!
//! Owns: the delays, by seed. Promises: the frames of one direction of a connection arrive in order; those that a host
//! has sent may arrive after the host or its connection is lost, or not from some frame on. While a host is cut off
//! nothing arrives.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nectary_volume::simulated::{connect, listen};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, split};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::random::SimulationRandom;

/// The length of a frame's header, and where it has the length of the body.
const HEADER_BYTES: usize = 32;
const LENGTH_AT: usize = 8;

/// The network of one host.
pub struct FrameNetwork {
    is_cut: watch::Sender<bool>,
    /// Changes when all connections break; whether what the host has sent is lost then.
    breaks: watch::Sender<(u64, bool)>,
    random: Arc<Mutex<SimulationRandom>>,
}

impl FrameNetwork {
    /// Connects a path to where the server listens; returns the network, and the task that accepts connections.
    pub fn start(seed: u64, near: PathBuf, server: Arc<Mutex<PathBuf>>) -> (Arc<FrameNetwork>, JoinHandle<()>) {
        let network = Arc::new(FrameNetwork {
            is_cut: watch::Sender::new(false),
            breaks: watch::Sender::new((0, false)),
            random: Arc::new(Mutex::new(SimulationRandom::new(seed))),
        });
        let mut accepted = listen(&near);
        let accepting = network.clone();
        let task = tokio::spawn(async move {
            while let Some(near) = accepted.recv().await {
                let path = server.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Ok(far) = connect(&path) {
                    accepting.pass(near, far);
                }
            }
        });
        (network, task)
    }

    /// Cuts the host off, or ends that.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }

    /// Breaks all connections. `is_lost`: what the host has sent and did not arrive is lost; otherwise it arrives late.
    pub fn break_all(&self, is_lost: bool) {
        self.breaks.send_modify(|breaks| *breaks = (breaks.0 + 1, is_lost));
    }

    fn pass(self: &Arc<FrameNetwork>, near: DuplexStream, far: DuplexStream) {
        let ((near_reads, near_writes), (far_reads, far_writes)) = (split(near), split(far));
        tokio::spawn(self.clone().pump(near_reads, far_writes, true));
        tokio::spawn(self.clone().pump(far_reads, near_writes, false));
    }

    fn delay(&self) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_micros(match random.below(100) {
            0 => random.below(400_000),
            1..12 => random.below(15_000),
            _ => random.below(500),
        })
    }

    /// Passes frames on. `is_up`: they go to the server, and those that were sent may arrive although the connection breaks.
    async fn pump(
        self: Arc<FrameNetwork>,
        mut from: impl AsyncRead + Unpin + Send + 'static,
        to: impl AsyncWrite + Unpin + Send + 'static,
        is_up: bool,
    ) {
        let (frames, queued) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let mut breaks = self.breaks.subscribe();
        let writer = self.clone();
        let writing = tokio::spawn(async move { writer.write(to, queued).await });
        let mut due = Instant::now();
        let reading = async {
            while let Ok(frame) = read(&mut from).await {
                due = due.max(Instant::now() + self.delay());
                if frames.send((due, frame)).is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = reading => {}
            _ = breaks.changed() => if !is_up || breaks.borrow().1 { writing.abort() },
        }
    }

    async fn write(&self, mut to: impl AsyncWrite + Unpin, mut queued: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>) {
        let mut is_cut = self.is_cut.subscribe();
        while let Some((due, frame)) = queued.recv().await {
            sleep_until(due).await;
            // The sender exists as long as `self`, so waiting cannot fail.
            let _ = is_cut.wait_for(|is_cut| !is_cut).await;
            if to.write_all(&frame).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    }
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    from.read_exact(&mut frame).await?;
    let length: [u8; 4] = frame[LENGTH_AT..LENGTH_AT + 4].try_into().unwrap_or_default();
    frame.resize(HEADER_BYTES + u32::from_le_bytes(length) as usize, 0);
    from.read_exact(&mut frame[HEADER_BYTES..]).await?;
    Ok(frame)
}
