//! What a read through FUSE costs when its answer is ready: 4 KiB from a fixed buffer, one reader, past the page cache.
//!
//! `cargo run --release -p nectary-fuse --example read_cost [READS]` prints median, 99th percentile and mean, and
//! beside them what `pread` takes of a file in the page cache: the difference is the way through the kernel and the
//! loop of requests.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_fuse::protocol::open_flags;
use nectary_fuse::{
    Attributes, Call, Channel, Connection, Crew, Entry, FileSystem, Limits, Mount, MountOptions, Reply, Request,
};

const FILE: u64 = 2;
const FILE_BYTES: u64 = 1 << 30;
const READ_BYTES: usize = 4096;
const VALID: Duration = Duration::from_secs(3600);

struct Fixed {
    bytes: Vec<u8>,
}

fn attributes(node: u64) -> Attributes {
    match node {
        FILE => {
            Attributes { number: FILE, mode: libc::S_IFREG | 0o400, size: FILE_BYTES, links: 1, ..Default::default() }
        }
        _ => Attributes { number: node, mode: libc::S_IFDIR | 0o500, links: 2, ..Attributes::default() },
    }
}

impl FileSystem for Fixed {
    fn serve(&self, request: Request<'_>, reply: Reply) {
        match request.call {
            Call::Read(read) => reply.bytes(&self.bytes[..(read.size as usize).min(self.bytes.len())]),
            Call::LookUp { .. } => {
                let attributes = attributes(FILE);
                let entry =
                    Entry { node: FILE, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID };
                reply.entry(&entry);
            }
            Call::GetAttributes { .. } => reply.attributes(&attributes(request.node), VALID),
            Call::Open { .. } => reply.opened(0, open_flags::DIRECT_IO | open_flags::NO_FLUSH),
            Call::Release { .. } => reply.ok(),
            _ => reply.errno(libc::ENOSYS),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reads = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse::<usize>())?.max(100);
    let options =
        MountOptions { source: "read-cost".to_owned(), root_mode: libc::S_IFDIR | 0o500, ..MountOptions::default() };
    let channel = Channel::open(true)?;
    let mount = Mount::new(&channel, &options)?;
    let file_system = Arc::new(Fixed { bytes: vec![7; 1 << 20] });
    let crew = Crew::start(Connection::new(file_system, Limits::default()), channel, "read-cost")?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(mount.path("file"))?;
    let mut latencies = measure(&file, reads)?;
    report("through FUSE", &mut latencies);
    drop(file);
    let path = std::env::temp_dir().join(format!("nectary-read-cost-{}", std::process::id()));
    std::fs::write(&path, vec![7; 16 << 20])?;
    let file = File::open(&path);
    std::fs::remove_file(&path)?;
    let mut latencies = measure(&file?, reads)?;
    report("page cache", &mut latencies);
    println!("threads of the crew: {}", crew.started());
    drop(mount);
    crew.wait()?;
    Ok(())
}

/// The time of each read, at places that are spread over the file.
fn measure(file: &File, reads: usize) -> io::Result<Vec<Duration>> {
    let blocks = file.metadata()?.len() / READ_BYTES as u64;
    let mut buffer = nectary_block::Buffer::zeroed(READ_BYTES);
    let mut latencies = Vec::with_capacity(reads);
    let mut block = 0;
    for index in 0..reads + reads / 10 {
        block = (block + 7919) % blocks;
        let began = Instant::now();
        file.read_exact_at(&mut buffer, block * READ_BYTES as u64)?;
        // The first tenth warms up.
        if index >= reads / 10 {
            latencies.push(began.elapsed());
        }
    }
    assert!(buffer.iter().all(|&byte| byte == 7));
    Ok(latencies)
}

fn report(what: &str, latencies: &mut [Duration]) {
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let mean = latencies.iter().sum::<Duration>().as_secs_f64() * 1e6 / latencies.len() as f64;
    println!(
        "{what}: {} reads of {READ_BYTES} bytes: p50 {:.2} us, p99 {:.2} us, mean {mean:.2} us",
        latencies.len(),
        at(0.5),
        at(0.99)
    );
}
