//! The proxy as a client of origins.
//!
//! Owns: connections to origins, kept for reuse by each worker on its own, and one exchange on one of them. A request that
//! may be repeated is repeated once on a new connection where a kept one turns out to be dead; any other request gets a new
//! connection.

mod connect;
mod exchange;
mod request;

pub(crate) use connect::{connect_tcp, read_certificates};
pub(crate) use exchange::{FetchError, Lease, exchange, pieces};
pub(crate) use request::{RequestBody, RequestHead};

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use hyper::client::conn::http1::SendRequest;
use tokio_rustls::TlsConnector;

use crate::rules::key::Origin;
use crate::wire::guard::Guard;

/// A connection that waits for its next request.
struct Idle {
    sender: SendRequest<RequestBody>,
    guard: Rc<Guard>,
}

/// A worker's connections to origins.
#[derive(Default)]
pub(crate) struct Upstream {
    idle: RefCell<HashMap<Origin, Vec<Idle>>>,
    tls: OnceCell<TlsConnector>,
}

impl Upstream {
    /// Forgets connections that have ended.
    pub fn sweep(&self) {
        self.idle.borrow_mut().retain(|_, connections| {
            connections.retain(|idle| !idle.sender.is_closed());
            !connections.is_empty()
        });
    }

    /// Ends every connection that waits.
    pub fn close(&self) {
        self.idle.borrow_mut().clear();
    }

    fn take(&self, origin: &Origin) -> Option<Idle> {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.get_mut(origin)?;
        while let Some(found) = connections.pop() {
            if !found.sender.is_closed() && !found.guard.is_killed() {
                return Some(found);
            }
        }
        None
    }

    fn keep(&self, origin: &Origin, connection: Idle, connections_max: usize) {
        if connection.sender.is_closed() || connection.guard.is_killed() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        let connections = match idle.get_mut(origin) {
            Some(connections) => connections,
            None => idle.entry(origin.clone()).or_default(),
        };
        if connections.len() < connections_max {
            connections.push(connection);
        }
    }
}
