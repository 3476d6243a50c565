//! Finds the lines of prose in pages and sources.

/// The numbered lines of a page that are prose: no tables, code, headings or HTML.
pub(crate) fn of_page(text: &str) -> Vec<(usize, &str)> {
    let mut prose = Vec::new();
    let mut fenced = false;
    let mut before = "";
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        let begins_fence = line.trim_start().starts_with("```");
        if begins_fence {
            fenced = !fenced;
        }
        // Indented code follows an empty line; indented text after prose continues it.
        in_code = line.starts_with("    ") && (in_code || before.trim().is_empty());
        let is_marked = ["|", "#", "<"].iter().any(|mark| line.starts_with(mark));
        if !(fenced || begins_fence || in_code || is_marked || line.is_empty()) {
            prose.push((index + 1, line));
        }
        before = line;
    }
    prose
}

/// The numbered lines of a source that are comments, without tables and fenced code in them.
pub(crate) fn of_source(text: &str) -> Vec<(usize, &str)> {
    let mut comments = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            fenced = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim_start();
        let is_fence = comment.starts_with("```");
        fenced ^= is_fence;
        if !(fenced || is_fence || comment.starts_with('|')) {
            comments.push((index + 1, line));
        }
    }
    comments
}

/// Whether a line has more columns than allowed. A line of a single word may have any length.
pub(crate) fn is_too_long(line: &str, columns: usize) -> bool {
    let words = line.trim_start_matches(['/', '!', '-', '*', ' ']).split_whitespace().count();
    line.chars().count() > columns && words > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_code_and_headings_are_no_prose() {
        let page = "# Head\n\ntext\n| a | b |\n\n    code\n\n    more code\n- item\n  goes on\n```\nfenced\n```\nend\n";
        let lines: Vec<_> = of_page(page).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, ["text", "- item", "  goes on", "end"]);
    }

    #[test]
    fn what_is_indented_behind_prose_is_prose() {
        assert_eq!(of_page("1. item\n    goes on\n").len(), 2);
    }

    #[test]
    fn comments_are_prose_and_their_tables_are_not() {
        let source = "//! Head.\nfn a() {} // behind code\n    /// | a | b |\n    // text\n/// ```\n/// code\n/// ```\n/// end\n";
        let lines: Vec<_> = of_source(source).into_iter().map(|(number, _)| number).collect();
        assert_eq!(lines, [1, 4, 8]);
    }

    #[test]
    fn columns_are_counted_and_one_word_may_be_long() {
        assert!(!is_too_long("ä ä", 3) && is_too_long("ä äb", 3));
        assert!(!is_too_long("/// https://example.org/a", 10));
    }
}
