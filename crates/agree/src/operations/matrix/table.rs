//! The cells of a measurement as a table: one row for both scan modes, and sums by kind of trace.

use blockyard_lab::figures::Table;
use blockyard_lab::trace::make::KINDS;

use super::Cell;
use crate::matrix::by_state;
use crate::operations::Agreement;

/// How many cells share a row: one for each scan mode.
const SCAN_MODES: usize = 2;

/// Headings of the figures. A column `(itself)` has the figure of the column before it for the
/// kernel compared with itself, where that was measured.
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

/// Columns that name a row.
const NAMES: [&str; 3] = ["trace", "image", "delalloc"];

/// Merges cells into rows: both scan modes (linear and by index) share one row. Each row is
/// returned as soon as it is complete, so the finished rows of an interrupted measurement are kept.
#[derive(Debug, Default)]
pub struct Rows {
    /// Cells of the unfinished row.
    waiting: Vec<Cell>,
}

impl Rows {
    /// The heading of the table: two lines of Markdown.
    #[must_use]
    pub fn head() -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let heads: Vec<&str> = NAMES.into_iter().chain(COLUMNS).collect();
        let rule = "|---".repeat(heads.len());
        format!("{}{rule}|\n", line(heads))
    }

    /// Takes the next cell. Returns the row that the cell completes. If the cell begins another row
    /// while the row before is unfinished, returns the unfinished row. Otherwise returns `None`.
    pub fn add(&mut self, cell: Cell) -> Option<Vec<String>> {
        let before = if self.waiting.first().is_some_and(|first| first.words() != cell.words()) {
            self.rest()
        } else {
            None
        };
        self.waiting.push(cell);
        if self.waiting.len() == SCAN_MODES { self.rest() } else { before }
    }

    /// Takes out the unfinished row; `None` if there is none. Called when no more cells come.
    pub fn rest(&mut self) -> Option<Vec<String>> {
        let cells = std::mem::take(&mut self.waiting);
        let figures: Vec<Figures> =
            cells.iter().map(|cell| figures(&cell.agreement, cell.ceiling.as_ref())).collect();
        Some(row(&cells.first()?.words(), &figures))
    }
}

/// All rows of a measurement. Fresh and aged images are columns next to each other.
#[must_use]
pub fn table(title: &str, cells: &[Cell]) -> Table {
    by_state(cells, |part| of_cells(title, part))
}

fn of_cells(title: &str, cells: &[Cell]) -> Table {
    let mut table = Table::new(title, NAMES.into_iter().chain(COLUMNS)).with_keys(NAMES.len());
    let mut rows = Rows::default();
    let whole: Vec<Vec<String>> = cells.iter().filter_map(|cell| rows.add(cell.clone())).collect();
    whole.into_iter().chain(rows.rest()).for_each(|row| table.push(row));
    table
}

/// Sums by kind of trace and over all kinds, each without and with delayed allocation. Sums of no
/// cells are left out. Fresh and aged images are columns next to each other.
#[must_use]
pub fn summary(cells: &[Cell]) -> Table {
    by_state(cells, summed_up)
}

fn summed_up(cells: &[Cell]) -> Table {
    let heads = ["trace", "delalloc"].into_iter().chain(COLUMNS);
    let mut table = Table::new("the same, summed up by kind of trace", heads).with_keys(2);
    for kind in KINDS {
        for way in ["no", "yes"] {
            let is_wanted = |cell: &&Cell| cell.trace == kind.name && delayed(&cell.mount) == way;
            sum(&[kind.name, way], cells.iter().filter(is_wanted))
                .into_iter()
                .for_each(|row| table.push(row));
        }
    }
    for way in ["no", "yes"] {
        let of_way = cells.iter().filter(|cell| delayed(&cell.mount) == way);
        sum(&["all", way], of_way).into_iter().for_each(|row| table.push(row));
    }
    table
}

impl Cell {
    /// The words that name the cell's row.
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

/// A figure that is equal in both scan modes is shown once.
fn row(words: &[&str], figures: &[Figures]) -> Vec<String> {
    let figure = |column: usize| {
        let values: Vec<&str> = figures.iter().map(|one| one[column].as_str()).collect();
        let is_same = values.iter().all(|value| *value == values[0]);
        if is_same { values[0].to_owned() } else { values.join(" / ") }
    };
    words.iter().map(|word| (*word).to_owned()).chain((0..COLUMNS.len()).map(figure)).collect()
}

/// One row for the sum of all cells; none without cells.
fn sum<'c>(words: &[&str], cells: impl Iterator<Item = &'c Cell>) -> Option<Vec<String>> {
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
    some.then(|| row(words, &[figures(&all, ceiling.as_ref())]))
}

