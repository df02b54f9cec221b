//! Opens and makes a device: reads what each donor has, and decides whether that is enough.
//!
//! Owns: the judgement of what was found (`assess`, without I/O), which names every missing or wrong donor in one
//! message; opening and making a device. All donors are asked at the same time. Promises: opening never makes
//! a device, and making never overwrites other data; labels identify donors, so their order in the SPEC does not
//! matter.

use nectary_block::{BlockDevice, DeviceErrorKind, DeviceOperation, Error, IoContext, exact_size, format_size};

use super::connect::{DonorSessionError, LabelledSession, LinkTarget, ServerKind, ask, is_in_use, write_label};
use super::label::{DonorLabel, LABEL_AREA_BYTES, LabelContent, Redundancy, UNIT_BYTES};
use super::layout::shares;
use super::options::RamOptions;
use super::together::together;
use crate::device::owner::survey::redundancy_on;
use crate::donor::{PROMISE_BYTES, random};

/// The maximum number of bytes that one request discards when a device is deleted. *Units*: bytes.
pub(super) const DISCARD_BYTES: u64 = 1 << 30;

/// The remedy if a client has the device.
const DETACH: &str = "detach it there first";

/// A donor of the SPEC, with what was found there.
pub(super) struct DonorCandidate {
    pub target: LinkTarget,
    pub state: CandidateState,
    /// The space for a device that a donor without the device has, including the label; otherwise the space for more.
    /// *Units*: bytes.
    pub free_bytes: u64,
    /// The largest part that it gives to one device, including the label, if that is bounded. *Units*: bytes.
    pub quota_bytes: Option<u64>,
}

/// The state of a donor of the SPEC.
pub(super) enum CandidateState {
    /// It does not answer, for this reason.
    Unreachable(String),
    /// It refuses access to the device, for this reason.
    Refused(String),
    /// It has nothing of the device.
    Empty,
    /// It has a session with this client.
    Reached(LabelledSession),
}

/// The state of a donor without the session, for `assess`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DonorFinding {
    Unreachable(String),
    Refused(String),
    Holds(LabelContent),
}

/// The result of the judgement: which candidate is which donor of the device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DonorAssignment {
    /// The label of the device that has the highest generation.
    pub label: DonorLabel,
    /// The index of each donor in the SPEC, by the donor's number; `None` for a missing donor.
    pub places: Vec<Option<usize>>,
}

