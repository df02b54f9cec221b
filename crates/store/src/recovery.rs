//! Opening a span: from what is on the device to an index, a purge table and a place to write on.
//!
//! Owns: the order of recovery as `docs/formats/store.md` gives it. It reads what was written since the newest whole
//! checkpoint, or every segment where there is none. It never fails because of damage behind the superblock: damage costs
//! the objects that it touches.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures_util::future::{OptionFuture, join};
use futures_util::stream::{self, StreamExt};
use nectary_block::{Buffer, SharedDevice, read, write};
use tokio::sync::mpsc;
use zerocopy::IntoBytes;

use crate::checkpoint::{self, CheckpointHeader, LogPosition};
use crate::error::{Error, ErrorKind};
use crate::format::{
    self, BLOCK_BYTES, COUNTER_MAX, HEADER_BYTES, INDEX_SHARDS, Magic, Place, PurgeRecord, StateBody, UNIT_BYTES,
};
use crate::index::{Index, Kept, shard_of};
use crate::key::hash_fragment;
use crate::layout::{Layout, STATE_OFFSET};
use crate::loading::{Loading, Rest};
use crate::log::{Ahead, Care, LIFE_SHIFT, LoggedRecord, Scanned, SegmentReader, Spare, life_of};
use crate::options::{Background, IndexLoading, OpenOptions};
use crate::planted::{Bug, planted};
use crate::purge_log::{self, LogEnd, PurgeLog, PurgeOrder};
use crate::purges::{PurgeTable, RULE_ALL, RULE_PREFIX, RULE_TAG, all_record};
use crate::read_ahead;
use crate::replay::Replay;
use crate::stat::Recovery;

/// Segments that are read at the same time.
const SEGMENTS_AT_ONCE: usize = 4;
/// So many segments or more, beside the first, are read on a thread of their own.
const APART_SEGMENTS_MIN: u64 = 4;
/// An index up to this size is loaded before anything is served, in bytes: that takes no time.
const WHOLE_BYTES_MAX: u64 = 256 << 10;
/// An index from this size on is read on another thread, in bytes.
const APART_BYTES_MIN: u64 = 4 << 20;

/// How much is read before anything is served, and what on other threads.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// An index up to this size is loaded before anything is served, in bytes.
    whole_bytes_max: u64,
    /// An index from this size on is read on another thread, in bytes.
    apart_bytes_min: u64,
    /// Whether there may be threads.
    has_threads: bool,
}

impl Opening {
    /// As a caller wants it.
    pub fn of(options: &OpenOptions) -> Opening {
        let has_threads = options.background == Background::Threads;
        let (whole_bytes_max, apart_bytes_min) = match options.index_loading {
            IndexLoading::BySize => (WHOLE_BYTES_MAX, APART_BYTES_MIN),
            IndexLoading::Shards => (0, u64::MAX),
            IndexLoading::Apart => (0, 0),
        };
        Opening { whole_bytes_max, apart_bytes_min: if has_threads { apart_bytes_min } else { u64::MAX }, has_threads }
    }

    /// An index that is made again while the store serves is loaded whole.
    fn whole(self) -> Opening {
        Opening { whole_bytes_max: u64::MAX, ..self }
    }
}

/// What recovery came to.
pub struct Recovered {
    pub index: Index,
    /// What the index lacks yet.
    pub rest: Rest,
    pub purges: PurgeTable,
    pub purge_log: PurgeLog,
    pub position: LogPosition,
    pub checkpoint_number: u64,
    pub clock: u64,
    pub life: u64,
    pub membership: Membership,
    /// Every put up to here is found, unless it was purged, replaced, reclaimed or damaged.
    pub recovered_sequence: u64,
    /// Whether a crash cut the log before the end of what was found.
    pub is_cut: bool,
    /// The checkpoint that was used.
    pub checkpoint: Option<CheckpointHeader>,
    pub recovery: Recovery,
}

