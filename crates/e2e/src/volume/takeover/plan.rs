//! What goes wrong in a round, drawn from a seed.
//!
//! Owns: the kinds of rounds, their order in a campaign, and the times of a round. Two servers, A and B, can reach the
//! disk. A leads first, over an NBD export that can hang; B is started when A is in trouble.

use std::time::Duration;

use crate::rng::SeededRng;

/// The number of mounts of a round.
pub const MOUNTS: usize = 3;
/// The lease of a server, as the volumes are formatted.
pub const LEASE: Duration = Duration::from_secs(1);
/// The lease of a mount's session.
pub const SESSION_LEASE: Duration = Duration::from_secs(5);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeoverKind {
    /// A's disk hangs while its network works; B takes over; then A's disk returns.
    DiskHangs,
    /// A's process is stopped; B takes over; then A's process goes on.
    Stops,
    /// A, B, A and B lead one after another; each time, the leader's disk hangs or its process is stopped.
    BackAndForth,
    /// A's disk hangs for less than A's lease: A still leads.
    DiskHangsBriefly,
    /// A's process is stopped for less than its lease: A still leads.
    StopsBriefly,
    /// A's disk hangs or its process is stopped for about its lease, while B tries all the time: either may lead.
    Race,
    /// A's export is killed; B takes over.
    DiskIsLost,
    /// A is killed; B takes over.
    Killed,
    /// A ends by SIGTERM; B takes over.
    HandsOver,
    /// B is started with A's number while A leads: it must be refused. Then A is killed, and B takes over.
    SameNumber,
    /// A is cut off from all mounts, and leads on; then an operator kills A, and B takes over.
    NetworkCut,
    /// A's disk hangs; B takes over; some connections of a mount go to B while others stay at A.
    Divided,
    /// One mount's process is stopped for longer than its lease while B takes over from A.
    MountStops,
    /// One mount is cut off from all servers for longer than its lease while B takes over from A.
    MountIsCut,
    /// A is killed; a mount is started while nobody leads; B takes over.
    LateMount,
    /// A is killed and started again, twice; then B takes over, and is killed and started again.
    Restarts,
    /// A's disk hangs; B takes over while its own disk hangs, too; the first that has a disk again leads.
    BothDisksHang,
}

/// The kinds of a campaign, in the order of its rounds; longer campaigns begin again.
const ORDER: [TakeoverKind; 20] = [
    TakeoverKind::DiskHangs,
    TakeoverKind::Stops,
    TakeoverKind::BackAndForth,
    TakeoverKind::DiskHangs,
    TakeoverKind::Divided,
    TakeoverKind::Stops,
    TakeoverKind::StopsBriefly,
    TakeoverKind::MountIsCut,
    TakeoverKind::Killed,
    TakeoverKind::DiskHangs,
    TakeoverKind::SameNumber,
    TakeoverKind::Race,
    TakeoverKind::NetworkCut,
    TakeoverKind::DiskHangsBriefly,
    TakeoverKind::MountStops,
    TakeoverKind::LateMount,
    TakeoverKind::DiskIsLost,
    TakeoverKind::Restarts,
    TakeoverKind::HandsOver,
    TakeoverKind::BothDisksHang,
];

/// How a mount finds its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerReach {
    /// It knows both servers: `--server A,B`.
    Both,
    /// It knows both servers: `--server B,A`.
    Reversed,
    /// It knows only A, until the end of the round, when the address moves to B.
    Stays,
    /// It knows one address, which moves from A to B when B leads.
    Moves,
    /// It knows one address, which moves from A to B when B leads, but some of its connections stay at A.
    MovesInPart,
    /// It knows only B, and is started when B leads.
    OnlySecond,
}

/// A round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeoverPlan {
    /// The seed of the round.
    pub seed: u64,
    /// What goes wrong.
    pub kind: TakeoverKind,
    /// The mounts.
    pub reaches: [ServerReach; MOUNTS],
    /// Whether B reaches the disk over its own export, and not the file.
    pub is_second_exported: bool,
    /// Whether the disk is a file in memory that takes the time of a disk, and not one on a disk, whose time depends on
    /// what else the machine does.
    pub is_in_memory: bool,
    /// Load before the trouble.
    pub before: Duration,
    /// The time from the trouble to the start of B.
    pub notice: Duration,
    /// The length of a brief trouble.
    pub brief: Duration,
    /// The time from B's start as leader to the end of A's trouble.
    pub back: Duration,
    /// Load at the end.
    pub after: Duration,
}

