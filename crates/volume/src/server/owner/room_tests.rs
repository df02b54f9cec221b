//! A full disk: which operations are refused, that the server continues and restarts, and the loss of several servers
//! in a row.

use nectary_block::SharedDevice;

use super::tests::{ROOT, ask, begin, create, create_file, operate, options, settle, volume_of};
use super::*;
use crate::metadata::check;
use crate::protocol::{AnswerTerms, MappedExtent, RefusalCode};

/// The size of the smallest volume. *Units*: bytes.
const DISK_BYTES: u64 = 256 << 20;
/// The length of a long attribute value; such values make metadata grow fast. *Units*: bytes.
const VALUE_BYTES: usize = 60_000;

/// One run of a server, with one session.
struct ServerLife {
    owner: MetadataOwner,
    session: u64,
}

type Done = Result<ServerAnswer, ServerRefusal>;

impl ServerLife {
    async fn start(device: &SharedDevice, options: &ServerOptions) -> Result<ServerLife, ServerError> {
        let (mut owner, ..) = MetadataOwner::start(device.clone(), options).await?;
        // The sessions of earlier runs are ended: they would delay the reuse of freed blocks.
        let earlier: Vec<u64> = owner.image.sessions().iter().map(|(session, _)| *session).collect();
        for session in earlier {
            owner.end(session).expect("it ends");
        }
        let session = begin(&mut owner, options.number as u8 + 1);
        let mut life = ServerLife { owner, session };
        life.tick().await?;
        Ok(life)
    }

    /// Stores everything, and does the server's background work.
    async fn tick(&mut self) -> Result<(), ServerError> {
        settle_all(&mut self.owner).await?;
        let (session, number) = (self.session, self.owner.image.next_number(self.session) - 1);
        self.owner.image.acknowledge(session, number, u64::MAX);
        self.owner.background().await?;
        settle_all(&mut self.owner).await?;
        let problems = check(self.owner.image.tables(), &self.owner.shared.label);
        assert_eq!(problems, Vec::<String>::new());
        Ok(())
    }

    fn try_operate(&mut self, operation: &MetadataOperation) -> Done {
        let number = self.owner.image.next_number(self.session);
        let stamp = self.owner.stamp();
        self.owner.operate(stamp, (self.session, number), AnswerTerms::Durable, operation)
    }

    fn create(&mut self, name: &str) -> Done {
        self.try_operate(&create_file(name, false))
    }

    fn unlink(&mut self, name: &str) -> Done {
        let name = name.as_bytes().to_vec();
        self.try_operate(&MetadataOperation::Unlink { directory: ROOT, name, is_directory: false, expected: 0 })
    }

    fn xattr(&mut self, file: FileId, fill: u8) -> Done {
        let (name, value) = (b"user.large".to_vec(), vec![fill; VALUE_BYTES]);
        self.try_operate(&MetadataOperation::SetXattr { file, name, value, flags: 0 })
    }

    /// Fills a new file with all blocks that are granted.
    async fn fill(&mut self, name: &str) -> FileId {
        let (file, _) = self.fill_waiting(name).await;
        self.tick().await.expect("it goes on");
        let session = self.session;
        assert_eq!(free(&mut self.owner, session), 0);
        file
    }

    /// Requests space as a client does, which repeats its request while space is being freed, until there is none;
    /// returns the new file that has it, and its blocks.
    async fn fill_waiting(&mut self, name: &str) -> (FileId, u64) {
        let Ok(ServerAnswer::Attributes(made)) = self.create(name) else { panic!("{name} is not made") };
        let (file, mut at, mut waits) = (made.id(), 0, 0);
        loop {
            let stamp = self.owner.stamp();
            let asked = self.owner.image.ask(stamp, self.session, &MetadataQuestion::Space { blocks: 1 << 18 });
            self.owner.note_shortage(asked.as_ref().err());
            let asked = match asked {
                Ok(asked) => asked,
                Err(failure) if failure.errno == libc::EAGAIN => {
                    waits += 1;
                    assert!(waits < 100, "space is being freed for ever");
                    self.tick().await.expect("it goes on");
                    continue;
                }
                Err(failure) => {
                    assert_eq!(failure.errno, libc::ENOSPC, "{failure:?}");
                    return (file, at);
                }
            };
            self.owner.journal.next.extend(asked.transaction);
            let ServerAnswer::Space(granted) = asked.answer else { panic!("no space") };
            let mut extents = Vec::new();
            for granted in granted {
                let (block, blocks) = (granted.block, granted.blocks as u32);
                extents.push(MappedExtent { file_block: at, blocks, block, is_unwritten: false });
                at += granted.blocks;
            }
            let (size, truncate_generation) = (at * 4096, 0);
            let commit =
                MetadataOperation::Commit { file, truncate_generation, size, modified_ns: 1, changed_ns: 1, extents };
            self.try_operate(&commit).expect("it is committed");
        }
    }

