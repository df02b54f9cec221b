//! What other sessions wait for while one makes names itself, and what bounds that.
//!
//! Owns: single messages in a chosen order. Leaves to others: whole clients (`tests/it`).

use tokio::sync::mpsc;

use super::super::connection::ROLE_CONTROL;
use super::tests::{ROOT, begin, create, messages, options, settle, volume_of};
use super::*;
use crate::protocol::{
    AnswerTerms, AttributeChanges, MetadataOperation, RefusalCode, TokenAspect, TokenGrant as Granted,
};
use crate::tokens::{LOOKS_MAX, WRITE, level};

type Received = mpsc::UnboundedReceiver<Vec<u8>>;

/// A server, and two sessions with control connections. The first one asks for numbers.
struct SessionPair {
    device: SharedDevice,
    owner: MetadataOwner,
    sessions: [u64; 2],
    controls: [Received; 2],
    numbers: std::ops::Range<u64>,
}

impl SessionPair {
    async fn new(name: &str) -> SessionPair {
        let device = volume_of(&format!("local-{name}"), 512 << 20).await;
        let (mut owner, ..) = MetadataOwner::start(device.clone(), &options(0, false, &[])).await.expect("it starts");
        let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
        let controls = sessions.map(|session| {
            let (frames, received) = mpsc::unbounded_channel();
            assert!(owner.newest.is_newest(session, ROLE_CONTROL, 0));
            owner.apply(OwnerRequest::Controlled { session, connection: 0, frames });
            received
        });
        settle(&mut owner).await;
        let mut pair = SessionPair { device, owner, sessions, controls, numbers: 0..0 };
        pair.more_numbers().await.expect("there is room");
        pair
    }

