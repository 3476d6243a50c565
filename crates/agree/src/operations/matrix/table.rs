//! The cells of a measurement as Markdown: a row for both scan modes, and sums by kind of trace.

use std::fmt::Write;

use blockyard_lab::trace::make::KINDS;

use super::Cell;
use crate::operations::Agreement;

/// Mounts that share a row.
const SCAN_MODES: usize = 2;

/// `(itself)`: the kernel beside itself, where that was measured.
const COLUMNS: [&str; 13] = [
    "extents",
    "extents %",
    "(itself)",
    "bytes %",
    "inodes",
    "inodes %",
    "tree blocks %",
    "placements %",
    "criteria %",
    "(itself)",
    "ended otherwise",
    "mb_stats beyond 1 %",
    "(itself)",
];

/// The cells, both scan modes (linear / by index) in one row: each row as soon as it is known, so that whoever interrupts a
/// long measurement keeps what is done.
#[derive(Debug, Default)]
pub struct Table {
    /// Cells of a row that may get more.
    waiting: Vec<Cell>,
}

impl Table {
    /// The two lines that come first.
    #[must_use]
    pub fn head() -> String {
        head(&["trace", "image", "delalloc"])
    }

    /// Takes the next cell; gives the row that is known with it.
    pub fn add(&mut self, cell: Cell) -> Option<String> {
        let before = if self.waiting.first().is_some_and(|first| first.words() != cell.words()) {
            self.rest()
        } else {
            None
        };
        self.waiting.push(cell);
        if self.waiting.len() == SCAN_MODES { self.rest() } else { before }
    }

    /// The row that misses a scan mode, when no more cells come.
    pub fn rest(&mut self) -> Option<String> {
        let cells = std::mem::take(&mut self.waiting);
        let figures: Vec<Figures> =
            cells.iter().map(|cell| figures(&cell.agreement, cell.ceiling.as_ref())).collect();
        let mut text = String::new();
        row(&mut text, &cells.first()?.words(), &figures);
        Some(text)
    }
}

/// Sums by kind of trace and way of allocation, and over all.
#[must_use]
pub fn summary(cells: &[Cell]) -> String {
    let mut text = head(&["trace", "delalloc"]);
    for kind in KINDS {
        for way in ["no", "yes"] {
            let is_wanted = |cell: &&Cell| cell.trace == kind.name && delayed(&cell.mount) == way;
            sum_row(&mut text, &[kind.name, way], cells.iter().filter(is_wanted));
        }
    }
    for way in ["no", "yes"] {
        sum_row(&mut text, &["all", way], cells.iter().filter(|cell| delayed(&cell.mount) == way));
    }
    text
}

impl Cell {
    /// What names its row.
    fn words(&self) -> [&str; 3] {
        [&self.trace, &self.image, delayed(&self.mount)]
    }
}

fn delayed(mount: &str) -> &'static str {
    if mount.contains("nodelalloc") { "no" } else { "yes" }
}

type Figures = [String; COLUMNS.len()];

fn figures(one: &Agreement, ceiling: Option<&Agreement>) -> Figures {
    let (shares, decisions) = (&one.shares, &one.decisions);
    let itself = |show: fn(&Agreement) -> String| ceiling.map_or("-".to_owned(), show);
    let apart = |one: &Agreement| one.stats_apart().len().to_string();
    [
        shares.extents.of.to_string(),
        shares.extents.text(),
        itself(|kernel| kernel.shares.extents.text()),
        shares.bytes.text(),
        shares.inodes.of.to_string(),
        shares.inodes.text(),
        shares.tree_blocks.text(),
        decisions.placements.text(),
        decisions.criteria.text(),
        itself(|kernel| kernel.decisions.criteria.text()),
        one.outcomes_differ.to_string(),
        apart(one),
        itself(apart),
    ]
}

fn head(words: &[&str]) -> String {
    let columns = words.iter().chain(&COLUMNS);
    let mut text = String::new();
    for column in columns.clone() {
        text.push_str("| ");
        text.push_str(column);
        text.push(' ');
    }
    text.push_str("|\n");
    columns.for_each(|_| text.push_str("|---"));
    text.push_str("|\n");
    text
}

/// Equal figures of both scan modes are printed once.
fn row(text: &mut String, words: &[&str], figures: &[Figures]) {
    let Some(first) = figures.first() else { return };
    for word in words {
        // Writing to a string cannot fail.
        let _ = write!(text, "| {word} ");
    }
    for column in 0..first.len() {
        let same = figures.iter().all(|one| one[column] == first[column]);
        let values: Vec<&str> = figures.iter().map(|one| one[column].as_str()).collect();
        let _ = write!(text, "| {} ", if same { first[column].clone() } else { values.join(" / ") });
    }
    text.push_str("|\n");
}

fn sum_row<'c>(text: &mut String, words: &[&str], cells: impl Iterator<Item = &'c Cell>) {
    let mut all = Agreement::default();
    let mut ceiling: Option<Agreement> = None;
    let mut some = false;
    for cell in cells {
        some = true;
        all.add(&cell.agreement);
        if let Some(kernel) = &cell.ceiling {
            ceiling.get_or_insert_with(Agreement::default).add(kernel);
        }
    }
    if some {
        row(text, words, &[figures(&all, ceiling.as_ref())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::compare::Share;
    use crate::operations::matrix::MOUNTS;

    fn cell(mount: &str, equal: u64, of: u64) -> Cell {
        let mut agreement = Agreement::default();
        agreement.shares.extents = Share { equal, of };
        agreement.stats.insert("hits".to_owned(), (100, 98));
        let mut kernel = Agreement::default();
        kernel.shares.extents = Share { equal: of, of };
        Cell {
            trace: "untar".to_owned(),
            image: "1k".to_owned(),
            mount: mount.to_owned(),
            agreement,
            ceiling: Some(kernel),
        }
    }

    #[test]
    fn both_scan_modes_stand_in_a_row_that_comes_as_soon_as_both_are_known() {
        let mut table = Table::default();
        assert_eq!(table.add(cell(MOUNTS[0], 999, 1000)), None);
        let row = table.add(cell(MOUNTS[1], 1000, 1000)).unwrap();
        assert!(row.starts_with("| untar | 1k | no | 1000 | 99.900 / 100.000 | 100.000 | "), "{row}");
        assert!(row.ends_with("| 0 | 1 | 0 |\n"), "{row}");
        assert_eq!(row.lines().count(), 1);
        assert_eq!(Table::head().lines().count(), 2);
        assert_eq!((table.rest(), table.rest()), (None, None));
    }

    #[test]
    fn rows_without_their_second_scan_mode_come_with_the_next_cell_or_at_the_end() {
        let mut table = Table::default();
        assert_eq!(table.add(cell(MOUNTS[0], 1, 5)), None);
        let row = table.add(cell(MOUNTS[2], 2, 5)).unwrap();
        assert!(row.starts_with("| untar | 1k | no | 5 | 20.000 |"), "{row}");
        let row = table.rest().unwrap();
        assert!(row.starts_with("| untar | 1k | yes | 5 | 40.000 |"), "{row}");
    }

    #[test]
    fn sums_add_up() {
        let text = summary(&[cell(MOUNTS[0], 999, 1000), cell(MOUNTS[1], 1000, 1000), cell(MOUNTS[2], 0, 5)]);
        assert!(text.contains("| untar | no | 2000 | 99.950 | 100.000 |"), "{text}");
        assert!(text.contains("| all | yes | 5 | 0.000 | 100.000 |"), "{text}");
    }
}
