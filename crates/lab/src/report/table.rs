//! One table, printable for a terminal, as Markdown for a mail, and as CSV.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment};

/// A titled table; the first column names the rows, the others hold figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What the table shows, with units.
    pub title: String,
    /// Column heads, the first for the row names.
    pub heads: Vec<String>,
    /// Cells, as many a row as heads.
    pub rows: Vec<Vec<String>>,
    /// Sentences to print below, such as where published figures come from.
    pub notes: Vec<String>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, heads: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            title: title.into(),
            heads: heads.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has not as many cells as the table has heads.
    pub fn push(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.heads.len(), "a row of {:?}", self.title);
        self.rows.push(cells);
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Text for a terminal.
    #[must_use]
    pub fn terminal(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(self.heads.iter().map(String::as_str));
        for row in &self.rows {
            table.add_row(row.iter().enumerate().map(|(index, cell)| {
                let side = if index == 0 { CellAlignment::Left } else { CellAlignment::Right };
                Cell::new(cell).set_alignment(side)
            }));
        }
        let mut text = format!("{}\n{table}\n", self.title);
        for note in &self.notes {
            text.push_str(note);
            text.push('\n');
        }
        text
    }

    /// A Markdown table with its title in bold.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let escaped: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| cell.replace('|', "\\|")).collect()).collect();
        let mut text = format!("**{}**\n\n", self.title);
        text.push_str(&line(&self.heads));
        text.push_str("|---|");
        text.push_str(&"---:|".repeat(self.heads.len() - 1));
        text.push('\n');
        for row in &escaped {
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

/// A CSV field, in quotes where it has to be.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// A figure with about four significant digits: `1234567` -> `1.235 M`, `0.0123` -> `0.0123`; whole numbers below 10,000 as
/// they are.
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
        let text = table.terminal();
        for part in ["policy", "a|b", "2,5", "a note"] {
            assert!(text.contains(part), "{text}");
        }
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
}
