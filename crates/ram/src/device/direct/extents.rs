//! The mapped extents of a device, from the extents that the donors report for their parts.

use nectary_block::{DeviceExtent, EXTENTS_MAX};

use super::parts::{DeviceParts, DonorPart};

/// Joins the extents of the donors' parts, unit by unit; ranges without a report count as mapped.
pub(super) fn merge(
    layout: &DeviceParts,
    offset: u64,
    length: u64,
    looked: u64,
    parts: &[DonorPart],
    found: &[Vec<DeviceExtent>],
) -> Vec<DeviceExtent> {
    let mut list: Vec<DeviceExtent> = Vec::new();
    let mut push = |start: u64, length: u64, mapped: bool| {
        let is_full = list.len() >= EXTENTS_MAX;
        match list.last_mut() {
            Some(last) if last.mapped == mapped => last.length += length,
            // `Mapped` is a safe answer for any range.
            Some(last) if is_full => (last.length, last.mapped) = (last.length + length, true),
            _ => list.push(DeviceExtent { offset: start, length, mapped }),
        }
    };
    let mut cursors = vec![0; parts.len()];
    let mut position = offset;
    while position < offset + looked {
        let Some((donor, place, left)) = layout.locate(position) else { break };
        let count = left.min(offset + looked - position);
        let index = parts.iter().position(|part| part.donor == donor);
        let extents = index.map_or(&[][..], |index| &found[index]);
        let mut done = 0;
        while done < count {
            let cursor = index.map_or(0, |index| {
                while extents.get(cursors[index]).is_some_and(|e: &DeviceExtent| e.offset + e.length <= place + done) {
                    cursors[index] += 1;
                }
                cursors[index]
            });
            let Some(extent) = extents.get(cursor).filter(|extent| extent.offset <= place + done) else {
                push(position + done, count - done, true);
                break;
            };
            let step = (extent.offset + extent.length - (place + done)).min(count - done);
            push(position + done, step, extent.mapped);
            done += step;
        }
        position += count;
    }
    if looked < length {
        push(offset + looked, length - looked, true);
    }
    list
}
