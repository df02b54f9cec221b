//! Draws runs as curves: misses against size, one panel per trace, in one SVG file without scripts or embedded fonts.
//!
//! Owns: the drawing. Curves differ in colour and dashes and have a label at their right end, so readers need neither
//! colour vision nor a legend. If the ends of curves are close, their labels are moved apart. Names are escaped.

use std::fmt::Write as _;

use super::sizes::CapacityUnit;
use super::table::{axes, contents};
use super::{SimulationRow, TraceOutline};

const WIDTH: f64 = 900.0;
const PANEL: f64 = 460.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 70.0;
const LABEL_HEIGHT: f64 = 15.0;
/// Ends of curves count as equally high if their heights differ by less than about this distance. *Units*: pixels of
/// the picture.
const MEETING: f64 = 4.0;

/// The colours of the curves. The first ones are the colours of Okabe and Ito, which people with any colour vision can
/// distinguish, without yellow, which is hard to see on white. More colours follow, so that each policy of a table has
/// its own.
const COLOURS: [&str; 17] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255", "#999933", "#332288",
    "#ff0000", "#00cc00", "#8b4513", "#808080", "#00bfbf", "#ff00ff", "#6a7fdb",
];
/// The number of colours that are drawn with the same dashes; more would be hard to distinguish.
const COLOURS_PER_DASHES: usize = 7;
/// The dashes of each group of colours.
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

/// The options of the drawing.
#[derive(Debug, Clone, Copy, Default)]
pub struct SvgOptions {
    /// Whether sizes are on a logarithmic axis.
    pub is_log: bool,
    /// Whether misses are drawn as a percentage of references.
    pub is_ratio: bool,
}