/// Reads the superblock from whichever copy is whole.
pub async fn read_superblock(device: &SharedDevice) -> Result<Layout, Error> {
    let size = device.geometry().size_bytes;
    let mut failure: Option<Error> = None;
    for address in [0, BLOCK_BYTES] {
        if address + BLOCK_BYTES > size {
            failure.get_or_insert(Error::new(
                ErrorKind::Corrupt,
                format!("{size} bytes are too few for a store; was the device cut?"),
            ));
            continue;
        }
        let found = match read(&**device, address, BLOCK_BYTES as usize).await {
            Ok(bytes) => Layout::decode(&bytes, address),
            Err(error) => Err(error.into()),
        };
        match found {
            Ok(layout) => return Ok(layout),
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    let error = failure.unwrap_or_else(|| Error::new(ErrorKind::Corrupt, "no superblock"));
    Err(Error::new(error.kind, format!("{}: {}", device.spec(), error.message)))
}

/// Writes a copy of the superblock anew where it is damaged, without a flush.
async fn repair_superblock(device: &SharedDevice, layout: &Layout) -> Result<(), Error> {
    for address in [0, BLOCK_BYTES] {
        let whole = match read(&**device, address, BLOCK_BYTES as usize).await {
            Ok(bytes) => Layout::decode(&bytes, address).is_ok_and(|copy| copy == *layout),
            Err(_) => false,
        };
        if !whole {
            write(&**device, address, layout.encode(address)).await?;
        }
    }
    Ok(())
}

/// Which spans of a store were there when that last changed, as one of them remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Membership {
    /// Counts the changes; 0 in a store of one span, and where nothing is known.
    pub number: u64,
    /// Random identity of the change, as two spans that do not see each other count alike.
    pub id: u64,
    /// The identity of the last change before it that was in force.
    pub before: u64,
    /// The number of that one; 0 where an earlier program wrote it.
    pub before_number: u64,
    /// The span's clock at the last change by which a span came back.
    pub since: u64,
    /// The spans that are there since, one bit each.
    pub present: u64,
}

/// What is known of the purges of a span of several before it is opened.
#[derive(Default)]
pub struct SpanPurges {
    /// What its log has, where that was read already.
    pub found: Option<purge_log::Recovered>,
    /// How far the span will have come with the purges of its store.
    pub order: PurgeOrder,
    /// Records of purges that it missed, as other spans have them: they purge what it holds now.
    pub missed: Vec<PurgeRecord>,
}

/// What a state slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateSlot {
    /// Opens of the span so far, and changes of the membership.
    pub life: u64,
    /// Whether the last life ended cleanly.
    pub is_clean: bool,
    /// Which spans are there.
    pub membership: Membership,
}

/// The newer state slot.
pub async fn read_state(device: &SharedDevice, layout: &Layout) -> StateSlot {
    let mut newest = StateSlot::default();
    for slot in 0..2 {
        let address = STATE_OFFSET + slot * BLOCK_BYTES;
        let Ok(bytes) = read(&**device, address, BLOCK_BYTES as usize).await else { continue };
        let Ok(header) = format::open_unplaced(&bytes, Magic::State) else { continue };
        let life = header.incarnation.get();
        let place = Place { identity: layout.identity, incarnation: life, address };
        if let Ok(body) = format::open(&bytes, Magic::State, place).and(format::body::<StateBody>(&bytes))
            && body.life.get() == life
            && life > newest.life
            && life < COUNTER_MAX >> LIFE_SHIFT
            && body.membership.get() < COUNTER_MAX
            && body.membership_before_number.get() <= body.membership.get()
        {
            let membership = Membership {
                number: body.membership.get(),
                id: body.membership_id.get(),
                before: body.membership_before.get(),
                before_number: body.membership_before_number.get(),
                since: body.since.get(),
                present: body.present.get(),
            };
            newest = StateSlot { life, is_clean: body.clean.get() == 1, membership };
        }
    }
    newest
}

/// Writes a state slot, without a flush.
pub async fn write_state(device: &SharedDevice, layout: &Layout, state: &StateSlot) -> Result<(), Error> {
    let StateSlot { life, is_clean, membership } = *state;
    let address = STATE_OFFSET + life % 2 * BLOCK_BYTES;
    let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
    let body = StateBody {
        life: life.into(),
        clean: u32::from(is_clean).into(),
        reserved: 0.into(),
        membership: membership.number.into(),
        membership_id: membership.id.into(),
        membership_before: membership.before.into(),
        membership_before_number: membership.before_number.into(),
        since: membership.since.into(),
        present: membership.present.into(),
    };
    buffer[HEADER_BYTES..HEADER_BYTES + size_of::<StateBody>()].copy_from_slice(body.as_bytes());
    let place = Place { identity: layout.identity, incarnation: life, address };
    format::seal(&mut buffer, Magic::State, place, BLOCK_BYTES as usize);
    write(&**device, address, buffer).await?;
    Ok(())
}

