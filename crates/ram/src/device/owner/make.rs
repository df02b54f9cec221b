//! Making and deleting a device.
//!
//! Owns: the choice of the geometry for a size, and removing the record. Promises: an existing device is never
//! overwritten; a device that was made only on some donors can be made again; a device with a living client is not
//! deleted.

use std::time::Duration;

use nectary_block::{DeviceErrorKind, DeviceOperation, Error, format_size};

use super::client::donor_bytes;
use super::device::{draw_client, give_up, start};
use super::device_owner::OwnerHandle;
use super::planted::{Bug, before_durable_step, planted};
use super::remnants::trim;
use super::session::{DonorConnectError, DonorRequestOutcome, begin, incarnation};
use super::survey::{
    DeviceDonors, NO_RECORD, SurveyResult, SurveyedDonor, check_makes, check_named, check_recorded, error, has_no_record, look,
    newest, owned, owned_elsewhere, owner, part_bytes,
};
use crate::device::deleting::{DeletionOutcome, conclude, free_export};
use crate::device::direct::shares;
use crate::device::together::together;
use crate::device::{DeviceShares, OVERFLOW_PERCENT, RamOptions, Redundancy};
use crate::donor::{BLOCK_BYTES, PROMISE_BYTES, random};
use crate::format::record::{PLAIN_STRIPES_MAX, STRIPE_BYTES_MAX, STRIPES_MAX};
use crate::format::{
    DonorRecord, Formers, MemberState, RecordGeometry, RecordStamp, RedundancyCode, RowZones, ZONES_MAX,
};
use crate::group::{DonorReply, DonorRequest, MachineIntent, MachineTimes};
use crate::logged::ParityLogConfiguration;
use crate::placement::{LogPlacement, PlacementSettings, RedundancyPolicy};

/// The length of a stripe, unless the device is so large that it needs longer ones. *Units*: bytes.
const STRIPE_BYTES: u64 = 1 << 20;
/// The length of a stripe without redundancy, unless the device is very large. *Units*: bytes.
const PLAIN_STRIPE_BYTES: u64 = 64 << 10;
/// The maximum number of blocks of a device that logs parity.
const BLOCKS_MAX: u32 = 1 << 30;
/// The most overflow that a small device gets by default. *Units*: percent.
const OVERFLOW_OF_SMALL: u32 = 200;

/// Returns the length of a stripe for a device of `bytes`: as short as its metadata allows, because stripes are copied
/// as a whole.
fn stripe_bytes(bytes: u64) -> Option<u32> {
    let stripe = STRIPE_BYTES.max(bytes.div_ceil(STRIPES_MAX).checked_next_power_of_two()?);
    u32::try_from(stripe).ok().filter(|stripe| *stripe <= STRIPE_BYTES_MAX)
}

/// Returns the length of a stripe with parity, without its parity: about the same, cut into one chunk for each of
/// `data_donors`.
fn parity_stripe_bytes(bytes: u64, data_donors: u64) -> Option<u32> {
    let stripe = STRIPE_BYTES.max(bytes.div_ceil(STRIPES_MAX));
    let chunk = stripe.div_ceil(data_donors).checked_next_power_of_two()?;
    let stripe = u32::try_from(chunk.checked_mul(data_donors)?).ok();
    stripe.filter(|stripe| *stripe <= STRIPE_BYTES_MAX)
}

/// The time between two looks at a part that is left of a deleted device, and the largest number of them.
const LEFT_PAUSE: Duration = Duration::from_millis(50);
const LEFT_LOOKS_MAX: usize = 40;

