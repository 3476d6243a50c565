//! Small charts as SVG: lines over workers on a logarithmic axis, or bars if there is only one
//! number of workers.
//!
//! Where lines cover each other, the last six stay visible, because earlier lines are wider. Text
//! takes its colour from the page.

use std::fmt::Write as _;

use blockyard_inspect::xml::escape;

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// (x, y), x above zero and ascending.
    pub points: Vec<(f64, f64)>,
}

/// A line chart with its texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Name of the x axis, with its unit.
    pub x_label: &'static str,
    /// Name of the y axis, with its unit.
    pub y_label: &'static str,
    /// The lines.
    pub series: Vec<Series>,
}

impl Chart {
    /// The chart as an `<svg>` element.
    #[must_use]
    pub fn svg(&self) -> String {
        line_chart(&self.title, self.x_label, self.y_label, &self.series)
    }
}

/// The right end of the frame. The legend follows, wide enough for its longest name.
const FRAME: f64 = 530.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
/// Width of a letter in the legend.
const LETTER: f64 = 7.5;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
/// Colours of lines and bars. Readers with colour vision deficiencies can tell the first six apart
/// (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080", "#8c564b"];

/// The chart as an `<svg>` element. The x axis is logarithmic to base 2, the y axis linear from
/// zero.
#[must_use]
pub fn line_chart(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let x_max = points().map(|point| point.0).fold(2.0, f64::max);
    let x_min = points().map(|point| point.0).fold(f64::INFINITY, f64::min).min(x_max / 2.0);
    let y_max = nice_ceiling(points().map(|point| point.1).fold(0.0, f64::max));
    let place_x = |x: f64| LEFT + (x / x_min).log2() / (x_max / x_min).log2() * (FRAME - LEFT);
    let place_y = |y: f64| HEIGHT - BOTTOM - y / y_max * (HEIGHT - TOP - BOTTOM);

    let width = FRAME + (40.0 + longest(series.iter().map(|line| line.name.as_str()))).max(190.0);
    let mut svg = head(title, width, HEIGHT);
    for step in 0..=4 {
        let value = y_max * f64::from(step) / 4.0;
        let y = place_y(value);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#888\" \
             stroke-opacity=\"0.35\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            FRAME,
            LEFT - 6.0,
            y + 4.0,
            super::table::figure(value)
        );
    }
    let mut xs: Vec<f64> = points().map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    for x in xs {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>",
            place_x(x),
            HEIGHT - BOTTOM + 16.0
        );
    }
    for (index, line) in series.iter().enumerate() {
        draw_series(&mut svg, line, (index, series.len()), &place_x, &place_y);
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text x=\"4\" y=\"{TOP}\" dy=\"-16\" font-weight=\"bold\">{}</text></svg>",
        f64::midpoint(LEFT, FRAME),
        HEIGHT - 8.0,
        escape(x_label),
        escape(y_label)
    );
    svg
}

fn draw_series(
    svg: &mut String,
    line: &Series,
    (index, count): (usize, usize),
    place_x: &impl Fn(f64) -> f64,
    place_y: &impl Fn(f64) -> f64,
) {
    let colour = COLOURS[index % COLOURS.len()];
    let later = u32::try_from(count - 1 - index).unwrap_or(u32::MAX);
    let stroke = (2.0 + 1.5 * f64::from(later)).min(9.0);
    let path: Vec<String> =
        line.points.iter().map(|&(x, y)| format!("{:.1},{:.1}", place_x(x), place_y(y))).collect();
    let _ = write!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{stroke}\" \
         stroke-linejoin=\"round\"/>",
        path.join(" ")
    );
    for point in &path {
        let (x, y) = point.split_once(',').unwrap_or(("0", "0"));
        let _ =
            write!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{:.1}\" fill=\"{colour}\"/>", stroke / 2.0 + 2.0);
    }
    let row = TOP + 18.0 * f64::from(u32::try_from(index).unwrap_or(u32::MAX));
    let _ = write!(
        svg,
        "<rect x=\"{:.1}\" y=\"{row:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        FRAME + 12.0,
        FRAME + 30.0,
        row + 10.0,
        escape(&line.name)
    );
}

