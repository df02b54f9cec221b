//! A proxy whose store has known objects. Tests of faults, shutdown and spans start with it.
//!
//! Promises that after [`FilledProxy::fill`] every object has been a hit, and that [`FilledProxy::check`] gets every object and
//! distinguishes hits, misses and wrong answers; any bytes except the object's are wrong.

use crate::content;
use crate::http::{HttpConnection, RequestFailure};
use crate::nectary::{NectaryProxy, ProxyCommand};
use crate::origin::{DeterministicOrigin, TargetAnswer};
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// The results of getting every object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCheckCounts {
    /// The number of complete and correct answers from the store.
    pub hits: usize,
    /// The number of complete and correct answers from the origin.
    pub misses: usize,
    /// The number of answers that were truncated or reset, without a wrong byte: the proxy found the damage while it
    /// sent the answer.
    pub cut: usize,
    /// The number of all other answers.
    pub wrong: usize,
}

/// An origin, a command line and the objects.
#[derive(Debug)]
pub struct FilledProxy {
    /// The directory of all files.
    pub scratch: ScratchFolder,
    /// The origin.
    pub origin: DeterministicOrigin,
    /// The settings of the proxy. A test may change them between starts.
    pub command: ProxyCommand,
    /// The contents of the store.
    pub targets: Vec<String>,
}

impl FilledProxy {
    /// Prepares `count` objects, without storing them: most have some kilobytes, every twentieth has several fragments.
    pub fn new(name: &str, count: usize, seed: u64) -> Result<Self> {
        let scratch = ScratchFolder::new(name)?;
        let origin = DeterministicOrigin::start()?;
        let command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
        let mut rng = SeededRng::new(seed);
        let mut size = |id| if id % 20 == 19 { 300_000 + rng.below(2_500_000) } else { 200 + rng.below(30_000) };
        let targets = (0..count).map(|id| format!("/o/{id}?size={}", size(id))).collect();
        Ok(Self { scratch, origin, command, targets })
    }

    /// Stores every object, waits until each is a hit, and until all are written.
    pub fn fill(&self, nectary: &NectaryProxy) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let checked = self.check(nectary);
            if checked.wrong + checked.cut > 0 || Instant::now() > deadline {
                bail!("the store does not fill: {checked:?}\n{}", nectary.process.log_tail());
            }
            if checked.hits == self.targets.len() {
                nectary.wait_written(Duration::from_secs(10))?;
                return Ok(());
            }
        }
    }

    /// Starts the proxy, fills the store and stops with SIGTERM; then everything is in the store on disk.
    pub fn fill_and_stop(&self) -> Result<()> {
        let mut nectary = self.command.start()?;
        self.fill(&nectary)?;
        let status = nectary.terminate(Duration::from_secs(20))?;
        if !status.success() {
            bail!("SIGTERM: {}\n{}", crate::guard::describe(status), nectary.process.log_tail());
        }
        Ok(())
    }

    /// Gets every object once.
    pub fn check(&self, nectary: &NectaryProxy) -> ObjectCheckCounts {
        let mut client = HttpConnection::new(nectary.listen, Duration::from_secs(20));
        let mut checked = ObjectCheckCounts::default();
        for target in &self.targets {
            let whole = content::body(target, self.origin.version(target), TargetAnswer::parse(target).bytes);
            match client.get(target) {
                Ok(response) if response.status == 200 && response.body == whole => match response.is_hit() {
                    true => checked.hits += 1,
                    false => checked.misses += 1,
                },
                Err(RequestFailure::Truncated { response, .. }) if whole.starts_with(&response.body) => {
                    checked.cut += 1
                }
                // A reset may reach the client before bytes that the proxy sent earlier, so this counts as a truncated
                // answer.
                Err(RequestFailure::Connection(_)) => checked.cut += 1,
                _ => checked.wrong += 1,
            }
        }
        checked
    }

    /// The path of the store's file.
    pub fn store_path(&self) -> std::path::PathBuf {
        self.scratch.join("store")
    }
}
