//! Before a device is attached: which donors there are, which of them is which, and whether they are
//! enough.
//!
//! Owns: one simultaneous look at every donor of a SPEC, and the judgement of the results, with the names of donors.
//! Promises: nothing is stored. The result is only whether attaching can be tried, and the geometry of the device; the
//! machine reads the donors again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_block::{DeviceErrorKind, DeviceOperation, Error, exact_size};

use super::client::donor_bytes;
use super::session::{
    DonorConnectError, DonorConnection, DonorRequestOutcome, SessionTarget, begin, incarnation, window,
};
use crate::device::address::DonorAddress;
use crate::device::together::together;
use crate::device::{RamOptions, Redundancy};
use crate::donor::page::DonorPage;
use crate::format::{DonorRecord, RecordGeometry, RecordStamp, RedundancyCode};
use crate::group::{AttachRefusal, DonorContent, DonorReply, DonorRequest, merge};
use crate::placement::RedundancyPolicy;

/// The number of session epochs of a client that a survey uses on each donor.
pub const EPOCHS: u64 = 1;
/// How long a donor may still see the connection of a client that has just ended.
const FAREWELL: Duration = Duration::from_millis(500);
/// The pause between two looks meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The result of looking at one donor.
pub struct SurveyResult {
    pub target: SessionTarget,
    pub state: Result<SurveyedDonor, DonorConnectError>,
}

/// The connection to a donor, and the metadata that the survey read from it.
pub struct SurveyedDonor {
    pub reached: DonorConnection,
    pub area: bytes::Bytes,
    pub is_owned: bool,
    pub record: Option<DonorRecord>,
}

/// The geometry of a device, and its donors by position.
pub struct DeviceDonors {
    pub geometry: RecordGeometry,
    /// The index of each donor in the SPEC, by position.
    pub places: Vec<usize>,
}

impl DeviceDonors {
    /// Returns the donors that have no position, and so can take one.
    pub fn spares(&self, seen: &[SurveyResult]) -> Vec<DonorAddress> {
        let rest = seen.iter().enumerate().filter(|(place, _)| !self.places.contains(place));
        rest.map(|(_, donor)| donor.target.address.clone()).collect()
    }
}

/// Makes an error of a device.
pub fn error(options: &RamOptions, kind: DeviceErrorKind, detail: String) -> Error {
    Error::new(kind, &options.spec(), DeviceOperation::Open, detail)
}

/// Looks at every donor, spares included.
pub async fn look(options: &RamOptions, client: u64) -> Vec<SurveyResult> {
    look_as(options, client, false).await
}

