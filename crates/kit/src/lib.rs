//! What the tests of all crates share.
//!
//! Owns: `wait`, the waits for a state, each with a deadline; `random`, numbers from a seed; [`median`]. Leaves to others:
//! everything that knows a part of the house.

mod random;
mod wait;

pub use random::SeededRandom;
pub use wait::{LIMIT, PAUSE, find, find_async, until, until_async, within};

/// The median of the values (the mean of the two middle values if their number is even); NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_odd_and_none() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median(&[]).is_nan());
    }
}
