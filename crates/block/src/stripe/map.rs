//! Computes the positions of a stripe's bytes on its devices.

use std::ops::Range;

use crate::allocation::ExtentList;
use crate::buffer::Buffer;
use crate::device::DeviceExtent;

/// The layout of a stripe.
#[derive(Debug, Clone, Copy)]
pub(super) struct StripeMap {
    pub devices: u64,
    pub unit_bytes: u64,
}

/// The contiguous part of a range on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StripePart {
    pub device: usize,
    pub offset: u64,
    pub length: u64,
}

impl StripeMap {
    /// The device that holds an offset of the stripe, the offset on that device, and the number of bytes from there to
    /// the end of the unit.
    pub fn locate(&self, offset: u64) -> (usize, u64, u64) {
        let (unit, inside) = (offset / self.unit_bytes, offset % self.unit_bytes);
        let place = unit / self.devices * self.unit_bytes + inside;
        ((unit % self.devices) as usize, place, self.unit_bytes - inside)
    }

    /// The part that holds a whole range; `None` if the range extends over units of several devices.
    pub fn only(&self, offset: u64, length: u64) -> Option<StripePart> {
        let (device, place, left) = self.locate(offset);
        match self.devices {
            1 => Some(StripePart { device: 0, offset, length }),
            // An offset at the end of the stripe is on no device, so an empty operation goes to the first device.
            _ if length == 0 => Some(StripePart { device: 0, offset: 0, length: 0 }),
            _ => (length <= left).then_some(StripePart { device, offset: place, length }),
        }
    }

    /// The part of a range on each device, in the order of the devices; a device that the range does not touch has no
    /// part.
    pub fn parts(&self, offset: u64, length: u64) -> Vec<StripePart> {
        let end = offset + length;
        let bound = |device: u64, position: u64| {
            // Computes how many of the stripe's bytes before `position` are on `device`.
            let row_bytes = self.unit_bytes * self.devices;
            let (row, inside) = (position / row_bytes, position % row_bytes);
            row * self.unit_bytes + inside.saturating_sub(device * self.unit_bytes).min(self.unit_bytes)
        };
        let part = |device: u64| {
            let (start, stop) = (bound(device, offset), bound(device, end));
            StripePart { device: device as usize, offset: start, length: stop - start }
        };
        (0..self.devices).map(part).filter(|part| part.length > 0).collect()
    }

    /// Splits `buffers` into pieces, each of which is inside one unit. Calls `copy` for each piece, with the piece, the
    /// index of its part, and the range in that part.
    pub fn for_each_piece<'a>(
        &self,
        offset: u64,
        parts: &[StripePart],
        buffers: impl Iterator<Item = &'a mut Buffer>,
        mut copy: impl FnMut(&mut [u8], usize, Range<usize>),
    ) {
        let mut position = offset;
        for buffer in buffers {
            let mut rest = &mut buffer[..];
            while !rest.is_empty() {
                let (device, place, left) = self.locate(position);
                let count = (rest.len() as u64).min(left) as usize;
                let (piece, tail) = rest.split_at_mut(count);
                let index = parts.iter().position(|part| part.device == device).expect("every unit has its part");
                let start = (place - parts[index].offset) as usize;
                copy(piece, index, start..start + count);
                rest = tail;
                position += count as u64;
            }
        }
    }

    /// Joins the mapped ranges of all devices. `found` has, for each part, the answer of its device.
    ///
    /// *Cost*: one step for each change between mapped and unmapped on a device, and one step per unit in rows in which
    /// the devices differ.
    pub fn merge(
        &self,
        offset: u64,
        length: u64,
        parts: &[StripePart],
        found: &[Vec<DeviceExtent>],
        list: &mut ExtentList,
    ) {
        let (end, row_bytes) = (offset + length, self.unit_bytes * self.devices);
        let mut cursors: Vec<usize> = vec![0; parts.len()];
        let mut position = offset;
        while position < end && !list.is_full() {
            let (device, place, left) = self.locate(position);
            let row = position / row_bytes;
            // Rows in which every device stays mapped or stays unmapped are handled in one step.
            if position.is_multiple_of(row_bytes)
                && let Some((rows, mapped)) = self.same_rows(row, parts, found, &mut cursors)
                && position + rows * row_bytes <= end
            {
                if mapped {
                    list.mapped(position, rows * row_bytes);
                }
                position += rows * row_bytes;
                continue;
            }
            let index = parts.iter().position(|part| part.device == device).expect("every unit has its part");
            let count = left.min(end - position);
            let mut done = 0;
            while done < count {
                let Some(extent) = seek(&found[index], &mut cursors[index], place + done) else { break };
                let step = (extent.offset + extent.length - (place + done)).min(count - done);
                if extent.mapped {
                    list.mapped(position + done, step);
                }
                done += step;
            }
            position += count;
        }
    }

    /// The number of whole rows, from `row` on, in which all devices are mapped or all are unmapped, and whether they
    /// are mapped.
    fn same_rows(
        &self,
        row: u64,
        parts: &[StripePart],
        found: &[Vec<DeviceExtent>],
        cursors: &mut [usize],
    ) -> Option<(u64, bool)> {
        if parts.len() as u64 != self.devices {
            return None;
        }
        let place = row * self.unit_bytes;
        let (mut rows, mut state) = (u64::MAX, None);
        for (extents, cursor) in found.iter().zip(cursors) {
            let extent = seek(extents, cursor, place)?;
            if *state.get_or_insert(extent.mapped) != extent.mapped {
                return None;
            }
            rows = rows.min((extent.offset + extent.length - place) / self.unit_bytes);
        }
        (rows > 0).then_some((rows, state?))
    }
}

/// Moves a cursor forward to the extent that contains an offset.
fn seek<'a>(extents: &'a [DeviceExtent], cursor: &mut usize, place: u64) -> Option<&'a DeviceExtent> {
    while extents.get(*cursor).is_some_and(|extent| extent.offset + extent.length <= place) {
        *cursor += 1;
    }
    extents.get(*cursor).filter(|extent| extent.offset <= place)
}
