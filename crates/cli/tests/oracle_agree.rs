//! `lab agree`: what it prints besides its figures, and in which format.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use blockyard_testkit::require;

const NEEDS: [&str; 6] = ["root", "mount", "umount", "losetup", "mke2fs", "dumpe2fs"];

fn agree(line: &str) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["lab", "agree"])
        .args(line.split(' '))
        .env("COLUMNS", "90")
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(line: &str) -> String {
    String::from_utf8(agree(line).stdout).unwrap()
}

/// A comparison of the engine with the kernel ends with a line that recommends `--ceiling`, which
/// compares the kernel with itself. With `--ceiling`, `--json` or `--quiet` there is no such line.
#[test]
fn who_has_no_ceiling_is_told_what_one_is() {
    if !require(&NEEDS) {
        return;
    }
    const TRACE: &str = "--make untar --ops 20 --mib 64";
    const TABLE: &str = "--level 2 --load untar --image 1k --ops 10";
    for line in [TRACE, TABLE] {
        let said = text(line);
        let about = |said: &str| said.lines().filter(|line| line.contains("--ceiling")).count();
        assert_eq!(about(&said), 1, "{said}");
        let sentence = said.lines().last().unwrap();
        assert!(
            sentence.contains("does not repeat long mixed traces") && sentence.contains("by how much"),
            "{said}"
        );
        for more in ["--ceiling", "--json", "--quiet"] {
            let said = text(&format!("{line} {more}"));
            assert!(!said.contains("does not repeat"), "{line} {more}: {said}");
        }
    }
}

#[test]
fn the_summary_of_level_2_has_the_sums_only() {
    if !require(&NEEDS) {
        return;
    }
    let said = text("--level 2 --load untar --image 1k --ops 10 --markdown --summary");
    assert!(said.contains("summed up by kind of trace") && !said.contains("| 1k |"), "{said}");
    assert!(text("--level 2 --load untar --image 1k --ops 10 --markdown").contains("| 1k |"));
}

/// Level 1 once refused to age its images.
#[test]
fn level_1_records_on_fresh_and_aged_images() {
    if !require(&NEEDS) {
        return;
    }
    const LIFE: &str = "mail:1500:80%";
    let line = format!("--level 1 --load fill --image small-groups --ops 10 --aged {LIFE}");
    let rows = text(&format!("{line} --json"));
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["fresh", LIFE]);
    for row in &rows {
        assert!(row["requests"].as_u64() > Some(0) && row["placements"] == row["requests"], "{row}");
    }
    for form in ["", " --summary"] {
        let table = text(&format!("{line} --markdown{form}"));
        assert!(table.contains(&format!("; {LIFE} |")), "{table}");
    }
}

/// With `--aged`, level 2 once measured on aged images alone, and its rows did not say so.
#[test]
fn level_2_plays_on_fresh_and_aged_images() {
    if !require(&NEEDS) {
        return;
    }
    const LIFE: &str = "mail:300";
    let states = |line: &str| -> Vec<String> {
        let rows = text(&format!("--level 2 --load untar --image 1k --ops 10 --json {line}"));
        let rows = rows.lines().map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap());
        rows.map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(states("--every 2"), ["fresh"; 2]);
    assert_eq!(states(&format!("--every 2 --aged {LIFE}")), ["fresh", "fresh", LIFE, LIFE]);
    assert_eq!(states("--every 4 --aged 20"), ["20 operations"]);
    for form in ["", " --markdown"] {
        let line = format!("--level 2 --load untar --image 1k --ops 10 --every 4 --aged {LIFE}{form}");
        let table = text(&line).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(table.contains(&format!("beside images aged by {LIFE}")), "{table}");
        assert!(table.contains("where neither title nor column names a life, images are fresh"), "{table}");
    }
}

/// Once, all tables were Markdown, whatever their width.
#[test]
fn tables_fit_the_line_and_markdown_is_asked_for() {
    if !require(&NEEDS) {
        return;
    }
    for line in [
        "--level 1 --load untar --image 1k --ops 10",
        "--level 2 --load untar --image 1k --ops 10",
        "--make untar --ops 20 --mib 64",
    ] {
        let drawn = text(line);
        let widest = drawn
            .lines()
            .filter(|line| line.starts_with(['│', '┌', '└', '╞']))
            .map(|line| line.chars().count())
            .max();
        assert!((60..=90).contains(&widest.unwrap()) || line.starts_with("--make"), "{widest:?}: {drawn}");
        assert!(!drawn.contains("|---"), "{drawn}");
        let marked = text(&format!("{line} --markdown"));
        assert!(marked.contains("|---") && !marked.contains('│'), "{marked}");
    }
    // A share of zero blocks has no percentage.
    let made = text("--make untar --ops 20 --mib 64 --markdown");
    assert!(made.contains("| tree blocks | 0 | 0 | - |"), "{made}");
}
