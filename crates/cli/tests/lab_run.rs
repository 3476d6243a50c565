//! `blockyard lab run`, `lab pairs` and `lab report` as commands: the keys of rows, what options
//! change, notes, tables, progress and reports.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::Command;

use support::{blockyard, run_with, stderr, stdout, words};

/// The keys of a row without a device or machine.
const KEYS: &[&str] = &[
    "workload",
    "policy",
    "state",
    "workers",
    "cpus",
    "interleave",
    "seed",
    "ops",
    "seconds",
    "ops_per_s",
    "ops_per_s_per_worker",
    "bw_mib_s",
    "lat_us_mean",
    "lat_us_p50",
    "lat_us_p99",
    "lat_us_p9999",
    "lat_us_max",
    "extents_per_file",
    "mean_extent_kb",
    "free_extents",
    "avg_free_extent_kb",
    "free_by_length",
    "groups_touched",
    "lock_acquisitions",
    "lock_waits",
    "groups_skipped_busy",
    "goal_hits",
    "stream_goal_hits",
    "index_entries",
    "hits",
    "score",
    "read_file_hdd_ms",
    "read_directory_hdd_ms",
    "read_tree_hdd_ms",
    "read_file_ssd_ms",
    "read_directory_ssd_ms",
    "read_tree_ssd_ms",
    "directory_runs",
];

