//! What the owner does when a spare takes the place of a donor without a user.
//!
//! Owns: asking donors whether they leave, and spares whether they answer, and beginning a move. Leaves to others: which donor needs a spare (`crate::device::moves`),
//! and the move (`replacing`), which also checks that the spare is suitable.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::device_owner::{DeviceOwner, OwnerTaskResult};
use super::planted::{lost_after, may_give_up};
use super::session::SessionTarget;
use crate::device::address::DonorAddress;
use crate::device::together::together;

/// How often donors are asked whether they are leaving.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl DeviceOwner {
    /// Begins what spares are needed for.
    pub(super) fn use_spares(&mut self) {
        if self.opened.is_some() {
            return;
        }
        let (now_us, lost_after_us) = (self.now_us(), lost_after().as_micros() as u64);
        let members = self.machine.group();
        if let Some(moving) = self.mover.moving() {
            let donor = moving.donor();
            // The machine counts it at length, so the report has it.
            let filled = self.reports.borrow().rebuild.as_ref().map_or(0, |rebuild| rebuild.copied);
            if let Some(why) = self.mover.hopeless(now_us, lost_after_us, members, filled)
                && may_give_up()
            {
                let reason = self.peers[donor].reason.as_deref();
                self.give_up_filling(why + &reason.map(|reason| format!(" ({reason})")).unwrap_or_default());
            }
            return;
        }
        self.mover.need.track(now_us, members.standing());
        if self.spares.list.is_empty() {
            return;
        }
        if let Some((donor, spare)) = self.mover.need.begin(now_us, lost_after_us, self.spares.list.len()) {
            let spare = self.spares.list[spare].clone();
            let old = self.peers[donor].target.address.text.clone();
            // Nobody waits for the end, which is in the log.
            let (reply, _) = oneshot::channel();
            return self.replace(&old, spare, reply);
        }
        if !self.spares.is_looking && self.spares.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            (self.spares.is_looking, self.spares.looked) = (true, Some(Instant::now()));
            let targets: Vec<SessionTarget> = self.peers.iter().map(|peer| peer.target.clone()).collect();
            let spare = |spare: &DonorAddress| SessionTarget { address: spare.clone(), others: None, ..targets[0].clone() };
            let spares: Vec<SessionTarget> =
                self.spares.list.iter().filter(|_| !targets.is_empty()).map(spare).collect();
            let number = self.mover.number();
            self.work.spawn(async move {
                let look = |target: SessionTarget| async move { target.page().await.is_ok_and(|page| page.is_leaving) };
                let ask =
                    |target: SessionTarget| async move { target.page().await.is_ok().then_some(target.address.text) };
                let leaving = together(targets.into_iter().map(look).collect());
                let answering = together(spares.into_iter().map(ask).collect());
                let (leaving, answering) = tokio::join!(leaving, answering);
                OwnerTaskResult::Looked(number, leaving, answering.into_iter().flatten().collect())
            });
        }
    }
}
