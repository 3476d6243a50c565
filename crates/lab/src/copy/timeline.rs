//! Used space over time: a row for each group, time from left to right.

use std::fmt::Write as _;

use blockyard_disk::num::{count_as_f64, u64_from_usize};
use blockyard_inspect::map::shades;
use blockyard_inspect::xml::escape;
use serde::{Deserialize, Serialize};

use crate::figures::table::folded;

/// Most rows of a picture. With more groups, several share a row.
const ROWS: usize = 256;
/// Rows of the text form.
const TEXT_ROWS: usize = 32;
/// Width of the label before a row of text.
const TEXT_LEFT: usize = 9;

/// Used shares of all groups at moments of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// What it shows.
    pub title: String,
    groups: usize,
    /// Time of each sample in GiB written, and the used share of each group in per mille.
    samples: Vec<(f64, Vec<u16>)>,
    /// For each part of the run that ended: how many samples there were by then, and its name.
    marks: Vec<(usize, String)>,
}

impl Timeline {
    /// A timeline without samples.
    #[must_use]
    pub fn new(title: String, groups: usize) -> Self {
        Self { title, groups, samples: Vec::new(), marks: Vec::new() }
    }

    /// Adds a sample: the GiB written so far, and the used share (0..=1) of each group.
    ///
    /// # Panics
    /// When the number of shares is not the number of groups.
    pub fn sample(&mut self, gib: f64, used: impl Iterator<Item = f64>) {
        let used: Vec<u16> = used.map(per_mille).collect();
        assert_eq!(used.len(), self.groups, "a share for each group");
        self.samples.push((gib, used));
    }

    /// Marks the end of a part of the run, at the latest sample.
    pub fn mark(&mut self, name: String) {
        self.marks.push((self.samples.len(), name));
    }

    /// Mean used share of the groups in row `row` of `rows`, at a sample.
    fn share(&self, sample: usize, row: usize, rows: usize) -> f64 {
        let (first, end) = (row * self.groups / rows, ((row + 1) * self.groups / rows).max(1));
        let part = &self.samples[sample].1[first..end];
        let sum: u32 = part.iter().map(|&share| u32::from(share)).sum();
        f64::from(sum) / 1000.0 / f64::from(blockyard_disk::num::u32_from_usize(part.len().max(1)))
    }

    /// Text with lines of at most `columns` characters. A line stands for one or more groups, and a
    /// character for one or more samples. `|` marks the end of a part.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let rows = self.groups.min(TEXT_ROWS);
        let room = columns.saturating_sub(TEXT_LEFT + self.marks.len()).max(1);
        let step = self.samples.len().div_ceil(room).max(1);
        let mut text = folded(&self.title, columns);
        for row in 0..rows {
            let _ = write!(text, "{:>7} |", row * self.groups / rows);
            for first in (0..self.samples.len()).step_by(step) {
                let samples = first..(first + step).min(self.samples.len());
                let sum: f64 = samples.clone().map(|sample| self.share(sample, row, rows)).sum();
                let count = count_as_f64(u64_from_usize(samples.len()));
                text.push(shades::character(sum / count));
                if self.marks.iter().any(|(at, _)| samples.contains(&(at - 1))) {
                    text.push('|');
                }
            }
            text.push('\n');
        }
        let ends = self.marks.iter().map(|(at, name)| {
            let gib = self.samples.get(at - 1).map_or(0.0, |sample| sample.0);
            format!("{name} ends at {gib:.2} GiB written")
        });
        text + &folded(&format!("group down, time across: {}", ends.collect::<Vec<_>>().join(", ")), columns)
    }

    /// The picture as an `<svg>` element: a column for each sample, a row for each group (or
    /// several). Darker means more used.
    #[must_use]
    pub fn svg(&self) -> String {
        const LEFT: usize = 60;
        const TOP: usize = 24;
        const COLUMN: usize = 8;
        let rows = self.groups.min(ROWS);
        let height = (400 / rows.max(1)).clamp(2, 12);
        let (width, bottom) = (LEFT + COLUMN * self.samples.len() + 10, TOP + height * rows);
        let total = bottom + 64;
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{total}\" \
             viewBox=\"0 0 {width} {total}\" role=\"img\" font-family=\"sans-serif\" font-size=\"11\"><title>{title}</title>\
             <rect class=\"paper\" width=\"{width}\" height=\"{total}\" fill=\"#fff\"/>\
             <text x=\"{LEFT}\" y=\"14\">{title}</text><rect class=\"free\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" \
             height=\"{}\" fill=\"#f4f4f4\"/><g fill=\"{}\">",
            COLUMN * self.samples.len(),
            height * rows,
            shades::DATA
        );
        for sample in 0..self.samples.len() {
            let mut row = 0;
            while row < rows {
                let colour = shades::step(self.share(sample, row, rows));
                let run = (row..rows)
                    .take_while(|&next| shades::step(self.share(sample, next, rows)) == colour)
                    .count();
                if colour > 0 {
                    let _ = write!(
                        svg,
                        "<rect x=\"{}\" y=\"{}\" width=\"{COLUMN}\" height=\"{}\" fill-opacity=\"{}\"/>",
                        LEFT + COLUMN * sample,
                        TOP + height * row,
                        height * run,
                        shades::opacity(colour)
                    );
                }
                row += run;
            }
        }
        svg.push_str("</g>");
        self.axes(&mut svg, (LEFT, COLUMN), (TOP, bottom));
        svg
    }

    /// The legend of the shades, from free to full.
    fn legend(&self, svg: &mut String, left: usize, top: usize) {
        let shades = [(0, "free"), (3, "a quarter"), (6, "half"), (12, "full")];
        for (index, (step, name)) in shades.into_iter().enumerate() {
            let x = left + index * 80;
            let opacity = if step == 0 { 0.0 } else { shades::opacity(step) };
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{}\" class=\"shade\" \
                 style=\"fill-opacity:{opacity}\" stroke=\"#888\"/><text x=\"{}\" y=\"{}\">{name}</text>",
                shades::DATA,
                x + 18,
                top + 10
            );
        }
    }

    fn axes(&self, svg: &mut String, (left, column): (usize, usize), (top, bottom): (usize, usize)) {
        for (at, name) in &self.marks {
            let x = left + column * at;
            let gib = self.samples.get(at - 1).map_or(0.0, |sample| sample.0);
            let _ = write!(
                svg,
                "<line x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"{}\" stroke=\"#d55e00\"/>\
                 <text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{}: {gib:.2} GiB</text>",
                bottom + 4,
                bottom + 16,
                escape(name)
            );
        }
        self.legend(svg, left, bottom + 44);
        let _ = write!(
            svg,
            "<text x=\"{left}\" y=\"{}\">time, in GiB written since the start</text>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">group 0</text>\
             <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">{}</text></svg>",
            bottom + 34,
            left - 4,
            top + 10,
            left - 4,
            self.groups.saturating_sub(1)
        );
    }
}

