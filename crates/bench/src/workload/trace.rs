//! A workload in a file: it is drawn or read from a log once, and the process of every contender reads it piece by piece.
//!
//! Owns: the file, which lasts only for one run. It has 20 bytes per request: client, object, bytes, page and site as
//! little-endian `u32`; if a request has no page, all bits of its page field are ones. Contenders read requests from
//! this file, so that generating them uses none of their memory.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ProxyRequest;
use crate::Error;

const RECORD_BYTES: usize = 20;
const NO_PAGE: u32 = u32::MAX;

/// The totals of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadTotals {
    /// The number of requests.
    pub requests: u64,
    /// The bytes of all requests.
    pub bytes: u64,
    /// The number of distinct objects.
    pub objects: u64,
    /// The bytes of the distinct objects.
    pub unique_bytes: u64,
}

impl WorkloadTotals {
    /// The totals of some requests.
    pub fn of(requests: &[ProxyRequest]) -> WorkloadTotals {
        let (mut totals, mut seen) = (WorkloadTotals::default(), HashSet::new());
        for request in requests {
            totals.requests += 1;
            totals.bytes += u64::from(request.bytes);
            if seen.insert(request.object) {
                totals.objects += 1;
                totals.unique_bytes += u64::from(request.bytes);
            }
        }
        totals
    }
}

/// Writes at most `requests_max` requests to a file.
pub fn write_trace(
    path: &Path,
    requests: impl Iterator<Item = ProxyRequest>,
    requests_max: u64,
) -> Result<WorkloadTotals, Error> {
    let failed = |error| Error::failed(path.display(), error);
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    let mut totals = WorkloadTotals::default();
    let mut seen: Vec<bool> = Vec::new();
    for request in requests.take(requests_max as usize) {
        let page = request.page.unwrap_or(NO_PAGE);
        for field in [request.client, request.object, request.bytes, page, request.site] {
            file.write_all(&field.to_le_bytes()).map_err(failed)?;
        }
        totals.requests += 1;
        totals.bytes += u64::from(request.bytes);
        let index = request.object as usize;
        seen.resize(seen.len().max(index + 1), false);
        if !std::mem::replace(&mut seen[index], true) {
            totals.objects += 1;
            totals.unique_bytes += u64::from(request.bytes);
        }
    }
    file.flush().map_err(failed)?;
    Ok(totals)
}

/// Reads pieces of a workload.
pub struct TraceReader {
    file: File,
}

impl TraceReader {
    /// Opens the file.
    pub fn open(path: &Path) -> Result<TraceReader, Error> {
        let file = File::open(path).map_err(|error| Error::failed(path.display(), error))?;
        Ok(TraceReader { file })
    }

    /// Reads `count` requests from the `first` one on.
    pub fn read(&mut self, first: u64, count: u64) -> Result<Vec<ProxyRequest>, Error> {
        let failed = |error| Error::failed("the workload's file", error);
        let mut bytes = vec![0; count as usize * RECORD_BYTES];
        self.file.seek(SeekFrom::Start(first * RECORD_BYTES as u64)).map_err(failed)?;
        self.file.read_exact(&mut bytes).map_err(failed)?;
        let record = |bytes: &[u8]| {
            let field = |index: usize| {
                let four = &bytes[index * 4..index * 4 + 4];
                u32::from_le_bytes([four[0], four[1], four[2], four[3]])
            };
            let page = Some(field(3)).filter(|page| *page != NO_PAGE);
            ProxyRequest { client: field(0), object: field(1), bytes: field(2), site: field(4), page }
        };
        Ok(bytes.chunks_exact(RECORD_BYTES).map(record).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{RequestGenerator, WorkloadLaws};

    #[test]
    fn trace_reads_back_in_pieces() {
        let path = std::env::temp_dir().join(format!("nectary-bench-trace-{}", std::process::id()));
        let laws = WorkloadLaws::seed_trace(1, 0.0005);
        let totals = write_trace(&path, RequestGenerator::new(laws.clone()), u64::MAX >> 1).unwrap();
        let all: Vec<ProxyRequest> = RequestGenerator::new(laws).collect();
        let mut reader = TraceReader::open(&path).unwrap();
        assert_eq!((totals, totals.requests), (WorkloadTotals::of(&all), all.len() as u64));
        assert_eq!(reader.read(0, totals.requests).unwrap(), all);
        assert_eq!(reader.read(100, 50).unwrap(), all[100..150]);
        assert!(reader.read(totals.requests, 1).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