impl TakeoverPlan {
    /// Draws the round with this number (from 0). With `is_single`, no mount knows two servers.
    pub fn draw(number: u64, seed: u64, is_single: bool) -> TakeoverPlan {
        let mut rng = SeededRng::new(seed);
        let kind = ORDER[number as usize % ORDER.len()];
        let mut between = |least: u64, most: u64| Duration::from_millis(least + rng.below(most - least));
        let (before, notice, mut after) = (between(1000, 2000), between(0, 700), between(2500, 4000));
        let (brief, back) = match kind {
            TakeoverKind::Race => (between(700, 1600), Duration::ZERO),
            TakeoverKind::BackAndForth => (Duration::ZERO, between(300, 2000)),
            _ => (between(150, 500), between(500, 6000)),
        };
        let mut reaches = [0; MOUNTS].map(|_| if rng.chance(0.5) { ServerReach::Both } else { ServerReach::Reversed });
        match kind {
            // Most of these rounds have a mount that stays at A, which delays the others by a session's lease.
            TakeoverKind::DiskHangs | TakeoverKind::Stops if number % 4 != 3 => {
                reaches[rng.index(MOUNTS)] = ServerReach::Stays
            }
            TakeoverKind::Divided => reaches[rng.index(MOUNTS)] = ServerReach::MovesInPart,
            TakeoverKind::Killed => reaches[rng.index(MOUNTS)] = ServerReach::Moves,
            TakeoverKind::HandsOver => reaches[rng.index(MOUNTS)] = ServerReach::OnlySecond,
            _ => {}
        }
        if is_single {
            reaches = [ServerReach::Stays, ServerReach::Stays, ServerReach::Moves];
            if kind == TakeoverKind::Divided {
                reaches[1] = ServerReach::MovesInPart;
            }
        }
        let back = if is_single { back + SESSION_LEASE + LEASE } else { back };
        if reaches.contains(&ServerReach::Stays) {
            // Sessions that stay at A end a lease after the start of B; give the others time to go on after that.
            after += (SESSION_LEASE + 2 * LEASE).saturating_sub(back);
        }
        let (is_second_exported, is_in_memory) = (rng.chance(0.3), rng.chance(0.7));
        TakeoverPlan { seed, kind, reaches, is_second_exported, is_in_memory, before, notice, brief, back, after }
    }

    /// The number of times that a server must take over from another one.
    pub fn takeovers(&self) -> u64 {
        match self.kind {
            TakeoverKind::DiskHangsBriefly
            | TakeoverKind::StopsBriefly
            | TakeoverKind::Race
            | TakeoverKind::BothDisksHang => 0,
            TakeoverKind::BackAndForth => 3,
            _ => 1,
        }
    }

    /// Whether a mount is not started before the trouble.
    pub fn is_late(&self, mount: usize) -> bool {
        let is_late = self.kind == TakeoverKind::LateMount && mount == self.victim();
        is_late || self.reaches[mount] == ServerReach::OnlySecond
    }

    /// The mount that the kind of the round is about.
    pub fn victim(&self) -> usize {
        SeededRng::new(self.seed ^ 1).index(MOUNTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A campaign has each kind of round, and a seed always gives the same plan.
    #[test]
    fn campaign_has_all_kinds_seeded() {
        let plans: Vec<TakeoverPlan> = (0..20).map(|number| TakeoverPlan::draw(number, 100 + number, false)).collect();
        assert_eq!(plans[7], TakeoverPlan::draw(7, 107, false));
        let takeovers: u64 = plans.iter().map(TakeoverPlan::takeovers).sum();
        assert!(takeovers >= 15, "{takeovers}");
        for reach in [
            ServerReach::Both,
            ServerReach::Reversed,
            ServerReach::Stays,
            ServerReach::Moves,
            ServerReach::MovesInPart,
            ServerReach::OnlySecond,
        ] {
            assert!(plans.iter().any(|plan| plan.reaches.contains(&reach)), "{reach:?}");
        }
        assert!(plans.iter().any(|plan| plan.is_second_exported) && plans.iter().any(|plan| !plan.is_second_exported));
        let single = TakeoverPlan::draw(0, 1, true);
        assert!(single.reaches.iter().all(|reach| matches!(reach, ServerReach::Stays | ServerReach::Moves)));
    }
}
