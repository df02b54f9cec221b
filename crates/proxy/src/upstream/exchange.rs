//! One request to an origin and its response.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::HOST;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::{Body, Incoming};

use super::connect::{addresses_of, connect, connect_in_time};
use super::error::FetchError;
use super::health::ProbeBy;
use super::lease::ConnectionLease;
use super::race::race;
use super::server_limit::ConnectionGrant;
use super::shared::{self, OpenedConnection, StreamUse};
use super::{Destination, IdleConnection, OriginServer, RequestBody, RequestHead, ServerChoice, ServerState, Upstream};
use crate::rules::serve::OriginFailure;
use crate::wire::http1::framing::FramingViolation;
use crate::wire::http1::informational::InformationalResponse;

/// A callback that receives each informational response.
pub(crate) type Hear<'a> = &'a dyn Fn(&InformationalResponse);

/// The maximum number of addresses at which a request is repeated.
const REPEATS_MAX: usize = 3;

/// The longest time for which one more address is waited for before the next is tried, too, after one was silent.
const OTHERS_DELAY_MAX: Duration = Duration::from_secs(5);

/// Sends a request and waits for the head of the final response. `hear` is called for each informational response that
/// arrives before the final one.
///
/// A request that may be repeated is repeated if the connection breaks before the response: on a new connection if it
/// was sent on a kept one, then at the origin's other addresses. If an address does not answer in time, the others are
/// raced. Any other request is sent only once; a kept connection is used for it only if that is known to be alive
/// (RFC 9110, 9.2.2).
pub(crate) async fn exchange(
    upstream: &Rc<Upstream>,
    to: &Destination,
    head: RequestHead,
    body: RequestBody,
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, ConnectionLease), FetchError> {
    match &to.choice {
        Some(choice) => in_turns(upstream, to, choice, (head, body), hear).await,
        None => at_server(upstream, to, head, body, hear, whole_time(to)).await.map_err(|unanswered| unanswered.error),
    }
}

/// A request without an answer.
pub(super) struct UnansweredRequest {
    pub(super) error: FetchError,
    /// The request, if nothing of it was sent.
    pub(super) unsent: Option<Request<RequestBody>>,
}

impl From<FetchError> for UnansweredRequest {
    fn from(error: FetchError) -> UnansweredRequest {
        UnansweredRequest { error, unsent: None }
    }
}

/// Asks the servers of a pool one after the other until one answers. A request that may not be repeated goes to the next
/// server only if nothing of it was sent.
async fn in_turns(
    upstream: &Rc<Upstream>,
    to: &Destination,
    choice: &ServerChoice,
    (mut head, mut body): (RequestHead, RequestBody),
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, ConnectionLease), FetchError> {
    let may_repeat = is_repeatable(&head.method) && body.is_empty();
    let probe_by = if may_repeat { ProbeBy::Request } else { ProbeBy::Connection };
    let pool = &choice.pool;
    pool.wait_until_known(to.rules.times.connect).await;
    let order = pool.order(&upstream.known.health, choice.key_hash, probe_by, Instant::now());
    let name_host = |head: &mut RequestHead, server: &OriginServer| {
        if choice.sends_own_host {
            let host = HeaderValue::from_str(&server.authority).expect("an authority is visible ASCII");
            head.headers.insert(HOST, host);
        }
    };
    if let Some((server, right)) = order.probe {
        let copy = may_repeat.then(|| {
            let mut copy = head.clone();
            name_host(&mut copy, &server);
            copy
        });
        upstream.probe(to.at(&server), copy, right);
    }
    let mut failed = FetchError::Connect("the origin has no server".into());
    let ends = whole_time(to);
    for server in order.servers {
        name_host(&mut head, &server);
        let sent = std::mem::replace(&mut body, RequestBody::Empty);
        let answered = at_server(upstream, &to.at(&server), head.clone(), sent, hear, ends).await;
        let UnansweredRequest { error, unsent } = match answered {
            Ok(answered) => return Ok(answered),
            Err(unanswered) => unanswered,
        };
        let has_other = match &error {
            FetchError::Crowded
            | FetchError::Busy(_)
            | FetchError::Client(_)
            | FetchError::OutOfReach
            | FetchError::Refused(_) => false,
            _ if may_repeat => true,
            error => error.is_of_connecting() && unsent.is_some(),
        };
        body = unsent.map_or(RequestBody::Empty, Request::into_body);
        failed = error;
        if !has_other {
            break;
        }
    }
    Err(failed)
}

