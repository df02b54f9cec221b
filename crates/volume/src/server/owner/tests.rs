//! The reuse of freed blocks and segments, the choice of a session's valid connection, and room for connections.

use std::sync::atomic::{AtomicU32, Ordering as AtomicOrdering};
use std::time::Duration;

use nectary_block::{FileDevice, OpenOptions};
use tokio::sync::oneshot;

use super::*;
use crate::format::{
    EpochRecord, EpochState, ExtentState, SessionRecord, SessionState, SpaceRecord, TableKey, TableKind, VolumeIdentity,
};
use crate::journal;
use crate::metadata::first;
use crate::protocol::{AnswerTerms, FileLockRange, MappedExtent, RefusalCode, Token, TokenAspect};
use crate::server::locking::LockRequest;
use crate::tokens::level;

pub(super) const ROOT: FileId = FileId { inode: 1, generation: 1 };
const DISK_BYTES: u64 = 512 << 20;

/// The options of the server with this number, on a separate host.
pub(super) fn options(number: u32, previous_gone: bool, said_gone: &[&str]) -> ServerOptions {
    let said_gone = said_gone.iter().map(|name| (*name).to_owned()).collect();
    ServerOptions { listen: Vec::new(), tls: None, number, host: format!("h{number}"), previous_gone, said_gone }
}

/// The server of a new volume.
pub(super) async fn new_owner(name: &str) -> MetadataOwner {
    lead(&volume(name).await, 0, false).await.0
}

/// Makes an inode; with number 0 the server chooses its number.
pub(super) fn create(directory: FileId, name: impl Into<Vec<u8>>, mode: u32, inode: u64) -> MetadataOperation {
    MetadataOperation::Create {
        directory,
        name: name.into(),
        mode,
        owner: 0,
        group: 0,
        umask: 0,
        device: 0,
        target: Vec::new(),
        target_block: None,
        open: false,
        inode,
    }
}

/// Makes a file in the root.
pub(super) fn create_file(name: &str, is_open: bool) -> MetadataOperation {
    let mut create = create(ROOT, name, libc::S_IFREG | 0o644, 0);
    if let MetadataOperation::Create { open, .. } = &mut create {
        *open = is_open;
    }
    create
}

async fn owner() -> (MetadataOwner, Arc<ConnectionsState>, DiskPulse) {
    lead(&volume("owner").await, 0, false).await
}

/// Becomes leader of a volume as the server with this number, on a separate host.
async fn lead(
    device: &SharedDevice,
    number: u32,
    previous_gone: bool,
) -> (MetadataOwner, Arc<ConnectionsState>, DiskPulse) {
    MetadataOwner::start(device.clone(), &options(number, previous_gone, &[])).await.expect("it starts")
}

async fn volume(name: &str) -> SharedDevice {
    volume_of(name, DISK_BYTES).await
}

/// A new volume on a file without a name.
pub(super) async fn volume_of(name: &str, bytes: u64) -> SharedDevice {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, AtomicOrdering::Relaxed);
    let path = std::env::temp_dir().join(format!("nectary-volume-{name}-{}-{number}", std::process::id()));
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
        volume: VolumeIdentity([7; 16]),
        hash_key: [3; 16],
        created_s: 1,
    };
    journal::format(&device, &options, |layout| first(layout, 1)).await.expect("it is formatted");
    device
}

