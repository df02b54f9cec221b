//! The watch of a fleet.
//!
//! Owns: the changes in order, and signs of life while there are none. etcd reports its progress, on request, every quarter of a
//! lease; only that it answers counts, and not the revision that it names, as some versions name one before they have sent
//! its changes. A watch is of no use at an etcd that was replaced: then the log is read again, which finds out. Leaves to
//! others: beginning again (`machine`).

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::calls::FleetCalls;
use super::grpc::{CallError, OUT_OF_RANGE, framed};
use super::messages::{
    EVENT_DELETE, EtcdEvent, WatchCreateRequest, WatchKind, WatchProgressRequest, WatchRequest, WatchResponse,
    range_end,
};
use super::reading::unsigned;
use crate::machine::{FleetEvent, LogChange, WatchEnd};
use crate::records::{FleetKey, read_claim, read_identity, read_revision};

const WATCH: &str = "/etcdserverpb.Watch/Watch";

impl FleetCalls {
    /// Watches from a revision, until the watch ends; gives each event to `take`, and returns the last one.
    pub async fn watch(&self, from: u64, interval: Duration, take: &mpsc::Sender<FleetEvent>) -> FleetEvent {
        match self.watch_until_it_ends(from, interval, take).await {
            Ok(ended) => ended,
            Err(error) => {
                let is_compacted = error.status == Some(OUT_OF_RANGE);
                let end = if is_compacted { WatchEnd::Compacted } else { WatchEnd::Broken };
                FleetEvent::WatchEnded { end, why: error.to_string() }
            }
        }
    }

    async fn watch_until_it_ends(
        &self,
        from: u64,
        interval: Duration,
        take: &mpsc::Sender<FleetEvent>,
    ) -> Result<FleetEvent, CallError> {
        let prefix = self.keys.prefix();
        let create = WatchCreateRequest {
            key: Bytes::copy_from_slice(prefix.as_bytes()),
            range_end: range_end(prefix),
            start_revision: i64::try_from(from).unwrap_or(i64::MAX),
        };
        let create = WatchRequest { kind: Some(WatchKind::Create(create)) };
        let (sender, mut incoming, channel) = self.client.stream::<_, WatchResponse>(WATCH, &create).await?;
        let progress = framed(&WatchRequest { kind: Some(WatchKind::Progress(WatchProgressRequest {})) })?;
        let mut through = from.saturating_sub(1);
        let mut due = tokio::time::interval(interval);
        loop {
            let next = tokio::select! {
                next = incoming.next() => next,
                _ = due.tick() => {
                    // If etcd takes no more requests, it does not answer either.
                    let _ = sender.try_send(progress.clone());
                    continue;
                }
            };
            let response = match next {
                Ok(Some(response)) => response,
                Ok(None) => return Err(CallError::broken("etcd has ended the watch")),
                Err(error) => {
                    self.client.judge(&channel, Some(&error));
                    return Err(error);
                }
            };
            if response.canceled || response.compact_revision > 0 {
                let (end, why) = match response.compact_revision > 0 {
                    true => (WatchEnd::Compacted, "etcd has compacted its history".to_owned()),
                    false => (WatchEnd::Broken, response.cancel_reason),
                };
                return Ok(FleetEvent::WatchEnded { end, why });
            }
            // A watch from a revision that is yet to come would leave out what comes before it.
            if response.created && !self.is_same_etcd(through).await? {
                let why = "etcd is another one, or older: it was restored from a backup".to_owned();
                return Ok(FleetEvent::WatchEnded { end: WatchEnd::OtherEtcd, why });
            }
            let last = response.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| unsigned(kv.mod_revision));
            through = through.max(last.max().unwrap_or(0));
            let changes = response.events.iter().filter_map(|event| self.change_of(event)).collect();
            if take.send(FleetEvent::Changed { changes, through }).await.is_err() {
                return Err(CallError::broken("this node stops"));
            }
        }
    }

    /// What an event means; `None` for keys that are not the fleet's.
    fn change_of(&self, event: &EtcdEvent) -> Option<LogChange> {
        let found = event.kv.as_ref()?;
        let key = self.keys.read(&found.key)?;
        if event.kind == EVENT_DELETE {
            return match key {
                FleetKey::Node(name) => Some(LogChange::NodeGone(name)),
                FleetKey::Identity => Some(LogChange::Identity(None)),
                // A purge is removed with the floor, and what a node has applied with the node.
                FleetKey::Purge(_) | FleetKey::Applied(_) | FleetKey::Claim(_) | FleetKey::Floor => None,
            };
        }
        match key {
            FleetKey::Node(_) => self.node_of(found).map(LogChange::Node),
            FleetKey::Applied(name) => Some(LogChange::Applied(name, read_revision(&found.value)?)),
            FleetKey::Claim(name) if name == self.name => read_claim(&found.value).map(LogChange::Claimed),
            FleetKey::Claim(_) => None,
            FleetKey::Purge(_) => self.logged(found).map(LogChange::Purge),
            FleetKey::Floor => Some(LogChange::Floor(read_revision(&found.value)?)),
            FleetKey::Identity => Some(LogChange::Identity(read_identity(&found.value))),
        }
    }
}
