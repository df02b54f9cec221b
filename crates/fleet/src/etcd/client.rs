//! The members of etcd, of which any may be away.
//!
//! Owns: which member is called, the time that a call may take, and going on with the next member after a failure. Leaves
//! to others: what is called (`calls`, `watch`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::grpc::{CallError, GrpcChannel, IncomingMessages};
use crate::options::EtcdEndpoint;
use crate::renewed_tls::RenewedTls;

/// A client of etcd. Calls share a connection.
pub struct EtcdClient {
    endpoints: Vec<EtcdEndpoint>,
    tls: Option<Arc<RenewedTls>>,
    /// How long a call, or a connection, may take.
    time_max: Duration,
    state: Mutex<ClientState>,
    /// Only one caller connects.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ClientState {
    channel: Option<Arc<GrpcChannel>>,
    /// The member that is tried next.
    next: usize,
}

impl EtcdClient {
    /// A client of these members, at least one. It connects with the first call.
    pub fn new(endpoints: Vec<EtcdEndpoint>, tls: Option<RenewedTls>, time_max: Duration) -> EtcdClient {
        let (state, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        EtcdClient { endpoints, tls: tls.map(Arc::new), time_max, state, connecting }
    }

    /// Calls a method. After a failure the next call goes to another member. *Cancel safety*: the request may have been
    /// acted upon.
    pub async fn call<Q: Message, P: Message + Default>(&self, path: &str, request: &Q) -> Result<P, CallError> {
        let channel = self.channel().await?;
        self.call_at(&channel, path, request).await
    }

    /// Calls a method at the member of a connection, as [`call`](EtcdClient::call) does.
    pub async fn call_at<Q: Message, P: Message + Default>(
        &self,
        channel: &Arc<GrpcChannel>,
        path: &str,
        request: &Q,
    ) -> Result<P, CallError> {
        let called = timeout(self.time_max, channel.call(path, request)).await;
        let result = called.unwrap_or_else(|_| Err(CallError::broken("etcd has not answered in time")));
        self.judge(channel, result.as_ref().err());
        result
    }

    /// Begins a call with several messages.
    pub async fn stream<Q: Message, P: Message + Default>(
        &self,
        path: &str,
        first: &Q,
    ) -> Result<(mpsc::Sender<Bytes>, IncomingMessages<P>, Arc<GrpcChannel>), CallError> {
        let channel = self.channel().await?;
        let called = timeout(self.time_max, channel.stream(path, first)).await;
        let result = called.unwrap_or_else(|_| Err(CallError::broken("etcd has not answered in time")));
        self.judge(&channel, result.as_ref().err());
        result.map(|(sender, incoming)| (sender, incoming, channel))
    }

    /// Gives a connection up after an error that another member may not give.
    pub fn judge(&self, channel: &Arc<GrpcChannel>, error: Option<&CallError>) {
        // Statuses that are about the request or all of etcd, and not about the member: invalid argument, not found, no
        // permission, no room, failed precondition, out of range, not authenticated.
        let is_request = |error: &CallError| matches!(error.status, Some(3 | 5 | 7 | 8 | 9 | 11 | 16));
        if error.is_some_and(|error| !is_request(error)) {
            let mut state = self.state();
            if state.channel.as_ref().is_some_and(|current| Arc::ptr_eq(current, channel)) {
                state.channel = None;
            }
        }
    }

    /// A connection to a member. *Errors*: none can be reached.
    pub async fn channel(&self) -> Result<Arc<GrpcChannel>, CallError> {
        if let Some(channel) = self.current() {
            return Ok(channel);
        }
        let _turn = self.connecting.lock().await;
        if let Some(channel) = self.current() {
            return Ok(channel);
        }
        let mut last = CallError::unsent("no member of etcd is named");
        for _ in 0..self.endpoints.len() {
            let endpoint = {
                let mut state = self.state();
                let next = state.next % self.endpoints.len();
                state.next = next + 1;
                &self.endpoints[next]
            };
            // All members together may take twice the time, however many they are.
            let time = (self.time_max * 2 / self.endpoints.len() as u32).min(self.time_max);
            let connecting = async {
                let tls = match &self.tls {
                    Some(tls) if endpoint.has_tls => Some(RenewedTls::current(tls).await),
                    _ => None,
                };
                GrpcChannel::connect(endpoint, tls.as_ref(), self.time_max).await
            };
            match timeout(time, connecting).await {
                Ok(Ok(channel)) => {
                    let channel = Arc::new(channel);
                    self.state().channel = Some(channel.clone());
                    return Ok(channel);
                }
                Ok(Err(error)) => last = CallError::unsent(format!("{}:{}: {error}", endpoint.host, endpoint.port)),
                Err(_) => last = CallError::unsent(format!("{}:{}: no answer", endpoint.host, endpoint.port)),
            }
        }
        Err(last)
    }

    fn current(&self) -> Option<Arc<GrpcChannel>> {
        self.state().channel.clone().filter(|channel| !channel.is_closed())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
