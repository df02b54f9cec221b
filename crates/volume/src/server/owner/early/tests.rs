//! Answers that leave before the disk has stored what they say: seeded runs, planted defects, and single cases.
//!
//! `NECTARY_RUNS` and `NECTARY_SEED` say how many runs there are, and which is the first.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::MemoryDevice;
use tokio::sync::mpsc;

use super::super::super::connection::ReplySender;
use super::super::super::request::OwnerRequest;
use super::super::MetadataOwner;
use super::super::tests::{begin, messages, operate, settle};
use super::EarlyDefect;
use super::disk::SurvivingDisk;
use super::run::{EarlyTestRun, ROOT, create, formatted, options};
use crate::protocol::{
    AnswerTerms, AttributeChanges, FileId, InodeAttributes, MetadataOperation, MetadataQuestion, ServerAnswer, Token,
    TokenAspect, VolumeMessage,
};
use crate::tokens::level;

const RUNS: u64 = 150;
/// The number of runs after which a defect must be found.
const DEFECT_RUNS: u64 = 400;
const DIRECTORY: u32 = libc::S_IFDIR | 0o755;

const DEFECTS: [EarlyDefect; 11] = [
    EarlyDefect::NextIgnored,
    EarlyDefect::InFlightIgnored,
    EarlyDefect::QuestionsUnchecked,
    EarlyDefect::OutOfOrder,
    EarlyDefect::StoredTooEarly,
    EarlyDefect::OtherNumber,
    EarlyDefect::OtherTime,
    EarlyDefect::GraceIgnored,
    EarlyDefect::QuestionsUngraced,
    EarlyDefect::DependenceIgnored,
    EarlyDefect::UntoldShown,
];

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test]
async fn what_was_answered_survives_each_crash() {
    let snapshot = formatted().await;
    let (first, runs) = (number_from("NECTARY_SEED", 1), number_from("NECTARY_RUNS", RUNS));
    let (mut early, mut crashes, mut repeated, mut checked, mut kept) = (0, 0, 0, 0, 0);
    for seed in first..first + runs {
        let mut run = EarlyTestRun::new(&snapshot, seed, None).await;
        run.go().await.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        early += run.early;
        crashes += run.crashes;
        repeated += run.repeated;
        checked += run.checked;
        kept += run.kept;
    }
    println!(
        "{runs} runs: {checked} answers checked, {early} of them early, {crashes} crashes, {repeated} repeated, \
         {kept} attributes kept"
    );
    assert!(early > 10 * runs && crashes > runs && repeated > runs && kept > runs, "too little happened");
}

#[tokio::test]
async fn early_answer_defects_are_caught() {
    let snapshot = formatted().await;
    for defect in DEFECTS {
        let mut found = None;
        for seed in 1..=DEFECT_RUNS {
            if let Err(problem) = EarlyTestRun::new(&snapshot, seed, Some(defect)).await.go().await {
                found = Some((seed, problem));
                break;
            }
        }
        let (seed, problem) = found.unwrap_or_else(|| panic!("{defect:?} is not found in {DEFECT_RUNS} runs"));
        println!("{defect:?}: seed {seed}: {problem}");
    }
}

/// Sends an operation; returns the messages that come at once.
fn all_sent(
    owner: &mut MetadataOwner,
    session: u64,
    terms: AnswerTerms,
    operation: MetadataOperation,
) -> Vec<VolumeMessage> {
    let (frames, mut answers) = mpsc::unbounded_channel();
    let number = owner.image.next_number(session);
    let reply = ReplySender::of_request(&frames, (session, 0, 1));
    owner.apply(OwnerRequest::Operate { session, number, terms, operation, reply });
    owner.act();
    messages(&mut answers)
}

/// The same without what the session may keep.
fn sent(
    owner: &mut MetadataOwner,
    session: u64,
    terms: AnswerTerms,
    operation: MetadataOperation,
) -> Vec<VolumeMessage> {
    let mut all = all_sent(owner, session, terms, operation);
    all.retain(|message| !matches!(message, VolumeMessage::MayKeep(_)));
    all
}

async fn owner_of(disk: &Arc<SurvivingDisk>) -> MetadataOwner {
    MetadataOwner::start(disk.clone(), &options()).await.expect("it starts").0
}

/// Whether a directory that moves to another parent waits for the disk, and one that keeps its parent does not.
async fn moves_wait(defect: Option<EarlyDefect>) -> bool {
    let disk = Arc::new(SurvivingDisk(MemoryDevice::from_snapshot(&formatted().await)));
    let mut owner = owner_of(&disk).await;
    owner.early.defect = defect;
    let session = begin(&mut owner, 1);
    let mut make = |name: &[u8]| match operate(&mut owner, session, create(ROOT, name.to_vec(), DIRECTORY)) {
        ServerAnswer::Attributes(made) => made.id(),
        other => panic!("{other:?}"),
    };
    let (_, to) = (make(b"from"), make(b"to"));
    settle(&mut owner).await;
    let mut rename = |name: &[u8], new_directory, new_name: &[u8]| {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        let rename = MetadataOperation::Rename { directory: ROOT, name, new_directory, new_name, flags: 0 };
        sent(&mut owner, session, AnswerTerms::Early, rename)
    };
    let renamed = rename(b"from", ROOT, b"here");
    assert!(
        matches!(&renamed[..], [VolumeMessage::Early { .. }, VolumeMessage::Answer(ServerAnswer::Renamed(of))] if of.len() == 1)
    );
    let is_held = rename(b"here", to, b"there").is_empty();
    // What it did is not shown before it is durable, as the session was not told of it.
    let question = || MetadataQuestion::Lookup { directory: to, name: b"there".to_vec() };
    assert!(!is_held || asked(&mut owner, session, question()).is_empty());
    settle(&mut owner).await;
    assert_eq!(asked(&mut owner, session, question()).len(), 1);
    is_held
}

