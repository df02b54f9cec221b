//! Opening and creating a store of several spans.
//!
//! Owns: which span is on each device, its number, and whether it is trusted. Promises: a span that may have missed
//! something serves no old object; a device that is not a span of this store is not overwritten. Leaves to others: the
//! meaning of memberships (`membership`), and serving (`mod`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nectary_block::SharedDevice;

use super::membership::{self, believed, last_in_force};
use super::placement::SpanPlacement;
use super::{OpenSpan, SpanDevice, SpanSet, SpanSetInner};
use crate::api::options::{CreateOptions, OpenOptions};
use crate::api::store::Store;
use crate::disk::overlay::OverlayDevice;
use crate::error::{Error, StoreErrorKind};
use crate::format::PurgeRecord;
use crate::format::layout::{SPAN_BYTES_MIN, SPANS_MAX, SpanLayout, SpanMember};
use crate::planted::{Bug, planted};
use crate::purge::log::{self as purge_log, PurgeLog, PurgeOrder};
use crate::purge::records::all_record;
use crate::random::random_u64s;
use crate::recover::{self as recovery, SpanMembership, SpanPurges};

/// The contents of a device.
enum DeviceContents {
    /// The device has a span of a store.
    Span(Box<FoundSpan>),
    /// The device is blank.
    Blank(SharedDevice),
    /// The device cannot be used, for the given reason. It is not changed.
    Lost(String),
}

/// A span as it was found on its device.
struct FoundSpan {
    device: SharedDevice,
    layout: SpanLayout,
    membership: SpanMembership,
    /// The contents of the span's purge log; `None` if the log cannot be read.
    purges: Option<purge_log::RecoveredPurgeLog>,
}

impl DeviceContents {
    /// The position of the span in the order of its store's purges.
    fn order(&self) -> PurgeOrder {
        match self {
            DeviceContents::Span(span) => {
                span.purges.as_ref().map(purge_log::RecoveredPurgeLog::order).unwrap_or_default()
            }
            DeviceContents::Blank(_) | DeviceContents::Lost(_) => PurgeOrder::default(),
        }
    }
}

/// A span that is to be opened.
struct OpeningSpan {
    found: DeviceContents,
    spec: String,
    number: u32,
    size_bytes: u64,
    is_believed: bool,
    /// The records of the purges that the span missed.
    missed: Vec<PurgeRecord>,
}

impl SpanSet {
    /// Opens the store whose spans are on `devices`, in any order; creates it if all of them are blank.
    ///
    /// A device that cannot be opened, or whose superblock is damaged, counts as an absent span, if another span is
    /// present. A blank device replaces a missing span. *Errors*: `Invalid` if the devices are not the spans of one
    /// store, or if `devices` does not name all spans of the store; otherwise those of [`Store::open`]. *Durability*:
    /// when this returns, the membership is flushed on every span, unless the store is opened only for reading.
    pub async fn open(devices: Vec<SpanDevice>, options: OpenOptions) -> Result<SpanSet, Error> {
        SpanSet::open_with(devices, options, false).await
    }

    /// Opens like [`open`](SpanSet::open). But if a missing span may have served without the others, the store begins
    /// empty: the objects on the other spans are forgotten, and a missing span that returns belongs to another store.
    pub async fn open_or_forget(devices: Vec<SpanDevice>, options: OpenOptions) -> Result<SpanSet, Error> {
        SpanSet::open_with(devices, options, true).await
    }

