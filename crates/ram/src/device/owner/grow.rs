//! Growing a device with redundancy that no client has.
//!
//! Owns: the geometry of the larger device, and the order of the steps. Promises: nothing that the device has moves; a
//! client that dies at any step leaves a device of the former or of the new size. Leaves to others: attaching (`group`,
//! `log`), which stores the new geometry together with a new view, as it stores that a donor is left.
//!
//! | step | after it |
//! |---|---|
//! | every donor gets room for its larger part | the former size |
//! | the bytes that the device gets read as zeroes on every donor | the former size |
//! | a view with the new size is stored on every donor | the new size, if a donor that has this view is there |
//!
//! A donor whose view has the former size has nothing that is newer: a client uses the new size only when all donors that
//! are trusted have it.

use std::ops::Range;

use nectary_block::{DeviceErrorKind, Error, exact_size, format_size};

use super::client::donor_bytes;
use super::device::{draw_client, give_up, start};
use super::device_owner::OwnerHandle;
use super::make::capacity;
use super::planted::{Bug, before_durable_step, planted};
use super::remnants::{area, trim};
use super::session::{DonorRequestOutcome, begin, window};
use super::survey::{
    self, DeviceDonors, EPOCHS, SurveyResult, describe, error, found, look_patiently, owned_elsewhere, part_bytes,
    place,
};
use super::unfinished::finish;
use crate::device::direct::more_shares;
use crate::device::{DeviceShares, RamOptions};
use crate::donor::PROMISE_BYTES;
use crate::format::record::{PLAIN_STRIPES_MAX, STRIPES_MAX};
use crate::format::{
    DonorRecord, FormerSize, GROWTHS_MAX, LogShape, RecordGeometry, RecordStamp, RedundancyCode, RowZones, ZONES_MAX,
};
use crate::group::{AttachRefusal, Donor, DonorReply, DonorRequest, MachineIntent, merge};
use crate::in_place::RowLayout;
use crate::logged::ParityLogConfiguration;

/// Makes a device larger.
///
/// *Errors*: as [`grow`](crate::device::grow).
pub async fn grow(options: &RamOptions, bytes: u64) -> Result<DeviceShares, Error> {
    let (_, seen, placed) = look_alone(options).await?;
    let before = placed.geometry;
    let invalid = |detail: String| error(options, DeviceErrorKind::Invalid, detail);
    let mut after = grown(&before, bytes).map_err(invalid)?;
    if let Some(zones) = before.zones().filter(|_| after != before) {
        let donors: Vec<&SurveyResult> = placed.places.iter().map(|place| &seen[*place]).collect();
        after.code = RedundancyCode::None(grown_zones(options, &before, &zones, after.stripes(), &donors)?);
    }
    after.check().map_err(|why| invalid(why.to_string()))?;
    if after != before {
        check_room(options, &seen, &placed, &after)?;
        for (position, place) in placed.places.iter().enumerate() {
            make_room(&seen[*place], &before, &after, position)
                .await
                .map_err(|(kind, why)| error(options, kind, format!("{}: {why}", seen[*place].name())))?;
        }
    }
    drop(seen);
    let (client, seen, placed) = look_alone(options).await?;
    if placed.geometry != before {
        return Err(error(options, DeviceErrorKind::Busy, "another client has changed it meanwhile".to_owned()));
    }
    let intent = MachineIntent::Attach { take_over: false, trust_remaining: false };
    // The device is attached with the new size only when all donors that are there have stored it; one that has ended
    // since the look is left, and filled when it is back.
    let placed = DeviceDonors { geometry: after, ..placed };
    let (OwnerHandle { commands, reports, .. }, _owner) = start(options, client, intent, placed, seen).await?;
    // If a donor cannot be told, the device has grown nevertheless: the next client begins as after a crash.
    let _ = give_up(&commands, reports).await;
    let shares = (0..usize::from(after.members)).map(|donor| donor_bytes(&after, donor)).collect();
    Ok(DeviceShares { id: options.id.clone(), size_bytes: after.bytes, redundancy: options.redundancy, shares })
}

