//! The reuse of freed blocks and segments, the choice of a session's valid connection, and room for connections.

use std::sync::atomic::Ordering as AtomicOrdering;
use std::time::Duration;

use nectary_block::{FileDevice, OpenOptions};
use tokio::sync::oneshot;

use super::*;
use crate::format::{EpochRecord, EpochState, ExtentState, Identity, Key, Session, SessionState, Space, Table};
use crate::journal;
use crate::metadata::first;
use crate::protocol::{Code, Locked, Mapped, Token, What};
use crate::server::locking::Wish;
use crate::tokens::level;

pub(super) const ROOT: FileId = FileId { inode: 1, generation: 1 };
const DISK_BYTES: u64 = 512 << 20;

async fn owner() -> (Owner, Arc<Shared>, DiskPulse) {
    lead(&volume("owner").await, 0, false).await
}

/// Becomes leader of a volume as the server with this number, on a separate host.
async fn lead(device: &SharedDevice, number: u32, previous_gone: bool) -> (Owner, Arc<Shared>, DiskPulse) {
    let options = ServerOptions {
        listen: Vec::new(),
        tls: None,
        number,
        host: format!("h{number}"),
        previous_gone,
        said_gone: Vec::new(),
    };
    Owner::start(device.clone(), &options).await.expect("it starts")
}

async fn volume(name: &str) -> SharedDevice {
    volume_of(name, DISK_BYTES).await
}