/// Recovers a span.
pub async fn recover(
    device: &SharedDevice,
    layout: &Layout,
    index_bytes_max: u64,
    opening: Opening,
    span_purges: SpanPurges,
) -> Result<Recovered, Error> {
    let begun = Instant::now();
    let previous = read_state(device, layout).await;
    let purge = match span_purges.found {
        Some(found) => found,
        None => PurgeLog::recover(device, layout).await?,
    };
    let purges = PurgeTable::new(layout.hash_seed);
    if !planted(Bug::PurgeRecordIgnored) {
        let ignored = |record: &&PurgeRecord| {
            (planted(Bug::PurgeAllIgnored) && record.rule == RULE_ALL)
                || (planted(Bug::PurgePrefixIgnored) && record.rule == RULE_PREFIX)
                || (planted(Bug::PurgeTagIgnored) && record.rule == RULE_TAG)
        };
        purge.records.iter().filter(|record| !ignored(record)).for_each(|record| purges.add(record));
    }
    let (forward, used, checkpoint_number) =
        RollForward::newest(device, layout, &purges, index_bytes_max, u64::MAX, opening).await;
    let recovered_sequence = forward.recovered_sequence();
    let RollForward { index, replay, loading, position, scanned, records, .. } = forward;

    // Sequences of everything found bound the life from below where both state slots are damaged.
    let found_life = life_of(scanned.last_sequence);
    let life = previous.life.max(found_life) + 1;
    repair_superblock(device, layout).await?;
    let membership = previous.membership;
    write_state(device, layout, &StateSlot { life, is_clean: false, membership }).await?;
    device.flush(Default::default()).await?;
    let clock = life << LIFE_SHIFT;

    let known_end = scanned.purge_end.max(used.map_or(LogEnd::default(), |header: CheckpointHeader| header.purge_end));
    let mut purge_log = purge.log;
    let is_short = known_end > purge_log.end() && !planted(Bug::ShortPurgeLogBelieved);
    let purges_lost = purge.lost || is_short;
    if purges_lost && !planted(Bug::PurgeRecordIgnored) {
        purges.add(&all_record(clock, position.incarnation + 1));
    }
    let is_behind = span_purges.order.number > purge_log.order().number;
    for record in &span_purges.missed {
        let position = position.incarnation + 1;
        purges.add(&PurgeRecord { generation: clock.into(), position: position.into(), ..*record });
    }
    purge_log.advance(span_purges.order);
    if purges_lost || purge.one_copy || is_behind {
        purge_log.compact(&purges).await?;
    }
    let recovery = Recovery {
        life,
        clean: previous.is_clean && previous.life > 0,
        checkpoint: used.is_some(),
        appends: scanned.appends,
        append_bytes: scanned.append_bytes,
        records,
        salvaged: scanned.salvaged,
        purges_lost,
        duration_us: begun.elapsed().as_micros() as u64,
    };
    Ok(Recovered {
        index,
        rest: Rest { loading, replay, recovered_sequence },
        purges,
        purge_log,
        position,
        checkpoint_number,
        clock,
        life,
        membership,
        recovered_sequence,
        is_cut: recovered_sequence < scanned.last_sequence,
        checkpoint: used,
        recovery,
    })
}

/// Makes the index anew while checkpoint `number` turns out to be damaged, from an older one or from all segments.
pub async fn rebuild(
    device: &SharedDevice,
    layout: &Layout,
    purges: &PurgeTable,
    index_bytes_max: u64,
    number: u64,
    opening: Opening,
) -> (Index, Replay) {
    let (forward, ..) = RollForward::newest(device, layout, purges, index_bytes_max, number, opening.whole()).await;
    (forward.index, forward.replay)
}

fn new_index(layout: &Layout, bytes_max: u64) -> Index {
    Index::new(layout.index_home_bits, bytes_max.min(layout.index_bytes_max()))
}

/// At most the last two segments are unflushed.
fn care(incarnation: u64, newest: u64) -> Care {
    if incarnation + 1 >= newest { Care::Verify } else { Care::Search }
}

/// What of the log is to be replayed.
struct Log {
    /// The first incarnation, and the last.
    oldest: u64,
    end: u64,
    /// Where it begins, unless the oldest is younger.
    position: LogPosition,
    /// The last sequence before it.
    floor: u64,
    /// Memory of segments that were replayed.
    spares: Mutex<Vec<Spare>>,
}

