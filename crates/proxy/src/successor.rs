//! The process that serves the same listeners after this one.
//!
//! Owns: purges that come after this process has left the store. An unsafe request that is under way at the end may
//! change what the next process stores, so that process is told.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

/// The longest time for which a purge waits until the next process can be told.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Tells the next process to purge; the value has the parameters of the method `purge` of the control socket. It may
/// block the thread for a short time. *Errors*: the next process cannot be told now.
pub type PurgeElsewhere = Arc<dyn Fn(&Value) -> Result<(), String> + Send + Sync>;

/// How the next process is told.
#[derive(Clone, Default)]
pub(crate) struct SuccessorNotice(pub Option<PurgeElsewhere>);

impl SuccessorNotice {
    /// Whether there will be a next process.
    pub fn is_expected(&self) -> bool {
        self.0.is_some()
    }

    /// Tells the next process to purge, as soon as it runs.
    pub async fn purge(&self, params: Value) -> Result<(), String> {
        let Some(tell) = self.0.clone() else { return Err("this proxy stops".to_owned()) };
        let work = move || {
            let deadline = std::time::Instant::now() + PATIENCE;
            loop {
                match tell(&params) {
                    Err(_) if std::time::Instant::now() < deadline => std::thread::sleep(PAUSE),
                    told => return told,
                }
            }
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
    }
}

impl std::fmt::Debug for SuccessorNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Successor({})", self.is_expected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn successor_purge_retries_until_running() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let tell = move |_: &Value| match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err("not yet".to_owned()),
            _ => Ok(()),
        };
        let successor = SuccessorNotice(Some(Arc::new(tell)));
        assert_eq!(successor.purge(Value::Null).await, Ok(()));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert!(SuccessorNotice::default().purge(Value::Null).await.is_err());
    }
}
