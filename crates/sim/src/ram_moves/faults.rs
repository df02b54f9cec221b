//! The fault of a run: what fails, and at which step of the procedure.
//!
//! Promises: at most one donor is lost or unreachable, beside one whose loss is the procedure itself; the client may end
//! in addition. Connections to a donor that is copied break in addition, which costs time alone.

use nectary_ram::device::moves::MoveStage as Of;
use nectary_ram::group::DonorStanding;

use super::network::{MILLISECOND, MoveNetworkEvent};
use super::world::{MoveProcedure, MoveRunStage, RamMovesWorld};
use crate::random::SimulationRandom;

/// If the moment of a fault has not come after this many events, it happens then.
const EVENTS_MAX: u64 = 6000;
/// How likely it is that a connection breaks at an event while a donor is copied.
const BREAKS_PERCENT: u64 = 2;
/// A donor that is stopped or cut off for less is not left.
const SHORT_US: u64 = 500 * MILLISECOND;

/// When a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultMoment {
    /// After so many events of the procedure.
    Event(u64),
    /// After so many events in a stage of a move.
    InStage(Of, u64),
    /// After so many events in the last pause.
    InPause(u64),
}

/// The faults of a run.
#[derive(Debug)]
pub struct RamMovesFaults {
    at: Option<FaultMoment>,
    events: u64,
    in_stage: u64,
    was_in: Option<(Of, bool)>,
    /// The number of events after the fault at which the client ends, too.
    kill_after: Option<u64>,
    /// How many connections may still break.
    breaks: u64,
    /// Whether something has failed for which a donor may be left.
    pub have_cost: bool,
}

impl RamMovesFaults {
    pub fn draw(random: &mut SimulationRandom, procedure: MoveProcedure) -> RamMovesFaults {
        let few = 1 + random.below(12);
        let most = [20, 200, 1500][random.below(3) as usize];
        let moves = matches!(procedure, MoveProcedure::Replace | MoveProcedure::Drain);
        let at = match random.below(10) {
            0..3 => FaultMoment::Event(1 + random.below(most)),
            3 if moves => FaultMoment::InStage(Of::Connecting, few),
            4..6 if moves => FaultMoment::InStage(Of::Copying, few + random.below(300)),
            6 if moves => FaultMoment::InPause(few),
            7..9 if moves => FaultMoment::InStage(Of::Settling, few),
            9 if moves => FaultMoment::InStage(Of::Emptying, few),
            _ if procedure == MoveProcedure::Sparing => FaultMoment::InStage(Of::Filling, few + random.below(200)),
            _ => FaultMoment::Event(1 + random.below(400)),
        };
        let kill_after = random.chance(35).then(|| random.below(60) * random.below(20));
        let breaks = [0, 0, 1, 4][random.below(4) as usize];
        RamMovesFaults { at: Some(at), events: 0, in_stage: 0, was_in: None, kill_after, breaks, have_cost: false }
    }

    pub fn are_over(&self) -> bool {
        self.at.is_none() && self.kill_after.is_none()
    }
}

impl RamMovesWorld {
    /// Makes the fault happen if its moment has come.
    pub fn inject(&mut self) {
        if self.stage != MoveRunStage::Procedure {
            return;
        }
        self.faults.events += 1;
        let client = self.current;
        let plan = self.clients[client].mover.moving().map(|moving| (moving.plan().stage(), moving.plan().is_paused()));
        self.faults.in_stage = if plan == self.faults.was_in { self.faults.in_stage + 1 } else { 1 };
        self.faults.was_in = plan;
        let (events, in_stage) = (self.faults.events, self.faults.in_stage);
        if matches!(plan, Some((Of::Copying, _))) && self.faults.breaks > 0 && self.random.chance(BREAKS_PERCENT) {
            self.faults.breaks -= 1;
            self.break_connection(client);
        }
        match self.faults.at {
            Some(at) => {
                let is_now = match at {
                    FaultMoment::Event(count) => events >= count,
                    FaultMoment::InStage(stage, count) => {
                        let is_later = |now: Of| now as u8 > stage as u8;
                        plan.is_some_and(|(now, _)| now == stage && in_stage >= count || is_later(now))
                    }
                    FaultMoment::InPause(count) => plan.is_some_and(|(now, is_paused)| {
                        is_paused && in_stage >= count || now as u8 > Of::Copying as u8
                    }),
                };
                if is_now || events >= EVENTS_MAX {
                    self.faults.at = None;
                    self.faults.events = 0;
                    self.happen_now(plan);
                }
            }
            None => {
                if self.faults.kill_after.is_some_and(|after| events >= after) {
                    self.faults.kill_after = None;
                    self.coverage.met("fault: the client killed", 1);
                    self.end_client(client);
                }
            }
        }
    }

