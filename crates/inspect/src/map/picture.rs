//! A map as a picture: SVG for a page.
//!
//! A row is a group, or several groups if there are too many for a picture. A long stretch of empty
//! groups becomes one line of text, which says which groups they are.
//!
//! The caller may give a second map, that of the content of files. Then this content has another
//! colour than metadata, and a group without such content counts as empty even if it has metadata.

use std::fmt::Write as _;

use blockyard_disk::num::{count_as_f64, u64_from_usize};

use super::shades::{self, DATA};
use super::{AllocationMap, SQUARES_PER_GROUP};
use crate::units::counted;
use crate::xml::escape;

/// Colours that readers with colour vision deficiencies can tell apart (Okabe and Ito).
const METADATA: &str = "#d55e00";
const BOTH: &str = "#cc79a7";

/// The least number of adjacent empty groups that one line replaces.
const STRETCH: usize = 4;
/// If more groups than this are to be shown, groups share rows.
const ROWS_MAX: usize = 1600;
/// Greatest height of a column of rows, in pixels.
const COLUMN_HEIGHT: usize = 1000;
/// Pixels for group numbers left of a row, for the line of a stretch, and for the legend.
const LEFT: usize = 56;
const LINE: usize = 14;
const LEGEND: usize = 44;
/// Pixels of rows after which a group number is shown again.
const NUMBERED: usize = 64;

/// What a picture shows.
pub(super) struct Picture<'m> {
    pub(super) title: &'m str,
    pub(super) used: &'m AllocationMap,
    /// The part of `used` that is content of files, where that is known.
    pub(super) files: Option<&'m AllocationMap>,
}

/// One strip of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strip {
    /// Groups that share a row.
    Row { first: usize, end: usize },
    /// Groups that are left out.
    Stretch { first: usize, end: usize },
}

/// Colour and strength of one square.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ink {
    colour: &'static str,
    /// A step of [`shades`]: 0 is free.
    step: u8,
}

