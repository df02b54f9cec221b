//! A client's tokens: `nectary_volume::tokens::TokenHolding`, and a model of the code around it, which is in
//! `client/hold.rs`.
//!
//! Owns: requests, recalls, and the steps before a token is given back: the client invalidates pages, commits its
//! writes, and forgets its knowledge of the file.

use nectary_volume::protocol::{Token, TokenAspect, TokenGrant};
use nectary_volume::tokens::{RecallOutcome, RecallReason, Recalled, TokenHolding, level};

use super::bugs::{VolumeModelBug, planted};
use super::client::{ModelCallFailure, MountModel};
use super::executor::MS;
use super::file::ObjectLockKind;
use super::network::ClientMessage;

/// The pause after a request was refused. *Units*: microseconds.
const REFUSED_PAUSE_US: u64 = 5 * MS;

/// The permission that a call needs to see or change a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPermission {
    /// This level of the file's token.
    Level(u8),
    /// No permission, because the call was already admitted.
    Admitted,
}

impl DataPermission {
    pub const READ: DataPermission = DataPermission::Level(level::READ);
    pub const WRITE: DataPermission = DataPermission::Level(level::WRITE);
}

impl MountModel {
    /// Whether a call is admitted now.
    pub fn holds(&self, object: usize, access: DataPermission) -> bool {
        match access {
            DataPermission::Level(level) => self.object(object).hold.borrow().admits(level),
            DataPermission::Admitted => true,
        }
    }

    /// Waits until a call is admitted.
    pub async fn admit(&self, object: usize, access: DataPermission) -> Result<(), ModelCallFailure> {
        let DataPermission::Level(level) = access else { return Ok(()) };
        self.wait_for(object, |_| level, |state| state.admits(level)).await
    }

    /// Waits until `admit` returns true; requests the token at the level that is needed.
    pub async fn wait_for(
        &self,
        object: usize,
        level: impl Fn(&TokenHolding) -> u8,
        mut admit: impl FnMut(&mut TokenHolding) -> bool,
    ) -> Result<(), ModelCallFailure> {
        self.world.yields().await;
        let mut result = Ok(());
        self.wait(|| {
            let mut state = self.object(object).hold.borrow_mut();
            if admit(&mut state) {
                return true;
            }
            result = self.failure();
            if result.is_err() {
                return true;
            }
            let wanted = level(&state);
            if state.wants(wanted) {
                let mount = self.clone();
                self.spawn(async move { mount.request(object, wanted).await });
            }
            false
        })
        .await;
        result
    }

    async fn request(self, object: usize, level: u8) {
        let granted = self.acquire(object, level).await;
        if granted.is_err() {
            self.world.sleep(REFUSED_PAUSE_US).await;
        }
        let early = {
            let mut state = self.object(object).hold.borrow_mut();
            if granted.is_ok_and(|held| held.sequence < state.sequence()) {
                self.world.break_with(format!("{granted:?} has a lower number than one before, {}", state.sequence()));
            }
            match granted {
                Ok(held) => state.granted(held.level, held.sequence),
                Err(_) => state.failed(),
            }
        };
        self.touch();
        for recalled in early {
            self.world.coverage.met("a recall came before its grant");
            if let RecallOutcome::Begin = self.hear(object, recalled) {
                self.give_back(object, recalled).await;
            }
        }
    }

    fn hear(&self, object: usize, recalled: Recalled) -> RecallOutcome {
        let heard = self.object(object).hold.borrow_mut().recalled(recalled);
        match heard {
            RecallOutcome::Answer(level) => {
                self.world.coverage.met("a recall is answered at once");
                self.say_returned(self.object(object).token, level, recalled.0);
            }
            RecallOutcome::Ignore => self.world.coverage.met("a recall of an older grant is ignored"),
            RecallOutcome::Begin | RecallOutcome::Later => {}
        }
        heard
    }

    fn say_returned(&self, token: Token, level: u8, sequence: u64) {
        self.say(ClientMessage::Return(TokenGrant { token, level, sequence }));
    }