/// Judges what was found on the donors of a SPEC; up to `lost_max` donors may be missing.
///
/// *Errors*: all donors that are missing or wrong.
pub(super) fn assess(
    options: &RamOptions,
    found: &[(&str, DonorFinding)],
    lost_max: usize,
) -> Result<DonorAssignment, (DeviceErrorKind, String)> {
    let id = &options.id;
    let labels = || found.iter().filter_map(|(_, finding)| label_of(finding));
    let (mut problems, mut is_unreachable, mut is_refused) = (Vec::new(), false, false);
    for (name, finding) in found {
        match finding {
            DonorFinding::Unreachable(why) => {
                is_unreachable = true;
                problems.push(format!("{name}: {why}"));
            }
            DonorFinding::Refused(why) => {
                is_refused = true;
                problems.push(format!("{name}: {why}"));
            }
            DonorFinding::Holds(LabelContent::SomethingElse) => {
                problems.push(format!("{name}: it holds something that is no network RAM disk"));
            }
            DonorFinding::Holds(LabelContent::Unusable(why)) => problems.push(format!("{name}: {why}")),
            DonorFinding::Holds(_) => {}
        }
    }
    let is_used = found.iter().any(|(_, finding)| matches!(finding, DonorFinding::Refused(why) if is_in_use(why)));
    // The device to which most donors belong is chosen.
    let supporters = |label: &&DonorLabel| labels().filter(|other| other.is_same_device(label)).count();
    let of_id = labels().filter(|label| label.id == *id);
    // If several devices have equally many donors, the first one is chosen.
    let Some(main) = of_id.rev().max_by_key(supporters) else {
        for (name, label) in found.iter().filter_map(|(name, finding)| Some((name, label_of(finding)?))) {
            problems.push(format!("{name}: it holds device \"{}\"", label.id));
        }
        let empty: Vec<&str> =
            found.iter().filter(|(_, f)| *f == DonorFinding::Holds(LabelContent::Empty)).map(|f| f.0).collect();
        if is_refused && empty.is_empty() && !is_unreachable {
            problems.extend(is_used.then(|| DETACH.to_owned()));
            return Err((DeviceErrorKind::Busy, problems.join("; ")));
        }
        let nothing = match (empty.len(), found.len()) {
            (0, _) => format!("no donor that answers holds device \"{id}\""),
            (some, all) if some == all => format!("none of the donors ({all}) holds anything of device \"{id}\""),
            _ => format!("no donor that answers holds device \"{id}\"; empty: {}", empty.join(", ")),
        };
        let remedy = "if they were started again, what was on it is gone; `nectary ram create SPEC` makes a new device";
        problems.insert(0, nothing);
        let kind = if is_unreachable || !empty.is_empty() { DeviceErrorKind::Absent } else { DeviceErrorKind::Invalid };
        return Err((kind, format!("{}; {remedy}", problems.join("; "))));
    };
    // If growing was interrupted, labels of both sizes are there, and every donor has room for the newer size.
    let newest = labels().filter(|label| label.is_same_device(main)).max_by_key(|label| label.generation);
    let main = newest.unwrap_or(main);
    let mut places: Vec<Option<usize>> = vec![None; main.shares.len()];
    for (place, (name, finding)) in found.iter().enumerate() {
        let Some(label) = label_of(finding) else {
            if *finding == DonorFinding::Holds(LabelContent::Empty) {
                problems.push(format!("{name}: it is empty; if it was started again, its part of the device is gone"));
            }
            continue;
        };
        if label.id != *id {
            problems.push(format!("{name}: it holds device \"{}\", not \"{id}\"", label.id));
        } else if !label.is_same_device(main) {
            problems.push(format!("{name}: its device \"{id}\" is another one, made at another time"));
        } else if let Some(other) = places[label.number].replace(place) {
            let other = found[other].0;
            let number = label.number + 1;
            problems.push(format!("{other} and {name} are the same donor, number {number}: name each of them once"));
        }
    }
    if found.len() < places.len() {
        let absent = places.iter().enumerate().filter(|(_, place)| place.is_none());
        let numbers: Vec<String> = absent.map(|(number, _)| (number + 1).to_string()).collect();
        let (named, all) = (found.len(), places.len());
        problems
            .push(format!("the device has {all} donors, {named} are named: number {} is missing", numbers.join(", ")));
    }
    if let Some(wanted) = options.size_bytes.filter(|&wanted| wanted != main.size_bytes) {
        problems.push(format!("the device has {}, not size={}", exact_size(main.size_bytes), exact_size(wanted)));
        return Err((DeviceErrorKind::Invalid, problems.join("; ")));
    }
    let missing = places.iter().filter(|place| place.is_none()).count();
    // A donor that is missing may be tolerated; a wrong one is a mistake in the SPEC.
    let is_away = |finding: &DonorFinding| {
        matches!(finding, DonorFinding::Unreachable(_) | DonorFinding::Holds(LabelContent::Empty))
    };
    let away = found.iter().filter(|(_, finding)| is_away(finding)).count();
    if missing > lost_max || away > lost_max || problems.len() > away {
        let all = places.len();
        let kind = match (is_unreachable, is_refused) {
            (true, _) => DeviceErrorKind::Absent,
            (false, true) => DeviceErrorKind::Busy,
            (false, false) if problems.len() <= away => DeviceErrorKind::Absent,
            (false, false) => DeviceErrorKind::Invalid,
        };
        let needed = match lost_max {
            0 => format!("all {all} donors are needed without redundancy"),
            _ => format!("{} of {all} donors are needed", all - lost_max),
        };
        let is_empty = found.iter().any(|(_, finding)| *finding == DonorFinding::Holds(LabelContent::Empty));
        problems.push(needed);
        if is_used {
            problems.push(DETACH.to_owned());
        } else if lost_max == 0 && is_empty {
            let remedy = "if no donor is named wrongly, delete what is left with `nectary ram delete SPEC`, and make the \
                          device again with `nectary ram create SPEC`";
            problems.push(remedy.to_owned());
        }
        return Err((kind, problems.join("; ")));
    }
    Ok(DonorAssignment { label: main.clone(), places })
}

