//! Answers to questions, and to requests for tokens: what they show, what the session may keep, and whether they wait for
//! the disk.
//!
//! Leaves to others: what is shown (`metadata`), which answers may be early (`early`).

use super::super::connection::ReplySender;
use super::super::grants::{AboutInodes, WaitingQuestion, files_of, is_look};
use super::super::request::HeldAnswer;
use super::MetadataOwner;
use super::early::{EarlyDefect, about, subject};
use crate::metadata::QuestionAnswer;
use crate::planted::{Bug, planted};
use crate::protocol::{
    FileId, MAY_KEEP_MAX, MayKeep, MetadataQuestion, RefusalCode, ServerAnswer, ServerRefusal, Token, TokenAspect,
    TokenGrant as Granted, VolumeMessage,
};
use crate::tokens::{LookupChange, level};

impl MetadataOwner {
    /// Answers a question once other hosts have committed the files that it shows, and the answer is of one moment.
    pub(super) fn ask(&mut self, looking: WaitingQuestion) {
        let looking = match subject(&looking.question) {
            Some(inode) => {
                let is_missing = self.image.present(FileId { inode, generation: 0 }).is_none();
                let missing: &[u64] = if is_missing { &[inode] } else { &[] };
                self.grants.look_at(looking, AboutInodes { known: &[inode], missing })
            }
            None => Some(looking),
        };
        let Some(looking) = looking else { return };
        if matches!(looking.question, MetadataQuestion::Numbers { .. })
            && !self.grants.may_have_numbers(looking.session)
        {
            let words = "the session has not used the inode numbers that it has, or keeps too much".to_owned();
            return looking.reply.send(Err(ServerRefusal { code: RefusalCode::Limit, errno: libc::EAGAIN, words }));
        }
        let answer = self.image.ask(self.stamp(), looking.session, &looking.question);
        // A session without numbers asks the server for each change: nobody waits for room.
        if !matches!(looking.question, MetadataQuestion::Numbers { .. }) {
            self.note_shortage(answer.as_ref().err());
        }
        let shown: Vec<u64> = match (&answer, is_look(&looking.question)) {
            (Ok(asked), true) => files_of(&asked.answer).iter().map(|file| file.inode).collect(),
            _ => Vec::new(),
        };
        let shown = AboutInodes { known: &shown, missing: &[] };
        let Some(looking) = self.grants.look_at(looking, shown) else { return };
        if let Ok(QuestionAnswer { answer: ServerAnswer::Numbers { first, count }, .. }) = &answer {
            self.grants.locals().add_numbers(looking.session, *first..*first + u64::from(*count));
        }
        let looking = match &answer {
            Ok(asked) if is_look(&looking.question) => self.grants.look(looking, &files_of(&asked.answer)),
            _ => Some(looking),
        };
        let answer = answer.map(|asked| {
            self.journal.next.extend(asked.transaction);
            asked.answer
        });
        if let Some(WaitingQuestion { session, question, reply, .. }) = looking {
            if planted(Bug::ShownEarly) {
                return reply.send(answer);
            }
            match question {
                MetadataQuestion::Open { file, is_direct: true, .. } if answer.is_ok() => {
                    self.pushes.watch(session, file.inode)
                }
                MetadataQuestion::Close { file } if answer.is_ok() => self.pushes.unwatch(session, file.inode),
                _ => {}
            }
            let is_own = |inodes: Vec<u64>| self.early.may_show(session, &inodes);
            let is_early = about(&question, &answer)
                .is_some_and(|inodes| self.early.has(EarlyDefect::QuestionsUnchecked) || is_own(inodes));
            if matches!(question, MetadataQuestion::Lookup { .. } | MetadataQuestion::GetAttributes { .. }) {
                return self.answer_look((session, &question), reply, answer, is_early);
            }
            if let MetadataQuestion::ReadDirectory { directory, .. } = question {
                return self.answer_listing((session, directory), reply, answer, is_early);
            }
            let level = if let MetadataQuestion::Open { level, .. } = question { level } else { level::NONE };
            self.answer((session, level), reply, answer, is_early);
        }
    }

