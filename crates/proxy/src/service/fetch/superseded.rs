//! Purges of stored responses that an answer has superseded.
//!
//! Owns: counting them, saying so if one is not durable, and whether the owner of the key in a fleet has to purge what it
//! has, too: not if the answer is from there, as what that node has is newer. Leaves to others: the decision that an answer
//! supersedes what is stored (`fetch`, `parts`).

use nectary_host::log::LogLevel;
use nectary_store::Fill;
use tokio::sync::oneshot;

use super::super::pass::PURGE_FAILED;
use super::{FetchOutcome, FetchPlan, Sender};
use crate::worker::ProxyWorker;

/// Purges the stored responses of a URL; its owner in a fleet purges those that it has when it is asked next.
pub(in crate::service) async fn purge(worker: &ProxyWorker, key: &[u8]) {
    worker.stats.invalidations.add(1);
    note(key, worker.purge_key(key).await);
}

/// Purges the stored responses of a URL at this node alone: its owner in a fleet has newer ones.
pub(in crate::service) async fn purge_copies(worker: &ProxyWorker, key: &[u8]) {
    worker.stats.invalidations.add(1);
    note(key, worker.purge_copies(key).await);
}

fn note(key: &[u8], purged: Result<(), String>) {
    if let Err(error) = purged {
        let url = String::from_utf8_lossy(key);
        PURGE_FAILED.write(LogLevel::Error, "proxy", format_args!("cannot purge {url} durably: {error}"));
    }
}

/// Purges what is stored of the key, which the answer of this sender has superseded.
pub(super) async fn supersede(plan: &FetchPlan, from: Sender) {
    match from {
        Sender::Node => purge_copies(&plan.worker, &plan.key).await,
        Sender::Origin | Sender::DoubtfulOrigin => purge(&plan.worker, &plan.key).await,
    }
}

/// Ends the fetch of a part that the sender does not give, and says what it gave instead. Parts that were stored before
/// are of a body that the origin no longer has.
pub(super) async fn leave_part(
    plan: &FetchPlan,
    fill: Fill,
    from: Sender,
    (tell, told): (oneshot::Sender<FetchOutcome>, FetchOutcome),
) {
    fill.decline();
    // A fetch of the whole that begins after this must not be purged.
    if plan.stale.is_some() {
        supersede(plan, from).await;
    }
    _ = tell.send(told);
}