    async fn open_with(
        mut devices: Vec<SpanDevice>,
        options: OpenOptions,
        begins_again: bool,
    ) -> Result<SpanSet, Error> {
        if options.is_read_only && !(planted(Bug::ReaderMakesStore) && devices.len() == 1) {
            for named in &mut devices {
                let failed = Error::invalid("the device was given twice");
                named.device = std::mem::replace(&mut named.device, Err(failed)).map(OverlayDevice::over);
            }
        }
        let is_read_only = options.is_read_only;
        if let [_] = &devices[..] {
            let only = devices.into_iter().next().ok_or_else(|| Error::invalid("no device is named"))?;
            return SpanSet::open_sole(only, options).await;
        }
        let count = devices.len() as u32;
        if !(1..=SPANS_MAX).contains(&count) {
            return Err(Error::invalid(format!("a store has 1 to {SPANS_MAX} spans, {count} devices were named")));
        }
        let sizes: Vec<u64> = devices.iter().map(|named| named.size_bytes).collect();
        let mut found = Vec::new();
        let mut specs = Vec::new();
        for SpanDevice { spec, device, .. } in devices {
            found.push(look(device).await?);
            specs.push(spec);
        }
        let common = common(&specs, &found, &sizes, options.seed)?;
        let numbers = number(&specs, &found, count)?;

        let mut memberships = vec![None; count as usize];
        for (found, &number) in found.iter().zip(&numbers) {
            if let DeviceContents::Span(span) = found {
                memberships[number as usize] = Some(span.membership);
            }
        }
        let known = match membership::latest(&memberships) {
            Some(known) => known,
            // Either no span has recorded any change: the store was created and never used. Or all spans are present
            // and contradict each other after several crashes: all of them begin empty, so it does not matter which of
            // them missed something.
            None if begins_again || memberships.iter().flatten().all(|own| own.number == 0) => {
                SpanMembership::default()
            }
            None if memberships.iter().all(Option::is_some) => SpanMembership::default(),
            None => return Err(unknown(&specs, &found, &numbers)),
        };
        let is_new = known.number == 0;
        let common = if is_new { SpanMember { set: new_set(options.seed), ..common } } else { common };
        let options = OpenOptions { memory_bytes: options.memory_bytes / u64::from(count), ..options };
        options.check().map_err(|error| {
            Error::new(error.kind, format!("{} (the memory of {count} spans is divided between them)", error.message))
        })?;
        let mut spans: Vec<Option<OpenSpan>> = (0..count).map(|_| None).collect();
        let mut notes = Vec::new();
        let mut parts: Vec<OpeningSpan> = (found.into_iter().zip(specs).zip(numbers).zip(sizes))
            .map(|(((found, spec), number), size_bytes)| {
                let is_older_trusted = planted(Bug::OlderCopyTrusted) && known.present >> number & 1 == 1;
                let is_believed = believed(number as usize, &memberships, &known) || is_older_trusted && !is_new;
                OpeningSpan { found, spec, number, size_bytes, is_believed, missed: Vec::new() }
            })
            .collect();
        let order = match is_read_only && planted(Bug::ReaderIgnoresOrder) {
            true => PurgeOrder::default(),
            false => compare_purges(&mut parts),
        };
        // Spans that missed purges are opened first: they get these purges before another span forgets them.
        parts.sort_by_key(|part| part.found.order().number);
        for OpeningSpan { found, spec, number, size_bytes, is_believed, missed } in parts {
            let member = SpanMember { number, ..common };
            let (weight, all) = (common.weights[number as usize], common.weights[..count as usize].iter());
            let share = options.admission.share(weight.into(), all.map(|weight| u64::from(*weight)).sum());
            let options = OpenOptions { admission: share, ..options.clone() };
            let opened = match found {
                DeviceContents::Span(span) if is_believed || planted(Bug::ReturningSpanTrusted) && !is_new => {
                    let FoundSpan { device, layout, purges, .. } = *span;
                    Store::open_span(device, layout, options.clone(), SpanPurges { found: purges, order, missed }).await
                }
                DeviceContents::Span(span) => {
                    let FoundSpan { device, layout, membership, .. } = *span;
                    if membership.number > 0 {
                        notes.push(format!(
                            "{spec}: span {number} was away, or others may have been, or it is an older copy; it begins empty"
                        ));
                    }
                    begin_again(device, layout.span_bytes, Some(layout.segment_bytes), member, &options, order).await
                }
                DeviceContents::Blank(device) => {
                    if !is_new {
                        notes.push(format!("{spec}: it was blank and takes the place of span {number}"));
                    }
                    begin_again(device, size_bytes, None, member, &options, order).await
                }
                DeviceContents::Lost(reason) => Err(Error::new(StoreErrorKind::Io, reason)),
            };
            let (store, lost) = match opened {
                Ok(store) => (Some(store), None),
                // Too little memory or too small a size is an error of the caller, not of the device.
                Err(error) if error.kind == StoreErrorKind::Invalid => return Err(error),
                Err(error) => (None, Some(error.message)),
            };
            if let Some(reason) = &lost {
                notes.push(format!("span {number} is lost: {reason}"));
            }
            spans[number as usize] = Some(OpenSpan { spec, store, lost: Mutex::new(lost) });
        }
        let spans: Vec<OpenSpan> = spans.into_iter().flatten().collect();
        let present = spans.iter().enumerate().filter(|(_, span)| span.store.is_some());
        let present = present.fold(0, |mask, (number, _)| mask | 1 << number);
        let any = spans.iter().find_map(|span| span.store.clone()).ok_or_else(|| {
            Error::new(StoreErrorKind::Io, format!("no span of the store can be used: {}", notes.join("; ")))
        })?;
        let inner = SpanSetInner {
            placement: SpanPlacement::new(&common),
            spans,
            any,
            present: AtomicU64::new(0),
            is_closed: AtomicBool::new(is_read_only && !planted(Bug::ReaderTakesLosses)),
            membership: tokio::sync::Mutex::new((known.number, last_in_force(&memberships, &known))),
            purge_turn: Arc::new(tokio::sync::Mutex::new(order.number)),
            notes: Mutex::new(notes),
        };
        let store = SpanSet { inner: Arc::new(inner) };
        if is_read_only {
            // No change of the membership is recorded, because nothing is written.
            store.inner.present.store(present, Ordering::Release);
            return Ok(store);
        }
        // Two changes are made: when the first span has recorded the second change, all spans have recorded the first
        // one. So a span that has recorded neither change was absent, or is a copy from an earlier open.
        store.settle(present, true).await?;
        store.settle(present, true).await?;
        Ok(store)
    }