fn label_of(finding: &DonorFinding) -> Option<&DonorLabel> {
    match finding {
        DonorFinding::Holds(LabelContent::Label(label)) => Some(label),
        _ => None,
    }
}

impl DonorCandidate {
    fn finding(&self) -> DonorFinding {
        match &self.state {
            CandidateState::Unreachable(why) => DonorFinding::Unreachable(why.clone()),
            CandidateState::Refused(why) => DonorFinding::Refused(why.clone()),
            CandidateState::Empty => DonorFinding::Holds(LabelContent::Empty),
            CandidateState::Reached(reached) => DonorFinding::Holds(reached.found.clone()),
        }
    }
}

/// Asks all donors at the same time.
pub(super) async fn survey(options: &RamOptions, client: u64) -> Vec<DonorCandidate> {
    let one = |address: super::address::DonorAddress| async move {
        let mut target = LinkTarget { address, id: options.id.clone(), client, incarnation: None };
        let (free_bytes, quota_bytes) = match ask(&target.address).await {
            Ok(ServerKind::Donor(page)) => {
                target.incarnation = Some(page.incarnation);
                (page.free_bytes, page.quota_bytes)
            }
            Ok(ServerKind::Other) => (0, None),
            Err(why) => {
                let state = CandidateState::Unreachable(why);
                return DonorCandidate { target, state, free_bytes: 0, quota_bytes: None };
            }
        };
        let candidate =
            |target: LinkTarget, state, free_bytes| DonorCandidate { target, state, free_bytes, quota_bytes };
        match target.connect(1, None, options.patience).await {
            Ok(reached) => {
                let bytes = if target.can_return() { free_bytes } else { reached.device.geometry().size_bytes };
                candidate(target, CandidateState::Reached(reached), bytes)
            }
            Err(DonorSessionError::Absent) => candidate(target, CandidateState::Empty, free_bytes),
            Err(DonorSessionError::Refused(why)) => candidate(target, CandidateState::Refused(why), 0),
            Err(DonorSessionError::Failed(why)) => candidate(target, CandidateState::Unreachable(why), 0),
        }
    };
    together(options.donors.iter().cloned().map(one).collect()).await
}

/// Refuses two names in the SPEC that lead to the same donor process.
pub(super) fn check_distinct(options: &RamOptions, candidates: &[DonorCandidate]) -> Result<(), Error> {
    for (index, candidate) in candidates.iter().enumerate() {
        let is_same = |other: &&DonorCandidate| {
            other.target.incarnation.is_some() && other.target.incarnation == candidate.target.incarnation
        };
        if let Some(other) = candidates[..index].iter().find(is_same) {
            let (one, two) = (&other.target.address.text, &candidate.target.address.text);
            let detail = format!("{one} and {two} are the same donor: name each of them once");
            return Err(error(options, DeviceErrorKind::Invalid, detail));
        }
    }
    Ok(())
}

pub(super) fn error(options: &RamOptions, kind: DeviceErrorKind, detail: String) -> Error {
    Error::new(kind, &options.spec(), DeviceOperation::Open, detail)
}

/// Refuses a device with redundancy, which the SPEC names without; only a donor that refuses access can have one.
pub(super) async fn check_plain(options: &RamOptions, candidates: &[DonorCandidate]) -> Result<(), Error> {
    if !candidates.iter().any(|candidate| matches!(candidate.state, CandidateState::Refused(_))) {
        return Ok(());
    }
    let Some(has) = redundancy_on(options, draw_client(options)?).await.0 else { return Ok(()) };
    let has = has.name();
    let part = match options.donors.len() {
        1 => "; `nectary ram delete --part SPEC` frees what this donor alone has of it",
        _ => "",
    };
    let detail = format!("the device has redundancy={has}, not redundancy=none: name it with redundancy={has}{part}");
    Err(error(options, DeviceErrorKind::Invalid, detail))
}