/// Looks at every donor; looks again for [`FAREWELL`] if a client has the device, which may have just ended, or if a
/// donor has ended the session, which it does when it gets the last record of such a client. Sessions that only read are
/// given by the donors at any time.
pub async fn look_patiently(options: &RamOptions, client: u64, only_reads: bool) -> Vec<SurveyResult> {
    let until = Instant::now() + FAREWELL;
    loop {
        let seen = look_as(options, client, only_reads).await;
        let is_free = owner(&seen).is_none() || options.take_over;
        let is_cut = seen.iter().any(|donor| matches!(donor.state, Err(DonorConnectError::Cut(_))));
        if is_free && !is_cut || Instant::now() >= until {
            return seen;
        }
        drop(seen);
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn look_as(options: &RamOptions, client: u64, only_reads: bool) -> Vec<SurveyResult> {
    let one = |address: DonorAddress| async move {
        let others = (options.redundancy == Redundancy::None).then(Arc::default);
        let target = SessionTarget { address, id: options.id.clone(), client, only_reads, others };
        let state = async {
            let reached = target.connect(EPOCHS, None).await?;
            match begin(&reached.device, DonorRequest::ReadMetadata).await {
                DonorRequestOutcome::Answered(DonorReply::Metadata { area, is_owned }) => {
                    let record = DonorRecord::decode(&area).ok();
                    Ok(SurveyedDonor { reached, area, is_owned, record })
                }
                DonorRequestOutcome::Answered(_) => {
                    Err(DonorConnectError::Refused("it does not tell its metadata".to_owned()))
                }
                DonorRequestOutcome::Lost(reason) => Err(DonorConnectError::Cut(reason)),
            }
        };
        let state = state.await;
        SurveyResult { target, state }
    };
    together(options.donors.iter().chain(&options.spares).cloned().map(one).collect()).await
}

impl SurveyResult {
    pub fn name(&self) -> &str {
        &self.target.address.text
    }

    /// Returns the donor's description of itself, if it answers.
    pub fn page(&self) -> Option<&DonorPage> {
        match &self.state {
            Ok(there) => Some(&there.reached.page),
            Err(DonorConnectError::Absent(page)) => Some(page),
            Err(_) => None,
        }
    }

    fn record(&self) -> Option<&DonorRecord> {
        self.state.as_ref().ok()?.record.as_ref()
    }

    /// Whether the donor has the copy of another one's record, whose place it was about to take.
    fn is_copy(&self) -> bool {
        self.record().zip(self.page()).is_some_and(|(record, page)| !record.is_of(incarnation(page)))
    }

    /// Returns the text that two donors must not share: their labels, or the address if there are none.
    pub fn label(&self) -> String {
        let stated = self.page().map(|page| page.labels.clone()).unwrap_or_default();
        label(&self.target.address, stated)
    }
}

/// The same of a donor by its page.
pub fn label_of(address: &DonorAddress, page: &DonorPage) -> String {
    label(address, page.labels.clone())
}

fn label(address: &DonorAddress, stated: String) -> String {
    let more = address.labels.join(";");
    match (stated.is_empty(), more.is_empty()) {
        (true, true) => address.text.clone(),
        (false, false) => format!("{stated};{more}"),
        _ => stated + &more,
    }
}

/// Refuses problems that only another SPEC can solve: other NBD servers, and one donor under two names.
pub fn check_makes(options: &RamOptions, seen: &[SurveyResult]) -> Result<(), Error> {
    for (index, donor) in seen.iter().enumerate() {
        let name = donor.name();
        let is_other = matches!(donor.state, Err(DonorConnectError::OtherMake));
        if donor.target.others.is_none() && (is_other || !donor.target.address.url.export.is_empty()) {
            let detail = format!(
                "{name} is no `nectary ram donate`: redundancy needs donors that keep an earlier client out, which other \
                 NBD servers cannot; use them with redundancy=none"
            );
            return Err(error(options, DeviceErrorKind::Unsupported, detail));
        }
        let same = |other: &&SurveyResult| {
            donor.page().is_some_and(|page| other.page().is_some_and(|other| other.incarnation == page.incarnation))
        };
        if let Some(other) = seen[..index].iter().find(same) {
            let detail = format!("{} and {name} are the same donor: name each of them once", other.name());
            return Err(error(options, DeviceErrorKind::Invalid, detail));
        }
    }
    Ok(())
}

/// Returns the redundancy of a device.
fn redundancy_of(geometry: &RecordGeometry) -> Redundancy {
    match geometry.code {
        RedundancyCode::None(_) => return Redundancy::None,
        RedundancyCode::Mirror => return Redundancy::Mirror,
        RedundancyCode::Parity => return Redundancy::Parity,
        RedundancyCode::Log(_) => {}
    }
    let policies = RedundancyPolicy::ALL.into_iter().filter(|policy| !policy.is_in_place());
    let found = geometry.log().and_then(|log| policies.into_iter().find(|policy| *policy as u32 == log.policy));
    found.map_or(Redundancy::Mirror, Redundancy::Log)
}

/// Returns the newest record on the donors.
pub fn newest(seen: &[SurveyResult]) -> Option<&DonorRecord> {
    seen.iter().filter_map(SurveyResult::record).max_by_key(|record| record.view.number())
}

/// Refuses a SPEC with another redundancy, or another number of donors, than the device has.
pub fn check_named(options: &RamOptions, geometry: &RecordGeometry) -> Result<(), Error> {
    let fail = |detail: String| Err(error(options, DeviceErrorKind::Invalid, detail));
    let (has, redundancy) = (redundancy_of(geometry), options.redundancy.name());
    if has != options.redundancy {
        return fail(format!("the device has redundancy={}, not redundancy={redundancy}", has.name()));
    }
    let (all, named) = (usize::from(geometry.members), options.donors.len());
    match named == all {
        true => Ok(()),
        false => fail(format!("the device has {all} donors, {named} are named: name all")),
    }
}

/// What is said of memory under the id of the device that no record describes.
pub const NO_RECORD: &str = "an NBD client has made it by its address, or an earlier version of this program without \
                             redundancy";

/// Whether a donor refuses access because what it has of this id has no record.
pub fn has_no_record(said: &str) -> bool {
    said.contains("has no record")
}

/// Refuses what has the id of the device and no record.
pub fn check_recorded(options: &RamOptions, seen: &[SurveyResult]) -> Result<(), Error> {
    let is_plain = |donor: &&SurveyResult| matches!(&donor.state, Err(DonorConnectError::Refused(why)) if has_no_record(why));
    let Some(donor) = seen.iter().find(is_plain) else { return Ok(()) };
    let (name, id) = (donor.name(), &options.id);
    let remedy = "copy its data with that version or that client, then free it with `nectary ram delete --part --force`";
    let detail = format!("{name}: what it has as \"{id}\" has no record: {NO_RECORD}; {remedy}");
    Err(error(options, DeviceErrorKind::Invalid, detail))
}

/// Returns the donors that do not give access to the device, each with the reason. Spares need not have a part of it.
fn missing(seen: &[SurveyResult]) -> Vec<String> {
    let why = |donor: &SurveyResult| match &donor.state {
        Ok(_) | Err(DonorConnectError::Absent(_)) if donor.target.address.is_spare => None,
        Err(away) => Some(format!("{}: {}", donor.name(), away.reason())),
        Ok(SurveyedDonor { record: None, reached, .. }) if reached.device.has_other_data() => {
            Some(format!("{}: it holds something that is no network RAM disk", donor.name()))
        }
        Ok(SurveyedDonor { record: None, area, .. }) if DonorRecord::is_absent(area) => {
            Some(format!("{}: it is empty; if it was started again, its part of the device is gone", donor.name()))
        }
        Ok(SurveyedDonor { record: None, .. }) => {
            Some(format!("{}: its record of the device is damaged", donor.name()))
        }
        Ok(_) => None,
    };
    seen.iter().filter_map(why).collect()
}

/// Finds the position of each donor, and checks that the donors are enough to attach.
///
/// *Errors*: every donor that is missing or wrong, and what is needed.
pub fn place(options: &RamOptions, seen: &[SurveyResult]) -> Result<DeviceDonors, Error> {
    check_makes(options, seen)?;
    let fail = |kind: DeviceErrorKind, detail: String| Err(error(options, kind, detail));
    let mut problems = missing(seen);
    let id = &options.id;
    let Some(newest) = newest(seen) else {
        check_recorded(options, seen)?;
        let is_busy = seen.iter().all(|donor| matches!(donor.state, Err(DonorConnectError::Refused(_))));
        let what = format!("no donor that answers has a part of device \"{id}\"");
        let remedy = "`nectary ram create SPEC` makes a new device";
        let kind = if is_busy { DeviceErrorKind::Busy } else { DeviceErrorKind::Absent };
        return fail(kind, format!("{what}; {}; {remedy}", problems.join("; ")));
    };
    let geometry = newest.geometry;
    check_named(options, &geometry)?;
    let all = usize::from(geometry.members);
    if let Some(wanted) = options.size_bytes.filter(|&wanted| wanted != geometry.bytes) {
        let (has, wanted) = (exact_size(geometry.bytes), exact_size(wanted));
        return fail(DeviceErrorKind::Invalid, format!("the device has {has}, not size={wanted}"));
    }
    let mut places: Vec<Option<usize>> = vec![None; all];
    // A donor whose place another one has taken may still have its part.
    let is_member = |place: usize, position: usize| {
        let incarnation = seen[place].page().map(incarnation);
        incarnation == newest.view.members.get(position).map(|member| member.incarnation)
    };
    for (place, donor) in seen.iter().enumerate() {
        let Some(record) = donor.record() else { continue };
        let position = usize::from(record.position);
        // The copy of a record on a donor that was about to take a place.
        if donor.is_copy() {
            continue;
        }
        let part = donor.state.as_ref().ok().map(part_bytes);
        if part < Some(donor_bytes(&record.geometry, position)) {
            problems.push(format!("{}: its part of the device is as long as that of another one", donor.name()));
        } else if !record.geometry.is_same_device(&geometry) {
            problems.push(format!("{}: its device \"{id}\" is another one, made at another time", donor.name()));
        } else {
            match places[position] {
                None => places[position] = Some(place),
                Some(_) if is_member(place, position) => places[position] = Some(place),
                Some(other) if is_member(other, position) => {}
                Some(other) => {
                    let (one, two) = (seen[other].name(), donor.name());
                    problems.push(format!("{one} and {two} both have the part of donor {}", position + 1));
                }
            }
        }
    }
    if problems.len() > missing(seen).len() {
        return fail(DeviceErrorKind::Invalid, problems.join("; "));
    }
    // Donors that were named as such come before spares. One with a record, of the place that another one has taken or
    // was about to take, comes last: the machine does not overwrite it at once.
    let mut others = (0..seen.len()).filter(|place| !places.contains(&Some(*place))).collect::<Vec<_>>();
    others.sort_by_key(|place| seen[*place].record().is_some());
    let mut others = others.into_iter();
    let places: Vec<usize> = places.iter().map(|place| place.or_else(|| others.next()).unwrap_or_default()).collect();
    match merge(&found(seen, &places), options.trust_remaining) {
        Ok(_) => Ok(DeviceDonors { geometry, places }),
        Err(refusal) => {
            let names: Vec<&str> = places.iter().map(|place| seen[*place].name()).collect();
            let (kind, detail) = describe(&refusal, &names);
            fail(kind, [problems, vec![detail]].concat().join("; "))
        }
    }
}

/// Returns the contents that were found, by position.
pub fn found<'a>(seen: &'a [SurveyResult], places: &[usize]) -> Vec<DonorContent<'a>> {
    let found = |place: &usize| match &seen[*place].state {
        Ok(SurveyedDonor { record: Some(record), reached, .. }) => {
            DonorContent::Record { record, incarnation: incarnation(&reached.page) }
        }
        Ok(_) | Err(DonorConnectError::Absent(_)) => DonorContent::Empty,
        Err(_) => DonorContent::Missing,
    };
    places.iter().map(found).collect()
}

