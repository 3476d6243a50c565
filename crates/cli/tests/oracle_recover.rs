//! `blockyard recover` on a journal that debugfs wrote.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Output};

use blockyard_testkit::{e2fsck_clean, require, run};

fn recover(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("recover").args(arguments).output().unwrap()
}

#[test]
fn recover_looks_then_replays_then_has_nothing_to_do() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let path = image.to_str().unwrap();
    let (script, data) = (directory.path().join("script"), directory.path().join("data"));
    fs::write(&data, [0x11; 8192]).unwrap();
    fs::write(&script, format!("jo -c\njw -b 7000,7001 {}\njw -r 7001\njc\n", data.display())).unwrap();
    assert!(run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", path, "32M"]).status.success());
    assert!(run("debugfs", &["-w", "-f", script.to_str().unwrap(), path]).status.success());

    let before = fs::read(&image).unwrap();
    let output = recover(&["-n", path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let expected = "2 transactions would be replayed: 1 blocks written of 2 logged, 1 revoked by 1 records\n";
    assert_eq!(text, expected);
    assert!(fs::read(&image).unwrap() == before, "-n wrote");

    let output = recover(&["--json", path]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["state"], "needs-replay");
    assert_eq!((json["written"].as_u64(), json["end"].as_u64()), (Some(1), Some(3)));
    e2fsck_clean(&image);
    let output = recover(&[path]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "clean: nothing to replay\n");
}
