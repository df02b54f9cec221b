//! Handles whose session was ended, and the writes that may be lost with it.
//!
//! Owns: which writes may be missing. A handle is *dead* once a call through it failed. What was written through it since
//! its last successful sync may be lost, from any time after the last call through it that succeeded: a mount
//! lets a call succeed only while its session exists. Promises: a write that was synced, or that a handle of a living
//! session or another mount has read, does not count as lost.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Act, Call, Outcome, SLOTS};

/// A dead handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dead {
    mount: usize,
    /// The begin of the last call that showed that the session existed.
    alive_until: u64,
    /// The begin of the last successful sync.
    synced: Option<u64>,
}

/// The dead handles of a history.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    dead: BTreeMap<u32, Dead>,
}

/// Whether a successful call of this kind shows that the session of its handle exists. A sync of a handle that wrote
/// nothing may ask nobody.
fn is_sign_of_life(act: Act) -> bool {
    matches!(act, Act::Read(_) | Act::Write(..) | Act::Append(_) | Act::Tail | Act::Probe | Act::Lock(_) | Act::Open)
}

impl Losses {
    /// Finds the dead handles.
    pub fn of(calls: &[Call]) -> Losses {
        let failed = calls.iter().filter(|call| call.handle > 0 && matches!(call.outcome, Outcome::Failed(_)));
        let mut dead: BTreeMap<u32, Dead> =
            failed.map(|call| (call.handle, Dead { mount: call.mount, alive_until: 0, synced: None })).collect();
        for call in calls.iter().filter(|call| call.is_done()) {
            let Some(dead) = dead.get_mut(&call.handle) else { continue };
            if is_sign_of_life(call.act) {
                dead.alive_until = dead.alive_until.max(call.start);
            }
            if matches!(call.act, Act::Sync(_)) {
                dead.synced = dead.synced.max(Some(call.start));
            }
        }
        Losses { dead }
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
    pub fn may_be_lost(&self, write: &Call) -> bool {
        let dead = self.dead.get(&write.handle).filter(|_| write.is_done());
        dead.is_some_and(|dead| dead.synced.is_none_or(|synced| synced < write.end))
    }

    /// Returns the values of registers that are lost, each with the handle that wrote it.
    pub fn lost_values(&self, calls: &[Call]) -> BTreeMap<(u32, u64), u32> {
        let lost = calls.iter().filter(|call| self.may_be_lost(call));
        let mut lost: BTreeMap<(u32, u64), (usize, u32)> = lost
            .filter_map(|call| match call.act {
                Act::Write(register, value) if register / SLOTS != super::history::NAMES => {
                    Some(((register, value), (call.mount, call.handle)))
                }
                _ => None,
            })
            .collect();
        let mut seen = BTreeSet::new();
        for call in calls {
            let (Act::Read(register), Some(value)) = (call.act, call.done()) else { continue };
            if let Some((mount, _)) = lost.get(&(register, value)) {
                // The mount that wrote it reads it from its own memory, until its session is ended.
                if *mount != call.mount || !self.is_dead(call.handle) {
                    seen.insert((register, value));
                }
            }
        }
        lost.retain(|value, _| !seen.contains(value));
        lost.into_iter().map(|(value, (_, handle))| (value, handle)).collect()
    }
}
