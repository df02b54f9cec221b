//! The state slots of a span: how often it was opened, whether it was closed cleanly, and which spans are present.
//!
//! Owns: reading and writing the slots, and the number of the next open. The two slots are written alternately, so that
//! a torn write leaves the previous slot intact.

use nectary_block::{Buffer, SharedDevice, read, write};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::format::layout::{STATE_OFFSET, SpanLayout};
use crate::format::{
    self, BLOCK_BYTES, COUNTER_MAX, FrameMagic, FramePlace, HEADER_BYTES, OPEN_COUNT_SHIFT, StateBody,
};
use crate::planted::{Bug, planted};

/// The last change of the set of present spans of a store, as one span recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanMembership {
    /// The number of the change; 0 in a store of one span, or if no change is known.
    pub number: u64,
    /// Random identity of the change: two spans that do not see each other may use the same number for different
    /// changes.
    pub id: u64,
    /// The identity of the last committed change before this one.
    pub before: u64,
    /// The number of the last committed change before this one; 0 if an earlier program wrote the slot.
    pub before_number: u64,
    /// The span's clock at the last change in which a span returned.
    pub since: u64,
    /// The spans present since this change, one bit per span.
    pub present: u64,
}

/// The contents of a state slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateSlot {
    /// The number of times that the span was opened or its membership changed.
    pub open_count: u64,
    /// Whether the span was closed cleanly after the last open.
    pub is_clean: bool,
    /// The membership that the span recorded last.
    pub membership: SpanMembership,
}

/// What the two state slots say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FoundState {
    /// The newer of the intact slots; the default if none is intact.
    pub newest: StateSlot,
    /// The number of slots that were written, and are damaged or cannot be read now.
    pub broken: u64,
}

impl FoundState {
    /// The open count of the next open; `seen` is the highest one that anything else on the device has.
    ///
    /// No open count may be used twice, because sequences and generations are drawn from it. A broken slot may have the
    /// count after that of the intact slot. So two more are skipped, and the broken slot is written next.
    pub fn next_open_count(&self, seen: u64) -> u64 {
        let skipped = if self.broken > 0 { 2 } else { 0 };
        (self.newest.open_count + skipped).max(seen) + 1
    }

    /// Whether the last open is known to have ended with a clean close.
    pub fn is_clean(&self) -> bool {
        self.newest.is_clean && self.broken == 0
    }
}

/// Reads the state slots.
pub async fn read_state(device: &SharedDevice, layout: &SpanLayout) -> FoundState {
    let mut found = FoundState::default();
    let both = read(&**device, STATE_OFFSET, 2 * BLOCK_BYTES as usize).await.ok();
    for slot in 0..2 {
        let address = STATE_OFFSET + slot * BLOCK_BYTES;
        let alone;
        let bytes = match &both {
            Some(both) => &both[(slot * BLOCK_BYTES) as usize..][..BLOCK_BYTES as usize],
            None => {
                alone = read(&**device, address, BLOCK_BYTES as usize).await.ok();
                alone.as_ref().map_or(&[][..], |bytes| &bytes[..])
            }
        };
        match decode(bytes, layout, address) {
            Some(state) if state.open_count > found.newest.open_count => found.newest = state,
            Some(_) => {}
            // A slot that cannot be read has no bytes here: it is not blank.
            None => found.broken += u64::from(bytes.is_empty() || bytes.iter().any(|&byte| byte != 0)),
        }
    }
    found
}

fn decode(bytes: &[u8], layout: &SpanLayout, address: u64) -> Option<StateSlot> {
    let open_count = format::open_unplaced(bytes, FrameMagic::State).ok()?.epoch.get();
    let place = FramePlace { identity: layout.identity, epoch: open_count, address };
    let body = format::open(bytes, FrameMagic::State, place).and(format::body::<StateBody>(bytes)).ok()?;
    let is_bounded = body.open_count.get() == open_count
        && open_count > 0
        && open_count < COUNTER_MAX >> OPEN_COUNT_SHIFT
        && body.membership.get() < COUNTER_MAX
        && body.membership_before_number.get() <= body.membership.get();
    let membership = SpanMembership {
        number: body.membership.get(),
        id: body.membership_id.get(),
        before: body.membership_before.get(),
        before_number: body.membership_before_number.get(),
        since: body.since.get(),
        present: body.present.get(),
    };
    is_bounded.then_some(StateSlot { open_count, is_clean: body.clean.get() == 1, membership })
}

/// Writes a state slot, without a flush.
pub async fn write_state(device: &SharedDevice, layout: &SpanLayout, state: &StateSlot) -> Result<(), Error> {
    let StateSlot { open_count, is_clean, membership } = *state;
    let slot = if planted(Bug::StateInOneSlot) { 0 } else { open_count % 2 };
    let address = STATE_OFFSET + slot * BLOCK_BYTES;
    let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
    let body = StateBody {
        open_count: open_count.into(),
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
    let place = FramePlace { identity: layout.identity, epoch: open_count, address };
    format::seal(&mut buffer, FrameMagic::State, place, BLOCK_BYTES as usize);
    write(&**device, address, buffer).await?;
    Ok(())
}