impl Upstream {
    /// Records that a server has given a whole response.
    pub(super) fn note_good(&self, to: &Destination) {
        self.known.health.note_success(&to.origin);
        to.state.iter().for_each(|server| server.note_answer(None));
    }

    /// Records that a server has given no response, or not all of one.
    pub(super) fn note_bad(&self, to: &Destination, error: &FetchError) {
        self.known.health.note_failure(&to.origin, error);
        to.state.iter().for_each(|server| server.note_answer(Some(error)));
    }
}

/// When a response that is asked for now must be there.
pub(super) fn whole_time(to: &Destination) -> Option<tokio::time::Instant> {
    to.rules.times.total.map(|total| tokio::time::Instant::now() + total)
}

/// Sends a request to a server, and records whether it works.
pub(super) async fn at_server(
    upstream: &Rc<Upstream>,
    to: &Destination,
    head: RequestHead,
    body: RequestBody,
    hear: Hear<'_>,
    ends: Option<tokio::time::Instant>,
) -> Result<(Response<Incoming>, ConnectionLease), UnansweredRequest> {
    let may_repeat = is_repeatable(&head.method) && body.is_empty();
    let under_way = to.state.as_ref().map(ServerState::begin);
    let is_queued = Cell::new(false);
    let asked = async {
        match to.rules.http2 {
            false => try_addresses(upstream, to, (head, body, None), may_repeat, hear, &is_queued).await,
            true => Box::pin(shared::ask(upstream, to, (head, body), may_repeat, hear, &is_queued)).await,
        }
    };
    let result = match ends {
        None => asked.await,
        Some(ends) => match tokio::time::timeout_at(ends, asked).await {
            Ok(result) => result,
            Err(_) if is_queued.get() => {
                Err(FetchError::Busy("none was free in the time for the whole response".to_owned()).into())
            }
            Err(_) => Err(FetchError::TimedOut("responding").into()),
        },
    };
    let mut result = result.map(|(response, lease)| (response, lease.counted(under_way, ends)));
    match &mut result {
        // A server that breaks bodies off answers no better than one that gives none.
        Ok((response, lease)) if OriginFailure::of(response.status()).is_none() => {
            match response.body().is_end_stream() {
                true => upstream.note_good(to),
                false => lease.unjudged = Some(may_repeat),
            }
        }
        Ok((response, _)) if may_repeat => {
            upstream.known.health.note_error(&to.origin);
            let answer = format_args!("it answered {}", response.status());
            to.state.iter().for_each(|server| server.note_answer(Some(&answer)));
        }
        Err(UnansweredRequest { error, .. }) if error.is_blameless() => {}
        Err(UnansweredRequest { error, .. }) if may_repeat || error.is_of_connecting() => upstream.note_bad(to, error),
        // Whether such a request fails may depend on what its client sends, which says nothing about other requests.
        _ => {}
    }
    result
}

/// Records whether a server accepts connections.
pub(super) fn note_connection<T>(upstream: &Upstream, to: &Destination, connected: &Result<Option<T>, FetchError>) {
    if matches!(connected, Ok(Some(_))) {
        upstream.known.health.note_connected(&to.origin);
    }
    match (&to.state, connected) {
        (None, _) | (_, Ok(None)) => {}
        (_, Err(error)) if error.is_blameless() => {}
        (Some(server), connected) => {
            server.note_connection(connected.as_ref().err().map(|error| error as &dyn std::fmt::Display));
        }
    }
}

