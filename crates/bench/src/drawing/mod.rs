//! Pictures: small charts in a grid, which share their axes and one legend.
//!
//! Owns: what a picture consists of, and its two forms: a part of an HTML page, in which names are text of the page and
//! wrap there, and one SVG file for `docs/results/`. Promises: both forms are readable on light and dark backgrounds
//! and need nothing from outside; values have their intervals; a bar that is cut has a mark and its value; text has the
//! room that a wide font needs. Leaves to others: which values a picture shows (the experiments,
//! `evaluation::pictures`).
//!
//! | file | what is in it |
//! |---|---|
//! | `axis` | scales and their ticks |
//! | `panel` | the marks of one chart |

mod axis;
mod panel;

use std::fmt::Write;

pub use axis::ChartAxis;
pub use panel::{ChartBar, ChartLine, ChartMarks, ChartPoint};

use panel::{PANEL_HEIGHT, PANEL_WIDTH};

/// The number of colours; further series use them again, with broken lines and hatched bars.
const COLOURS: usize = 8;
/// The largest width of a character, as a share of the font's size: that of wide fonts.
const CHARACTER: f64 = 0.7;
/// The size of text. *Units*: pixels, as all lengths here.
const FONT: f64 = 11.0;
const LINE: f64 = 15.0;
/// The columns of cards in a file.
const COLUMNS: usize = 4;
/// The distance between two cards in a file.
const GAP: f64 = 16.0;