fn keys(object: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn rows_have_exactly_the_documented_keys() {
    let output = blockyard(&run_with(&["--json", "--repeat", "2", "--interleave", "lockstep"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let mut expected = KEYS.to_vec();
    expected.sort_unstable();
    let lines = stdout(&output);
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(keys(&row), expected);
        assert_eq!(keys(&row["hits"]), ["any_free", "best_avail", "goal_fast", "goal_slow", "p2_aligned"]);
        assert_eq!((row["ops"].as_u64(), row["workers"].as_u64()), (Some(80), Some(2)));
        assert_eq!(row["ops_per_s_per_worker"].as_f64().unwrap() * 2.0, row["ops_per_s"].as_f64().unwrap());
        assert!(row["hits"].as_object().unwrap().values().any(|hits| hits.as_u64() > Some(0)), "{row}");
        assert!(row["score"].is_number() && row["read_tree_hdd_ms"].is_number());
        let free = row["free_by_length"].as_array().unwrap();
        assert_eq!(keys(&free[0]), ["extents", "from_kb", "share_from"]);
        let extents = free.iter().map(|length| length["extents"].as_u64().unwrap());
        assert_eq!(Some(extents.sum::<u64>()), row["free_extents"].as_u64());
    }
    let help = stdout(&blockyard(&["lab", "run", "--help"]));
    for key in KEYS {
        assert!(help.contains(key), "{key} is not documented");
    }
}

#[test]
fn rows_in_virtual_time_tell_the_machine_and_its_waits() {
    let virtual_time = ["--interleave", "virtual", "--json"];
    let output = blockyard(&run_with(&virtual_time));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let row: serde_json::Value = serde_json::from_str(stdout(&output).trim()).unwrap();
    let mut expected = [KEYS, &["machine", "waits"]].concat();
    expected.sort_unstable();
    assert_eq!(keys(&row), expected);
    let of_waits = ["moved", "moved_ns", "name", "section_ns", "taken", "wait_ns", "waits"];
    assert_eq!(keys(&row["waits"][0]), of_waits);
    let help = stdout(&blockyard(&["lab", "run", "--help"]));
    let told = "machine, waits (by name of locks or lines: name, taken, waits, wait_ns, section_ns";
    assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(told), "{help}");
}

/// The waits were once in the JSON rows only.
#[test]
fn waits_in_virtual_time_have_a_table_and_a_part_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = blockyard(&run_with(&["--interleave", "virtual", "--force", "--out", out]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let title = "where time goes, microseconds an operation";
    assert!(stdout(&output).contains(title), "{}", stdout(&output));
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(file("report.md").contains(title) && file("report.md").contains("journal handles"));
    let csv = file("rows.csv");
    assert!(csv.contains("workload,policy,machine,workers,line,taken,waits"), "{csv}");
    assert!(csv.contains("fallocate2,yard,kunpeng-920,2,journal handles,"), "{csv}");
}

#[test]
fn a_note_tells_of_a_machine_that_is_not_calibrated_for_append64() {
    for (machine, is_told) in [("amd-9654-x2", true), ("kunpeng-920", false)] {
        let line =
            "lab run append64 --interleave virtual --scale 0.001 --workers 2 --policy yard --json --machine";
        let output = blockyard(&[&words(line)[..], &[machine]].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(text.contains("note: append64 on amd-9654-x2: the machine has no"), is_told, "{text}");
    }
}

#[test]
fn a_note_tells_of_an_image_too_small_for_scanswitch() {
    for (size, is_told) in [("128M", true), ("256M", false)] {
        let line =
            "lab run scanswitch --interleave lockstep --workers 1 --ops 5 --policy yard --json --memory";
        let output = blockyard(&[&words(line)[..], &[size]].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        let note = "note: scanswitch: the image of 128 MiB is too small";
        assert_eq!(text.contains(note), is_told, "{text}");
    }
}

/// With `--sensitivity`, the run halves and doubles each constant of the machines, and varies other
/// assumptions, too. The output names constants and assumptions.
#[test]
fn e1_varies_the_constants_of_the_machines() {
    let output = blockyard(&words("lab run e1 --sensitivity --workers 2 --ops 5"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for part in
        ["each constant by half and double", "commit_every_ns", "md lock work_ns", "hit_ps", "kept for 4"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn every_option_changes_the_run_as_it_says() {
    let row = |more: &[&str]| -> serde_json::Value {
        let mut all = run_with(more);
        all.push("--json");
        let output = blockyard(&all);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        serde_json::from_str(stdout(&output).lines().next().unwrap()).unwrap()
    };
    assert_eq!(row(&[])["cpus"], 2);
    assert_eq!(row(&["--cpus", "7"])["cpus"], 7);
    assert_eq!(row(&["--seed", "99"])["seed"], 99);
    assert_eq!(row(&["--interleave", "overlap"])["interleave"], "overlap");
    assert_eq!(row(&["--journal"])["ops"], 80);
    assert_eq!(row(&["--journal=off,on"])["policy"], "yard, journal off");
    // A smaller block size makes more groups, and so more free runs.
    let small = row(&["--mkfs", "-b 1024 -O ^has_journal"]);
    assert!(small["free_extents"].as_u64() > row(&[])["free_extents"].as_u64(), "{small}");
    let timed = words(
        "lab run fallocate2 --memory 256M --workers 1 --seconds 0.2 --policy yard --interleave threads --json",
    );
    let timed: serde_json::Value = serde_json::from_str(stdout(&blockyard(&timed)).trim()).unwrap();
    assert!((0.2..5.0).contains(&timed["seconds"].as_f64().unwrap()), "{timed}");
    let scaled =
        words("lab run append64 --scale 0.001 --workers 3 --policy yard --interleave threads --json");
    let scaled: serde_json::Value = serde_json::from_str(stdout(&blockyard(&scaled)).trim()).unwrap();
    assert_eq!(scaled["ops"], 3 * 263);
    let quiet = blockyard(&run_with(&["--quiet"]));
    assert_eq!((stdout(&quiet).as_str(), stderr(&quiet).as_str()), ("", ""));
}

#[test]
fn the_printed_tables_end_with_the_judges_and_the_seed() {
    let text = stdout(&blockyard(&run_with(&["--seed", "5"])));
    for part in
        ["operations a second", "p99.99", "extents/file", "yard", "seed 5: all 2 images passed our check"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// On a terminal (made by `script`) a run of more than a second shows its progress. With --quiet,
/// or if standard error is a pipe, nothing is shown.
#[test]
fn progress_shows_on_a_terminal_only() {
    if !blockyard_testkit::require(&["script"]) {
        return;
    }
    let terminal = |line: &str| {
        let line = format!("{} {line}", env!("CARGO_BIN_EXE_blockyard"));
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
        assert!(output.status.success(), "{}", stdout(&output));
        stdout(&output)
    };
    let run = |more: &str| {
        terminal(&format!("lab run fallocate2 --memory 256M --workers 1 --seconds 2.5 --policy yard {more}"))
    };
    let shown = run("");
    assert!(shown.contains("lab run: 1 of 2: fallocate2 yard x 1 (0 %), "), "{shown}");
    assert!(shown.contains("passed our check"), "{shown}");
    assert_eq!(run("--quiet"), "");
    let pairs = terminal("lab pairs --policy yard --workers 1 --seconds 2");
    assert!(pairs.contains("lab pairs: 1 of 1: yard, 1 thread (0 %), "), "{pairs}");
    let piped = blockyard(&words("lab run fallocate2 --memory 256M --workers 1 --seconds 1.5 --policy yard"));
    assert_eq!(stderr(&piped), "");
}

#[test]
fn a_note_tells_of_virtual_cpus_without_workers() {
    for (workers, is_told) in [("2", true), ("9", false), ("12", false)] {
        let line = "lab run fallocate2 --interleave virtual --cpus 9 --ops 1 --policy yard --json --workers";
        let output = blockyard(&[&words(line)[..], &[workers]].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(text.contains("note: --cpus 9: workers run on at most 2 of them"), is_told, "{text}");
    }
}

/// With `--cpus` alone, `lab pairs` once made rows of 1, 2, 8 and 64 threads, whatever the number
/// of CPUs.
#[test]
fn virtual_pairs_fill_the_cpus_that_were_asked_for() {
    let line = "lab pairs --json --policy yard --interleave virtual --cpus 12 --pairs 50";
    let row: serde_json::Value = serde_json::from_str(&stdout(&blockyard(&words(line)))).unwrap();
    assert_eq!((row["threads"].as_u64(), row["pairs"].as_u64()), (Some(12), Some(600)));
}

/// The inodes are enough for the first cell, but not for the second.
#[test]
fn a_cell_that_fails_leaves_the_rows_before_it() {
    let line = "lab run fallocate2 --memory 256M --workers 1,60 --ops 5 --interleave lockstep --policy yard";
    for more in [&["--json"][..], &[]] {
        let output = blockyard(&[&words(line)[..], &["--mkfs", "-b 4096 -N 16"], more].concat());
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(8), "{}", stderr(&output));
        assert!(stderr(&output).contains("fallocate2 yard x 60"), "{}", stderr(&output));
        if more.is_empty() {
            assert!(text.contains("1 worker"), "{text}");
            continue;
        }
        let row: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(row["workers"], 1);
    }
}

#[test]
fn a_report_is_made_again_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    assert_eq!(blockyard(&run_with(&["--out", out, "--quiet", "--mkfs", "-b 4096"])).status.code(), Some(0));
    for name in ["run.json", "rows.jsonl", "report.md", "rows.csv", "report.html"] {
        assert!(Path::new(out).join(name).metadata().unwrap().len() > 100, "{name}");
    }
    let report = |format: &str| {
        let output = blockyard(&["lab", "report", out, "--format", format]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let markdown = report("markdown");
    for part in [
        "- machine: ",
        "- commit",
        "- seed: `1`",
        "- command: `",
        "--ops 40",
        "--mkfs '-b 4096'",
        "| yard | 2 |",
    ] {
        let part = if part == "- commit" { "- blockyard: `" } else { part };
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    assert_eq!(report("jsonl"), std::fs::read_to_string(Path::new(out).join("rows.jsonl")).unwrap());
    let csv = report("csv");
    assert!(
        csv.starts_with("workload,policy,state,workers,cpus,interleave,machine,device,seed,ops,")
            && csv.lines().count() == 3,
        "{csv}"
    );
    assert!(report("terminal").contains("yard"));
    let none = blockyard(&["lab", "report", folder.path().to_str().unwrap()]);
    assert_eq!(none.status.code(), Some(8));
    assert!(stderr(&none).contains("not a run's folder"), "{}", stderr(&none));
    std::fs::write(Path::new(out).join("rows.jsonl"), "{}\n").unwrap();
    let damaged = blockyard(&["lab", "report", out]);
    assert_eq!(damaged.status.code(), Some(8));
    assert!(stderr(&damaged).contains("rows.jsonl line 1: not a row"), "{}", stderr(&damaged));
}

#[test]
fn copy_prints_a_row_a_copy_and_keeps_its_maps() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let run = [
        "lab", "run", "copy", "--scale", "0.003", "--policy", "yard", "--copies", "2", "--json", "--out", out,
    ];
    let output = blockyard(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    let help = stdout(&blockyard(&["lab", "run", "--help"]));
    for key in rows[0].as_object().unwrap().keys() {
        assert!(help.contains(key.as_str()), "{key} is not documented");
    }
    assert!(rows[0]["overlap_previous"].is_null() && rows[1]["overlap_previous"].is_number());
    assert_eq!(rows[1]["files"], 547);
    for name in
        ["copy-yard-before", "copy-yard-after-copy-1", "copy-yard-after-copy-2", "copy-yard-over-time"]
    {
        let svg = std::fs::read_to_string(folder.path().join(format!("maps/{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("fill-opacity"), "{name}");
        assert!(folder.path().join(format!("maps/{name}.txt")).metadata().unwrap().len() > 50, "{name}");
    }
    let text = stdout(&blockyard(&["lab", "report", out]));
    assert!(text.contains("published: rralloc") && text.contains("GiB written"), "{text}");
}