/// Makes a device on donors that have nothing of it yet.
///
/// *Errors*: a donor does not answer, has the device already, or has too little memory; two donors may fail together.
pub async fn create(options: &RamOptions, force: bool) -> Result<DeviceShares, Error> {
    let fail = |kind: DeviceErrorKind, detail: String| Err(error(options, kind, detail));
    let Some(bytes) = options.size_bytes else {
        return fail(DeviceErrorKind::Invalid, "a new device needs a size: size=8G".to_owned());
    };
    let client = draw_client(options)?;
    // Without redundancy, it depends on what is free on each donor.
    let fixed = match options.redundancy {
        Redundancy::None => None,
        Redundancy::Log(policy) => Some(log_geometry(options, policy, bytes)?),
        Redundancy::Parity => Some(parity_geometry(options, bytes)?),
        Redundancy::Mirror => Some(mirror_geometry(options, bytes)?),
    };
    let has_other_size = |at: usize, there: &SurveyedDonor| {
        fixed.is_some_and(|geometry| part_bytes(there) != donor_bytes(&geometry, at))
    };
    // Spares get nothing before they take a place.
    let alone = RamOptions { spares: Vec::new(), ..options.clone() };
    let mut seen = look(&alone, client).await;
    // A donor frees a part that was deleted when the last connection to it has ended.
    for _ in 0..LEFT_LOOKS_MAX {
        let is_left = |(at, donor): (usize, &SurveyResult)| matches!(&donor.state, Ok(there) if DonorRecord::is_absent(&there.area) && !there.reached.device.is_foreign() && (fixed.is_none() || has_other_size(at, there)));
        if !seen.iter().enumerate().any(is_left) {
            break;
        }
        drop(seen);
        tokio::time::sleep(LEFT_PAUSE).await;
        seen = look(&alone, client).await;
    }
    check_makes(options, &seen)?;
    let (mut away, mut taken) = (Vec::new(), Vec::new());
    for (at, donor) in seen.iter().enumerate() {
        let name = donor.name();
        match &donor.state {
            Ok(SurveyedDonor { area, .. }) if !DonorRecord::is_absent(area) && is_ready(area) => {
                taken.push(format!("{name}: it has the device already"));
            }
            Ok(there) if there.reached.device.has_other_data() && !force => {
                taken.push(format!("{name}: it holds something else; --force overwrites it"));
            }
            Ok(there) if has_other_size(at, there) => {
                taken.push(format!("{name}: it has a part of a device of this name, with another size"));
            }
            Ok(_) | Err(DonorConnectError::Absent(_)) => {}
            Err(DonorConnectError::Refused(why)) => taken.push(format!("{name}: {why}")),
            Err(other) => away.push(format!("{name}: {}", other.reason())),
        }
    }
    if !away.is_empty() {
        return fail(DeviceErrorKind::Absent, format!("{}; all donors are needed", away.join("; ")));
    }
    if !taken.is_empty() {
        let remedy = "attach what is there, or delete it first with `nectary ram delete SPEC`";
        return fail(DeviceErrorKind::Busy, format!("{}; {remedy}", taken.join("; ")));
    }
    let geometry = match fixed {
        Some(geometry) => {
            check_room(options, &seen, donor_bytes(&geometry, 0))?;
            geometry
        }
        None => plain_geometry(options, bytes, &seen)?,
    };
    // What a deletion that was cut short has left there is no part of the new device.
    for donor in &seen {
        let Some(there) = donor.state.as_ref().ok().filter(|_| !planted(Bug::RemainsKept)) else { continue };
        if let Err(why) = empty(there).await {
            return fail(DeviceErrorKind::Io, format!("{}: {why}", donor.name()));
        }
    }
    let places = (0..seen.len()).collect();
    let (OwnerHandle { commands, reports, .. }, _owner) =
        start(options, client, MachineIntent::Create, DeviceDonors { geometry, places }, seen).await?;
    // If a donor cannot be told, the device is made nevertheless: the first client begins as after a crash.
    let _ = give_up(&commands, reports).await;
    let shares = (0..usize::from(geometry.members)).map(|donor| donor_bytes(&geometry, donor)).collect();
    Ok(DeviceShares { id: options.id.clone(), size_bytes: bytes, redundancy: options.redundancy, shares })
}

/// Refuses donors with too little memory for a part of so many bytes.
fn check_room(options: &RamOptions, seen: &[SurveyResult], part_bytes: u64) -> Result<(), Error> {
    let needed = part_bytes.next_multiple_of(PROMISE_BYTES);
    let lacks = |donor: &SurveyResult| match &donor.state {
        Err(DonorConnectError::Absent(page)) if page.free_bytes < needed => {
            Some(format!("{} {}", donor.name(), format_size(page.free_bytes)))
        }
        _ => None,
    };
    let small: Vec<String> = seen.iter().filter_map(lacks).collect();
    if small.is_empty() {
        return Ok(());
    }
    let size = format_size(options.size_bytes.unwrap_or_default());
    let detail = format!(
        "{size} with redundancy={} need {} on each donor; too little is free on {}",
        options.redundancy.name(),
        format_size(needed),
        small.join(", ")
    );
    Err(error(options, DeviceErrorKind::Full, detail))
}

