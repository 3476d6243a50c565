//! Modelled devices and machines: workloads of `blockyard lab run` on devices, recorded requests,
//! and the lists of `lab device` and `lab machine`. Options of `lab` commands that do not fit a
//! device, an experiment or a level end with exit code 2.

#![allow(clippy::unwrap_used)]

mod support;

use support::{assert_wrong_usage, blockyard, stderr, stdout, words};

/// For each kind of metadata, the reads of all operations add up to the reads of the row. The row's
/// maxima are the most reads and the longest time of one operation.
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
        // A dash stands for a short name that a model does not have, so every line has two words.
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