    /// Creates an empty store on one or several devices; see [`Store::create`].
    ///
    /// *Errors*: those of [`Store::create`], and of a device that cannot be opened.
    pub async fn create(devices: Vec<SpanDevice>, options: &CreateOptions) -> Result<(), Error> {
        let mut opened = Vec::new();
        let mut weights = [0; SPANS_MAX as usize];
        if devices.is_empty() || devices.len() > weights.len() {
            return Err(Error::invalid(format!("a store has 1 to {SPANS_MAX} spans, {} were named", devices.len())));
        }
        for (SpanDevice { spec, device, size_bytes }, weight) in devices.into_iter().zip(&mut weights) {
            let device = device?;
            if !options.force && Store::probe(&device).await? {
                let message = format!("{spec}: there is a store already; open it, or force its replacement");
                return Err(Error::new(StoreErrorKind::Busy, message));
            }
            *weight = weight_of(size_bytes, &device);
            opened.push((device, size_bytes));
        }
        let count = opened.len() as u32;
        let common = if count == 1 {
            SpanMember::SOLE
        } else {
            SpanMember { set: new_set(options.seed), number: 0, count, weights }
        };
        for ((device, size_bytes), number) in opened.into_iter().zip(0..) {
            let create = CreateOptions { size_bytes, seed: seed_of(options.seed, number), ..options.clone() };
            Store::create_span(device, &create, SpanMember { number, ..common }).await?;
        }
        Ok(())
    }