/// Whether a request with this method may be sent twice. *Source*: RFC 9110, 9.2.1.
fn is_repeatable(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// Sends a request to a server until one of its addresses answers, first on a connection that has been opened for it, if
/// there is one. `is_queued` says meanwhile whether it waits for a connection, because the server has as many as it may
/// have.
pub(super) async fn try_addresses(
    upstream: &Rc<Upstream>,
    to: &Destination,
    (head, body, mut opened): (RequestHead, RequestBody, Option<IdleConnection>),
    may_repeat: bool,
    hear: Hear<'_>,
    is_queued: &Cell<bool>,
) -> Result<(Response<Incoming>, ConnectionLease), UnansweredRequest> {
    let copy = may_repeat.then(|| head.clone());
    let again = || copy.clone().map(|head| head.with_body(RequestBody::Empty));
    let mut request = Some(head.with_body(body));
    // The addresses that have failed, and the last failure.
    let (mut tried, mut failed) = (Vec::new(), None::<FetchError>);
    // The place of a new connection, if connections to the server are limited.
    let mut place = None;
    loop {
        // What a server with TLS sends after its handshake is not read yet, so a new connection is not asked whether it is
        // quiet.
        let kept = match (opened.take().or_else(|| upstream.take(to, !may_repeat)), &to.limit) {
            (None, Some(limit)) => {
                is_queued.set(true);
                let got = upstream.queues.get(to, limit, &upstream.stats).await;
                is_queued.set(false);
                match got {
                    Ok(ConnectionGrant::Connection(kept)) if kept.may_be_used(!may_repeat) => Some(kept),
                    // It has ended, or is about to.
                    Ok(ConnectionGrant::Connection(_)) => continue,
                    Ok(ConnectionGrant::Place(free)) => {
                        place = Some(free);
                        None
                    }
                    Err(error) => return Err(UnansweredRequest { error, unsent: request }),
                }
            }
            (kept, _) => kept,
        };
        let Some(mut kept) = kept else { break };
        if kept.sender.ready().await.is_err() {
            continue;
        }
        let address = kept.address;
        let Some(sending) = request.take() else { break };
        match send(upstream, to, kept, sending, hear).await {
            SendOutcome::Answered(response, lease) => return Ok((response, lease)),
            SendOutcome::Not(unsent) => request = Some(unsent),
            // The origin had probably closed this kept connection before the request was sent, or had sent bytes that
            // do not answer the request. Try a new connection.
            SendOutcome::Failed(FetchError::Broken(_) | FetchError::Refused(FramingViolation::Unexpected))
                if may_repeat =>
            {
                request = again();
                break;
            }
            SendOutcome::Failed(error @ FetchError::TimedOut(_)) => {
                upstream.note_failure(to, address);
                return Ok(race_others(upstream, to, copy, vec![address], error, hear).await?);
            }
            SendOutcome::Failed(error) | SendOutcome::Unprocessed(error) => return Err(error.into()),
        }
    }
    loop {
        let place = match (place.take(), &to.limit) {
            (None, Some(limit)) => {
                is_queued.set(true);
                let taken = limit.take(&upstream.stats).await;
                is_queued.set(false);
                match taken {
                    Ok(free) => Some(free),
                    Err(error) => return Err(UnansweredRequest { error: failed.unwrap_or(error), unsent: request }),
                }
            }
            (place, _) => place,
        };
        let connected = connect(upstream, to, &tried, place, false).await;
        note_connection(upstream, to, &connected);
        let (fresh, sending) = match (connected, request, failed) {
            (Ok(Some(fresh)), Some(sending), _) => (fresh, sending),
            (_, _, Some(error)) => return Err(error.into()),
            (Err(error), unsent, None) => return Err(UnansweredRequest { error, unsent }),
            (Ok(_), _, None) => return Err(FetchError::Connect("the origin has no address".into()).into()),
        };
        let address = fresh.address;
        let error = match send(upstream, to, fresh, sending, hear).await {
            SendOutcome::Answered(response, lease) => return Ok((response, lease)),
            SendOutcome::Failed(error @ (FetchError::Broken(_) | FetchError::TimedOut(_))) => error,
            SendOutcome::Failed(error) | SendOutcome::Unprocessed(error) => return Err(error.into()),
            SendOutcome::Not(_) => FetchError::Broken("it closed the connection at once".into()),
        };
        upstream.note_failure(to, address);
        tried.push(address);
        if matches!(error, FetchError::TimedOut(_)) {
            return Ok(race_others(upstream, to, copy, tried, error, hear).await?);
        }
        if !may_repeat || tried.len() > REPEATS_MAX {
            return Err(error.into());
        }
        (request, failed) = (again(), Some(error));
    }
}

/// Sends a request at the other addresses of an origin after one has not answered in time, if it may be repeated. They
/// are raced, so that one more that is silent does not double the wait again. If none of them accepts a connection, those
/// that were tried before are tried again, because they may be back.
pub(super) async fn race_others(
    upstream: &Rc<Upstream>,
    to: &Destination,
    head: Option<RequestHead>,
    tried: Vec<SocketAddr>,
    failed: FetchError,
    hear: Hear<'_>,
) -> Result<(Response<Incoming>, ConnectionLease), FetchError> {
    let Some(head) = head else { return Err(failed) };
    let Ok(mut others) = addresses_of(upstream, to, &tried).await else { return Err(failed) };
    others.truncate(REPEATS_MAX);
    if !others.is_empty() {
        others.extend(&tried);
    }
    let (head, tried, has_connected) = (&head, &tried, &Cell::new(false));
    let attempt = |&address: &SocketAddr| async move {
        if has_connected.get() && tried.contains(&address) {
            return Err(FetchError::TimedOut("responding"));
        }
        let connected = connect_in_time(upstream, to, address).await;
        has_connected.set(has_connected.get() || connected.is_ok());
        let error = match connected {
            Err(error) => error,
            Ok(fresh) => {
                let request = head.clone().with_body(RequestBody::Empty);
                match send_on_new(upstream, to, fresh, request, hear).await {
                    SendOutcome::Answered(response, lease) => return Ok((response, lease)),
                    SendOutcome::Failed(error) | SendOutcome::Unprocessed(error) => error,
                    SendOutcome::Not(_) => FetchError::Broken("it closed the connection at once".into()),
                }
            }
        };
        if !matches!(error, FetchError::Crowded | FetchError::Busy(_)) {
            upstream.note_failure(to, address);
        }
        Err(error)
    };
    let delay = (to.rules.times.response / 4).min(OTHERS_DELAY_MAX);
    match race(&others, delay, || false, attempt).await {
        Ok((winner, answered)) => {
            others[..winner].iter().for_each(|&address| upstream.note_failure(to, address));
            Ok(answered)
        }
        // That there was no place for another connection says nothing about the address that did not answer.
        Err(Some(FetchError::Busy(_) | FetchError::Crowded) | None) => Err(failed),
        Err(Some(error)) => Err(error),
    }
}

/// What became of a request.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum SendOutcome {
    /// The origin answered.
    Answered(Response<Incoming>, ConnectionLease),
    /// The origin may have got the request, but has not answered.
    Failed(FetchError),
    /// The origin has got the request, or a part of it, and says that it has done nothing about it.
    Unprocessed(FetchError),
    /// No byte was sent, because the connection had ended.
    Not(Request<RequestBody>),
}