/// A new volume on a file without a name.
pub(super) async fn volume_of(name: &str, bytes: u64) -> SharedDevice {
    let path = std::env::temp_dir().join(format!("nectary-volume-{name}-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("it is made");
    let device = FileDevice::open_file(&path, &OpenOptions::default()).await.expect("it opens");
    let device: SharedDevice = Arc::new(device);
    std::fs::remove_file(&path).expect("it is removed");
    let options = journal::FormatOptions {
        name: String::new(),
        segment_blocks: 2048,
        lease_ms: 1000,
        drift_per_mille: 10,
        force: false,
        volume: Identity([7; 16]),
        hash_key: [3; 16],
        created_s: 1,
    };
    journal::format(&device, &options, |layout| first(layout, 1)).await.expect("it is formatted");
    device
}

pub(super) fn begin(owner: &mut Owner, incarnation: u8) -> u64 {
    let session = Session {
        incarnation: [incarnation; 16],
        state: SessionState::Active,
        kind: 1,
        flags: 0,
        lease_ms: 1000,
        acknowledged: 0,
        machine: 0,
        boot: 0,
        created_ns: 0,
        ended_ns: 0,
        reason: 0,
        host: "h".to_owned(),
    };
    let (number, transaction) = owner.image.begin_session(&session).expect("it begins");
    owner.next.push(transaction);
    number
}

pub(super) fn operate(owner: &mut Owner, session: u64, operation: Operation) -> Answer {
    let number = owner.image.next_number(session);
    let stamp = owner.stamp();
    owner.operate(stamp, session, number, &operation).expect("it is done")
}

pub(super) fn ask(owner: &mut Owner, session: u64, question: &Question) -> Answer {
    let stamp = owner.stamp();
    let asked = owner.image.ask(stamp, session, question).expect("it is answered");
    owner.next.extend(asked.transaction);
    asked.answer
}

/// Stores everything.
pub(super) async fn settle(owner: &mut Owner) {
    loop {
        owner.begin_append().expect("it is stored");
        if owner.in_flight.is_none() {
            return;
        }
        let (log, result) = appended(&mut owner.in_flight).await;
        owner.settle(log, result).expect("it is stored");
    }
}

/// Confirms for two sessions, as their lease renewals do, that none of their maps has blocks freed by appends up to
/// `told`. Then does the periodic work, which makes blocks reusable when all sessions have confirmed.
async fn renew(owner: &mut Owner, sessions: [u64; 2], told: u64) {
    sessions.iter().for_each(|session| owner.image.acknowledge(*session, 0, told));
    owner.background().await.expect("it goes on");
}

fn state(owner: &Owner, block: u64) -> Option<ExtentState> {
    owner.image.tables().get(&Key::Space(block)).map(|value| Space::decode(value).expect("it decodes").state)
}

#[tokio::test]
async fn blocks_are_used_again_only_when_every_session_has_dropped_the_map_from_before_they_were_freed() {
    let (mut owner, shared, _) = owner().await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    let create = Operation::Create {
        directory: ROOT,
        name: b"file".to_vec(),
        mode: libc::S_IFREG | 0o644,
        owner: 0,
        group: 0,
        umask: 0,
        device: 0,
        target: Vec::new(),
        target_block: None,
        open: true,
        inode: 0,
    };
    let Answer::Attributes(made) = operate(&mut owner, sessions[0], create) else { panic!("it is made") };
    let file = made.id();
    let Answer::Space(space) = ask(&mut owner, sessions[0], &Question::Space { blocks: 8 }) else { panic!("no space") };
    let block = space[0].block;
    let extents = vec![Mapped { file_block: 0, blocks: 8, block, is_unwritten: false }];
    let commit =
        Operation::Commit { file, truncate_generation: 0, size: 32768, modified_ns: 1, changed_ns: 1, extents };
    operate(&mut owner, sessions[0], commit);
    settle(&mut owner).await;
    let told = shared.drained_to.load(AtomicOrdering::Acquire);
    // After that renewal the second session reads the file's map; then the first session truncates the file.
    ask(&mut owner, sessions[1], &Question::ReadMap { file, start: 0, end: 8 });
    operate(&mut owner, sessions[0], Operation::Truncate { file, size: 0 });
    settle(&mut owner).await;
    renew(&mut owner, sessions, told).await;
    assert_eq!(state(&owner, block), Some(ExtentState::Draining), "a map still has the blocks");
    settle(&mut owner).await;
    let told = shared.drained_to.load(AtomicOrdering::Acquire);
    renew(&mut owner, sessions, told).await;
    assert_eq!(state(&owner, block), None, "no map has them");
}

fn space_at(owner: &Owner, block: u64) -> Option<(ExtentState, u64)> {
    let value = owner.image.tables().get(&Key::Space(block))?;
    Space::decode(value).ok().map(|space| (space.state, space.owner))
}

fn epoch(owner: &Owner, number: u64) -> Option<(EpochState, u64)> {
    let value = owner.image.tables().get(&Key::Epoch(number))?;
    EpochRecord::decode(value).ok().map(|record| (record.state, record.segments))
}

#[tokio::test]
async fn segments_of_a_leader_that_may_wake_up_are_quarantined_until_it_is_known_to_be_gone() {
    let device = volume("quarantine").await;
    let (first, ..) = lead(&device, 0, false).await;
    let epoch_of_first = first.overview.epoch;
    let spaces = first.image.tables().table(Table::Space).keys();
    let blocks = spaces.filter_map(|key| match Key::decode(Table::Space, key) {
        Ok(Key::Space(block)) => Some(block),
        _ => None,
    });
    let blocks: Vec<u64> = blocks.collect();
    let is_its_own = |block: &&u64| space_at(&first, **block) == Some((ExtentState::Metadata, epoch_of_first));
    let segment = *blocks.iter().find(is_its_own).expect("it has its segment");
    // The first server is paused or killed; the others cannot know which.
    drop(first);
    let (mut second, ..) = lead(&device, 1, false).await;
    assert_eq!(epoch(&second, epoch_of_first), Some((EpochState::Sealed, 0)));
    let session = begin(&mut second, 1);
    let mut written = 0;
    while second.overview.checkpoints < 2 {
        let (name, value) = (b"user.large".to_vec(), vec![written as u8; 60_000]);
        operate(&mut second, session, Operation::SetXattr { file: ROOT, name, value, flags: 0 });
        written += 1;
        assert!(written < 2000, "no checkpoint is made");
        if written % 16 == 0 {
            settle(&mut second).await;
            let number = second.image.next_number(session) - 1;
            second.image.acknowledge(session, number, 0);
            second.background().await.expect("it goes on");
        }
    }
    settle(&mut second).await;
    assert_eq!(space_at(&second, segment), Some((ExtentState::QuarantinedMetadata, epoch_of_first)));
    assert_eq!(epoch(&second, epoch_of_first), Some((EpochState::Sealed, 1)));
    assert_eq!(crate::metadata::check(second.image.tables(), &second.shared.label), Vec::<String>::new());
    drop(second);
    // A third server starts on the first server's host, so the first server's process is known to be gone. The second
    // server may still wake up.
    let (mut third, ..) = lead(&device, 0, true).await;
    settle(&mut third).await;
    assert_eq!((space_at(&third, segment), epoch(&third, epoch_of_first)), (None, None));
    assert_eq!(epoch(&third, epoch_of_first + 1).map(|(state, _)| state), Some(EpochState::Sealed));
    assert_eq!(crate::metadata::check(third.image.tables(), &third.shared.label), Vec::<String>::new());
}

fn resume(owner: &mut Owner, session: u64, incarnation: u8, link: (u8, u64)) -> Result<u64, Failure> {
    let (reply, mut answer) = oneshot::channel();
    owner.apply(Request::Resume { session, incarnation: [incarnation; 16], link, reply });
    owner.next_held.drain(..).for_each(Held::release);
    answer.try_recv().expect("it is answered")
}

pub(super) fn messages(received: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Vec<Message> {
    let mut all = Vec::new();
    while let Ok(bytes) = received.try_recv() {
        all.push(Message::decode(&bytes).expect("it decodes").1);
    }
    all
}

#[tokio::test]
async fn a_connection_that_is_heard_of_late_does_not_replace_a_later_one() {
    let (mut owner, ..) = owner().await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    settle(&mut owner).await;
    let (old, mut from_old) = mpsc::unbounded_channel();
    let (new, mut from_new) = mpsc::unbounded_channel();
    let token = Token { object: ROOT, what: What::Data };
    for (role, connection) in [(ROLE_BULK, 1), (ROLE_CONTROL, 2), (ROLE_CONTROL, 3), (ROLE_BULK, 4)] {
        assert_eq!(resume(&mut owner, sessions[0], 1, (role, connection)), Ok(sessions[0]));
    }
    let late = resume(&mut owner, sessions[0], 1, (ROLE_CONTROL, 2));
    assert_eq!(late.map_err(|failure| failure.code), Err(Code::Conflict), "it was greeted before");
    // The later control connection is registered first, then the registration of the earlier one arrives.
    owner.apply(Request::Controlled { session: sessions[0], connection: 3, frames: new.clone() });
    owner.apply(Request::Controlled { session: sessions[0], connection: 2, frames: old.clone() });
    let wanted = (token, level::WRITE, true);
    let reply = Reply::for_test(&new, 4);
    owner.apply(Request::Acquire { session: sessions[0], wanted, reply });
    owner.act();
    settle(&mut owner).await;
    assert!(matches!(messages(&mut from_new)[..], [Message::Grant { .. }]));
    tokio::time::sleep(Duration::from_millis(2 * crate::tokens::MINIMUM_MS)).await;
    owner.apply(Request::Acquire { session: sessions[1], wanted, reply: Reply::for_test(&old, 5) });
    owner.act();
    assert!(matches!(messages(&mut from_new)[..], [Message::Recall { .. }]));
    assert!(messages(&mut from_old).is_empty(), "the recall went to a connection that nobody reads");
    // A lock that was requested on the earlier bulk connection, and released since then.
    let lock =
        Locked { file: ROOT, owner: 1, process: 1, is_flock: true, is_exclusive: true, start: 0, last: u64::MAX };
    let wish = Wish::Lock(lock, false);
    owner.apply(Request::Wish { session: sessions[0], wish, reply: Reply::for_test(&old, 1) });
    assert_eq!(owner.locking.counts(), (0, 0));
}

/// After a restart a push waits until every earlier session has said which files it reads with `O_DIRECT`.
#[tokio::test]
async fn a_push_after_a_restart_is_answered_when_an_earlier_session_is_lost() {
    let device = volume("push").await;
    let (mut first, ..) = lead(&device, 0, false).await;
    let sessions = [begin(&mut first, 1), begin(&mut first, 2)];
    settle(&mut first).await;
    drop(first);
    let (mut second, ..) = lead(&device, 0, true).await;
    settle(&mut second).await;
    let (frames, mut answers) = mpsc::unbounded_channel();
    let [left, lost] = sessions;
    for connection in [1, 2] {
        resume(&mut second, left, 1, (ROLE_BULK, connection)).expect("it continues");
    }
    let reply = Reply::for_test(&frames, 2);
    second.apply(Request::Reclaim { session: left, held: Vec::new(), is_last: true, reply });
    settle(&mut second).await;
    let question = Question::Push { file: ROOT, size: 1 };
    second.apply(Request::Ask { session: left, question, reply: Reply::for_test(&frames, 2) });
    assert!(
        matches!(messages(&mut answers)[..], [Message::Answer(Answer::Done)]),
        "only the list of tokens is answered"
    );
    tokio::time::pause();
    for wait in [Duration::from_millis(SESSION_LEASE_MS.into()) + DRIFT, Duration::from_millis(100)] {
        assert_eq!(messages(&mut answers), Vec::new());
        tokio::time::advance(wait + Duration::from_millis(1)).await;
        second.apply(Request::Acknowledge { session: left, acknowledged: 0, drained: 0, is_answered: true });
        second.end_late_sessions();
        second.act();
    }
    assert!(second.image.is_active(lost).is_err() && second.image.is_active(left).is_ok());
    assert!(matches!(messages(&mut answers)[..], [Message::Answer(Answer::Done)]));
}

#[tokio::test]
async fn waits_name_who_waits_and_for_whom() {
    let (mut owner, ..) = owner().await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    settle(&mut owner).await;
    let (frames, _sent) = mpsc::unbounded_channel();
    let token = Token { object: FileId { inode: 7, generation: 1 }, what: What::Data };
    assert!(owner.grants.offer(sessions[0], token, level::WRITE).is_some());
    let request = Request::Acquire {
        session: sessions[1],
        wanted: (token, level::READ, true),
        reply: Reply::for_test(&frames, 0),
    };
    owner.apply(request);
    tokio::time::sleep(Duration::from_millis(crate::tokens::MINIMUM_MS + 5)).await;
    owner.grants.wake();
    owner.act();
    tokio::time::sleep(Duration::from_millis(2)).await;
    let collected = |owner: &Owner, longer_than| owner.collected(longer_than).waits(&Default::default());
    let waits = collected(&owner, Duration::ZERO);
    let seen: Vec<_> = waits.longest.iter().map(|wait| (wait.subject, wait.inode)).collect();
    assert_eq!(seen, [(WaitSubject::Token, 7), (WaitSubject::Asked, 7)]);
    assert_eq!((waits.longest[1].session, waits.requests, waits.locks), (sessions[0], 1, 0));
    assert_eq!(collected(&owner, WAIT_SHOWN), super::super::long_waits::ServerWaits::default());
}

#[tokio::test]
async fn idle_connections_keep_no_host_out() {
    use crate::net::{Address, Listener};
    use crate::protocol::Message;
    use crate::server::places::Places;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (_owner, shared, _pulse) = owner().await;
    let path = std::env::temp_dir().join(format!("nectary-volume-idle-{}.sock", std::process::id()));
    let listener = Listener::bind(&Address::Unix(path.clone())).await.expect("it listens");
    let (requests, places) = (mpsc::channel(1).0, Places::new(4).expect("there are descriptors"));
    let newcomers = nectary_host::Newcomers::default();
    let context = Arc::new(crate::server::connection::Context { requests, shared, tls: None, places, newcomers });
    let serving = tokio::spawn(crate::server::accept(listener, context));
    let connect = async || tokio::net::UnixStream::connect(&path).await.expect("it connects");
    let mut idle = Vec::new();
    for _ in 0..32 {
        idle.push(connect().await);
    }
    // The next host is answered, although there were more connections than the limit.
    let mut late = connect().await;
    late.write_all(&Message::OtherVersion { least: 90, most: 91 }.encode(7, 0)).await.expect("it is sent");
    let mut answer = Vec::new();
    late.read_to_end(&mut answer).await.expect("it is answered");
    let (header, answer) = Message::decode(&answer).expect("it is understood");
    assert!(header.request == 7 && matches!(answer, Message::Failure(_)), "{answer:?}");
    serving.abort();
    let _ = serving.await;
}
