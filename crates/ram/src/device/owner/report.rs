//! The report of a running device.
//!
//! Owns: the report that the owner publishes, and its numbers for `nectary status`. Leaves to others: explaining
//! problems and remedies in words (the command).

use std::sync::Arc;

use nectary_block::{DeviceCounters, SurvivalLevel};

use crate::group::{DonorStanding, GroupFigures};
use crate::in_place::InPlaceFigures;
use crate::logged::ParityLogFigures;
use crate::scrub::ScrubProgress;

/// The report of one donor.
#[derive(Debug, Clone)]
pub struct DonorReport {
    /// The standing of the donor.
    pub standing: DonorStanding,
    /// Whether there is a connection on which the donor serves this client.
    pub is_up: bool,
    /// Whether the donor has another device, or another client, so that it is not filled.
    pub is_refused: bool,
    /// Whether there is any connection to the donor.
    pub is_reached: bool,
    /// The number of connections made to the donor.
    pub sessions: u64,
    /// The number of requests to the donor.
    pub requests: u64,
    /// The number of bytes read from the donor.
    pub read_bytes: u64,
    /// The number of bytes written to the donor.
    pub written_bytes: u64,
}

/// The report of a rebuild.
#[derive(Debug, Clone, Copy)]
pub struct RebuildReport {
    /// The position of the donor that is being filled.
    pub donor: usize,
    /// The number of stripes that it has (of groups, if the device logs parity).
    pub copied: u64,
    /// Stripes (or groups) that it has when the rebuild is done.
    pub all: u64,
    /// The time that the rebuild has taken. *Units*: milliseconds.
    pub elapsed_ms: u64,
}

/// A donor whose place another one takes.
#[derive(Debug, Clone, Copy)]
pub struct MoveReport {
    /// Which.
    pub donor: usize,
    /// What the other one has of it. *Units*: bytes.
    pub copied: u64,
    /// All that it has. *Units*: bytes.
    pub all: u64,
    /// How long it has taken. *Units*: milliseconds.
    pub elapsed_ms: u64,
}

/// What a machine has counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceCounts {
    /// Counters of the donors.
    pub group: GroupFigures,
    /// Counters of the requests to a device that is changed in place.
    pub in_place: InPlaceFigures,
    /// The number of stripes whose copies may differ.
    pub dirty_stripes: u64,
    /// Whether the device has parity that is changed in place.
    pub is_parity: bool,
    /// Whether the device has no redundancy.
    pub is_plain: bool,
    /// Counters of a device that logs parity.
    pub log: Option<LogCounts>,
}

/// The counters of the machine of a device that logs parity.
#[derive(Debug, Clone, Copy)]
pub struct LogCounts {
    /// The number of the policy: 3 `parity-log`, 4 `parity-cache`, 5 `adaptive`.
    pub policy: u32,
    /// The number of groups.
    pub groups: u64,
    /// The number of groups of which no slot is needed.
    pub free_groups: u64,
    /// The number of unfinished steps.
    pub steps: u64,
    /// Whether recovery is in progress.
    pub is_recovering: bool,
    /// The other counters.
    pub figures: ParityLogFigures,
}

/// The report of the device.
#[derive(Debug, Clone)]
pub struct DeviceReport {
    /// The generation and epoch of the view.
    pub view: (u64, u64),
    /// The donors, by position.
    pub donors: Vec<DonorReport>,
    /// The index of each donor in the SPEC, by position.
    pub places: Vec<usize>,
    /// Whether every trusted donor has stored the view.
    pub is_view_stored: bool,
    /// The rebuild in progress.
    pub rebuild: Option<RebuildReport>,
    /// The donor whose place another one takes now.
    pub moving: Option<MoveReport>,
    /// The scrub.
    pub scrub: ScrubProgress,
    /// The number of spares without a place, and how many of them answered when they were last asked.
    pub spares: (u64, u64),
    /// The SPEC that names the present donors.
    pub spec: Arc<str>,
    /// What writes and flushes survive without redundancy.
    pub plain_survives: (SurvivalLevel, SurvivalLevel),
    /// Counts.
    pub counts: DeviceCounts,
    /// The reason why the device has ended, if it has.
    pub ended: Option<Arc<str>>,
}

