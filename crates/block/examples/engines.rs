//! Measures random direct reads and writes by both engines: `cargo run --release -p nectary-block --example engines --
//! PATH`.
//!
//! Prints the operations per second on one thread, for each engine, size and number of operations in flight. The file
//! is created if it is absent, and is not removed.

use std::error::Error;
use std::time::{Duration, Instant};

use nectary_block::{Buffer, FileEngine, IoContext, OpenOptions, SharedDevice, WriteFlags, open};
use tokio::task::JoinSet;

const FILE_BYTES: u64 = 1 << 30;
const ROUND: Duration = Duration::from_secs(2);

/// Keeps `depth` operations in flight until the round ends. *Returns* the operations per second.
async fn measure(device: &SharedDevice, depth: u64, bytes: usize, is_write: bool) -> Result<f64, Box<dyn Error>> {
    let (began, mut tasks) = (Instant::now(), JoinSet::new());
    for lane in 0..depth {
        let device = device.clone();
        tasks.spawn(async move {
            let (mut state, mut count) = (lane + 1, 0u64);
            let mut buffers = vec![Buffer::zeroed(bytes)];
            while began.elapsed() < ROUND {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let offset = (state >> 20) % (FILE_BYTES / bytes as u64) * bytes as u64;
                buffers = match is_write {
                    true => device.write_at(offset, buffers, WriteFlags::default(), IoContext::default()).await?,
                    false => device.read_at(offset, buffers, IoContext::default()).await?,
                };
                count += 1;
            }
            Ok::<u64, nectary_block::Error>(count)
        });
    }
    let mut total = 0;
    while let Some(count) = tasks.join_next().await {
        total += count??;
    }
    Ok(total as f64 / began.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give the path of a file")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for engine in [FileEngine::Uring, FileEngine::Posix] {
            let options = OpenOptions { create_bytes: Some(FILE_BYTES), engine, ..OpenOptions::default() };
            let device = open(&path, &options).await?;
            // The whole file is written once, because blocks that were never written are read faster.
            for index in 0..FILE_BYTES >> 20 {
                nectary_block::write(&*device, index << 20, Buffer::zeroed(1 << 20)).await?;
            }
            for (bytes, depth) in [(4096, 1), (4096, 32), (65536, 8)] {
                let reads = measure(&device, depth, bytes, false).await?;
                let writes = measure(&device, depth, bytes, true).await?;
                println!("{engine:?} {bytes:>6} bytes x {depth:<3} {reads:>9.0} reads/s {writes:>9.0} writes/s");
            }
        }
        Ok(())
    })
}
