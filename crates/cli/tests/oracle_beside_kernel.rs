//! `lab run --beside kernel`. In lockstep, the kernel leaves the same extents as our engine if
//! nothing is freed. A run that fails, is interrupted or is killed leaves nothing mounted.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use blockyard_testkit::{leftovers, wait_until};
use serde_json::Value;

const NEEDS: [&str; 4] = ["root", "mount", "umount", "mountpoint"];

fn command(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.args(["lab", "run"]).args(arguments).args(["--beside", "kernel"]).env("TMPDIR", scratch);
    command
}

/// In lockstep both sides make the same decisions on the same image, so append64 leaves equal
/// layouts.
#[test]
fn in_lockstep_the_kernel_leaves_the_same_extents() {
    if !blockyard_testkit::require(&NEEDS) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for workload in [&["append64", "--scale", "0.01"][..], &["fallocate2", "--ops", "300"]] {
        let mut arguments = workload.to_vec();
        arguments.extend([
            "--workers",
            "1,4",
            "--interleave",
            "lockstep",
            "--policy",
            "linux-6.18",
            "--memory",
            "8G",
            "--json",
        ]);
        let output = command(scratch.path(), &arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 4, "{workload:?}");
        for (ours, kernel) in rows[..2].iter().zip(&rows[2..]) {
            assert_eq!(
                (ours["policy"].as_str(), kernel["policy"].as_str()),
                (Some("linux-6.18"), Some("kernel"))
            );
            // fallocate2 frees space, and what the kernel may reuse depends on when its journal
            // commits.
            let keys: &[&str] = if workload[0] == "append64" {
                &[
                    "ops",
                    "extents_per_file",
                    "mean_extent_kb",
                    "free_extents",
                    "avg_free_extent_kb",
                    "groups_touched",
                    "score",
                ]
            } else {
                &["ops"]
            };
            for key in keys {
                assert_eq!(ours[key], kernel[key], "{workload:?}: {key} of {ours} and {kernel}");
            }
            assert!(kernel["lock_acquisitions"].is_null() && kernel["lock_waits"].is_null(), "{kernel}");
            assert!(
                kernel["hits"].as_object().unwrap().values().any(|hits| hits.as_u64() > Some(0)),
                "{kernel}"
            );
        }
    }
    assert_eq!(leftovers(scratch.path()), Vec::<String>::new());
}

#[test]
fn the_caveat_is_printed_and_impossible_plans_are_refused() {
    if !blockyard_testkit::require(&[&NEEDS[..], &["e2fsck"]].concat()) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let small = [
        "fallocate2",
        "--workers",
        "1",
        "--ops",
        "50",
        "--policy",
        "yard",
        "--memory",
        "1G",
        "--repeat",
        "2",
    ];
    let output = command(scratch.path(), &small).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("with a system call for each operation"), "{text}");
    assert!(text.contains("all 5 images passed our check; e2fsck -fn found nothing"), "{text}");
    for (arguments, part) in [
        (
            &["fallocate2", "--interleave", "overlap", "--workers", "1"][..],
            "overlapping operations are a model of ours",
        ),
        (&["allocstress", "--workers", "4096", "--memory", "16T"], "do not fit the memory of this machine"),
    ] {
        let output = command(scratch.path(), arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(8), "{text}");
        assert!(text.contains(part) && text.trim_end().lines().count() == 1, "{text}");
    }
    // Our engine refuses to write an image with MMP, so the run ends with an error in its first
    // cell.
    let output = command(
        scratch.path(),
        &["append64", "--scale", "0.01", "--workers", "1", "--memory", "64M", "--mkfs", "-O mmp"],
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(8), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(leftovers(scratch.path()), Vec::<String>::new());
}

#[test]
fn an_interrupted_or_killed_run_leaves_nothing_mounted() {
    if !blockyard_testkit::require(&[&NEEDS[..], &["kill"]].concat()) {
        return;
    }
    for signal in ["-INT", "-KILL"] {
        let scratch = tempfile::tempdir().unwrap();
        let arguments =
            ["fallocate2", "--workers", "2", "--ops", "400000", "--policy", "yard", "--memory", "1G"];
        let mut child = command(scratch.path(), &arguments)
            .args(["--quiet"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The kernel's arm runs after our engine's arm, and only then is the image mounted.
        wait_until("the mount", || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
            mounts
                .lines()
                .any(|line| line.contains(scratch.path().to_str().unwrap()) && line.contains("/mnt ext4"))
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(child.try_wait().unwrap().is_none(), "it still runs");
        let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        child.wait().unwrap();
        wait_until("everything is taken down", || leftovers(scratch.path()).is_empty());
    }
}
