//! Purges that are requested of this node.
//!
//! Owns: invariant 4, the limit on their rate, and how long a caller waits.

use std::sync::Arc;
use std::time::Duration;

use nectary_host::fleet::{FleetError, FleetPurge, PurgeOutcome, PurgeWish};

use super::known_logs::{FixedPurge, FixedStep};
use super::machine::{FixedAction, FixedMachine, OtherMember, SIZE_PERIOD, UnconfirmedPurge};
use crate::records::write_purge;

impl FixedMachine {
    pub(super) fn on_purge_requested(
        &mut self,
        now: Duration,
        ticket: u64,
        purge: FleetPurge,
        wish: PurgeWish,
        now_s: u64,
    ) {
        if let Err(error) = self.admit(now, &purge) {
            return self.answer(ticket, Err(error));
        }
        let log = self.own_log();
        let number = self.queued.get(&log).map_or(0, |extent| extent.through) + 1;
        let logged = FixedPurge { log, number, accepted_s: now_s, purge };
        self.queue(FixedStep::Purge(Arc::new(logged)));
        let deadline = now + self.rules.purge_time;
        self.waiting.insert(ticket, UnconfirmedPurge { wish, deadline, number });
    }

    /// Whether a purge may come in. *Errors*: why not.
    pub(super) fn admit(&mut self, now: Duration, purge: &FleetPurge) -> Result<(), FleetError> {
        if self.is_leaving {
            return Err(FleetError::Stopping);
        }
        if self.has_other_rules() {
            return Err(FleetError::RulesDiffer);
        }
        if !self.returning.has_asked {
            return Err(FleetError::Away("it asks the others for purges that it missed".to_owned()));
        }
        if self.is_stuck(now) {
            let why = self.taking.trouble.clone().unwrap_or_else(|| "it takes too long".to_owned());
            return Err(FleetError::Away(format!("its store does not apply purges: {why}")));
        }
        let Some(value) = write_purge(purge) else {
            let texts = purge.scope.texts().len();
            return Err(FleetError::TooLarge(format!("{texts} keys, prefixes or tags")));
        };
        let (count, period) = self.rules.purge_rate;
        let counted = self.counted.full_after(now, 1);
        let sized = self.sized.full_after(now, value.len() as u64);
        match (counted, sized) {
            (Some(counted), Some(sized)) => {
                (self.counted.full_at, self.sized.full_at) = (counted, sized);
                Ok(())
            }
            (None, _) => {
                let seconds = period.as_secs();
                Err(FleetError::TooMany(format!("{count} purges in {seconds} s (`purge-rate` of [fleet])")))
            }
            (_, None) => {
                let (bytes, seconds) = (self.sized.count, SIZE_PERIOD.as_secs());
                let most = format!("{bytes} bytes of purges in {seconds} s (`purge-log-size` of [fleet])");
                Err(FleetError::TooMany(most))
            }
        }
    }

    pub(super) fn answer(&mut self, ticket: u64, result: Result<PurgeOutcome, FleetError>) {
        self.counts.refused += u64::from(result.is_err());
        self.counts.accepted += u64::from(result.is_ok());
        self.actions.push(FixedAction::Answer { ticket, result });
    }

    /// Answers purges that are as their callers wish, or whose time is over.
    pub(super) fn settle(&mut self, now: Duration) {
        let known = self.known.through(self.own_log());
        let tickets: Vec<u64> = self.waiting.keys().copied().collect();
        for ticket in tickets {
            let Some(UnconfirmedPurge { wish, deadline, number }) = self.waiting.get(&ticket) else { continue };
            let (wish, is_late, number) = (*wish, now >= *deadline || self.is_leaving, *number);
            let result = if known < number {
                let why = "it is not in the `purge-log` of this node".to_owned();
                is_late.then_some(Err(FleetError::Unknown(why)))
            } else {
                let lacks = |other: &&OtherMember| {
                    other.extents.get(&self.own_log()).is_none_or(|extent| extent.through < number)
                };
                let lacking = || self.others.iter().filter(lacks);
                let is_waiting = wish == PurgeWish::Applied && lacking().any(|other| self.is_living(other, now));
                let (is_applied, nodes) = (lacking().next().is_none(), self.others.len() + 1);
                let missing = match wish {
                    PurgeWish::Applied => lacking().map(|other| other.name.clone()).collect(),
                    PurgeWish::Accepted => Vec::new(),
                };
                let outcome = PurgeOutcome { revision: number, nodes, missing, is_applied, is_queued: false };
                (!is_waiting || is_late).then_some(Ok(outcome))
            };
            if let Some(result) = result {
                self.waiting.remove(&ticket);
                self.answer(ticket, result);
            }
        }
    }
}