/// Asks a question; returns what is answered at once.
fn asked(owner: &mut MetadataOwner, session: u64, question: MetadataQuestion) -> Vec<VolumeMessage> {
    let (frames, mut answers) = mpsc::unbounded_channel();
    let reply = ReplySender::of_request(&frames, (session, 0, 1));
    owner.apply(OwnerRequest::Ask { session, question, reply });
    owner.act();
    messages(&mut answers)
}

/// Two sessions, and a file that is durable.
async fn two_sessions() -> (MetadataOwner, [u64; 2], FileId) {
    let disk = Arc::new(SurvivingDisk(MemoryDevice::from_snapshot(&formatted().await)));
    let mut owner = owner_of(&disk).await;
    let sessions = [begin(&mut owner, 1), begin(&mut owner, 2)];
    let made = operate(&mut owner, sessions[0], create(ROOT, b"file".to_vec(), libc::S_IFREG | 0o644));
    settle(&mut owner).await;
    let ServerAnswer::Attributes(made) = made else { panic!("{made:?}") };
    (owner, sessions, made.id())
}

fn chmod(file: FileId) -> MetadataOperation {
    MetadataOperation::SetAttributes {
        file,
        changes: AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() },
    }
}

/// The answer to a change tells which names and attributes the session may keep.
#[tokio::test]
async fn change_answer_allows_caching() {
    let (mut owner, [first, second], _) = two_sessions().await;
    let all = all_sent(&mut owner, first, AnswerTerms::Early, create(ROOT, b"made".to_vec(), DIRECTORY));
    let [
        VolumeMessage::Early { .. },
        VolumeMessage::MayKeep(may_keep),
        VolumeMessage::Answer(ServerAnswer::Attributes(made)),
    ] = &all[..]
    else {
        panic!("{all:?}")
    };
    let made = made.id();
    assert_eq!(may_keep.directories, [ROOT, made]);
    assert_eq!(may_keep.attributes.iter().map(InodeAttributes::id).collect::<Vec<_>>(), [ROOT, made]);
    settle(&mut owner).await;
    // Another session may not change it before it is given back.
    assert!(all_sent(&mut owner, second, AnswerTerms::Early, chmod(made)).is_empty());
    assert!(owner.changing.is_waiting(second));
    settle(&mut owner).await;
    assert!(owner.changing.is_waiting(second));
    owner.confirm_gone(&[first], "it is over");
    owner.act();
    assert!(!owner.changing.is_waiting(second));
}

#[tokio::test]
async fn exchange_and_whiteout_wait_for_disk() {
    let (mut owner, [session, _], _) = two_sessions().await;
    let made = operate(&mut owner, session, create(ROOT, b"directory".to_vec(), DIRECTORY));
    let ServerAnswer::Attributes(made) = made else { panic!("{made:?}") };
    operate(&mut owner, session, create(made.id(), b"inner".to_vec(), DIRECTORY));
    settle(&mut owner).await;
    let names = || (b"file".to_vec(), b"inner".to_vec());
    for flags in [libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT] {
        let ((name, new_name), new_directory) = (names(), made.id());
        let rename = MetadataOperation::Rename { directory: ROOT, name, new_directory, new_name, flags };
        assert!(sent(&mut owner, session, AnswerTerms::Early, rename).is_empty(), "{flags}");
        settle(&mut owner).await;
    }
}

/// Changes of an ended session are shown only when the disk has stored them.
#[tokio::test]
async fn changes_of_ended_session_wait() {
    let (mut owner, [first, second], file) = two_sessions().await;
    assert_eq!(sent(&mut owner, first, AnswerTerms::Early, chmod(file)).len(), 2);
    owner.confirm_gone(&[first], "it is over");
    assert!(asked(&mut owner, second, MetadataQuestion::GetAttributes { file }).is_empty());
    settle(&mut owner).await;
    assert_eq!(asked(&mut owner, second, MetadataQuestion::GetAttributes { file }).len(), 1);
}

#[tokio::test]
async fn tokens_show_others_what_is_durable() {
    let (mut owner, [first, second], file) = two_sessions().await;
    assert_eq!(sent(&mut owner, first, AnswerTerms::Early, chmod(file)).len(), 2);
    let (frames, mut answers) = mpsc::unbounded_channel();
    let token = Token { object: file, what: TokenAspect::Data };
    let reply = ReplySender::of_request(&frames, (second, 0, 1));
    owner.apply(OwnerRequest::Acquire { session: second, wanted: (token, level::READ, true), reply });
    owner.act();
    assert!(messages(&mut answers).is_empty());
    settle(&mut owner).await;
    assert!(matches!(messages(&mut answers)[..], [VolumeMessage::Grant { .. }]));
}

