//! Crashes of a simulated server, and what must be there before anybody is shown anything.
//!
//! Owns: the loss of the server and of a session, repeating, and the comparison. Leaves to others: everything between two
//! crashes (`run`).
//!
//! *Circle*: a crash is a step of a run.

use std::collections::{BTreeSet, VecDeque};

use super::run::{
    DIRECTORIES, DoneOperation, EarlyTestHost, EarlyTestRun, Outcome, QueuedRequest, ROOT, SESSIONS, STAMP, options,
    shown,
};
use crate::format::{Mutation, MutationAction, TableKey, TableKind};
use crate::metadata::MetadataImage;
use crate::protocol::{AnswerTerms, FileId, InodeAttributes, MetadataQuestion};
use crate::server::owner::MetadataOwner;
use crate::server::owner::tests::begin;
use crate::server::waits::appended;

impl EarlyTestRun {
    /// Returns the state that these operations give.
    pub fn image_of<'a>(&self, done: impl Iterator<Item = &'a DoneOperation>) -> MetadataImage {
        let mut image = MetadataImage::load(self.base.clone(), &self.label, 1).expect("it is sound");
        for done in done.filter(|done| !done.is_refused) {
            let number = image.next_number(done.session);
            let _ = image.operate_again(STAMP, done.session, number, &done.operation);
        }
        image
    }

    /// The server is lost; and with it, sometimes, a session.
    pub async fn crash(&mut self) -> Outcome {
        self.crashes += 1;
        let is_stored = self.random.below(2) == 0;
        if is_stored && self.owner.journal.in_flight.is_some() {
            let (_, stored) = appended(&mut self.owner.journal.in_flight).await;
            stored.map_err(|error| error.to_string())?;
            self.durable = self.in_flight;
        }
        let lost = (self.random.below(3) == 0).then(|| self.random.below(SESSIONS as u64) as usize);
        // What each living session was told is to stay true.
        let living: BTreeSet<u64> =
            (0..SESSIONS).filter(|host| Some(*host) != lost).map(|host| self.hosts[host].session).collect();
        let is_whole = !self.is_recovering;
        if is_whole {
            self.history = self.done.clone();
        }
        let key = |done: &DoneOperation| (done.session, done.number);
        let mut left: BTreeSet<(u64, u64)> = self.done[..self.durable].iter().map(key).collect();
        let hosts = self.hosts.iter().filter(|host| living.contains(&host.session));
        left.extend(hosts.flat_map(|host| host.unstored.values().map(|(number, ..)| (host.session, *number))));
        let stays: Vec<DoneOperation> = self.history.iter().filter(|done| left.contains(&key(done))).cloned().collect();
        let expected = self.image_of(stays.iter());
        let is_kept = is_whole && stays.len() == self.history.len();
        let times = if is_kept { self.times_to_keep(&living) } else { Vec::new() };
        let (owner, ..) =
            MetadataOwner::start(self.device.clone(), &options()).await.map_err(|error| error.to_string())?;
        self.owner = owner;
        self.owner.early.defect = self.defect;
        self.done.truncate(self.durable);
        (self.in_flight, self.seen_in_batch) = (self.durable, 0);
        for host in 0..SESSIONS {
            let this = &mut self.hosts[host];
            this.out.clear();
            this.asking.clear();
            this.early.clear();
            this.may_keep.clear();
            this.is_reclaimed = false;
            if Some(host) == lost {
                (this.frames, this.control) = (None, None);
                continue;
            }
            self.resend(host);
            self.connect(host);
        }
        self.recover(lost, &expected, &times).await
    }

    /// A session sends what is not known to be durable, and what has no answer, as on a new connection.
    fn resend(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let again = this.unstored.iter().map(|(request, (number, terms, operation))| QueuedRequest::Operation {
            request: *request,
            number: *number,
            terms: *terms,
            operation: operation.clone(),
        });
        let mut out: VecDeque<QueuedRequest> = again.collect();
        let waiting = this.waiting.iter().map(|(request, (number, operation))| QueuedRequest::Operation {
            request: *request,
            number: *number,
            terms: AnswerTerms::Early,
            operation: operation.clone(),
        });
        out.extend(waiting);
        out.push_back(QueuedRequest::Reclaim);
        this.out = out;
    }

    /// Returns inodes whose present state a living session has seen. If nothing will be lost, they stay as they are, with
    /// all times.
    fn times_to_keep(&self, living: &BTreeSet<u64>) -> Vec<InodeAttributes> {
        let hosts = self.hosts.iter().filter(|host| living.contains(&host.session));
        let seen = hosts.flat_map(|host| host.seen.values());
        seen.filter(|seen| self.owner.image.attributes(seen.id()).is_ok_and(|now| now == **seen)).cloned().collect()
    }

    /// The living sessions repeat what they were told; then everything is as they were told.
    async fn recover(&mut self, lost: Option<usize>, expected: &MetadataImage, times: &[InodeAttributes]) -> Outcome {
        self.is_recovering = true;
        let mut lost = lost;
        // Sessions repeat in any order; a second crash may come while they do.
        loop {
            if self.random.below(60) == 0 {
                return Box::pin(self.crash()).await;
            }
            let is_repeat = |host: &EarlyTestHost| {
                matches!(host.out.front(), Some(QueuedRequest::Operation { terms: AnswerTerms::Repeated { .. }, .. }))
            };
            let repeating: Vec<usize> = (0..SESSIONS).filter(|host| is_repeat(&self.hosts[*host])).collect();
            if repeating.is_empty() {
                break;
            }
            match self.random.below(8) {
                0 => self.ask(None)?,
                1 => self.append().await?,
                2 if self.random.below(3) == 0 => {
                    // Its connection breaks, and what was under way on it is lost.
                    let host = self.random.of(&repeating);
                    self.hosts[host].asking.clear();
                    self.resend(host);
                    self.connect(host);
                }
                2 => self.settle().await?,
                // Others may send what must wait for those that repeat.
                3..=4 => {
                    let host = self.random.below(SESSIONS as u64) as usize;
                    if matches!(self.hosts[host].out.front(), Some(QueuedRequest::Operation { .. })) {
                        self.send(host)?;
                    }
                }
                _ => {
                    let host = self.random.of(&repeating);
                    self.send(host)?;
                }
            }
        }
        self.is_recovering = false;
        self.compare(expected, times)?;
        // The rest comes in any order: unanswered operations, and the end of a lost session.
        for _ in 0..40 {
            match self.random.below(6) {
                0 if lost.is_some() => self.replace(lost.take()).await?,
                1 => self.ask(None)?,
                2 => self.append().await?,
                3 => self.settle().await?,
                _ => {
                    let host = self.random.below(SESSIONS as u64) as usize;
                    if Some(host) != lost {
                        self.send(host)?;
                    }
                }
            }
        }
        self.replace(lost.take()).await?;
        for host in 0..SESSIONS {
            while !self.hosts[host].out.is_empty() {
                self.send(host)?;
            }
        }
        self.go_on()
    }

    /// Ends a lost session, and begins another one.
    async fn replace(&mut self, lost: Option<usize>) -> Outcome {
        let Some(lost) = lost else { return Ok(()) };
        let session = self.hosts[lost].session;
        self.owner.confirm_gone(&[session], "it is lost");
        self.go_on()?;
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let session = begin(&mut self.owner, incarnation);
        // It is told of its session when that is durable.
        for _ in 0..2 {
            self.append().await?;
            self.settle().await?;
        }
        // Its operations are those of a session that the base has, too.
        let key = TableKey::Session(session);
        if let Some(record) = self.owner.image.tables().get(&key) {
            let action = MutationAction::Put(record.to_vec());
            self.base.apply(&Mutation { table: key.table(), key: key.encode(), action });
        }
        self.hosts[lost] =
            EarlyTestHost { session, incarnation, next_number: 1, next_request: 1, ..EarlyTestHost::default() };
        self.connect(lost);
        self.hosts[lost].is_reclaimed = true;
        self.go_on()
    }

    fn compare(&self, expected: &MetadataImage, times: &[InodeAttributes]) -> Outcome {
        let mut directories = vec![ROOT.inode];
        directories.extend((0..DIRECTORIES).map(|number| 16 + number));
        let session = self.hosts[0].session;
        let (mut now, mut expected) = (
            MetadataImage::load(self.owner.image.tables().clone(), &self.label, 1)
                .map_err(|error| error.to_string())?,
            MetadataImage::load(expected.tables().clone(), &self.label, 1).map_err(|error| error.to_string())?,
        );
        let inodes = [&now, &expected].map(|image| image.tables().table(TableKind::Inodes).keys().cloned().collect());
        let [of_now, of_expected]: [BTreeSet<Vec<u8>>; 2] = inodes;
        for key in of_now.union(&of_expected) {
            let Ok(TableKey::Inode(inode)) = TableKey::decode(TableKind::Inodes, key) else { continue };
            let file = FileId { inode, generation: 0 };
            for question in [
                MetadataQuestion::GetAttributes { file },
                MetadataQuestion::ReadDirectory { directory: file, cookie: 0, entries: 100 },
                MetadataQuestion::ReadXattr { file, name: b"user.x".to_vec() },
            ] {
                if matches!(question, MetadataQuestion::ReadXattr { .. })
                    && !expected.attributes(file).is_ok_and(|found| found.inode.links > 0)
                {
                    continue;
                }
                let answers = [&mut now, &mut expected]
                    .map(|image| shown(&image.ask(STAMP, session, &question).map(|asked| asked.answer)));
                if answers[0] != answers[1] {
                    return Err(format!("after a crash {question:?} shows {:?}, not {:?}", answers[0], answers[1]));
                }
            }
        }
        for seen in times {
            let now = now.attributes(seen.id()).map_err(|error| format!("{}: {error}", seen.number))?;
            if now != *seen {
                return Err(format!("after a crash inode {} has other times: {now:?}, not {seen:?}", seen.number));
            }
        }
        Ok(())
    }
}
