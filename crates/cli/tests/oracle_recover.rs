//! `blockyard recover`: once with a log that debugfs wrote, and once with a journal on a device of
//! its own.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Output};

use blockyard_testkit::crash::{CrashImage, Stop};
use blockyard_testkit::{LoopDevice, e2fsck_clean, mke2fs, require, run};

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
    let expected = "2 transactions would be replayed: 1 block written of 2 logged, 1 revoked by 1 revoke\n";
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

#[test]
fn a_journal_on_its_own_device_must_be_given_and_be_the_right_one() {
    if !require(&["root", "mke2fs", "e2fsck", "losetup", "perl"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let text = |name: &str| file(name).to_str().unwrap().to_owned();
    for name in ["journal", "other"] {
        mke2fs(&file(name), &["-O", "journal_dev", "-b", "1024"], "4M");
    }
    let device = LoopDevice::new(&file("journal"));
    let place = format!("device={}", device.path());
    mke2fs(&file("image"), &["-t", "ext4", "-b", "1024", "-J", &place], "24M");
    drop(device);
    CrashImage {
        image: &file("image"),
        journal: Some(&file("journal")),
        options: "noinit_itable",
        seed: 5,
        operations: 100,
        stop: Stop::CutAfterCommit,
        orphans: false,
    }
    .make_dirty();
    let before = [fs::read(file("image")).unwrap(), fs::read(file("journal")).unwrap()];

    let output = recover(&[&text("image")]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(8) && message.contains("external device (UUID "), "{message}");
    let output = recover(&["-j", &text("other"), &text("image")]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(8) && message.contains("its UUID is not the one in the superblock"),
        "{message}"
    );
    let output = recover(&["-n", "--json", "-j", &text("journal"), &text("image")]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["state"], &json["source"]), (&"needs-replay".into(), &"external".into()));
    assert!(json["transactions"].as_u64().unwrap() > 0);
    assert!(
        [fs::read(file("image")).unwrap(), fs::read(file("journal")).unwrap()] == before,
        "nothing is written"
    );

    // `recover` works through block devices too.
    let (image, journal) = (LoopDevice::new(&file("image")), LoopDevice::new(&file("journal")));
    let output = recover(&["-j", journal.path(), image.path()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    drop(image);
    let output = run("e2fsck", &["-fp", "-j", journal.path(), &text("image")]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let output = run("e2fsck", &["-fn", "-j", journal.path(), &text("image")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