impl Picture<'_> {
    /// The `<svg>` element.
    pub(super) fn svg(&self) -> String {
        let strips = self.strips();
        let side = side(strips.len());
        let columns = columns(&strips, side);
        let column_width = LEFT + side * SQUARES_PER_GROUP + 16;
        let height_of = |column: &[Strip]| column.iter().map(|strip| height(*strip, side)).sum::<usize>();
        let bottom = columns.iter().map(|column| height_of(column)).max().unwrap_or(0) + 8;
        let (width, total) = ((columns.len() * column_width).max(420), bottom + LEGEND);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{total}\" \
             viewBox=\"0 0 {width} {total}\" role=\"img\" shape-rendering=\"crispEdges\" font-family=\"sans-serif\" \
             font-size=\"11\"><title>{}</title><rect class=\"paper\" width=\"{width}\" height=\"{total}\" \
             fill=\"#fff\"/>",
            escape(self.title)
        );
        for (index, column) in columns.iter().enumerate() {
            self.column(&mut svg, column, index * column_width, side);
        }
        self.legend(&mut svg, bottom, strips.iter().map(|strip| strip.groups()).max().unwrap_or(1).max(1));
        svg.push_str("</svg>");
        svg
    }

    /// Rows and stretches from the first group to the last.
    fn strips(&self) -> Vec<Strip> {
        // A group is empty if it has no content of files. If the map of files is missing or shows
        // no content at all, a group is empty if none of its clusters is used.
        let files = self.files.filter(|files| files.figures().used_clusters > 0);
        let seen = files.unwrap_or(self.used);
        let empty: Vec<bool> = (0..self.used.groups()).map(|group| seen.used_in(group) == 0).collect();
        let mut runs: Vec<Strip> = Vec::new();
        let mut first = 0;
        for same in empty.chunk_by(|one, other| one == other) {
            let end = first + same.len();
            match runs.last_mut() {
                _ if same[0] && same.len() >= STRETCH => runs.push(Strip::Stretch { first, end }),
                Some(Strip::Row { end: before, .. }) => *before = end,
                _ => runs.push(Strip::Row { first, end }),
            }
            first = end;
        }
        let shown: usize =
            runs.iter().filter(|run| matches!(run, Strip::Row { .. })).map(|run| run.groups()).sum();
        let together = shown.div_ceil(ROWS_MAX).max(1);
        let parted = |run: Strip| -> Vec<Strip> {
            let Strip::Row { first, end } = run else { return vec![run] };
            let starts = (first..end).step_by(together);
            starts.map(|first| Strip::Row { first, end: (first + together).min(end) }).collect()
        };
        runs.into_iter().flat_map(parted).collect()
    }

    fn column(&self, svg: &mut String, column: &[Strip], x: usize, side: usize) {
        let mut y = 8;
        let mut since_number = NUMBERED;
        for &strip in column {
            match strip {
                Strip::Stretch { first, end } => {
                    let _ = write!(
                        svg,
                        "<text x=\"{}\" y=\"{}\" fill=\"#000\" font-style=\"italic\">{}</text>",
                        x + LEFT,
                        y + LINE - 4,
                        self.stretch_text(first, end)
                    );
                    since_number = NUMBERED;
                }
                Strip::Row { first, end } => {
                    if since_number >= NUMBERED {
                        let _ = write!(
                            svg,
                            "<text x=\"{}\" y=\"{}\" fill=\"#000\" text-anchor=\"end\">{first}</text>",
                            x + LEFT - 4,
                            y + side.max(9)
                        );
                        since_number = 0;
                    }
                    since_number += side;
                    self.row(svg, (first, end), (x + LEFT, y), side);
                }
            }
            y += height(strip, side);
        }
    }

    fn stretch_text(&self, first: usize, end: usize) -> String {
        let with_metadata = (first..end).filter(|&group| self.used.used_in(group) > 0).count();
        let groups = format!("groups {first} to {}", end - 1);
        match with_metadata {
            0 => format!("{groups}: free"),
            some => format!("{groups}: no files, metadata in {}", counted(u64_from_usize(some), "group")),
        }
    }

    fn row(&self, svg: &mut String, (first, end): (usize, usize), (x, y): (usize, usize), side: usize) {
        let inks: Vec<Ink> =
            (0..self.used.squares_of(first)).map(|square| self.ink(first, end, square)).collect();
        let _ = write!(
            svg,
            "<rect class=\"free\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{side}\" fill=\"#f4f4f4\"/>",
            side * inks.len()
        );
        // Neighbouring squares of one colour and strength share a rectangle, so that the SVG of a
        // large image stays small.
        let mut at = 0;
        for run in inks.chunk_by(|one, other| one == other) {
            if run[0].step > 0 {
                let _ = write!(
                    svg,
                    "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{side}\" fill=\"{}\" fill-opacity=\"{}\"/>",
                    x + at * side,
                    side * run.len(),
                    run[0].colour,
                    shades::opacity(run[0].step)
                );
            }
            at += run.len();
        }
    }

    /// The colour and strength of one square of a row. If several groups share the row, this square
    /// stands for the squares at this position in all of them.
    fn ink(&self, first: usize, end: usize, square: usize) -> Ink {
        let of = |map: &AllocationMap| -> (u64, u64) {
            let groups = (first..end).filter(|&group| square < map.squares_of(group));
            groups.fold((0, 0), |(used, size), group| {
                (used + u64::from(map.rows[group].used[square]), size + u64::from(map.size_of(group, square)))
            })
        };
        let (used, size) = of(self.used);
        let data = self.files.map_or(used, |files| of(files).0.min(used));
        let colour = match (data, used - data) {
            (_, 0) => DATA,
            (0, _) => METADATA,
            _ => BOTH,
        };
        let share = count_as_f64(used) / count_as_f64(size.max(1));
        Ink { colour, step: shades::step(share) }
    }

    fn legend(&self, svg: &mut String, top: usize, groups_in_row: usize) {
        let known: &[(&str, &str)] = match self.files {
            Some(_) => &[("#f4f4f4", "free"), (DATA, "files"), (METADATA, "metadata"), (BOTH, "both")],
            None => &[("#f4f4f4", "free"), (DATA, "used")],
        };
        for (index, (colour, name)) in known.iter().enumerate() {
            let x = 8 + index * 90;
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\" stroke=\"#888\"/>\
                 <text x=\"{}\" y=\"{}\" fill=\"#000\">{name}</text>",
                top + 6,
                x + 18,
                top + 16
            );
        }
        let row = if groups_in_row == 1 { "a group".to_owned() } else { format!("{groups_in_row} groups") };
        let _ = write!(
            svg,
            "<text x=\"8\" y=\"{}\" fill=\"#000\">A row is {row}, a square 1/32 of it; the stronger, the fuller.</text>",
            top + 34
        );
    }
}

