//! The two connections of a session to its server: bulk for calls, control for renewals and tokens.
//!
//! Owns: connecting, the greeting, reading answers, renewing the lease, and reconnecting. Promises: a renewal never
//! waits behind a call; the pauses between attempts to connect are between [`RETRY_MIN`] and [`RETRY_MAX`]; no message of
//! a server is used after a newer server has answered a greeting. Leaves to others: calls without an answer (`calls`).
//!
//! If there are several servers, all are greeted at once, and the first answer counts: only the leader answers, under
//! its lease. A leader that answers no renewal for a while may have lost its lease, so all are greeted then.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use nectary_host::log::{LogLevel, LogThrottle, write as log};
use nectary_host::tls::explain;
use tokio::io::{BufReader, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::calls::{
    CallAnswer, ClientOptions, ConnectionTrouble, FileGrant, ListedToKeep, LookupAnswer, ServerEvent, SharedSession,
    WelcomeAnswer, is_of_write,
};
use super::error::Error;
pub use crate::net::ServerAddress;
use crate::net::{self, Stream};
use crate::protocol::{RefusalCode, ServerRefusal, VERSIONS, VolumeMessage, versions_differ};
use crate::tokens::RecallReason;
use crate::wire::{FrameReader, MessageReadError, read_message, write_all};

/// The first pause between two attempts to connect.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to connect.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The longest pause, and the longest wait for an answer to a greeting, if there are several servers.
const OTHERS_RETRY_MAX: Duration = Duration::from_millis(500);
const OTHERS_GREETING_MAX: Duration = Duration::from_secs(1);
/// The time between two log lines about connections that break.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The number of renewals during the length of a lease.
const RENEWALS_OF_LEASE: u32 = 5;
/// After this many renewals in a row without an answer, the other servers are greeted.
const UNANSWERED_MAX: u32 = 2;

fn no_server(server: &ServerAddress, problem: impl ToString) -> Error {
    Error::Server { server: server.to_string(), problem: problem.to_string() }
}

/// Why a greeting led to no connection.
enum GreetingFailure {
    /// The server refused it.
    Refused(ServerRefusal),
    /// There is no answer that can be used; the flag says whether the server could be reached.
    Problem(Error, bool),
}

/// Greets all servers at once; returns the connection to the first one that welcomes this client.
async fn greet(inner: &SharedSession, role: u8) -> Result<(Stream, WelcomeAnswer), GreetingFailure> {
    let [server] = &*inner.options.servers else { return greet_all(inner, role).await };
    greet_one(inner, role, server).await
}

async fn greet_all(inner: &SharedSession, role: u8) -> Result<(Stream, WelcomeAnswer), GreetingFailure> {
    let greetings = inner.options.servers.iter().map(async |server| {
        let late = || GreetingFailure::Problem(no_server(server, "it did not answer within 1 s"), true);
        let greeted = timeout(OTHERS_GREETING_MAX, greet_one(inner, role, server)).await;
        greeted.unwrap_or_else(|_| Err(late()))
    });
    let mut greetings: FuturesUnordered<_> = greetings.collect();
    let (mut problems, mut is_any_reachable) = (Vec::new(), false);
    while let Some(greeted) = greetings.next().await {
        match greeted {
            Ok(connected) => return Ok(connected),
            Err(GreetingFailure::Refused(failure)) => return Err(GreetingFailure::Refused(failure)),
            Err(GreetingFailure::Problem(Error::Server { server, problem }, is_reachable)) => {
                problems.push(format!("{server}: {problem}"));
                is_any_reachable |= is_reachable;
            }
            Err(GreetingFailure::Problem(error, is_reachable)) => {
                problems.push(error.to_string());
                is_any_reachable |= is_reachable;
            }
        }
    }
    let problem = format!("none of them leads ({})", problems.join("; "));
    Err(GreetingFailure::Problem(Error::Server { server: inner.servers(), problem }, is_any_reachable))
}

/// Connects to a server and sends the greeting.
async fn greet_one(
    inner: &SharedSession,
    role: u8,
    server: &ServerAddress,
) -> Result<(Stream, WelcomeAnswer), GreetingFailure> {
    let options = &inner.options;
    let stream = net::connect(server, options.tls.as_ref()).await;
    let stream = stream.map_err(|error| {
        let is_reachable = explain(&error).is_some();
        GreetingFailure::Problem(no_server(server, connect_problem(options, &error)), is_reachable)
    })?;
    say_hello(inner, role, server, stream).await
}

/// Sends the greeting on a connection, and reads its answer.
async fn say_hello(
    inner: &SharedSession,
    role: u8,
    server: &ServerAddress,
    mut stream: Stream,
) -> Result<(Stream, WelcomeAnswer), GreetingFailure> {
    let options = &inner.options;
    let problem = |problem: String| GreetingFailure::Problem(no_server(server, problem), true);
    let hello = VolumeMessage::Hello(crate::protocol::HelloMessage {
        role,
        volume: options.volume.0,
        host: options.host.clone(),
        session: inner.state().session,
        incarnation: inner.incarnation,
        kind: options.kind,
        machine: inner.origin.machine,
        boot: inner.origin.boot(),
        connection: inner.next_connection(),
    });
    let talk = async {
        net::write_frames(&mut stream, &hello.encode(0, 0)).await?;
        read_message(&mut stream).await.map_err(std::io::Error::from)
    };
    let answer = timeout(net::HELLO_TIME_MAX, talk).await;
    let answer = answer.map_err(|_| problem("it did not answer within 10 s".to_owned()))?;
    match answer.map_err(|error| problem(greeting_problem(&error)))? {
        // A server of an older epoch has lost its lease, or is about to notice that.
        Some((header, VolumeMessage::Welcome { .. } | VolumeMessage::Failure(_))) if !inner.is_newest(header.epoch) => {
            Err(problem(format!("it serves epoch {}, which another server has ended", header.epoch)))
        }
        Some((header, VolumeMessage::Welcome { session, lease_ms, server_ns, .. })) => {
            inner.welcomed(header.epoch, server);
            let lease = Duration::from_millis(lease_ms.into());
            let server_ns = i64::try_from(server_ns).unwrap_or(i64::MAX);
            Ok((stream, WelcomeAnswer { session, epoch: header.epoch, lease, server_ns }))
        }
        Some((_, VolumeMessage::Failure(failure))) if failure.code == RefusalCode::Version => {
            Err(problem(failure.words))
        }
        Some((_, VolumeMessage::OtherVersion { least, most })) => {
            Err(problem(versions_differ(&(least..=most), &VERSIONS)))
        }
        Some((_, VolumeMessage::Failure(failure))) => Err(GreetingFailure::Refused(failure)),
        Some(_) => Err(problem("its answer to the greeting is none".to_owned())),
        None => Err(problem(closed_problem())),
    }
}

/// Explains a connection that the server closed: servers of version 1 do so when they get a greeting of another
/// version.
fn closed_problem() -> String {
    format!(
        "it closed the connection: it wants TLS (--tls-ca), or it is no server of a volume, or one of an older nectary \
         than this one, which speaks version {} of the protocol: use the same release of nectary on both hosts",
        VERSIONS.end()
    )
}

fn greeting_problem(error: &std::io::Error) -> String {
    match error.kind() {
        // A server that requires TLS answers a client without TLS with fewer bytes than any message has.
        std::io::ErrorKind::UnexpectedEof => closed_problem(),
        _ => explain(error).unwrap_or_else(|| error.to_string()),
    }
}

fn connect_problem(options: &ClientOptions, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => {
            format!("{error}: no server listens there; start it with `nectary volume serve DISK --listen ADDR`")
        }
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset if options.tls.is_some() => {
            format!("it ended the TLS handshake ({error}): see whether it serves with --tls-cert")
        }
        _ => explain(error).unwrap_or_else(|| error.to_string()),
    }
}

