//! Wrong usage of `blockyard lab run`, `lab pairs` and `lab agree`: exit code 2, and one line that
//! says what is wrong.

#![allow(clippy::unwrap_used)]

mod support;

use support::{assert_wrong_usage, blockyard, stdout, words};

/// Arguments of `lab run`, and a part of the message that refuses them.
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
    (
        &["yard", "--aged", "vm,mail"],
        "--aged mail: yard runs some cells on images of that life, which would be measured twice",
    ),
    (&["yard", "--aged", "mail:100000"], "--aged mail:100000: yard runs some cells on images of that life"),
    (
        &["e1-patches", "--workers", "128", "--aged", "mail:9"],
        "leaves them 32768, half of the image; give fewer --ops or --workers, or, where the command",
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

/// Once, each level silently ignored the options of the other level. At level 2, `--trace`,
/// `--make` and the table each ignored the options of the other two.
#[test]
fn options_that_agree_would_ignore_are_wrong_usage() {
    const OF_LEVEL_2: &[&str] = &[
        "--mkfs x",
        "--mib 64",
        "--space 9",
        "--mount x",
        "--workers 2",
        "--seeds 1,2",
        "--report",
        "--lazy",
        "--ceiling",
        "--scratch x",
    ];
    const OF_PAIRS: &[&str] =
        &["--start x", "--mkfs x", "--mib 64", "--space 9", "--mount x", "--age x", "--lazy"];
    for (way, told, options) in [
        ("--level 1", "--level 1", OF_LEVEL_2),
        ("--level 1", "--level 1", &["--start x"]),
        ("--replay x", "--replay", OF_LEVEL_2),
        ("--replay x", "--replay", &["--seed 2", "--ops 9", "--every 2"]),
        ("--level 2", "the table of --level 2", OF_PAIRS),
        ("--level 2", "the table of --level 2", &["--replay x"]),
        ("--make untar", "--make", &["--summary"]),
        ("--trace x", "--trace", &["--summary", "--ops 9", "--space 9", "--workers 2"]),
    ] {
        for option in options {
            let line = format!("lab agree {way} {option}");
            let name = words(option)[0];
            let part = format!("blockyard: {told} would ignore {name}; leave it out");
            assert_wrong_usage(&words(&line), &part);
        }
    }
    assert_wrong_usage(
        &words("lab agree --report --lazy"),
        "--level 1 would ignore --report, --lazy; leave them out",
    );
    assert_wrong_usage(
        &words("lab agree --level 2 --seeds 1,2 --seed 3"),
        "'--seeds <SEEDS>' cannot be used with '--seed <SEED>'",
    );
}