    /// Opens a store of one span, as a [`Store`].
    async fn open_sole(only: SpanDevice, options: OpenOptions) -> Result<SpanSet, Error> {
        let device = only.device?;
        if !Store::probe(&device).await? {
            let create = CreateOptions { size_bytes: only.size_bytes, seed: options.seed, ..CreateOptions::default() };
            Store::create(device.clone(), &create).await?;
        }
        Ok(SpanSet::from(Store::open(device, options).await?))
    }
}

/// Looks at the contents of a device.
async fn look(device: Result<SharedDevice, Error>) -> Result<DeviceContents, Error> {
    let device = match device {
        Ok(device) => device,
        Err(error) => return Ok(DeviceContents::Lost(error.message)),
    };
    match Store::probe(&device).await {
        Ok(false) => return Ok(DeviceContents::Blank(device)),
        Ok(true) => {}
        Err(error) => return Ok(DeviceContents::Lost(error.message)),
    }
    let layout = match recovery::read_superblock(&device).await {
        Ok(layout) => layout,
        Err(error) => return Ok(DeviceContents::Lost(error.message)),
    };
    let membership = recovery::read_state(&device, &layout).await.newest.membership;
    // If the purges cannot be read, opening the span reports the reason.
    let purges = PurgeLog::recover(&device, &layout).await.ok();
    Ok(DeviceContents::Span(Box::new(FoundSpan { device, layout, membership, purges })))
}

/// Returns the data that all spans have in common: the data of the present spans, or new data for a new store.
fn common(specs: &[String], found: &[DeviceContents], sizes: &[u64], seed: Option<u64>) -> Result<SpanMember, Error> {
    let count = specs.len() as u32;
    let mut common: Option<SpanMember> = None;
    for (spec, found) in specs.iter().zip(found) {
        let DeviceContents::Span(span) = found else { continue };
        let member = span.layout.member;
        if member.count != count {
            return Err(Error::invalid(format!(
                "{spec}: this is one of {} spans of a store, and {count} devices were named; name all of its spans and no \
                 other",
                member.count
            )));
        }
        let first = *common.get_or_insert(member);
        if (SpanMember { number: first.number, ..member }) != first {
            return Err(Error::invalid(format!("{spec}: this is a span of another store than those named before it")));
        }
    }
    if let Some(common) = common {
        return Ok(common);
    }
    let mut weights = [0; SPANS_MAX as usize];
    for (((spec, found), size), weight) in specs.iter().zip(found).zip(sizes).zip(&mut weights) {
        *weight = match found {
            DeviceContents::Lost(reason) => {
                return Err(Error::new(StoreErrorKind::Io, format!("{spec}: no store can be made: {reason}")));
            }
            DeviceContents::Blank(device) => weight_of(*size, device),
            DeviceContents::Span(span) => weight_of(*size, &span.device),
        };
    }
    Ok(SpanMember { set: new_set(seed), number: 0, count, weights })
}

/// The weight of a span for the placement of keys, which follows from its size. A `size_bytes` of 0 means the whole
/// device.
fn weight_of(size_bytes: u64, device: &SharedDevice) -> u32 {
    let bytes = if size_bytes == 0 { device.geometry().size_bytes } else { size_bytes };
    (bytes / SPAN_BYTES_MIN).clamp(1, u64::from(u32::MAX)) as u32
}

fn new_set(seed: Option<u64>) -> u128 {
    let mut random = random_u64s(seed);
    (u128::from(random()) << 64 | u128::from(random())).max(1)
}

/// The seed of a span's identity, different for each span of a store.
fn seed_of(seed: Option<u64>, number: u32) -> Option<u64> {
    seed.map(|seed| seed.rotate_left(32) ^ u64::from(number))
}

