//! A session whose server is this test: what it answers itself, and which words of the server say that something is
//! durable.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use super::super::{CallAnswer, CallShare, ClientOptions, PendingCall, WelcomeAnswer};
use super::*;
use crate::format::VolumeIdentity;
use crate::net::ServerAddress;
use crate::origin::ProcessOrigin;
use crate::protocol::{RefusalCode, ServerAnswer, ServerRefusal};

const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };
const ABOVE: FileId = FileId { inode: 1, generation: 1 };
const LEASE: Duration = Duration::from_secs(60);
const FIRST_NUMBER: u64 = 100;

fn new(kind: u32) -> NewInode {
    NewInode { mode: kind | 0o755, ..NewInode::default() }
}

/// A session that holds a directory, of which it knows all names.
struct Alone {
    inner: Arc<SharedSession>,
    /// What it sends and what it says to itself, which nobody reads.
    _unread: (mpsc::UnboundedReceiver<Vec<u8>>, mpsc::UnboundedReceiver<ServerEvent>),
}

impl Alone {
    fn new() -> Alone {
        let (events, heard) = mpsc::unbounded_channel();
        let server = ServerAddress::Unix("nowhere".into());
        let options = ClientOptions {
            servers: vec![server.clone()],
            tls: None,
            volume: VolumeIdentity([7; 16]),
            host: "here".to_owned(),
            kind: 2,
            are_names_synced: false,
            are_names_local: true,
        };
        let inner = Arc::new(SharedSession::new(options, ([1; 16], ProcessOrigin::default()), events));
        let (frames, sent) = mpsc::unbounded_channel();
        assert!(inner.welcomed(1, &server));
        inner.connected(&WelcomeAnswer { session: 1, epoch: 1, lease: LEASE, server_ns: wall_ns() }, frames);
        inner.renewed(Duration::from_nanos(inner.elapsed_ns()), LEASE, wall_ns(), (0, 0));
        let changing = inner.looks.changing(&new(libc::S_IFDIR).operation(ABOVE, b"d", false));
        let inode = Inode { mode: libc::S_IFDIR | 0o755, links: 2, generation: 1, ..Inode::default() };
        let attributes = vec![InodeAttributes { number: DIRECTORY.inode, inode }];
        changing.end_with(MayKeep { directories: vec![DIRECTORY], attributes }, Some(DIRECTORY));
        let token = Token { object: DIRECTORY, what: TokenAspect::Directory };
        inner.got_directory(TokenGrant { token, level: WRITE, sequence: 1 }, 1);
        inner.state().local.add_numbers(FIRST_NUMBER, 4096);
        Alone { inner, _unread: (sent, heard) }
    }

    fn make(&self, name: &str, open: bool) -> LocalOutcome<InodeAttributes> {
        self.inner.create_locally(DIRECTORY, name.as_bytes(), &new(libc::S_IFREG), open)
    }

    /// Makes so many files; returns the request of the first.
    fn make_all(&self, names: std::ops::Range<u64>) -> u64 {
        let first = self.inner.state().next_request;
        for name in names {
            assert!(matches!(self.make(&name.to_string(), false), LocalOutcome::Done(_)), "{name}");
        }
        first
    }

    fn unstored(&self) -> usize {
        self.inner.state().unstored.count()
    }

    /// Sends an operation that the server is to do; returns its request.
    fn operate(&self) -> u64 {
        let turn = self.inner.turns[CallShare::Operations as usize].clone().try_acquire_owned().expect("one is left");
        let mut state = self.inner.state();
        let (number, request) = (state.next_number, state.next_request);
        (state.next_number, state.next_request) = (number + 1, request + 1);
        state.open_numbers.insert(number);
        let operation = new(libc::S_IFDIR).operation(DIRECTORY, b"directory", false);
        let message = VolumeMessage::Operation { session: 1, number, terms: AnswerTerms::Early, operation };
        let call = PendingCall::new(message, CallShare::Operations, oneshot::channel().0, turn);
        let waiting = PendingCall { number: Some(number), ..call };
        state.waiting.insert(request, waiting);
        request
    }

    /// The server answers a request.
    fn answer(&self, request: u64, answer: Result<ServerAnswer, RefusalCode>) {
        let answer = answer.map_err(|code| ServerRefusal { code, errno: libc::EIO, words: String::new() });
        self.inner.answered(request, answer.map(CallAnswer::Answer));
    }
}