/// A picture of `rows`, with a panel for each trace.
pub fn svg(outlines: &[TraceOutline], rows: &[SimulationRow], options: SvgOptions) -> String {
    let height = PANEL * outlines.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (index, outline) in outlines.iter().enumerate() {
        let rows: Vec<&SimulationRow> = rows.iter().filter(|row| row.trace == outline.name).collect();
        let panel = SvgPanel::new(outline, &rows, options);
        // Writing to a String does not fail.
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">", PANEL * index as f64);
        panel.draw(outline, &rows, &mut text);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

/// The axes of one panel.
struct SvgPanel {
    options: SvgOptions,
    /// The positions of the least and the greatest size on the axis.
    first: f64,
    last: f64,
    /// The largest value on the axis of misses.
    most: f64,
    sizes: Vec<u64>,
    names: Vec<&'static str>,
    unit: &'static str,
}

impl SvgPanel {
    fn new(outline: &TraceOutline, rows: &[&SimulationRow], options: SvgOptions) -> SvgPanel {
        let (sizes, names) = axes(rows);
        let unit = rows.first().map_or(CapacityUnit::Blocks, |row| row.unit).name(outline.has_sizes);
        let on_axis = |size: Option<&u64>| {
            let size = size.copied().unwrap_or(1) as f64;
            if options.is_log { size.max(1.0).log10() } else { size }
        };
        let (mut first, mut last) = (on_axis(sizes.first()), on_axis(sizes.last()));
        if !options.is_log {
            first = 0.0;
        }
        if last - first < 1e-9 {
            (first, last) = (first - 0.5, last + 0.5);
        }
        let most = rows.iter().map(|row| value(row, options)).fold(1e-9, f64::max);
        let step = step(most);
        SvgPanel { options, first, last, most: (most / step).ceil() * step, sizes, names, unit }
    }

    fn x(&self, size: u64) -> f64 {
        let size = if self.options.is_log { (size.max(1) as f64).log10() } else { size as f64 };
        LEFT + (size - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        PANEL - BOTTOM - value / self.most * (PANEL - TOP - BOTTOM)
    }

    fn draw(&self, outline: &TraceOutline, rows: &[&SimulationRow], text: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, PANEL - BOTTOM);
        let (title, contents) = (escape(&outline.name), contents(outline));
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{title}</text>\n\
             <text x=\"{LEFT}\" y=\"44\" fill=\"#555555\">{contents}</text>"
        );
        self.draw_axes(text);
        let mut ends: Vec<CurveEnd<'_>> = Vec::new();
        for (index, name) in self.names.iter().enumerate() {
            let of_policy = |&size: &u64| rows.iter().find(|row| row.size == size && row.policy == *name);
            let points: Vec<(f64, f64)> = self
                .sizes
                .iter()
                .filter_map(of_policy)
                .map(|row| (self.x(row.size), self.y(value(row, self.options))))
                .collect();
            let colour = COLOURS[index % COLOURS.len()];
            let dashes = DASHES[index / COLOURS_PER_DASHES % DASHES.len()];
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-dasharray=\"{dashes}\"><title>{}</title></polyline>",
                path.join(" "),
                escape(name)
            );
            if points.len() <= 40 {
                for (x, y) in &points {
                    let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
                }
            }
            if let Some((_, end)) = points.last() {
                let mean = points.iter().map(|(_, y)| y).sum::<f64>() / points.len() as f64;
                ends.push(CurveEnd { y: *end, mean, name, index });
            }
        }
        for (place, CurveEnd { y: end, name, index, .. }) in apart(&mut ends, TOP, bottom).into_iter().zip(&ends) {
            let colour = COLOURS[index % COLOURS.len()];
            let dashes = DASHES[index / COLOURS_PER_DASHES % DASHES.len()];
            let _ = writeln!(
                text,
                "<path d=\"M{right} {end:.1}L{:.1} {place:.1}H{:.1}\" fill=\"none\" stroke=\"{colour}\" \
                 stroke-dasharray=\"{dashes}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                right + 12.0,
                right + 28.0,
                right + 32.0,
                place + 4.0,
                escape(name)
            );
        }
    }

    /// Draws the grid lines with their values, and the titles of the axes.
    fn draw_axes(&self, text: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, PANEL - BOTTOM);
        let step_y = step(self.most);
        for line in 0..=(self.most / step_y).round() as u64 {
            let value = line as f64 * step_y;
            let y = self.y(value);
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#dddddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                short(value)
            );
        }
        for size in self.ticks() {
            let x = self.x(size);
            let _ = writeln!(
                text,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#eeeeee\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{size}</text>",
                bottom + 18.0
            );
        }
        let unit = self.unit;
        let what = if self.options.is_ratio { "misses, % of references" } else { "misses" };
        let scale = if self.options.is_log { ", logarithmic" } else { "" };
        let (middle, half) = ((LEFT + right) / 2.0, (TOP + bottom) / 2.0);
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#333333\"/>\n\
             <text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">cache size, {unit}{scale}</text>\n\
             <text transform=\"translate(22 {half}) rotate(-90)\" text-anchor=\"middle\">{what}</text>",
            bottom + 42.0
        );
    }

    /// The sizes that are marked on the axis.
    fn ticks(&self) -> Vec<u64> {
        if self.sizes.len() == 1 {
            return self.sizes.clone();
        }
        if !self.options.is_log {
            let step = step(self.last).max(1.0);
            return (0..=(self.last / step) as u64).map(|line| (line as f64 * step) as u64).collect();
        }
        let all = (0..20).flat_map(|power| [1, 2, 5].map(|factor| 10_u64.saturating_pow(power).saturating_mul(factor)));
        let within = |size: &u64| {
            let on_axis = (*size as f64).log10();
            on_axis >= self.first - 1e-9 && on_axis <= self.last + 1e-9
        };
        all.filter(within).collect()
    }
}

fn value(row: &SimulationRow, options: SvgOptions) -> f64 {
    if options.is_ratio { 100.0 * row.counts.miss_ratio() } else { row.counts.misses as f64 }
}

/// A round step that divides `most` into four to ten parts.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|factor| factor * power).find(|step| most / step >= 4.0).unwrap_or(power)
}

