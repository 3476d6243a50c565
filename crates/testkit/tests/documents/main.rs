//! Checks the pages and comments themselves: lines are not too long, links and citations lead
//! somewhere, and the glossary is in order.
//!
//! Prose has at most 100 columns. Tables, fenced code and lines of one long word are exempt; in
//! pages, so are indented code, headings and HTML.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod citations;
mod prose;
mod workspace;

use std::collections::BTreeSet;
use workspace::{pages, root, sources};

/// The most columns of a line of prose.
const COLUMNS: usize = 100;

/// Terms that the glossary must have: readers look these up first.
const WANTED_TERMS: &[&str] = &[
    "admission",
    "claim",
    "colour",
    "commit point",
    "durable",
    "epoch",
    "folio",
    "handle",
    "prefetch",
    "reservation",
    "slot",
    "write-back",
];

#[test]
fn lines_of_prose_fit() {
    let mut wrong = Vec::new();
    for page in pages().into_iter().chain(sources()) {
        let text = std::fs::read_to_string(root().join(&page)).unwrap();
        let lines = if page.ends_with(".md") { prose::of_page(&text) } else { prose::of_source(&text) };
        for (number, line) in lines.into_iter().filter(|(_, line)| prose::is_too_long(line, COLUMNS)) {
            wrong.push(format!("{page}:{number}: {line}"));
        }
    }
    assert!(wrong.is_empty(), "lines of more than {COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn links_lead_to_pages_and_headings() {
    let mut dead = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(root().join(&page)).unwrap();
        dead.extend(citations::dead_links(&root(), &page, &text));
    }
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}

#[test]
fn citations_name_files_of_this_repository() {
    let mut dangling = Vec::new();
    for page in pages().into_iter().chain(sources()) {
        let text = std::fs::read_to_string(root().join(&page)).unwrap();
        dangling.extend(citations::dangling(&root(), &page, &text));
    }
    assert!(dangling.is_empty(), "citations of files that are not there:\n{}", dangling.join("\n"));
}

#[test]
fn the_index_names_every_page() {
    let index = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    let missing: Vec<_> = pages()
        .into_iter()
        .filter_map(|page| Some(page.strip_prefix("docs/")?.to_owned()))
        .filter(|page| page != "README.md" && !index.contains(&format!("({page})")))
        .filter(|page| !page.starts_with("policies/") || page == "policies/README.md")
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not name {missing:?}");
}

/// The README's picture must be what `ci/picture` draws now from docs/experiments/append64.md.
#[test]
fn the_picture_shows_the_table() {
    let drawn = std::process::Command::new(root().join("ci/picture")).arg("--check").output().unwrap();
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stdout));
}

#[test]
fn the_glossary_is_in_order_and_has_the_terms() {
    let text = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let mut terms = Vec::new();
    for section in text.split("\n## ").skip(1) {
        let names: Vec<String> = section
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| term "))
            .map(|line| line.trim_start_matches("| ").split(" | ").next().unwrap().to_lowercase())
            .collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(names, sorted, "a section of docs/glossary.md is out of order");
        terms.extend(names);
    }
    let distinct: BTreeSet<&String> = terms.iter().collect();
    assert_eq!(distinct.len(), terms.len(), "a term stands twice");
    for wanted in WANTED_TERMS {
        assert!(
            terms.iter().any(|term| term.split([',', '(']).any(|name| name.trim() == *wanted)),
            "{wanted}"
        );
    }
}