/// Sends a request on a new connection, which nobody else knows, and waits for the head of the response.
pub(super) async fn send_on_new(
    upstream: &Rc<Upstream>,
    to: &Destination,
    connection: OpenedConnection,
    request: Request<RequestBody>,
    hear: Hear<'_>,
) -> SendOutcome {
    match connection {
        OpenedConnection::Alone(connection) => send(upstream, to, connection, request, hear).await,
        OpenedConnection::Shared(connection) => {
            let stream = StreamUse::begin(upstream, to, &connection);
            // The connection ends with the exchange.
            drop(connection);
            Box::pin(shared::send_on(upstream, to, stream, request)).await
        }
    }
}

/// Sends a request on a connection, and waits for the head of the response.
async fn send(
    upstream: &Rc<Upstream>,
    to: &Destination,
    mut connection: IdleConnection,
    request: Request<RequestBody>,
    hear: Hear<'_>,
) -> SendOutcome {
    upstream.stats.origin_requests.add(1);
    connection.watch.begin(request.method() == Method::HEAD);
    let progress = request.body().progress();
    if let Some(progress) = &progress {
        connection.watch.pause_while(progress.is_awaited.clone());
    }
    let mut response = pin!(connection.sender.try_send_request(request));
    let (watch, address) = (connection.watch.clone(), connection.address);
    let begun = Instant::now();
    let mut lease = ConnectionLease::of_one(upstream, to, connection);
    lease.progress = progress;
    let result = poll_fn(|context| {
        let polled = response.as_mut().poll(context);
        watch.poll_informational(context).iter().for_each(hear);
        polled
    })
    .await;
    match result {
        Ok(response) => {
            upstream.known.addresses.note_success(address);
            lease.learn(response.headers());
            lease.head_time = Some(begun.elapsed());
            SendOutcome::Answered(response, lease)
        }
        Err(mut refused) => match refused.take_message() {
            Some(unsent) => SendOutcome::Not(unsent),
            None => match lease.progress.as_ref().and_then(|progress| progress.fault.get()) {
                Some(fault) => SendOutcome::Failed(FetchError::Client(fault)),
                None => SendOutcome::Failed(lease.explain(refused.error())),
            },
        },
    }
}