impl DeviceReport {
    /// Whether every donor has all its data, and has stored the view that says so. With redundancy, the device then survives
    /// the loss of any one donor.
    pub fn is_whole(&self) -> bool {
        self.is_view_stored && self.donors.iter().all(|donor| donor.standing == DonorStanding::Trusted)
    }

    /// Returns what writes and flushes survive now. A write to a mirror is in the memory of other machines when it
    /// returns; with logged parity it may be only in this process until a flush. With parity in place it does not
    /// survive the loss of a donor together with that of the client.
    pub fn survives(&self) -> (SurvivalLevel, SurvivalLevel) {
        if self.counts.is_plain {
            return self.plain_survives;
        }
        let flush = match (self.is_whole(), self.counts.is_parity) {
            (true, true) => SurvivalLevel::Donor,
            (true, false) => SurvivalLevel::HostAndDonor,
            (false, true) => SurvivalLevel::Nothing,
            (false, false) => SurvivalLevel::Host,
        };
        let write = if self.counts.log.is_some() { SurvivalLevel::Nothing } else { flush };
        (write, flush)
    }

    /// Returns the report as numbers; the donors are in the order of the SPEC.
    pub fn numbers(&self) -> Vec<DeviceCounters> {
        let count = |is: fn(&DonorReport) -> bool| self.donors.iter().filter(|donor| is(donor)).count() as u64;
        let GroupFigures { left, taken_back, rejoined, rebuilt, lies, replaced, .. } = self.counts.group;
        let InPlaceFigures { resynchronised, repaired, hedged, replayed, failed, .. } = self.counts.in_place;
        let mut values = vec![
            ("mirror", u64::from(self.counts.log.is_none())),
            ("plain", u64::from(self.counts.is_plain)),
            ("donors", self.donors.len() as u64),
            ("donors_up", count(|donor| donor.is_up)),
            ("donors_trusted", count(|donor| donor.standing == DonorStanding::Trusted)),
            ("donors_lost", count(|donor| donor.standing == DonorStanding::Lost)),
            ("attached", u64::from(self.ended.is_none())),
            ("degraded", u64::from(!self.is_whole())),
            ("view_generation", self.view.0),
            ("view_epoch", self.view.1),
            ("view_stored", u64::from(self.is_view_stored)),
            ("dirty_stripes", self.counts.dirty_stripes),
            ("left", left),
            ("taken_back", taken_back),
            ("rejoined", rejoined),
            ("rebuilt", rebuilt),
            ("resynchronised_stripes", resynchronised),
            ("wrong_answers", lies),
            ("repaired", repaired),
            ("hedged_reads", hedged),
            ("replayed_writes", replayed),
            ("failed", failed),
            ("replaced", replaced),
            ("spares", self.spares.0),
            ("spares_up", self.spares.1),
        ];
        if let Some(RebuildReport { donor, copied, all, elapsed_ms }) = self.rebuild {
            let number = self.places.get(donor).map_or(0, |place| *place as u64 + 1);
            values.extend([("rebuild_donor", number), ("rebuild_copied_stripes", copied), ("rebuild_stripes", all)]);
            values.push(("rebuild_elapsed_ms", elapsed_ms));
            if let Some(left_ms) = (elapsed_ms * all.saturating_sub(copied)).checked_div(copied) {
                values.push(("rebuild_left_ms", left_ms));
            }
        }
        if let Some(MoveReport { donor, copied, all, elapsed_ms }) = self.moving {
            let number = self.places.get(donor).map_or(0, |place| *place as u64 + 1);
            values.extend([("move_donor", number), ("move_copied_bytes", copied), ("move_bytes", all)]);
            values.push(("move_elapsed_ms", elapsed_ms));
            if let Some(left_ms) = (elapsed_ms * all.saturating_sub(copied)).checked_div(copied) {
                values.push(("move_left_ms", left_ms));
            }
        }
        values.extend(scrub_numbers(&self.scrub));
        if self.counts.is_parity {
            values.push(("reconstructed_reads", self.counts.in_place.reconstructed));
        }
        if self.counts.log.is_none() {
            values.push(("lost_blocks", self.counts.in_place.lost_blocks));
        }
        values.extend(self.counts.log.iter().flat_map(LogCounts::numbers));
        let mut list = vec![DeviceCounters { device: "ram", values }];
        let mut order: Vec<(usize, &DonorReport)> = self.places.iter().copied().zip(&self.donors).collect();
        order.sort_by_key(|(place, _)| *place);
        list.extend(order.into_iter().map(|(place, donor)| donor.numbers(place)));
        list
    }
}

