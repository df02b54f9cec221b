//! A server's file locks: `nectary_volume::tokens::VolumeLocks`, and a model of the code around it, which is in
//! `server/locking.rs`.
//!
//! Owns: requests that wait for a lock, and requests that came before every earlier session had named its locks.

use std::collections::BTreeMap;
use std::rc::Rc;

use nectary_volume::tokens::{LockOutcome, VolumeLocks};

use super::image::{ModelAnswer, ModelRefusal, Reply};
use crate::volume::network::{ModelConnection, ModelLockRequest};
use crate::volume::world::VolumeWorld;

/// An answer: the connection and the number of the request.
pub type Said = (Rc<ModelConnection>, u64, Reply);
/// A request that has no answer yet.
type Asked = (Rc<ModelConnection>, u64);

/// The locks, and the requests that wait.
#[derive(Default)]
pub struct LockQueueModel {
    locks: VolumeLocks,
    next_ticket: u64,
    waiting: BTreeMap<u64, Asked>,
    early: Vec<(Asked, ModelLockRequest)>,
}

impl LockQueueModel {
    /// Handles what a session wants. `is_grace`: some earlier session has not named its locks yet; `is_expected`: this
    /// session has not.
    pub fn wish(
        &mut self,
        world: &VolumeWorld,
        (connection, request): (&Rc<ModelConnection>, u64),
        wish: ModelLockRequest,
        is_grace: bool,
        is_expected: bool,
    ) -> Vec<Said> {
        let (asked, session) = ((connection.clone(), request), connection.session.get());
        if matches!(wish, ModelLockRequest::Lock(..)) {
            self.forget_repeated(session, request);
        }
        if is_grace && matches!(wish, ModelLockRequest::Lock(_, waits) if !is_expected || waits) {
            world.coverage.met("16: a lock's request waits for the end of grace");
            self.early.push((asked, wish));
            return Vec::new();
        }
        match wish {
            ModelLockRequest::Lock(lock, waits) => {
                self.next_ticket += 1;
                let reply = match self.locks.lock(session, self.next_ticket, lock, waits) {
                    LockOutcome::Granted => Ok(ModelAnswer::Done),
                    LockOutcome::Waits => {
                        world.coverage.met("16: a lock waits for its holder");
                        self.waiting.insert(self.next_ticket, asked);
                        return Vec::new();
                    }
                    LockOutcome::Refused => Err(ModelRefusal::Locked),
                    LockOutcome::Deadlock | LockOutcome::TooMany => {
                        world.break_with(format!("the lock {lock:?} is refused without a reason"));
                        Err(ModelRefusal::Locked)
                    }
                };
                vec![(asked.0, request, reply)]
            }
            ModelLockRequest::Unlock(lock) => {
                let Some(granted) = self.locks.unlock(session, &lock) else {
                    world.break_with(format!("the release of {lock:?} is refused"));
                    return vec![(asked.0, request, Err(ModelRefusal::Locked))];
                };
                let mut said = vec![(asked.0, request, Ok(ModelAnswer::Done))];
                said.extend(self.granted(granted));
                said
            }
        }
    }

    /// Removes a request that came on an earlier connection and is repeated now.
    fn forget_repeated(&mut self, session: u64, request: u64) {
        let is_this = |(connection, number): &Asked| connection.session.get() == session && *number == request;
        self.early.retain(|(asked, _)| !is_this(asked));
        let locks = &mut self.locks;
        self.waiting.retain(|ticket, asked| {
            let is_repeated = is_this(asked);
            if is_repeated {
                locks.cancel(*ticket);
            }
            !is_repeated
        });
    }

    /// Handles early requests, once every earlier session has named its locks.
    pub fn end_grace(&mut self, world: &VolumeWorld) -> Vec<Said> {
        let early = std::mem::take(&mut self.early).into_iter();
        early
            .flat_map(|((connection, request), wish)| self.wish(world, (&connection, request), wish, false, false))
            .collect()
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) -> Vec<Said> {
        self.early.retain(|((connection, _), _)| connection.session.get() != session);
        self.waiting.retain(|_, (connection, _)| connection.session.get() != session);
        let granted = self.locks.forget(session);
        self.granted(granted)
    }

    /// Returns the sessions that hold locks which others want.
    pub fn awaited(&mut self) -> Vec<u64> {
        self.locks.awaited()
    }

    /// Whether requests still wait for earlier sessions.
    pub fn is_early(&self) -> bool {
        !self.early.is_empty()
    }

    fn granted(&mut self, mut tickets: Vec<u64>) -> Vec<Said> {
        // The locks of several files are freed in any order.
        tickets.sort_unstable();
        let asked = tickets.into_iter().filter_map(|ticket| self.waiting.remove(&ticket));
        asked.map(|(connection, request)| (connection, request, Ok(ModelAnswer::Done))).collect()
    }
}
