//! Answers that show a file while another session writes to it: they are of one moment, after a bounded number of waits.
//!
//! Owns: single messages in a chosen order. Leaves to others: whole clients (`volume-names` of the campaigns).

use tokio::sync::mpsc;

use super::tests::{ROOT, begin, create_file, messages, new_owner, settle};
use super::*;
use crate::protocol::{AnswerTerms, MetadataOperation, Token, TokenAspect, TokenGrant as Granted};
use crate::tokens::{RecallReason, level};

type Received = mpsc::UnboundedReceiver<Vec<u8>>;

/// A server, a session that writes to a file, and one that looks at it.
struct WriterScene {
    owner: MetadataOwner,
    writer: u64,
    looker: u64,
    control: Received,
    file: FileId,
    held: Granted,
}

impl WriterScene {
    /// The writer makes the file `a`, and has its token.
    async fn new(name: &str) -> WriterScene {
        let mut owner = new_owner(&format!("moments-{name}")).await;
        let (writer, looker) = (begin(&mut owner, 1), begin(&mut owner, 2));
        let (frames, control) = mpsc::unbounded_channel();
        owner.apply(OwnerRequest::Controlled { session: writer, connection: 0, frames });
        let token = Token { object: ROOT, what: TokenAspect::Data };
        let held = Granted { token, level: level::NONE, sequence: 0 };
        let mut scene = WriterScene { owner, writer, looker, control, file: ROOT, held };
        scene.held = scene.make("a").await;
        scene.file = scene.held.token.object;
        scene
    }

    /// The writer makes a file and gets its token. The token may be recalled when this returns.
    async fn make(&mut self, name: &str) -> Granted {
        let mut answers = self.operate(create_file(name, true));
        settle(&mut self.owner).await;
        tokio::time::sleep(Duration::from_millis(2 * crate::tokens::MINIMUM_MS)).await;
        let granted = messages(&mut answers).into_iter().find_map(|message| match message {
            VolumeMessage::Grant { held, .. } => Some(held),
            _ => None,
        });
        granted.expect("nobody else has it")
    }

    /// The writer sends an operation.
    fn operate(&mut self, operation: MetadataOperation) -> Received {
        let (frames, answers) = mpsc::unbounded_channel();
        let (session, terms) = (self.writer, AnswerTerms::Early);
        let (number, reply) =
            (self.owner.image.next_number(session), ReplySender::of_request(&frames, (session, 0, 1)));
        self.owner.apply(OwnerRequest::Operate { session, number, terms, operation, reply });
        self.owner.act();
        answers
    }

    fn link(&mut self, name: &str) {
        let name = name.as_bytes().to_vec();
        drop(self.operate(MetadataOperation::Link { file: self.file, directory: ROOT, name }));
    }

    fn commit(&mut self, file: FileId, size: u64) {
        let (truncate_generation, modified_ns, changed_ns, extents) = (0, 1, 1, Vec::new());
        let commit = MetadataOperation::Commit { file, truncate_generation, size, modified_ns, changed_ns, extents };
        drop(self.operate(commit));
    }

    /// The writer says that it has committed, or gives a token back.
    fn give(&mut self, held: Granted, level: u8) {
        self.owner.apply(OwnerRequest::Return { session: self.writer, held: Granted { level, ..held } });
        self.owner.act();
    }

    /// The other session asks.
    fn ask(&mut self, question: MetadataQuestion) -> Received {
        let (frames, answers) = mpsc::unbounded_channel();
        let (session, reply) = (self.looker, ReplySender::of_request(&frames, (self.looker, 0, 1)));
        self.owner.apply(OwnerRequest::Ask { session, question, reply });
        self.owner.act();
        answers
    }

    /// Returns what the writer must give back or commit: inode, level and reason.
    fn recalled(&mut self) -> Vec<(u64, u8, u8)> {
        let told = messages(&mut self.control).into_iter();
        told.filter_map(|message| match message {
            VolumeMessage::Recall { held, why } if held.token.what == TokenAspect::Data => {
                Some((held.token.object.inode, held.level, why))
            }
            _ => None,
        })
        .collect()
    }