pub(super) fn begin(owner: &mut MetadataOwner, incarnation: u8) -> u64 {
    let session = SessionRecord {
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
    owner.journal.next.push(transaction);
    number
}

pub(super) fn operate(owner: &mut MetadataOwner, session: u64, operation: MetadataOperation) -> ServerAnswer {
    let number = owner.image.next_number(session);
    let stamp = owner.stamp();
    owner.operate(stamp, (session, number), AnswerTerms::Durable, &operation).expect("it is done")
}

pub(super) fn ask(owner: &mut MetadataOwner, session: u64, question: &MetadataQuestion) -> ServerAnswer {
    let stamp = owner.stamp();
    let asked = owner.image.ask(stamp, session, question).expect("it is answered");
    owner.journal.next.extend(asked.transaction);
    asked.answer
}

/// Stores everything.
pub(super) async fn settle(owner: &mut MetadataOwner) {
    loop {
        owner.begin_append().expect("it is stored");
        if owner.journal.in_flight.is_none() {
            return;
        }
        let (log, result) = appended(&mut owner.journal.in_flight).await;
        owner.settle(log, result).expect("it is stored");
    }
}

/// Confirms for two sessions, as their lease renewals do, that none of their maps has blocks freed by appends up to
/// `told`. Then does the periodic work, which makes blocks reusable when all sessions have confirmed.
async fn renew(owner: &mut MetadataOwner, sessions: [u64; 2], told: u64) {
    sessions.iter().for_each(|session| owner.image.acknowledge(*session, 0, told));
    owner.background().await.expect("it goes on");
}

fn state(owner: &MetadataOwner, block: u64) -> Option<ExtentState> {
    owner.image.tables().get(&TableKey::Space(block)).map(|value| SpaceRecord::decode(value).expect("it decodes").state)
}

/// Blocks are reused only when every session has dropped the map from before they were freed.
#[tokio::test]
async fn freed_blocks_await_cached_maps() {
    let (mut owner, shared, _) = owner().await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    let made = operate(&mut owner, sessions[0], create_file("file", true));
    let ServerAnswer::Attributes(made) = made else { panic!("{made:?}") };
    let file = made.id();
    let ServerAnswer::Space(space) = ask(&mut owner, sessions[0], &MetadataQuestion::Space { blocks: 8 }) else {
        panic!("no space")
    };
    let block = space[0].block;
    let extents = vec![MappedExtent { file_block: 0, blocks: 8, block, is_unwritten: false }];
    let commit =
        MetadataOperation::Commit { file, truncate_generation: 0, size: 32768, modified_ns: 1, changed_ns: 1, extents };
    operate(&mut owner, sessions[0], commit);
    settle(&mut owner).await;
    let told = shared.drained_to.load(AtomicOrdering::Acquire);
    // After that renewal the second session reads the file's map; then the first session truncates the file.
    ask(&mut owner, sessions[1], &MetadataQuestion::ReadMap { file, start: 0, end: 8 });
    operate(&mut owner, sessions[0], MetadataOperation::Truncate { file, size: 0 });
    settle(&mut owner).await;
    renew(&mut owner, sessions, told).await;
    assert_eq!(state(&owner, block), Some(ExtentState::Draining), "a map still has the blocks");
    settle(&mut owner).await;
    let told = shared.drained_to.load(AtomicOrdering::Acquire);
    renew(&mut owner, sessions, told).await;
    assert_eq!(state(&owner, block), None, "no map has them");
}

fn space_at(owner: &MetadataOwner, block: u64) -> Option<(ExtentState, u64)> {
    let value = owner.image.tables().get(&TableKey::Space(block))?;
    SpaceRecord::decode(value).ok().map(|space| (space.state, space.owner))
}

fn epoch(owner: &MetadataOwner, number: u64) -> Option<(EpochState, u64)> {
    let value = owner.image.tables().get(&TableKey::Epoch(number))?;
    EpochRecord::decode(value).ok().map(|record| (record.state, record.segments))
}

/// The quarantine ends when the old leader is known to be gone, as it might wake up before.
#[tokio::test]
async fn old_leader_segments_are_quarantined() {
    let device = volume("quarantine").await;
    let (first, ..) = lead(&device, 0, false).await;
    let epoch_of_first = first.overview.epoch;
    let spaces = first.image.tables().table(TableKind::Space).keys();
    let blocks = spaces.filter_map(|key| match TableKey::decode(TableKind::Space, key) {
        Ok(TableKey::Space(block)) => Some(block),
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
        operate(&mut second, session, MetadataOperation::SetXattr { file: ROOT, name, value, flags: 0 });
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

fn resume(owner: &mut MetadataOwner, session: u64, incarnation: u8, link: (u8, u64)) -> Result<u64, ServerRefusal> {
    let (reply, mut answer) = oneshot::channel();
    owner.apply(OwnerRequest::Resume { session, incarnation: [incarnation; 16], link, reply });
    owner.journal.next_held.drain(..).for_each(HeldAnswer::release);
    answer.try_recv().expect("it is answered")
}

pub(super) fn messages(received: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Vec<VolumeMessage> {
    let mut all = Vec::new();
    while let Ok(bytes) = received.try_recv() {
        all.push(VolumeMessage::decode(&bytes).expect("it decodes").1);
    }
    all
}

/// A connection whose greeting arrives late does not replace a newer one.
#[tokio::test]
async fn late_greeting_replaces_no_connection() {
    let (mut owner, ..) = owner().await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    settle(&mut owner).await;
    let (old, mut from_old) = mpsc::unbounded_channel();
    let (new, mut from_new) = mpsc::unbounded_channel();
    let token = Token { object: ROOT, what: TokenAspect::Data };
    for (role, connection) in [(ROLE_BULK, 1), (ROLE_CONTROL, 2), (ROLE_CONTROL, 3), (ROLE_BULK, 4)] {
        assert_eq!(resume(&mut owner, sessions[0], 1, (role, connection)), Ok(sessions[0]));
    }
    let late = resume(&mut owner, sessions[0], 1, (ROLE_CONTROL, 2));
    assert_eq!(late.map_err(|failure| failure.code), Err(RefusalCode::Conflict), "it was greeted before");
    // The later control connection is registered first, then the registration of the earlier one arrives.
    owner.apply(OwnerRequest::Controlled { session: sessions[0], connection: 3, frames: new.clone() });
    owner.apply(OwnerRequest::Controlled { session: sessions[0], connection: 2, frames: old.clone() });
    let wanted = (token, level::WRITE, true);
    let reply = ReplySender::for_test(&new, 4);
    owner.apply(OwnerRequest::Acquire { session: sessions[0], wanted, reply });
    owner.act();
    settle(&mut owner).await;
    assert!(matches!(messages(&mut from_new)[..], [VolumeMessage::Grant { .. }]));
    tokio::time::sleep(Duration::from_millis(2 * crate::tokens::MINIMUM_MS)).await;
    owner.apply(OwnerRequest::Acquire { session: sessions[1], wanted, reply: ReplySender::for_test(&old, 5) });
    owner.act();
    assert!(matches!(messages(&mut from_new)[..], [VolumeMessage::Recall { .. }]));
    assert!(messages(&mut from_old).is_empty(), "the recall went to a connection that nobody reads");
    // A lock that was requested on the earlier bulk connection, and released since then.
    let lock = FileLockRange {
        file: ROOT,
        owner: 1,
        process: 1,
        is_flock: true,
        is_exclusive: true,
        start: 0,
        last: u64::MAX,
    };
    let wish = LockRequest::Lock(lock, false);
    owner.apply(OwnerRequest::Wish { session: sessions[0], wish, reply: ReplySender::for_test(&old, 1) });
    assert_eq!(owner.locking.counts(), (0, 0));
}

/// After a restart a push waits until every earlier session has said which files it reads with `O_DIRECT`.
#[tokio::test]
async fn lost_session_completes_push() {
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
    let reply = ReplySender::for_test(&frames, 2);
    second.apply(OwnerRequest::Reclaim { session: left, held: Vec::new(), is_last: true, reply });
    settle(&mut second).await;
    let question = MetadataQuestion::Push { file: ROOT, size: 1 };
    second.apply(OwnerRequest::Ask { session: left, question, reply: ReplySender::for_test(&frames, 2) });
    assert!(
        matches!(messages(&mut answers)[..], [VolumeMessage::Answer(ServerAnswer::Done)]),
        "only the list of tokens is answered"
    );
    tokio::time::pause();
    for wait in [Duration::from_millis(SESSION_LEASE_MS.into()) + DRIFT, Duration::from_millis(100)] {
        assert_eq!(messages(&mut answers), Vec::new());
        tokio::time::advance(wait + Duration::from_millis(1)).await;
        second.apply(OwnerRequest::Acknowledge { session: left, acknowledged: 0, drained: 0, is_answered: true });
        second.end_late_sessions();
        second.act();
    }
    assert!(second.image.is_active(lost).is_err() && second.image.is_active(left).is_ok());
    assert!(matches!(messages(&mut answers)[..], [VolumeMessage::Answer(ServerAnswer::Done)]));
}

/// However many requests wait, what follows from some of them is done before the others.
#[tokio::test]
async fn requests_are_handled_in_turns() {
    let mut owner = new_owner("turns").await;
    let (sender, mut requests) = mpsc::channel(2 * REQUESTS_OF_TURN);
    let request = || OwnerRequest::NameDropped { session: 1, number: 1 };
    for _ in 0..REQUESTS_OF_TURN + 9 {
        sender.try_send(request()).unwrap_or_else(|_| panic!("there is room"));
    }
    owner.apply_turn(request(), &mut requests);
    assert_eq!(requests.len(), 10);
}

/// Requests that come faster than they are handled hold up no periodic work.
#[tokio::test]
async fn endless_requests_let_ticks_through() {
    let owner = new_owner("endless").await;
    // These are more than a task handles before it gives way to the one that sends them, so they never end.
    let (sender, requests) = mpsc::channel(256 * REQUESTS_OF_TURN);
    let (seen_by, mut seen) = watch::channel(owner.overview());
    let (stop, stopped) = watch::channel(false);
    let owner = tokio::spawn(owner.run(requests, seen_by, stopped));
    let sending = tokio::spawn(async move {
        loop {
            while sender.try_send(OwnerRequest::NameDropped { session: 1, number: 1 }).is_ok() {}
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..4 {
        let changed = tokio::time::timeout(Duration::from_secs(20), seen.changed()).await;
        changed.expect("periodic work is done").expect("it runs");
    }
    sending.abort();
    stop.send_replace(true);
    owner.await.expect("it ends").expect("it was told to");
}

/// Of two sessions that both hold a token, one is ended; the other one has said all that it holds, and is waited for no
/// more.
#[tokio::test]
async fn conflicting_claim_ends_one_session() {
    let device = volume("claims").await;
    let (mut first, ..) = lead(&device, 0, false).await;
    let [wrong, right] = [begin(&mut first, 1), begin(&mut first, 2)];
    settle(&mut first).await;
    drop(first);
    let (mut second, ..) = lead(&device, 0, true).await;
    let (frames, _answers) = mpsc::unbounded_channel();
    let held = |inode, sequence| {
        let token = Token { object: FileId { inode, generation: 1 }, what: TokenAspect::Data };
        crate::protocol::TokenGrant { token, level: level::WRITE, sequence }
    };
    let mut reclaim = |session, held, is_last| {
        let reply = ReplySender::for_test(&frames, 1);
        second.apply(OwnerRequest::Reclaim { session, held, is_last, reply });
    };
    reclaim(wrong, vec![held(7, 1)], false);
    reclaim(right, vec![held(7, 2), held(8, 3)], true);
    assert!(second.image.is_active(wrong).is_err() && second.image.is_active(right).is_ok());
    assert_eq!(second.grants.counts(), (2, 0, 0));
}

#[tokio::test]
async fn waits_name_waiter_and_holder() {
    let (mut owner, ..) = owner().await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    settle(&mut owner).await;
    let (frames, _sent) = mpsc::unbounded_channel();
    let token = Token { object: FileId { inode: 7, generation: 1 }, what: TokenAspect::Data };
    assert!(owner.grants.offer(sessions[0], token, level::WRITE).is_some());
    let request = OwnerRequest::Acquire {
        session: sessions[1],
        wanted: (token, level::READ, true),
        reply: ReplySender::for_test(&frames, 0),
    };
    owner.apply(request);
    tokio::time::sleep(Duration::from_millis(crate::tokens::MINIMUM_MS + 5)).await;
    owner.grants.wake();
    owner.act();
    tokio::time::sleep(Duration::from_millis(2)).await;
    let collected = |owner: &MetadataOwner, longer_than| owner.collected(longer_than).waits(&Default::default());
    let waits = collected(&owner, Duration::ZERO);
    let seen: Vec<_> = waits.longest.iter().map(|wait| (wait.subject, wait.inode)).collect();
    assert_eq!(seen, [(WaitSubject::Token, 7), (WaitSubject::Asked, 7)]);
    assert_eq!((waits.longest[1].session, waits.requests, waits.locks), (sessions[0], 1, 0));
    assert_eq!(collected(&owner, WAIT_SHOWN), super::super::long_waits::ServerWaits::default());
}

/// A request for a token that is repeated on new connections waits once, and is gone with its session.
#[tokio::test]
async fn repeated_token_request_waits_once() {
    let mut owner = new_owner("acquire").await;
    let (holder, waiter) = (begin(&mut owner, 1), begin(&mut owner, 2));
    let token = Token { object: FileId { inode: 7, generation: 1 }, what: TokenAspect::Data };
    let (frames, mut answers) = mpsc::unbounded_channel();
    let acquire = |owner: &mut MetadataOwner, session, connection| {
        let reply = ReplySender::of_request(&frames, (session, connection, 1));
        owner.apply(OwnerRequest::Acquire { session, wanted: (token, level::WRITE, true), reply });
        owner.act();
    };
    acquire(&mut owner, holder, 1);
    for connection in 1..10 {
        acquire(&mut owner, waiter, connection);
    }
    assert_eq!(owner.grants.waiting().count(), 1);
    // One that came on an earlier connection, and waited for something else, does not take the newest one's place.
    acquire(&mut owner, waiter, 3);
    let connections: Vec<u64> = owner.grants.waiting().map(|(_, _, reply)| reply.connection()).collect();
    assert_eq!(connections, [9]);
    owner.evict(waiter, "a test");
    owner.act();
    assert_eq!((owner.grants.waiting().count(), owner.grants.counts().1), (0, 0));
    settle(&mut owner).await;
    assert_eq!(messages(&mut answers).len(), 1, "the holder's grant");
}

#[tokio::test]
async fn idle_connections_keep_no_host_out() {
    use crate::net::{ServerAddress, StreamListener};
    use crate::protocol::VolumeMessage;
    use crate::server::places::ServerSeats;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (_owner, shared, _pulse) = owner().await;
    let path = std::env::temp_dir().join(format!("nectary-volume-idle-{}.sock", std::process::id()));
    let listener = StreamListener::bind(&ServerAddress::Unix(path.clone())).await.expect("it listens");
    let (requests, places) = (mpsc::channel(1).0, ServerSeats::new(4).expect("there are descriptors"));
    let newcomers = nectary_host::Newcomers::default();
    let context =
        Arc::new(crate::server::connection::ConnectionContext { requests, shared, tls: None, places, newcomers });
    let serving = tokio::spawn(crate::server::accept(listener, context));
    let connect = async || tokio::net::UnixStream::connect(&path).await.expect("it connects");
    let mut idle = Vec::new();
    for _ in 0..32 {
        idle.push(connect().await);
    }
    // The next host is answered, although there were more connections than the limit.
    let mut late = connect().await;
    late.write_all(&VolumeMessage::OtherVersion { least: 90, most: 91 }.encode(7, 0)).await.expect("it is sent");
    let mut answer = Vec::new();
    late.read_to_end(&mut answer).await.expect("it is answered");
    let (header, answer) = VolumeMessage::decode(&answer).expect("it is understood");
    assert!(header.request == 7 && matches!(answer, VolumeMessage::Failure(_)), "{answer:?}");
    serving.abort();
    let _ = serving.await;
}
