//! The buffers into which appends are packed.
//!
//! Owns: the bound on the bytes of all buffers, in flight and spare. Leaves to others: the number of appends in flight.

use nectary_block::Buffer;

/// The buffers of all appends of a writer.
pub(super) struct AppendBuffers {
    bytes_max: u64,
    in_flight_bytes: u64,
    spare: Vec<Buffer>,
}

impl AppendBuffers {
    /// Starts without buffers. All buffers together will take at most `bytes_max`; only a single larger append may
    /// exceed this.
    pub fn new(bytes_max: u64) -> AppendBuffers {
        AppendBuffers { bytes_max, in_flight_bytes: 0, spare: Vec::new() }
    }

    /// The room that the appends in flight leave for another append, in bytes.
    pub fn left(&self) -> u64 {
        self.bytes_max.saturating_sub(self.in_flight_bytes)
    }

    /// Returns a buffer for an append of `bytes` bytes. *Cost*: usually no allocation.
    pub fn take(&mut self, bytes: u64) -> Buffer {
        // Sizes are rounded up, so that appends of similar size reuse the same buffers.
        let wanted = bytes.next_power_of_two().min(self.left()).max(bytes);
        let fits = |buffer: &Buffer| (bytes..=wanted.max(2 * bytes)).contains(&(buffer.capacity() as u64));
        let buffer = match self.spare.iter().position(fits) {
            Some(at) => self.spare.swap_remove(at),
            None => {
                while !self.spare.is_empty() && self.in_flight_bytes + self.spare_bytes() + wanted > self.bytes_max {
                    self.spare.remove(0);
                }
                Buffer::zeroed(wanted as usize)
            }
        };
        self.in_flight_bytes += buffer.capacity() as u64;
        buffer
    }

    /// Notes that an append with a buffer of `bytes` has ended. Keeps the buffer for later appends if it was returned
    /// and there is room.
    pub fn give_back(&mut self, bytes: u64, buffer: Option<Buffer>) {
        self.in_flight_bytes -= bytes;
        let has_room = self.in_flight_bytes + self.spare_bytes() + bytes <= self.bytes_max;
        self.spare.extend(buffer.filter(|_| has_room));
    }

    fn spare_bytes(&self) -> u64 {
        self.spare.iter().map(|buffer| buffer.capacity() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn buffers_stay_within_bound() {
        let mut buffers = AppendBuffers::new(1024 * KIB);
        let mut random = 1_u64;
        for round in 0..2000 {
            let mut taken = Vec::new();
            loop {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bytes = (1 + (random >> 33) % 96) * 4 * KIB;
                if bytes > buffers.left() {
                    break;
                }
                let buffer = buffers.take(bytes);
                assert!(buffer.capacity() as u64 >= bytes);
                taken.push(buffer);
                let all = taken.iter().map(|buffer| buffer.capacity() as u64).sum::<u64>() + buffers.spare_bytes();
                assert!(all <= 1024 * KIB, "{all} in round {round}");
            }
            taken.into_iter().for_each(|buffer| buffers.give_back(buffer.capacity() as u64, Some(buffer)));
            assert!(buffers.spare_bytes() <= 1024 * KIB);
            assert_eq!(buffers.left(), 1024 * KIB);
        }
    }

    /// Appends of one size use the same buffers, and a long append has its own.
    #[test]
    fn equal_appends_reuse_buffers() {
        let mut buffers = AppendBuffers::new(1024 * KIB);
        let first = buffers.take(200 * KIB);
        let start = first.as_ptr();
        buffers.give_back(first.capacity() as u64, Some(first));
        let second = buffers.take(240 * KIB);
        assert_eq!(second.as_ptr(), start);
        buffers.give_back(second.capacity() as u64, Some(second));
        let long = buffers.take(4096 * KIB);
        assert_eq!((buffers.left(), buffers.spare_bytes()), (0, 0));
        buffers.give_back(long.capacity() as u64, Some(long));
        assert_eq!((buffers.left(), buffers.spare_bytes()), (1024 * KIB, 0), "it is not kept");
        let lost = buffers.take(4 * KIB).capacity() as u64;
        buffers.give_back(lost, None);
        assert_eq!(buffers.left(), 1024 * KIB);
    }
}
