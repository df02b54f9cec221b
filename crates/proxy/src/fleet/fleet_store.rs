//! The purges of a fleet, in the store of a node.
//!
//! Owns: [`FleetStore`]: purges in their order, and then the mark that says so, both durable before it returns. A purge of
//! the log cannot be refused, as everything behind it would wait: what the store has no room to remember becomes a purge of
//! everything. Leaves to others: which purges, and when they are tried again (`nectary-fleet`).

use futures_util::future::join_all;
use nectary_host::fleet::{AppliedMark, Later, LoggedPurge, PurgeScope, PurgeStore};
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_store::{Error, PurgeEffect, SpanSet, StoreErrorKind};

/// The most keys, prefixes or tags that are purged at the same time.
const TOGETHER_MAX: usize = 64;

/// Limits how often it is logged that everything was purged.
static EVERYTHING_PURGED: LogThrottle = LogThrottle::every(std::time::Duration::from_secs(60));

/// The store of a node, as its fleet sees it.
#[derive(Clone)]
pub struct FleetStore(SpanSet);

impl FleetStore {
    /// The fleet's view of this store.
    pub fn new(store: impl Into<SpanSet>) -> FleetStore {
        FleetStore(store.into())
    }
}

impl PurgeStore for FleetStore {
    fn mark(&self) -> AppliedMark {
        self.0.applied_mark()
    }

    fn apply(&self, purges: Vec<LoggedPurge>, mark: Option<AppliedMark>) -> Later<Result<(), String>> {
        let store = self.0.clone();
        Box::pin(async move {
            let singles: Vec<_> = purges.iter().flat_map(singles_of).collect();
            // None of them makes an object, and hard and soft ones do not get in each other's way, so their order does not
            // count, and those that are made at the same time share a flush.
            for chunk in singles.chunks(TOGETHER_MAX) {
                let made = join_all(chunk.iter().map(|single| single.make(&store))).await;
                for (single, made) in chunk.iter().zip(made) {
                    let made = match made {
                        Err(error) if error.kind == StoreErrorKind::Busy => purge_all_instead(&store, &error).await,
                        made => done(made),
                    };
                    made.map_err(|error| format!("the purge of revision {} is not durable: {error}", single.revision))?;
                }
            }
            let Some(mark) = mark else { return Ok(()) };
            store.set_applied_mark(mark);
            let flushed = store.flush_applied_mark().await;
            flushed.map_err(|error| format!("that revision {} is applied is not durable: {error}", mark.revision))
        })
    }
}

/// Purges everything, as the store does not take a purge. That always has room, and makes room.
async fn purge_all_instead(store: &SpanSet, refused: &Error) -> Result<(), Error> {
    EVERYTHING_PURGED.write(LogLevel::Warning, "proxy", format_args!("fleet: this node purges everything: {refused}"));
    store.purge_all_as(PurgeEffect::Hard).await
}

/// One key, prefix or tag of a purge, or a purge of everything.
struct SinglePurge<'a> {
    revision: u64,
    effect: PurgeEffect,
    scope: &'a PurgeScope,
    text: &'a [u8],
}

/// The parts of a purge, each of which the store makes alone.
fn singles_of(logged: &LoggedPurge) -> Vec<SinglePurge<'_>> {
    let LoggedPurge { revision, purge } = logged;
    let effect = purge.soft_since_s.map_or(PurgeEffect::Hard, |since_s| PurgeEffect::Soft { since_s });
    let single = |text| SinglePurge { revision: *revision, effect, scope: &purge.scope, text };
    match &purge.scope {
        PurgeScope::All => vec![single(&[])],
        scope => scope.texts().iter().map(|text| single(text)).collect(),
    }
}

impl SinglePurge<'_> {
    async fn make(&self, store: &SpanSet) -> Result<(), Error> {
        match self.scope {
            PurgeScope::Keys(_) => store.purge_key_as(self.text, self.effect).await,
            PurgeScope::Prefixes(_) => store.purge_prefix_as(self.text, self.effect).await,
            PurgeScope::Tags(_) => store.purge_tag_as(self.text, self.effect).await,
            PurgeScope::All => store.purge_all_as(self.effect).await,
        }
    }
}

/// What no store can have, as it is too long for one, needs no purge.
fn done(purged: Result<(), Error>) -> Result<(), Error> {
    match purged {
        Err(error) if error.kind == StoreErrorKind::Invalid => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purges_of_impossible_keys_are_done() {
        assert!(done(Err(Error::new(StoreErrorKind::Invalid, "too long"))).is_ok());
        assert!(done(Err(Error::new(StoreErrorKind::Busy, "full"))).is_err());
        assert!(done(Err(Error::new(StoreErrorKind::Io, "lost"))).is_err());
    }
}
