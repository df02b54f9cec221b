//! The axes of charts: scales and their ticks.

use nectary_block::format_size;

/// An axis, which all charts of a picture share.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartAxis {
    /// What is on it, with the unit.
    pub label: String,
    /// Whether it is logarithmic.
    pub is_log: bool,
    /// Places with their text.
    pub(super) ticks: Vec<(f64, String)>,
    low: f64,
    high: f64,
}

impl ChartAxis {
    /// A linear axis from 0 to `high`.
    pub fn linear(label: &str, high: f64) -> ChartAxis {
        let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        let step = step(high);
        let count = (high / step + 1e-9).floor() as u32;
        let ticks = (0..=count).map(|index| (f64::from(index) * step, tick_text(f64::from(index) * step))).collect();
        ChartAxis { label: label.to_owned(), is_log: false, ticks, low: 0.0, high }
    }

    /// A logarithmic axis over whole decades around all values above zero.
    pub fn log(label: &str, values: impl IntoIterator<Item = f64>) -> ChartAxis {
        let (least, most) = range(values);
        let (first, last) =
            (least.log10().floor() as i32, (most.log10().ceil() as i32).max(least.log10().floor() as i32 + 1));
        let ticks = (first..=last).map(|power| (10f64.powi(power), tick_text(10f64.powi(power)))).collect();
        ChartAxis { label: label.to_owned(), is_log: true, ticks, low: 10f64.powi(first), high: 10f64.powi(last) }
    }

    /// A logarithmic axis of sizes in bytes, with a tick for each sixteenfold.
    pub fn sizes(label: &str, values: impl IntoIterator<Item = f64>) -> ChartAxis {
        ChartAxis::doubled(label, values, 4, &|value| format_size(value as u64))
    }

    /// A logarithmic axis of counts, with a tick for each doubling.
    pub fn counts(label: &str, values: impl IntoIterator<Item = f64>) -> ChartAxis {
        ChartAxis::doubled(label, values, 1, &|value| format!("{value:.0}"))
    }

    fn doubled(
        label: &str,
        values: impl IntoIterator<Item = f64>,
        doublings: i32,
        text: &dyn Fn(f64) -> String,
    ) -> ChartAxis {
        let (low, most) = range(values);
        let high = most.max(low * 2.0);
        let first = low.log2().ceil() as i32;
        let ticks = (first..).step_by(doublings as usize).map(|power| 2f64.powi(power));
        let ticks = ticks.take_while(|value| *value <= high * 1.001).map(|value| (value, text(value))).collect();
        ChartAxis { label: label.to_owned(), is_log: true, ticks, low, high }
    }

    /// The place of a value: 0 at the beginning of the axis, 1 at its end. Values beyond are at the ends.
    pub(super) fn share(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        share.clamp(0.0, 1.0)
    }

    /// Whether a value is behind the end.
    pub(super) fn is_cut(&self, value: f64) -> bool {
        value > self.high * 1.000_001
    }
}

/// The least and the greatest of all finite values above zero.
fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let values = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
    let (least, most) =
        values.fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| (least.min(value), most.max(value)));
    if most > 0.0 { (least, most) } else { (1.0, 10.0) }
}

/// A round step that gives at most six.
fn step(high: f64) -> f64 {
    let power = 10_f64.powf((high / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| high / step <= 6.0).unwrap_or(high)
}

/// A number in at most five characters.
fn tick_text(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.0}M", value / 1e6),
        value if value >= 1e4 => format!("{:.0}k", value / 1e3),
        value => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_short() {
        let texts = |axis: ChartAxis| axis.ticks.into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(texts(ChartAxis::linear("x", 1.5)), ["0", "0.5", "1", "1.5"]);
        assert_eq!(texts(ChartAxis::log("x", [3.0, 12_000.0])), ["1", "10", "100", "1000", "10k", "100k"]);
        assert_eq!(texts(ChartAxis::sizes("x", [4096.0, 16_777_216.0])), ["4K", "64K", "1M", "16M"]);
        assert_eq!(texts(ChartAxis::counts("x", [1024.0, 4096.0])), ["1024", "2048", "4096"]);
        assert_eq!([step(1000.0), step(6.0), step(1.0)], [200.0, 1.0, 0.2]);
    }

    #[test]
    fn axes_without_values_still_have_ends() {
        for axis in [ChartAxis::log("x", []), ChartAxis::linear("x", f64::NAN), ChartAxis::sizes("x", [f64::NAN])] {
            assert!(axis.high > axis.low && !axis.ticks.is_empty(), "{axis:?}");
        }
        let axis = ChartAxis::log("x", [1.0, 100.0]);
        assert_eq!((axis.share(10.0), axis.share(0.0), axis.share(1e9)), (0.5, 0.0, 1.0));
        assert!(axis.is_cut(101.0) && !axis.is_cut(100.0));
    }
}