/// Bars from zero, one below the other, each with its name and figure.
#[must_use]
pub fn bar_chart(title: &str, label: &str, bars: &[(String, f64)]) -> String {
    const ROW: f64 = 22.0;
    const LENGTH: f64 = 220.0;
    const FIGURE: f64 = 80.0;
    let left = 12.0 + longest(bars.iter().map(|(name, _)| name.as_str()));
    let width = (left + LENGTH + FIGURE).max(12.0 + longest([label].into_iter()));
    let height = TOP + ROW * f64::from(u32::try_from(bars.len()).unwrap_or(u32::MAX)) + 6.0;
    let most = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut svg = head(title, width, height);
    let _ = write!(svg, "<text x=\"4\" y=\"16\" font-weight=\"bold\">{}</text>", escape(label));
    let mut y = TOP;
    for (index, (name, value)) in bars.iter().enumerate() {
        let length = LENGTH * value / most;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"16\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            y + 13.0,
            escape(name),
            y + 1.0,
            COLOURS[index % COLOURS.len()],
            left + length + 6.0,
            y + 13.0,
            super::table::figure(*value)
        );
        y += ROW;
    }
    svg.push_str("</svg>");
    svg
}

/// Width of the longest of some texts.
fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    let letters = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    LETTER * f64::from(u32::try_from(letters).unwrap_or(u32::MAX))
}

fn head(title: &str, width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\"><title>{}</title>",
        escape(title)
    )
}

/// The smallest number that is not below `value` and is 1, 2, 4, 5, 8 or 10 times a power of ten; 1
/// if `value` is not above 0.
fn nice_ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&step| step >= value)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_inside_the_frame() {
        let series = [Series { name: "a<b".into(), points: vec![(1.0, 10.0), (64.0, 99.0)] }];
        let svg = line_chart("t", "workers", "ops/s", &series);
        assert!(svg.contains("a&lt;b"));
        let points = svg.split_once("<polyline points=\"").unwrap().1.split_once('"').unwrap().0;
        assert_eq!(points, "80.0,286.5 530.0,32.9");
    }

    #[test]
    fn the_longest_bar_is_the_largest_figure() {
        let svg = bar_chart("t", "extents", &[("a<b".into(), 50.0), ("c".into(), 200.0)]);
        assert!(
            svg.contains("a&lt;b") && svg.contains("width=\"55.0\"") && svg.contains("width=\"220.0\""),
            "{svg}"
        );
        assert!(!bar_chart("t", "nothing", &[("a".into(), 0.0)]).contains("NaN"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(nice_ceiling(99.0), 100.0);
        assert_eq!(nice_ceiling(4.1e6), 5e6);
        assert_eq!(nice_ceiling(0.0), 1.0);
    }

    /// The texts of a picture.
    fn texts(svg: &str) -> Vec<&str> {
        let after = svg.split("<text ").skip(1).filter_map(|text| text.split_once('>'));
        after.filter_map(|(_, text)| text.split_once("</text>")).map(|(text, _)| text).collect()
    }

    /// The y axis ends at 100 and has a line at each quarter. All doublings have the same width on
    /// the x axis.
    #[test]
    fn axes_have_the_figures_of_their_places() {
        let points = vec![(1.0, 10.0), (8.0, 50.0), (64.0, 99.0)];
        let svg = line_chart("t", "workers", "ops/s", &[Series { name: "a".into(), points }]);
        let labels = ["0", "25", "50", "75", "100", "1", "8", "64", "a", "workers", "ops/s"];
        assert_eq!(texts(&svg), labels);
        assert!(svg.contains(" 305.0,172.5 "), "half of both axes: {svg}");
        assert!(svg.contains("y1=\"243.8\" y2=\"243.8\""), "the line of 25: {svg}");
    }

    #[test]
    fn a_bar_has_its_figure_beside_it() {
        let svg = bar_chart("t", "extents", &[("a".into(), 50.0), ("c".into(), 20_000.0)]);
        assert_eq!(texts(&svg), ["extents", "a", "50", "c", "20.0 k"]);
    }
}
