//! A map as text for a terminal, or as SVG for a page.

use std::fmt::Write as _;

use super::picture::Picture;
use super::shades;
use super::{AllocationMap, SQUARES_PER_GROUP};

impl AllocationMap {
    /// Lines of text, one per group. Three or more equal rows are folded into one line that says
    /// where they end.
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
        let mut row: String = self.shares(group).into_iter().map(shades::character).collect();
        let width = row.chars().count();
        row.extend(std::iter::repeat_n(' ', SQUARES_PER_GROUP - width));
        row
    }

    /// The map as an `<svg>` element with its legend. `files` is the map of the content of files;
    /// if it is given, this content has a colour of its own.
    ///
    /// - Rows fill columns that are at most 1000 pixels high.
    /// - Four or more consecutive empty groups become a line of text. A group is empty if it has no
    ///   content of files, or, without `files`, if it has no used cluster.
    /// - In a large image, several groups share a row.
    ///
    /// A page can choose the colours of the classes `paper` and `free`: used squares that are not
    /// full are translucent, over the `free` rectangle of their row.
    #[must_use]
    pub fn svg(&self, title: &str, files: Option<&Self>) -> String {
        Picture { title, used: self, files }.svg()
    }
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
}
