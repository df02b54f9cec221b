//! What the owner does when a spare takes the place of a donor without a user.
//!
//! Owns: asking donors whether they leave, and spares whether they answer, and beginning a move. Leaves to others: which donor needs a spare (`crate::moving`),
//! and the move (`replacing`), which also checks that the spare is suitable.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::owner::{Done, Owner};
use super::planted::{lost_after, may_give_up};
use super::session::Target;
use crate::device::address::Address;
use crate::device::together::together;
use crate::mirror::{LinkState, Standing};
use crate::moving::Seen;

/// How often donors are asked whether they are leaving.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Owner {
    /// Begins what spares are needed for.
    pub(super) fn use_spares(&mut self) {
        if self.opened.is_some() {
            return;
        }
        let (now_us, lost_after_us) = (self.now_us(), lost_after().as_micros() as u64);
        if let Some(moving) = &mut self.moving {
            let (donor, standing) = (moving.donor(), self.machine.standing());
            let is_well = |other: usize| {
                standing[other] == Standing::Trusted && self.machine.link_state(other) == Some(LinkState::Claimed)
            };
            let are_well = (0..standing.len()).all(|other| other == donor || is_well(other));
            let is_away = self.machine.link_state(donor) == Some(LinkState::Down);
            // The machine counts it at length, so the report has it.
            let filled = self.reports.borrow().rebuild.as_ref().map_or(0, |rebuild| rebuild.copied);
            let seen = Seen { standing: standing[donor], is_away, are_well, filled };
            if let Some(why) = moving.plan.hopeless(now_us, lost_after_us, seen)
                && may_give_up()
            {
                let reason = self.peers[donor].reason.as_deref();
                self.give_up_filling(why + &reason.map(|reason| format!(" ({reason})")).unwrap_or_default());
            }
            return;
        }
        self.spares.need.track(now_us, self.machine.standing());
        if self.spares.list.is_empty() {
            return;
        }
        if let Some(donor) = self.spares.need.donor(now_us, lost_after_us) {
            let spare = self.spares.list[self.spares.next % self.spares.list.len()].clone();
            self.spares.next += 1;
            self.spares.need.tried(now_us);
            let old = self.peers[donor].target.address.text.clone();
            // Nobody waits for the end, which is in the log.
            let (reply, _) = oneshot::channel();
            return self.replace(&old, spare, reply);
        }
        if !self.spares.is_looking && self.spares.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            (self.spares.is_looking, self.spares.looked) = (true, Some(Instant::now()));
            let targets: Vec<Target> = self.peers.iter().map(|peer| peer.target.clone()).collect();
            let spare = |spare: &Address| Target { address: spare.clone(), ..targets[0].clone() };
            let spares: Vec<Target> = self.spares.list.iter().filter(|_| !targets.is_empty()).map(spare).collect();
            let number = self.moves;
            self.work.spawn(async move {
                let look = |target: Target| async move { target.page().await.is_ok_and(|page| page.is_leaving) };
                let ask = |target: Target| async move { target.page().await.is_ok().then_some(target.address.text) };
                let leaving = together(targets.into_iter().map(look).collect());
                let answering = together(spares.into_iter().map(ask).collect());
                let (leaving, answering) = tokio::join!(leaving, answering);
                Done::Looked(number, leaving, answering.into_iter().flatten().collect())
            });
        }
    }
}