    /// Asks for more numbers for the first session.
    async fn more_numbers(&mut self) -> Result<(), RefusalCode> {
        let mut answers = self.ask(0, MetadataQuestion::Numbers { count: 512 });
        settle(&mut self.owner).await;
        match &messages(&mut answers)[..] {
            [VolumeMessage::Answer(ServerAnswer::Numbers { first, count })] => {
                self.numbers = *first..*first + u64::from(*count);
                Ok(())
            }
            [VolumeMessage::Failure(failure)] => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a question; returns where its answer comes.
    fn ask(&mut self, of: usize, question: MetadataQuestion) -> Received {
        let (frames, answers) = mpsc::unbounded_channel();
        let (session, reply) = (self.sessions[of], ReplySender::of_request(&frames, (self.sessions[of], 0, 1)));
        self.owner.apply(OwnerRequest::Ask { session, question, reply });
        self.owner.act();
        answers
    }

    /// Sends an operation; returns where its answer comes.
    fn operate(&mut self, of: usize, terms: AnswerTerms, operation: MetadataOperation) -> Received {
        let (frames, answers) = mpsc::unbounded_channel();
        let (session, reply) = (self.sessions[of], ReplySender::of_request(&frames, (self.sessions[of], 0, 1)));
        let number = self.owner.image.next_number(session);
        self.owner.apply(OwnerRequest::Operate { session, number, terms, operation, reply });
        self.owner.act();
        answers
    }

    /// The first session makes a directory; also returns the grant of it, if there is one.
    fn make_directory(&mut self, name: &str) -> (FileId, Option<Granted>) {
        let answers = messages(&mut self.operate(0, AnswerTerms::Early, create(ROOT, name, libc::S_IFDIR | 0o755, 0)));
        let made = answers.iter().find_map(|message| match message {
            VolumeMessage::Answer(ServerAnswer::Attributes(made)) => Some(made.id()),
            _ => None,
        });
        let made = made.unwrap_or_else(|| panic!("{answers:?}"));
        let granted = self.told(0).into_iter().find(|held| held.level == WRITE && held.token.object == made);
        (made, granted)
    }

    /// The first session makes a directory, and two names there at the server; returns the grant of it, if there is one.
    fn use_directory(&mut self, name: &str) -> Option<Granted> {
        let (directory, granted) = self.make_directory(name);
        for name in ["a", "b"] {
            drop(self.operate(0, AnswerTerms::Early, create(directory, name, libc::S_IFREG | 0o644, 0)));
        }
        let mut told = self.told(0).into_iter();
        granted.or_else(|| told.find(|held| held.level == WRITE && held.token.object == directory))
    }

    /// Returns the grants and recalls that a session was told of.
    fn told(&mut self, of: usize) -> Vec<Granted> {
        let told = messages(&mut self.controls[of]).into_iter();
        told.filter_map(|message| match message {
            VolumeMessage::Grant { held, .. } | VolumeMessage::Recall { held, .. } => Some(held),
            _ => None,
        })
        .collect()
    }

    /// The first session makes a file itself; returns it.
    fn make_locally(&mut self, directory: FileId, name: &str) -> FileId {
        let inode = self.numbers.next().expect("it has numbers");
        let operation = create(directory, name, libc::S_IFREG | 0o644, inode);
        drop(self.operate(0, AnswerTerms::Local { now_ns: 9 }, operation));
        FileId { inode, generation: 1 }
    }

    /// The first session makes a link itself whose target has so many bytes. Returns whether it goes on.
    fn link_locally(&mut self, directory: FileId, target_bytes: usize) -> bool {
        let inode = self.numbers.next().expect("it has numbers");
        let mut operation = create(directory, format!("link{target_bytes}"), libc::S_IFLNK | 0o777, inode);
        if let MetadataOperation::Create { target, .. } = &mut operation {
            *target = vec![b't'; target_bytes];
        }
        drop(self.operate(0, AnswerTerms::Local { now_ns: 9 }, operation));
        self.owner.image.is_active(self.sessions[0]).is_ok()
    }

    /// A session gives back all names and attributes that it is to give back now.
    fn give_all_back(&mut self, of: usize) {
        let session = self.sessions[of];
        for message in messages(&mut self.controls[of]) {
            match message {
                VolumeMessage::NameChange { number, .. } => {
                    self.owner.apply(OwnerRequest::NameDropped { session, number })
                }
                VolumeMessage::Recall { held, .. } if held.level == level::NONE => {
                    self.owner.apply(OwnerRequest::Return { session, held });
                }
                _ => {}
            }
        }
        self.owner.act();
    }

    /// The first session returns a directory.
    fn give_back(&mut self, held: Granted) {
        let (frames, _) = mpsc::unbounded_channel();
        let (session, reply) = (self.sessions[0], ReplySender::of_request(&frames, (self.sessions[0], 0, 1)));
        self.owner.apply(OwnerRequest::ReturnInOrder { session, held, reply });
        self.owner.act();
    }
}

/// Returns the inode that an answer shows.
fn shown(answers: &mut Received) -> Option<FileId> {
    messages(answers).into_iter().find_map(|message| match message {
        VolumeMessage::Looked { found, .. } => found.map(|found| found.id()),
        VolumeMessage::Answer(ServerAnswer::Attributes(found)) => Some(found.id()),
        VolumeMessage::Grant { held, .. } => Some(held.token.object),
        _ => None,
    })
}

/// A look at a file waits for the create that its host has answered itself and that is on its way.
#[tokio::test]
async fn handle_waits_for_incoming_create() {
    let mut pair = SessionPair::new("handle").await;
    let (directory, granted) = pair.make_directory("d");
    assert!(granted.is_some(), "it alone uses the directory above");
    settle(&mut pair.owner).await;
    // The host has made the file and told a program; what says so is on its way.
    let file = FileId { inode: pair.numbers.start, generation: 1 };
    let mut looked = pair.ask(1, MetadataQuestion::GetAttributes { file });
    let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    let mut changed = pair.operate(1, AnswerTerms::Early, MetadataOperation::SetAttributes { file, changes });
    settle(&mut pair.owner).await;
    assert!(messages(&mut looked).is_empty() && messages(&mut changed).is_empty(), "the server does not know it");
    let told = pair.told(0);
    let [recall] = told[..] else { panic!("{told:?}") };
    assert_eq!((recall.token.object, recall.level), (directory, level::READ));
    assert_eq!(pair.make_locally(directory, "file"), file);
    pair.give_back(recall);
    // It keeps the attributes, which change now.
    pair.give_all_back(0);
    settle(&mut pair.owner).await;
    assert_eq!(shown(&mut looked), Some(file));
    assert_eq!(shown(&mut changed), Some(file));
    // A number that nobody used is no inode, and each question is answered once.
    let mut looked =
        pair.ask(1, MetadataQuestion::GetAttributes { file: FileId { inode: file.inode + 1, generation: 1 } });
    settle(&mut pair.owner).await;
    let looked = messages(&mut looked);
    assert!(matches!(&looked[..], [VolumeMessage::Failure(failure)] if failure.errno == libc::ESTALE), "{looked:?}");
    assert!(pair.told(0).iter().all(|held| held.token.what != TokenAspect::Directory), "it holds nothing more");
}

/// Once its directory is returned, an unused inode number names nothing.
#[tokio::test]
async fn unused_number_is_no_inode() {
    let mut pair = SessionPair::new("unused").await;
    let (directory, _) = pair.make_directory("d");
    settle(&mut pair.owner).await;
    let file = FileId { inode: pair.numbers.start + 5, generation: 1 };
    let mut looked = pair.ask(1, MetadataQuestion::GetAttributes { file });
    assert!(messages(&mut looked).is_empty());
    let told = pair.told(0);
    let [recall] = told[..] else { panic!("{told:?}") };
    assert_eq!(recall.token.object, directory);
    pair.give_back(recall);
    settle(&mut pair.owner).await;
    let looked = messages(&mut looked);
    assert!(matches!(&looked[..], [VolumeMessage::Failure(failure)] if failure.errno == libc::ESTALE), "{looked:?}");
}

/// A session that makes a directory in one that others have listed does not hold it.
#[tokio::test]
async fn directory_in_listed_one_unheld() {
    let mut pair = SessionPair::new("listed").await;
    let (first, granted) = pair.make_directory("first");
    let granted = granted.expect("nobody has listed the one above");
    settle(&mut pair.owner).await;
    let mut listed = pair.ask(1, MetadataQuestion::ReadDirectory { directory: ROOT, cookie: 0, entries: 100 });
    let told = pair.told(0);
    let recall = told.iter().find(|held| held.level == level::READ).expect("the listing shows it");
    assert_eq!((recall.token.object, recall.sequence), (first, granted.sequence));
    pair.give_back(*recall);
    settle(&mut pair.owner).await;
    assert!(matches!(messages(&mut listed)[..], [VolumeMessage::Listed { .. }]));
    // The other session keeps the names of the root: each name that changes there is shown to it at once.
    let mut made = pair.operate(0, AnswerTerms::Early, create(ROOT, "second", libc::S_IFDIR | 0o755, 0));
    pair.give_all_back(1);
    settle(&mut pair.owner).await;
    assert!(shown(&mut made).is_some());
    assert_eq!(pair.told(0).iter().filter(|held| held.level == WRITE).count(), 0);
}

#[tokio::test]
async fn second_wait_withholds_directories() {
    let mut pair = SessionPair::new("second").await;
    let (_, first) = pair.make_directory("first");
    let first = first.expect("it alone uses the directory above");
    settle(&mut pair.owner).await;
    let mut listed = pair.ask(1, MetadataQuestion::ReadDirectory { directory: ROOT, cookie: 0, entries: 100 });
    let second = pair.use_directory("second").expect("the listing does not know of it");
    pair.give_back(Granted { level: level::READ, ..first });
    settle(&mut pair.owner).await;
    assert!(messages(&mut listed).is_empty(), "it shows the second one, too");
    assert_eq!(pair.use_directory("third"), None, "it would have to wait for this one next");
    pair.give_back(Granted { level: level::READ, ..second });
    settle(&mut pair.owner).await;
    assert!(matches!(messages(&mut listed)[..], [VolumeMessage::Listed { .. }]));
}

/// A file that was closed before its create is repeated is freed when its name goes, not only with the session.
#[tokio::test]
async fn repeated_create_opens_no_closed_file() {
    let mut pair = SessionPair::new("repeated").await;
    let session = pair.sessions[0];
    let mut made = create(ROOT, "file", libc::S_IFREG | 0o644, 0);
    if let MetadataOperation::Create { open, .. } = &mut made {
        *open = true;
    }
    let number = pair.owner.image.next_number(session);
    let mut answers = pair.operate(0, AnswerTerms::Early, made.clone());
    settle(&mut pair.owner).await;
    let file = shown(&mut answers).expect("it is made");
    drop(pair.ask(0, MetadataQuestion::Close { file }));
    // The client does not know yet that the create is durable.
    let (frames, mut again) = mpsc::unbounded_channel();
    let reply = ReplySender::of_request(&frames, (session, 0, 2));
    let terms = AnswerTerms::Repeated { now_ns: 9 };
    pair.owner.apply(OwnerRequest::Operate { session, number, terms, operation: made, reply });
    settle(&mut pair.owner).await;
    assert_eq!(shown(&mut again), Some(file));
    let name = b"file".to_vec();
    let unlink = MetadataOperation::Unlink { directory: ROOT, name, is_directory: false, expected: 0 };
    let mut removed = pair.operate(0, AnswerTerms::Early, unlink);
    pair.owner.background().await.expect("it goes on");
    settle(&mut pair.owner).await;
    assert_eq!(shown(&mut removed), Some(file));
    assert_eq!(pair.owner.image.attributes(file).map_err(|refusal| refusal.errno), Err(libc::ESTALE));
}

/// A session that returns nothing cannot make more names.
#[tokio::test]
async fn session_ignoring_recalls_is_limited() {
    /// More than the inode numbers that a session has in hand.
    const IN_HAND_MAX: usize = 2 * 1024;
    /// What may be kept while recalls are under way.
    const RECALLED_MAX: usize = 1 << 12;
    let mut pair = SessionPair::new("full").await;
    let (directory, _) = pair.make_directory("d");
    let session = pair.sessions[0];
    let (mut made, mut refused) = (0, None);
    while refused.is_none() && made < 2 * LOOKS_MAX {
        while !pair.numbers.is_empty() {
            pair.make_locally(directory, &format!("file{made}"));
            made += 1;
        }
        assert!(pair.owner.image.is_active(session).is_ok(), "it may do what it was allowed to");
        refused = pair.more_numbers().await.err();
        let acknowledged = pair.owner.image.next_number(session) - 1;
        pair.owner.apply(OwnerRequest::Acknowledge { session, acknowledged, drained: u64::MAX, is_answered: true });
        settle(&mut pair.owner).await;
    }
    assert_eq!(refused, Some(RefusalCode::Limit), "after {made}");
    assert!(pair.owner.grants.looks_count() <= LOOKS_MAX + RECALLED_MAX + IN_HAND_MAX);
    let told = pair.told(0);
    let is_recalled = |held: &Granted| held.token.object == directory && held.level == level::READ;
    assert!(told.iter().any(is_recalled), "it is to make no more itself");
    let (_, granted) = pair.make_directory("e");
    assert!(granted.is_none(), "and gets no directory");
    // It returns what was recalled: then it may go on.
    for held in told.into_iter().filter(|held| held.level == level::NONE) {
        pair.owner.apply(OwnerRequest::Return { session, held });
    }
    pair.owner.act();
    pair.more_numbers().await.expect("it keeps less");
}

#[tokio::test]
async fn longer_target_than_its_room_ends_session() {
    let mut pair = SessionPair::new("target").await;
    let (directory, _) = pair.make_directory("d");
    assert!(pair.link_locally(directory, crate::metadata::LOCAL_TARGET_BYTES_MAX));
    assert!(!pair.link_locally(directory, crate::metadata::LOCAL_TARGET_BYTES_MAX + 1));
}

#[tokio::test]
async fn room_follows_numbers_and_losses() {
    let mut pair = SessionPair::new("room").await;
    let (session, kept) = (pair.sessions[0], |pair: &SessionPair| pair.owner.image.room_kept());
    assert_eq!(kept(&pair), (512, false));
    let (directory, _) = pair.make_directory("d");
    pair.make_locally(directory, "file");
    pair.owner.act();
    assert_eq!(kept(&pair), (511, false), "a number that is used needs no room");
    pair.owner.evict(session, "a test");
    assert_eq!(kept(&pair), (0, false));
    settle(&mut pair.owner).await;
    // The next server does not know what the other session may repeat.
    let SessionPair { device, owner, sessions, .. } = pair;
    drop(owner);
    let (mut owner, ..) = MetadataOwner::start(device, &options(0, true, &[])).await.expect("it starts");
    assert_eq!(owner.image.room_kept(), (512, true));
    let (frames, _) = mpsc::unbounded_channel();
    let reply = ReplySender::of_request(&frames, (sessions[1], 0, 1));
    owner.apply(OwnerRequest::Reclaim { session: sessions[1], held: Vec::new(), is_last: false, reply });
    owner.act();
    assert_eq!(owner.image.room_kept(), (0, false), "it has repeated everything");
}