    /// Sets a large attribute repeatedly, so that the journal grows and the tables do not, until `checkpoints` more
    /// checkpoints are made.
    async fn churn(&mut self, file: FileId, checkpoints: u64) -> Result<(), ServerError> {
        let wanted = self.owner.overview.checkpoints + checkpoints;
        for step in 0..3000 {
            if self.owner.overview.checkpoints >= wanted {
                return Ok(());
            }
            self.xattr(file, step as u8).expect("it is not longer than before");
            if step % 16 == 15 {
                self.tick().await?;
            }
        }
        panic!("no checkpoint is made: {:?}", self.owner.overview());
    }
}

/// Stores everything; returns the error if that fails.
async fn settle_all(owner: &mut MetadataOwner) -> Result<(), ServerError> {
    loop {
        owner.begin_append()?;
        if owner.journal.in_flight.is_none() {
            return Ok(());
        }
        let (log, result) = appended(&mut owner.journal.in_flight).await;
        owner.settle(log, result)?;
    }
}

fn free(owner: &mut MetadataOwner, session: u64) -> u64 {
    match ask(owner, session, &MetadataQuestion::Statistics) {
        ServerAnswer::Statistics(statistics) => statistics.free,
        other => panic!("{other:?}"),
    }
}

fn is_full(done: &Done) -> bool {
    done.as_ref().is_err_and(|failure| (failure.code, failure.errno) == (RefusalCode::Full, libc::ENOSPC))
}

/// The server also restarts; only operations that need more space are refused.
#[tokio::test]
async fn full_disk_server_continues() {
    let device = volume_of("full", DISK_BYTES).await;
    let mut life = ServerLife::start(&device, &options(0, false, &[])).await.expect("it starts");
    let Ok(ServerAnswer::Attributes(kept)) = life.create("kept") else { panic!("it is not made") };
    let kept = kept.id();
    life.xattr(kept, 1).expect("there is room");
    life.fill("data").await;
    // Metadata grows until an operation is refused, and no operation is refused earlier.
    let mut made = 0;
    while let Ok(ServerAnswer::Attributes(file)) = life.create(&format!("n{made}")) {
        made += 1;
        if life.xattr(file.id(), made as u8).is_err() {
            break;
        }
        if made % 16 == 0 {
            life.tick().await.expect("it goes on");
        }
        assert!(made < 3000, "nothing is refused");
    }
    assert!(is_full(&life.create("new")));
    // The journal continues, with checkpoints.
    life.churn(kept, 2).await.expect("it goes on");
    // More starts succeed than there are segments set aside, because the earlier processes are known to be gone.
    for start in 0..=crate::metadata::SET_ASIDE as u8 {
        drop(life);
        life = ServerLife::start(&device, &options(0, true, &[]))
            .await
            .unwrap_or_else(|error| panic!("start {start}: {error}"));
        life.xattr(kept, start).expect("it is not longer than before");
        life.tick().await.expect("it goes on");
    }
    life.churn(kept, 1).await.expect("it goes on");
    for name in 0..made {
        life.unlink(&format!("n{name}")).expect("it is removed");
    }
    life.unlink("data").expect("it is removed");
    life.tick().await.expect("it goes on");
    life.tick().await.expect("it goes on");
    life.create("new").expect("there is room again");
    let session = life.session;
    assert!(free(&mut life.owner, session) > 10_000, "what the files had is free");
}

