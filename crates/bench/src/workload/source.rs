//! Where the requests of a run come from: laws, or a log.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{LogWorkload, ProxyRequest, RequestGenerator, WorkloadLaws};

/// The source of a workload.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkloadSource {
    /// Requests are drawn.
    Laws(WorkloadLaws),
    /// Requests are those of a log.
    Log(Arc<LogWorkload>),
}

impl WorkloadSource {
    /// The requests, from the first.
    pub fn requests(&self) -> Box<dyn Iterator<Item = ProxyRequest> + '_> {
        match self {
            WorkloadSource::Laws(laws) => Box::new(RequestGenerator::new(laws.clone())),
            WorkloadSource::Log(log) => Box::new(log.requests.iter().copied()),
        }
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        match self {
            WorkloadSource::Laws(laws) => laws.requests,
            WorkloadSource::Log(log) => log.totals.requests,
        }
    }

    /// The seed of drawn requests; 0 for a log.
    pub fn seed(&self) -> u64 {
        match self {
            WorkloadSource::Laws(laws) => laws.seed,
            WorkloadSource::Log(_) => 0,
        }
    }

    /// The same laws with another seed; a log stays as it is.
    pub fn with_seed(&self, seed: u64) -> WorkloadSource {
        match self {
            WorkloadSource::Laws(laws) => WorkloadSource::Laws(WorkloadLaws { seed, ..laws.clone() }),
            WorkloadSource::Log(log) => WorkloadSource::Log(log.clone()),
        }
    }

    /// What a report's JSON says of it.
    pub fn json(&self) -> Value {
        match self {
            WorkloadSource::Laws(laws) => json!(laws),
            WorkloadSource::Log(log) => {
                json!({ "log": log.path, "format": log.format, "left_out": log.left_out, "totals": log.totals })
            }
        }
    }

    /// What it is, in a sentence.
    pub fn describe(&self) -> String {
        match self {
            WorkloadSource::Laws(laws) => laws.describe(),
            WorkloadSource::Log(log) => {
                format!("requests of {} (format {}); {}", log.path.display(), log.format, log.left_out.describe())
            }
        }
    }
}