impl Log {
    /// Reads a segment before it is known what those before it hold.
    async fn segment(&self, device: &SharedDevice, layout: &Layout, incarnation: u64) -> Ahead {
        let offset = if incarnation == self.position.incarnation { self.position.offset } else { 0 };
        let spare = self.spares().pop().unwrap_or_default();
        Ahead::read(device, layout, incarnation, offset, self.floor, care(incarnation, self.end), spare).await
    }

    fn spares(&self) -> MutexGuard<'_, Vec<Spare>> {
        self.spares.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reads all of it in order, until nobody takes it any more.
    async fn read(&self, device: &SharedDevice, layout: &Layout, sender: mpsc::Sender<Ahead>) {
        let segments = stream::iter(self.oldest..=self.end);
        let mut segments =
            segments.map(|incarnation| self.segment(device, layout, incarnation)).buffered(SEGMENTS_AT_ONCE);
        while let Some(ahead) = segments.next().await {
            if sender.send(ahead).await.is_err() {
                return;
            }
        }
    }
}

/// The state of a roll forward.
struct RollForward<'a> {
    device: &'a SharedDevice,
    layout: &'a Layout,
    purges: &'a PurgeTable,
    index: Index,
    replay: Replay,
    /// What the index is loaded from, until all of it is.
    loading: Option<Loading>,
    from_checkpoint: bool,
    position: LogPosition,
    scanned: Scanned,
    records: u64,
}

impl<'a> RollForward<'a> {
    fn of(device: &'a SharedDevice, layout: &'a Layout, purges: &'a PurgeTable, index_bytes_max: u64) -> Self {
        RollForward {
            device,
            layout,
            purges,
            index: new_index(layout, index_bytes_max),
            replay: Replay::new(),
            loading: None,
            from_checkpoint: false,
            position: LogPosition { incarnation: 1, offset: 0 },
            scanned: Scanned::default(),
            records: 0,
        }
    }

    /// Rolls forward from the newest whole checkpoint below `number_end`, or else from the first segment; gives the checkpoint
    /// and the highest number of any. A small index is loaded, a larger one is left to be loaded.
    async fn newest(
        device: &'a SharedDevice,
        layout: &'a Layout,
        purges: &'a PurgeTable,
        index_bytes_max: u64,
        number_end: u64,
        opening: Opening,
    ) -> (Self, Option<CheckpointHeader>, u64) {
        let headers = checkpoint::read_headers(device, layout).await;
        let number = headers.iter().map(|header| header.number).max().unwrap_or(0);
        for header in headers.into_iter().filter(|header| header.number < number_end) {
            let mut forward = RollForward::of(device, layout, purges, index_bytes_max);
            let is_whole = forward.replay_checkpoint(&header, opening).await;
            if is_whole && (header.index_bytes() > opening.whole_bytes_max || forward.load_all().await) {
                return (forward, Some(header), number);
            }
        }
        let mut forward = RollForward::of(device, layout, purges, index_bytes_max);
        forward.replay_all_segments().await;
        (forward, None, number)
    }

    /// A hole in what is known to have been flushed is damage; any other is where a crash cut the log.
    fn recovered_sequence(&self) -> u64 {
        let flushed = self.scanned.flushed_sequence;
        let crash_hole = self.scanned.holes.iter().copied().filter(|&before| before >= flushed).min();
        crash_hole.unwrap_or(self.scanned.last_sequence)
    }

    /// Loads what is not loaded and replays all of it; false where it is damaged.
    async fn load_all(&mut self) -> bool {
        let recovered_sequence = self.recovered_sequence();
        let (loading, replay) = (self.loading.take(), std::mem::replace(&mut self.replay, Replay::new()));
        let mut rest = Rest { loading, replay, recovered_sequence };
        let missing = rest.bring(self.device, self.layout, &self.index, |_| true).await;
        self.replay = rest.replay;
        missing == 0
    }

