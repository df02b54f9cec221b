//! Requests to another member.
//!
//! Owns: one connection to it, and its certificates. Leaves to others: what is said (`messages`), and when (`machine`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::messages::MESSAGE_BYTES_MAX;
use crate::http2::Http2Connection;
use crate::renewed_tls::RenewedTls;

/// The longest text of an error that is told.
const ERROR_CHARS_MAX: usize = 200;

/// Why a member has not answered.
#[derive(Debug)]
pub(super) struct SyncFailure {
    /// Whether its machine answers, and no process listens there.
    pub is_refused: bool,
    /// Why.
    pub why: String,
}

impl SyncFailure {
    fn other(why: impl ToString) -> SyncFailure {
        SyncFailure { is_refused: false, why: why.to_string() }
    }
}

/// Another member, as one that is asked.
pub(super) struct PeerClient {
    host: String,
    port: u16,
    tls: Arc<RenewedTls>,
    time_max: Duration,
    connection: Mutex<Option<Http2Connection<Full<Bytes>>>>,
}

impl PeerClient {
    /// A client of the member at this address. It connects with the first request.
    pub fn new(host: String, port: u16, tls: Arc<RenewedTls>, time_max: Duration) -> PeerClient {
        PeerClient { host, port, tls, time_max, connection: Mutex::default() }
    }

    /// Sends a message, and returns the answer. *Cancel safety*: it may have been acted upon.
    pub async fn ask(&self, word: &str, message: Vec<u8>) -> Result<Vec<u8>, SyncFailure> {
        let mut connection = self.connection.lock().await;
        let asked = timeout(self.time_max, self.ask_over(&mut connection, word, message)).await;
        let result = asked.unwrap_or_else(|_| Err(SyncFailure::other("no answer in time")));
        if result.is_err() {
            *connection = None;
        }
        result
    }

    async fn ask_over(
        &self,
        connection: &mut Option<Http2Connection<Full<Bytes>>>,
        word: &str,
        message: Vec<u8>,
    ) -> Result<Vec<u8>, SyncFailure> {
        if connection.as_ref().is_none_or(|connection| connection.sender.is_closed()) {
            let tls = RenewedTls::current(&self.tls).await;
            let connected = Http2Connection::connect((&self.host, self.port), Some(&tls), self.time_max).await;
            let failed = |error: crate::http2::ConnectFailure| SyncFailure {
                is_refused: error.is_refused,
                why: error.to_string(),
            };
            *connection = Some(connected.map_err(failed)?);
        }
        let Some(Http2Connection { sender, base, .. }) = connection else {
            return Err(SyncFailure::other("no connection"));
        };
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{base}/.well-known/nectary-fleet/{word}"))
            .body(Full::new(Bytes::from(message)))
            .map_err(SyncFailure::other)?;
        sender.ready().await.map_err(SyncFailure::other)?;
        let response = sender.send_request(request).await.map_err(SyncFailure::other)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MESSAGE_BYTES_MAX).collect().await.map_err(SyncFailure::other)?.to_bytes();
        if head.status != StatusCode::OK {
            let text: String = String::from_utf8_lossy(&body).chars().take(ERROR_CHARS_MAX).collect();
            return Err(SyncFailure::other(format!(
                "it answers with status {}: {}",
                head.status.as_u16(),
                text.trim()
            )));
        }
        Ok(body.into())
    }
}