/// The error for a store that is not opened because spans are missing.
fn unknown(specs: &[String], found: &[DeviceContents], numbers: &[u32]) -> Error {
    let missing = specs.iter().zip(found).zip(numbers).filter_map(|((spec, found), number)| match found {
        DeviceContents::Span(..) => None,
        DeviceContents::Blank(_) => Some(format!("{spec} is blank (span {number}?)")),
        DeviceContents::Lost(reason) => Some(format!("span {number}? is lost ({reason})")),
    });
    Error::new(
        StoreErrorKind::Absent,
        format!(
            "the store was last used with spans that are not here: {}. They may have served without the others since, so \
             that what these hold may have been purged; bring them back, or forget what is stored",
            missing.collect::<Vec<_>>().join("; ")
        ),
    )
}

/// Compares the purges of the present spans; returns the highest purge numbers of the trusted spans.
///
/// If a span lacks a purge that all spans once had, as another span recorded, the span is an older copy and is not
/// trusted. A span that lacks other purges gets them: the store may have ended before all spans had them.
fn compare_purges(parts: &mut [OpeningSpan]) -> PurgeOrder {
    let believed = || parts.iter().filter(|part| part.is_believed);
    let order = believed().fold(PurgeOrder::default(), |order, part| order.max(part.found.order()));
    if planted(Bug::OlderCopyTrusted) {
        return order;
    }
    let missed: Vec<Vec<PurgeRecord>> = parts.iter().map(|part| missed(&part.found, believed())).collect();
    for (part, missed) in parts.iter_mut().zip(missed) {
        part.is_believed &= part.found.order().number >= order.held;
        part.missed = missed;
    }
    order
}

/// Returns the purges that other spans have and this span lacks; a purge of everything if they cannot be determined.
fn missed<'a>(found: &DeviceContents, others: impl Iterator<Item = &'a OpeningSpan>) -> Vec<PurgeRecord> {
    let DeviceContents::Span(span) = found else { return Vec::new() };
    let number = found.order().number;
    let mut missed = Vec::new();
    for other in others.filter(|other| other.found.order().number > number) {
        let DeviceContents::Span(other) = &other.found else { continue };
        let has_same_hashes = other.layout.hash_seed == span.layout.hash_seed;
        match other.purges.as_ref().and_then(|purges| purges.since(number)).filter(|_| has_same_hashes) {
            Some(records) => missed.extend(records.copied()),
            None => return vec![all_record(0, 0)],
        }
    }
    missed
}

/// Returns the number of each device: the number of its span, or a free number if the device has no span.
fn number(specs: &[String], found: &[DeviceContents], count: u32) -> Result<Vec<u32>, Error> {
    let mut taken = vec![false; count as usize];
    for (spec, found) in specs.iter().zip(found) {
        if let DeviceContents::Span(span) = found
            && std::mem::replace(&mut taken[span.layout.member.number as usize], true)
        {
            return Err(Error::invalid(format!(
                "{spec}: span {} was named before; did another device take its place? Then \
                 blank the one that is out of date",
                span.layout.member.number
            )));
        }
    }
    let mut free = (0..count).filter(|number| !taken[*number as usize]);
    let number = |found: &DeviceContents| match found {
        DeviceContents::Span(span) => span.layout.member.number,
        DeviceContents::Blank(_) | DeviceContents::Lost(_) => free.next().unwrap_or(0),
    };
    Ok(found.iter().map(number).collect())
}

/// Creates an empty span, even if the device has other data, and opens it.
async fn begin_again(
    device: SharedDevice,
    size_bytes: u64,
    segment_bytes: Option<u64>,
    member: SpanMember,
    options: &OpenOptions,
    order: PurgeOrder,
) -> Result<Store, Error> {
    let create = CreateOptions { size_bytes, segment_bytes, force: true, seed: seed_of(options.seed, member.number) };
    Store::create_span(device.clone(), &create, member).await?;
    let layout = recovery::read_superblock(&device).await?;
    // The span is empty, so it missed nothing.
    let order = if planted(Bug::EmptySpanUnnumbered) { PurgeOrder::default() } else { order };
    Store::open_span(device, layout, options.clone(), SpanPurges { order, ..SpanPurges::default() }).await
}