#[tokio::test]
async fn removed_files_leave_room_after_restarts() {
    let device = volume_of("again", DISK_BYTES).await;
    let mut life = ServerLife::start(&device, &options(0, false, &[])).await.expect("it starts");
    let (_, first) = life.fill_waiting("data").await;
    for start in 0..2 {
        drop(life);
        life = ServerLife::start(&device, &options(0, true, &[]))
            .await
            .unwrap_or_else(|error| panic!("start {start}: {error}"));
    }
    life.unlink("data").expect("it is removed");
    // The journals of the earlier servers are freed by a checkpoint, which nothing but the shortage makes due.
    let (_, again) = life.fill_waiting("data").await;
    let segment = life.owner.shared.label.segment_blocks;
    assert!(again + segment >= first, "{first} blocks at first, then {again}, in segments of {segment}");
}

/// Segments of lost servers are free again once their hosts are confirmed gone.
#[tokio::test]
async fn lost_servers_hold_segments_until_confirmed() {
    let device = volume_of("lost", DISK_BYTES).await;
    let mut life = ServerLife::start(&device, &options(0, false, &[])).await.expect("it starts");
    let Ok(ServerAnswer::Attributes(kept)) = life.create("kept") else { panic!("it is not made") };
    let kept = kept.id();
    life.xattr(kept, 1).expect("there is room");
    life.fill("data").await;
    // Each host is lost with the segments of its server, until one server's journal finds no free segment.
    let mut number = 0;
    let ended = loop {
        if let Err(error) = life.churn(kept, 2).await {
            break error;
        }
        drop(life);
        number += 1;
        life = ServerLife::start(&device, &options(number, false, &[])).await.expect("it starts");
        assert!(number < 10, "nothing is held back");
    };
    let words = ended.to_string();
    assert!(matches!(ended, ServerError::NoRoom(_)) && words.contains("--confirm-gone"), "{words}");
    drop(life);
    // No operator has confirmed that the lost hosts are gone, so the next server has only its first segment: this is
    // enough to remove files.
    let mut life = ServerLife::start(&device, &options(0, true, &[])).await.expect("it starts");
    assert!(life.owner.overview().quarantined > 0);
    life.unlink("data").expect("it is removed");
    life.tick().await.expect("it goes on");
    let lost: Vec<String> = (1..=number).map(|number| format!("h{number}")).collect();
    let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
    drop(life);
    let unknown = ServerLife::start(&device, &options(0, true, &["nobody"])).await.err().map(|error| error.to_string());
    assert!(unknown.as_ref().is_some_and(|words| words.contains("no earlier server ran on \"nobody\"")), "{unknown:?}");
    let mut life = ServerLife::start(&device, &options(0, true, &lost)).await.expect("it starts");
    life.churn(kept, 1).await.expect("it goes on");
    assert_eq!(life.owner.overview().quarantined, 0);
    life.create("new").expect("there is room again");
}

/// No server starts while the host that an operator says is gone still leads.
#[tokio::test]
async fn wrong_gone_confirmation_is_noticed() {
    let device = volume_of("alive", DISK_BYTES).await;
    let mut first = ServerLife::start(&device, &options(0, false, &[])).await.expect("it starts");
    let second = options(1, false, &["h0"]);
    let second = MetadataOwner::start(device, &second);
    tokio::pin!(second);
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let started = loop {
        tokio::select! {
            started = &mut second => break started.map(drop),
            _ = ticks.tick() => first.tick().await.expect("it leads"),
        }
    };
    let error = started.expect_err("the first one is alive").to_string();
    assert_eq!(error, "server 0 on h0 serves the volume; stop it first");
    settle(&mut first.owner).await;
    operate(
        &mut first.owner,
        first.session,
        MetadataOperation::SetAttributes { file: ROOT, changes: crate::protocol::AttributeChanges::default() },
    );
}

