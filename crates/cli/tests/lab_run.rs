//! `blockyard lab run` and `lab report` as commands: the keys of rows, what options change, and the
//! answers to bad input.
//!
//! A refusal has its exit code, and one line that says what is wrong, where, and what to do. It
//! leaves the image unchanged.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The arguments of a small run with two workers and a few operations, and `more`.
fn run_with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let run = words("lab run fallocate2 --memory 256M --workers 2 --ops 40 --policy yard");
    [run.as_slice(), more].concat()
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// An image that `blockyard mkfs` made.
fn image(folder: &Path, size: &str) -> String {
    let path = folder.join("image").to_str().unwrap().to_owned();
    let output = blockyard(&["mkfs", &path, size, "--seed", "1", "--time", "1700000000", "--quiet"]);
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

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

/// The run varies each constant of both machines by half and double, for the base and the patched
/// arm. It also varies other assumptions.
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

/// On a terminal (made by `script`) a run of more than a second shows its progress. --quiet and a
/// pipe show none.
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

/// Arguments of `lab run`, and a part of what is said about them.
const WRONG_USAGE: &[(&[&str], &str)] = &[
    (&["nothing"], "workload \"nothing\" is unknown: use fallocate2, scanswitch, append64"),
    (&["append64:fallocate=none"], "is unknown"),
    (
        &["fallocate2", "--policy", "linux-9"],
        "--policy linux-9 (see blockyard policy list): no policy \"linux-9\"",
    ),
    (&["fallocate2", "--policy", "yard:slots"], "\"slots\" is not slot=value"),
    (&["fallocate2", "--policy", "yard:slots=9"], "slot slots has no filling \"9\"; known: one, hashed"),
    (&["fallocate2", "--policy", "linux-6.18:visit=choose"], "impossible combination"),
    (&["fallocate2", "--policy", "yard,ext3"], "policy ext3 serves no image with extent"),
    (&["e2", "--policy", "yard,ext3"], "policy ext3 serves no image with extent"),
    (&["e3", "--policy", "ext3"], "without: policy ext3 serves no image with extent"),
    (&["e4", "--policy", "ext3"], "--policy ext3: e4 runs it on ext4 as of 2009"),
    (&["copy", "--scale", "0.01", "--policy", "yard,ext3"], "policy ext3 serves no image with extent"),
    (&["fallocate2", "--policy", "yard,yard"], "--policy: yard twice"),
    (&["copy", "--scale", "0.01", "--policy", "yard,yard"], "--policy: yard twice"),
    (&["fallocate2", "--workers", "1,2,1"], "--workers: 1 twice"),
    (&["fallocate2", "--aged", "mail:100,mail:100"], "--aged: mail:100 twice"),
    (&["e3", "--aged", "mail:100,mail:100"], "--aged: mail:100 twice"),
    (&["yard", "--aged", "vm,mail"], "--aged mail: yard runs on images of that life anyway"),
    (
        &["e1-patches", "--workers", "128", "--aged", "mail:9"],
        "before a commit, and --aged leaves them 32768, half of the image; give fewer --ops or --workers",
    ),
    (&["fallocate2", "--workers", "0"], "from 1 up"),
    (&["fallocate2", "--workers", "9999"], "at most 4096"),
    (&["fallocate2", "--cpus", "0"], "from 1 up"),
    (&["fallocate2", "--repeat", "0"], "--repeat"),
    (&["fallocate2", "--scale", "0"], "--scale 0: give a factor above 0"),
    (&["fallocate2", "--scale", "NaN"], "--scale NaN"),
    (&["fallocate2", "--seconds", "-1"], "--seconds"),
    (&["fallocate2", "--seconds", "inf"], "--seconds inf"),
    (&["fallocate2", "--ops", "0"], "--ops 0"),
    (&["fallocate2", "--interleave", "chaos"], "use threads, lockstep, overlap or virtual"),
    (&["fallocate2", "--interleave", "overlap", "--seconds", "1"], "counted by --ops"),
    (&["fallocate2", "--interleave", "virtual", "--mkfs", "-b 1024"], "--mkfs: only for other ways"),
    (&["fallocate2", "--interleave", "virtual", "--image-in", "tmpfs"], "--image-in: only for other"),
    (&["fallocate2", "--interleave", "virtual", "--fsync-end"], "--fsync-end: only for other ways"),
    (&["fallocate2", "--interleave", "virtual", "--dirty-limit", "2M"], "--dirty-limit: only for other"),
    (&["fallocate2", "--interleave", "virtual", "--repeat", "2"], "--repeat: only for other ways"),
    (&["fallocate2", "--interleave", "virtual", "--machine", "nope"], "nope: neither a file nor a machine ("),
    (&["fallocate2", "--machine", "kunpeng-920"], "--machine: only for --interleave virtual"),
    (
        &["fallocate2", "--aged", "vm", "--keep-requests", "x", "--device", "hdd", "--policy", "yard"],
        "leave out --aged",
    ),
    (
        &["fallocate2", "--keep-operations", "x", "--device", "hdd", "--workers", "1,2", "--policy", "yard"],
        "--keep-operations: one cell only",
    ),
    (&["seqwrite", "--device", "hdd", "--seconds", "1"], "--seconds does not fit --device hdd: "),
    (&["fallocate2", "--memory", "12X"], "use K, M, G or T"),
    (&["fallocate2", "--memory", "1P"], "use K, M, G or T"),
    (&["fallocate2", "--memory", "99999999T"], "sizes go to 16T"),
    (&["fallocate2", "--memory", "1M"], "--memory"),
    (&["append64", "--memory", "1G"], "too small"),
    (&["fallocate2", "--mkfs", "-b 17"], "--mkfs"),
    (&["fallocate2", "--mkfs", "--frobnicate"], "unexpected argument '--frobnicate'"),
    (&["fallocate2", "--mkfs", "-O quota"], "quota"),
    (
        &["append64", "--mkfs", "-t ext3"],
        "append64 allocates by fallocate, which needs the feature extent (ext4)",
    ),
    (&["fallocate2", "--mkfs", "-O ^has_journal", "--journal"], "--journal needs the feature has_journal"),
    (&["fallocate2", "--mkfs", "64M"], "leave size, -F, -n and -d out"),
    (&["e1", "--interleave", "overlap"], "e1 would ignore --interleave; leave it out"),
    (&["e2", "--sensitivity"], "e2 would ignore --sensitivity"),
    (
        &["e1", "--sensitivity", "--scale", "0.1"],
        "--scale: e1 --sensitivity runs fallocate2 only, whose files of 1 MiB are never scaled",
    ),
    (&["e1", "--sensitivity", "--workers", "2,4"], "--workers: e1 --sensitivity compares machines with one"),
    (&["copy", "--workers", "2", "--fsync-end"], "copy would ignore --workers, --fsync-end; leave them out"),
    (&["fallocate2", "--tree", "/"], "fallocate2 would ignore --tree"),
    (&["copy", "--copies", "0"], "--copies"),
    (&["e1-patches", "--repeat", "2", "--memory", "1G"], "e1-patches would ignore --memory, --repeat"),
    (&["e1", "--device", "hdd"], "e1 would ignore --device"),
    (&["e2", "--device", "ssd", "--seconds", "1"], "e2 --device would ignore --seconds"),
    (&["e3", "--workers", "2"], "e3 would ignore --workers"),
    (&["e3", "--policy", "yard,linux-6.18"], "--policy: e3 takes one"),
    (&["e4", "--ops", "2"], "e4 would ignore --ops"),
    (&["e4", "--scale", "2"], "for e4 give a factor from 0.005"),
    (&["e3", "--scale", "0.001"], "for e3 give a factor from 0.005"),
    (&["copy", "--tree", "/nonexistent-tree"], "/nonexistent-tree"),
    (&["copy", "--tree", "/", "--scale", "0.5"], "--scale: only for a made-up tree"),
    (&["fallocate2", "--ops", "5", "--seconds", "1"], "cannot be used with '--seconds <SECONDS>'"),
    (&["fallocate2", "--in-place"], "not provided: --image <IMAGE>"),
    (&["fallocate2", "--image", "x", "--memory", "1G"], "cannot be used with"),
    (&["fallocate2", "--image", "x", "--mkfs", "-b 1024"], "cannot be used with"),
    (&["fallocate2", "--beside", "windows"], "[possible values: kernel]"),
    (&["fallocate2", "--journal=maybe"], "[possible values: off, on]"),
    (&["fallocate2", "--workers", "two"], "invalid value 'two' for '--workers"),
    (&["fallocate2", "--repeat", "-1"], "'-1'"),
    (&[], "required arguments were not provided: <WORKLOAD>"),
];

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (arguments, part) in WRONG_USAGE {
        assert_wrong_usage(&[&["lab", "run"], *arguments].concat(), part);
    }
}