/// Explains why a device is not attached, with the names of its donors by position.
pub fn describe(refusal: &AttachRefusal, names: &[&str]) -> (DeviceErrorKind, String) {
    let name = |position: usize| names.get(position).copied().unwrap_or("?");
    let list = |positions: &[usize]| positions.iter().map(|at| name(*at)).collect::<Vec<_>>().join(", ");
    match refusal {
        AttachRefusal::TooFew { needed, found, missing } => {
            let all = names.len();
            let what = match *needed == all {
                true => format!("all {all} donors are needed without redundancy, and {found} are there"),
                false => format!("{needed} of the {all} donors are needed with their parts, and {found} are there"),
            };
            (DeviceErrorKind::Absent, format!("{what}; without: {}", list(missing)))
        }
        AttachRefusal::CannotSettle { present, missing } => {
            let (present, missing) = (name(*present), name(*missing));
            let detail = format!(
                "{missing} is missing, and {present} was not told that it may be used alone, so it may have older data: \
                 bring {missing} back, or add --trust-remaining if the device was not used without {present}"
            );
            (DeviceErrorKind::Absent, detail)
        }
        AttachRefusal::OtherDevice { donor } => {
            (DeviceErrorKind::Invalid, format!("{}: it has another device, or this one in another shape", name(*donor)))
        }
        AttachRefusal::InUse { donor } => {
            let remedy = "attach it, or delete it first with `nectary ram delete SPEC`";
            (DeviceErrorKind::Busy, format!("{}: it has the device already; {remedy}", name(*donor)))
        }
        AttachRefusal::SameLabel { first, second, label } => {
            let detail = format!(
                "{} and {} have the label {label} and may fail together, but would hold the same blocks: use donors \
                 with other labels, or name them in another order",
                name(*first),
                name(*second)
            );
            (DeviceErrorKind::Invalid, detail)
        }
        AttachRefusal::AttachedElsewhere { client } => (DeviceErrorKind::Busy, owned(&(*client).into())),
        AttachRefusal::Slow { .. } => (DeviceErrorKind::TimedOut, refusal.to_string()),
        AttachRefusal::Contended => (DeviceErrorKind::Busy, refusal.to_string()),
        AttachRefusal::Geometry(_) | AttachRefusal::Incomplete => (DeviceErrorKind::Invalid, refusal.to_string()),
        AttachRefusal::Unreachable | AttachRefusal::Empty => (DeviceErrorKind::Absent, refusal.to_string()),
    }
}