/// Makes the first bulk connection, which begins the session.
pub(super) async fn open_bulk(inner: &SharedSession) -> Result<(Stream, WelcomeAnswer), Error> {
    greet(inner, ROLE_BULK).await.map_err(|refused| match refused {
        GreetingFailure::Refused(failure) if failure.code == RefusalCode::WrongVolume => {
            let problem = "it serves another volume than the one on DISK here: check DISK and the address; `nectary \
                           volume info DISK`, and `nectary status --verbose` on its host, show the volumes' identities";
            Error::Server { server: inner.servers(), problem: problem.to_owned() }
        }
        GreetingFailure::Refused(failure) => Error::Refused(failure),
        GreetingFailure::Problem(error, _) => error,
    })
}

const ROLE_CONTROL: u8 = 1;
const ROLE_BULK: u8 = 2;

/// Why a connection ended.
enum ConnectionLoss {
    /// It broke, or the server closed it without a reason.
    Broken(String),
    /// The server said why: a request is refused, or the server cannot serve any.
    Said(String),
    /// A newer server has answered a greeting.
    Replaced,
}

/// The words for a connection whose server was replaced.
const REPLACED: &str = "another server leads now";

/// The pauses between connections. They grow while connections break soon.
struct ReconnectPauses {
    next: Duration,
    since: Instant,
}