/// What sessions may make with the inode numbers that they have in hand, on a disk that is full.
#[tokio::test]
async fn full_disk_takes_what_numbers_allow() {
    const SESSIONS: u8 = 24;
    let device = volume_of("numbers", DISK_BYTES).await;
    let mut life = ServerLife::start(&device, &options(0, false, &[])).await.expect("it starts");
    let Ok(ServerAnswer::Attributes(kept)) = life.create("kept") else { panic!("it is not made") };
    let kept = kept.id();
    life.xattr(kept, 1).expect("there is room");
    let mut makers: Vec<(u64, std::ops::Range<u64>)> = Vec::new();
    for incarnation in 0..SESSIONS {
        let session = begin(&mut life.owner, 100 + incarnation);
        let Some(first) = life.numbers(session) else { break };
        life.numbers(session);
        makers.push((session, first..first + 1024));
    }
    assert!(makers.len() > 4, "{} sessions have numbers", makers.len());
    life.fill("data").await;
    let mut grown = 0;
    while let Ok(ServerAnswer::Attributes(file)) = life.create(&format!("n{grown}")) {
        grown += 1;
        if life.xattr(file.id(), grown as u8).is_err() {
            break;
        }
        if grown % 16 == 0 {
            life.tick().await.expect("it goes on");
        }
        assert!(grown < 3000, "nothing is refused");
    }
    // The longest names, and the longest targets.
    let mut made = 0;
    for (session, numbers) in &makers {
        for inode in numbers.clone() {
            made += 1;
            let name = format!("{made:0>255}");
            life.make_locally(*session, inode, &name).unwrap_or_else(|error| panic!("{made}: {error}"));
            if made % 256 == 0 {
                life.store(&makers).await.unwrap_or_else(|error| panic!("after {made}: {error}"));
            }
        }
    }
    life.store(&makers).await.expect("it goes on");
    assert_eq!(life.owner.grants.locals().in_hand(), 0);
    life.churn(kept, 2).await.expect("it goes on, and makes checkpoints");
    drop(life);
    let mut life = ServerLife::start(&device, &options(0, true, &[])).await.expect("it starts again");
    for number in 1..=made {
        life.unlink(&format!("{number:0>255}")).expect("it is there");
        if number % 512 == 0 {
            life.store(&[]).await.expect("it goes on");
        }
    }
}

impl ServerLife {
    /// Gives a session 512 inode numbers, if there is room; returns the first.
    fn numbers(&mut self, session: u64) -> Option<u64> {
        let asked =
            self.owner.image.ask(self.owner.stamp(), session, &MetadataQuestion::Numbers { count: 512 }).ok()?;
        self.owner.journal.next.extend(asked.transaction);
        let ServerAnswer::Numbers { first, count } = asked.answer else { panic!("{:?}", asked.answer) };
        self.owner.grants.locals().add_numbers(session, first..first + u64::from(count));
        self.owner.keep_room();
        Some(first)
    }

    fn make_locally(&mut self, session: u64, inode: u64, name: &str) -> Done {
        assert!(self.owner.grants.locals().use_number(session, inode));
        let mut operation = create(ROOT, name, libc::S_IFLNK | 0o777, inode);
        if let MetadataOperation::Create { target, .. } = &mut operation {
            *target = vec![b't'; crate::metadata::LOCAL_TARGET_BYTES_MAX];
        }
        let (number, stamp) = (self.owner.image.next_number(session), self.owner.stamp());
        let (done, transaction) = self.owner.image.operate_local(stamp, session, number, &operation);
        self.owner.journal.next.extend(transaction);
        self.owner.keep_room();
        done
    }

    /// Stores everything, does background work, and forgets replies.
    async fn store(&mut self, sessions: &[(u64, std::ops::Range<u64>)]) -> Result<(), ServerError> {
        settle_all(&mut self.owner).await?;
        let all = sessions.iter().map(|(session, _)| *session).chain(std::iter::once(self.session));
        for session in all {
            let last = self.owner.image.next_number(session) - 1;
            self.owner.image.acknowledge(session, last, u64::MAX);
        }
        self.owner.background().await?;
        settle_all(&mut self.owner).await
    }
}
