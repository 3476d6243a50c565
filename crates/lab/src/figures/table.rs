//! A table, printable for a terminal, as Markdown for a mail, and as CSV.
//!
//! On a terminal a table is as wide as its content, up to a given width. If it would be wider,
//! heads and names fold at blanks, and names also after colons. Columns that still do not fit go to
//! further tables below, which repeat the columns that name the rows.
//!
//! A column of figures that is empty in every row is left out. Only CSV has it, because scripts
//! depend on the heads there.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Width};

/// Characters that a column takes in addition to its content: a blank on each side and a line.
const BESIDE: usize = 3;
/// Width of the narrowest supported terminal in characters.
const NARROWEST: usize = 20;

/// A titled table. The first columns name the rows, the others hold figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What the table shows, with units.
    pub title: String,
    /// Column heads; those of the columns that name rows come first.
    pub heads: Vec<String>,
    /// Cells; each row has as many as there are heads.
    pub rows: Vec<Vec<String>>,
    /// Sentences to print below, such as where published figures come from.
    pub notes: Vec<String>,
    /// Number of columns that name a row.
    keys: usize,
}

impl Table {
    /// An empty table whose first column names the rows.
    pub fn new(title: impl Into<String>, heads: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            title: title.into(),
            heads: heads.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
            keys: 1,
        }
    }

    /// Sets the number of columns that name a row.
    ///
    /// # Panics
    /// When there are fewer columns, or `keys` is 0.
    #[must_use]
    pub fn with_keys(mut self, keys: usize) -> Self {
        assert!((1..=self.heads.len()).contains(&keys), "a row of {:?} has a name", self.title);
        self.keys = keys;
        self
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it does not have as many cells as the table has heads.
    pub fn push(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.heads.len(), "a row of {:?}", self.title);
        self.rows.push(cells);
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds the columns of figures of `other`, each with `; ` and `named` at the end of its head. A
    /// column is placed after this table's column with the same head, and after the columns that
    /// were joined to that column before. If this table has no such column, it is placed at the
    /// end. If several columns have the same head, the first is placed after the first, the second
    /// after the second, and so on.
    ///
    /// Rows are matched by the columns that name them; rows that only `other` has are added.
    /// Published figures are not repeated. A column is left out if each of its cells is `-` or
    /// equals this table's cell under the same head.
    pub(super) fn join(&mut self, other: &Self, named: &str) {
        let keys = self.keys;
        let are_alike = |one: &[String], two: &[String]| one[..keys] == two[..keys];
        let is_same = self.rows.len() == other.rows.len()
            && self.rows.iter().zip(&other.rows).all(|(one, two)| are_alike(one, two));
        if !is_same {
            for row in &other.rows {
                if !self.rows.iter().any(|known| are_alike(known, row)) {
                    let mut new: Vec<String> = row[..keys].to_vec();
                    new.resize(self.heads.len(), "-".to_owned());
                    self.rows.push(new);
                }
            }
        }
        let place = |index: usize, row: &[String]| {
            if is_same { Some(index) } else { other.rows.iter().position(|other| are_alike(other, row)) }
        };
        let places: Vec<Option<usize>> =
            self.rows.iter().enumerate().map(|(index, row)| place(index, row)).collect();
        for (column, head) in other.heads.iter().enumerate().skip(keys) {
            let cell = |(row, place): (&Vec<String>, &Option<usize>)| match place {
                Some(place) if !is_published_row(&row[0]) => other.rows[*place][column].clone(),
                _ => "-".to_owned(),
            };
            let cells: Vec<String> = self.rows.iter().zip(&places).map(cell).collect();
            let nth = other.heads[..column].iter().filter(|name| *name == head).count();
            let of_head = |(at, name): (usize, &String)| (name == head).then_some(at);
            let first = self.heads.iter().enumerate().filter_map(of_head).nth(nth);
            let says = |(row, cell): (&Vec<String>, &String)| {
                cell == "-" || first.is_some_and(|first| row[first] == *cell)
            };
            if is_published(head) || self.rows.iter().zip(&cells).all(says) {
                continue;
            }
            let is_joined = |name: &&String| name.starts_with(&format!("{head}; "));
            let known = first.or_else(|| self.heads.iter().position(|name| is_joined(&name)));
            let at = known.map_or(self.heads.len(), |known| {
                known + 1 + self.heads[known + 1..].iter().take_while(is_joined).count()
            });
            self.heads.insert(at, format!("{head}; {named}"));
            self.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.insert(at, cell));
        }
    }

    /// The columns with content: those that name rows, and those that are not `-` or blank in every
    /// row. A table without rows has all its columns.
    #[must_use]
    pub fn filled_columns(&self) -> Vec<usize> {
        let is_filled = |column: &usize| {
            self.rows.is_empty() || self.rows.iter().any(|row| !matches!(row[*column].trim(), "" | "-"))
        };
        (0..self.heads.len()).filter(|column| *column < self.keys || is_filled(column)).collect()
    }

    /// Text for a terminal with `columns` columns.
    #[must_use]
    pub fn terminal(&self, columns: usize) -> String {
        let columns = columns.max(NARROWEST);
        let mut text = folded(&self.title, columns);
        for part in self.parts(columns) {
            text.push_str(&self.drawn(&part));
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&folded(note, columns));
        }
        text
    }

    /// Columns with their widths, table by table. Each table has at least one column of figures, if
    /// there are any with content.
    fn parts(&self, columns: usize) -> Vec<Vec<(usize, usize)>> {
        let filled = self.filled_columns();
        let (names, figures) = filled.split_at(self.keys);
        // Names may take half of the line. If that is too little, they fold, the first name first.
        let mut left = (columns / 2).saturating_sub(BESIDE * self.keys);
        let mut names: Vec<(usize, usize)> = names
            .iter()
            .rev()
            .map(|&column| {
                let width = self.whole(column).min(left.max(4));
                left = left.saturating_sub(width);
                (column, width)
            })
            .collect();
        names.reverse();
        let room = (columns - 1).saturating_sub(taken(&names));
        let mut parts: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
        for &column in figures {
            let width = self.least(column).min(room.saturating_sub(BESIDE)).max(1);
            let part = parts.last_mut().filter(|part| taken(part) + width + BESIDE <= room);
            match part {
                Some(part) => part.push((column, width)),
                None => parts.push(vec![(column, width)]),
            }
        }
        if parts.len() > 1 && parts[0].is_empty() {
            parts.remove(0);
        }
        let with_names = |figures: Vec<(usize, usize)>| {
            let mut part: Vec<(usize, usize)> = names.iter().copied().chain(figures).collect();
            self.widen(&mut part, columns - 1);
            part
        };
        parts.into_iter().map(with_names).collect()
    }

    /// Gives the remaining width to columns that would fold, the first ones first.
    fn widen(&self, part: &mut [(usize, usize)], room: usize) {
        let mut left = room.saturating_sub(taken(part));
        for (column, width) in part {
            let more = self.whole(*column).saturating_sub(*width).min(left);
            *width += more;
            left -= more;
        }
    }

    /// Width that a column needs if nothing folds.
    fn whole(&self, column: usize) -> usize {
        self.cells(column).chain([self.heads[column].as_str()]).map(letters).max().unwrap_or(0)
    }

    /// Width that a column needs if its head folds at blanks. Figures do not fold.
    fn least(&self, column: usize) -> usize {
        self.cells(column).chain(self.heads[column].split(' ')).map(letters).max().unwrap_or(0)
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |row| row[column].as_str())
    }

    /// The table of some columns, each with the given width.
    fn drawn(&self, part: &[(usize, usize)]) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(taken(part) + 1).unwrap_or(u16::MAX));
        table.set_header(part.iter().map(|(column, _)| self.heads[*column].as_str()));
        for row in &self.rows {
            table.add_row(part.iter().map(|&(column, width)| {
                let side = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
                let text =
                    if column < self.keys { folded_name(&row[column], width) } else { row[column].clone() };
                Cell::new(text).set_alignment(side)
            }));
        }
        table.set_constraints(part.iter().map(|(_, width)| {
            let with_blanks = u16::try_from(width + 2).unwrap_or(u16::MAX);
            ColumnConstraint::Absolute(Width::Fixed(with_blanks))
        }));
        table.to_string()
    }

    /// A Markdown table with its title in bold.
    #[must_use]
    pub fn markdown(&self) -> String {
        let filled = self.filled_columns();
        let line = |cells: &[String]| {
            let cells: Vec<String> = filled.iter().map(|&column| cells[column].replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = format!("**{}**\n\n", self.title);
        text.push_str(&line(&self.heads));
        text.push_str("|---|");
        text.push_str(&"---:|".repeat(filled.len() - 1));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&line(row));
        }
        for note in &self.notes {
            text.push_str(&format!("\n{note}\n"));
        }
        text
    }

    /// Comma-separated values with a head line.
    #[must_use]
    pub fn csv(&self) -> String {
        let line =
            |cells: &[String]| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n";
        let mut text = line(&self.heads);
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

/// Width of columns with their blanks, each with the border on one side.
fn taken(part: &[(usize, usize)]) -> usize {
    part.iter().map(|(_, width)| width + BESIDE).sum()
}

/// Whether the head of a column marks its figures as published.
pub(crate) fn is_published(head: &str) -> bool {
    head.contains("published")
}

/// Whether the name of a row marks its figures as published. The name of a row of ratios to
/// published figures also has the word "published", but not at the beginning.
pub(crate) fn is_published_row(name: &str) -> bool {
    name.starts_with("published")
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// Folds a name into lines of at most `columns` characters, at blanks and after the colons of a
/// policy's overrides. A longer word is not split.
fn folded_name(name: &str, columns: usize) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in name.split_inclusive([' ', ':']) {
        if used > 0 && used + letters(word.trim_end()) > columns {
            lines.push('\n');
            used = 0;
        }
        used += letters(word);
        lines.push_str(word);
    }
    lines
}

/// Folds a text into lines of at most `columns` characters, each ended by a newline. A longer word
/// starts on a new line and is split.
#[must_use]
pub fn folded(text: &str, columns: usize) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        if used > 0 && used + 1 + word.len() > columns {
            lines.push('\n');
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        while word.len() > columns {
            let rest = word.split_off(columns);
            lines.extend(word);
            lines.push('\n');
            word = rest;
        }
        used += word.len();
        lines.extend(word);
    }
    lines.push('\n');
    lines
}