#[cfg(test)]
mod tests {
    use blockyard_lab::figures::states::FRESH;

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
            state: FRESH.to_owned(),
            workers: 1,
            mount: mount.to_owned(),
            agreement,
            ceiling: Some(kernel),
        }
    }

    #[test]
    fn both_scan_modes_stand_in_a_row_that_comes_as_soon_as_both_are_known() {
        let mut rows = Rows::default();
        assert_eq!(rows.add(cell(MOUNTS[0], 999, 1000)), None);
        let row = rows.add(cell(MOUNTS[1], 1000, 1000)).unwrap();
        assert_eq!(row[..6], ["untar", "1k", "no", "1000", "99.900 / 100.000", "100.000"]);
        assert_eq!(row[13..], ["0", "1", "0"]);
        assert_eq!(Rows::head().lines().count(), 2);
        assert_eq!((rows.rest(), rows.rest()), (None, None));
    }

    #[test]
    fn rows_without_their_second_scan_mode_come_with_the_next_cell_or_at_the_end() {
        let mut rows = Rows::default();
        assert_eq!(rows.add(cell(MOUNTS[0], 1, 5)), None);
        let row = rows.add(cell(MOUNTS[2], 2, 5)).unwrap();
        assert_eq!(row[..5], ["untar", "1k", "no", "5", "20.000"]);
        let row = rows.rest().unwrap();
        assert_eq!(row[..5], ["untar", "1k", "yes", "5", "40.000"]);
        let all = table("T", &[cell(MOUNTS[0], 1, 5), cell(MOUNTS[2], 2, 5)]);
        assert_eq!(all.rows.len(), 2, "the last row is not lost");
    }

    /// A regression: fresh and aged images had separate tables that looked the same.
    #[test]
    fn fresh_and_aged_images_are_columns_of_one_table() {
        let fresh = [cell(MOUNTS[0], 3, 4), cell(MOUNTS[1], 4, 4)];
        let aged = [cell(MOUNTS[0], 5, 8), cell(MOUNTS[1], 8, 8)]
            .map(|cell| Cell { state: "mail:9".to_owned(), ..cell });
        let both = [fresh.clone(), aged].concat();
        let column = |table: &Table, head: &str| table.heads.iter().position(|name| name == head).unwrap();
        let of = |table: &Table, head: &str| table.rows[0][column(table, head)].clone();
        let joined = table("T", &both);
        assert_eq!(joined.rows.len(), 1);
        assert_eq!([of(&joined, "extents"), of(&joined, "extents; mail:9")], ["4", "8"]);
        assert_eq!(of(&joined, "extents %"), "75.000 / 100.000");
        assert_eq!(of(&joined, "extents %; mail:9"), "62.500 / 100.000");
        let sums = summary(&both);
        assert_eq!([of(&sums, "extents"), of(&sums, "extents; mail:9")], ["8", "16"]);
        assert!(joined.notes.iter().any(|note| note.contains("is left out")), "{:?}", joined.notes);
        assert!(table("T", &fresh).notes.is_empty());
    }

    #[test]
    fn sums_add_up() {
        let cells = [cell(MOUNTS[0], 999, 1000), cell(MOUNTS[1], 1000, 1000), cell(MOUNTS[2], 0, 5)];
        let rows = summary(&cells).rows;
        let find = |names: [&str; 2]| rows.iter().find(|row| row[..2] == names).unwrap();
        assert_eq!(find(["untar", "no"])[2..5], ["2000", "99.950", "100.000"]);
        assert_eq!(find(["all", "yes"])[2..5], ["5", "0.000", "100.000"]);
        assert_eq!(rows.len(), 4);
    }

    #[test]
    fn each_figure_stands_under_its_head() {
        let share = |equal, of| Share { equal, of };
        let mut one = Agreement { outcomes_differ: 21, own_commits: 99, ..Agreement::default() };
        one.shares.extents = share(1, 10);
        one.shares.bytes = share(2, 11);
        one.shares.inodes = share(3, 12);
        one.shares.tree_blocks = share(4, 13);
        one.decisions.placements = share(5, 14);
        one.decisions.criteria = share(6, 15);
        one.stats = [("a".to_owned(), (1, 2)), ("b".to_owned(), (3, 4))].into();
        let mut kernel = Agreement::default();
        kernel.shares.extents = share(7, 16);
        kernel.decisions.criteria = share(8, 17);
        kernel.stats = [("a".to_owned(), (1, 2))].into();
        let shown = [
            ("extents", "10"),
            ("extents %", "10.000"),
            ("(itself)", "43.750"),
            ("bytes %", "18.181"),
            ("inodes", "12"),
            ("inodes %", "25.000"),
            ("tree blocks %", "30.769"),
            ("placements %", "35.714"),
            ("criteria %", "40.000"),
            ("(itself)", "47.058"),
            ("ended otherwise", "21"),
            ("mb_stats beyond 1 %", "2"),
            ("(itself)", "1"),
        ];
        let figures = figures(&one, Some(&kernel));
        let found: Vec<_> = COLUMNS.into_iter().zip(figures.iter().map(String::as_str)).collect();
        assert_eq!(found, shown);
    }
}