/// Finds the donors of a device that no client has, with a new client's number. All of them must be there with all data.
async fn look_alone(options: &RamOptions) -> Result<(u64, Vec<SurveyResult>, DeviceDonors), Error> {
    let options = &RamOptions { take_over: false, trust_remaining: false, ..options.clone() };
    let client = draw_client(options)?;
    let seen = look_patiently(options, client, false).await;
    let seen = finish(options, client, seen).await;
    let placed = place(options, &seen)?;
    if let Some(other) = survey::owner(&seen) {
        return Err(error(options, DeviceErrorKind::Busy, owned_elsewhere(&other)));
    }
    let names: Vec<&str> = placed.places.iter().map(|place| seen[*place].name()).collect();
    let refuse = |refusal: &AttachRefusal| {
        let (kind, detail) = describe(refusal, &names);
        error(options, kind, detail)
    };
    let merged = merge(&found(&seen, &placed.places), false).map_err(|refusal| refuse(&refusal))?;
    let missing = |donor: &Donor| !merged.trusted[*donor];
    let missing: Vec<&str> = (0..names.len()).filter(missing).map(|donor| names[donor]).collect();
    if !missing.is_empty() {
        let detail = format!("all donors are needed with their parts: attach it without {} first", missing.join(", "));
        return Err(error(
            options,
            DeviceErrorKind::Absent,
            format!("{detail}, and grow it when they are filled or replaced"),
        ));
    }
    Ok((client, seen, placed))
}

/// Returns the geometry of the device with another size. *Errors*: why the size is not possible, in words.
fn grown(before: &RecordGeometry, bytes: u64) -> Result<RecordGeometry, String> {
    if bytes < before.bytes {
        return Err(format!(
            "the device has {}, and does not shrink to {}",
            exact_size(before.bytes),
            exact_size(bytes)
        ));
    }
    if bytes == before.bytes {
        return Ok(*before);
    }
    let mut after = RecordGeometry { bytes, ..*before };
    let stripes_max = if before.zones().is_some() { PLAIN_STRIPES_MAX } else { STRIPES_MAX };
    if let RedundancyCode::Log(log) = before.code {
        after.code = RedundancyCode::Log(grown_log(before, &log, bytes)?);
    } else if after.stripes() > stripes_max {
        let most = format_size(stripes_max * u64::from(before.stripe_bytes));
        return Err(format!("it has {} and stripes for at most {most}", format_size(before.bytes)));
    }
    Ok(after)
}

/// Returns the zones of a device without redundancy that has so many stripes; donors with little memory get fewer of those
/// that are added.
fn grown_zones(
    options: &RamOptions,
    before: &RecordGeometry,
    zones: &RowZones,
    stripes: u64,
    donors: &[&SurveyResult],
) -> Result<RowZones, Error> {
    let stripe_bytes = u64::from(before.stripe_bytes);
    let room = |(position, donor): (Donor, &&SurveyResult)| capacity(donor).saturating_sub(donor_bytes(before, position));
    let room: Vec<u64> = donors.iter().enumerate().map(room).collect();
    let free: Vec<u64> = room.iter().map(|bytes| bytes / stripe_bytes).collect();
    let added = stripes.saturating_sub(zones.stripes());
    let Some(more) = more_shares(added, &free) else {
        let each = donors.iter().zip(&room).map(|(donor, room)| {
            let quota = donor.page().and_then(|page| page.quota_bytes);
            let quota = quota.map(|quota| format!(" (--quota {} for one device)", format_size(quota)));
            format!("{} has room for {}{}", donor.name(), format_size(*room), quota.unwrap_or_default())
        });
        let (each, needed): (Vec<String>, String) = (each.collect(), format_size(added * stripe_bytes));
        let detail = format!("{needed} more are needed: {}", each.join(", "));
        return Err(error(options, DeviceErrorKind::Full, detail));
    };
    zones.grown(&more).map_err(|_| {
        let detail = format!("it has grown too often: it would have more than {ZONES_MAX} zones");
        error(options, DeviceErrorKind::Invalid, detail)
    })
}

fn grown_log(before: &RecordGeometry, log: &LogShape, bytes: u64) -> Result<LogShape, String> {
    let former = FormerSize { blocks: before.blocks() as u32, groups: log.groups };
    let Some(count) = log.formers.iter().position(|former| *former == FormerSize::default()) else {
        return Err(format!("it has grown {GROWTHS_MAX} times, which is the most"));
    };
    let mut layout = ParityLogConfiguration::layout_of(before).ok_or("another version of this program has made it")?;
    let blocks = u32::try_from(bytes / u64::from(before.block_bytes)).ok();
    layout.blocks = blocks.filter(|blocks| *blocks <= crate::placement::BLOCKS_MAX).ok_or_else(|| {
        let most = format_size(u64::from(crate::placement::BLOCKS_MAX) * u64::from(before.block_bytes));
        format!("a device with logged parity has at most {most}")
    })?;
    let mut formers = log.formers;
    formers[count] = former;
    Ok(LogShape { groups: layout.rows(), formers, ..*log })
}

