//! Asking a server that is failing whether it is back, at no client's cost.
//!
//! Owns: what is sent, in a task that ends when the worker stops, and how much of the answer is read. Leaves to others: when
//! a server may be asked (`health`, `pool`), and what an answer says about it (`exchange`).

use std::rc::Rc;

use futures_util::StreamExt;

use super::connect::{connect, connect_shared};
use super::exchange::{at_server, note_connection, whole_time};
use super::lease::pieces;
use super::server_limit::ServerLimit;
use super::shared::OpenedConnection;
use super::{Destination, OriginProbe, RequestBody, RequestHead, Upstream};
use crate::rules::serve::OriginFailure;

/// A probe reads so much of a body, and no more.
const PROBED_BYTES_MAX: usize = 64 * 1024;

impl Upstream {
    /// Asks a server that is failing whether it is back, in a separate task: with a copy of a request, or by a connection
    /// alone. It ends when the worker stops.
    pub(super) fn probe(self: &Rc<Upstream>, to: Destination, copy: Option<RequestHead>, right: OriginProbe) {
        let upstream = self.clone();
        self.connections.tasks.spawn_local(async move {
            if !upstream.is_closed.get() {
                let asked = ask_for_health(&upstream, &to, copy);
                tokio::select! {
                    () = asked => {}
                    () = upstream.closing.notified() => {}
                }
            }
            drop(right);
        });
    }
}

async fn ask_for_health(upstream: &Rc<Upstream>, to: &Destination, copy: Option<RequestHead>) {
    let Some(head) = copy else {
        let place = to.limit.as_ref().map(ServerLimit::try_take);
        // A server that has as many connections as it may have accepts them.
        if !matches!(place, Some(None)) {
            let connected = match to.rules.http2 {
                true => connect_shared(upstream, to, &[], place.flatten()).await,
                false => connect(upstream, to, &[], place.flatten(), false)
                    .await
                    .map(|found| found.map(OpenedConnection::Alone)),
            };
            note_connection(upstream, to, &connected);
            if let Err(error) = connected {
                upstream.known.health.note_failure(&to.origin, &error);
            }
        }
        return;
    };
    // The answer counts for the server's health. Nobody needs a long body, so the connection ends with it.
    let answered = at_server(upstream, to, head, RequestBody::Empty, &|_| (), whole_time(to)).await;
    if let Ok((response, lease)) = answered {
        let is_good = OriginFailure::of(response.status()).is_none();
        let (mut body, mut read_bytes) = (pieces(response.into_body(), lease), 0);
        while let Some(Ok(piece)) = body.next().await {
            read_bytes += piece.len();
            if is_good && read_bytes >= PROBED_BYTES_MAX {
                return upstream.note_good(to);
            }
        }
    }
}