fn assert_wrong_usage(command: &[&str], part: &str) {
    let output = blockyard(command);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
    assert!(text.contains(part), "{command:?}: {text}");
    assert!(text.starts_with("blockyard: ") && text.lines().count() == 1, "{command:?}: {text}");
    assert_eq!(stdout(&output), "", "{command:?}");
}

#[test]
fn wrong_usage_of_pairs_is_one_line_and_exit_code_2() {
    for (line, part) in [
        ("--workers 0", "--workers takes numbers from 1 up"),
        ("--workers 65", "at most 64 threads"),
        ("--workers 1,1", "--workers: 1 twice"),
        ("--policy linux-9", "no policy"),
        ("--seconds 0", "--seconds 0: give a time above 0"),
        ("--seconds -1", "--seconds -1"),
        ("--cpus 2", "--cpus: only for --interleave virtual"),
        ("--machine amd-9654-x2", "--machine: only for --interleave virtual"),
        ("--pairs 1000", "--pairs: only for --interleave virtual"),
        ("--interleave virtual --seconds 1", "--seconds: only for --interleave threads"),
        ("--interleave virtual --pairs 0", "--pairs takes numbers from 1 to 1000000000"),
        ("--interleave virtual --cpus 0", "--cpus takes numbers from 1 to 1024"),
        ("--interleave virtual --cpus 1025 --workers 2", "--cpus takes numbers from 1 to 1024"),
        ("--interleave virtual --machine /nonexistent", "/nonexistent"),
    ] {
        assert_wrong_usage(&words(&format!("lab pairs --json {line}")), part);
    }
    let taken = "lab pairs --json --policy yard --workers 4 --interleave virtual --cpus 2 --pairs 50";
    let row: serde_json::Value = serde_json::from_str(&stdout(&blockyard(&words(taken)))).unwrap();
    assert_eq!((row["threads"].as_u64(), row["pairs"].as_u64()), (Some(4), Some(200)));
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
fn bad_images_are_one_line_and_stay_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(image(folder.path(), "16M")).unwrap();
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("empty", Vec::new(), ""),
        ("noise", vec![0x5A; 1 << 20], ""),
        ("cut", good[..good.len() / 2].to_vec(), "cut short"),
        ("small", good.clone(), "too small"),
        ("text", b"not an image\n".to_vec(), ""),
    ];
    for (name, bytes, part) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let path = path.to_str().unwrap();
        for in_place in [false, true] {
            let mut arguments = vec![
                "lab",
                "run",
                "append64",
                "--scale",
                "0.1",
                "--workers",
                "1",
                "--policy",
                "yard",
                "--image",
                path,
            ];
            arguments.extend(in_place.then_some("--in-place"));
            let output = blockyard(&arguments);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(8), "{name}: {text}");
            assert!(text.contains(path) && text.contains(part), "{name}: {text}");
            assert_eq!(text.trim_end().lines().count(), 1, "{name}: {text}");
            assert_eq!(&std::fs::read(path).unwrap(), bytes, "{name} was changed");
        }
    }
    let missing = folder.path().join("missing");
    let output = blockyard(&run_image(missing.to_str().unwrap(), &[]));
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("missing") && !missing.exists(), "{}", stderr(&output));
    let folder_as_image = blockyard(&run_image(folder.path().to_str().unwrap(), &[]));
    assert_eq!(folder_as_image.status.code(), Some(8));
    assert!(stderr(&folder_as_image).contains("is a directory; an image"));
    let file_as_folder = blockyard(&run_with(&["--out", folder.path().join("noise").to_str().unwrap()]));
    assert_eq!(file_as_folder.status.code(), Some(8));
    assert!(stderr(&file_as_folder).contains("noise: not a folder"), "{}", stderr(&file_as_folder));
}