/// Checks that every donor has enough free memory, and may give so much to one device. *Errors*: [`DeviceErrorKind::Full`]
/// names those that do not.
fn check_room(
    options: &RamOptions,
    seen: &[SurveyResult],
    placed: &DeviceDonors,
    after: &RecordGeometry,
) -> Result<(), Error> {
    let lacks = |(position, place): (Donor, &usize)| {
        let part = donor_bytes(after, position);
        let there = seen[*place].state.as_ref().ok()?;
        let has = part_bytes(there).checked_next_multiple_of(PROMISE_BYTES).unwrap_or(u64::MAX);
        let needed = part.next_multiple_of(PROMISE_BYTES).saturating_sub(has);
        let free = there.reached.page.free_bytes;
        let name = seen[*place].name();
        if let Some(quota) = there.reached.page.quota_bytes.filter(|&quota| quota < part) {
            let (quota, part) = (format_size(quota), format_size(part));
            return Some(format!("{name} gives at most {quota} to one device (--quota), {part} are needed"));
        }
        (free < needed).then(|| format!("{name} has {} free, {} are needed", format_size(free), format_size(needed)))
    };
    let lacking: Vec<String> = placed.places.iter().enumerate().filter_map(lacks).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(error(options, DeviceErrorKind::Full, lacking.join("; ")))
}

/// Gives a donor room for its larger part, and makes the bytes read as zeroes that the device gets there. Until the
/// donor is attached again, it counts as detached.
async fn make_room(
    donor: &SurveyResult,
    before: &RecordGeometry,
    after: &RecordGeometry,
    position: Donor,
) -> Result<(), (DeviceErrorKind, String)> {
    let failed = |why: String| (DeviceErrorKind::Io, why);
    let used = "another client uses it at this moment: detach it there, then give the command again";
    let Ok(there) = &donor.state else { return Err(failed("it does not answer any more".to_owned())) };
    before_durable_step().await;
    let reached = donor
        .target
        .connect(EPOCHS + 1, Some(donor_bytes(after, position)))
        .await
        .map_err(|away| failed(away.reason()))?;
    let device = &reached.device;
    let (now, is_owned) = area(device).await.map_err(failed)?;
    let record = DonorRecord::decode(&now).map_err(|error| failed(format!("the record of the device: {error}")))?;
    let expected = RecordStamp::of(&now);
    if is_owned || expected != RecordStamp::of(&there.area) {
        return Err((DeviceErrorKind::Busy, used.to_owned()));
    }
    let stamp = RecordStamp { client: 0, revision: expected.next_revision(), ..expected };
    let record = bytes::Bytes::from(DonorRecord { stamp, ..record }.encode());
    match begin(device, DonorRequest::SwapMetadata { expected, record }).await {
        DonorRequestOutcome::Answered(DonorReply::Done) => {}
        DonorRequestOutcome::Answered(_) => return Err((DeviceErrorKind::Busy, used.to_owned())),
        DonorRequestOutcome::Lost(reason) => return Err(failed(reason)),
    }
    let behind = donor_bytes(before, position)..window(device);
    for range in added(before, position).into_iter().chain(std::iter::once(behind)) {
        before_durable_step().await;
        trim(device, range).await.map_err(failed)?;
    }
    Ok(())
}

/// Returns the bytes inside the present part of a donor that belong to the device only when it has grown: the rest of
/// the last stripe. Its parity stays: for the blocks behind the end of the device, it is computed with zeroes.
fn added(before: &RecordGeometry, position: Donor) -> Vec<Range<u64>> {
    let stripe_bytes = u64::from(before.stripe_bytes);
    let Some(used @ 1..) = before.bytes.checked_rem(stripe_bytes) else { return Vec::new() };
    let stripe = before.stripes() - 1;
    if before.is_log() {
        return Vec::new();
    }
    let (rows, chunk_bytes) = (RowLayout::new(before), u64::from(before.chunk_bytes()));
    let Some(member) = rows.member(stripe, position) else { return Vec::new() };
    let kept = match member == rows.parity() && !rows.is_copied() {
        true if planted(Bug::ParityTrimmed) => 0,
        true => chunk_bytes,
        false if rows.is_copied() => used,
        false => used.saturating_sub(member as u64 * chunk_bytes).min(chunk_bytes),
    };
    let begins_at = rows.offset(rows.columns_of(stripe).start, member);
    let rest = begins_at + kept..begins_at + chunk_bytes;
    if rest.is_empty() { Vec::new() } else { vec![rest] }
}