/// The styles that pictures need, in a page and in a file. Colours are ones that colour-blind readers can distinguish.
pub const STYLE: &str = "\
.s0{color:#0072b2}.s1{color:#c04f00}.s2{color:#00805c}.s3{color:#b0578f}.s4{color:#9a6a00}.s5{color:#2b86bd}\
.s6{color:#6f6f1f}.s7{color:#882255}.limit,.ink{color:#666}.chart{font:11px sans-serif}\
.chart path{fill:none;stroke:currentColor;stroke-width:1.8}.chart rect{fill:currentColor}\
.chart .axis{stroke-opacity:.25;stroke-width:1}.chart .range{stroke-width:1;stroke-opacity:.75}\
.chart .dash{stroke-dasharray:5 3}.chart text{fill:currentColor}.chart .whisker{stroke:#000;stroke-width:1}\
.chart .cut{stroke:#fff;stroke-width:3}
@media (prefers-color-scheme:dark){.s0{color:#58aee6}.s1{color:#f08a4b}.s2{color:#3cc49a}.s3{color:#e39cc7}\
.s4{color:#e5b04a}.s5{color:#9ad0f5}.s6{color:#c8c866}.s7{color:#dd7fae}.limit,.ink{color:#aaa}\
.chart .whisker{stroke:#fff}.chart .cut{stroke:#16181c}}
";

/// A picture: cards in rows.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartGrid {
    /// The names of the series, in the order of their colours.
    pub legend: Vec<String>,
    /// What marks mean, in one sentence.
    pub note: String,
    /// The horizontal axis; `None` for bars.
    pub x: Option<ChartAxis>,
    /// The vertical axis.
    pub y: ChartAxis,
    /// The cards.
    pub cards: Vec<ChartCard>,
}

/// A figure of a picture: one chart, or several below each other.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartCard {
    /// Its name in links; unique in a page.
    pub id: String,
    /// Its title.
    pub title: String,
    /// The charts.
    pub panels: Vec<ChartPanel>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartPanel {
    /// What distinguishes it from the other charts of its card; may be empty.
    pub name: String,
    /// The values.
    pub marks: ChartMarks,
}

/// The class of a series: its colour.
fn class(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// Whether a series is drawn broken, because another one has the same colour.
fn is_broken(series: usize) -> bool {
    series >= COLOURS
}

/// Replaces the characters that have a meaning in HTML and SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The width of a text in the widest font.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * FONT * CHARACTER
}

/// Divides a text into lines of at most `width`. A word that is longer is on a line alone, and cut.
fn wrapped(text: &str, width: f64) -> Vec<String> {
    let most = ((width / (FONT * CHARACTER)) as usize).max(2);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let length = |line: &str| line.chars().count();
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= most => *line += &format!(" {word}"),
            _ if length(word) > most => lines.push(word.chars().take(most - 1).chain(['…']).collect()),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

impl ChartGrid {
    /// The picture as a part of a page.
    pub fn html(&self) -> String {
        let mut html = String::from("<div class=\"grid\">\n<ul class=\"legend\">");
        for (series, name) in self.legend.iter().enumerate() {
            let _ = write!(
                html,
                "<li class=\"{}\"><svg class=\"chart\" viewBox=\"0 0 22 10\" width=\"22\" height=\"10\" \
                 aria-hidden=\"true\">{}</svg> <span>{}</span></li>",
                class(series),
                self.key(series, 0.0, 5.0),
                escaped(name)
            );
        }
        let _ = write!(html, "</ul>\n<p class=\"note\">{}</p>\n<div class=\"cards\">\n", escaped(&self.explanation()));
        for card in &self.cards {
            let (id, title) = (escaped(&card.id), escaped(&card.title));
            let _ = writeln!(html, "<figure class=\"card\" id=\"{id}\">\n<figcaption>{title}</figcaption>");
            for panel in &card.panels {
                if !panel.name.is_empty() {
                    let _ = writeln!(html, "<p class=\"panel\">{}</p>", escaped(&panel.name));
                }
                let label = escaped(&format!("{} {}", card.title, panel.name));
                let _ = writeln!(
                    html,
                    "<svg class=\"chart ink\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {PANEL_WIDTH} \
                     {PANEL_HEIGHT}\">\n{}</svg>",
                    panel::draw(self, panel)
                );
            }
            html += "</figure>\n";
        }
        html + "</div>\n</div>\n"
    }

    /// Draws the picture into a file, below `top`; returns its lower end.
    fn draw(&self, body: &mut String, title: &str, width: f64, mut top: f64) -> f64 {
        for line in wrapped(&format!("{title}: {}", self.explanation()), width - 2.0 * GAP) {
            words(body, GAP, top, &line);
            top += LINE;
        }
        let mut x = GAP;
        for (series, name) in self.legend.iter().enumerate() {
            let wide = 28.0 + text_width(name) + GAP;
            if x + wide > width && x > GAP {
                (x, top) = (GAP, top + LINE);
            }
            let _ = writeln!(body, "<g class=\"{}\">{}", class(series), self.key(series, x, top - 4.0));
            words(body, x + 28.0, top, name);
            body.push_str("</g>\n");
            x += wide;
        }
        top += GAP;
        for row in self.cards.chunks(COLUMNS) {
            let titles: Vec<Vec<String>> = row.iter().map(|card| wrapped(&card.title, PANEL_WIDTH)).collect();
            let title_lines = titles.iter().map(Vec::len).max().unwrap_or(0);
            let mut bottom = top;
            for (column, (card, title)) in row.iter().zip(&titles).enumerate() {
                let left = GAP + column as f64 * (PANEL_WIDTH + GAP);
                for (line, text) in title.iter().enumerate() {
                    words(body, left, top + LINE * (line + 1) as f64, text);
                }
                let mut y = top + LINE * title_lines as f64 + 6.0;
                for panel in &card.panels {
                    if !panel.name.is_empty() {
                        y += LINE;
                        words(
                            body,
                            left,
                            y - 3.0,
                            wrapped(&panel.name, PANEL_WIDTH).first().map_or("", String::as_str),
                        );
                    }
                    let marks = panel::draw(self, panel);
                    let _ = writeln!(body, "<g transform=\"translate({left:.1} {y:.1})\">\n{marks}</g>");
                    y += PANEL_HEIGHT;
                }
                bottom = bottom.max(y);
            }
            top = bottom + GAP;
        }
        top + LINE
    }

    /// What the axes and marks mean.
    fn explanation(&self) -> String {
        let form = |axis: &ChartAxis| format!("{}{}", axis.label, if axis.is_log { " (logarithmic)" } else { "" });
        let over = self.x.as_ref().map(|axis| format!(" over {}", form(axis))).unwrap_or_default();
        format!("{}{over}. {}", form(&self.y), self.note)
    }

    /// The mark of a series in the legend.
    fn key(&self, series: usize, x: f64, y: f64) -> String {
        let dash = if is_broken(series) { " class=\"dash\"" } else { "" };
        match self.x {
            Some(_) => format!("<path{dash} d=\"M{x:.1} {y:.1}h22\"/>"),
            None => format!("<path{dash} d=\"M{:.1} {y:.1}h12\" style=\"stroke-width:10\"/>", x + 5.0),
        }
    }
}

/// Draws pictures below each other into one SVG file.
pub fn svg_file(title: &str, grids: &[ChartGrid]) -> String {
    let columns = grids.iter().map(|grid| grid.cards.len()).max().unwrap_or(1).clamp(1, COLUMNS);
    let width = columns as f64 * (PANEL_WIDTH + GAP) + GAP;
    let (mut body, mut top) = (String::new(), LINE + 4.0);
    for grid in grids {
        top = grid.draw(&mut body, title, width, top);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart ink\" viewBox=\"0 0 {width:.0} {top:.0}\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n{body}</svg>\n",
        escaped(title)
    )
}

fn words(body: &mut String, x: f64, y: f64, text: &str) {
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::statistics::IntervalEstimate;

    /// Checks that elements are closed in order, and that no coordinate is NaN.
    pub fn is_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for element in svg.split('<').skip(1) {
            let (inside, _) = element.split_once('>').expect("an element ends");
            let name = inside.split([' ', '/', '\n']).find(|word| !word.is_empty()).expect("an element has a name");
            match (inside.starts_with('/'), inside.ends_with('/') || ["!doctype", "meta", "br"].contains(&name)) {
                (true, _) => assert_eq!(open.pop(), Some(name), "{inside}"),
                (false, true) => {}
                (false, false) => open.push(name),
            }
            assert_eq!(inside.matches('"').count() % 2, 0, "{inside}");
        }
        let mut words = svg.split(|end: char| !end.is_alphanumeric());
        assert!(open.is_empty() && words.all(|word| !["NaN", "inf"].contains(&word)), "{svg}");
    }

    fn line(series: usize, points: &[(f64, f64)]) -> ChartLine {
        let point = |&(x, value): &(f64, f64)| ChartPoint {
            x,
            found: IntervalEstimate { value, low: value * 0.9, high: value },
        };
        ChartLine { series, points: points.iter().map(point).collect(), is_limit: false }
    }

    fn lines() -> ChartGrid {
        let panel = |lines| ChartPanel { name: "client".to_owned(), marks: ChartMarks::Lines(lines) };
        let limit = ChartLine { is_limit: true, ..line(1, &[(4096.0, 900.0), (65536.0, f64::NAN)]) };
        let first = panel(vec![line(0, &[(4096.0, 10.0), (65536.0, 100.0)]), limit]);
        let card = |id: &str, panels| ChartCard { id: id.to_owned(), title: "read & <write>".to_owned(), panels };
        ChartGrid {
            legend: vec!["volume".to_owned(), "raw".to_owned()],
            note: "Lines: intervals.".to_owned(),
            x: Some(ChartAxis::sizes("request bytes", [4096.0, 65536.0])),
            y: ChartAxis::log("MiB/s", [10.0, 900.0]),
            cards: vec![card("one", vec![first.clone(), first]), card("two", vec![panel(Vec::new())])],
        }
    }

    #[test]
    fn lines_drawn_in_svg_and_html() {
        let grid = lines();
        let (svg, html) = (svg_file("io", std::slice::from_ref(&grid)), grid.html());
        is_well_formed(&svg);
        is_well_formed(&html);
        for text in [&svg, &html] {
            assert_eq!(text.matches("class=\"line").count(), 2, "a line of two points in each of two charts: {text}");
            assert_eq!(text.matches("class=\"range").count(), 2 * 3, "an interval for each point");
            assert!(text.contains("read &amp; &lt;write&gt;") && text.contains(">64K</text>"), "{text}");
        }
        assert_eq!(html.matches("id=\"one\"").count(), 1);
    }

    #[test]
    fn cut_bars_show_their_value() {
        let bar = |series, value: f64| ChartBar {
            series,
            parts: vec![value / 2.0, value / 2.0],
            found: IntervalEstimate { value, low: value, high: value + 0.1 },
        };
        let marks = ChartMarks::Bars(vec![bar(0, 1.0), bar(9, 2.55)]);
        let panel = ChartPanel { name: String::new(), marks };
        let card = ChartCard { id: "b".to_owned(), title: "sort".to_owned(), panels: vec![panel] };
        let y = ChartAxis::linear("LRU = 1", 1.5);
        let grid = ChartGrid { legend: vec!["lru".to_owned()], note: String::new(), x: None, y, cards: vec![card] };
        let svg = svg_file("bars", &[grid]);
        is_well_formed(&svg);
        assert_eq!((svg.matches("class=\"cut\"").count(), svg.matches(">2.55</text>").count()), (1, 1), "{svg}");
        assert_eq!(svg.matches("class=\"whisker\"").count(), 1, "no interval of a cut bar lies in the chart: {svg}");
        assert!(!svg.contains("height=\"-"));
    }

    #[test]
    fn text_wraps_and_names_have_room() {
        assert_eq!(wrapped("one two three", 11.0 * 0.7 * 7.5), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible", 11.0 * 0.7 * 7.5), ["incomp…"]);
        let mut grid = lines();
        grid.legend = (0..12).map(|index| format!("a contender with a long name {index}")).collect();
        let svg = svg_file("io", std::slice::from_ref(&grid));
        // Each name begins to the right of the end of the one before it, or on another line.
        let mut ends: Vec<(f64, f64)> = Vec::new();
        for part in svg.split("<text x=\"").skip(1).filter(|part| part.contains("a contender with")) {
            let numbers: Vec<f64> = part.split('"').step_by(2).take(2).filter_map(|one| one.parse().ok()).collect();
            let (x, y) = (numbers[0], numbers[1]);
            assert!(ends.iter().all(|end| end.1 != y || end.0 < x), "{part}");
            ends.push((x + text_width("a contender with a long name 11"), y));
        }
        assert_eq!(ends.len(), 12);
    }
}
