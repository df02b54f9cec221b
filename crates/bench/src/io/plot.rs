//! Pictures of MiB/s over the request size, with the ceiling.
//!
//! Owns: the form of a chart. The result is one SVG file, readable on light and dark backgrounds.

use std::fmt::Write;

use nectary_block::format_size;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const NAMES: f64 = 250.0;
/// The distance between two charts.
const GAP: f64 = 76.0;
/// The colours of lines, which colour-blind readers can distinguish too.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#882255"];
const INK: &str = "#777";

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The name of the line, drawn to the right of the chart.
    pub name: String,
    /// The points: a request size in bytes, and its rate in MiB per second.
    pub points: Vec<(u64, f64)>,
    /// Whether the line is a ceiling: dashed, over the whole width.
    pub is_ceiling: bool,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The heading.
    pub title: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// Draws charts below each other.
pub fn plot(experiment: &str, charts: &[Chart]) -> String {
    let mut body = String::new();
    let mut top = 34.0;
    for chart in charts {
        draw(&mut body, chart, top);
        top += HEIGHT + GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n{body}</svg>\n",
        escaped(experiment)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn words(body: &mut String, x: f64, y: f64, colour: &str, text: &str) {
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>", escaped(text));
}

/// Chooses a round step for an axis that ends at `most`: one that gives about five steps.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| most / step <= 6.0).unwrap_or(most)
}

fn draw(body: &mut String, chart: &Chart, top: f64) {
    let width = WIDTH - LEFT - NAMES;
    let all = || chart.lines.iter().flat_map(|line| &line.points);
    let most = all().map(|point| point.1).fold(1.0, f64::max) * 1.05;
    let sizes = || chart.lines.iter().filter(|line| !line.is_ceiling).flat_map(|line| &line.points);
    let least = sizes().map(|point| point.0).min().unwrap_or(4096);
    let largest = sizes().map(|point| point.0).max().unwrap_or(4096).max(least + 1);
    let span = (largest as f64 / least as f64).log2();
    let x = |size: u64| LEFT + width * ((size as f64 / least as f64).log2() / span).clamp(0.0, 1.0);
    let y = |rate: f64| top + HEIGHT * (1.0 - rate / most);
    words(body, LEFT, top - 12.0, INK, &chart.title);
    let mut level = 0.0;
    while level <= most {
        let at = y(level);
        let (from, to) = (LEFT, LEFT + width);
        let _ = writeln!(
            body,
            "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.3\"/>"
        );
        words(body, 14.0, at + 4.0, INK, &format!("{level:.0}"));
        level += step(most);
    }
    let mut size = least.next_power_of_two();
    while size <= largest {
        words(body, x(size) - 10.0, top + HEIGHT + 18.0, INK, &format_size(size));
        size = size.saturating_mul(4);
    }
    words(body, LEFT, top + HEIGHT + 34.0, INK, "MiB/s over bytes of a request");
    let ends: Vec<f64> = chart.lines.iter().map(|line| y(line.points.last().map_or(0.0, |point| point.1))).collect();
    for (index, (line, name_y)) in chart.lines.iter().zip(apart(&ends)).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> = match line.is_ceiling {
            true => {
                let rate = line.points.first().map_or(0.0, |point| point.1);
                [LEFT, LEFT + width].map(|x| format!("{x:.1},{:.1}", y(rate))).to_vec()
            }
            false => line.points.iter().map(|(size, rate)| format!("{:.1},{:.1}", x(*size), y(*rate))).collect(),
        };
        let broken = if line.is_ceiling { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{broken}/>",
            points.join(" ")
        );
        words(body, LEFT + width + 8.0, name_y + 4.0, colour, &line.name);
    }
}

/// Moves overlapping names apart.
fn apart(wanted: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|left, right| wanted[*left].total_cmp(&wanted[*right]));
    let (mut placed, mut least) = (wanted.to_vec(), f64::MIN);
    for index in order {
        placed[index] = wanted[index].max(least);
        least = placed[index] + 14.0;
    }
    placed
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that elements are closed in order, and that no coordinate is NaN.
    pub fn is_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for element in svg.split('<').skip(1) {
            let (inside, _) = element.split_once('>').expect("an element ends");
            let name = inside.split([' ', '/']).find(|word| !word.is_empty()).expect("an element has a name");
            match (inside.starts_with('/'), inside.ends_with('/')) {
                (true, _) => assert_eq!(open.pop(), Some(name)),
                (false, true) => {}
                (false, false) => open.push(name),
            }
            assert_eq!(inside.matches('"').count() % 2, 0, "{inside}");
        }
        assert!(open.is_empty() && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn every_line_is_drawn_and_the_picture_is_well_formed() {
        let line = |name: &str, points: &[(u64, f64)], is_ceiling| Line {
            name: name.to_owned(),
            points: points.to_vec(),
            is_ceiling,
        };
        let chart = Chart {
            title: "read & <write>".to_owned(),
            lines: vec![
                line("direct", &[(4096, 10.0), (16 << 20, 900.0)], false),
                line("buffered", &[(4096, 100.0), (16 << 20, 905.0)], false),
                line("ceiling", &[(0, 1000.0)], true),
            ],
        };
        let one = Chart { title: "one".to_owned(), lines: vec![line("only", &[(4096, 0.0)], false)] };
        let none = Chart { title: "none".to_owned(), lines: Vec::new() };
        let picture = plot("io", &[chart, one, none]);
        is_well_formed(&picture);
        assert_eq!((picture.matches("<polyline").count(), picture.matches("dasharray").count()), (4, 1));
        assert!(picture.contains(">16M</text>") && picture.contains("read &amp; &lt;write&gt;"));
        let placed = apart(&[10.0, 11.0, 5.0]);
        assert!((placed[0] - placed[1]).abs() >= 14.0, "{placed:?}");
        assert_eq!((step(1000.0), step(6.0), step(1.0)), (200.0, 1.0, 0.2));
    }
}
