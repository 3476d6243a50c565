//! A small line chart as SVG: series over workers on a logarithmic axis, nothing else.

use std::fmt::Write as _;

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// (x, y), x above zero and ascending.
    pub points: Vec<(f64, f64)>,
}

/// Where the frame ends on the right; the legend follows, as wide as its longest name.
const FRAME: f64 = 530.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
/// Room for a letter of the legend.
const LETTER: f64 = 7.5;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
/// Colours that stay apart for readers with colour vision deficiencies (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442"];

/// The chart as an `<svg>` element. The x axis is logarithmic to base 2, the y axis linear from zero.
#[must_use]
pub fn line_chart(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let x_max = points().map(|point| point.0).fold(2.0, f64::max);
    let x_min = points().map(|point| point.0).fold(f64::INFINITY, f64::min).min(x_max / 2.0);
    let y_max = nice_ceiling(points().map(|point| point.1).fold(0.0, f64::max));
    let place_x = |x: f64| LEFT + (x / x_min).log2() / (x_max / x_min).log2() * (FRAME - LEFT);
    let place_y = |y: f64| HEIGHT - BOTTOM - y / y_max * (HEIGHT - TOP - BOTTOM);

    let letters = series.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let letters = f64::from(u32::try_from(letters).unwrap_or(u32::MAX));
    let width = FRAME + (40.0 + LETTER * letters).max(190.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\"><title>{}</title>",
        escape(title)
    );
    for step in 0..=4 {
        let value = y_max * f64::from(step) / 4.0;
        let y = place_y(value);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
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
        draw_series(&mut svg, line, COLOURS[index % COLOURS.len()], index, &place_x, &place_y);
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text x=\"12\" y=\"{TOP}\" dy=\"-12\">{}</text></svg>",
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
    colour: &str,
    index: usize,
    place_x: &impl Fn(f64) -> f64,
    place_y: &impl Fn(f64) -> f64,
) {
    let path: Vec<String> =
        line.points.iter().map(|&(x, y)| format!("{:.1},{:.1}", place_x(x), place_y(y))).collect();
    let _ = write!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for point in &path {
        let (x, y) = point.split_once(',').unwrap_or(("0", "0"));
        let _ = write!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
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

/// The next of 1, 2, 4, 5, 8, 10 times a power of ten.
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

/// Text made safe inside XML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
    fn axes_end_at_round_numbers() {
        assert_eq!(nice_ceiling(99.0), 100.0);
        assert_eq!(nice_ceiling(4.1e6), 5e6);
        assert_eq!(nice_ceiling(0.0), 1.0);
    }
}