fn run_image<'a>(path: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = words("lab run fallocate2 --workers 1 --ops 20 --policy yard --image");
    [run.as_slice(), &[path], more].concat()
}

/// Runs as a user who may not read or write the image. Needs root, to become that user.
#[test]
fn without_permission_nothing_runs() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !blockyard_testkit::require(&["root"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(folder.path(), 0o755);
    let path = image(folder.path(), "16M");
    // The other user must be able to reach the program too.
    let program = folder.path().join("blockyard");
    // Another process makes the copy. If this one did, a child that another test starts could have
    // the copy open for writing for a moment, and meanwhile the copy could not run.
    assert!(
        Command::new("cp").arg(env!("CARGO_BIN_EXE_blockyard")).arg(&program).status().unwrap().success()
    );
    mode(&program, 0o755);
    // The program also needs a folder for temporary files. The machine's own may be closed to that
    // user.
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    mode(&temporary, 0o1777);
    let as_nobody = |arguments: &[&str]| {
        Command::new(&program)
            .args(arguments)
            .env("TMPDIR", &temporary)
            .uid(65_534)
            .gid(65_534)
            .current_dir("/")
            .output()
            .unwrap()
    };
    mode(Path::new(&path), 0o600);
    let output = as_nobody(&run_image(&path, &[]));
    assert_eq!(output.status.code(), Some(8));
    assert!(
        stderr(&output).contains(&path) && stderr(&output).contains("ermission denied"),
        "{}",
        stderr(&output)
    );
    // Read permission is enough for an overlay, but not for --in-place.
    mode(Path::new(&path), 0o444);
    let before = std::fs::read(&path).unwrap();
    let output = as_nobody(&run_image(&path, &[]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(as_nobody(&run_image(&path, &["--in-place"])).status.code(), Some(8));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let output = as_nobody(&run_image(&path, &["--out", "/proc/nowhere"]));
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("--out /proc/nowhere: cannot be written"), "{}", stderr(&output));
    let keep = words("lab crash --workload names --states 1 --ours-only --keep /proc/nowhere");
    let output = as_nobody(&keep);
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("--keep /proc/nowhere: cannot be written"), "{}", stderr(&output));
    let output = as_nobody(&run_with(&["--beside", "kernel"]));
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("--beside kernel: needs root"), "{}", stderr(&output));
}