    /// Handles a recall from the server.
    pub fn serve_recall(&self, recalled: Recalled, token: Token) {
        let Some(object) = self.client.objects.iter().position(|object| object.token == token) else { return };
        if let RecallOutcome::Begin = self.hear(object, recalled) {
            let mount = self.clone();
            self.spawn(async move { mount.give_back(object, recalled).await });
        }
    }

    async fn give_back(&self, object: usize, recalled: Recalled) {
        let _turn = self.lock(object, ObjectLockKind::Giving).await;
        // The task that had the lock before may already have given the token back.
        let RecallOutcome::Begin = self.hear(object, recalled) else { return };
        let (sequence, wanted, why) = recalled;
        match why {
            RecallReason::Conflict => self.give(object, wanted).await,
            RecallReason::Commit => {
                let locked = self.lock(object, ObjectLockKind::Write).await;
                let committed = self.commit_locked(object).await;
                let level = self.object(object).hold.borrow().level();
                drop(locked);
                if committed.is_ok() {
                    self.world.coverage.met("13: a holder commits for a stat");
                    self.say_returned(self.object(object).token, level, sequence);
                }
            }
        }
    }

    /// Gives a token back, down to the level `to`. The caller holds the lock `Giving`.
    async fn give(&self, object: usize, to: u8) {
        let at = self.object(object);
        let mut pass = at.hold.borrow_mut().begin_giving();
        self.touch();
        let mut passes = 0;
        while !pass.is_empty() {
            passes += 1;
            for range in pass {
                if !planted(VolumeModelBug::PagesKept) {
                    self.invalidate(object, range.clone()).await;
                }
                at.hold.borrow_mut().end_range(&range);
            }
            at.hold.borrow_mut().end_pass();
            self.wait(|| !at.hold.borrow().is_paging()).await;
            pass = at.hold.borrow_mut().next_pass();
            if planted(VolumeModelBug::PageOfPassKept) {
                pass.clear();
            }
            self.touch();
        }
        if passes > 1 {
            self.world.coverage.met("3: a page is read during an invalidation, which is done again");
        }
        if planted(VolumeModelBug::RecallBeforeIo) {
            let sequence = at.hold.borrow().sequence();
            at.hold.borrow_mut().given(to);
            self.say_returned(at.token, to, sequence);
        }
        if !at.is_free() {
            self.world.coverage.met("a token waits for I/O in work before it goes");
        }
        let locked = self.lock(object, ObjectLockKind::Write).await;
        let committed = self.commit_locked(object).await;
        if committed.is_err() {
            self.world.tell(|| format!("client {}: {object} is not committed: {committed:?}", self.client.number));
            self.drop_fresh(object);
        }
        if (to == level::NONE || committed.is_err()) && at.token.what == TokenAspect::Data {
            at.content.borrow_mut().forget();
        }
        if !(planted(VolumeModelBug::NameKept) || to >= level::READ) {
            at.names.borrow_mut().clear();
        }
        let (level, sequence) = {
            let mut state = at.hold.borrow_mut();
            state.given(to);
            (state.level(), state.sequence())
        };
        drop(locked);
        self.touch();
        self.world.yields().await;
        self.say_returned(at.token, level, sequence);
    }

    /// Opens a handle with which a program may map the file for writing.
    pub async fn add_writer(&self, object: usize) {
        let is_stale = self.object(object).hold.borrow_mut().add_writer();
        if is_stale {
            let _turn = self.lock(object, ObjectLockKind::Giving).await;
            let level = self.object(object).hold.borrow().level();
            if level == level::READ {
                self.world.coverage.met("a writer comes where pages are of a lower level");
                self.give(object, level::NONE).await;
            }
        }
    }

    /// Gives a token back without a recall, because no program needs it now.
    pub async fn give_up(&self, object: usize) {
        let _turn = self.lock(object, ObjectLockKind::Giving).await;
        let is_held = {
            let state = self.object(object).hold.borrow();
            state.level() != level::NONE && !state.is_acquiring()
        };
        if is_held {
            self.world.coverage.met("a token is given back without a recall");
            self.give(object, level::NONE).await;
        }
    }
}
