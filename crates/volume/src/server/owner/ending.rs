//! Sessions that end without their own word: those whose processes are gone, and those that hold back space.
//!
//! Owns: what follows from the proof that a process has ended, and for how long a request without space counts as
//! waiting. Promises: a session that is proven gone is ended at once, and all that it held is free; a session that
//! holds back the reuse of freed blocks is ended like one that holds a token, and only its granted blocks stay set
//! aside. Leaves to others: the proof (`proofs`), and when a session is late (`tokens`).

use std::time::Duration;

use nectary_host::log::{LogLevel, write as log_line};
use tokio::time::Instant;

use super::super::connection::ReplySender;
use super::super::proofs::confirmed;
use super::super::request::HeldAnswer;
use super::MetadataOwner;
use crate::protocol::{MetadataQuestion, RefusalCode, ServerAnswer, ServerRefusal};

/// A request that found no space repeats itself soon; after this long without one, nobody waits for space.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Whether a question is about the processes of sessions.
pub(super) fn is_about_siblings(question: &MetadataQuestion) -> bool {
    matches!(question, MetadataQuestion::Siblings | MetadataQuestion::Gone { .. } | MetadataQuestion::Unproven)
}

impl MetadataOwner {
    /// Looks for sessions whose processes have ended on this host.
    pub(super) fn look_for_gone(&mut self) {
        let presence = &self.presence;
        self.proofs.look(&self.image.sessions(), |session| presence.silence(session).heard_ms);
    }

    /// Answers a question about the processes of sessions.
    pub(super) fn about_siblings(&mut self, session: u64, question: MetadataQuestion, reply: ReplySender) {
        let answer = self.image.is_active(session).and_then(|()| self.of_siblings(session, question));
        self.hold(HeldAnswer::Call(reply, answer));
    }

    fn of_siblings(&mut self, session: u64, question: MetadataQuestion) -> Result<ServerAnswer, ServerRefusal> {
        match question {
            MetadataQuestion::Siblings => {
                let presence = &self.presence;
                let silence = |session| presence.silence(session).heard_ms;
                return Ok(ServerAnswer::Siblings(self.proofs.siblings(session, &self.image.sessions(), silence)));
            }
            MetadataQuestion::Gone { siblings } => {
                let gone = confirmed(session, &siblings, &self.image.sessions())?;
                self.confirm_gone(&gone, &format!("session {session} of the same host says so"));
            }
            _ => self.journal.next.push(self.image.set_unproven(session)?),
        }
        Ok(ServerAnswer::Done)
    }

    /// Ends sessions whose processes write nothing any more.
    pub(super) fn confirm_gone(&mut self, gone: &[u64], why: &str) {
        for session in gone {
            let found = self.image.sessions().into_iter().find(|(number, _)| number == session);
            let Some((_, found)) = found else { continue };
            let host = found.host;
            match self.end(*session) {
                Ok(_) => {
                    let words = format!("session {session} of host {host} is over, and what it held is free");
                    log_line(LogLevel::Note, "volume", format_args!("{words}: its process has ended ({why})"));
                }
                Err(error) => {
                    log_line(LogLevel::Error, "volume", format_args!("session {session} cannot be ended: {error}"));
                }
            }
        }
    }

    /// Notes a request that found no space although some is being freed.
    pub(super) fn note_shortage(&mut self, failure: Option<&ServerRefusal>) {
        if failure.is_some_and(|failure| failure.code == RefusalCode::Full && failure.errno == libc::EAGAIN) {
            self.short_at = Some(Instant::now());
        }
    }

    /// Whether a request waits for space that is being freed.
    pub(super) fn is_space_awaited(&self) -> bool {
        self.short_at.is_some_and(|at| at.elapsed() < SHORTAGE)
    }