impl ReconnectPauses {
    fn new() -> ReconnectPauses {
        ReconnectPauses { next: RETRY_MIN, since: Instant::now() }
    }

    /// A connection is made.
    fn connected(&mut self) {
        self.since = Instant::now();
    }

    /// A connection is lost; returns the pause before the next one.
    fn lost(&mut self) -> Duration {
        let pause = if self.since.elapsed() > RETRY_MAX { RETRY_MIN } else { self.next };
        self.next = (pause * 2).min(RETRY_MAX);
        pause
    }
}

/// Keeps a bulk connection, beginning with the first one.
pub(super) async fn keep_bulk(inner: &Arc<SharedSession>, first: (Stream, WelcomeAnswer)) {
    static LOST: LogThrottle = LogThrottle::every(LOG_INTERVAL);
    let mut pauses = ReconnectPauses::new();
    let mut next = Some(first);
    loop {
        let (stream, welcomed) = match next.take() {
            Some(first) => first,
            None => match reconnect(inner, ROLE_BULK).await {
                Some(connected) => connected,
                None => return,
            },
        };
        let (reader, writer) = split(stream);
        let mut reader = BufReader::new(reader);
        let (frames, to_write) = mpsc::unbounded_channel();
        if inner.connected(&welcomed, frames) {
            pauses = ReconnectPauses::new();
        }
        pauses.connected();
        let lost = tokio::select! {
            biased;
            () = inner.replaced(welcomed.epoch) => ConnectionLoss::Replaced,
            lost = read_answers(inner, &mut reader, welcomed.epoch) => lost,
            () = write_all(writer, to_write, None) => ConnectionLoss::Broken("it takes nothing any more".to_owned()),
        };
        if *inner.ended.borrow() {
            return;
        }
        let (what, is_broken, pause) = match lost {
            ConnectionLoss::Broken(problem) => (problem, true, pauses.lost()),
            ConnectionLoss::Said(problem) => (problem, false, RETRY_MIN),
            ConnectionLoss::Replaced => (REPLACED.to_owned(), false, Duration::ZERO),
        };
        LOST.write(LogLevel::Warning, "volume", format_args!("{}: {what}; connecting again", inner.server()));
        inner.disconnected(ConnectionTrouble { what, is_reachable: true }, is_broken);
        // The connection is closed before the pause: the server waits for that.
        drop(reader);
        sleep(pause).await;
    }
}

async fn read_answers(inner: &SharedSession, reader: &mut FrameReader, epoch: u64) -> ConnectionLoss {
    loop {
        match read_message(reader).await {
            Ok(Some(_)) if !inner.is_newest(epoch) => return ConnectionLoss::Replaced,
            Ok(Some((header, _))) if header.epoch != epoch => {
                return ConnectionLoss::Broken(other_epoch(header.epoch, epoch));
            }
            Ok(Some((header, VolumeMessage::Answer(answer)))) => {
                inner.answered(header.request, Ok(CallAnswer::Answer(answer)))
            }
            Ok(Some((header, VolumeMessage::Looked { names, attributes, found }))) => {
                let looked = LookupAnswer { is_name_kept: names != 0, are_attributes_kept: attributes != 0, found };
                inner.answered(header.request, Ok(CallAnswer::Looked(looked)));
            }
            Ok(Some((header, VolumeMessage::Listed { grant, names, are_kept, is_end }))) => {
                let listed = ListedToKeep { are_names_kept: grant != 0, names, are_kept, is_end };
                inner.answered(header.request, Ok(CallAnswer::Listed(listed)));
            }
            Ok(Some((header, VolumeMessage::Early { now_ns, stored }))) => {
                inner.is_early(header.request, now_ns, stored)
            }
            Ok(Some((header, VolumeMessage::MayKeep(may_keep)))) => inner.may_keep(header.request, may_keep),
            Ok(Some((header, VolumeMessage::LockFound { lock }))) => {
                inner.answered(header.request, Ok(CallAnswer::Found(lock)))
            }
            Ok(Some((header, VolumeMessage::Grant { held, is_watched, shape, .. }))) => {
                inner.answered(header.request, Ok(CallAnswer::Granted(FileGrant { held, epoch, is_watched, shape })));
            }
            Ok(Some((_, VolumeMessage::Failure(failure))))
                if matches!(failure.code, RefusalCode::OldEpoch | RefusalCode::NotLeader | RefusalCode::Grace) =>
            {
                // All calls without an answer are sent again on the next connection.
                sleep(RETRY_MIN).await;
                return ConnectionLoss::Said(failure.to_string());
            }
            Ok(Some((header, VolumeMessage::Failure(failure)))) if failure.code == RefusalCode::Malformed => {
                // The calls that were sent later are not done on this connection.
                let what = format!("it refused a call ({})", failure.words);
                inner.refuse(header.request, failure);
                return ConnectionLoss::Said(what);
            }
            Ok(Some((header, VolumeMessage::Failure(failure)))) => inner.answered(header.request, Err(failure)),
            Ok(Some((_, VolumeMessage::Evicted { words, .. }))) => inner.end(&words),
            Ok(Some(_)) => return ConnectionLoss::Broken("it sent a message that does not belong here".to_owned()),
            Ok(None) => return ConnectionLoss::Broken("the server closed the connection".to_owned()),
            Err(MessageReadError::Stream(error)) => return ConnectionLoss::Broken(error.to_string()),
            Err(MessageReadError::Message { request, problem }) => {
                inner.unreadable(request, &problem);
                return ConnectionLoss::Said(format!("an answer cannot be read ({problem})"));
            }
        }
    }
}