    /// Finds what is to be replayed after a checkpoint; false where that cannot be, or the checkpoint is seen to be damaged.
    async fn replay_checkpoint(&mut self, header: &CheckpointHeader, opening: Opening) -> bool {
        if !header.fits(&self.index) {
            return false;
        }
        if header.position.incarnation == 0 || header.position.incarnation > COUNTER_MAX {
            return false;
        }
        // How far has the log gone on? Entries in segments opened since are of a former lap. Where a lap or more was
        // written since, the log cannot be followed from here: everything is scanned.
        let first = header.position.incarnation;
        let mut end = first;
        loop {
            match self.incarnation_found(end + 1).await {
                Some(found) if found == end + 1 => end += 1,
                Some(found) if found > end + 1 => return false,
                _ => break,
            }
        }
        if self.incarnation_found(first).await.is_some_and(|found| found > first) {
            return false;
        }
        let layout = self.layout;
        let same_lap = |segment| layout.incarnation_of(segment, end) == layout.incarnation_of(segment, first);
        let kept: Vec<bool> =
            (0..layout.segment_count).map(|segment| planted(Bug::FormerUnitAccepted) || same_lap(segment)).collect();
        let loading = Loading::of(*header, Kept::of(kept, layout.segment_bytes / UNIT_BYTES));
        let loading = self.loading.insert(loading);
        if header.index_bytes() >= opening.apart_bytes_min {
            loading.read_ahead(self.device, layout);
        }
        self.from_checkpoint = true;
        self.scanned.last_sequence = header.last_sequence;
        self.scanned.flushed_sequence = header.last_sequence;
        // Where more than a lap was written since, the oldest of it is gone.
        let oldest = layout.tail(end).max(first);
        self.position = header.position;
        let (position, floor) = (header.position, header.last_sequence);
        let log = Arc::new(Log { oldest, end, position, floor, spares: Mutex::default() });
        let (sender, mut segments) = mpsc::channel(SEGMENTS_AT_ONCE);
        let device = self.device;
        let is_apart = opening.has_threads && end - oldest >= APART_SEGMENTS_MIN && {
            let (log, device, layout, sender) = (Arc::clone(&log), device.clone(), *layout, sender.clone());
            read_ahead::spawn(move || async move { log.read(&device, &layout, sender).await })
        };
        let here = match is_apart {
            true => {
                drop(sender);
                None
            }
            false => Some(log.read(device, layout, sender)),
        };
        let log = &log;
        let take = async move {
            for incarnation in oldest..=end {
                // Where the other thread is gone, it is read here.
                let ahead = match segments.recv().await {
                    Some(ahead) => ahead,
                    None => log.segment(device, layout, incarnation).await,
                };
                let Some(spare) = self.segment(ahead, layout.is_next(incarnation, end)).await else { return false };
                log.spares().push(spare);
                // The first may be read from its middle on.
                if incarnation == oldest + 1 {
                    let bytes_max = (end - oldest + 1) * layout.segment_bytes;
                    let Scanned { append_bytes, .. } = self.scanned;
                    self.replay.reserve((self.records * bytes_max).checked_div(append_bytes).unwrap_or(0));
                }
            }
            true
        };
        join(OptionFuture::from(here), take).await.1
    }

    /// Finds out which segments hold what, and replays all of them.
    async fn replay_all_segments(&mut self) {
        let mut incarnations = Vec::new();
        for segment in 0..self.layout.segment_count {
            // Any incarnation of this segment names its place.
            let nominal = if segment == 0 { self.layout.segment_count } else { segment };
            incarnations.extend(self.incarnation_found(nominal).await);
        }
        let Some(mut newest) = incarnations.iter().copied().max() else { return };
        // Where a crash took the first append of a segment, that begins as it did a lap before, and is found in its middle.
        while self.incarnation_found(newest + 1).await == Some(newest + 1) {
            newest += 1;
            incarnations.push(newest);
        }
        incarnations.sort_unstable();
        let is_missing = |incarnation: &u64| incarnations.binary_search(incarnation).is_err();
        let missing: Vec<u64> = (self.layout.tail(newest)..newest).filter(is_missing).collect();
        for incarnation in missing {
            let found = self.incarnation_found(incarnation).await.filter(|&found| found == incarnation);
            incarnations.extend(found);
        }
        incarnations.sort_unstable();
        let mut spare = Spare::default();
        for incarnation in incarnations.into_iter().filter(|&incarnation| incarnation >= self.layout.tail(newest)) {
            self.position = LogPosition { incarnation, offset: 0 };
            let care = care(incarnation, newest);
            let last_sequence = self.scanned.last_sequence;
            let ahead = Ahead::read(self.device, self.layout, incarnation, 0, last_sequence, care, spare).await;
            spare = self.segment(ahead, self.layout.is_next(incarnation, newest)).await.unwrap_or_default();
            // Shard by shard, and not all at the end, as they would take much memory together.
            (0..INDEX_SHARDS).for_each(|shard| self.replay.apply(shard, &self.index));
        }
        self.load_all().await;
    }

