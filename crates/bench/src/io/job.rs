//! One pass: its settings and its outcome.
//!
//! Owns: the description of a pass, its outcome, and the equivalent xdd command line. Description and outcome also pass
//! between processes as JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The operation of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RequestOperation {
    /// All requests read.
    Read,
    /// All requests write.
    Write,
    /// Some requests read and some write, in an order that is the same in every run.
    Mixed,
}

impl RequestOperation {
    /// Its name in reports, the same as in xdd's.
    pub fn name(self) -> &'static str {
        match self {
            RequestOperation::Read => "read",
            RequestOperation::Write => "write",
            RequestOperation::Mixed => "mixed",
        }
    }

    /// Whether some requests write.
    pub fn writes(self) -> bool {
        self != RequestOperation::Read
    }
}

/// How files are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OpenMode {
    /// Through the page cache.
    Buffered,
    /// With direct I/O (`O_DIRECT`).
    Direct,
    /// Through the page cache; each write is durable with all metadata (`O_SYNC`).
    Sync,
    /// Through the page cache; each write is durable with the metadata that reading it needs (`O_DSYNC`).
    Dsync,
    /// With direct I/O; each write is durable (`O_DIRECT` and `O_DSYNC`).
    DirectDsync,
}

impl OpenMode {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OpenMode::Buffered => "buffered",
            OpenMode::Direct => "direct",
            OpenMode::Sync => "sync",
            OpenMode::Dsync => "dsync",
            OpenMode::DirectDsync => "direct-dsync",
        }
    }

    /// Whether this mode bypasses the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, OpenMode::Direct | OpenMode::DirectDsync)
    }

    /// The flags of `open`.
    pub fn flags(self) -> i32 {
        match self {
            OpenMode::Buffered => 0,
            OpenMode::Direct => libc::O_DIRECT,
            OpenMode::Sync => libc::O_SYNC,
            OpenMode::Dsync => libc::O_DSYNC,
            OpenMode::DirectDsync => libc::O_DIRECT | libc::O_DSYNC,
        }
    }
}

/// How a pass keeps several requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubmissionEngine {
    /// One thread for each request in flight, with `pread` and `pwrite`, like xdd.
    Threads,
    /// One thread for each stream, with io_uring.
    Uring,
}

/// The place of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPlace {
    /// A file or a block device.
    pub path: PathBuf,
    /// The offset at which the stream's part begins. *Units*: bytes.
    pub start: u64,
}

/// One pass over all streams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IoPass {
    /// The places of the streams; no two streams share a part.
    pub places: Vec<StreamPlace>,
    /// Whether the places are on a block device.
    pub is_device: bool,
    /// The length of a stream's part. *Units*: bytes.
    pub bytes: u64,
    /// The size of a request. *Units*: bytes.
    pub request_bytes: u64,
    /// The operation of requests.
    pub operation: RequestOperation,
    /// How files are opened.
    pub mode: OpenMode,
    /// The number of requests that a stream has in flight.
    pub depth: usize,
    /// The engine.
    pub engine: SubmissionEngine,
    /// The share of mixed requests that read, in percent.
    pub read_percent: u64,
    /// For each stream, the generation that reads must find; empty if this command did not write the contents.
    pub read_generations: Vec<u32>,
    /// The generation that writes stamp on their blocks.
    pub write_generation: u32,
    /// The time after which a pass ends even if it is unfinished. *Units*: seconds.
    pub seconds_max: Option<f64>,
    /// Whether a pass that is done starts again until this time is over.
    pub is_repeated: bool,
    /// Whether files are truncated first, so that writes allocate.
    pub is_fresh: bool,
    /// Whether the time of a final `fsync` is counted (xdd's `-syncwrite`).
    pub is_synced: bool,
}

impl IoPass {
    /// The number of requests of a stream in one round over its part.
    pub fn requests(&self) -> u64 {
        self.bytes / self.request_bytes
    }