/// The problem with a message of another epoch than that of its connection.
fn other_epoch(found: u64, expected: u64) -> String {
    format!("it sent a message of epoch {found} on a connection of epoch {expected}")
}

/// Tries to connect until it succeeds. `None`: the session has ended.
async fn reconnect(inner: &SharedSession, role: u8) -> Option<(Stream, WelcomeAnswer)> {
    let mut pause = RETRY_MIN;
    let pause_max = if inner.options.servers.len() > 1 { OTHERS_RETRY_MAX } else { RETRY_MAX };
    loop {
        if *inner.ended.borrow() {
            return None;
        }
        let trouble = match greet(inner, role).await {
            Ok(connected) => return Some(connected),
            Err(GreetingFailure::Refused(failure)) if failure.code == RefusalCode::Ended => {
                if role == ROLE_BULK || !inner.state().is_leaving {
                    log(LogLevel::Error, "volume", format_args!("{}: {}", inner.server(), failure.words));
                    inner.end(&failure.words);
                }
                return None;
            }
            Err(GreetingFailure::Refused(failure)) => {
                ConnectionTrouble { what: failure.to_string(), is_reachable: true }
            }
            // The server is named beside it.
            Err(GreetingFailure::Problem(Error::Server { problem, .. }, is_reachable)) => {
                ConnectionTrouble { what: problem, is_reachable }
            }
            Err(GreetingFailure::Problem(error, is_reachable)) => {
                ConnectionTrouble { what: error.to_string(), is_reachable }
            }
        };
        let what = format!("{}; the next attempt is in {} ms", trouble.what, pause.as_millis());
        let trouble = ConnectionTrouble { what, ..trouble };
        match role {
            ROLE_BULK => inner.disconnected(trouble, false),
            _ => inner.state().control_trouble = Some(trouble),
        }
        // The pauses are random, so that not all mounts reconnect at the same time.
        let jitter = Duration::from_nanos(u64::from(inner.incarnation[0]) * pause.as_nanos() as u64 / 1024);
        sleep(pause + jitter).await;
        pause = (pause * 2).min(pause_max);
    }
}

/// Keeps a control connection, for renewals and the server's requests.
pub(super) async fn keep_control(inner: &Arc<SharedSession>) {
    static LOST: LogThrottle = LogThrottle::every(LOG_INTERVAL);
    let mut pauses = ReconnectPauses::new();
    while !*inner.ended.borrow() {
        let Some((stream, welcomed)) = reconnect(inner, ROLE_CONTROL).await else { return };
        let (reader, writer) = split(stream);
        let mut reader = BufReader::new(reader);
        let (frames, to_write) = mpsc::unbounded_channel();
        inner.forget_renewals();
        inner.controlled(Some(frames.clone()));
        pauses.connected();
        let lost = tokio::select! {
            biased;
            () = inner.replaced(welcomed.epoch) => ConnectionLoss::Replaced,
            problem = hear(inner, &mut reader, welcomed.epoch) => ConnectionLoss::Broken(problem),
            problem = renew(inner, &frames, welcomed.lease) => ConnectionLoss::Said(problem),
            () = write_all(writer, to_write, None) => ConnectionLoss::Broken("it takes nothing any more".to_owned()),
        };
        inner.controlled(None);
        drop(reader);
        if *inner.ended.borrow() {
            return;
        }
        let (problem, pause) = match lost {
            ConnectionLoss::Broken(problem) => (problem, pauses.lost()),
            ConnectionLoss::Said(problem) => (problem, Duration::ZERO),
            ConnectionLoss::Replaced => (REPLACED.to_owned(), Duration::ZERO),
        };
        sleep(pause).await;
        // If the server is gone, the bulk connection says so.
        let mut state = inner.state();
        if state.bulk.is_some() {
            let what = format!("the connection that renews the lease broke: {problem}");
            let server = state.server.as_ref().map(ServerAddress::to_string).unwrap_or_default();
            LOST.write(LogLevel::Warning, "volume", format_args!("{server}: {what}"));
            state.control_trouble = Some(ConnectionTrouble { what, is_reachable: true });
        }
    }
}