#[tokio::test]
async fn nothing_is_early_with_slow_disk() {
    let (mut owner, [session, _], file) = two_sessions().await;
    tokio::time::pause();
    assert_eq!(sent(&mut owner, session, AnswerTerms::Early, chmod(file)).len(), 2);
    owner.begin_append().expect("it begins");
    assert_eq!(sent(&mut owner, session, AnswerTerms::Early, chmod(file)).len(), 2);
    tokio::time::advance(Duration::from_millis(1100)).await;
    assert!(sent(&mut owner, session, AnswerTerms::Early, chmod(file)).is_empty());
    assert!(asked(&mut owner, session, MetadataQuestion::GetAttributes { file }).is_empty());
}

#[tokio::test]
async fn directory_moves_wait_for_disk() {
    assert!(moves_wait(None).await && !moves_wait(Some(EarlyDefect::MovesEarly)).await);
}

#[tokio::test]
async fn numbers_of_lost_creates_stay_used() {
    let disk = Arc::new(SurvivingDisk(MemoryDevice::from_snapshot(&formatted().await)));
    let mut owner = owner_of(&disk).await;
    let session = begin(&mut owner, 1);
    settle(&mut owner).await;
    let mut numbers = Vec::new();
    // Each server loses what it has answered.
    for _ in 0..3 {
        let mut owner = owner_of(&disk).await;
        let (frames, _) = mpsc::unbounded_channel();
        let reply = ReplySender::of_request(&frames, (session, 0, 1));
        owner.apply(OwnerRequest::Reclaim { session, held: Vec::new(), is_last: true, reply });
        let answers = sent(&mut owner, session, AnswerTerms::Early, create(ROOT, b"lost".to_vec(), DIRECTORY));
        let [VolumeMessage::Early { .. }, VolumeMessage::Answer(ServerAnswer::Attributes(made))] = &answers[..] else {
            panic!("{answers:?}")
        };
        numbers.push(made.number);
    }
    assert!(numbers.is_sorted_by(|first, second| first < second), "{numbers:?}");
}

/// Whether a session is ended that repeats an operation which fails, or which comes when others may have been shown
/// something.
async fn is_ended(is_late: bool, defect: Option<EarlyDefect>) -> bool {
    let disk = Arc::new(SurvivingDisk(MemoryDevice::from_snapshot(&formatted().await)));
    let mut owner = owner_of(&disk).await;
    let session = begin(&mut owner, 1);
    operate(&mut owner, session, create(ROOT, b"there".to_vec(), DIRECTORY));
    settle(&mut owner).await;
    let mut owner = owner_of(&disk).await;
    owner.early.defect = defect;
    let name: &[u8] = if is_late { b"new" } else { b"there" };
    if is_late {
        let (frames, _) = mpsc::unbounded_channel();
        let reply = ReplySender::of_request(&frames, (session, 0, 1));
        owner.apply(OwnerRequest::Reclaim { session, held: Vec::new(), is_last: true, reply });
    }
    sent(&mut owner, session, AnswerTerms::Repeated { now_ns: 1 }, create(ROOT, name.to_vec(), DIRECTORY));
    owner.image.is_active(session).is_err()
}

/// A new server frees what had lost its last name and was open nowhere, before sessions repeat anything. So a change of it
/// is refused: it could not be repeated, and the session would be ended.
#[tokio::test]
async fn change_of_freed_file_is_refused() {
    let disk = Arc::new(SurvivingDisk(MemoryDevice::from_snapshot(&formatted().await)));
    let mut owner = owner_of(&disk).await;
    let [first, second] = [begin(&mut owner, 1), begin(&mut owner, 2)];
    let create_file = create(ROOT, b"file".to_vec(), libc::S_IFREG | 0o644);
    let ServerAnswer::Attributes(made) = operate(&mut owner, first, create_file) else { panic!("it is made") };
    let (directory, name) = (ROOT, b"file".to_vec());
    operate(&mut owner, second, MetadataOperation::Unlink { directory, name, is_directory: false, expected: 0 });
    settle(&mut owner).await;
    let answers = sent(&mut owner, first, AnswerTerms::Early, chmod(made.id()));
    assert!(answers.is_empty(), "a refusal waits for the disk, so that it is not repeated: {answers:?}");
    let mut owner = owner_of(&disk).await;
    owner.background().await.expect("it is freed");
    sent(&mut owner, first, AnswerTerms::Early, chmod(made.id()));
    assert!(owner.image.is_active(first).is_ok());
}

#[tokio::test]
async fn wrong_repetitions_end_their_session() {
    for (is_late, defect) in [(true, EarlyDefect::RepeatedLate), (false, EarlyDefect::ResultIgnored)] {
        assert!(is_ended(is_late, None).await && !is_ended(is_late, Some(defect)).await, "{defect:?}");
    }
}