/// Formats a number without meaningless digits.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The right end of a curve.
struct CurveEnd<'a> {
    y: f64,
    /// The curve's average height.
    mean: f64,
    name: &'a str,
    index: usize,
}

/// Sorts the ends of curves by height, and ends of equal height by the average heights of their curves. *Returns* the
/// positions of their labels, which do not overlap if there is room.
fn apart(ends: &mut [CurveEnd<'_>], top: f64, bottom: f64) -> Vec<f64> {
    let rank = |end: &CurveEnd<'_>| (end.y / MEETING).round();
    ends.sort_by(|a, b| rank(a).total_cmp(&rank(b)).then(a.mean.total_cmp(&b.mean)).then(a.index.cmp(&b.index)));
    let mut places: Vec<f64> = ends.iter().map(|end| end.y).collect();
    for index in 1..places.len() {
        places[index] = places[index].max(places[index - 1] + LABEL_HEIGHT);
    }
    // If labels are on average lower than the ends of their curves, all labels are moved up.
    let drift =
        places.iter().zip(ends.iter()).map(|(place, end)| place - end.y).sum::<f64>() / places.len().max(1) as f64;
    let mut limit = bottom.max(top + LABEL_HEIGHT * places.len() as f64);
    for place in places.iter_mut().rev() {
        *place = (*place - drift).min(limit);
        limit = *place - LABEL_HEIGHT;
    }
    places
}

fn escape(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>();
    clean.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::RunCounts;
    use crate::simulate::sizes::CapacityUnit;
    use std::time::Duration;

    fn row(policy: &'static str, size: u64, misses: u64) -> SimulationRow {
        let elapsed = Duration::ZERO;
        let counts = RunCounts { references: 100, misses, ..RunCounts::default() };
        let (unit, windows) = (CapacityUnit::Blocks, vec![counts]);
        SimulationRow { trace: "a<b".to_owned(), policy, size, unit, counts, windows, elapsed, said: Vec::new() }
    }

    /// Each policy has a curve and a label, and names are escaped.
    #[test]
    fn svg_draws_each_policy() {
        let outline = TraceOutline { name: "a<b".to_owned(), references: 1, distinct: 1, ..TraceOutline::default() };
        let rows = [row("lru", 1, 90), row("lru", 1000, 10), row("fifo", 1, 95), row("fifo", 1000, 10)];
        for is_log in [false, true] {
            let text = svg(std::slice::from_ref(&outline), &rows, SvgOptions { is_log, is_ratio: false });
            assert_eq!(text.matches("<polyline").count(), 2);
            assert!(text.contains(">lru</text>") && text.contains(">a&lt;b</text>"));
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    /// A chart of one size, or without misses, is drawn too.
    #[test]
    fn svg_draws_single_size() {
        let outline = TraceOutline { name: "a<b".to_owned(), references: 1, distinct: 1, ..TraceOutline::default() };
        for is_log in [false, true] {
            let text = svg(std::slice::from_ref(&outline), &[row("lru", 1, 0)], SvgOptions { is_log, is_ratio: true });
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    /// Labels do not overlap, and steps are round numbers.
    #[test]
    fn svg_labels_never_overlap() {
        let end = |y, index| CurveEnd { y, mean: y, name: "a", index };
        let mut ends = [end(50.0, 0), end(51.0, 1), end(49.0, 2)];
        let places = apart(&mut ends, 0.0, 60.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_HEIGHT - 1e-9), "{places:?}");
        assert!(places.iter().all(|&place| place <= 60.0), "{places:?}");
        assert_eq!((step(9000.0), step(100.0), step(7.0)), (2000.0, 20.0, 1.0));
    }

    /// Each of the project's policies has its own colour.
    #[test]
    fn each_policy_has_a_colour() {
        let mut colours = COLOURS.to_vec();
        colours.sort_unstable();
        colours.dedup();
        assert!(colours.len() == COLOURS.len() && COLOURS.len() >= crate::simulate::policies::names().len());
    }
}
