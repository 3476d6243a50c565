//! Aged file systems: beside fresh ones in `blockyard lab run --aged`, and as images of `lab age`.

#![allow(clippy::unwrap_used)]

mod support;

use support::{blockyard, run_with, stderr, stdout, words};

/// Fresh and aged images are columns of one table. In JSON, each row names the state of its image.
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

/// Virtual time, and with it e1-patches, once refused `--aged`, because runs in virtual time used
/// no image.
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
    // 31 rows for policies: the base, the whole series, 28 that add or leave out one patch, and the
    // requested policy. 4 rows of scanswitch. 36 rows of patch upon patch: nine steps in two scan
    // modes on two machines.
    assert_eq!((of("fresh"), of("mail:9")), (31 + 4 + 36, 31 + 4 + 36));
    assert_eq!(patches.len(), 2 * 71);
}

/// Ageing reports what was done, and leaves an image that `check` finds clean.
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
