//! The part of docs/testing.md that says what was tried.

use super::{BLOCKS, FEATURES, OPERATIONS, TRIED, Way, is_possible, who_tried};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Width of the list of empty cells, in columns.
const WIDTH: usize = 100;

/// The whole part of docs/testing.md.
#[must_use]
pub fn page() -> String {
    let mut page = legend();
    for kib in BLOCKS {
        page.push_str(&table(kib));
    }
    page.push_str("Empty cells, by way and size of blocks:\n\n");
    for way in Way::ALL {
        page.push_str(&empty_cells(way));
    }
    page
}

/// Which letter stands for which test.
fn legend() -> String {
    let mut text = String::from("| letter | test | ways |\n|---|---|---|\n");
    let mut seen = BTreeSet::new();
    for tried in TRIED.iter().filter(|tried| seen.insert(tried.letter)) {
        let ways: Vec<&str> = tried.ways.iter().map(|way| way.name()).collect();
        let test = tried.test.split(':').next().unwrap_or_default();
        let _ = writeln!(text, "| {} | `{test}` | {} |", tried.letter, ways.join(", "));
    }
    text.push('\n');
    text
}

/// Which tests tried which operation with which feature, for one block size. `-` where the
/// operation is impossible.
fn table(kib: u32) -> String {
    let cell = |operation: &str, feature: &str| -> String {
        if !is_possible(operation, feature) {
            return "-".to_owned();
        }
        let letters: BTreeSet<char> = who_tried(operation, feature, kib).map(|tried| tried.letter).collect();
        letters.into_iter().collect()
    };
    let width = |feature: &str| {
        let widest = OPERATIONS.iter().map(|operation| cell(operation, feature).len()).max();
        widest.unwrap_or(0).max(feature.len())
    };
    let widths: Vec<usize> = FEATURES.iter().map(|feature| width(feature)).collect();
    let mut text = String::from("```text\n");
    let mut line = |first: &str, cells: &mut dyn Iterator<Item = String>| {
        let mut line = format!("{first:<18}");
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(line, "{cell:<width$} ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&format!("{kib} KiB"), &mut FEATURES.iter().map(|feature| (*feature).to_owned()));
    for operation in OPERATIONS {
        line(operation, &mut FEATURES.iter().map(|feature| cell(operation, feature)));
    }
    text.push_str("```\n\n");
    text
}

/// What was not tried in one way. Features for which the same operations were not tried are listed
/// together.
fn empty_cells(way: Way) -> String {
    let mut text = String::new();
    for kib in BLOCKS {
        let mut lacking: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
        for feature in FEATURES {
            let lacks = |operation: &&&str| {
                is_possible(operation, feature)
                    && !who_tried(operation, feature, kib).any(|tried| tried.ways.contains(&way))
            };
            let missing: Vec<&str> = OPERATIONS.iter().filter(lacks).copied().collect();
            let possible = OPERATIONS.iter().filter(|operation| is_possible(operation, feature)).count();
            let missing = if missing.len() == possible { vec!["everything"] } else { missing };
            lacking.entry(missing).or_default().push(feature);
        }
        for (operations, features) in lacking.iter().filter(|(operations, _)| !operations.is_empty()) {
            let all =
                format!("- {}, {kib} KiB, {}: {}", way.name(), features.join(", "), operations.join(", "));
            text.push_str(&wrapped(&all));
        }
    }
    if text.is_empty() { format!("- {}: none\n", way.name()) } else { text }
}

fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.len() + 1 + word.len() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".to_owned();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}