#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is cut to 0..=1 first"
)]
fn per_mille(share: f64) -> u16 {
    (share.clamp(0.0, 1.0) * 1000.0).round() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        let mut timeline = Timeline::new("a<b".into(), 2);
        timeline.sample(0.0, [0.0, 0.0].into_iter());
        timeline.sample(1.5, [1.0, 0.05].into_iter());
        timeline.mark("copy 1".into());
        timeline
    }

    #[test]
    fn time_goes_right_and_groups_go_down() {
        let text = timeline().text(80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["a<b", "      0 | @|", "      1 | .|"]);
        assert!(lines[3].ends_with("time across: copy 1 ends at 1.50 GiB written"));
    }

    /// A line is no longer than requested. In an earlier version, it had one character for each of
    /// hundreds of samples.
    #[test]
    fn many_samples_share_a_letter() {
        let mut timeline = Timeline::new("t".into(), 1);
        for copy in 0..3 {
            (0..100).for_each(|part| timeline.sample(f64::from(part), [f64::from(copy) / 2.0].into_iter()));
            timeline.mark(format!("copy {copy}"));
        }
        let text = timeline.text(60);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let row = text.lines().nth(1).unwrap();
        assert_eq!(row.matches('|').count(), 4, "{text}");
        assert!(row.contains("+") && row.ends_with("@|"), "{text}");
    }

    #[test]
    fn the_picture_has_a_column_a_sample_and_an_axis() {
        let svg = timeline().svg();
        assert_eq!(svg.matches("fill-opacity=").count(), 2);
        for part in ["<title>a&lt;b</title>", "x=\"68\"", "copy 1: 1.50 GiB", "time, in GiB", ">half</text>"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    /// 64 groups on 32 lines: two on each line. In the used lines one group is half used, the other
    /// a quarter.
    #[test]
    fn many_groups_share_a_line() {
        let mut timeline = Timeline::new("t".into(), 64);
        let used = |group: u32| f64::from(u8::from(group >= 32)) * f64::from(group % 2 + 1) / 4.0;
        timeline.sample(0.0, (0..64).map(used));
        for (row, share) in [(0, 0.0), (15, 0.0), (16, 0.375), (31, 0.375)] {
            assert!((timeline.share(0, row, 32) - share).abs() < 1e-9, "{row}");
        }
        let text = timeline.text(80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1], lines[17]), (34, "      0 | ", "     32 |:"));
    }
}
