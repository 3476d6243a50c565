//! Checks the links of pages, and whether the files exist that pages and comments cite.

use std::path::{Component, Path, PathBuf};

/// Pages that the program writes and that are therefore not in the repository.
const WRITTEN: &[&str] = &["report.md"];

/// Links of a page to a page, file or heading that does not exist.
pub(crate) fn dead_links(root: &Path, page: &str, text: &str) -> Vec<String> {
    let folder = Path::new(page).parent().unwrap();
    links(text)
        .into_iter()
        .filter(|link| !link.contains("://"))
        .filter(|link| {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { PathBuf::from(page) } else { normal(&folder.join(file)) };
            let target = root.join(target);
            !target.exists() || (!heading.is_empty() && !has_heading(&target, heading))
        })
        .map(|link| format!("{page}: {link}"))
        .collect()
}

/// The targets of `[text](link)`, outside of indented code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.lines().filter(|line| !line.starts_with("    "));
    prose
        .flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()))
        .filter(|link| !link.is_empty() && !link.contains(' '))
        .collect()
}

/// Whether a page has the heading that a link names after `#`.
fn has_heading(page: &Path, wanted: &str) -> bool {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|line| {
        let name = line.trim_start_matches('#').trim().to_lowercase();
        let name: String = name.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
        name.replace(' ', "-") == wanted
    })
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Citations of files that do not exist: files below crates/, ci/ and docs/, and pages cited by
/// their name alone. In a source file, only comments are searched.
pub(crate) fn dangling(root: &Path, page: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate().filter(|(_, line)| page.ends_with(".md") || is_comment(line));
    let mut dangling = Vec::new();
    for (index, line) in lines {
        for cited in cited(line) {
            if !exists(root, &cited) {
                dangling.push(format!("{page}:{}: {cited}", index + 1));
            }
        }
    }
    dangling
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The words of a line that look like a path in this repository or the name of a page.
fn cited(line: &str) -> Vec<String> {
    let is_inside = |c: char| c.is_alphanumeric() || "/._-{},*".contains(c);
    line.split(|c| !is_inside(c))
        .map(|word| word.trim_end_matches(['.', ',', '-']).trim_start_matches("../"))
        .filter(|word| {
            let (first, rest) = word.split_once('/').unwrap_or(("", word));
            let is_page = rest.ends_with(".md") && !rest.contains('/') && rest.len() > 3;
            (["crates", "docs", "ci"].contains(&first) && !rest.is_empty()) || (first.is_empty() && is_page)
        })
        .flat_map(braces)
        .collect()
}

/// Expands `a/{b,c}` to `a/b` and `a/c`.
fn braces(word: &str) -> Vec<String> {
    let Some((before, rest)) = word.split_once('{') else { return vec![word.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![word.to_owned()] };
    choices.split(',').flat_map(|choice| braces(&format!("{before}{choice}{after}"))).collect()
}

/// Whether a cited file exists. In its path, `*` stands for any text. A name without a folder is
/// the name of a page at the root or below docs/.
fn exists(root: &Path, cited: &str) -> bool {
    if !cited.contains('/') {
        if WRITTEN.contains(&cited) {
            return true;
        }
        let folders = ["", "docs", "docs/behaviour", "docs/experiments", "docs/policies"];
        return folders.iter().any(|folder| root.join(folder).join(cited).exists());
    }
    let mut paths = vec![root.to_owned()];
    for part in cited.split('/') {
        paths = paths.into_iter().flat_map(|path| step(&path, part)).collect();
    }
    !paths.is_empty()
}

/// The paths in a folder that match one part of a path.
fn step(folder: &Path, part: &str) -> Vec<PathBuf> {
    let Some((before, after)) = part.split_once('*') else {
        let path = folder.join(part);
        return if path.exists() { vec![path] } else { Vec::new() };
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap());
    entries
        .filter(|entry| {
            let name = entry.file_name().into_string().unwrap();
            name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
        })
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_taken_out_of_prose_alone() {
        assert_eq!(links("see [a](b.md#c) and [d](../e)\n    [no](f.md)\n"), ["b.md#c", "../e"]);
    }

    #[test]
    fn paths_with_braces_are_several() {
        assert_eq!(
            cited("`crates/{sync,alloc}/tests/x.rs`."),
            ["crates/sync/tests/x.rs", "crates/alloc/tests/x.rs"]
        );
        assert_eq!(cited("(mballoc.md 3.2)"), ["mballoc.md"]);
        assert!(cited("a.b, crates and docs").is_empty());
    }

    #[test]
    fn what_is_not_there_is_found() {
        let root = crate::workspace::root();
        let text =
            "`crates/alloc/src/claim.rs` `crates/*/src/lib.rs` `docs/nothing.md`, glossary.md; nowhere.md";
        assert_eq!(dangling(&root, "page.md", text), ["page.md:1: docs/nothing.md", "page.md:1: nowhere.md"]);
        assert_eq!(
            dead_links(
                &root,
                "docs/a.md",
                "[x](glossary.md) [y](no.md) [z](glossary.md#ext4) [w](glossary.md#no)"
            )
            .len(),
            2
        );
    }
}