#[test]
fn an_image_is_read_only_unless_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "16M");
    let before = std::fs::read(&path).unwrap();
    let output = blockyard(&run_image(&path, &["--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let two_cells = blockyard(&run_image(&path, &["--in-place", "--repeat", "2"]));
    assert_eq!(two_cells.status.code(), Some(2));
    assert!(stderr(&two_cells).contains("one cell only"), "{}", stderr(&two_cells));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(blockyard(&run_image(&path, &["--in-place", "--quiet"])).status.code(), Some(0));
    let listing = stdout(&blockyard(&["ls", "-l", &path]));
    assert!(listing.contains("1048576") && listing.contains("fallocate2.0.0"), "{listing}");
    assert_eq!(blockyard(&["check", "-n", &path]).status.code(), Some(0));
    // Now the file exists, so a second run makes another one. In this way an image ages run by run.
    assert_eq!(blockyard(&run_image(&path, &["--in-place", "--quiet"])).status.code(), Some(0));
    assert_eq!(stdout(&blockyard(&["ls", &path])), "fallocate2.0.0\nfallocate2.0.1\nlost+found\n");
    assert_eq!(blockyard(&["check", "-n", &path]).status.code(), Some(0));
}

/// An unusable image is reported before anything runs.
#[test]
fn what_an_image_does_not_allow_is_said_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, options: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let mkfs = [words("--quiet mkfs -b 4096"), words(options), vec![&path, "64M"]].concat();
        assert!(blockyard(&mkfs).status.success());
        path
    };
    let path = make("marked", "-O ^metadata_csum");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // s_state: not clean, with errors.
    std::os::unix::fs::FileExt::write_all_at(&file, &[2], 1024 + 0x3A).unwrap();
    let marked = blockyard(&run_image(&path, &[]));
    assert_eq!(marked.status.code(), Some(8));
    let text = stderr(&marked);
    assert!(
        text.starts_with(&format!("blockyard: {path}: the file system is marked as having errors")),
        "{text}"
    );
    let old = make("ext3", "-t ext3");
    let text = stderr(&blockyard(&run_image(&old, &[])));
    assert!(
        text.contains(&format!("{old}: fallocate2 allocates by fallocate, which needs the feature extent")),
        "{text}"
    );
    // Like fio, seqwrite continues where it cannot preallocate.
    let run = words("lab run seqwrite --workers 1 --ops 20 --scale 0.001 --policy yard --json --image");
    let output = blockyard(&[run.as_slice(), &[&old]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Names that are not UTF-8 are accepted. The report shows them so that the command can be typed
/// again.
#[test]
fn folders_and_images_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let [source, out] =
        [&b"\xFF.img"[..], b"\xFE\n"].map(|name| folder.path().join(std::ffi::OsStr::from_bytes(name)));
    std::fs::rename(image(folder.path(), "16M"), &source).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(words("lab run fallocate2 --workers 1 --ops 20 --policy yard --image"))
        .args([source.as_os_str(), "--out".as_ref(), out.as_os_str()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains(r"\xff.img' --out $'") && report.contains(r"\xfe\n'"), "{report}");
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

/// Fresh and aged images are columns of one table. Each row names the state of its image.
#[test]
fn aged_images_stand_beside_fresh_ones() {
    let aged = ["--interleave", "lockstep", "--aged", "mail:300,build:200:60%"];
    let output = blockyard(&run_with(&aged));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("mail:300") && text.contains("build:200:60%"), "{text}");
    assert!(text.contains("where neither title nor column names a life, images are fresh"), "{text}");
    let rows = stdout(&blockyard(&run_with(&[&aged[..], &["--json"]].concat())));
    let states: Vec<String> = rows
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["state"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(states, ["fresh", "mail:300", "build:200:60%"]);
    for (life, part) in
        [("male", "mail, build, phone, vm, database"), ("mail:0", "neither a number of operations")]
    {
        let refused = blockyard(&run_with(&["--aged", life]));
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(part), "{}", stderr(&refused));
    }
}

/// Virtual time, and with it e1-patches, refused `--aged`, because it had no image to age.
#[test]
fn virtual_time_has_aged_file_systems_too() {
    let rows = |line: &[&str]| -> Vec<serde_json::Value> {
        let output = blockyard(line);
        assert_eq!(output.status.code(), Some(0), "{line:?}: {}", stderr(&output));
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let aged = run_with(&["--interleave", "virtual", "--aged", "mail:300", "--json"]);
    let alone = rows(&aged);
    let states: Vec<&str> = alone.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["fresh", "mail:300"]);
    assert!(alone[1]["free_extents"].as_u64() > alone[0]["free_extents"].as_u64(), "{alone:?}");
    assert_eq!(alone, rows(&aged), "it repeats to the byte");
    let line = "lab run e1-patches --workers 1 --ops 5 --aged mail:9 --policy rralloc-v2 --json";
    let patches = rows(&words(line));
    let of = |state: &str| patches.iter().filter(|row| row["state"] == state).count();
    // The base, the whole and 28 others, and the one that was asked for; four of scanswitch; nine
    // steps under two scans on two machines.
    assert_eq!((of("fresh"), of("mail:9")), (31 + 4 + 36, 31 + 4 + 36));
    assert_eq!(patches.len(), 2 * 71);
}

/// Ageing reports what was done, and leaves an image in which `check` finds nothing.
#[test]
fn a_life_is_lived_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("aged").to_str().unwrap().to_owned();
    let command = ["lab", "age", "phone:800", &path, "--size", "2G", "--json"];
    let output = blockyard(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let row: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((row["operations"].as_u64(), row["life"].as_str()), (Some(800), Some("phone:800")));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 << 30);
    assert!(stderr(&blockyard(&command)).contains("is there already"));
    let nowhere = folder.path().join("none/aged").to_str().unwrap().to_owned();
    let refused = blockyard(&["lab", "age", "phone:800", &nowhere, "--size", "2G"]);
    assert!(stderr(&refused).contains("there is no folder"), "{}", stderr(&refused));
    let checked = blockyard(&["check", "-n", &path]);
    assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
    let shown = stdout(&blockyard(&["lab", "age", "vm", "--show"]));
    assert!(shown.contains("\"sparse\""), "{shown}");
}

/// What each operation read and how long it took adds up to the row.
#[test]
fn operations_on_a_modelled_device_are_kept_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("operations").to_str().unwrap().to_owned();
    let mut arguments = words("lab run churn --memory 1G --workers 3 --ops 200 --policy yard --json");
    arguments.extend(words("--device hdd --cache 64K --keep-operations"));
    arguments.push(&kept);
    let output = blockyard(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let row: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let text = std::fs::read_to_string(&kept).unwrap();
    let operations: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(row["ops"].as_u64().unwrap(), u64::try_from(operations.len()).unwrap());
    let mut most = vec![0; operations.len()];
    for kind in ["bitmap", "descriptor", "inode_table", "map", "directory"] {
        let reads: Vec<u64> = operations.iter().map(|one| one[kind].as_u64().unwrap()).collect();
        assert_eq!(Some(reads.iter().sum()), row["meta_reads"][kind].as_u64(), "{kind}");
        most.iter_mut().zip(reads).for_each(|(sum, reads)| *sum += reads);
    }
    assert!(most.iter().max().copied() == row["meta_reads_max"].as_u64() && row["meta_reads_max"] != 0);
    let us = |key: &str| operations.iter().map(|one| one[key].as_f64().unwrap()).collect::<Vec<_>>();
    assert!(
        us("began_us").is_sorted() && us("waited_us").iter().zip(us("us")).all(|(wait, all)| *wait < all)
    );
    let longest = us("us").into_iter().fold(0.0, f64::max);
    assert!((longest / row["lat_us_max"].as_f64().unwrap() - 1.0).abs() < 0.01, "{longest}");
}

/// Times are those of the model. Requests can be recorded and replayed on another model. A second
/// run prints the same.
#[test]
fn workloads_run_on_modelled_devices() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("requests").to_str().unwrap().to_owned();
    let mut arguments =
        words("lab run smallfiles:fallocate=none --memory 256M --scale 0.01 --workers 2 --ops 2000");
    arguments.extend(words("--policy yard --json --device ftl --fsync-end --keep-requests"));
    arguments.push(&trace);
    let output = blockyard(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let first = std::fs::read(&trace).unwrap();
    let again = blockyard(&arguments);
    assert!(again.status.code() == Some(8) && stderr(&again).contains("is there already"));
    assert_eq!(std::fs::read(&trace).unwrap(), first, "nothing is written over");
    std::fs::remove_file(&trace).unwrap();
    assert_eq!(stdout(&output), stdout(&blockyard(&arguments)));
    let row: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let help = stdout(&blockyard(&["lab", "run", "--help"]));
    for key in row.as_object().unwrap().keys() {
        assert!(help.contains(key.as_str()), "{key} is not documented");
    }
    assert_eq!(
        (row["device"].as_str(), row["job"].as_str()),
        (Some("ftl"), Some("smallfiles:fallocate=none"))
    );
    assert_eq!(
        (row["interleave"].as_str(), row["write_amplification"].as_f64()),
        (Some("lockstep"), Some(1.0))
    );
    // A link with 560 MB a second takes 0.028 s for 16 MB.
    assert!(row["seconds"].as_f64().unwrap() > 0.028, "{row}");
    let played = blockyard(&["lab", "device", "replay", &trace, "--on", "hdd", "--on", "ssd", "--json"]);
    assert_eq!(played.status.code(), Some(0), "{}", stderr(&played));
    let lines = stdout(&played);
    let played: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&played[0]["device"], &played[1]["device"]), (&"hdd".into(), &"ssd".into()));
    assert!(played[0]["seconds"].as_f64() > played[1]["seconds"].as_f64(), "{lines}");
    let of_file = std::fs::read_to_string(&trace).unwrap();
    assert!(of_file.lines().any(|line| line.starts_with("write ")), "{of_file}");
    let beyond = blockyard(&["lab", "device", "replay", &trace, "--on", "ssd", "--size", "1M"]);
    assert!(stderr(&beyond).contains("ends above the --size, 1048576 bytes"), "{}", stderr(&beyond));
    std::fs::write(&trace, "read 17592186044416 1\n").unwrap();
    let beyond = blockyard(&["lab", "device", "replay", &trace, "--on", "ssd"]);
    assert!(stderr(&beyond).contains("line 1: ends above the largest device"), "{}", stderr(&beyond));
    std::fs::write(&trace, "").unwrap();
    let nothing = stdout(&blockyard(&["lab", "device", "replay", &trace, "--on", "ssd"]));
    assert!(nothing.contains("0 requests in 0.000000 s (- a second)"), "{nothing}");
    std::fs::write(&trace, "write 1\n").unwrap();
    let refused = blockyard(&["lab", "device", "replay", &trace, "--on", "hdd"]);
    assert!(!refused.status.success() && stderr(&refused).contains("line 1"), "{}", stderr(&refused));
}