/// Returns the bytes that a device could have on a donor.
pub(super) fn capacity(donor: &SurveyResult) -> u64 {
    if let Some(bytes) = donor.state.as_ref().ok().and_then(|there| there.reached.device.foreign_bytes()) {
        return bytes;
    }
    let has = donor.state.as_ref().map_or(0, part_bytes);
    let Some(page) = donor.page() else { return 0 };
    // The donor lends whole slabs.
    let all = has.checked_next_multiple_of(PROMISE_BYTES).unwrap_or(has).saturating_add(page.free_bytes);
    page.quota_bytes.map_or(all, |quota| all.min(quota))
}

/// Returns the geometry of a device without redundancy: donors with little memory get less.
fn plain_geometry(options: &RamOptions, bytes: u64, seen: &[SurveyResult]) -> Result<RecordGeometry, Error> {
    let fail = |kind: DeviceErrorKind, detail: String| Err(error(options, kind, detail));
    let stripe = PLAIN_STRIPE_BYTES.max(bytes.div_ceil(PLAIN_STRIPES_MAX).checked_next_power_of_two().unwrap_or(u64::MAX));
    let Some(stripe_bytes) = u32::try_from(stripe).ok().filter(|stripe| *stripe <= STRIPE_BYTES_MAX) else {
        let most = format_size(PLAIN_STRIPES_MAX * u64::from(STRIPE_BYTES_MAX));
        return fail(DeviceErrorKind::Invalid, format!("a device has at most {most}"));
    };
    let capacities: Vec<u64> = seen.iter().map(|donor| capacity(donor) / stripe).collect();
    let Some(shares) = shares(bytes.div_ceil(stripe), &capacities) else {
        let each = seen.iter().map(|donor| format!("{} {}", donor.name(), format_size(capacity(donor))));
        let each: Vec<String> = each.collect();
        let detail = format!(
            "{} do not fit: there are {}; a device has at least {} on so many donors",
            format_size(bytes),
            each.join(", "),
            format_size(stripe * seen.len() as u64)
        );
        return fail(DeviceErrorKind::Full, detail);
    };
    let Ok(zones) = RowZones::of(&shares) else {
        let detail = format!(
            "the donors would have more than {ZONES_MAX} different numbers of stripes: name donors with about the same free              memory, or fewer"
        );
        return fail(DeviceErrorKind::Invalid, detail);
    };
    let (device, members, code) = (draw_identity(options)?, seen.len() as u16, RedundancyCode::None(zones));
    Ok(RecordGeometry { device, bytes, block_bytes: BLOCK_BYTES, stripe_bytes, members, code })
}

fn draw_identity(options: &RamOptions) -> Result<[u8; 16], Error> {
    random().map_err(|source| Error::from_os(&source, &options.spec(), DeviceOperation::Open))
}

fn mirror_geometry(options: &RamOptions, bytes: u64) -> Result<RecordGeometry, Error> {
    let Some(stripe_bytes) = stripe_bytes(bytes) else {
        let most = format_size(STRIPES_MAX * u64::from(STRIPE_BYTES_MAX));
        return Err(error(options, DeviceErrorKind::Invalid, format!("a mirror has at most {most}")));
    };
    let (device, members) = (draw_identity(options)?, options.donors.len() as u16);
    Ok(RecordGeometry { device, bytes, block_bytes: BLOCK_BYTES, stripe_bytes, members, code: RedundancyCode::Mirror })
}

fn parity_geometry(options: &RamOptions, bytes: u64) -> Result<RecordGeometry, Error> {
    let members = options.donors.len() as u16;
    let Some(stripe_bytes) = parity_stripe_bytes(bytes, u64::from(members).saturating_sub(1).max(1)) else {
        let detail = "the device is too large for redundancy=parity: its stripes would be too long";
        return Err(error(options, DeviceErrorKind::Invalid, detail.to_owned()));
    };
    let device = draw_identity(options)?;
    Ok(RecordGeometry { device, bytes, block_bytes: BLOCK_BYTES, stripe_bytes, members, code: RedundancyCode::Parity })
}