    /// Whether a request of a stream writes.
    pub fn is_write(&self, stream: usize, request: u64) -> bool {
        match self.operation {
            RequestOperation::Read => false,
            RequestOperation::Write => true,
            RequestOperation::Mixed => {
                let key = (u64::from(self.write_generation) << 44) ^ ((stream as u64) << 36) ^ request;
                crate::random::mix(key) % 100 >= self.read_percent
            }
        }
    }

    /// The xdd command line that runs this pass `passes` times.
    pub fn xdd(&self, passes: usize) -> String {
        let mut line = format!("xdd -targets {}", self.places.len());
        for place in &self.places {
            line += &format!(" {}", place.path.display());
        }
        line += match self.operation {
            RequestOperation::Read => " -op read",
            RequestOperation::Write => " -op write",
            RequestOperation::Mixed => "",
        };
        if self.operation == RequestOperation::Mixed {
            line += &format!(" -rwratio {}", self.read_percent);
        }
        line += &format!(" -blocksize 1024 -reqsize {}", self.request_bytes >> 10);
        line += &format!(" -mbytes {} -passes {passes} -queuedepth {}", self.bytes >> 20, self.depth);
        for (number, place) in self.places.iter().enumerate().filter(|(_, place)| place.start > 0) {
            line += &format!(" -startoffset target {number} {}", place.start >> 10);
        }
        if self.mode.is_direct() {
            line += " -dio";
        }
        if self.is_synced && self.operation.writes() {
            line += " -syncwrite";
        }
        if let Some(seconds) = self.seconds_max {
            line += &format!(" -timelimit {seconds:.0}");
        }
        line += " -ts detailed -verbose";
        match self.mode {
            OpenMode::Sync => line += "  # with O_SYNC",
            OpenMode::Dsync | OpenMode::DirectDsync => line += "  # with O_DSYNC",
            OpenMode::Buffered | OpenMode::Direct => {}
        }
        line
    }
}

/// A completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedRequest {
    /// Its number in the pass, from 0.
    pub number: u64,
    /// The time from the start of the pass to the start of the request. *Units*: nanoseconds.
    pub start_ns: u64,
    /// The time from the start of the pass to the end of the request. *Units*: nanoseconds.
    pub end_ns: u64,
    /// Whether the request wrote.
    pub is_write: bool,
}

/// The outcome of a stream in a pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// The number of bytes read and written.
    pub bytes: u64,
    /// The number of requests that read.
    pub reads: u64,
    /// The number of requests that wrote.
    pub writes: u64,
    /// The time from the start of the pass to the end of the stream. *Units*: seconds.
    pub seconds: f64,
    /// The sum of the times of its requests. *Units*: seconds.
    pub waiting_s: f64,
    /// The median time of a request. *Units*: milliseconds.
    pub half_ms: f64,
    /// The 99th percentile of request times. *Units*: milliseconds.
    pub most_ms: f64,
    /// The longest time of a request. *Units*: milliseconds.
    pub longest_ms: f64,
    /// Each request, ordered by start; empty unless requests are kept.
    pub requests: Vec<CompletedRequest>,
}

impl StreamOutcome {
    /// Makes the outcome of a stream from its requests.
    pub fn of(job: &IoPass, mut requests: Vec<CompletedRequest>, seconds: f64, keep: bool) -> StreamOutcome {
        let mut times: Vec<u64> = requests.iter().map(|request| request.end_ns - request.start_ns).collect();
        times.sort_unstable();
        let at = |share: f64| match times.len() {
            0 => 0.0,
            count => times[((count - 1) as f64 * share).round() as usize] as f64 / 1e6,
        };
        let writes = requests.iter().filter(|request| request.is_write).count() as u64;
        let reads = requests.len() as u64 - writes;
        let bytes = (reads + writes) * job.request_bytes;
        let waiting_s = times.iter().sum::<u64>() as f64 / 1e9;
        let (half_ms, most_ms, longest_ms) = (at(0.5), at(0.99), at(1.0));
        match keep {
            true => requests.sort_by_key(|request| (request.start_ns, request.number)),
            false => requests = Vec::new(),
        }
        StreamOutcome { bytes, reads, writes, seconds, waiting_s, half_ms, most_ms, longest_ms, requests }
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.reads + self.writes
    }
}