    /// The newest incarnation of which anything is in the segment of this one.
    async fn incarnation_found(&self, incarnation: u64) -> Option<u64> {
        SegmentReader::ahead(self.device, self.layout, incarnation).find_incarnation().await
    }

    /// Takes what a segment says happened; `is_next` where it is the one that is overwritten next. Gives back the memory that it
    /// took; `None` where it takes more of the checkpoint to know, and that is damaged.
    async fn segment(&mut self, ahead: Ahead, is_next: bool) -> Option<Spare> {
        let last_sequence = self.scanned.last_sequence;
        let mut ahead = if ahead.holds_after(last_sequence) {
            ahead
        } else {
            let Ahead { incarnation, offset, care, .. } = ahead;
            let spare = ahead.into_spare();
            Ahead::read(self.device, self.layout, incarnation, offset, last_sequence, care, spare).await
        };
        let Ahead { incarnation, records: found, scanned, .. } = &mut ahead;
        // A hole in the segment that is overwritten next may be the beginning of that: what stood in it may have replaced
        // what is found beside it, so none of it is believed.
        if is_next && scanned.damaged {
            found.clear();
        }
        scanned.lives.retain(|first| life_of(first.first_sequence) > life_of(last_sequence));
        let mut lives = scanned.lives.iter().peekable();
        for record in found.iter() {
            while let Some(first) = lives.next_if(|first| first.first_sequence <= record.sequence) {
                self.replay.forget_lost_after(first.recovered_sequence);
            }
            // A version that a crash left in part must not take the place of one that is whole.
            let complete = match record.fragments {
                None => true,
                Some((generation, count)) => self.has_fragments(record, generation, count).await?,
            };
            self.record(record, complete);
        }
        // The first append of a life may be without records.
        lives.for_each(|first| self.replay.forget_lost_after(first.recovered_sequence));
        self.scanned.appends += scanned.appends;
        self.scanned.append_bytes += scanned.append_bytes;
        self.scanned.salvaged += scanned.salvaged;
        self.scanned.purge_end = self.scanned.purge_end.max(scanned.purge_end);
        self.scanned.flushed_sequence = self.scanned.flushed_sequence.max(scanned.flushed_sequence);
        self.scanned.holes.append(&mut scanned.holes);
        // What a crash cut off was settled by the life that came after it: what that recovered stands. A hole right before what
        // is found first of that life is its own: it writes where the log ends.
        for first in &scanned.lives {
            let settled = first.recovered_sequence..first.before.max(last_sequence);
            self.scanned.holes.retain(|before| !settled.contains(before));
        }
        // A segment whose appends are all of an earlier life adds nothing, and the log does not go on there.
        if scanned.appends + scanned.salvaged > 0 || *incarnation == self.position.incarnation {
            self.scanned.last_sequence = scanned.last_sequence.max(self.scanned.last_sequence);
            self.position = LogPosition { incarnation: *incarnation, offset: scanned.end };
        }
        Some(ahead.into_spare())
    }

    fn record(&mut self, record: &LoggedRecord, complete: bool) {
        self.records += 1;
        if self.from_checkpoint && planted(Bug::CheckpointPositionIgnored) {
            return;
        }
        // What a purge by tag or by prefix killed is found out when it is read. It takes the place of what it replaced.
        if self.purges.is_purged_by_key(record.primary_hash, record.generation, b"") {
            return;
        }
        if record.damaged || !complete {
            self.replay.add_lost(record.hash, record.sequence);
        } else {
            self.replay.add(record.hash, record.location, record.sequence, record.fragment);
        }
    }

    /// Whether all fragments of a head seem to be there; `None` where the checkpoint that should tell is damaged.
    async fn has_fragments(&mut self, head: &LoggedRecord, generation: u64, count: u32) -> Option<bool> {
        for number in 0..count {
            let hash = hash_fragment(head.hash, generation, number);
            // Most were written shortly before their head.
            if self.replay.has_fragment(hash) {
                continue;
            }
            if let Some(loading) = &mut self.loading
                && !loading.load_one(self.device, self.layout, &self.index, shard_of(hash)).await
            {
                return None;
            }
            if self.index.candidates(hash).is_empty() {
                return Some(false);
            }
        }
        Some(true)
    }
}