/// Returns the geometry of a device that logs parity: a small device gets fewer caches, and as much overflow as they
/// need.
fn log_geometry(options: &RamOptions, policy: RedundancyPolicy, bytes: u64) -> Result<RecordGeometry, Error> {
    let invalid = |detail: String| error(options, DeviceErrorKind::Invalid, detail);
    let blocks = u32::try_from(bytes / u64::from(BLOCK_BYTES)).ok().filter(|blocks| *blocks <= BLOCKS_MAX);
    let Some(blocks) = blocks else {
        let most = format_size(u64::from(BLOCKS_MAX) * u64::from(BLOCK_BYTES));
        return Err(invalid(format!("a device with redundancy={policy} has at most {most}")));
    };
    let mut layout = PlacementSettings::new(policy, blocks, options.donors.len() as u8 - 1);
    layout.overflow_percent = options.overflow_percent.unwrap_or(OVERFLOW_PERCENT);
    loop {
        match LogPlacement::restore(layout.clone(), std::iter::empty()) {
            Ok(_) => break,
            Err(_) if policy == RedundancyPolicy::Adaptive && layout.streams > 1 => layout.streams /= 2,
            Err(_) if options.overflow_percent.is_none() && layout.overflow_percent < OVERFLOW_OF_SMALL => {
                layout.overflow_percent += OVERFLOW_PERCENT;
            }
            Err(why) => return Err(invalid(why.to_string())),
        }
    }
    let configuration = ParityLogConfiguration {
        device: draw_identity(options)?,
        block_bytes: BLOCK_BYTES,
        layout,
        formers: Formers::default(),
        labels: Vec::new(),
        client: 1,
        intent: MachineIntent::Create,
        times: MachineTimes::default(),
    };
    Ok(configuration.geometry())
}

/// Whether an area has the record of a completely made device, or one that cannot be read.
fn is_ready(area: &[u8]) -> bool {
    DonorRecord::decode(area).map_or(true, |record| record.is_ready)
}

/// Deletes a device: removes the record and trims all blocks, which frees the memory.
///
/// *Errors*: as [`delete`](crate::device::delete).
pub async fn delete(options: &RamOptions) -> Result<usize, Error> {
    let seen = look(options, draw_client(options)?).await;
    check_makes(options, &seen)?;
    if let Some(client) = owner(&seen).filter(|_| !options.take_over) {
        return Err(error(options, DeviceErrorKind::Busy, owned(&client)));
    }
    check_recorded(options, &seen)?;
    if let Some(geometry) = newest(&seen).map(|record| record.geometry) {
        check_named(options, &geometry)?;
        for donor in &seen {
            let Ok(SurveyedDonor { record: Some(record), .. }) = &donor.state else { continue };
            if !record.geometry.is_same_device(&geometry) {
                let (name, id) = (donor.name(), &options.id);
                let detail = format!("{name}: its device \"{id}\" is another one, made at another time");
                return Err(error(options, DeviceErrorKind::Invalid, detail));
            }
        }
    }
    let outcomes = together(seen.into_iter().map(delete_on).collect()).await;
    conclude(options, options.donors.len(), outcomes.into_iter().flatten().collect())
}

/// Deletes the part on one donor; the result has nothing to say of a spare that has none.
async fn delete_on(seen: SurveyResult) -> Option<(String, DeletionOutcome)> {
    let (name, is_spare) = (seen.name().to_owned(), seen.target.address.is_spare);
    let outcome = match seen.state {
        Ok(there) if there.reached.device.has_other_data() => {
            DeletionOutcome::Away("it holds something that is no network RAM disk".to_owned())
        }
        Ok(there) if there.reached.device.is_foreign() && there.record.is_none() => DeletionOutcome::Nothing,
        Ok(there) => empty(&there).await.map_or_else(DeletionOutcome::Failed, |()| DeletionOutcome::Deleted),
        Err(DonorConnectError::Absent(_)) if is_spare => return None,
        Err(DonorConnectError::Absent(_)) => DeletionOutcome::Nothing,
        Err(away) => DeletionOutcome::Away(away.reason()),
    };
    Some((name, outcome))
}

