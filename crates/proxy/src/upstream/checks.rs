//! Requests that ask whether the servers of an origin work.
//!
//! Owns: when each server is checked, and what passes. One worker checks for all. A check has a new connection, so that a
//! server which accepts no more connections does not pass; it does not count for the limit on connections, so that a busy
//! server passes. It speaks HTTP/2 where requests of clients do. Leaves to others: what follows for the server (`pool`).

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use nectary_host::log::{LogLevel, LogThrottles};

use super::connect::{connect, connect_shared};
use super::exchange::{SendOutcome, send_on_new};
use super::pool::ServerCheck;
use super::shared::OpenedConnection;
use super::{Destination, OriginServer, RequestBody, RequestHead, ServerPool, ServerState, Upstream};

/// What checks are known by in the logs of servers.
const AGENT: HeaderValue = HeaderValue::from_static("nectary-check");

/// The first checks of an origin's servers are spread over this time.
const SPREAD: Duration = Duration::from_millis(500);

/// Limits how often changes are logged, by the origin's name.
static FAILED: LogThrottles = LogThrottles::every(Duration::from_secs(60));
static BACK: LogThrottles = LogThrottles::every(Duration::from_secs(60));

/// Checks the servers of the pools that have a check, until the future is dropped.
pub(crate) async fn check_all(upstream: &Rc<Upstream>, pools: &[Arc<ServerPool>]) {
    let checked = pools.iter().filter_map(|pool| Some((pool, pool.rules.check.as_ref()?)));
    let mut checking: FuturesUnordered<_> = checked.map(|(pool, check)| check_servers(upstream, pool, check)).collect();
    while checking.next().await.is_some() {}
    pending().await
}

/// Checks the servers of a pool, from the moment at which it has them until it no longer does.
async fn check_servers(upstream: &Rc<Upstream>, pool: &Arc<ServerPool>, check: &ServerCheck) {
    let mut sets = pool.follow();
    let mut checked: Vec<Arc<ServerState>> = Vec::new();
    let mut checking = FuturesUnordered::new();
    loop {
        let set = sets.borrow_and_update().clone();
        let is_new = |server: &&Arc<OriginServer>| !checked.iter().any(|state| Arc::ptr_eq(state, &server.state));
        let new: Vec<_> = set.weighted().filter(is_new).cloned().collect();
        let count = new.len();
        for (index, server) in new.into_iter().enumerate() {
            checked.push(server.state.clone());
            let delay = SPREAD.mul_f64(index as f64 / count as f64);
            checking.push(async move {
                tokio::select! {
                    () = keep_checking(upstream, pool, &server, check, delay) => {}
                    () = is_gone(pool, &server) => {}
                }
                server.state.clone()
            });
        }
        tokio::select! {
            changed = sets.changed() => if changed.is_err() { return },
            Some(gone) = checking.next() => checked.retain(|state| !Arc::ptr_eq(state, &gone)),
        }
    }
}

/// Waits until a pool no longer has a server.
async fn is_gone(pool: &ServerPool, server: &OriginServer) {
    let is_same = |other: &Arc<OriginServer>| Arc::ptr_eq(&other.state, &server.state);
    _ = pool.follow().wait_for(|set| !set.all().iter().any(is_same)).await;
}

async fn keep_checking(
    upstream: &Rc<Upstream>,
    pool: &Arc<ServerPool>,
    server: &OriginServer,
    check: &ServerCheck,
    delay: Duration,
) {
    let to = Destination::at_server(pool, server);
    tokio::time::sleep(delay).await;
    let mut rounds = tokio::time::interval(check.interval);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let asked = tokio::time::timeout(check.time, ask(upstream, &to, server, check)).await;
        let failure = match asked {
            Ok(Ok(status)) if passes(check, status) => None,
            Ok(Ok(status)) => Some(format!("GET {} was answered with {}", check.path, status.as_u16())),
            Ok(Err(error)) => Some(error),
            Err(_) => Some(format!("GET {} was not answered in {:?}", check.path, check.time)),
        };
        let was_unhealthy = pool.is_unhealthy(server);
        server.state.note_check(failure.as_ref().map(|failure| failure as &dyn std::fmt::Display));
        if pool.is_unhealthy(server) != was_unhealthy {
            let (name, url) = (&pool.name, server.url());
            match failure {
                None => {
                    let text = format_args!("origin {name}: {url} passes its checks again");
                    BACK.write(name, LogLevel::Note, "proxy", text);
                }
                Some(failure) => FAILED.write(
                    name,
                    LogLevel::Warning,
                    "proxy",
                    format_args!("origin {name}: {url} does not pass its checks and gets no requests: {failure}"),
                ),
            }
        }
    }
}

fn passes(check: &ServerCheck, status: StatusCode) -> bool {
    if check.statuses.is_empty() { status.is_success() } else { check.statuses.contains(&status.as_u16()) }
}

/// Sends the request of a check. *Errors*: a text if there is no answer.
async fn ask(
    upstream: &Rc<Upstream>,
    to: &Destination,
    server: &OriginServer,
    check: &ServerCheck,
) -> Result<StatusCode, String> {
    let host = check.host.as_ref().unwrap_or(&server.authority);
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::from_str(host).map_err(|error| error.to_string())?);
    headers.insert(USER_AGENT, AGENT);
    let head = RequestHead { method: Method::GET, target: check.path.clone(), headers };
    let connected = match to.rules.http2 {
        true => connect_shared(upstream, to, &[], None).await,
        false => connect(upstream, to, &[], None, false).await.map(|found| found.map(OpenedConnection::Alone)),
    };
    let connection = connected.map_err(|error| error.to_string())?.ok_or("the server has no address")?;
    match send_on_new(upstream, to, connection, head.with_body(RequestBody::Empty), &|_| ()).await {
        // Nobody needs the body, so the connection ends with it.
        SendOutcome::Answered(response, _lease) => Ok(response.status()),
        SendOutcome::Failed(error) | SendOutcome::Unprocessed(error) => Err(error.to_string()),
        SendOutcome::Not(_) => Err("it closed the connection at once".to_owned()),
    }
}
