//! The random identities of volumes, servers and clients.

use crate::simulated;

/// Returns 16 random bytes of the operating system; in a simulation, those of its next client.
pub fn random_id() -> [u8; 16] {
    simulated::next_id().unwrap_or_else(|| {
        let mut id = [0; 16];
        getrandom::fill(&mut id).expect("the kernel has random numbers");
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ() {
        assert_ne!(random_id(), random_id());
    }
}