/// Deletes what the only donor of a SPEC has of a device.
///
/// *Errors*: as [`delete_part`](crate::device::delete_part).
pub async fn delete_part(options: &RamOptions, is_forced: bool) -> Result<(), Error> {
    let seen = look(options, draw_client(options)?).await;
    let Some(donor) = seen.first() else { return Ok(()) };
    let fail = |kind: DeviceErrorKind, detail: String| Err(error(options, kind, format!("{}: {detail}", donor.name())));
    let there = match &donor.state {
        Ok(there) => there,
        Err(DonorConnectError::Absent(_)) => {
            let detail = format!("no donor has a part of device \"{}\"", options.id);
            return Err(error(options, DeviceErrorKind::Absent, detail));
        }
        Err(away @ (DonorConnectError::Unreachable(_) | DonorConnectError::Cut(_))) => {
            return fail(DeviceErrorKind::Absent, away.reason());
        }
        Err(DonorConnectError::OtherMake) => {
            return fail(DeviceErrorKind::Unsupported, DonorConnectError::OtherMake.reason());
        }
        Err(DonorConnectError::Refused(why)) if !has_no_record(why) => return fail(DeviceErrorKind::Busy, why.clone()),
        Err(DonorConnectError::Refused(_)) if !is_forced => {
            let detail = format!("{NO_RECORD}; add --force to free it");
            return fail(DeviceErrorKind::Busy, detail);
        }
        Err(DonorConnectError::Refused(_)) => {
            let freed = free_export(&donor.target.address, &options.id).await;
            let outcome = freed.map_or_else(DeletionOutcome::Failed, |()| DeletionOutcome::Deleted);
            return conclude(options, 1, vec![(donor.name().to_owned(), outcome)]).map(drop);
        }
    };
    if let Some(client) = owner(&seen) {
        return fail(DeviceErrorKind::Busy, owned_elsewhere(&client));
    }
    match place_of(there) {
        Some(what) if !is_forced => {
            let remedy = "`nectary ram delete SPEC` deletes the whole device; add --force if no device uses this part";
            return fail(DeviceErrorKind::Busy, format!("{what}; {remedy}"));
        }
        _ => {}
    }
    let outcome = empty(there).await.map_or_else(DeletionOutcome::Failed, |()| DeletionOutcome::Deleted);
    conclude(options, 1, vec![(donor.name().to_owned(), outcome)]).map(drop)
}

/// Returns, in words, that a device may need this part: the record is damaged, or gives the donor a place.
fn place_of(there: &SurveyedDonor) -> Option<String> {
    let Some(record) = &there.record else {
        return (!DonorRecord::is_absent(&there.area))
            .then(|| "its record is damaged, and it may have a place".to_owned());
    };
    let position = usize::from(record.position);
    let own = record.view.members.get(position)?;
    let is_member = own.incarnation == incarnation(&there.reached.page) && own.state == MemberState::Present;
    let (number, all, size) = (position + 1, record.geometry.members, format_size(record.geometry.bytes));
    (record.is_ready && is_member)
        .then(|| format!("its record says that it is donor {number} of {all} of a device of {size}"))
}

/// Removes a donor's record and everything behind it.
async fn empty(there: &SurveyedDonor) -> Result<(), String> {
    let device = &there.reached.device;
    let (expected, record) = (RecordStamp::of(&there.area), bytes::Bytes::new());
    match begin(device, DonorRequest::SwapMetadata { expected, record }).await {
        DonorRequestOutcome::Answered(DonorReply::Done) => {}
        DonorRequestOutcome::Answered(_) => return Err("another client has changed it at this moment".to_owned()),
        DonorRequestOutcome::Lost(reason) => return Err(reason),
    }
    before_durable_step().await;
    trim(device, 0..part_bytes(there)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stripes are as small as the metadata area allows.
    #[test]
    fn stripe_size_fits_metadata() {
        for (bytes, stripe) in [(4096, Some(1 << 20)), (64 << 30, Some(1 << 20)), ((64 << 30) + 4096, Some(2 << 20))] {
            assert_eq!(stripe_bytes(bytes), stripe, "{bytes}");
        }
        let cases = [(4096, 4, Some(1 << 20)), (4096, 3, Some(3 << 19)), (64 << 30, 15, Some(15 << 17))];
        for (bytes, data_donors, stripe) in cases {
            assert_eq!(parity_stripe_bytes(bytes, data_donors), stripe, "{bytes} on {data_donors} and the parity");
        }
        assert_eq!((parity_stripe_bytes(u64::MAX, 4), parity_stripe_bytes(1 << 60, 2)), (None, None));
        assert_eq!(stripe_bytes(STRIPES_MAX * u64::from(STRIPE_BYTES_MAX)), Some(STRIPE_BYTES_MAX));
        assert_eq!(
            (stripe_bytes((STRIPES_MAX * u64::from(STRIPE_BYTES_MAX)) + 1), stripe_bytes(u64::MAX)),
            (None, None)
        );
    }
}