/// Returns the text of the error that another client has the device.
pub fn owned(owner: &LivingClient) -> String {
    format!(
        "{owner} has the device: detach it there, or add --take-over, after which that one can do nothing more with it"
    )
}

/// The same, for a command that cannot take the device over.
pub fn owned_elsewhere(owner: &LivingClient) -> String {
    format!("{owner} has the device: detach it there first, with `nectary detach`")
}

/// The living client that has a device.
#[derive(Debug, Clone)]
pub struct LivingClient {
    /// The random number of the client.
    client: u64,
    /// What a donor says about the client, for people: the name of the donor, and its words.
    said: Option<(String, String)>,
}

impl From<u64> for LivingClient {
    fn from(client: u64) -> LivingClient {
        LivingClient { client, said: None }
    }
}

impl std::fmt::Display for LivingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LivingClient { client, said } = self;
        match said {
            Some((donor, words)) => write!(f, "another client ({client:x}; {donor} says: {words})"),
            None => write!(f, "another client ({client:x})"),
        }
    }
}

/// Returns the living client that has the device on a donor.
pub fn owner(seen: &[SurveyResult]) -> Option<LivingClient> {
    let owned = |donor: &SurveyResult| {
        let there = donor.state.as_ref().ok().filter(|there| there.is_owned)?;
        let words = there.reached.device.description().filter(|words| words.contains("client"));
        let said = words.map(|words| (donor.name().to_owned(), words.to_owned()));
        Some(LivingClient { client: RecordStamp::of(&there.area).client, said })
    };
    seen.iter().find_map(owned)
}

/// Returns the size of the device's part on a donor that has it, in bytes.
pub fn part_bytes(there: &SurveyedDonor) -> u64 {
    window(&there.reached.device)
}