/// The token of a file is used ahead only while the directory is held in which the session has made it, and is requested
/// between its creation and the return of the directory, also on a new connection.
#[test]
fn tokens_ahead_precede_directory_return() {
    let alone = Alone::new();
    let LocalOutcome::Done(made) = alone.make("a", true) else { panic!("it may make names") };
    let LocalOutcome::Done(gone) = alone.make("b", true) else { panic!("it may make names") };
    assert!(matches!(alone.inner.unlink_locally(DIRECTORY, b"b"), LocalOutcome::Done(_)));
    let other = FileId { inode: 50, generation: 1 };
    assert!(alone.inner.acquire_ahead(other).is_none(), "others may know it");
    assert!(alone.inner.acquire_ahead(gone.id()).is_none(), "it does not go along any more");
    let answer = alone.inner.acquire_ahead(made.id()).expect("nobody else knows it");
    let token = Token { object: DIRECTORY, what: TokenAspect::Directory };
    alone.inner.return_directory(TokenGrant { token, level: level::READ, sequence: 1 });
    assert!(alone.inner.acquire_ahead(made.id()).is_none(), "the directory is returned");
    let (frames, mut sent) = mpsc::unbounded_channel();
    let welcome = WelcomeAnswer { session: 1, epoch: 1, lease: LEASE, server_ns: wall_ns() };
    alone.inner.connected(&welcome, frames);
    let kinds: Vec<&str> = std::iter::from_fn(|| sent.try_recv().ok())
        .map(|frame| match VolumeMessage::decode(&frame).expect("its own words").1 {
            VolumeMessage::Operation { .. } => "operation",
            VolumeMessage::Acquire { token, level: level::WRITE, .. } if token.object == made.id() => "acquire",
            VolumeMessage::Return { .. } => "return",
            VolumeMessage::Question { .. } => "open",
            _ => "other",
        })
        .collect();
    // The open file is told before the return, too.
    assert_eq!(kinds.iter().filter(|kind| **kind == "operation").count(), 3, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "acquire").count(), 1, "{kinds:?}");
    let at = |wanted: &str| kinds.iter().position(|kind| *kind == wanted).expect("it is sent");
    assert!(at("operation") < at("acquire") && at("acquire") < at("return"), "{kinds:?}");
    drop(answer);
    // While a newer server is known, and past the lease, nothing is used ahead.
    let later = Alone::new();
    let LocalOutcome::Done(made) = later.make("a", true) else { panic!("it may make names") };
    later.inner.welcomed(2, &ServerAddress::Unix("elsewhere".into()));
    assert!(later.inner.acquire_ahead(made.id()).is_none());
}

#[test]
fn operations_stay_until_said_durable() {
    let alone = Alone::new();
    let first = alone.make_all(0..10);
    assert_eq!(alone.unstored(), 10);
    // The answer to one of these.
    alone.answer(first + 2, Ok(ServerAnswer::Done));
    assert_eq!(alone.unstored(), 7, "those up to the third one are durable");
    alone.answer(first + 1, Ok(ServerAnswer::Done));
    assert_eq!(alone.unstored(), 7);
    // The control connection.
    alone.inner.renewed(Duration::from_nanos(alone.inner.elapsed_ns()), LEASE, wall_ns(), (0, 4));
    assert_eq!(alone.unstored(), 6);
    // An operation that is answered early: what came before it may be as little durable as it.
    let early = alone.operate();
    alone.inner.is_early(early, wall_ns(), 5);
    assert_eq!(alone.unstored(), 5, "the notice says what is durable");
    alone.answer(early, Ok(ServerAnswer::Done));
    assert_eq!(alone.unstored(), 6);
    // One that the server did not do, and one that it has refused: a refusal is durable.
    let other = alone.operate();
    alone.answer(other, Err(RefusalCode::Limit));
    assert_eq!(alone.unstored(), 6);
    let refused = alone.operate();
    alone.answer(refused, Err(RefusalCode::Posix));
    assert_eq!(alone.unstored(), 0);
    assert_eq!(alone.inner.state().acknowledged(), 13, "and all may be forgotten");
}

#[test]
fn refused_repetition_ends_session() {
    let alone = Alone::new();
    let first = alone.make_all(0..3);
    alone.answer(first, Err(RefusalCode::OutOfOrder));
    let figures = alone.inner.state().figures.clone();
    assert_eq!((figures.lost, figures.ended.is_some()), (3, true));
    assert!(matches!(alone.make("more", false), LocalOutcome::AtServer));
}

#[test]
fn unanswered_opens_count_among_operations() {
    let alone = Alone::new();
    let mut made = 0;
    // Before an open file loses its name, the server is told that it is open.
    let is_later = loop {
        let name = made.to_string();
        match alone.make(&name, true) {
            LocalOutcome::Done(_) => {}
            other => break matches!(other, LocalOutcome::Later),
        }
        match alone.inner.unlink_locally(DIRECTORY, name.as_bytes()) {
            LocalOutcome::Done(_) => {}
            other => break matches!(other, LocalOutcome::Later),
        }
        made += 1;
    };
    let (unstored, telling) = (alone.unstored(), alone.inner.state().local.telling.len());
    assert!(is_later && telling as u64 >= made && made > 100, "{made}: {unstored} and {telling}");
    assert!((UNSTORED_MAX..UNSTORED_MAX + 2).contains(&(unstored + telling)), "{unstored} and {telling}");
    // A call that waits for this goes on with the answers.
    let told: Vec<u64> = alone.inner.state().local.telling.keys().copied().collect();
    for request in told {
        let mut progressed = pin!(alone.inner.progressed.notified());
        progressed.as_mut().enable();
        alone.answer(request, Ok(ServerAnswer::Done));
        assert!(progressed.now_or_never().is_some(), "it is woken");
    }
    assert!(matches!(alone.make("next", true), LocalOutcome::Done(_)));
}

/// A lock that was granted, or bytes that were read, count no more when the server has ended the session.
#[test]
fn lease_ends_with_session() {
    let alone = Alone::new();
    let renew = || alone.inner.renewed(Duration::from_nanos(alone.inner.elapsed_ns()), LEASE, wall_ns(), (0, 0));
    assert!(alone.inner.may_begin());
    alone.inner.end("others need what it holds");
    assert!(!alone.inner.may_begin());
    renew();
    let until = [&alone.inner.io_until_ns, &alone.inner.lease_until_ns]
        .map(|until| until.load(std::sync::atomic::Ordering::Acquire));
    assert_eq!(until, [0, 0], "a late answer to a renewal");
}