/// Renews the lease until the connection takes nothing any more, or until another server should be looked for. Returns
/// why it ended.
async fn renew(inner: &SharedSession, frames: &mpsc::UnboundedSender<Vec<u8>>, lease: Duration) -> String {
    loop {
        let unanswered = Duration::from_nanos(inner.unanswered_ns());
        if unanswered > lease * UNANSWERED_MAX / RENEWALS_OF_LEASE {
            let what = format!("it has answered no renewal for {} ms", unanswered.as_millis());
            if inner.options.servers.len() > 1 {
                return what;
            }
            inner.unanswered(what);
        }
        let (session, epoch) = {
            let state = inner.state();
            (state.session, state.epoch)
        };
        let sent_ns = inner.elapsed_ns();
        let acknowledged = inner.acknowledge(sent_ns);
        let message = VolumeMessage::Renew { session, sent_ns, acknowledged, drained: inner.drained() };
        if frames.send(message.encode(0, epoch)).is_err() {
            return "it takes nothing any more".to_owned();
        }
        let _ = timeout(lease / RENEWALS_OF_LEASE, inner.nudge.notified()).await;
    }
}

/// Reads the server's messages until the connection ends; returns why it ended.
async fn hear(inner: &SharedSession, reader: &mut FrameReader, epoch: u64) -> String {
    loop {
        match read_message(reader).await {
            Ok(Some(_)) if !inner.is_newest(epoch) => return REPLACED.to_owned(),
            Ok(Some((header, _))) if header.epoch != epoch => return other_epoch(header.epoch, epoch),
            Ok(Some((_, VolumeMessage::Renewed { sent_ns, lease_ms, server_ns, sequence, stored }))) => {
                inner.heard(sent_ns);
                // The answer repeats the time of the renewal, so a time in the future is wrong.
                let sent = Duration::from_nanos(sent_ns.min(inner.elapsed_ns()));
                let server_ns = i64::try_from(server_ns).unwrap_or(i64::MAX);
                inner.renewed(sent, Duration::from_millis(lease_ms.into()), server_ns, (sequence, stored));
            }
            Ok(Some((_, VolumeMessage::Grant { held, .. }))) => inner.got_directory(held, epoch),
            Ok(Some((_, VolumeMessage::Recall { held, .. }))) if is_of_write(&held) => inner.return_directory(held),
            Ok(Some((_, VolumeMessage::Recall { held, why }))) => {
                let why = if why == RecallReason::Commit as u8 { RecallReason::Commit } else { RecallReason::Conflict };
                let _ = inner.events.send(ServerEvent::Recalled(held, why));
            }
            Ok(Some((_, VolumeMessage::NameChange { directory, number, name }))) => {
                let _ = inner.events.send(ServerEvent::NameChange(directory, name, number));
            }
            Ok(Some((_, VolumeMessage::Push { file, size, number }))) => {
                let _ = inner.events.send(ServerEvent::Push(file, size, number));
            }
            Ok(Some((_, VolumeMessage::Evicted { words, .. }))) => {
                inner.end(&words);
                return words;
            }
            Ok(Some((_, VolumeMessage::Failure(failure)))) => {
                if failure.code == RefusalCode::Ended && !inner.state().is_leaving {
                    inner.end(&failure.words);
                }
                return failure.to_string();
            }
            Ok(Some(_)) => return "it sent a message that does not belong here".to_owned(),
            Ok(None) => return "the server closed the connection".to_owned(),
            Err(error) => return std::io::Error::from(error).to_string(),
        }
    }
}