/// Returns the progress and the findings of the scrub. Blocks that nobody can repair are found again by each pass, so
/// they are those of the last pass, or of the present one if it has found more already.
fn scrub_numbers(scrub: &ScrubProgress) -> Vec<(&'static str, u64)> {
    let ScrubProgress { last, present, .. } = scrub;
    let mut values = vec![
        ("scrub_passes", scrub.passes),
        ("scrub_repaired", scrub.repaired),
        ("scrub_lost", last.lost.max(present.lost)),
        ("scrub_doubtful", last.doubtful.max(present.doubtful)),
    ];
    if let Some(done) = scrub.done_bytes {
        let elapsed_ms = scrub.elapsed_us / 1000;
        values.extend([("scrub_done_bytes", done), ("scrub_bytes", scrub.all_bytes), ("scrub_elapsed_ms", elapsed_ms)]);
        let left = u128::from(elapsed_ms) * u128::from(scrub.all_bytes.saturating_sub(done));
        if let Some(left_ms) = left.checked_div(u128::from(done)) {
            values.push(("scrub_left_ms", u64::try_from(left_ms).unwrap_or(u64::MAX)));
        }
    }
    values
}

impl LogCounts {
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let figures = self.figures;
        vec![
            ("log_policy", u64::from(self.policy)),
            ("groups", self.groups),
            ("free_groups", self.free_groups),
            ("steps", self.steps),
            ("completed", figures.completed),
            ("log_failed", figures.failed),
            ("impatient", figures.impatient),
            ("sent_blocks", figures.sent),
            ("cleaned_blocks", figures.cleaned),
            ("sealed_parities", figures.sealed),
            ("open_parities", figures.covered),
            ("freed_groups", figures.freed),
            ("reconstructed_reads", figures.reconstructed),
            ("hedged_parity_reads", figures.hedged),
            ("recovered_groups", figures.recovered_open),
            ("recovered_slots", figures.recovered_lost),
            ("refilled_groups", figures.refilled),
            ("writes_without_room", figures.without_room),
        ]
    }
}

impl DonorReport {
    fn numbers(&self, place: usize) -> DeviceCounters {
        let is = |standing: &[DonorStanding]| u64::from(standing.contains(&self.standing));
        let values = vec![
            ("number", place as u64 + 1),
            ("up", u64::from(self.is_up)),
            ("trusted", is(&[DonorStanding::Trusted])),
            ("left", is(&[DonorStanding::Leaving, DonorStanding::Out])),
            ("refused", u64::from(self.is_refused)),
            ("reached", u64::from(self.is_reached)),
            ("rebuilding", is(&[DonorStanding::Rebuilding])),
            ("lost", is(&[DonorStanding::Lost])),
            ("sessions", self.sessions),
            ("requests", self.requests),
            ("read_bytes", self.read_bytes),
            ("written_bytes", self.written_bytes),
        ];
        DeviceCounters { device: "donor", values }
    }
}