    /// Returns the sessions that hold back space which others wait for.
    pub(super) fn awaited_for_space(&self) -> Vec<u64> {
        match self.is_space_awaited() {
            true => self.image.holding_back(),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::tests::{ask, begin, create_file, messages, new_owner, operate, settle};
    use super::super::*;
    use super::*;
    use crate::format::{ExtentState, SpaceRecord, TableKey};
    use crate::protocol::{MappedExtent, SiblingSession};

    /// Grants a session space; returns its first block.
    fn grant(owner: &mut MetadataOwner, session: u64) -> u64 {
        match ask(owner, session, &MetadataQuestion::Space { blocks: 8 }) {
            ServerAnswer::Space(granted) => granted[0].block,
            other => panic!("{other:?}"),
        }
    }

    fn state(owner: &MetadataOwner, block: u64) -> Option<ExtentState> {
        let value = owner.image.tables().get(&TableKey::Space(block))?;
        Some(SpaceRecord::decode(value).expect("it decodes").state)
    }

    /// Answers a question that came on a connection.
    async fn answered(owner: &mut MetadataOwner, session: u64, question: MetadataQuestion) -> VolumeMessage {
        let (frames, mut answers) = mpsc::unbounded_channel();
        owner.apply(OwnerRequest::Ask { session, question, reply: ReplySender::for_test(&frames, 1) });
        settle(owner).await;
        messages(&mut answers).pop().expect("it is answered")
    }

    #[tokio::test]
    async fn wait_for_space_ends_silent_session() {
        let mut owner = new_owner("ending").await;
        let (writer, silent) = (begin(&mut owner, 1), begin(&mut owner, 2));
        let made = operate(&mut owner, writer, create_file("file", false));
        let ServerAnswer::Attributes(made) = made else { panic!("{made:?}") };
        let (file, block, held) = (made.id(), grant(&mut owner, writer), grant(&mut owner, silent));
        let extents = vec![MappedExtent { file_block: 0, blocks: 8, block, is_unwritten: false }];
        let commit = MetadataOperation::Commit {
            file,
            truncate_generation: 0,
            size: 32768,
            modified_ns: 1,
            changed_ns: 1,
            extents,
        };
        operate(&mut owner, writer, commit);
        operate(&mut owner, writer, MetadataOperation::Truncate { file, size: 0 });
        settle(&mut owner).await;
        assert_eq!(state(&owner, block), Some(ExtentState::Draining));
        tokio::time::pause();
        let later = async |owner: &mut MetadataOwner, wait: Duration, is_short: bool| {
            tokio::time::advance(wait + Duration::from_millis(1)).await;
            let (session, drained) = (writer, u64::MAX);
            owner.apply(OwnerRequest::Acknowledge { session, acknowledged: 0, drained, is_answered: true });
            if is_short {
                owner.note_shortage(Some(&ServerRefusal {
                    code: RefusalCode::Full,
                    errno: libc::EAGAIN,
                    words: String::new(),
                }));
            }
            owner.end_late_sessions();
        };
        let lease = Duration::from_millis(SESSION_LEASE_MS.into()) + DRIFT;
        for _ in 0..2 {
            later(&mut owner, lease, false).await;
        }
        assert!(owner.image.is_active(silent).is_ok(), "nobody waits for space");
        later(&mut owner, Duration::ZERO, true).await;
        assert!(owner.image.is_active(silent).is_ok() && owner.shared.barred().contains(&silent));
        later(&mut owner, Duration::from_millis(100), true).await;
        assert!(owner.image.is_active(silent).is_err() && owner.image.is_active(writer).is_ok());
        tokio::time::resume();
        owner.background().await.expect("it goes on");
        assert_eq!((state(&owner, block), state(&owner, held)), (None, Some(ExtentState::Granted)));
        assert_eq!(owner.overview().set_aside, [(silent, "h".to_owned())]);
    }

    /// A server that runs for longer than a lease has heard a session that begins, although it has not renewed yet.
    #[tokio::test]
    async fn new_session_is_not_silent() {
        let mut owner = new_owner("ending").await;
        let earlier = begin(&mut owner, 1);
        let (_, session) = owner.image.sessions().pop().expect("it is there");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11)).await;
        let session = SessionRecord { incarnation: [2; 16], ..session };
        owner.apply(OwnerRequest::Begin { session, connection: 1, reply: tokio::sync::oneshot::channel().0 });
        let began = owner.image.sessions().pop().expect("it is there").0;
        let silence = |session| Duration::from_millis(owner.presence.silence(session).answered_ms);
        assert!(began != earlier && silence(began) < LEASE_AND_DRIFT && silence(earlier) > LEASE_AND_DRIFT);
        let silent: Vec<u64> = owner.overview().silent.into_iter().map(|(number, _)| number).collect();
        assert_eq!(silent, [earlier]);
        // What an operator says is gone cannot renew its lease, if it is not.
        owner.apply(OwnerRequest::Release { session: earlier, reply: tokio::sync::oneshot::channel().0 });
        assert!(owner.image.is_active(earlier).is_err() && owner.shared.barred().contains(&earlier));
        // What it still says is no renewal.
        let (acknowledged, drained, is_answered) = (0, 0, true);
        owner.apply(OwnerRequest::Acknowledge { session: earlier, acknowledged, drained, is_answered });
        assert!(Duration::from_millis(owner.presence.silence(earlier).answered_ms) > LEASE_AND_DRIFT);
    }

