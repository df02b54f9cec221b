//! Header values that recur: ages and remaining lifetimes.
//!
//! Owns: a small direct-mapped cache of these values as text, so that a hit seldom formats and allocates them.

use bytes::Bytes;
use http::HeaderValue;

use crate::rules::cache_status::CacheStatus;
use crate::rules::key::push_decimal;

const SLOTS: usize = 1024;

/// The rendered values of one worker.
#[derive(Debug)]
pub(crate) struct RenderedValues {
    ages: Box<[Option<(u64, HeaderValue)>]>,
    hits: Box<[Option<(i64, HeaderValue)>]>,
}

impl RenderedValues {
    /// Starts without values.
    pub fn new() -> RenderedValues {
        RenderedValues { ages: vec![None; SLOTS].into(), hits: vec![None; SLOTS].into() }
    }

    /// The value of `Age`.
    pub fn age(&mut self, age_s: u64) -> HeaderValue {
        let slot = &mut self.ages[age_s as usize % SLOTS];
        match slot {
            Some((found, value)) if *found == age_s => value.clone(),
            _ => {
                let mut text = Vec::with_capacity(10);
                push_decimal(&mut text, age_s);
                let value = HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits");
                *slot = Some((age_s, value.clone()));
                value
            }
        }
    }

    /// The value of `NameCache-Status` for a hit.
    pub fn hit(&mut self, ttl_s: i64) -> HeaderValue {
        let slot = &mut self.hits[ttl_s.unsigned_abs() as usize % SLOTS];
        match slot {
            Some((found, value)) if *found == ttl_s => value.clone(),
            _ => {
                let value = CacheStatus::Hit { ttl_s }.value();
                *slot = Some((ttl_s, value.clone()));
                value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_values_match_requested_ones() {
        let mut values = RenderedValues::new();
        for _ in 0..2 {
            for age_s in [0, 1, 1025, 1 << 40] {
                assert_eq!(values.age(age_s), age_s.to_string());
            }
            for ttl_s in [0, 5, -5, 1029] {
                assert_eq!(values.hit(ttl_s), format!("nectary; hit; ttl={ttl_s}"));
            }
        }
    }
}
