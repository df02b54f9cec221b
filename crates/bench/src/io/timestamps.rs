//! The file of requests, with the start and end of each, as in xdd's detailed report.
//!
//! Owns: the columns. After a heading, there is one comma-separated line per request: cell and pass, stream, operation,
//! number, place, distance from the end of the request before it, start and end on the clock of the pass, and the
//! values that are computed from these.

use std::io::{self, Write};

use super::SweepCell;
use super::job::{CompletedRequest, IoPass, PassOutcome};

/// The columns.
pub const HEADING: &str = "cell,pass,target,op,request,location_bytes,distance_bytes,size_bytes,start_ns,end_ns,\
                           io_ms,mib_s,relative_ms,loop_ms";

/// The requests of a stream in a pass.
#[derive(Debug, Clone)]
struct PassRequests {
    cell: String,
    pass: usize,
    target: usize,
    start: u64,
    in_round: u64,
    request_bytes: u64,
    requests: Vec<CompletedRequest>,
}

/// All requests that were kept.
#[derive(Debug, Clone, Default)]
pub struct RequestTimestamps {
    passes: Vec<PassRequests>,
}

impl RequestTimestamps {
    /// Moves the requests of a pass out of its outcome into this list.
    pub fn add(&mut self, cell: &SweepCell, pass: usize, job: &IoPass, outcome: &mut PassOutcome) {
        for (target, stream) in outcome.streams.iter_mut().enumerate() {
            let requests = std::mem::take(&mut stream.requests);
            if requests.is_empty() {
                continue;
            }
            self.passes.push(PassRequests {
                cell: cell.name(),
                pass,
                target,
                start: job.places[target].start,
                in_round: job.requests(),
                request_bytes: job.request_bytes,
                requests,
            });
        }
    }

    /// Writes the file. *Errors*: those of the writer.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "{HEADING}")?;
        for pass in &self.passes {
            let size = pass.request_bytes;
            let (mut head, mut last_end_ns) = (pass.start, 0);
            for request in &pass.requests {
                let location = pass.start + request.number % pass.in_round * size;
                let distance = location as i64 - head as i64;
                let took_ns = request.end_ns - request.start_ns;
                let rate = size as f64 / (1 << 20) as f64 / (took_ns.max(1) as f64 / 1e9);
                let loop_ms = (request.end_ns as f64 - last_end_ns as f64) / 1e6;
                let CompletedRequest { number, start_ns, end_ns, is_write } = request;
                let op = if *is_write { 'w' } else { 'r' };
                writeln!(
                    to,
                    "{},{},{},{op},{number},{location},{distance},{size},{start_ns},{end_ns},{:.5},{rate:.3},{:.5},{loop_ms:.5}",
                    pass.cell,
                    pass.pass,
                    pass.target,
                    took_ns as f64 / 1e6,
                    *start_ns as f64 / 1e6,
                )?;
                (head, last_end_ns) = (location + size, *end_ns);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::job::{StreamOutcome, StreamPlace, tests::job};
    use super::super::results::tests::result;
    use super::*;

    #[test]
    fn timestamp_file_format_is_unchanged() {
        let place = StreamPlace { path: PathBuf::from("/dev/sdx"), start: 1 << 20 };
        let job = IoPass { places: vec![place], ..job() };
        let request = |number, start_ns, end_ns| CompletedRequest { number, start_ns, end_ns, is_write: number == 2 };
        let requests =
            vec![request(0, 0, 1_000_000), request(2, 1_500_000, 2_000_000), request(17, 2_000_000, 4_000_000)];
        let stream = StreamOutcome { requests, ..StreamOutcome::default() };
        let mut outcome = PassOutcome { streams: vec![stream], ..PassOutcome::default() };
        let mut timestamps = RequestTimestamps::default();
        timestamps.add(&result().cell, 1, &job, &mut outcome);
        assert!(outcome.streams[0].requests.is_empty(), "they are not kept twice");
        let mut text = Vec::new();
        timestamps.write(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "cell,pass,target,op,request,location_bytes,distance_bytes,size_bytes,start_ns,end_ns,io_ms,mib_s,relative_ms,loop_ms\n\
             read.direct.streams2.depth1.1m,1,0,r,0,1048576,0,65536,0,1000000,1.00000,62.500,0.00000,1.00000\n\
             read.direct.streams2.depth1.1m,1,0,w,2,1179648,65536,65536,1500000,2000000,0.50000,125.000,1.50000,1.00000\n\
             read.direct.streams2.depth1.1m,1,0,r,17,1114112,-131072,65536,2000000,4000000,2.00000,31.250,2.00000,2.00000\n"
        );
    }
}