    /// Answers with a name or attributes, which the session may keep if nobody changes them.
    fn answer_look(
        &mut self,
        (session, question): (u64, &MetadataQuestion),
        reply: ReplySender,
        answer: Result<ServerAnswer, ServerRefusal>,
        is_early: bool,
    ) {
        let found = match &answer {
            Ok(ServerAnswer::Attributes(attributes)) => {
                let mut found = attributes.clone();
                self.image.flag_xattrs(&mut found);
                Some(found)
            }
            Err(failure) if failure.code == RefusalCode::Posix && failure.errno == libc::ENOENT => None,
            _ => return self.give(HeldAnswer::Call(reply, answer), is_early),
        };
        let mut offer = |object: FileId, what| self.grants.offer_look(session, Token { object, what }).unwrap_or(0);
        let names = match question {
            // The directory above changes with a rename of the directory, not of a name in it.
            MetadataQuestion::Lookup { directory, name } if name != b".." => {
                self.image.present(*directory).map_or(0, |directory| offer(directory, TokenAspect::Directory))
            }
            _ => 0,
        };
        let attributes = found.as_ref().map_or(0, |found| offer(found.id(), TokenAspect::Attributes));
        if names == 0 && attributes == 0 {
            return self.give(HeldAnswer::Call(reply, answer), is_early);
        }
        self.give(HeldAnswer::Grant(reply, Box::new(VolumeMessage::Looked { names, attributes, found })), is_early);
    }

    /// Answers with names of a directory, which the session may keep if nobody changes them.
    fn answer_listing(
        &mut self,
        (session, directory): (u64, FileId),
        reply: ReplySender,
        answer: Result<ServerAnswer, ServerRefusal>,
        is_early: bool,
    ) {
        let (mut names, is_end) = match answer {
            Ok(ServerAnswer::Listing { names, is_end }) => (names, is_end),
            other => return self.give(HeldAnswer::Call(reply, other), is_early),
        };
        let mut offer = |object: FileId, what| self.grants.offer_look(session, Token { object, what }).unwrap_or(0);
        let grant = self.image.present(directory).map_or(0, |directory| offer(directory, TokenAspect::Directory));
        let are_kept = names.iter().map(|listed| offer(listed.attributes.id(), TokenAspect::Attributes) != 0).collect();
        names.iter_mut().for_each(|listed| self.image.flag_xattrs(&mut listed.attributes));
        self.give(
            HeldAnswer::Grant(reply, Box::new(VolumeMessage::Listed { grant, names, are_kept, is_end })),
            is_early,
        );
    }

    /// Returns what a session may keep of what its operation has changed, and of the inodes from `first_made` on, which
    /// it has made. All of that is in the answer's inodes, so it is no more than the answer may show.
    pub(super) fn may_keep(&mut self, session: u64, change: &LookupChange, first_made: u64) -> Option<MayKeep> {
        let mut tokens = change.tokens.clone();
        for inode in first_made..self.image.next_inode() {
            let made = self.image.present(FileId { inode, generation: 0 });
            let both = [TokenAspect::Directory, TokenAspect::Attributes];
            tokens.extend(made.into_iter().flat_map(|object| both.map(|what| Token { object, what })));
        }
        let mut may_keep = MayKeep::default();
        for token in tokens {
            let Ok(mut found) = self.image.attributes(token.object) else { continue };
            let has_room = may_keep.directories.len().max(may_keep.attributes.len()) < MAY_KEEP_MAX;
            let is_directory = found.inode.mode & libc::S_IFMT == libc::S_IFDIR;
            // A file without a name is freed without a change of this kind.
            let may_be_kept = if token.what == TokenAspect::Directory { is_directory } else { found.inode.links > 0 };
            if !has_room || !may_be_kept || self.grants.offer_look(session, token).is_none() {
                continue;
            }
            if token.what == TokenAspect::Directory {
                may_keep.directories.push(token.object);
            } else {
                self.image.flag_xattrs(&mut found);
                may_keep.attributes.push(found);
            }
        }
        (may_keep != MayKeep::default()).then_some(may_keep)
    }

    /// Answers with attributes, and also grants this level of the file's token if no other session's token conflicts.
    pub(super) fn answer(
        &mut self,
        (session, level): (u64, u8),
        reply: ReplySender,
        answer: Result<ServerAnswer, ServerRefusal>,
        is_early: bool,
    ) {
        if level != level::NONE
            && let Ok(ServerAnswer::Attributes(attributes)) = &answer
            && attributes.inode.mode & libc::S_IFMT == libc::S_IFREG
            && let token = (Token { object: attributes.id(), what: TokenAspect::Data })
            && let Some(held) = self.grants.offer(session, token, level)
        {
            return self.grant(session, reply, held, is_early);
        }
        self.give(HeldAnswer::Call(reply, answer), is_early);
    }

    /// Sends the grant of a token with the file's present attributes and extents, which no other session changes until
    /// the token is returned.
    pub(super) fn grant(&mut self, session: u64, reply: ReplySender, held: Granted, is_early: bool) {
        let (minimum_ms, shape) = (crate::tokens::MINIMUM_MS as u32, self.image.shape(held.token.object));
        let is_watched = self.pushes.is_watched(held.token.object.inode, session);
        self.give(
            HeldAnswer::Grant(reply, Box::new(VolumeMessage::Grant { held, minimum_ms, is_watched, shape })),
            is_early,
        );
    }
}