impl Strip {
    /// Number of groups in a row; 0 for a stretch.
    const fn groups(self) -> usize {
        match self {
            Self::Row { first, end } => end - first,
            Self::Stretch { .. } => 0,
        }
    }
}

/// Pixels of a square: larger when there are fewer rows.
const fn side(rows: usize) -> usize {
    match rows {
        0..=16 => 18,
        17..=64 => 12,
        65..=256 => 8,
        _ => 5,
    }
}

const fn height(strip: Strip, side: usize) -> usize {
    match strip {
        Strip::Row { .. } => side,
        Strip::Stretch { .. } => LINE,
    }
}

/// Puts strips into columns, each filled up to [`COLUMN_HEIGHT`] before the next begins.
fn columns(strips: &[Strip], side: usize) -> Vec<Vec<Strip>> {
    let mut columns: Vec<Vec<Strip>> = vec![Vec::new()];
    let mut used = 0;
    for &strip in strips {
        if used + height(strip, side) > COLUMN_HEIGHT {
            columns.push(Vec::new());
            used = 0;
        }
        used += height(strip, side);
        if let Some(column) = columns.last_mut() {
            column.push(strip);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(groups: usize) -> (AllocationMap, AllocationMap) {
        let empty = || AllocationMap::new(groups, 32_768, 32_768);
        (empty(), empty())
    }

    fn size(svg: &str) -> (usize, usize) {
        let of =
            |name: &str| svg.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap().parse();
        (of("width").unwrap(), of("height").unwrap())
    }

    /// Metadata has another colour than data, and long stretches of empty groups have no rows. In
    /// an earlier version, the colour was the same and each empty group had a row.
    #[test]
    fn metadata_stands_apart_and_empty_stretches_are_left_out() {
        let (mut used, mut files) = maps(818);
        used.add_used(0, 0, 1024);
        used.add_used(0, 2048, 2048);
        files.add_used(0, 2048, 1024);
        files.add_used(0, 3072, 512);
        used.add_used(16, 0, 10);
        used.add_used(700, 5 * 1024, 1024);
        files.add_used(700, 5 * 1024, 1024);
        let svg = Picture { title: "a<b", used: &used, files: Some(&files) }.svg();
        assert!(svg.contains("<title>a&lt;b</title>"));
        for colour in [DATA, METADATA, BOTH] {
            assert!(svg.matches(colour).count() >= 2, "{colour} in map and legend: {svg}");
        }
        for part in [
            "groups 1 to 699: no files, metadata in 1 group",
            "groups 701 to 817: free",
            ">700</text>",
            ">metadata</text>",
            "A row is a group",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("class=\"free\"").count(), 2, "two groups have a row");
        let plain = Picture { title: "t", used: &used, files: None }.svg();
        assert!(plain.contains(">used</text>") && plain.contains("groups 17 to 699: free"), "{plain}");
    }

    /// A picture of one group is large enough to read, and a picture of 131,072 groups is not too
    /// large. In an earlier version, the first had 204 by 22 pixels, and the second took 51 MB.
    #[test]
    fn the_size_suits_the_image() {
        let (mut used, _) = maps(1);
        used.add_used(0, 0, 100);
        let (width, height) = size(&Picture { title: "t", used: &used, files: None }.svg());
        assert!(width > 400 && (60..200).contains(&height), "{width} x {height}");
        let (mut used, _) = maps(131_072);
        (0..131_072)
            .for_each(|group| used.add_used(group, 1024 * (u32::try_from(group % 32).unwrap()), 1024));
        let svg = Picture { title: "t", used: &used, files: None }.svg();
        let (width, height) = size(&svg);
        assert!(
            width < 4000 && height < 1200 && svg.len() < 8 << 20,
            "{width} x {height}, {} bytes",
            svg.len()
        );
        assert!(svg.contains("A row is 82 groups"), "groups share rows");
    }
}