#[test]
fn modelled_machines_are_listed_and_shown() {
    let list = stdout(&blockyard(&words("lab machine list")));
    assert_eq!(list.lines().count(), 2, "{list}");
    for line in stdout(&blockyard(&words("lab machine list --json"))).lines() {
        let listed: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = listed["name"].as_str().unwrap();
        assert!(list.contains(name) && listed["cpus"].as_u64() > Some(1), "{line}");
        let (text, object) = (["lab", "machine", "show", name], ["lab", "machine", "show", name, "--json"]);
        let (text, object) = (stdout(&blockyard(&text)), stdout(&blockyard(&object)));
        assert!(text.lines().count() > 10 && object.lines().count() == 1, "{name}: {object}");
        let [text, object] =
            [&text, &object].map(|one| serde_json::from_str::<serde_json::Value>(one).unwrap());
        assert_eq!((&text, &object["name"]), (&object, &listed["name"]));
    }
    assert_wrong_usage(&words("lab machine show nope"), "nope: neither a file nor a machine (kunpeng-920, ");
}

#[test]
fn models_of_devices_are_listed_and_shown() {
    let list = stdout(&blockyard(&["lab", "device", "list"]));
    assert_eq!(list.lines().count(), 6);
    for line in list.lines() {
        // A model without a short name has a dash, so that no line ends early.
        assert_eq!(line.split_whitespace().count(), 2, "{line:?}");
        for name in line.split_whitespace().filter(|name| *name != "-") {
            let text = stdout(&blockyard(&["lab", "device", "show", name]));
            assert!(text.contains("# Source") && text.contains("model = "), "{name}: {text}");
        }
    }
    let unknown = blockyard(&["lab", "run", "smallfiles", "--device", "floppy"]);
    assert!(
        unknown.status.code() == Some(2) && stderr(&unknown).contains("hdd, ssd, ftl"),
        "{}",
        stderr(&unknown)
    );
    for (line, part) in [
        ("lab run smallfiles --device hdd,ssd --ops 1", "takes one"),
        ("lab run smallfiles --device hdd --seconds 1", "--seconds"),
        ("lab run smallfiles --device hdd --ops 1 --interleave overlap", "every --interleave but lockstep"),
        ("lab run copy --device hdd", "--device"),
        ("lab run e2 --device ssd,ssd", "--device: ssd twice"),
        ("lab run smallfiles --cache 1M --ops 1", "--device"),
        ("lab run smallfiles --device ssd --cache 1K --ops 1", "--cache 1K: give 64K or more"),
        ("lab run e3 --policy ext3", "--policy ext3: e3 makes ext4 of today"),
        ("lab run e4 --policy ext3", "ext3 is a column of every run"),
        ("lab run smallfiles --policy linux-6.18:debt=on", "debt=on changes nothing"),
        ("lab agree --level 1 --aged 500", "--age, --aged with a number: only for --level 2"),
        ("lab census --policy yard,linux-9", "--policy linux-9 (see blockyard policy list)"),
        ("lab agree --age x", "--age, --aged with a number: only for --level 2"),
        ("lab agree --replay x --aged phone:500", "--aged: only for new recordings"),
        ("lab agree --image indirect --aged database:9", "database:9 preallocates files"),
        ("lab agree --image nope", "image kind \"nope\" is unknown"),
        ("lab agree --level 2 --image nope", "image kind `nope` is unknown"),
    ] {
        let output = blockyard(&words(line));
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
}