    /// The connection to the donor that is copied breaks.
    fn break_connection(&mut self, client: usize) {
        let state = &self.clients[client];
        let place = state.mover.moving().map(|moving| moving.donor());
        if let Some(connection) = place.and_then(|place| state.links[place]) {
            self.coverage.met("connections broken while copying", 1);
            self.network.plan(self.now_us(), MoveNetworkEvent::ClientSeesEnd { connection });
        }
    }

    fn end_client(&mut self, client: usize) {
        self.faults.have_cost = true;
        self.tell(|| "the client is killed".to_owned());
        self.network.plan(self.now_us(), MoveNetworkEvent::Kill { client });
    }

    fn happen_now(&mut self, plan: Option<(Of, bool)>) {
        let when = match plan {
            None => "fault outside a move",
            Some((Of::Connecting, _)) => "fault while connecting",
            Some((Of::Copying, true)) => "fault in the last pause",
            Some((Of::Copying, false)) => "fault while copying",
            Some((Of::Settling, _)) => "fault while the others are told",
            Some((Of::Filling, _)) => "fault while a spare is filled",
            Some((Of::Emptying, _)) => "fault while the former donor is emptied",
        };
        self.coverage.met(when, 1);
        let host = self.draw_host();
        let (now_us, client) = (self.now_us(), self.current);
        let short_us = (20 + self.random.below(700)) * MILLISECOND;
        let long_us = (700 + self.random.below(3000)) * MILLISECOND;
        let any_us = if self.random.chance(50) { short_us } else { long_us };
        let until_us = now_us + any_us;
        let kind = self.random.below(100);
        let may_lose = self.may_lose(host);
        let is_short = (52..90).contains(&kind) && any_us < SHORT_US;
        self.faults.have_cost |= !is_short;
        self.tell(|| format!("fault {kind} of host {host} in {plan:?}, {any_us} us, may be lost {may_lose}"));
        match kind {
            0..40 if may_lose => {
                self.coverage.met("fault: a donor killed", 1);
                let is_seen = self.random.chance(50);
                self.kill_host(host, is_seen);
            }
            40..52 if may_lose => {
                self.coverage.met("fault: a donor started again", 1);
                self.kill_host(host, true);
                let at_us = now_us + self.random.below(400) * MILLISECOND;
                self.network.plan(at_us, MoveNetworkEvent::Return { host });
            }
            52..76 if !self.is_degraded(host) => {
                self.coverage.met("fault: a donor stopped", 1);
                self.network.hosts[host].paused_until_us = until_us;
            }
            76..90 if !self.is_degraded(host) => {
                self.coverage.met("fault: a donor cut off", 1);
                self.network.cuts.insert((client, host), until_us);
            }
            90..95 => {
                self.coverage.met("fault: the client stopped", 1);
                self.clients[client].paused_until_us = until_us;
            }
            _ => {
                self.coverage.met("fault: the client killed", 1);
                self.faults.kill_after = None;
                self.end_client(client);
            }
        }
        self.until_us = self.until_us.max(until_us + 9_000 * MILLISECOND);
    }

    /// Draws a host that plays a part: a donor, one that takes a place, one that had a place.
    fn draw_host(&mut self) -> usize {
        let client = &self.clients[self.current];
        let mut hosts = client.places.clone();
        if let Some(moving) = client.mover.moving() {
            let sides = &moving.session;
            hosts.extend([sides.host, sides.host]);
            hosts.extend(sides.former.map(|(host, _)| host));
        }
        hosts[self.random.below(hosts.len() as u64) as usize]
    }

    /// Whether another donor than this one is away, or does not have everything.
    fn is_degraded(&self, host: usize) -> bool {
        let client = &self.clients[self.current];
        let standing = client.machine.group().standing();
        (0..client.places.len()).any(|place| {
            let other = client.places[place];
            let members = &client.machine.group().view().members;
            let is_known = members
                .get(place)
                .is_some_and(|member| member.incarnation == self.network.hosts[other].model.incarnation);
            other != host
                && (standing[place] != DonorStanding::Trusted || !self.network.hosts[other].is_up || !is_known)
        })
    }

    /// Whether a host may lose its memory: all others have everything, and a client knows that.
    fn may_lose(&self, host: usize) -> bool {
        let client = &self.clients[self.current];
        let is_donor = client.places.contains(&host);
        let moving = client.mover.moving();
        let is_former = moving.is_some_and(|moving| moving.session.former.is_some_and(|(at, _)| at == host));
        let is_serving = client.is_alive && client.is_attached && self.network.now_us >= client.paused_until_us;
        let is_told = client.machine.group().is_view_stored();
        let alone = self.clients.iter().filter(|client| client.is_alive).count() == 1;
        let is_settling = moving.is_some_and(|moving| moving.plan().stage() == Of::Settling);
        match is_donor || is_former {
            true => is_serving && !self.is_degraded(host) && alone && (is_told || is_settling),
            false => true,
        }
    }
}
