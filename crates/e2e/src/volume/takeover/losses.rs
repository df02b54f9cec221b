//! Handles whose session was ended, and the writes that may be lost with it.
//!
//! Owns: which writes may be missing. A handle is *dead* once a call through it failed. What was written through it since
//! its last successful sync may be lost, from any time after the last call through it that succeeded: a mount
//! lets a call succeed only while its session exists. A session that is lost together with its server may also lose its last
//! second of changes of names. Promises: a write that was synced, or that a handle of a living session or another mount has
//! read, does not count as lost.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{CallAction, CallOutcome, NAMES, RecordedCall, SLOTS};

/// A dead handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeadHandle {
    mount: usize,
    /// The begin of the last call that showed that the session existed.
    alive_until: u64,
    /// The begin of the last successful sync.
    synced: Option<u64>,
}

/// The longest time of changes of names that a session loses. *Units*: nanoseconds.
const NAMES_LOST_MAX: u64 = 1_000_000_000;

/// The dead handles of a history, and the changes of names that may be lost.
#[derive(Debug, Clone, Default)]
pub struct SessionLosses {
    dead: BTreeMap<u32, DeadHandle>,
    /// For each mount with dead handles, the times between which a change of a name must have ended to be lost.
    names: BTreeMap<usize, (u64, u64)>,
}

/// Whether a call changes a name.
pub(super) fn is_change(act: CallAction) -> bool {
    match act {
        CallAction::Claim(_) => true,
        CallAction::Write(register, _) => register / SLOTS == NAMES,
        _ => false,
    }
}

/// Whether a successful call of this kind shows that the session of its handle exists. A sync of a handle that wrote
/// nothing may ask nobody.
fn is_sign_of_life(act: CallAction) -> bool {
    matches!(
        act,
        CallAction::Read(_)
            | CallAction::Write(..)
            | CallAction::Append(_)
            | CallAction::Tail
            | CallAction::Probe
            | CallAction::Lock(_)
            | CallAction::Open
    )
}

impl SessionLosses {
    /// Finds the dead handles.
    pub fn of(calls: &[RecordedCall]) -> SessionLosses {
        let failed = calls.iter().filter(|call| call.handle > 0 && matches!(call.outcome, CallOutcome::Failed(_)));
        let mut dead: BTreeMap<u32, DeadHandle> =
            failed.map(|call| (call.handle, DeadHandle { mount: call.mount, alive_until: 0, synced: None })).collect();
        for call in calls.iter().filter(|call| call.is_done()) {
            let Some(dead) = dead.get_mut(&call.handle) else { continue };
            if is_sign_of_life(call.act) {
                dead.alive_until = dead.alive_until.max(call.start);
            }
            if matches!(call.act, CallAction::Sync(_)) {
                dead.synced = dead.synced.max(Some(call.start));
            }
        }
        let mut names = BTreeMap::new();
        for call in calls.iter().filter(|call| call.handle > 0 && matches!(call.outcome, CallOutcome::Failed(_))) {
            let (_, until) = names.entry(call.mount).or_insert((0, call.end));
            *until = call.end.min(*until);
        }
        for (mount, (from, until)) in &mut names {
            let changes = calls.iter().filter(|call| call.mount == *mount && call.is_done() && is_change(call.act));
            let last = changes.map(|call| call.end).filter(|end| *end <= *until).max().unwrap_or(0);
            let synced = calls.iter().filter(|call| call.mount == *mount && call.is_done());
            let synced = synced.filter(|call| matches!(call.act, CallAction::Sync(_)) && call.end <= *until);
            // A sync makes all names durable that its mount made before.
            let synced = synced.map(|call| call.start).max().unwrap_or(0);
            *from = last.saturating_sub(NAMES_LOST_MAX).max(synced);
        }
        SessionLosses { dead, names }
    }

    /// Whether a change of a name that succeeded may be lost, or what its own mount was shown of it.
    pub fn may_be_lost_name(&self, call: &RecordedCall) -> bool {
        self.names.get(&call.mount).is_some_and(|(from, until)| (*from..=*until).contains(&call.end))
    }

    /// Whether a handle is dead.
    pub fn is_dead(&self, handle: u32) -> bool {
        self.dead.contains_key(&handle)
    }

    /// Whether any handle of a mount is dead.
    pub fn is_hit(&self, mount: usize) -> bool {
        self.dead.values().any(|dead| dead.mount == mount)
    }

    /// The time until which the session of a dead handle certainly existed.
    pub fn alive_until(&self, handle: u32) -> Option<u64> {
        self.dead.get(&handle).map(|dead| dead.alive_until)
    }

    /// Whether a write may be lost: it succeeded, its handle is dead, and no sync of the handle came after it.
    pub fn may_be_lost(&self, write: &RecordedCall) -> bool {
        let dead = self.dead.get(&write.handle).filter(|_| write.is_done());
        dead.is_some_and(|dead| dead.synced.is_none_or(|synced| synced < write.end))
    }

    /// Returns the values of registers that are lost, each with the handle that wrote it.
    pub fn lost_values(&self, calls: &[RecordedCall]) -> BTreeMap<(u32, u64), u32> {
        let dead_of = |mount: usize| self.dead.iter().find(|(_, dead)| dead.mount == mount).map(|(handle, _)| *handle);
        let mut lost: BTreeMap<(u32, u64), (usize, u32)> = calls
            .iter()
            .filter_map(|call| {
                let CallAction::Write(register, value) = call.act else { return None };
                let handle = match is_change(call.act) {
                    true => dead_of(call.mount).filter(|_| call.is_done() && self.may_be_lost_name(call))?,
                    false => Some(call.handle).filter(|_| self.may_be_lost(call))?,
                };
                Some(((register, value), (call.mount, handle)))
            })
            .collect();
        let mut seen = BTreeSet::new();
        for call in calls {
            let (CallAction::Read(register), Some(value)) = (call.act, call.done()) else { continue };
            if let Some((mount, _)) = lost.get(&(register, value)) {
                // The mount that wrote it reads it from its own memory, until its session is ended.
                let is_own = *mount == call.mount;
                let is_name = register / SLOTS == NAMES;
                let is_lost = if is_name { self.may_be_lost_name(call) } else { self.is_dead(call.handle) };
                if !is_own || !is_lost {
                    seen.insert((register, value));
                }
            }
        }
        lost.retain(|value, _| !seen.contains(value));
        lost.into_iter().map(|(value, (_, handle))| (value, handle)).collect()
    }
}
