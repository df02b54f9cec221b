//! The hash of an id; tables, samples and sketches use different bits of it.

/// Spreads ids, which may be consecutive block numbers, over all bits; tables use the low 32.
pub(crate) fn hash(id: u64) -> u64 {
    let wide = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (wide >> 64) as u64 ^ wide as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_spread_in_table() {
        let mut seen = std::collections::HashSet::new();
        for id in 0..1024_u64 {
            seen.insert(hash(id) & 1023);
        }
        assert!(seen.len() > 500, "{} of 1024 buckets used", seen.len());
    }
}