/// The outcome of a pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PassOutcome {
    /// The outcome of each stream.
    pub streams: Vec<StreamOutcome>,
    /// The time from the start to the end of the last stream. *Units*: seconds.
    pub seconds: f64,
    /// The processor time of the process. *Units*: seconds.
    pub processor_s: f64,
}

impl PassOutcome {
    /// The number of bytes of all streams.
    pub fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).sum()
    }

    /// The rate of all streams together. *Units*: MiB per second.
    pub fn rate(&self) -> f64 {
        self.bytes() as f64 / (1 << 20) as f64 / self.seconds.max(1e-9)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A pass of one stream.
    pub fn job() -> IoPass {
        IoPass {
            places: vec![StreamPlace { path: PathBuf::from("/mnt/x/stream-0"), start: 0 }],
            is_device: false,
            bytes: 1 << 20,
            request_bytes: 64 << 10,
            operation: RequestOperation::Write,
            mode: OpenMode::Direct,
            depth: 1,
            engine: SubmissionEngine::Threads,
            read_percent: 50,
            read_generations: vec![1],
            write_generation: 2,
            seconds_max: None,
            is_repeated: false,
            is_fresh: false,
            is_synced: false,
        }
    }

    #[test]
    fn xdds_command_line_says_the_same() {
        let mut job = job();
        assert_eq!(
            job.xdd(3),
            "xdd -targets 1 /mnt/x/stream-0 -op write -blocksize 1024 -reqsize 64 -mbytes 1 -passes 3 -queuedepth 1 -dio \
             -ts detailed -verbose"
        );
        job.places = [0, 1 << 20].map(|start| StreamPlace { path: PathBuf::from("/dev/sdx"), start }).to_vec();
        job.operation = RequestOperation::Mixed;
        job.mode = OpenMode::Dsync;
        job.is_synced = true;
        let line = job.xdd(1);
        assert!(
            line.contains("-targets 2 /dev/sdx /dev/sdx -rwratio 50") && line.ends_with("# with O_DSYNC"),
            "{line}"
        );
        assert!(line.contains("-startoffset target 1 1024") && line.contains("-syncwrite"), "{line}");
    }

    /// The share of reads is as requested, and each run has the same reads.
    #[test]
    fn mixed_requests_follow_read_share() {
        let job = IoPass { operation: RequestOperation::Mixed, read_percent: 70, ..job() };
        let writes = (0..10_000).filter(|request| job.is_write(0, *request)).count();
        assert!((2800..3200).contains(&writes), "{writes}");
        assert!((0..100).all(|request| job.is_write(1, request) == job.is_write(1, request)));
        assert!((0..100).any(|request| job.is_write(0, request) != job.is_write(1, request)));
    }

    #[test]
    fn a_stream_sums_up_its_requests() {
        let request = |number, start_ns, end_ns| CompletedRequest { number, start_ns, end_ns, is_write: number == 2 };
        let requests =
            vec![request(1, 4_000_000, 7_000_000), request(0, 0, 1_000_000), request(2, 7_000_000, 9_000_000)];
        let found = StreamOutcome::of(&job(), requests, 0.009, true);
        assert_eq!((found.reads, found.writes, found.bytes), (2, 1, 3 * (64 << 10)));
        assert_eq!((found.half_ms, found.longest_ms), (2.0, 3.0));
        assert!((found.waiting_s - 0.006).abs() < 1e-9);
        assert_eq!(found.requests.iter().map(|request| request.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(StreamOutcome::of(&job(), Vec::new(), 0.0, false).requests.is_empty());
    }
}