    #[tokio::test]
    async fn siblings_word_frees_what_was_held() {
        let mut owner = new_owner("ending").await;
        let mut begin_at = |incarnation, boot| {
            let model = begin(&mut owner, incarnation);
            let (_, model) =
                owner.image.sessions().into_iter().find(|(number, _)| *number == model).expect("it is there");
            owner.end(owner.image.sessions().last().expect("it is there").0).expect("it ends");
            let session = SessionRecord { incarnation: [incarnation; 16], boot, ..model };
            let (number, transaction) = owner.image.begin_session(&session).expect("it begins");
            owner.journal.next.push(transaction);
            number
        };
        let (teller, killed, elsewhere) = (begin_at(1, 5), begin_at(2, 5), begin_at(3, 6));
        let held = grant(&mut owner, killed);
        settle(&mut owner).await;
        [killed, elsewhere].iter().for_each(|session| owner.proofs.left(*session));
        let sibling = |session, incarnation| SiblingSession { session, incarnation: [incarnation; 16] };
        let named = answered(&mut owner, teller, MetadataQuestion::Siblings).await;
        assert_eq!(named, VolumeMessage::Answer(ServerAnswer::Siblings(vec![sibling(killed, 2)])));
        let siblings = vec![sibling(killed, 2), sibling(elsewhere, 3)];
        let refused = answered(&mut owner, teller, MetadataQuestion::Gone { siblings }).await;
        assert!(
            matches!(refused, VolumeMessage::Failure(ServerRefusal { code: RefusalCode::Conflict, .. })),
            "{refused:?}"
        );
        assert_eq!(state(&owner, held), Some(ExtentState::Granted), "a word that is partly wrong changes nothing");
        let told = answered(&mut owner, teller, MetadataQuestion::Gone { siblings: vec![sibling(killed, 2)] }).await;
        assert_eq!((told, state(&owner, held)), (VolumeMessage::Answer(ServerAnswer::Done), None));
        assert!(owner.image.is_active(killed).is_err() && owner.image.is_active(elsewhere).is_ok());
        // A session whose disk failed a write can neither be proven gone nor prove anything.
        assert_eq!(
            answered(&mut owner, teller, MetadataQuestion::Unproven).await,
            VolumeMessage::Answer(ServerAnswer::Done)
        );
        let boots: Vec<u64> = owner.image.sessions().iter().map(|(_, session)| session.boot).collect();
        assert_eq!(boots, [0, 6]);
        assert_eq!(crate::metadata::check(owner.image.tables(), &owner.shared.label), Vec::<String>::new());
    }
}