    /// Returns links and size in an answer, if it has come.
    async fn shown(&mut self, answers: &mut Received) -> Option<(u32, u64)> {
        settle(&mut self.owner).await;
        messages(answers).into_iter().find_map(|message| match message {
            VolumeMessage::Looked { found, .. } => found.map(|found| (found.inode.links, found.inode.size)),
            VolumeMessage::Answer(ServerAnswer::Attributes(found)) => Some((found.inode.links, found.inode.size)),
            _ => None,
        })
    }
}

const COMMIT: u8 = RecallReason::Commit as u8;
const CONFLICT: u8 = RecallReason::Conflict as u8;

/// The writer commits, writes, and links, in this order. The new name comes to the server before the word that the commit
/// is done: a `stat` does not show it without the write. In the second wait the names may change, too.
#[tokio::test]
async fn stat_shows_one_moment() {
    let mut scene = WriterScene::new("one").await;
    let (file, held) = (scene.file, scene.held);
    let mut looked = scene.ask(MetadataQuestion::GetAttributes { file });
    assert_eq!(scene.recalled(), [(file.inode, level::WRITE, COMMIT)]);
    scene.link("b");
    scene.give(held, level::WRITE);
    assert_eq!(scene.shown(&mut looked).await, None, "two names without the write never were");
    assert_eq!(scene.recalled(), [(file.inode, level::READ, CONFLICT)]);
    scene.link("c");
    scene.commit(file, 8);
    assert_eq!(scene.shown(&mut looked).await, None);
    scene.give(held, level::READ);
    assert_eq!(scene.shown(&mut looked).await, Some((3, 8)));
    assert_eq!((scene.recalled(), scene.owner.grants.waiting().count()), (Vec::new(), 0));
}

/// Without another change one commit is enough, and the writer keeps its token.
#[tokio::test]
async fn stat_needs_one_commit() {
    let mut scene = WriterScene::new("commit").await;
    let (file, held) = (scene.file, scene.held);
    scene.link("b");
    let mut looked = scene.ask(MetadataQuestion::GetAttributes { file });
    scene.commit(file, 8);
    scene.give(held, level::WRITE);
    assert_eq!(scene.shown(&mut looked).await, Some((2, 8)));
    assert_eq!(scene.recalled(), [(file.inode, level::WRITE, COMMIT)]);
}

/// A name that became that of another file while its question waited shows what was written to that one.
#[tokio::test]
async fn renamed_file_commits_too() {
    let mut scene = WriterScene::new("renamed").await;
    let other = scene.make("other").await;
    let mut looked = scene.ask(MetadataQuestion::Lookup { directory: ROOT, name: b"a".to_vec() });
    assert_eq!(scene.recalled(), [(scene.file.inode, level::WRITE, COMMIT)]);
    let (directory, name, new_name) = (ROOT, b"other".to_vec(), b"a".to_vec());
    drop(scene.operate(MetadataOperation::Rename { directory, name, new_directory: ROOT, new_name, flags: 0 }));
    scene.give(scene.held, level::WRITE);
    assert_eq!(scene.shown(&mut looked).await, None, "the writer has what was written");
    let file = other.token.object;
    assert_eq!(scene.recalled(), [(file.inode, level::READ, CONFLICT)]);
    scene.commit(file, 24);
    scene.give(other, level::READ);
    assert_eq!(scene.shown(&mut looked).await, Some((1, 24)));
}

/// If the writer is lost in the second wait, the question is answered; if the one who asked is lost, nothing waits.
#[tokio::test]
async fn lost_sessions_end_second_wait() {
    for is_writer in [true, false] {
        let mut scene = WriterScene::new(&format!("lost{is_writer}")).await;
        let (file, held) = (scene.file, scene.held);
        let mut looked = scene.ask(MetadataQuestion::GetAttributes { file });
        scene.link("b");
        scene.give(held, level::WRITE);
        assert_eq!(scene.recalled().last(), Some(&(file.inode, level::READ, CONFLICT)));
        assert_eq!(scene.shown(&mut looked).await, None);
        let lost = if is_writer { scene.writer } else { scene.looker };
        scene.owner.evict(lost, "a test");
        scene.owner.act();
        assert_eq!(scene.shown(&mut looked).await, is_writer.then_some((2, 0)));
        assert_eq!(scene.owner.grants.waiting().count(), 0);
    }
}
