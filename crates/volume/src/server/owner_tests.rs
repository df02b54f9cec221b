//! When freed blocks may be used again.

use nectary_block::{FileDevice, OpenOptions};

use super::*;
use crate::format::{ExtentState, Identity, Key, SessionState, Space};
use crate::metadata::first;
use crate::protocol::{FileId, Mapped};

const ROOT: FileId = FileId { inode: 1, generation: 1 };
const DISK_BYTES: u64 = 512 << 20;

async fn owner() -> (Owner, Arc<Shared>) {
    let path = std::env::temp_dir().join(format!("nectary-volume-owner-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(DISK_BYTES)).expect("it is made");
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
    let options =
        ServerOptions { listen: Vec::new(), tls: None, number: 0, host: "h".to_owned(), previous_gone: false };
    Owner::start(device, &options).await.expect("it starts")
}

fn begin(owner: &mut Owner, incarnation: u8) -> u64 {
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

fn operate(owner: &mut Owner, session: u64, operation: Operation) -> Answer {
    let number = owner.image.next_number(session);
    owner.operate(session, number, &operation).expect("it is done")
}

fn ask(owner: &mut Owner, session: u64, question: &Question) -> Answer {
    let stamp = owner.stamp();
    let asked = owner.image.ask(stamp, session, question).expect("it is answered");
    owner.next.extend(asked.transaction);
    asked.answer
}

/// Stores everything.
async fn settle(owner: &mut Owner) {
    loop {
        owner.begin_append().expect("it is stored");
        if owner.in_flight.is_none() {
            return;
        }
        let (log, result) = appended(&mut owner.in_flight).await;
        owner.settle(log, result).expect("it is stored");
    }
}

/// What the sessions hear with a renewal, and say with the next one.
async fn renew(owner: &mut Owner, sessions: [u64; 2], told: u64) {
    sessions.iter().for_each(|session| owner.image.acknowledge(*session, 0, told));
    owner.background().await.expect("it goes on");
}

fn state(owner: &Owner, block: u64) -> Option<ExtentState> {
    owner.image.tables().get(&Key::Space(block)).map(|value| Space::decode(value).expect("it decodes").state)
}

#[tokio::test]
async fn blocks_are_used_again_only_when_every_session_has_dropped_the_map_from_before_they_were_freed() {
    let (mut owner, shared) = owner().await;
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
    // After that renewal the second session looks where the data is; then the first one cuts the file.
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
