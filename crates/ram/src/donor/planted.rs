//! Damage to a donor's memory, for tests alone.

use super::Donor;
use super::tenant::Tenant;

/// What is read at a time. *Units*: bytes.
const READ_BYTES: usize = 1 << 20;

impl Donor {
    /// Flips a bit behind each place where the memory of a device has `pattern`; returns the number of places.
    pub fn flip(&self, id: &str, pattern: &[u8]) -> usize {
        self.each(id, pattern, |tenant, at, byte| tenant.write(at, &[byte ^ 1]))
    }

    /// Does the same behind the donor's back, as bad memory does.
    pub fn rot(&self, id: &str, pattern: &[u8]) -> usize {
        self.each(id, pattern, |tenant, at, _| tenant.rot(at))
    }

    fn each(&self, id: &str, pattern: &[u8], damage: impl Fn(&Tenant, u64, u8)) -> usize {
        let state = self.inner.lock();
        let Some(entry) = state.devices.get(id) else { return 0 };
        let mut memory = vec![0; entry.tenant.size_bytes() as usize];
        for (at, into) in memory.chunks_mut(READ_BYTES).enumerate() {
            entry.tenant.read((at * READ_BYTES) as u64, into);
        }
        let places = memory.windows(pattern.len()).enumerate().filter(|(_, found)| *found == pattern);
        let places: Vec<usize> = places.map(|(at, _)| at + pattern.len()).collect();
        for place in &places {
            damage(&entry.tenant, *place as u64, memory[*place]);
        }
        places.len()
    }
}
