//! The folder of a run: rows are written as they are measured, an interrupted run can continue, and
//! a folder that holds a run is replaced only by `--force`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Twelve cells of a quarter of a second each.
const RUN: &str = "lab run fallocate2 --memory 256M --workers 1,2 --policy yard,linux-6.18 --repeat 3 --seconds 0.25 --interleave threads --quiet";

fn command(line: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.args(line.split(' ')).arg("--out").arg(out).args(more);
    command
}

fn run(line: &str, out: &Path, more: &[&str]) -> Output {
    command(line, out, more).output().unwrap()
}

fn lines(out: &Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(out.join(file)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(out: &Path) -> Vec<String> {
    let cells = lines(out, "cells.jsonl");
    cells.iter().skip(1).map(|cell| cell["cell"].as_str().unwrap().to_owned()).collect()
}

fn refused(output: &Output, words: &str) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(8), "{text}");
    assert!(text.contains(words) && text.lines().count() == 1, "{text}");
}

/// Rows were once written only after the whole measurement, so an interrupted long run left
/// nothing.
#[test]
fn a_run_that_was_interrupted_goes_on_with_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut child = command(RUN, &out, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while lines(&out, "rows.jsonl").len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-KILL", &child.id().to_string()]).status().unwrap().success());
    child.wait().unwrap();
    // The cells run in a child of the killed process. The child ends soon afterwards, but not at
    // once.
    std::thread::sleep(Duration::from_millis(500));
    let before = lines(&out, "rows.jsonl");
    assert!((2..12).contains(&before.len()));
    let report =
        Command::new(env!("CARGO_BIN_EXE_blockyard")).args(["lab", "report"]).arg(&out).output().unwrap();
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    // A last cell whose line was cut off is measured again.
    let cells = fs::read(out.join("cells.jsonl")).unwrap();
    fs::write(out.join("cells.jsonl"), &cells[..cells.len() - 5]).unwrap();
    let whole = before.len() - 1;

    refused(&run(RUN, &out, &[]), "--resume goes on with it");
    refused(&run(&RUN.replace("--repeat 3", "--repeat 2"), &out, &["--resume"]), "another plan");
    let resumed = run(RUN, &out, &["--resume"]);
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    let rows = lines(&out, "rows.jsonl");
    assert_eq!(rows.len(), 12);
    assert!(before[..whole].iter().all(|row| rows.contains(row)), "what was there was not measured again");
    let known: BTreeSet<String> = ids(&out).into_iter().collect();
    assert_eq!(known.len(), 12);
    assert!(out.join("report.html").exists());
}

/// The layout that real threads leave depends on chance, but was once shown as an effect of the
/// policy. And an experiment whose scale was too small to show anything once did not say so.
#[test]
fn what_is_chance_or_too_small_is_said() {
    let blockyard = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_blockyard")).args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(&output.stdout), text(&output.stderr))
    };
    let line = "lab run fallocate2 --memory 256M --workers 2 --policy yard --ops 40 --repeat 2";
    let (shown, _) = blockyard(line);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(shown.contains("is chance") && shown.contains("fallocate2, overlap: placement"), "{shown}");
    assert!(!shown.contains("fallocate2, overlap: operations a second"), "{shown}");
    let (rows, _) = blockyard(&format!("{line} --json"));
    let ways: Vec<Value> =
        rows.lines().map(|row| serde_json::from_str::<Value>(row).unwrap()["interleave"].clone()).collect();
    assert_eq!(ways, ["threads", "threads", "overlap"]);
    let (_, note) = blockyard("lab run e3 --scale 0.005 --ops 10");
    assert!(note.contains("note: e3: 40 groups have few bitmaps"), "{note}");
    let (_, note) = blockyard("lab run copy --scale 0.001 --policy yard");
    assert!(note.contains("note: copy:"), "{note}");
}

/// A folder with another run was once overwritten.
#[test]
fn a_folder_that_holds_a_run_is_replaced_by_force_only() {
    const ONE: &str =
        "lab run fallocate2 --memory 256M --workers 1 --policy yard --ops 20 --interleave lockstep --quiet";
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    assert!(run(ONE, &out, &[]).status.success());
    fs::write(out.join("notes"), "mine").unwrap();
    let first = ids(&out);
    let rows = fs::read(out.join("rows.jsonl")).unwrap();
    refused(&run(ONE, &out, &[]), "holds another run");
    assert_eq!(fs::read(out.join("rows.jsonl")).unwrap(), rows);
    assert!(run(ONE, &out, &["--force"]).status.success());
    assert_eq!(ids(&out), first, "all that decides the cell is the same");
    assert_eq!(fs::read(out.join("notes")).unwrap(), b"mine", "only what a run writes goes");
    for other in ["--seed 2", "--rotational on", "--cpus 3", "--mkfs -b1024", "--policy yard:busy=wait"] {
        let other: Vec<&str> = other.split(' ').collect();
        assert!(
            run(&ONE.replace("--policy yard ", ""), &out, &[&other[..], &["--force"]].concat())
                .status
                .success()
        );
        assert_ne!(ids(&out)[0], first[0], "{other:?}");
    }
    let moved =
        fs::read_to_string(out.join("cells.jsonl")).unwrap().replacen("\"machine\":\"", "\"machine\":\"X", 1);
    fs::write(out.join("cells.jsonl"), moved).unwrap();
    let line = ONE.replace("--policy yard ", "");
    refused(&run(&line, &out, &["--policy", "yard:busy=wait", "--resume"]), "of another machine");
}