/// A CSV field, quoted if necessary.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// A figure with about four significant digits: `1234567` -> `1.235 M`, `0.0123` -> `0.0123`. Whole
/// numbers below 10,000 are unchanged; NaN is `-`.
#[must_use]
pub fn figure(value: f64) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size >= 1e9 {
        format!("{:.3} G", value / 1e9)
    } else if size >= 1e6 {
        format!("{:.3} M", value / 1e6)
    } else if size >= 1e4 {
        format!("{:.1} k", value / 1e3)
    } else if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("T", ["policy", "1", "2"]);
        table.push(["a|b", "1", "2,5"]);
        table.note("a note");
        table
    }

    #[test]
    fn every_form_holds_every_cell() {
        let table = table();
        assert_eq!(table.csv(), "policy,1,2\na|b,1,\"2,5\"\n");
        assert!(table.markdown().contains("| a\\|b | 1 | 2,5 |\n"));
        let text = table.terminal(100);
        for part in ["policy", "a|b", "2,5", "a note"] {
            assert!(text.contains(part), "{text}");
        }
    }

    /// A regression: tables had any width, up to 251 characters.
    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let mut table = Table::new(
            "A title of some words that is longer than a line",
            ["policy", "workers"].into_iter().chain((0..9).map(|_| "a head of words")),
        )
        .with_keys(2);
        for name in ["linux-6.18", "linux-6.16:scan=optimized:busy=skip:stream_goal=group-only"] {
            let cells = (0..9).map(|number| format!("{number}00.0 k ±12%"));
            table.push([name.to_owned(), "64".to_owned()].into_iter().chain(cells));
        }
        table.note("A note that has more words than a narrow terminal has letters in a line.");
        for columns in [20, 33, 40, 60, 80, 100, 132, 300] {
            let text = table.terminal(columns);
            let widest = text.lines().map(letters).max().unwrap();
            assert!(widest <= columns, "{widest} > {columns}:\n{text}");
            // On a narrower terminal figures are cut, so that no line is too wide.
            for number in (0..9).filter(|_| columns >= 33) {
                let cell = format!("{number}00.0 k ±12%");
                assert_eq!(text.matches(&cell).count(), 2, "{columns}:\n{text}");
            }
        }
        assert_eq!(table.terminal(300).matches('┌').count(), 1);
        let parted = table.terminal(100);
        assert!(parted.matches('┌').count() > 1, "{parted}");
        assert_eq!(parted.matches('┌').count(), parted.matches("│ policy").count(), "each part has names");
    }

    /// A regression: reports had columns with only `-`.
    #[test]
    fn a_column_that_is_empty_in_every_row_is_left_out() {
        let mut table = Table::new("T", ["policy", "known", "unknown", "some"]);
        table.push(["-", "1", "-", "-"]);
        table.push(["b", "2", "", "3"]);
        for text in [table.terminal(100), table.markdown()] {
            assert!(!text.contains("unknown") && text.contains("some") && text.contains("policy"), "{text}");
        }
        assert!(table.csv().contains("unknown"), "heads of CSV are an interface");
    }

    #[test]
    fn quotes_in_a_cell_are_doubled() {
        let mut table = Table::new("T", ["a", "b"]);
        table.push(["say \"x\"", "plain"]);
        assert_eq!(table.csv(), "a,b\n\"say \"\"x\"\"\",plain\n");
    }

    #[test]
    fn words_fold_and_long_ones_are_cut() {
        assert_eq!(folded("one two three", 7), "one two\nthree\n");
        assert_eq!(folded("abcdefgh i", 3), "abc\ndef\ngh\ni\n");
        assert_eq!(folded("", 3), "\n");
        assert_eq!(
            folded_name("linux-6.16:scan=optimized:busy=skip", 16),
            "linux-6.16:\nscan=optimized:\nbusy=skip"
        );
    }

    #[test]
    #[should_panic(expected = "a row of")]
    fn a_row_has_as_many_cells_as_heads() {
        table().push(["only one"]);
    }

    #[test]
    fn figures_keep_four_digits() {
        for (value, text) in [
            (1_234_567.0, "1.235 M"),
            (0.0123, "0.0123"),
            (295_287.0, "295.3 k"),
            (588.0, "588"),
            (0.0, "0"),
            (7.0, "7"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(figure(f64::NAN), "-");
    }

    #[test]
    fn units_begin_at_their_own_size() {
        for (value, text) in [
            (2.5e9, "2.500 G"),
            (999.9e6, "999.900 M"),
            (-2.5e6, "-2.500 M"),
            (10_000.0, "10.0 k"),
            (9999.0, "9999"),
            (123.4, "123"),
            (99.25, "99.25"),
            (1.25, "1.25"),
            (0.5, "0.5000"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
