//! The purges of a fleet, in the store of a node.
//!
//! Owns: [`FleetStore`]: purges in their order, and then the mark that says so, both durable before it returns. A purge of
//! the log cannot be refused, as everything behind it would wait: what the store has no room to remember becomes a purge of
//! everything. Leaves to others: which purges, and when they are tried again (`nectary-fleet`).

use futures_util::future::join_all;
use nectary_host::fleet::{AppliedMark, Later, LoggedPurge, PurgeScope, PurgeStore};
use nectary_host::log::{Level, Throttle};
use nectary_store::{Error, ErrorKind, PurgeEffect, Spans};

/// The most keys, prefixes or tags that are purged at the same time, so that they share a flush.
const TOGETHER_MAX: usize = 64;

/// Limits how often it is logged that everything was purged.
static EVERYTHING_PURGED: Throttle = Throttle::every(std::time::Duration::from_secs(60));

/// The store of a node, as its fleet sees it.
#[derive(Clone)]
pub struct FleetStore(Spans);

impl FleetStore {
    /// The fleet's view of this store.
    pub fn new(store: impl Into<Spans>) -> FleetStore {
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
            for logged in &purges {
                let effect = match logged.purge.soft_since_s {
                    None => PurgeEffect::Hard,
                    Some(since_s) => PurgeEffect::Soft { since_s },
                };
                let applied = match apply_one(&store, &logged.purge.scope, effect).await {
                    Err(error) if error.kind == ErrorKind::Busy => purge_all_instead(&store, &error).await,
                    applied => applied,
                };
                applied
                    .map_err(|error| format!("the purge of revision {} is not durable: {error}", logged.revision))?;
            }
            let Some(mark) = mark else { return Ok(()) };
            store.set_applied_mark(mark);
            let flushed = store.flush_applied_mark().await;
            flushed.map_err(|error| format!("that revision {} is applied is not durable: {error}", mark.revision))
        })
    }
}

/// Purges everything, as the store does not take a purge. That always has room, and makes room.
async fn purge_all_instead(store: &Spans, refused: &Error) -> Result<(), Error> {
    EVERYTHING_PURGED.write(Level::Warning, "proxy", format_args!("fleet: this node purges everything: {refused}"));
    store.purge_all_as(PurgeEffect::Hard).await
}

/// Makes one purge.
async fn apply_one(store: &Spans, scope: &PurgeScope, effect: PurgeEffect) -> Result<(), Error> {
    if *scope == PurgeScope::All {
        return store.purge_all_as(effect).await;
    }
    for texts in scope.texts().chunks(TOGETHER_MAX) {
        let purged = join_all(texts.iter().map(|text| async move {
            match scope {
                PurgeScope::Keys(_) => store.purge_key_as(text, effect).await,
                PurgeScope::Prefixes(_) => store.purge_prefix_as(text, effect).await,
                PurgeScope::Tags(_) => store.purge_tag_as(text, effect).await,
                PurgeScope::All => Ok(()),
            }
        }));
        purged.await.into_iter().try_for_each(done)?;
    }
    Ok(())
}

/// What no store can have, as it is too long for one, needs no purge.
fn done(purged: Result<(), Error>) -> Result<(), Error> {
    match purged {
        Err(error) if error.kind == ErrorKind::Invalid => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purges_of_impossible_keys_are_done() {
        assert!(done(Err(Error::new(ErrorKind::Invalid, "too long"))).is_ok());
        assert!(done(Err(Error::new(ErrorKind::Busy, "full"))).is_err());
        assert!(done(Err(Error::new(ErrorKind::Io, "lost"))).is_err());
    }
}
