//! The connection to the authority's server.
//!
//! Owns: a request of HTTP/1.1 over TLS, each on a separate connection, and its bounds. Promises: only `https` URLs are
//! asked, and the server's certificate is verified; an answer takes at most [`TIME_MAX`] and [`BODY_BYTES_MAX`], and
//! asks for a pause of at most [`PAUSE_S_MAX`]. Leaves to others: what is asked (`instant-acme`).

use std::error::Error as StdError;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HOST, RETRY_AFTER, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use nectary_host::connect::connect;
use nectary_host::tls::{ClientTls, explain};

use super::order_failure::ConnectionError;

/// The longest time of a request with its answer.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The longest answer. *Units*: bytes.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The longest pause of which the client library learns. It panics on one that cannot be added to the time of now.
/// *Units*: seconds.
const PAUSE_S_MAX: u64 = 30 * 86_400;

/// The port of a URL that names none.
const HTTPS_PORT: u16 = 443;

/// What the proxy calls itself.
const OWN_NAME: &str = concat!("nectary/", env!("CARGO_PKG_VERSION"));

/// A client of the authority's server.
#[derive(Clone)]
pub(crate) struct AuthorityClient {
    tls: ClientTls,
    pause: AskedPause,
}

/// The pause that the authority has asked for with its last refusal.
#[derive(Debug, Clone, Default)]
pub(crate) struct AskedPause(Arc<Mutex<Option<Duration>>>);

impl AskedPause {
    /// Takes it.
    pub fn take(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, response: &Response<Full<Bytes>>) {
        let asks = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let value = response.headers().get(RETRY_AFTER).filter(|_| asks).and_then(|value| value.to_str().ok());
        let Some(value) = value.map(str::trim) else { return };
        let pause = match value.parse::<u64>() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => httpdate::parse_http_date(value).ok().and_then(|at| at.duration_since(SystemTime::now()).ok()),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pause;
    }
}

impl AuthorityClient {
    /// A client that trusts the certificates in the file `ca`, or those of the system. *Errors*: they cannot be read.
    pub fn new(ca: Option<&Path>, pause: AskedPause) -> Result<AuthorityClient, nectary_host::Error> {
        Ok(AuthorityClient { tls: ClientTls::load(ca, None)?, pause })
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let url = request.uri().clone();
            let failed = |what: String| Error::Other(Box::new(ConnectionError(format!("{}: {what}", shown(&url)))));
            match tokio::time::timeout(TIME_MAX, ask(&client.tls, request)).await {
                Ok(Ok(mut response)) => {
                    client.pause.note(&response);
                    bound_pause(response.headers_mut());
                    Ok(BytesResponse::from(response))
                }
                Ok(Err(what)) => Err(failed(what)),
                Err(_) => Err(failed(format!("no answer within {} s", TIME_MAX.as_secs()))),
            }
        })
    }
}

/// Shortens a pause that is longer than [`PAUSE_S_MAX`].
fn bound_pause(headers: &mut HeaderMap) {
    let asked = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    if asked.is_some_and(|seconds| seconds > PAUSE_S_MAX) {
        headers.insert(RETRY_AFTER, HeaderValue::from(PAUSE_S_MAX));
    }
}

/// The part of a URL that a message shows.
fn shown(url: &Uri) -> String {
    url.authority().map_or_else(|| url.to_string(), |authority| authority.to_string())
}

/// Asks one thing on a separate connection. *Errors*: what went wrong, as a part of a sentence.
async fn ask(tls: &ClientTls, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, String> {
    let (mut parts, body) = request.into_parts();
    let url = std::mem::take(&mut parts.uri);
    let Some(authority) = url.authority().filter(|_| url.scheme() == Some(&Scheme::HTTPS)) else {
        return Err("it is no https URL".to_owned());
    };
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(HTTPS_PORT);
    let stream = connect(host, port).await.map_err(|error| error.to_string())?;
    let stream = tls.connect(host, stream).await;
    let stream = stream.map_err(|error| explain(&error).unwrap_or_else(|| error.to_string()))?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = Uri::try_from(path).map_err(|error| error.to_string())?;
    parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?);
    let agent = parts.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    if let Ok(agent) = HeaderValue::from_str(format!("{OWN_NAME} {agent}").trim_end()) {
        parts.headers.insert(USER_AGENT, agent);
    }
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| reasons(&error))?;
    let mut exchange = pin!(async move {
        let response = sender.send_request(Request::from_parts(parts, body)).await.map_err(|error| reasons(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(Response::from_parts(head, Full::new(body.to_bytes())))
    });
    tokio::select! {
        biased;
        answer = &mut exchange => return answer,
        _ = connection => {}
    }
    // What came before the connection ended is still there.
    exchange.await
}

/// An error with its reasons.
fn reasons(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        text.push_str(&format!(": {error}"));
        inner = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(status: u16, value: &str) -> Option<Duration> {
        let pause = AskedPause::default();
        let response = Response::builder().status(status).header(RETRY_AFTER, value).body(Full::default());
        pause.note(&response.expect("a response"));
        pause.take()
    }

    #[test]
    fn refusals_may_ask_for_a_pause() {
        assert_eq!(asked(429, "3600"), Some(Duration::from_secs(3600)));
        assert_eq!(asked(503, " 5 "), Some(Duration::from_secs(5)));
        let in_a_minute = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
        assert!(asked(429, &in_a_minute).is_some_and(|pause| pause <= Duration::from_secs(60)));
        for (status, value) in
            [(200, "5"), (400, "5"), (429, "soon"), (429, "-1"), (429, "Mon, 01 Jan 2001 00:00:00 GMT")]
        {
            assert_eq!(asked(status, value), None, "{status} {value}");
        }
    }

    #[test]
    fn asked_pauses_are_bounded() {
        let bounded = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(value).expect("a value"));
            bound_pause(&mut headers);
            headers[RETRY_AFTER].to_str().expect("text").to_owned()
        };
        let longest = PAUSE_S_MAX.to_string();
        for value in [u64::MAX.to_string(), (i64::MAX as u64).to_string(), format!(" {} ", PAUSE_S_MAX + 1)] {
            assert_eq!(bounded(&value), longest, "{value}");
        }
        for value in [longest.as_str(), "0", "-1", "soon", "", "Fri, 31 Dec 9999 23:59:59 GMT", "99999999999999999999"]
        {
            assert_eq!(bounded(value), value);
        }
        bound_pause(&mut HeaderMap::new());
    }

    #[tokio::test]
    async fn only_https_is_asked() {
        let tls = ClientTls::load(None, None);
        let Ok(tls) = tls else { return };
        for url in ["http://127.0.0.1:1/", "/dir", "ftp://a/"] {
            let request = Request::builder().uri(url).body(BodyWrapper::default()).expect("a request");
            assert_eq!(ask(&tls, request).await.err().as_deref(), Some("it is no https URL"), "{url}");
        }
    }
}
