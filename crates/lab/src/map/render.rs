//! Pictures of a map: characters for a terminal, SVG for a page.

use std::fmt::Write as _;

use super::{AllocationMap, SQUARES_PER_GROUP};

/// Characters from empty to full.
const SHADES: [char; 6] = [' ', '.', ':', '+', '#', '@'];

/// Colours of an SVG map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// White for free, blue for used.
    Blue,
    /// White for free, orange for used.
    Orange,
}

impl Theme {
    /// The colour of what is full.
    pub(super) const fn used(self) -> &'static str {
        match self {
            Self::Blue => "#0072b2",
            Self::Orange => "#d55e00",
        }
    }
}

impl AllocationMap {
    /// Lines of text, one a group, with runs of equal rows folded into one line that says how many.
    #[must_use]
    pub fn text(&self) -> String {
        let rows: Vec<String> = (0..self.groups()).map(|group| self.text_row(group)).collect();
        let mut text = String::new();
        let mut group = 0;
        while group < rows.len() {
            let same = rows[group..].iter().take_while(|row| **row == rows[group]).count();
            if same > 2 {
                let _ =
                    writeln!(text, "{group:>7} |{}| ... the same to group {}", rows[group], group + same - 1);
                group += same;
            } else {
                let _ = writeln!(text, "{group:>7} |{}|", rows[group]);
                group += 1;
            }
        }
        text
    }

    fn text_row(&self, group: usize) -> String {
        let mut row: String = self.shares(group).into_iter().map(shade).collect();
        let width = row.chars().count();
        row.extend(std::iter::repeat_n(' ', SQUARES_PER_GROUP - width));
        row
    }

    /// Groups of one column of a picture that is as wide as a page, until it would be too high.
    #[must_use]
    pub fn groups_per_column(&self) -> usize {
        self.groups().div_ceil(5).clamp(64, 512)
    }

    /// The map as an `<svg>` element: groups run down and then right, in columns of `groups_per_column` that begin with
    /// the number of their first group.
    ///
    /// Used squares let what is below shine through where they are not full, so that a page can choose the colours of
    /// the classes `paper` and `free`.
    #[must_use]
    pub fn svg(&self, title: &str, theme: Theme, groups_per_column: usize) -> String {
        const SIDE: usize = 6;
        const TOP: usize = 16;
        let columns = self.groups().div_ceil(groups_per_column);
        let column_width = SIDE * SQUARES_PER_GROUP + 12;
        let (width, height) = (columns * column_width, TOP + groups_per_column.min(self.groups()) * SIDE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" shape-rendering=\"crispEdges\" font-family=\"sans-serif\" \
             font-size=\"11\"><title>{}</title><rect class=\"paper\" width=\"{width}\" height=\"{height}\" \
             fill=\"#fff\"/><g fill=\"{}\">",
            crate::report::plot::escape(title),
            theme.used()
        );
        for column in 0..columns {
            let (x, first) = (column * column_width, column * groups_per_column);
            let _ = write!(svg, "<text x=\"{x}\" y=\"11\" fill=\"#000\">group {first}</text>");
        }
        for group in 0..self.groups() {
            let (x0, y) = (group / groups_per_column * column_width, TOP + group % groups_per_column * SIDE);
            let shares = self.shares(group);
            let _ = write!(
                svg,
                "<rect class=\"free\" x=\"{x0}\" y=\"{y}\" width=\"{}\" height=\"{SIDE}\" fill=\"#f4f4f4\"/>",
                SIDE * shares.len()
            );
            // Neighbours of one colour are one rectangle: a map of a large image stays small.
            let mut square = 0;
            while square < shares.len() {
                let step = step(shares[square]);
                let run = shares[square..].iter().take_while(|share| self::step(**share) == step).count();
                if step > 0 {
                    let _ = write!(
                        svg,
                        "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{SIDE}\" fill-opacity=\"{}\"/>",
                        x0 + square * SIDE,
                        SIDE * run,
                        opacity(step)
                    );
                }
                square += run;
            }
        }
        svg.push_str("</g></svg>");
        svg
    }
}

/// Free stays blank and full is full only at exactly 1, so that the extremes can be told from almost.
pub(super) fn shade(share: f64) -> char {
    let step = match share {
        s if s <= 0.0 => 0,
        s if s >= 1.0 => 5,
        s if s < 0.1 => 1,
        s if s < 0.4 => 2,
        s if s < 0.75 => 3,
        _ => 4,
    };
    SHADES[step]
}

/// Steps of colour: 0 is free, anything used is at least 1, and only what is full is [`STEPS`].
const STEPS: u8 = 12;

/// The step of a used share (0..=1).
pub(super) fn step(share: f64) -> u8 {
    if share <= 0.0 {
        return 0;
    }
    (1..STEPS)
        .rev()
        .find(|&step| share >= f64::from(step) / f64::from(STEPS))
        .map_or(1, |step| if share >= 1.0 { STEPS } else { step })
}

/// How much of the colour shows, from a pale tint for anything used to 1.
pub(super) fn opacity(step: u8) -> f64 {
    0.25 + 0.75 * f64::from(step) / f64::from(STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_fold() {
        let mut map = AllocationMap::new(6, 32_768, 32_768);
        map.add_used(0, 0, 1024);
        map.add_used(0, 1024, 50);
        let text = map.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("      0 |@. "));
        assert!(lines[1].ends_with("| ... the same to group 5"));
    }

    #[test]
    fn used_squares_are_drawn_and_the_title_is_safe() {
        let mut map = AllocationMap::new(40, 32_768, 32_768);
        map.add_used(33, 5 * 1024, 1024);
        let svg = map.svg("a<b", Theme::Blue, 32);
        assert!(svg.contains("<title>a&lt;b</title>"));
        assert!(
            svg.contains("<rect x=\"234\" y=\"22\" width=\"6\" height=\"6\" fill-opacity=\"1\"/>"),
            "{svg}"
        );
        assert!(svg.contains("<g fill=\"#0072b2\">") && svg.contains(">group 32</text>"), "{svg}");
        assert_eq!(svg.matches("fill-opacity").count(), 1);
    }
}