/// Draws a random number for a client.
pub(super) fn draw_client(options: &RamOptions) -> Result<u64, Error> {
    let bytes = random().map_err(|source| Error::from_os(&source, &options.spec(), DeviceOperation::Open))?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// The donors of a device, ready for requests.
pub(super) struct ReadyDonors {
    pub label: DonorLabel,
    /// The session and the present label of each donor, by the donor's number.
    pub donors: Vec<(LinkTarget, DonorLabel, LabelledSession)>,
}

/// Returns the label of a device of which no donor is missing, and its donors by number.
///
/// *Errors*: all donors that are missing or wrong.
pub(super) fn all_donors(
    options: &RamOptions,
    candidates: Vec<DonorCandidate>,
) -> Result<(DonorLabel, Vec<DonorCandidate>), Error> {
    let found: Vec<(&str, DonorFinding)> =
        candidates.iter().map(|candidate| (candidate.target.address.text.as_str(), candidate.finding())).collect();
    let DonorAssignment { label, places } =
        assess(options, &found, 0).map_err(|(kind, detail)| error(options, kind, detail))?;
    let mut candidates: Vec<Option<DonorCandidate>> = candidates.into_iter().map(Some).collect();
    let donors = places.into_iter().flatten().filter_map(|place| candidates[place].take()).collect();
    Ok((label, donors))
}

/// Opens a device: finds its donors and writes labels with a new generation.
pub(super) async fn open(options: &RamOptions) -> Result<ReadyDonors, Error> {
    let client = draw_client(options)?;
    let candidates = survey(options, client).await;
    check_distinct(options, &candidates)?;
    check_plain(options, &candidates).await?;
    // Without redundancy no donor may be missing.
    let (mut label, candidates) = all_donors(options, candidates)?;
    let Some(generation) = label.generation.checked_add(1) else {
        return Err(error(options, DeviceErrorKind::Io, "its generations are used up".to_owned()));
    };
    (label.generation, label.client) = (generation, client);
    let mut donors = Vec::new();
    for (number, DonorCandidate { target, state, .. }) in candidates.into_iter().enumerate() {
        if let CandidateState::Reached(reached) = state {
            donors.push((target, DonorLabel { number, ..label.clone() }, reached));
        }
    }
    let written = together(donors.iter().map(mark).collect()).await;
    let failed: Vec<String> = written.into_iter().filter_map(Result::err).collect();
    match failed.is_empty() {
        true => Ok(ReadyDonors { label, donors }),
        false => Err(error(options, DeviceErrorKind::Io, failed.join("; "))),
    }
}

/// Writes the new label of a donor.
async fn mark((target, label, reached): &(LinkTarget, DonorLabel, LabelledSession)) -> Result<(), String> {
    write_label(&reached.device, label).await.map_err(|why| format!("{}: {why}", target.address.text))
}

/// Makes a device on donors that have nothing of it. With `force`, data on NBD servers that are no Nectary donors is
/// overwritten.
///
/// *Errors*: a donor does not answer, is not empty, or has too little memory; then nothing is written.
pub(super) async fn create(options: &RamOptions, force: bool) -> Result<DonorLabel, Error> {
    let invalid = |detail: String| error(options, DeviceErrorKind::Invalid, detail);
    let Some(size_bytes) = options.size_bytes else {
        return Err(invalid("a new device needs a size: size=8G".to_owned()));
    };
    let client = draw_client(options)?;
    let candidates = survey(options, client).await;
    check_distinct(options, &candidates)?;
    let (mut away, mut taken) = (Vec::new(), Vec::new());
    for DonorCandidate { target, state, .. } in &candidates {
        let name = &target.address.text;
        match state {
            CandidateState::Unreachable(why) => away.push(format!("{name}: {why}")),
            CandidateState::Refused(why) => taken.push(format!("{name}: {why}")),
            CandidateState::Empty => {}
            CandidateState::Reached(reached) => match &reached.found {
                LabelContent::Empty => {}
                LabelContent::Label(label) => taken.push(format!("{name}: it holds device \"{}\" already", label.id)),
                LabelContent::Unusable(why) => taken.push(format!("{name}: {why}")),
                LabelContent::SomethingElse if force => {}
                LabelContent::SomethingElse => {
                    taken.push(format!("{name}: it holds something else; --force overwrites it"));
                }
            },
        }
    }
    if !away.is_empty() {
        return Err(error(options, DeviceErrorKind::Absent, format!("{}; all donors are needed", away.join("; "))));
    }
    if !taken.is_empty() {
        let remedy = "attach what is there, or delete it first with `nectary ram delete SPEC`";
        return Err(error(options, DeviceErrorKind::Busy, format!("{}; {remedy}", taken.join("; "))));
    }
    let capacity = |candidate: &DonorCandidate| candidate.free_bytes.saturating_sub(LABEL_AREA_BYTES);
    let capacities: Vec<u64> = candidates.iter().map(capacity).collect();
    let Some(shares) = shares(size_bytes, &capacities) else {
        let each = candidates.iter().zip(&capacities);
        let each: Vec<String> =
            each.map(|(c, &bytes)| format!("{} {}", c.target.address.text, format_size(bytes))).collect();
        let least = format_size(UNIT_BYTES * candidates.len() as u64);
        let detail = format!(
            "{} do not fit: there are {}; a device has at least {least} on so many donors",
            format_size(size_bytes),
            each.join(", ")
        );
        return Err(error(options, DeviceErrorKind::Full, detail));
    };
    let identity = random().map_err(|source| Error::from_os(&source, &options.spec(), DeviceOperation::Open))?;
    let label = DonorLabel {
        number: 0,
        redundancy: Redundancy::None,
        identity,
        size_bytes,
        generation: 1,
        client,
        id: options.id.clone(),
        shares,
        formers: Vec::new(),
    };
    let write = |(number, candidate): (usize, DonorCandidate)| {
        let label = DonorLabel { number, ..label.clone() };
        let patience = options.patience;
        async move {
            let name = candidate.target.address.text.clone();
            make_part(candidate, &label, patience).await.map_err(|why| format!("{name}: {why}"))
        }
    };
    let made = together(candidates.into_iter().enumerate().map(write).collect()).await;
    let failed: Vec<String> = made.into_iter().filter_map(Result::err).collect();
    match failed.is_empty() {
        true => Ok(label),
        false => {
            let detail = format!("{}; `nectary ram delete SPEC` removes what was made on others", failed.join("; "));
            Err(error(options, DeviceErrorKind::Io, detail))
        }
    }
}

/// Makes one donor's part of a new device: zeroes, and a label.
async fn make_part(candidate: DonorCandidate, label: &DonorLabel, patience: std::time::Duration) -> Result<(), String> {
    let part_bytes = LABEL_AREA_BYTES + label.shares[label.number];
    let reached = match candidate.state {
        CandidateState::Reached(reached) => reached,
        _ => {
            // A donor lends whole slabs, so the rest of the last slab also belongs to this device.
            let bytes = part_bytes.next_multiple_of(PROMISE_BYTES).min(candidate.free_bytes).max(part_bytes);
            match candidate.target.connect(1, Some(bytes), patience).await {
                Ok(reached) => reached,
                Err(DonorSessionError::Absent) => return Err("it does not make the device".to_owned()),
                Err(DonorSessionError::Failed(why) | DonorSessionError::Refused(why)) => return Err(why),
            }
        }
    };
    let zero = |offset: u64| {
        let length = DISCARD_BYTES.min(part_bytes - offset);
        reached.device.write_zeroes(offset, length, IoContext::default())
    };
    let mut offset = 0;
    while offset < part_bytes {
        zero(offset).await.map_err(|error| error.detail)?;
        offset += DISCARD_BYTES;
    }
    write_label(&reached.device, label).await
}
